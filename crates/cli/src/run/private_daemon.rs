//! A private daemon for one program and its children.
//!
//! `megapiped` gets one end of a pair of sockets, the token; the program inherits the other one, at
//! a number that the preload library keeps for itself. The daemon has no parent, so the program
//! sees no child that it does not know, and ends when the token's last holder has ended and no
//! process is attached.
//!
//! Read first: `megapipe_service::attach`, on tokens.

use std::io;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, getrlimit};

use super::RunStack;

/// The daemon's file, beside this program's.
const DAEMON: &str = "megapiped";
/// Numbers at the top of the range, which the preload library uses.
const OWN_NUMBERS: u64 = 128;
/// Numbers that the preload library knows.
const NUMBERS_MAX: u64 = 1 << 20;

/// Why no private daemon runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PrivateDaemonError {
    #[error("a token for a private daemon: {0}")]
    Token(#[from] rustix::io::Errno),
    #[error("{program}: {source}")]
    Start { program: String, source: io::Error },
    #[error("the private daemon did not start ({0}); the line before says why")]
    Ended(ExitStatus),
}

/// Starts a daemon with the options of a stack, and waits until it is ready. Returns its path and
/// the number of its token, which this process keeps open also on exec(3).
pub(super) fn start(stack: &RunStack) -> Result<(PathBuf, RawFd), PrivateDaemonError> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let path = path();
    let beside = std::env::current_exe().ok().map(|program| program.with_file_name(DAEMON));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from(DAEMON));
    let mut daemon = Command::new(&program);
    daemon.args(["--detach", "--private", "--link", &stack.link]);
    daemon.arg("--service").arg(&path).stdin(theirs).stdout(Stdio::null());
    for (option, list) in [("--address", &stack.address), ("--gateway", &stack.gateway)] {
        for value in list.split(',').map(str::trim).filter(|value| !value.is_empty()) {
            daemon.args([option, value]);
        }
    }
    if let Some(owner) = stack.loopback {
        daemon.args(["--loopback", owner.name()]);
    }
    let status = daemon.status().map_err(|source| PrivateDaemonError::Start {
        program: program.display().to_string(),
        source,
    })?;
    if !status.success() {
        return Err(PrivateDaemonError::Ended(status));
    }
    Ok((path, raised(ours)?))
}

/// A path of the daemon that no other program has.
fn path() -> PathBuf {
    let name = format!("megapiped-{}.sock", std::process::id());
    let folders = [std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Some("/run".into())];
    let is_ours = |folder: &PathBuf| {
        rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok() && folder.is_dir()
    };
    let folder = folders.into_iter().flatten().find(is_ours);
    folder.unwrap_or_else(std::env::temp_dir).join(name)
}

/// Moves the token to a number where programs look for none, and lets exec(3) keep it.
fn raised(token: OwnedFd) -> Result<RawFd, PrivateDaemonError> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX);
    let first = limit.saturating_sub(OWN_NUMBERS).max(limit / 2);
    let token = fcntl_dupfd_cloexec(&token, i32::try_from(first).unwrap_or(3)).unwrap_or(token);
    fcntl_setfd(token.as_fd(), FdFlags::empty())?;
    Ok(token.into_raw_fd())
}
