//! The bits of the calls, with Linux's values.

use bitflags::bitflags;

bitflags! {
    /// What a descriptor is ready for, as in poll(2) and epoll(7); and how a set watches it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Events: u32 {
        /// There is something to read, or the end.
        const IN = 0x001;
        /// There is urgent data.
        const PRI = 0x002;
        /// There is room to write.
        const OUT = 0x004;
        /// There is an error. Always told.
        const ERR = 0x008;
        /// Both directions are over. Always told.
        const HUP = 0x010;
        /// poll(2): there is no such descriptor. Always told.
        const NVAL = 0x020;
        /// As `IN`, for normal data.
        const RDNORM = 0x040;
        /// As `IN`, for priority data.
        const RDBAND = 0x080;
        /// As `OUT`, for normal data.
        const WRNORM = 0x100;
        /// As `OUT`, for priority data.
        const WRBAND = 0x200;
        /// Without meaning, as in Linux.
        const MSG = 0x400;
        /// The peer sends no more.
        const RDHUP = 0x2000;
        /// epoll: of several sets that watch the descriptor, not all need to hear.
        const EXCLUSIVE = 1 << 28;
        /// epoll: keep the system awake. Taken, without effect for who may not.
        const WAKEUP = 1 << 29;
        /// epoll: tell once, then not until asked again.
        const ONE_SHOT = 1 << 30;
        /// epoll: tell of changes instead of states.
        const EDGE = 1 << 31;
    }
}

impl Events {
    /// What poll(2) and epoll tell of whether asked or not.
    pub(crate) const ALWAYS: Self = Self::ERR.union(Self::HUP);
    pub(crate) const READABLE: Self = Self::IN.union(Self::RDNORM);
    pub(crate) const WRITABLE: Self = Self::OUT.union(Self::WRNORM);
    /// What watchers are woken by when something has come to a socket: by more than it is ready for
    /// then (Linux's `sock_def_readable`). An edge is reported to items that have any of it.
    pub(crate) const ARRIVED: Self = Self::READABLE.union(Self::PRI).union(Self::RDBAND);
    /// The same when a socket has room again (`sk_stream_write_space`).
    pub(crate) const HAS_ROOM: Self = Self::WRITABLE.union(Self::WRBAND);
}

bitflags! {
    /// The flags of `recv` and `send` and their kin.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MsgFlags: i32 {
        /// Urgent data.
        const OOB = libc::MSG_OOB;
        /// Leave what is read where it is.
        const PEEK = libc::MSG_PEEK;
        /// Send to hosts on the link only.
        const DONTROUTE = libc::MSG_DONTROUTE;
        /// Answer: control data was cut.
        const CTRUNC = libc::MSG_CTRUNC;
        /// Datagrams: answer the whole length. Streams: throw away instead of copying. Answer: the
        /// datagram was cut.
        const TRUNC = libc::MSG_TRUNC;
        /// Do not wait.
        const DONTWAIT = libc::MSG_DONTWAIT;
        /// Ends a record: on our own stack no segment holds bytes of two of them. The kernel is
        /// asked in batches, and does not hear of it: the peer could not tell.
        const EOR = libc::MSG_EOR;
        /// Wait for all that was asked for.
        const WAITALL = libc::MSG_WAITALL;
        /// The path is known to work.
        const CONFIRM = libc::MSG_CONFIRM;
        /// Read the queue of errors.
        const ERRQUEUE = libc::MSG_ERRQUEUE;
        /// No SIGPIPE.
        const NOSIGNAL = libc::MSG_NOSIGNAL;
        /// More follows at once.
        const MORE = libc::MSG_MORE;
        /// Completion of sending is reported by the error queue.
        const ZEROCOPY = libc::MSG_ZEROCOPY;
        /// Connect and send in one.
        const FASTOPEN = libc::MSG_FASTOPEN;
        /// Descriptors that come in a message are close-on-exec.
        const CMSG_CLOEXEC = libc::MSG_CMSG_CLOEXEC;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of calls that make a descriptor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OpenFlags: i32 {
        /// Calls on it do not wait.
        const NONBLOCK = libc::O_NONBLOCK;
        /// Kept and told, without effect: descriptors of a context do not survive exec in any case.
        const CLOEXEC = libc::O_CLOEXEC;
    }
}

/// What `epoll_ctl` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpollOp {
    /// EPOLL_CTL_ADD.
    Add(EpollEvent),
    /// EPOLL_CTL_MOD.
    Modify(EpollEvent),
    /// EPOLL_CTL_DEL.
    Delete,
}

/// What is watched for, or happened; and the program's own 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollEvent {
    /// Which events.
    pub events: Events,
    /// Handed back as it is.
    pub data: u64,
}
