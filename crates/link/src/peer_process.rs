//! The process at the other end of a UNIX socket: its user, its groups, and a descriptor of it.
//!
//! Read first: unix(7), SO_PEERCRED; pidfd_open(2).
//!
//! Invariant: the pidfd refers to the process that connected, not to a later one with its number.
//! Linux 6.5 returns it with the socket (SO_PEERPIDFD). Before, it is opened by number, and a
//! second check follows while the pidfd shows the process alive: its user is still the socket's.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::socket_option::{option, option_bytes};

/// Missing in the libc crate.
const SO_PEERPIDFD: libc::c_int = 77;
/// Bytes of a group's number.
const GROUP_BYTES: usize = size_of::<libc::gid_t>();
/// Supplementary groups of most processes.
const USUAL_GROUPS: usize = 32;
/// Most groups of a process (NGROUPS_MAX).
const GROUPS_MAX: usize = 1 << 16;

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct PeerProcess {
    /// Its number in our namespace of processes.
    pub pid: u32,
    /// Its effective user when it connected.
    pub uid: u32,
    /// Its effective group then.
    pub gid: u32,
    /// Its supplementary groups then. Empty before Linux 4.13.
    pub groups: Vec<u32>,
    /// Readable when the process has ended.
    pub pidfd: OwnedFd,
}

impl PeerProcess {
    /// The process that connected to a listening socket, of an accepted one.
    ///
    /// # Errors
    /// What the kernel answers; `NotFound` if the process has ended.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let peer = socket_peercred(socket)?;
        let (uid, gid) = (peer.uid.as_raw(), peer.gid.as_raw());
        let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        let pidfd = match peer_pidfd(socket) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                let pidfd = pidfd_open(peer.pid, PidfdFlags::empty())?;
                check(pid, uid, pidfd.as_fd())?;
                pidfd
            }
            pidfd => pidfd?,
        };
        Ok(Self { pid, uid, gid, groups: peer_groups(socket)?, pidfd })
    }
}

/// The supplementary groups that the process had when it connected.
fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut bytes = vec![0; USUAL_GROUPS * GROUP_BYTES];
    loop {
        match option_bytes(socket, (libc::SOL_SOCKET, libc::SO_PEERGROUPS), &mut bytes) {
            Ok(len) => {
                let groups = bytes[..len].as_chunks().0.iter();
                return Ok(groups.map(|group| u32::from_ne_bytes(*group)).collect());
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::ERANGE) if bytes.len() < GROUPS_MAX * GROUP_BYTES => {
                    bytes.resize(bytes.len() * 2, 0);
                }
                Some(libc::ENOPROTOOPT) => return Ok(Vec::new()),
                _ => return Err(error),
            },
        }
    }
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let fd: libc::c_int = option(socket, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just made this descriptor for the call above, which returned it to us
    // alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process of a pidfd that was opened by number is alive and has the user that connected.
fn check(pid: u32, uid: u32, pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let is_same = std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|it| it.uid() == uid);
    if is_same && !has_ended(pidfd) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Whether the process of a pidfd has ended.
fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&zero)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use super::*;

    #[test]
    fn peer_of_a_socket_is_identified() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let peer = PeerProcess::of(one.as_fd()).expect("this process");
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert!(!has_ended(peer.pidfd.as_fd()));
        let own = rustix::process::getgroups().expect("Linux");
        assert_eq!(peer.groups, own.iter().map(|group| group.as_raw()).collect::<Vec<_>>());
    }

    /// More than the first read has room for. Only root can set them.
    #[test]
    fn many_supplementary_groups_are_read() {
        let groups: Vec<u32> = (5_000..5_100).collect();
        let listed = groups.iter().map(|group| rustix::process::Gid::from_raw(*group));
        let listed: Vec<_> = listed.collect();
        let peer = std::thread::spawn(move || {
            rustix::thread::set_thread_groups(&listed).ok()?;
            let (one, other) = UnixStream::pair().expect("sockets");
            drop(other);
            Some(PeerProcess::of(one.as_fd()).expect("this process").groups)
        });
        if let Some(read) = peer.join().expect("no panic") {
            assert_eq!(read, groups);
        }
    }

    #[test]
    fn second_check_refuses_ended_process_and_other_user() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep(1)");
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("Linux 5.3");
        let uid = rustix::process::geteuid().as_raw();
        check(child.id(), uid, pidfd.as_fd()).expect("it runs");
        check(child.id(), uid + 1, pidfd.as_fd()).expect_err("another user");
        child.kill().expect("it is ours");
        child.wait().expect("it has ended");
        check(child.id(), uid, pidfd.as_fd()).expect_err("it has ended");
        assert!(has_ended(pidfd.as_fd()));
    }
}
