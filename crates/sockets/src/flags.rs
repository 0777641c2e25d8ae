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
        /// There is an error. Reported in any case.
        const ERR = 0x008;
        /// Both directions are closed. Reported in any case.
        const HUP = 0x010;
        /// poll(2): there is no such descriptor. Reported in any case.
        const NVAL = 0x020;
        /// As `IN`, for normal data.
        const RDNORM = 0x040;
        /// As `IN`, for priority data.
        const RDBAND = 0x080;
        /// As `OUT`, for normal data.
        const WRNORM = 0x100;
        /// As `OUT`, for priority data.
        const WRBAND = 0x200;
        /// Unused, as in Linux.
        const MSG = 0x400;
        /// The peer has closed its sending direction.
        const RDHUP = 0x2000;
        /// epoll: wakes at least one of the sets that watch the descriptor, not all.
        const EXCLUSIVE = 1 << 28;
        /// epoll: keeps the system awake. Ignored without the capability, as in Linux.
        const WAKEUP = 1 << 29;
        /// epoll: reports once, then not before EPOLL_CTL_MOD.
        const ONE_SHOT = 1 << 30;
        /// epoll: reports changes instead of states (EPOLLET).
        const EDGE = 1 << 31;
    }
}

impl Events {
    /// The events that poll(2) and epoll report without a request.
    pub(crate) const ALWAYS: Self = Self::ERR.union(Self::HUP);
    pub(crate) const READABLE: Self = Self::IN.union(Self::RDNORM);
    pub(crate) const WRITABLE: Self = Self::OUT.union(Self::WRNORM);
    /// The events that wake watchers when data arrives: more than the socket is ready for (Linux's
    /// `sock_def_readable`). An edge is reported to items with any of them.
    pub(crate) const ARRIVED: Self = Self::READABLE.union(Self::PRI).union(Self::RDBAND);
    /// The same when a socket has room again (`sk_stream_write_space`).
    pub(crate) const HAS_ROOM: Self = Self::WRITABLE.union(Self::WRBAND);
}

bitflags! {
    /// The flags of `recv`, `send` and the calls like them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MsgFlags: i32 {
        /// Urgent data.
        const OOB = libc::MSG_OOB;
        /// Copies bytes without consuming them.
        const PEEK = libc::MSG_PEEK;
        /// Send to hosts on the link only.
        const DONTROUTE = libc::MSG_DONTROUTE;
        /// Returned: control data was truncated.
        const CTRUNC = libc::MSG_CTRUNC;
        /// Datagrams: return the whole length. Streams: discard instead of copying. Returned: the
        /// datagram was truncated.
        const TRUNC = libc::MSG_TRUNC;
        /// Does not block.
        const DONTWAIT = libc::MSG_DONTWAIT;
        /// Ends a record: on our own stack no segment holds bytes of two records. Not passed to the
        /// kernel, whose operations are batched; the peer sees no difference.
        const EOR = libc::MSG_EOR;
        /// Blocks until all requested bytes have arrived.
        const WAITALL = libc::MSG_WAITALL;
        /// The path is known to work.
        const CONFIRM = libc::MSG_CONFIRM;
        /// Reads the error queue.
        const ERRQUEUE = libc::MSG_ERRQUEUE;
        /// No SIGPIPE.
        const NOSIGNAL = libc::MSG_NOSIGNAL;
        /// More follows at once.
        const MORE = libc::MSG_MORE;
        /// The error queue reports the completion of the send.
        const ZEROCOPY = libc::MSG_ZEROCOPY;
        /// Connects and sends in one call.
        const FASTOPEN = libc::MSG_FASTOPEN;
        /// Descriptors that come in a message are close-on-exec.
        const CMSG_CLOEXEC = libc::MSG_CMSG_CLOEXEC;
        const _ = !0;
    }
}

bitflags! {
    /// Flags of calls that create a descriptor.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OpenFlags: i32 {
        /// Calls on it do not block.
        const NONBLOCK = libc::O_NONBLOCK;
        /// Stored and returned, without effect: descriptors of a context do not survive exec.
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
