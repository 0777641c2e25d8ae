//! Access is range-checked, and only memory that can not be taken away is adopted.

use super::*;

fn sealed(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("test", flags).expect("memfd");
    rustix::fs::ftruncate(&fd, bytes).expect("ftruncate");
    rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
    fd
}

#[test]
fn mappings_share_their_memory() {
    let (ours, fd) = MemifRegion::create(8192).expect("region");
    let theirs = MemifRegion::adopt(&fd, 8192).expect("adopted");
    assert!(ours.write(8000, &[7; 192]));
    let mut read = [0; 192];
    assert!(theirs.read(8000, &mut read));
    assert_eq!(read, [7; 192]);
}

#[test]
fn nothing_outside_is_touched() {
    let (region, _fd) = MemifRegion::create(4096).expect("region");
    let mut bytes = [0; 16];
    for offset in [4081, 4096, 4097, usize::MAX - 3, usize::MAX] {
        assert!(!region.read(offset, &mut bytes));
        assert!(!region.write(offset, &bytes));
    }
    assert!(region.read(4080, &mut bytes));
    assert!(region.read(4096, &mut []));
}

#[test]
fn only_memory_that_stays_is_adopted() {
    let refused = |fd: &OwnedFd, bytes| MemifRegion::adopt(fd, bytes).expect_err("refused").0;
    let shrinkable = sealed(4096, SealFlags::GROW);
    assert_eq!(refused(&shrinkable, 4096), "a region must be sealed against shrinking");
    let short = sealed(4096, SealFlags::SHRINK);
    assert_eq!(refused(&short, 8192), "a region is shorter than announced");
    let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").expect("a file"));
    assert_eq!(refused(&file, 16), "a region must be a memfd");
    assert!(MemifRegion::adopt(&short, 4096).is_ok());
}
