//! A copy is whole at every length and alignment, and touches nothing beside its range.

use super::*;

#[test]
fn every_length_at_every_alignment_arrives_whole() {
    let source: Vec<u8> = (0..400u32).map(|n| (n * 7 + 3) as u8).collect();
    for len in (0..200).chain([255, 256, 300]) {
        for offset in [0, 1, 3, 8, 15] {
            let mut there = vec![0xee; len + 32];
            // SAFETY: `offset + len` is at most 315 and 16 + len at most the vector's length.
            unsafe { to_shared(there[16..].as_mut_ptr(), &source[offset..offset + len]) };
            assert_eq!(there[16..16 + len], source[offset..offset + len]);
            assert!(there[..16].iter().chain(&there[16 + len..]).all(|&byte| byte == 0xee));
            let mut back = vec![0xdd; len];
            // SAFETY: `there` holds `len` bytes from 16 on.
            unsafe { from_shared(&mut back, there[16..].as_ptr()) };
            assert_eq!(back, source[offset..offset + len]);
        }
    }
}
