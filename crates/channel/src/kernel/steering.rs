//! Which socket of a SO_REUSEPORT group takes a new connection: a classic BPF program that looks
//! at the core on which the connection's packet is processed [MP 3.4.1].
//!
//! Read first: socket(7) SO_ATTACH_REUSEPORT_CBPF; the kernel's filter documentation for the
//! ancillary loads. The program returns a socket's index in the group; an index beyond the last
//! falls back to the kernel's hash.
//!
//! Pure: members in, instructions out; the interpreter in the tests runs what was written.

use std::collections::TryReserveError;

use libc::sock_filter;

use crate::cpu_mask::CpuMask;

const LOAD_ABSOLUTE: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
const MODULO: u16 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
const ADD: u16 = 0x04; // BPF_ALU | BPF_ADD | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const RETURN_A: u16 = 0x16; // BPF_RET | BPF_A

const ANCILLARY: u32 = 0xffff_f000; // SKF_AD_OFF
const CURRENT_CPU: u32 = ANCILLARY + 36; // SKF_AD_CPU
const RANDOM: u32 = ANCILLARY + 56; // SKF_AD_RANDOM

/// Instructions of a program that belong to no core and no member.
const LOADS_MAX: usize = 8;

/// The longest program that the kernel takes.
pub(crate) const INSTRUCTIONS_MAX: usize = 4096;

/// One socket of the group, in the kernel's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupShare {
    /// Takes the connections of these cores.
    Cores(CpuMask),
    /// Takes the connections of cores that no mask names.
    Rest,
    /// Takes no new connection (a listener that leaves, or that no channel accepts from).
    Idle,
}

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// The program for a group, or `None` if the kernel's own hash does the same.
///
/// Cores in a mask go to their member. The rest is spread at random over the `Rest` members, or,
/// if there are none, over all members with a mask, so that no connection waits where no channel
/// accepts.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn program(members: &[GroupShare]) -> Result<Option<Vec<sock_filter>>, TryReserveError> {
    if members.iter().all(|member| *member == GroupShare::Rest) {
        return Ok(None);
    }
    let cores = members.iter().map(|member| match member {
        GroupShare::Cores(mask) => mask.iter().count(),
        GroupShare::Rest | GroupShare::Idle => 0,
    });
    let mut code = Vec::new();
    code.try_reserve_exact(LOADS_MAX + 2 * (cores.sum::<usize>() + members.len()))?;
    code.push(instruction(LOAD_ABSOLUTE, 0, 0, CURRENT_CPU));
    for (index, member) in members.iter().enumerate() {
        let GroupShare::Cores(mask) = member else { continue };
        for cpu in mask.iter() {
            code.push(instruction(JUMP_EQUAL, 0, 1, cpu as u32));
            code.push(instruction(RETURN, 0, 0, index as u32));
        }
    }
    let mut takers = Vec::new();
    takers.try_reserve_exact(members.len())?;
    let mut take = |wanted: fn(&GroupShare) -> bool| {
        let indexed = (0u32..).zip(members);
        takers.extend(indexed.filter(|(_, member)| wanted(member)).map(|(index, _)| index));
        takers.is_empty()
    };
    if take(|member| *member == GroupShare::Rest) {
        take(|member| matches!(member, GroupShare::Cores(_)));
    }
    spread(&mut code, &takers);
    Ok((code.len() <= INSTRUCTIONS_MAX).then_some(code))
}

/// One of `takers` at random.
fn spread(code: &mut Vec<sock_filter>, takers: &[u32]) {
    match takers {
        [] => code.push(instruction(RETURN, 0, 0, u32::MAX)),
        [only] => code.push(instruction(RETURN, 0, 0, *only)),
        [first, .., last] => {
            code.push(instruction(LOAD_ABSOLUTE, 0, 0, RANDOM));
            code.push(instruction(MODULO, 0, 0, takers.len() as u32));
            if (last - first) as usize == takers.len() - 1 {
                code.push(instruction(ADD, 0, 0, *first));
                code.push(instruction(RETURN_A, 0, 0, 0));
                return;
            }
            for (place, taker) in (0u32..).zip(takers) {
                code.push(instruction(JUMP_GREATER, 1, 0, place));
                code.push(instruction(RETURN, 0, 0, *taker));
            }
            code.push(instruction(RETURN, 0, 0, *last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steered(members: &[GroupShare]) -> Vec<sock_filter> {
        program(members).expect("memory").expect("not the kernel's own hash")
    }

    /// Runs a program as the kernel would.
    fn run(code: &[sock_filter], cpu: u32, random: u32) -> u32 {
        let (mut at, mut a) = (0, 0u32);
        loop {
            let sock_filter { code: op, jt, jf, k } = code[at];
            at += 1;
            match op {
                LOAD_ABSOLUTE if k == CURRENT_CPU => a = cpu,
                LOAD_ABSOLUTE if k == RANDOM => a = random,
                JUMP_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                JUMP_GREATER => at += usize::from(if a > k { jt } else { jf }),
                MODULO => a %= k,
                ADD => a += k,
                RETURN => return k,
                RETURN_A => return a,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn each_core_goes_to_the_member_whose_mask_has_it() {
        let members = [
            GroupShare::Cores(CpuMask::cpu(3)),
            GroupShare::Cores(CpuMask::cpus([0, 1])),
            GroupShare::Rest,
        ];
        let code = steered(&members);
        assert_eq!([0, 1, 2, 3, 9].map(|cpu| run(&code, cpu, 5)), [1, 1, 2, 0, 2]);
    }

    #[test]
    fn without_a_rest_other_cores_are_spread_over_those_with_a_mask() {
        let members = [
            GroupShare::Cores(CpuMask::cpu(0)),
            GroupShare::Idle,
            GroupShare::Cores(CpuMask::cpu(1)),
        ];
        let code = steered(&members);
        assert_eq!([0, 1, 2, 3].map(|random| run(&code, 7, random)), [0, 2, 0, 2]);
    }

    #[test]
    fn several_rest_members_share_what_is_left() {
        let members = [GroupShare::Cores(CpuMask::cpu(0)), GroupShare::Rest, GroupShare::Rest];
        let code = steered(&members);
        assert_eq!([0, 1, 2, 3].map(|random| run(&code, 4, random)), [1, 2, 1, 2]);
        assert_eq!(run(&code, 0, 1), 0);
    }

    #[test]
    fn no_masks_need_no_program_and_leavers_get_nothing() {
        assert_eq!(
            program(&[GroupShare::Rest, GroupShare::Rest]).map(|code| code.is_some()),
            Ok(false)
        );
        let code = steered(&[GroupShare::Rest, GroupShare::Idle, GroupShare::Rest]);
        assert!((0..20).all(|random| run(&code, 0, random) != 1));
        let code = steered(&[GroupShare::Idle]);
        assert_eq!(run(&code, 0, 0), u32::MAX);
    }
}
