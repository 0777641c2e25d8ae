//! A small assembler for eBPF: instructions by name, jumps by label.
//!
//! Read first: the kernel's `Documentation/bpf/standardization/instruction-set.rst` (RFC 9669).
//! Only what our program needs is here.
//!
//! Invariants
//! - [`Assembler::finish`] gives a program only if each label that is jumped to was placed, ahead
//!   of the jump, within the reach of its 16 bits.

use std::os::fd::{AsRawFd, BorrowedFd};

/// One instruction as the kernel takes it (RFC 9669 section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct BpfInstruction {
    opcode: u8,
    /// Destination in the low half, source in the high half.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const _: () = assert!(size_of::<BpfInstruction>() == 8);

/// A register: `R0` holds results, `R1` to `R5` arguments, which a call destroys; `R6` to `R9`
/// survive calls; `R10` is the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// How many bytes a load or a store moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// When a jump is taken; numbers are without sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JumpCondition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    /// Some bit of both is set.
    Overlaps = 0x40,
    NotEqual = 0x50,
}

/// What an arithmetic instruction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add = 0x00,
    And = 0x50,
    ShiftLeft = 0x60,
    ShiftRight = 0x70,
    Set = 0xb0,
}

/// A place in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BpfLabel(usize);

/// Why there is no program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum AssemblyError {
    /// A label was jumped to and never placed.
    #[error("a jump leads to a label that was not placed")]
    NotPlaced,
    /// A jump leads back, which the verifier of older kernels takes for a loop.
    #[error("a jump leads back")]
    Backwards,
    /// A jump leads further than 16 bits reach.
    #[error("a jump leads too far")]
    TooFar,
}

// Classes and modes of opcodes (RFC 9669 sections 4 and 5).
const LOAD_IMMEDIATE_DOUBLE: u8 = 0x18;
const LOAD_MEMORY: u8 = 0x61;
const STORE_IMMEDIATE: u8 = 0x62;
const STORE_MEMORY: u8 = 0x63;
const ALU64: u8 = 0x07;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const TO_BIG_ENDIAN: u8 = 0xdc;
const SOURCE_REGISTER: u8 = 0x08;
/// The immediate of a 64-bit load is a map's descriptor.
const PSEUDO_MAP_FD: u8 = 1;

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<BpfInstruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, BpfLabel)>,
}

impl Assembler {
    /// An empty program.
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// A label that is still to be placed.
    pub(super) fn label(&mut self) -> BpfLabel {
        self.labels.push(None);
        BpfLabel(self.labels.len() - 1)
    }

    /// The next instruction is where `label` is.
    pub(super) fn place(&mut self, label: BpfLabel) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn emit(&mut self, opcode: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        let registers = to as u8 | from << 4;
        self.code.push(BpfInstruction { opcode, registers, offset, immediate });
    }

    /// `to = to op from`.
    pub(super) fn alu(&mut self, operation: Arithmetic, to: Register, from: Register) {
        self.emit(ALU64 | SOURCE_REGISTER | operation as u8, to, from as u8, 0, 0);
    }

    /// `to = to op number`, the number extended by its sign.
    pub(super) fn alu_number(&mut self, operation: Arithmetic, to: Register, number: i32) {
        self.emit(ALU64 | operation as u8, to, 0, 0, number);
    }

    /// `to = from`.
    pub(super) fn set(&mut self, to: Register, from: Register) {
        self.alu(Arithmetic::Set, to, from);
    }

    /// `to = number`.
    pub(super) fn set_number(&mut self, to: Register, number: i32) {
        self.alu_number(Arithmetic::Set, to, number);
    }

    /// The low 16 bits from network order to ours, the rest zero.
    pub(super) fn swap_network_16(&mut self, register: Register) {
        self.emit(TO_BIG_ENDIAN, register, 0, 0, 16);
    }

    /// `to = *(from + offset)`, without sign.
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.emit(LOAD_MEMORY | width as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) = from`.
    pub(super) fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.emit(STORE_MEMORY | width as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) = number`.
    pub(super) fn store_number(&mut self, width: Width, to: Register, offset: i16, number: i32) {
        self.emit(STORE_IMMEDIATE | width as u8, to, 0, offset, number);
    }

    /// `to` = the map.
    pub(super) fn map(&mut self, to: Register, map: BorrowedFd<'_>) {
        self.emit(LOAD_IMMEDIATE_DOUBLE, to, PSEUDO_MAP_FD, 0, map.as_raw_fd());
        // The second half of the 64-bit immediate.
        self.emit(0, Register::R0, 0, 0, 0);
    }

    /// Calls a helper function of the kernel.
    pub(super) fn call(&mut self, helper: i32) {
        self.emit(CALL, Register::R0, 0, 0, helper);
    }

    /// Ends the program with what `R0` holds.
    pub(super) fn exit(&mut self) {
        self.emit(EXIT, Register::R0, 0, 0, 0);
    }

    /// Goes on at `to`.
    pub(super) fn jump(&mut self, to: BpfLabel) {
        self.jumps.push((self.code.len(), to));
        self.emit(JUMP, Register::R0, 0, 0, 0);
    }

    /// Goes on at `to` if the two registers are so.
    pub(super) fn jump_if(
        &mut self,
        one: Register,
        when: JumpCondition,
        other: Register,
        to: BpfLabel,
    ) {
        self.jumps.push((self.code.len(), to));
        self.emit(JUMP | SOURCE_REGISTER | when as u8, one, other as u8, 0, 0);
    }

    /// Goes on at `to` if register and number are so.
    pub(super) fn jump_if_number(
        &mut self,
        one: Register,
        when: JumpCondition,
        number: i32,
        to: BpfLabel,
    ) {
        self.jumps.push((self.code.len(), to));
        self.emit(JUMP | when as u8, one, 0, 0, number);
    }

    /// The program, its jumps filled in.
    pub(super) fn finish(mut self) -> Result<Vec<BpfInstruction>, AssemblyError> {
        for &(at, BpfLabel(label)) in &self.jumps {
            let target = self.labels[label].ok_or(AssemblyError::NotPlaced)?;
            // An offset counts from the instruction behind the jump.
            let distance = target.checked_sub(at + 1).ok_or(AssemblyError::Backwards)?;
            self.code[at].offset = i16::try_from(distance).map_err(|_| AssemblyError::TooFar)?;
        }
        Ok(self.code)
    }
}

#[cfg(test)]
mod tests;
