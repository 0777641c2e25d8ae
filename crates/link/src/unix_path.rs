//! UNIX socket paths of servers: binds a listener, replaces the socket of a dead server, and
//! removes the path at the end.
//!
//! Both `--listen unix:PATH` and memif servers use this module.
//!
//! Invariants
//! - A path is replaced only if it names a socket that has no listener. Regular files,
//!   directories and symbolic links are never removed.
//! - At the end a path is removed only if it still names the socket that was bound here.
//! - Bind, listen, replace and remove run under a lock of the directory, so a second server that
//!   starts at the same moment never takes a bound socket that does not listen yet for a dead one.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, bind, connect, listen, socket_with, sockopt,
};

use crate::limits::UNIX_PATH_LOCK_MS;

/// Time between two attempts to lock a directory.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// A path that a listening socket was bound to. Dropping it removes the path.
#[derive(Debug)]
pub struct BoundPath {
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl BoundPath {
    /// Binds an unbound UNIX socket to `path` and listens. A socket file without a listener, which
    /// a server that was killed leaves behind, is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if another server listens at `path`, `AlreadyExists` if `path` is not a socket
    /// (both name the path); what bind(2) and listen(2) return.
    pub fn listen(socket: BorrowedFd<'_>, path: &Path, backlog: i32) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let lock = lock_directory(path);
        match bind(socket, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_abandoned(socket, path, &address, lock.is_some())?;
                bind(socket, &address)?;
            }
            outcome => outcome?,
        }
        let bound = Self { path: path.to_owned(), file: identity(&path.symlink_metadata()?) };
        listen(socket, backlog)?;
        Ok(bound)
    }
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        let _lock = lock_directory(&self.path);
        let found = self.path.symlink_metadata();
        if found.is_ok_and(|it| it.file_type().is_socket() && identity(&it) == self.file) {
            // A path that was removed in between is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device and inode.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Removes the socket file at `path` if no socket listens there.
fn remove_abandoned(
    socket: BorrowedFd<'_>,
    path: &Path,
    address: &SocketAddrUnix,
    is_locked: bool,
) -> io::Result<()> {
    let refuse = |kind, why: &str| Err(io::Error::new(kind, format!("{} {why}", path.display())));
    let found = path.symlink_metadata()?;
    if !found.file_type().is_socket() {
        return refuse(ErrorKind::AlreadyExists, "exists and is not a socket; it is left as it is");
    }
    if has_listener(socket, address)? {
        return refuse(ErrorKind::AddrInUse, "is in use by another server");
    }
    if !is_locked {
        let why = "is an abandoned socket, and its directory cannot be locked to replace it";
        return refuse(ErrorKind::AddrInUse, why);
    }
    if identity(&path.symlink_metadata()?) != identity(&found) {
        return refuse(ErrorKind::AddrInUse, "has just been replaced by another program");
    }
    std::fs::remove_file(path)
}

/// Connects to an address. Every answer but a refusal means that a socket is there: accepted, a
/// full queue (EAGAIN), a socket of another type (EPROTOTYPE), no permission (EACCES).
fn has_listener(socket: BorrowedFd<'_>, address: &SocketAddrUnix) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = sockopt::socket_type(socket)?;
    let probe: OwnedFd = socket_with(AddressFamily::UNIX, kind, flags, None)?;
    Ok(connect(&probe, address) != Err(Errno::CONNREFUSED))
}

/// Waits while a server has bound its socket in the directory of `path` and does not listen yet, at
/// most for [`UNIX_PATH_LOCK_MS`]. For clients whose connect(2) was refused.
pub fn wait_for_binding(path: &Path) {
    drop(lock_directory(path));
}

/// Locks the directory of `path` against other servers of this project. Returns `None` if it
/// cannot be read or stays locked.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or_else(|| Path::new("."))).ok()?;
    let deadline = Instant::now() + Duration::from_millis(UNIX_PATH_LOCK_MS);
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests;
