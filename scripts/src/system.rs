//! A system under test: something with a TCP, a clock, and a program that calls it.
//!
//! `linux` is the kernel in a namespace of its own, in real time; `stack` is our sockets and stack
//! in virtual time. `run` drives both through this, and others by [`crate::ParsedScript::run_on`].
//!
//! Invariants: descriptors here are the system's own; `run` maps the script's to them. Times are
//! microseconds since the script began, and never go back.

use std::net::SocketAddr;

pub use crate::knobs::Knob;
pub use crate::wire::ChecksumTrust;

/// A descriptor of the system under test.
pub type Fd = i32;

/// A system call, with its arguments resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the arguments of the call's manual page")]
pub enum Call {
    /// `domain`, `kind` and `protocol` as for socket(2).
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },
    Bind {
        fd: Fd,
        address: SocketAddr,
    },
    Listen {
        fd: Fd,
        backlog: i32,
    },
    /// Also accept4(2), with its flags.
    Accept {
        fd: Fd,
        flags: i32,
    },
    /// No address: AF_UNSPEC, which undoes a connect.
    Connect {
        fd: Fd,
        address: Option<SocketAddr>,
    },
    /// read, readv, recv, recvfrom and recvmsg: into buffers of these sizes.
    Receive {
        fd: Fd,
        sizes: Vec<usize>,
        flags: i32,
        form: Form,
        /// The buffer for control messages is present.
        takes_control: bool,
    },
    /// write, writev, send, sendto and sendmsg.
    Send {
        fd: Fd,
        parts: Vec<Vec<u8>>,
        flags: i32,
        to: Option<SocketAddr>,
        form: Form,
    },
    /// Any of those two with a null pointer for bytes.
    Nowhere {
        fd: Fd,
    },
    Shutdown {
        fd: Fd,
        how: i32,
    },
    Close {
        fd: Fd,
    },
    SetOption {
        fd: Fd,
        level: i32,
        name: i32,
        value: Vec<u8>,
    },
    GetOption {
        fd: Fd,
        level: i32,
        name: i32,
        bytes: usize,
    },
    Fcntl {
        fd: Fd,
        command: i32,
        argument: i32,
    },
    /// Requests with a pointer to an int.
    Ioctl {
        fd: Fd,
        request: i64,
        argument: i32,
    },
    Poll {
        fds: Vec<(Fd, i16)>,
        timeout_ms: i32,
    },
    EpollCreate {
        flags: i32,
    },
    EpollControl {
        epoll: Fd,
        operation: i32,
        fd: Fd,
        events: u32,
        data: u64,
    },
    EpollWait {
        epoll: Fd,
        count: usize,
        timeout_ms: i32,
    },
    Pipe {
        flags: i32,
    },
    Splice {
        from: Fd,
        to: Fd,
        len: usize,
        flags: u32,
    },
}

/// Which of the calls that do the same was written: they differ in what they allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// read(2) and write(2): any descriptor.
    File,
    /// readv(2) and writev(2).
    Vector,
    /// recv, recvfrom, send and sendto.
    Socket,
    /// recvmsg(2) and sendmsg(2).
    Message,
}

/// What a call came back with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// As the C function's result.
    pub result: i64,
    /// The error, where the result is -1; else 0.
    pub errno: i32,
    /// What it wrote.
    pub output: CallOutput,
}

/// What a call wrote into its caller's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CallOutput {
    /// Nothing.
    #[default]
    None,
    /// An option's value, or what was received.
    Bytes(Vec<u8>),
    /// An ioctl's.
    Integer(i64),
    /// `revents` of each, in the order of the call.
    Ready(Vec<i16>),
    /// `events` and `data` of each.
    Events(Vec<(u32, u64)>),
    /// A pipe's.
    Pair(Fd, Fd),
    /// What was received, a message's flags and its control messages.
    Message {
        /// The bytes.
        bytes: Vec<u8>,
        /// `msg_flags`.
        flags: i32,
        /// `msg_control`.
        control: Vec<ControlMessage>,
    },
}

/// A control message (cmsg(3)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlMessage {
    /// `cmsg_level`.
    pub level: i32,
    /// `cmsg_type`.
    pub kind: i32,
    /// What follows the header.
    pub data: Vec<u8>,
}

/// Room for control messages: two of the error queue and one of each option.
pub const CONTROL_BYTES: usize = 512;

impl ControlMessage {
    /// Takes control messages apart: a length with the header's, a level, a type, and data that is
    /// filled up to whole words.
    pub fn parse(mut bytes: &[u8]) -> Vec<Self> {
        const WORD: usize = size_of::<usize>();
        const HEADER: usize = WORD + 8;
        let int = |bytes: &[u8]| bytes.try_into().map_or(0, i32::from_ne_bytes);
        let mut messages = Vec::new();
        while let Some((header, _)) = bytes.split_at_checked(HEADER) {
            let len = header[..WORD].try_into().map_or(0, usize::from_ne_bytes);
            let Some(data) = bytes.get(HEADER..len) else { break };
            let (level, kind) = (int(&header[WORD..WORD + 4]), int(&header[WORD + 4..]));
            messages.push(Self { level, kind, data: data.to_vec() });
            bytes = bytes.get(len.next_multiple_of(WORD)..).unwrap_or_default();
        }
        messages
    }
}

impl Returned {
    /// A call that succeeded and wrote nothing.
    pub fn success(result: i64) -> Self {
        Self { result, ..Self::default() }
    }

    /// A call that failed.
    pub fn failure(errno: i32) -> Self {
        Self { result: -1, errno, output: CallOutput::None }
    }
}

/// A packet for the system.
#[derive(Clone, Copy, Debug)]
pub struct Injected<'a> {
    /// From the IP header on.
    pub bytes: &'a [u8],
    /// It is a train of TCP segments with so much payload each, as a device that merges them
    /// would hand it over; 0: a single packet.
    pub segment_bytes: u16,
    /// The length of all headers, where it is a train.
    pub header_bytes: u16,
}

/// A packet that the system sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentPacket {
    /// When, on the script's clock.
    pub at_us: i64,
    /// From the IP header on.
    pub bytes: Vec<u8>,
}

/// Why a system cannot run a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SystemError {
    /// This machine, or this user, cannot run it at all.
    #[error("{0}")]
    Unavailable(String),
    /// It has no such thing.
    #[error("not supported on this system: {0}")]
    Unsupported(String),
    /// It failed.
    #[error("{what}: {why}")]
    Failed {
        /// Which part.
        what: &'static str,
        /// The error.
        why: String,
    },
}

/// Result of setting a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnobResult {
    /// It holds from now on.
    Done,
    /// The system has no such knob, or none with this value.
    Unknown,
    /// It has, but it is too late to set it.
    TooLate,
    /// The script needs something that the system does not have.
    Refused(&'static str),
}

/// The system under test.
pub trait System {
    /// Whether its checksums are complete when they leave it.
    fn checksums(&self) -> ChecksumTrust;

    /// Sets a knob. Knobs set before `begin` are the system's configuration.
    ///
    /// # Errors
    /// [`SystemError`], as of all that follow.
    fn set_knob(&mut self, knob: &Knob) -> Result<KnobResult, SystemError>;

    /// Time zero is now.
    fn begin(&mut self) -> Result<(), SystemError>;

    /// The time.
    fn now_us(&mut self) -> i64;

    /// Lets time pass.
    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError>;

    /// Begins a call. At most one is under way.
    fn start_call(&mut self, call: Call) -> Result<(), SystemError>;

    /// Waits for the end of the call under way; none when it is not there by then.
    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError>;

    /// Hands it a packet.
    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError>;

    /// The next packet that it sent, waiting for one until `until_us`.
    fn next_sent(&mut self, until_us: i64) -> Result<Option<SentPacket>, SystemError>;
}
