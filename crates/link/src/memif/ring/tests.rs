//! Where things lie, and that no index leads outside.

use super::*;

fn ring(size_log2: u8) -> (Arc<MemifRegion>, MemifRing) {
    let (region, _fd) = MemifRegion::create(ring_bytes(size_log2) + 64).expect("region");
    let region = Arc::new(region);
    let ring = MemifRing::at(&region, 64, size_log2).expect("ring");
    (region, ring)
}

#[test]
fn fields_lie_where_the_protocol_puts_them() {
    let (region, ring) = ring(3);
    ring.clear();
    assert!(ring.has_cookie());
    ring.store(Index::Head, 0x1234);
    ring.store(Index::Tail, 0x5678);
    let slot =
        DescriptorFields { more: true, region: 0x0102, len: 0x0304_0506, offset: 0x0708_090a };
    ring.write(1, slot);
    let mut bytes = vec![0; ring_bytes(3)];
    assert!(region.read(64, &mut bytes));
    assert_eq!(bytes[..4], COOKIE.to_ne_bytes());
    assert_eq!(bytes[4..6], MASK_INTERRUPT.to_ne_bytes());
    assert_eq!(bytes[6..8], 0x1234u16.to_ne_bytes());
    assert_eq!(bytes[64..66], 0x5678u16.to_ne_bytes());
    let at = 128 + 16;
    assert_eq!(bytes[at..at + 2], NEXT.to_ne_bytes());
    assert_eq!(bytes[at + 2..at + 4], 0x0102u16.to_ne_bytes());
    assert_eq!(bytes[at + 4..at + 8], 0x0304_0506u32.to_ne_bytes());
    assert_eq!(bytes[at + 8..at + 12], 0x0708_090au32.to_ne_bytes());
}

#[test]
fn any_index_falls_on_a_slot() {
    let (_region, ring) = ring(3);
    for index in 0..=u16::MAX {
        let slot = DescriptorFields { more: false, region: 0, len: u32::from(index), offset: 1 };
        ring.write(index, slot);
        assert_eq!(ring.read(index.wrapping_add(8)), slot);
    }
}

#[test]
fn a_ring_is_not_made_outside_or_askew() {
    let (region, _fd) = MemifRegion::create(4096).expect("region");
    let region = Arc::new(region);
    assert!(MemifRing::at(&region, 4096 - ring_bytes(3), 3).is_some());
    assert!(MemifRing::at(&region, 4096 - ring_bytes(3) + 8, 3).is_none());
    assert!(MemifRing::at(&region, 4, 3).is_none());
    assert!(MemifRing::at(&region, usize::MAX - 7, 3).is_none());
}

#[test]
fn masking_is_seen_by_the_producer() {
    let (_region, ring) = ring(1);
    ring.clear();
    assert!(!ring.wants_interrupt());
    ring.mask_interrupt(false);
    assert!(ring.wants_interrupt());
}
