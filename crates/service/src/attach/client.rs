//! The client's side of the handshake: connects to a daemon and maps the region of a session.
//!
//! Invariants
//! - The whole handshake takes at most [`ATTACH_TIME`]; each answer is checked before anything is
//!   allocated or mapped.
//! - After a failure no descriptor and no mapping is left.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use megapipe_link::wait_for_binding;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, socketpair,
};

use super::message::{
    AttachHello, HelloAnswer, MessageFault, RefusalCode, Welcome, encode_open, encode_ready,
};
use crate::error::RemoteError;
use crate::limits::{ATTACH_RETRY, ATTACH_TIME};
use crate::message_socket::{MessageWithFds, Reception, receive, send};
use crate::remote::{LaneSet, SessionFds, attach_client};
use crate::session_sizes::SessionSizes;
use crate::sleep::wait_readable;

/// Why no session was had.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No daemon listens there, or its socket must not be used.
    #[error("no service at {}: {source}", path.display())]
    Connect {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The daemon has refused.
    #[error("the service at {} refused: {sentence}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The class of the refusal.
        code: RefusalCode,
        /// The daemon's sentence.
        sentence: String,
    },
    /// The daemon did not answer in time.
    #[error("the service at {} did not answer within {:?}", path.display(), ATTACH_TIME)]
    Silent {
        /// The path.
        path: PathBuf,
    },
    /// The answer is none of a correct daemon's.
    #[error("the service at {} broke the protocol: {fault}", path.display())]
    Protocol {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        fault: MessageFault,
    },
    /// The region cannot be mapped, or is not what was agreed on.
    #[error("the memory of the service at {}: {source}", path.display())]
    Session {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        source: RemoteError,
    },
}

impl AttachError {
    /// The number of the kernel's that is nearest.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        let errno = match self {
            Self::Connect { source, .. } => {
                return source.raw_os_error().unwrap_or_else(|| Errno::CONNREFUSED.raw_os_error());
            }
            Self::Refused { code: RefusalCode::Policy, .. } => Errno::ACCESS,
            Self::Refused { code: RefusalCode::Busy | RefusalCode::Sessions, .. } => Errno::AGAIN,
            Self::Refused { code: RefusalCode::Resources, .. } => Errno::NOMEM,
            Self::Refused { .. } | Self::Protocol { .. } => Errno::PROTO,
            Self::Silent { .. } => Errno::TIMEDOUT,
            Self::Session { .. } => Errno::NOMEM,
        };
        errno.raw_os_error()
    }
}

/// A failure without its path.
enum Failure {
    Connect(io::Error),
    Refused(RefusalCode, String),
    Silent,
    Protocol(MessageFault),
    Session(RemoteError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Connect(error)
    }
}

impl From<MessageFault> for Failure {
    fn from(fault: MessageFault) -> Self {
        Self::Protocol(fault)
    }
}

/// Attaches to the daemon that listens at `path`: a session of `wanted` sizes at most, with a lane
/// to each shard, for the calling thread's channel. Waits while too many handshakes are in progress
/// there.
///
/// # Errors
/// [`AttachError`].
pub fn attach(path: &Path, name: &str, wanted: &SessionSizes) -> Result<LaneSet, AttachError> {
    attach_over(&|| connect_to(path), path, name, wanted)
}

/// As [`attach`], by a token of the daemon instead of its path. The session has the rights of the
/// token; it ends with this process.
///
/// # Errors
/// [`AttachError`], which names the path.
pub fn attach_by_token(
    token: BorrowedFd<'_>,
    path: &Path,
    name: &str,
    wanted: &SessionSizes,
) -> Result<LaneSet, AttachError> {
    attach_over(&|| connect_by_token(token), path, name, wanted)
}

fn attach_over(
    connect: &dyn Fn() -> io::Result<OwnedFd>,
    path: &Path,
    name: &str,
    wanted: &SessionSizes,
) -> Result<LaneSet, AttachError> {
    let deadline = Instant::now() + ATTACH_TIME;
    loop {
        let hello = AttachHello::new(name, *wanted);
        let connected = connect().map_err(Failure::Connect);
        let failure = match connected.and_then(|socket| attempt(&socket, &hello, deadline)) {
            Ok(client) => return Ok(client),
            Err(failure) => failure,
        };
        let is_busy = match &failure {
            Failure::Refused(code, _) => *code == RefusalCode::Busy,
            // The queue of the listening socket is full.
            Failure::Connect(source) => source.kind() == io::ErrorKind::WouldBlock,
            _ => false,
        };
        if is_busy && Instant::now() + ATTACH_RETRY < deadline {
            std::thread::sleep(ATTACH_RETRY);
            continue;
        }
        let path = path.to_owned();
        return Err(match failure {
            Failure::Connect(source) => AttachError::Connect { path, source },
            Failure::Refused(code, sentence) => AttachError::Refused { path, code, sentence },
            Failure::Silent => AttachError::Silent { path },
            Failure::Protocol(fault) => AttachError::Protocol { path, fault },
            Failure::Session(source) => AttachError::Session { path, source },
        });
    }
}

/// Connects to the control socket of a daemon.
///
/// # Errors
/// As connect(2).
pub(super) fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    match connect(&socket, &address) {
        // A daemon that begins has bound its socket and listens in a moment.
        Err(Errno::CONNREFUSED) => {
            wait_for_binding(path);
            connect(&socket, &address)?;
        }
        outcome => outcome?,
    }
    Ok(socket)
}

/// Connects to the daemon of a token: it gets one end of a pair that this process has made, so the
/// kernel tells it which process that is.
fn connect_by_token(token: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    send(token, &encode_open(), &[theirs.as_fd()])?;
    Ok(ours)
}

fn attempt(socket: &OwnedFd, hello: &AttachHello, deadline: Instant) -> Result<LaneSet, Failure> {
    match send(socket.as_fd(), &hello.encode(), &[]) {
        // A daemon that refuses at once has closed its end. Its answer is still to be read.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        sent => sent?,
    }
    let MessageWithFds { bytes, fds } = answer(socket, deadline)?;
    let welcome = match HelloAnswer::decode(&bytes)? {
        HelloAnswer::Welcome(welcome) => welcome,
        HelloAnswer::Refused(refused) => {
            return Err(Failure::Refused(refused.code, refused.sentence));
        }
    };
    welcome.check(hello)?;
    let mut fds = fds.into_iter();
    let region = fds.next().filter(|_| fds.len() == usize::from(welcome.lanes));
    let region = region.ok_or(MessageFault::Value("the number of descriptors"))?;
    let bells = fds.collect();
    let Welcome { version, sizes, description, .. } = welcome;
    let ready = encode_ready(version);
    let control = socket.try_clone().map_err(Failure::Connect)?;
    let control = (control, Welcome::features(version));
    let client = attach_client(&sizes, SessionFds { region, bells }, &description, control);
    let client = client.map_err(Failure::Session)?;
    send(socket.as_fd(), &ready, &[])?;
    Ok(client)
}

/// The next message.
fn answer(socket: &OwnedFd, deadline: Instant) -> Result<MessageWithFds, Failure> {
    loop {
        match receive(socket.as_fd())? {
            Reception::Message(message) => return Ok(message),
            Reception::Nothing => {}
            // It closes the socket of a client that it refuses after a full second.
            Reception::Closed => return Err(Failure::Silent),
            Reception::Oversized => return Err(MessageFault::Length.into()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(Failure::Silent);
        }
        match wait_readable([Some(socket.as_fd())], Some(left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::Connect(errno.into())),
        }
    }
}
