//! Regions: what they are made of, their bounds, and descriptors from others.

use super::*;

const PAGE: usize = limits::PAGE_BYTES;

#[test]
fn fresh_memory_is_zero_and_keeps_what_is_written() {
    let region = Region::heap(PAGE + 1).expect("two pages");
    assert_eq!((region.bytes(), region.backing()), (2 * PAGE, Backing::Heap));
    let mut bytes = [7; 16];
    region.read(2 * PAGE - 16, &mut bytes).expect("in bounds");
    assert_eq!(bytes, [0; 16]);
    region.write(3, b"some bytes").expect("in bounds");
    region.read(2, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"\0some bytes\0\0\0\0\0");
}

#[test]
fn values_and_atomics_share_the_bytes() {
    let region = Region::heap(PAGE).expect("a page");
    region.store(64, &[0x0807_0605_0403_0201u64.to_le(), 9]).expect("in bounds");
    let mut bytes = [0; 8];
    region.read(64, &mut bytes).expect("in bounds");
    assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
    let order = std::sync::atomic::Ordering::Relaxed;
    region.atomic_u64(72).expect("in bounds").store(11, order);
    assert_eq!(region.load::<[u64; 2]>(64).expect("in bounds")[1], 11);
    region.atomic_u32(128).expect("in bounds").store(5, order);
    assert_eq!(region.atomic_u32(128).expect("in bounds").load(order), 5);
}

#[test]
fn what_is_out_of_bounds_or_not_aligned_is_an_error() {
    let region = Region::heap(PAGE).expect("a page");
    let outside = |offset, len| OutOfRegion { offset, len, bytes: PAGE };
    assert_eq!(region.write(PAGE - 1, b"ab"), Err(outside(PAGE - 1, 2)));
    assert_eq!(region.write(PAGE, b""), Ok(()));
    assert_eq!(region.read(usize::MAX, &mut [0; 2]), Err(outside(usize::MAX, 2)));
    assert_eq!(region.load::<u64>(PAGE - 4), Err(outside(PAGE - 4, 8)));
    assert_eq!(region.load::<u64>(4), Err(outside(4, 8)));
    assert_eq!(region.store(12, &1u64), Err(outside(12, 8)));
    assert!(region.atomic_u32(2).is_err() && region.atomic_u32(PAGE).is_err());
    assert!(region.atomic_u64(4).is_err() && region.atomic_u64(usize::MAX - 7).is_err());
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert_eq!(Region::heap(0).expect_err("none"), RegionError::Size { bytes: 0 });
    assert!(matches!(Region::heap(usize::MAX), Err(RegionError::Size { .. })));
    assert!(matches!(Region::memfd("mp", usize::MAX), Err(RegionError::Size { .. })));
}

/// What needs the kernel: Miri has none.
#[cfg(not(miri))]
mod system {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    #[test]
    fn huge_pages_or_a_reason() {
        let region = Region::huge(1).expect("memory of some kind");
        assert_eq!(region.bytes(), limits::HUGE_PAGE_BYTES);
        let said = region.backing().to_string();
        assert!(said.contains("huge page"), "{said}");
        region.write(limits::HUGE_PAGE_BYTES - 4, b"last").expect("in bounds");
        assert!(region.fd().is_none());
    }

    #[test]
    fn two_mappings_of_one_memfd_see_each_other() {
        let ours = Region::memfd("mp-test", 3 * PAGE).expect("a memfd");
        let fd = ours.fd().expect("has one").try_clone_to_owned().expect("a copy");
        let theirs = Region::from_fd(fd, 3 * PAGE).expect("sealed as agreed");
        ours.write(2 * PAGE, b"hello").expect("in bounds");
        let mut bytes = [0; 5];
        theirs.read(2 * PAGE, &mut bytes).expect("in bounds");
        assert_eq!(&bytes, b"hello");
        assert_eq!(theirs.backing(), Backing::Memfd);
    }

    fn raw_memfd(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("mp-test", flags).expect("a memfd");
        rustix::fs::ftruncate(&fd, bytes).expect("a size");
        if !seals.is_empty() {
            rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        }
        fd
    }

    #[test]
    fn descriptors_that_could_harm_us_are_refused() {
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let page = PAGE as u64;
        let from = |fd| Region::from_fd(fd, PAGE).map(|_| ());
        let sealable = MemfdFlags::ALLOW_SEALING;
        assert_eq!(from(raw_memfd(sealable, page, all)), Ok(()));
        for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            let found = from(raw_memfd(sealable, page, all - missing));
            assert!(matches!(found, Err(RegionError::NotSealed { .. })), "{found:?}");
        }
        // Never sealable: F_SEAL_SEAL alone.
        let found = from(raw_memfd(MemfdFlags::empty(), page, SealFlags::empty()));
        assert!(matches!(found, Err(RegionError::NotSealed { .. })), "{found:?}");
        for bytes in [0, page - 1, page + 1, 2 * page] {
            let found = from(raw_memfd(sealable, bytes, all));
            assert_eq!(found, Err(RegionError::OtherSize { found: bytes, agreed: PAGE }));
        }
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert_eq!(from(file.into()), Err(RegionError::NotMemfd));
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        assert_eq!(from(pipe.into()), Err(RegionError::NotMemfd));
        // Its pages can be written by nobody, so it cannot be mapped for writing.
        let read_only = raw_memfd(sealable, page, all | SealFlags::WRITE);
        let found = from(read_only);
        assert!(matches!(found, Err(RegionError::System { call: "mmap", .. })), "{found:?}");
    }

    #[test]
    fn a_memfd_in_huge_pages_is_refused() {
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = rustix::fs::memfd_create("mp-test", flags) else {
            println!("skipped: a_memfd_in_huge_pages_is_refused: the kernel has no huge pages");
            return;
        };
        rustix::fs::ftruncate(&fd, limits::HUGE_PAGE_BYTES as u64).expect("a size");
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        let found = Region::from_fd(fd, limits::HUGE_PAGE_BYTES).map(|_| ());
        assert_eq!(found, Err(RegionError::NotMemfd));
    }

    #[test]
    fn nobody_can_change_the_size_of_ours() {
        let region = Region::memfd("mp-test", PAGE).expect("a memfd");
        let fd = region.fd().expect("has one");
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 2 * PAGE as u64).is_err());
        assert!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE).is_err());
        // A hole is not a change of size: the memory reads as zeros and nothing faults.
        region.write(0, b"gone").expect("in bounds");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(fd, punch, 0, PAGE as u64).expect("a hole");
        let mut bytes = [1; 4];
        region.read(0, &mut bytes).expect("in bounds");
        assert_eq!(bytes, [0; 4]);
    }
}

#[test]
fn what_is_expected_stays_as_it_is_and_may_lie_anywhere() {
    let region = Region::heap(4096).unwrap();
    region.write(4000, &[7; 96]).unwrap();
    for (offset, len) in [(0, 4096), (4000, 96), (4095, 2), (usize::MAX, 8), (8, usize::MAX)] {
        region.expect(offset, len);
        region.expect_to_write(offset, len);
    }
    let mut bytes = [0; 96];
    region.read(4000, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 96]);
}
