//! The flow table against a map.

use core::net::IpAddr;
use std::collections::HashMap;

use proptest::prelude::*;
use siphasher::sip::SipHasher13;

use super::*;

fn flow(number: u8) -> Flow {
    let remote = if number.is_multiple_of(2) {
        IpAddr::from([10, 0, 0, number])
    } else {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)])
    };
    let local = if number.is_multiple_of(2) {
        IpAddr::from([10, 0, 0, 1])
    } else {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1])
    };
    let (local, remote) = (local.into(), remote.into());
    Flow { local, remote, local_port: 80, remote_port: 40_000 + u16::from(number) }
}

#[test]
fn the_key_decides_the_hash() {
    let one = FlowTable::new(8, &[1; 16]);
    let other = FlowTable::new(8, &[2; 16]);
    assert_eq!(one.hash(&flow(3)), one.hash(&flow(3)));
    assert_ne!(one.hash(&flow(2)), other.hash(&flow(2)));
    assert_ne!(one.hash(&flow(3)), other.hash(&flow(3)));
}

#[test]
fn the_hash_is_siphash() {
    let key = core::array::from_fn(|index| index as u8 * 3);
    let table = FlowTable::new(8, &key);
    let sip = SipHasher13::new_with_key(&key);
    for number in 0..=255 {
        let flow = flow(number);
        let ports = (u32::from(flow.local_port) << 16 | u32::from(flow.remote_port)).to_le_bytes();
        let bytes = match (flow.local.ip(), flow.remote.ip()) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let words = [local.to_bits(), remote.to_bits()];
                [words.map(u32::to_le_bytes).as_flattened(), &ports].concat()
            }
            (IpAddr::V6(local), IpAddr::V6(remote)) => {
                let words = [local.to_bits(), remote.to_bits()];
                [words.map(u128::to_le_bytes).as_flattened(), &ports].concat()
            }
            _ => unreachable!("flows are of one version"),
        };
        assert_eq!(table.hash(&flow), sip.hash(&bytes) as u32, "{flow:?}");
    }
}

#[test]
fn a_full_table_says_so() {
    let mut table = FlowTable::new(2, &[0; 16]);
    assert_eq!(table.insert(7, 0), Ok(()));
    assert_eq!(table.insert(7, 1), Ok(()));
    assert_eq!(table.insert(7, 2), Err(TableFull));
    table.remove(7, 5);
    assert_eq!(table.len(), 2);
}

proptest! {
    // Few different hashes, so that runs of entries grow long and wrap around the end.
    #[test]
    fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0_u32..24, 0_u32..4), 1..300)) {
        let mut table = FlowTable::new(24, &[0; 16]);
        let mut model = HashMap::new();
        for (add, index, hash) in steps {
            let hash = hash.wrapping_sub(2) & 31;
            if add && !model.contains_key(&index) {
                prop_assert_eq!(table.insert(hash, index), Ok(()));
                model.insert(index, hash);
            } else if !add && let Some(hash) = model.remove(&index) {
                table.remove(hash, index);
            }
            prop_assert_eq!(table.len() as usize, model.len());
            for index in 0..24 {
                let hash = model.get(&index).copied().unwrap_or(hash);
                let found = table.find(hash, |found| found == index);
                prop_assert_eq!(found, model.get(&index).map(|_| index));
            }
        }
    }
}
