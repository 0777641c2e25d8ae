//! Regions: what they are made of, their bounds, and descriptors from others.

use super::*;
use crate::area::{BufferArea, PoolLayout};

const PAGE: usize = limits::PAGE_BYTES;

/// All of a region as buffers of a line, which lie behind one another.
pub(crate) fn lines(parts: &mut RegionParts) -> BufferArea {
    let (buf_bytes, count) = (limits::LINE_BYTES, parts.bytes_left() / limits::LINE_BYTES);
    let layout = PoolLayout { buf_bytes, count: count as u32, tag: 0 };
    BufferArea::new(parts, layout).expect("all that is left")
}

fn span(part: &Part) -> std::ops::Range<usize> {
    let start = part.start().as_ptr() as usize;
    start..start + part.bytes()
}

#[test]
fn fresh_memory_is_zero_and_keeps_what_is_written() {
    let region = Region::heap(PAGE + 1).expect("two pages");
    assert_eq!((region.bytes(), region.fd().is_none()), (2 * PAGE, true));
    let area = lines(&mut region.into_parts());
    let mut bytes = [7; 16];
    area.read(127, 48, &mut bytes).expect("in bounds");
    assert_eq!(bytes, [0; 16]);
    area.write(0, 3, b"some bytes").expect("in bounds");
    area.read(0, 2, &mut bytes).expect("in bounds");
    assert_eq!(&bytes, b"\0some bytes\0\0\0\0\0");
}

#[test]
fn parts_do_not_overlap_and_end_with_the_region() {
    let mut parts = Region::heap(PAGE).expect("a page").into_parts();
    let start = span(&parts.take(0).expect("nothing")).start;
    let mut end = start;
    for bytes in [1, 128, 129, 64, 3000, 1] {
        let part = parts.take(bytes).expect("it fits");
        assert_eq!((span(&part).start, part.bytes()), (end, bytes.next_multiple_of(128)));
        end = span(&part).end;
    }
    assert_eq!(parts.bytes_left(), start + PAGE - end);
    let left = parts.bytes_left();
    for bytes in [left + 1, usize::MAX, usize::MAX - 126] {
        let refused = OutOfRegion { offset: PAGE - left, len: bytes, bytes: PAGE };
        assert_eq!(parts.take(bytes).expect_err("too much"), refused);
    }
    assert_eq!(span(&parts.take(left).expect("the rest")).end, start + PAGE);
    assert!(parts.take(1).is_err() && parts.bytes_left() == 0);
}

#[test]
fn two_ends_find_each_part_at_the_same_place() {
    let place = |count| {
        let mut parts = Region::heap(PAGE).expect("a page").into_parts();
        let first = span(&parts.take(0).expect("nothing")).start;
        let _ring = crate::ring::ring::<u64>(&mut parts, count).expect("it fits");
        span(&parts.take(64).expect("it fits")).start - first
    };
    assert_eq!(place(16), crate::ring::ring_bytes::<u64>(16));
    assert_eq!(place(16), place(16));
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
    fn two_mappings_of_one_memfd_see_each_other() {
        let ours = Region::memfd("mp-test", 3 * PAGE).expect("a memfd");
        let fd = ours.fd().expect("has one").try_clone_to_owned().expect("a copy");
        let theirs = Region::from_fd(fd, 3 * PAGE).expect("sealed as agreed");
        let [ours, theirs] = [ours, theirs].map(|region| lines(&mut region.into_parts()));
        ours.write(128, 7, b"hello").expect("in bounds");
        let mut bytes = [0; 5];
        theirs.read(128, 7, &mut bytes).expect("in bounds");
        assert_eq!(&bytes, b"hello");
    }

    /// The flags of the mapping that contains `address` (proc_pid_smaps(5)).
    fn mapping_flags(address: usize) -> String {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut is_in = false;
        for line in smaps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let bound = |text| usize::from_str_radix(text, 16);
            if let Some((Ok(from), Ok(to))) = range.map(|(from, to)| (bound(from), bound(to))) {
                is_in = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_in) {
                return flags.to_owned();
            }
        }
        panic!("no mapping at {address:#x}")
    }

    #[test]
    fn region_kept_from_children_is_not_copied_by_fork() {
        let mut region = Region::memfd("mp-test", PAGE).expect("a memfd");
        let address = region.mapping.base().as_ptr() as usize;
        assert!(!mapping_flags(address).contains(" dc"));
        region.keep_from_children().expect("Linux 2.6.16");
        assert!(mapping_flags(address).contains(" dc"), "{}", mapping_flags(address));
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
        for missing in [SealFlags::SHRINK, SealFlags::GROW] {
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
        // No process can write its pages, so it cannot be mapped for writing.
        let read_only = raw_memfd(sealable, page, all | SealFlags::WRITE);
        let found = from(read_only);
        assert!(matches!(found, Err(RegionError::System { call: "mmap", .. })), "{found:?}");
    }

    #[test]
    fn a_memfd_in_huge_pages_is_refused() {
        const HUGE_PAGE_BYTES: usize = 2 << 20;
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let Ok(fd) = rustix::fs::memfd_create("mp-test", flags) else {
            println!("skipped: a_memfd_in_huge_pages_is_refused: the kernel has no huge pages");
            return;
        };
        rustix::fs::ftruncate(&fd, HUGE_PAGE_BYTES as u64).expect("a size");
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
        let found = Region::from_fd(fd, HUGE_PAGE_BYTES).map(|_| ());
        assert_eq!(found, Err(RegionError::NotMemfd));
    }

    #[test]
    fn the_size_of_ours_is_sealed() {
        let region = Region::memfd("mp-test", PAGE).expect("a memfd");
        let fd = region.fd().expect("has one");
        assert!(rustix::fs::ftruncate(fd, 0).is_err());
        assert!(rustix::fs::ftruncate(fd, 2 * PAGE as u64).is_err());
        assert!(rustix::fs::fcntl_add_seals(fd, SealFlags::WRITE).is_err());
        // Before the last seals a hole is possible. It is not a change of size: the memory reads as
        // zeros and nothing faults.
        let again = Region::from_fd(fd.try_clone_to_owned().expect("a copy"), PAGE);
        let area = lines(&mut again.expect("sealed as agreed").into_parts());
        area.write(0, 0, b"gone").expect("in bounds");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(fd, punch, 0, PAGE as u64).expect("a hole");
        let mut bytes = [1; 4];
        area.read(0, 0, &mut bytes).expect("in bounds");
        assert_eq!(bytes, [0; 4]);
    }
    #[test]
    fn sealed_region_has_no_holes_and_no_new_writers() {
        let region = Region::memfd("mp-test", PAGE).expect("a memfd");
        let fd = region.fd().expect("has one").try_clone_to_owned().expect("a copy");
        seal_region(fd.as_fd()).expect("Linux 5.1");
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let refused = rustix::fs::fallocate(&fd, punch, 0, PAGE as u64);
        assert_eq!(refused, Err(rustix::io::Errno::PERM));
        assert!(rustix::io::write(&fd, b"text").is_err());
        assert!(matches!(Region::from_fd(fd, PAGE), Err(RegionError::System { call: "mmap", .. })));
        let area = lines(&mut region.into_parts());
        area.write(0, 0, b"kept").expect("the first mapping is as it was");
    }
}
