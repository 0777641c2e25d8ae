//! Sealed memfds: how one is created, and what is checked of one that was received.
//!
//! Read first: `memfd_create(2)`; `fcntl(2)`, "File sealing".

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self as fd_calls, MemfdFlags, SealFlags};

use super::RegionError;

/// What keeps the size as it is. No seal can be taken back.
const NEEDED_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// What is added when all ends have mapped the memory: no new writable mapping, no write(2), no
/// hole, and no further seal.
const LAST_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// A memfd of `bytes`, zeroed, whose size is sealed.
pub(super) fn sealed_memfd(name: &str, bytes: usize) -> Result<OwnedFd, RegionError> {
    let system = |call| move |errno| RegionError::System { call, errno };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux 6.3 expects a flag that the file is not executed; before, it knows no such flag.
    let fd = fd_calls::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| fd_calls::memfd_create(name, flags))
        .map_err(system("memfd_create"))?;
    fd_calls::ftruncate(&fd, bytes as u64).map_err(system("ftruncate"))?;
    fd_calls::fcntl_add_seals(&fd, NEEDED_SEALS).map_err(system("fcntl(F_ADD_SEALS)"))?;
    Ok(fd)
}

/// Adds the last seals to a memfd that all ends have mapped.
pub(super) fn seal_last(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
    let system = |errno| RegionError::System { call: "fcntl(F_ADD_SEALS)", errno };
    fd_calls::fcntl_add_seals(fd, LAST_SEALS).map_err(system)
}

/// `TMPFS_MAGIC`: where memfds in small pages live.
const TMPFS_MAGIC: u32 = 0x0102_1994;

/// Whether a descriptor from another process can be mapped without giving it power over us.
pub(super) fn check_received(fd: &OwnedFd, bytes: usize) -> Result<(), RegionError> {
    let system = |call| move |errno| RegionError::System { call, errno };
    // A file that cannot be sealed answers EINVAL.
    let found = fd_calls::fcntl_get_seals(fd).map_err(|_| RegionError::NotMemfd)?;
    // A memfd in huge pages can be sealed as well, but a hole punched into it frees pages that the
    // next access may not get back: SIGBUS. Small pages come back as zeros.
    let place = fd_calls::fstatfs(fd).map_err(system("fstatfs"))?;
    if place.f_type as u32 != TMPFS_MAGIC {
        return Err(RegionError::NotMemfd);
    }
    if !found.contains(NEEDED_SEALS) {
        let (found, needed) = (found.bits(), NEEDED_SEALS.bits());
        return Err(RegionError::NotSealed { found, needed });
    }
    // Looked at after the seals: from here on it stays.
    let found = fd_calls::fstat(fd).map_err(system("fstat"))?.st_size as u64;
    if found != bytes as u64 {
        return Err(RegionError::OtherSize { found, agreed: bytes });
    }
    Ok(())
}
