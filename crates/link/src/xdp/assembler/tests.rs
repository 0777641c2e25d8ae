//! Instructions have the bytes of RFC 9669, and jumps reach their labels.

use super::Register::{R0, R1, R2, R10};
use super::*;

fn bytes(assembler: Assembler) -> Vec<(u8, u8, i16, i32)> {
    let code = assembler.finish().expect("a program");
    code.iter().map(|i| (i.opcode, i.registers, i.offset, i.immediate)).collect()
}

#[test]
fn each_instruction_has_its_opcode() {
    let mut a = Assembler::new();
    a.set(R1, R2);
    a.set_number(R0, -1);
    a.alu_number(Arithmetic::Add, R2, 14);
    a.alu_number(Arithmetic::And, R2, 15);
    a.alu_number(Arithmetic::ShiftLeft, R2, 2);
    a.alu(Arithmetic::ShiftRight, R2, R1);
    a.swap_network_16(R2);
    a.load(Width::Byte, R1, R2, 3);
    a.load(Width::Half, R1, R2, 3);
    a.load(Width::Word, R1, R2, 3);
    a.load(Width::Double, R1, R2, 3);
    a.store(Width::Word, R10, -8, R1);
    a.store_number(Width::Double, R10, -16, 0);
    a.call(51);
    a.exit();
    assert_eq!(
        bytes(a),
        [
            (0xbf, 0x21, 0, 0),
            (0xb7, 0x00, 0, -1),
            (0x07, 0x02, 0, 14),
            (0x57, 0x02, 0, 15),
            (0x67, 0x02, 0, 2),
            (0x7f, 0x12, 0, 0),
            (0xdc, 0x02, 0, 16),
            (0x71, 0x21, 3, 0),
            (0x69, 0x21, 3, 0),
            (0x61, 0x21, 3, 0),
            (0x79, 0x21, 3, 0),
            (0x63, 0x1a, -8, 0),
            (0x7a, 0x0a, -16, 0),
            (0x85, 0x00, 0, 51),
            (0x95, 0x00, 0, 0),
        ]
    );
}

#[test]
fn jumps_count_from_the_instruction_behind_them() {
    let mut a = Assembler::new();
    let (near, far) = (a.label(), a.label());
    a.jump_if(R1, JumpCondition::Greater, R2, far);
    a.jump_if_number(R1, JumpCondition::Equal, 7, near);
    a.jump(near);
    a.place(near);
    a.exit();
    a.place(far);
    a.exit();
    assert_eq!(
        bytes(a),
        [(0x2d, 0x21, 3, 0), (0x15, 0x01, 1, 7), (0x05, 0, 0, 0), (0x95, 0, 0, 0), (0x95, 0, 0, 0)]
    );
}

#[test]
fn a_jump_to_nowhere_is_no_program() {
    let mut a = Assembler::new();
    let label = a.label();
    a.jump(label);
    assert_eq!(a.finish(), Err(AssemblyError::NotPlaced));

    let mut a = Assembler::new();
    let label = a.label();
    a.place(label);
    a.exit();
    a.jump(label);
    assert_eq!(a.finish(), Err(AssemblyError::Backwards));

    let mut a = Assembler::new();
    let label = a.label();
    a.jump(label);
    for _ in 0..=i16::MAX as usize {
        a.exit();
    }
    a.place(label);
    a.exit();
    assert_eq!(a.finish(), Err(AssemblyError::TooFar));
}
