//! One handle's place in the channel: what it is, what it waits for, what waits for it.
//!
//! Invariants
//! - A slot is reused only when the kernel has no request left that names it
//!   (`kernel_requests == 0`), so that a late answer can never reach the next owner.
//! - The handle's generation changes when it leaves, at once, even while the kernel still has
//!   requests.
//! - An idle connection costs one `Slot` and nothing on the heap; the size is asserted below.

use std::collections::VecDeque;
#[cfg(feature = "local")]
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use crate::address::Address;
use crate::address::sockaddr::RawAddress;
use crate::arena::ListQueue;
use crate::buffer::Payload;
#[cfg(feature = "local")]
use crate::buffer::ReadBuf;
#[cfg(feature = "local")]
use crate::completion::Arrival;
use crate::error::OpError;
use crate::handle::Handle;
pub(crate) use crate::kind::Kind;
use crate::options::{Accept, Disconnect};
use crate::partition::GroupMembership;

/// Where a slot is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotPhase {
    /// On the free list.
    Free,
    /// `connect` or `open` has not completed; writes wait.
    Starting,
    /// In use.
    Open,
    /// On its way to a descriptor (`to_fd`): no new operation.
    Moving,
    /// Unregistered; the descriptor goes back to the program when the kernel has let go.
    Leaving,
    /// Unregistered; closed when the kernel has let go.
    Closing,
}

/// Whether a stream is being received from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receiving {
    No,
    Yes,
    /// Being stopped, because too much was received ahead or the handle moves.
    Stopping,
    /// Not asked for again since the connection was shared with a child process.
    #[cfg(feature = "local")]
    Withheld,
    /// Stopped for want of buffers; restarted when some come back.
    Starved,
}

/// How the receiving direction ended; later reads complete alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamEnd {
    Not,
    Eof,
    Failed(OpError),
}

/// What the kernel knows the thing by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    None,
    /// A file descriptor of the process (owned by `Slot::fd`).
    Fd(RawFd),
    /// A direct descriptor of the ring.
    Direct(u32),
    /// A connection, listener or endpoint of our own stack, by its index there.
    Stack(u32),
}

/// A read that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadOp {
    pub(crate) len: u32,
    pub(crate) with_sender: bool,
}

/// A write, or what has to wait behind the writes.
pub(crate) struct WriteOp {
    pub(crate) body: Body,
    /// Bytes in all parts together.
    pub(crate) len: usize,
    /// Bytes that are sent already.
    pub(crate) done: usize,
    /// Where its bytes begin in the sequence of all that wait in the queue. The origin is any, so
    /// only differences count, and they wrap.
    pub(crate) start: usize,
    /// The receiver of a message; also says that `SendTo` completes it.
    pub(crate) to: Option<Receiver>,
    /// Only a failure is reported.
    pub(crate) quiet: bool,
}

/// Receiver of a message, on the heap because most writes have none. A box of an array: that can
/// be made so that it fails where there is no memory.
pub(crate) type Receiver = Box<[Address; 1]>;

pub(crate) enum Body {
    One(Payload),
    Many(Box<[Payload]>),
    Disconnect(Disconnect),
    ToFd,
}

impl WriteOp {
    #[inline(always)]
    pub(crate) const fn new(body: Body, len: usize) -> Self {
        Self { body, len, done: 0, start: 0, to: None, quiet: false }
    }

    pub(crate) fn parts(&self) -> &[Payload] {
        match &self.body {
            Body::One(payload) => std::slice::from_ref(payload),
            Body::Many(payloads) => payloads,
            Body::Disconnect(_) | Body::ToFd => &[],
        }
    }

    /// The parts, without those and that of them which is sent already; none is empty.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.done;
        self.parts().iter().filter_map(move |part| {
            let part = part.as_slice();
            let rest = &part[skip.min(part.len())..];
            skip -= part.len() - rest.len();
            (!rest.is_empty()).then_some(rest)
        })
    }

    /// Receiver of the message, if the write names one.
    pub(crate) fn receiver(&self) -> Option<&Address> {
        self.to.as_deref().map(|[to]| to)
    }

    /// Where the bytes of the next write begin.
    pub(crate) const fn end(&self) -> usize {
        self.start.wrapping_add(self.len)
    }

    pub(crate) fn is_data(&self) -> bool {
        matches!(self.body, Body::One(_) | Body::Many(_))
    }
}

/// Work on a file that is done at an offset, in any order.
pub(crate) enum FileJob {
    ReadAt { offset: u64, len: usize },
    WriteAt { offset: u64, data: Payload },
    Fsync,
}

/// What only some kinds need.
pub(crate) enum Extra {
    Listener(Listener),
    Timer {
        period: Option<Duration>,
    },
    /// `connect`: where to, and whether its time-out has passed.
    Connecting {
        raw: RawAddress,
        abandoned: bool,
    },
    #[cfg(feature = "local")]
    Stream(RareStreamState),
    #[cfg(feature = "local")]
    /// Datagrams of our own stack that no read has taken yet.
    Datagrams(VecDeque<WaitingDatagram>),
}

impl Extra {
    /// It is not only for the attempt to connect.
    pub(crate) const fn outlasts_connect(&self) -> bool {
        match self {
            #[cfg(feature = "local")]
            Self::Stream(rare) => rare.notsent_lowat > 0 || rare.awaits_unsent_below > 0,
            _ => false,
        }
    }
}

/// What few connections of our own stack have: an idle one has no memory for it.
#[cfg(feature = "local")]
#[derive(Debug, Default)]
pub(crate) struct RareStreamState {
    /// Fast Open: writes begin before the handshake is complete.
    pub(crate) sends_early: bool,
    /// Unsent bytes from which on writes wait; 0: they do not.
    pub(crate) notsent_lowat: u32,
    /// The program waits until fewer bytes than this are unsent; 0: it does not.
    pub(crate) awaits_unsent_below: u32,
}

/// A datagram of our own stack that no read has taken yet.
#[cfg(feature = "local")]
#[derive(Debug)]
pub(crate) struct WaitingDatagram {
    pub(crate) from: SocketAddr,
    pub(crate) data: ReadBuf,
    pub(crate) arrival: Option<Arrival>,
}

/// io_uring: what accepts the connections of a listener, as descriptors or as direct ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Armed {
    Not,
    /// One request, for every connection that comes.
    Multi {
        direct: bool,
    },
    /// A request for each connection.
    Singly {
        direct: bool,
    },
}

/// A listening socket's queues.
pub(crate) struct Listener {
    /// What was asked for and not yet given, oldest first.
    pub(crate) credits: VecDeque<Accept>,
    /// Connections accepted ahead of the credit.
    pub(crate) held: VecDeque<NewConnection>,
    /// What accepts in the kernel.
    pub(crate) armed: Armed,
    /// Requests to accept that are with the kernel.
    pub(crate) accepts: u32,
    /// They are being cancelled.
    pub(crate) stopping: bool,
    /// Descriptors ran out; accepting resumes at a timer or when one is closed.
    pub(crate) exhausted: bool,
    pub(crate) backlog: u32,
    /// What its connections are.
    pub(crate) connection: Kind,
    /// The channel's place in the listener's group.
    pub(crate) membership: Option<GroupMembership>,
    /// What a descriptor that was registered with a mask is kept for: the address's reservation.
    pub(crate) reserved: Option<OwnedFd>,
    /// The socket was a sibling's that left: what it accepts goes to this listener's slot.
    pub(crate) heir: Option<u32>,
    /// When such a socket was drained for long enough.
    pub(crate) drained_until: Option<Instant>,
    /// epoll: the descriptor was blocking before it came here.
    pub(crate) was_blocking: bool,
}

impl Listener {
    pub(crate) fn new(connection: Kind, backlog: u32, membership: Option<GroupMembership>) -> Self {
        Self {
            credits: VecDeque::new(),
            held: VecDeque::new(),
            armed: Armed::Not,
            accepts: 0,
            stopping: false,
            exhausted: false,
            backlog,
            connection,
            membership,
            reserved: None,
            heir: None,
            drained_until: None,
            was_blocking: false,
        }
    }
}

impl Listener {
    /// One connection less is asked for.
    pub(crate) fn use_credit(&mut self) {
        let Some(credit) = self.credits.front_mut() else { return };
        if credit.count != u32::MAX {
            credit.count -= 1;
            if credit.count == 0 {
                self.credits.pop_front();
            }
        }
    }
}

/// A connection as the kernel gave it.
#[derive(Debug)]
pub(crate) enum NewConnection {
    Direct(u32),
    /// With bytes that a sibling channel had received already.
    Fd(OwnedFd, Vec<u8>),
    #[cfg_attr(not(feature = "local"), expect(dead_code, reason = "only our own stack makes it"))]
    /// A connection of our own stack: its index and generation there.
    Stack(u32, u32),
}

/// What became of a connection that arrived.
pub(crate) enum Handed {
    /// It is a handle now, in this slot.
    To(u32),
    /// It left as a descriptor.
    Gone,
    /// It waits for credit.
    Held,
    /// There was no room; a descriptor in it is closed, a direct one is the driver's to close.
    Refused,
}

/// One handle. Two cache lines, aligned so that the processor fetches them as a pair.
#[repr(align(128))]
pub(crate) struct Slot {
    /// The program's; while the slot is free, [`Slot::next_free`].
    pub(crate) cookie: u64,
    pub(crate) extra: Option<Box<Extra>>,
    /// The timer that is set for this slot (its key in `Timers`).
    pub(crate) deadline: Option<(Instant, u32)>,
    /// The oldest read that waits. Nearly always the only one, so it needs no place in an arena.
    pub(crate) first_read: Option<ReadOp>,
    /// The reads behind it.
    pub(crate) more_reads: ListQueue,
    pub(crate) unread: ListQueue,
    pub(crate) writes: ListQueue,
    pub(crate) unread_bytes: u32,
    /// io_uring: bytes of the send that is with the kernel, if that is answered only when not all
    /// of it went out; else 0.
    pub(crate) silent_bytes: u32,
    /// Requests of this slot whose last answer has not come.
    pub(crate) kernel_requests: u32,
    /// What the program calls it: an lwsocket's number or the registered descriptor's, generation
    /// and channel. Whole, so that a caller's handle is checked by one comparison.
    pub(crate) handle: Handle,
    pub(crate) target: Target,
    pub(crate) fd: Option<OwnedFd>,
    pub(crate) end: StreamEnd,
    pub(crate) kind: Kind,
    pub(crate) phase: SlotPhase,
    pub(crate) receiving: Receiving,
    pub(crate) flags: SlotFlags,
}

/// Small facts about a slot.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SlotFlags {
    /// The handle's number is an lwsocket's.
    pub(crate) lwsocket: bool,
    /// A read request (plain or message kinds) is with the kernel.
    pub(crate) reading: bool,
    /// A write request, a shutdown or a move is with the kernel.
    pub(crate) writing: bool,
    /// Listed among the slots that hold unread pool buffers.
    pub(crate) in_unread_list: bool,
    /// epoll: the kernel may have something to read.
    pub(crate) readable: bool,
    /// epoll: the kernel may take something.
    pub(crate) writable: bool,
    /// epoll: more may follow a short read (the end, an error or urgent data was announced).
    pub(crate) draining: bool,
    /// A send completed with the peer's reset, so no read will.
    pub(crate) reset: bool,
    /// io_uring: a silent send was answered, and the answer was not looked at yet.
    pub(crate) broken_silence: bool,
    /// io_uring: a silent send met a full socket, so the next one waits for room. Our own stack:
    /// writes wait for a mark (TCP_NOTSENT_LOWAT), so each goes by the queue.
    pub(crate) congested: bool,
    /// epoll: on the run queue.
    pub(crate) queued: bool,
    /// What the program waits for beside the completions of its operations.
    pub(crate) awaited: Awaited,
    /// epoll: what the epoll set was asked to tell.
    pub(crate) watch: WatchedEvents,
}

/// Events that the program waits for beside the completions of its operations, a bit each: a slot
/// has no byte to spare.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Awaited(u8);

impl Awaited {
    /// The connection's end, for `await_end`.
    pub(crate) const END: u8 = 1;
    /// `Event::Drained`: a write was refused because too much is unsent.
    pub(crate) const DRAINED: u8 = 2;
    /// An `Event::Drained` is among the completions that were not handed out yet.
    pub(crate) const DRAINED_IS_READY: u8 = 4;
    /// Our own stack: `Event::Delivered`, for `await_delivery`.
    #[cfg(feature = "local")]
    pub(crate) const DELIVERED: u8 = 8;
    /// Our own stack: `Event::UnsentBelow`, for `await_unsent_below`.
    #[cfg(feature = "local")]
    pub(crate) const UNSENT_BELOW: u8 = 16;

    #[inline(always)]
    pub(crate) const fn has(self, event: u8) -> bool {
        self.0 & event != 0
    }

    pub(crate) const fn add(&mut self, event: u8) {
        self.0 |= event;
    }

    /// Removes events. Returns whether any was there.
    #[inline(always)]
    pub(crate) const fn take(&mut self, event: u8) -> bool {
        let had = self.has(event);
        self.0 &= !event;
        had
    }
}

/// epoll: what the epoll set was asked to tell about a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WatchedEvents {
    /// Nothing yet.
    #[default]
    No,
    /// Each edge of input.
    Input,
    /// Each edge of input and of output.
    Both,
    /// One event, each time that it is asked.
    OneShot,
    /// The set refuses the descriptor (a disk file): helper threads serve it.
    Refused,
}

// "An idle connection costs 256 bytes or less in user space."
const _: () = assert!(size_of::<Slot>() <= 128);

impl Slot {
    /// A free slot; `next_free` is what [`Slot::next_free`] returns.
    pub(crate) const fn free(generation: u32, next_free: u32) -> Self {
        Self {
            cookie: next_free as u64,
            extra: None,
            deadline: None,
            first_read: None,
            more_reads: ListQueue::EMPTY,
            unread: ListQueue::EMPTY,
            writes: ListQueue::EMPTY,
            unread_bytes: 0,
            silent_bytes: 0,
            kernel_requests: 0,
            handle: Handle::free(generation),
            target: Target::None,
            fd: None,
            end: StreamEnd::Not,
            kind: Kind::Tcp,
            phase: SlotPhase::Free,
            receiving: Receiving::No,
            flags: SlotFlags {
                lwsocket: false,
                reading: false,
                writing: false,
                in_unread_list: false,
                readable: false,
                writable: false,
                draining: false,
                reset: false,
                broken_silence: false,
                congested: false,
                queued: false,
                awaited: Awaited(0),
                watch: WatchedEvents::No,
            },
        }
    }

    /// The slot that was freed before this one, while it is free.
    pub(crate) fn next_free(&self) -> u32 {
        debug_assert_eq!(self.phase, SlotPhase::Free);
        // `free` put it there.
        self.cookie as u32
    }

    pub(crate) fn set_fd(&mut self, fd: OwnedFd) {
        self.target = Target::Fd(fd.as_raw_fd());
        self.fd = Some(fd);
    }

    pub(crate) fn listener(&mut self) -> Option<&mut Listener> {
        match self.extra.as_deref_mut() {
            Some(Extra::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// A file whose `open` has not completed, or has failed.
    pub(crate) fn is_unopened_file(&self) -> bool {
        self.kind == Kind::File && self.target == Target::None
    }

    /// A stream that is being received from, of which nothing is unread and no read waits: a read
    /// has nothing to do but wait.
    #[inline(always)]
    pub(crate) fn only_needs_a_read(&self) -> bool {
        self.kind.is_stream()
            && self.phase == SlotPhase::Open
            && self.receiving == Receiving::Yes
            && self.end == StreamEnd::Not
            && self.first_read.is_none()
            && self.unread.is_empty()
    }

    /// A write to this stream can go to the kernel now and alone, and the socket is not known to be
    /// full.
    #[inline(always)]
    pub(crate) fn can_send_at_once(&self) -> bool {
        self.kind.is_stream()
            && self.phase == SlotPhase::Open
            && !self.flags.writing
            && !self.flags.congested
            && self.writes.is_empty()
            && self.target != Target::None
    }

    /// Writes may be started: the connection is made, or its SYN may carry data.
    #[inline(always)]
    pub(crate) fn may_write(&self) -> bool {
        self.phase != SlotPhase::Starting || self.sends_early()
    }

    #[cold]
    fn sends_early(&self) -> bool {
        #[cfg(feature = "local")]
        return self.rare().is_some_and(|rare| rare.sends_early);
        #[cfg(not(feature = "local"))]
        false
    }

    /// What a connection of our own stack has beside the others, if it has.
    #[cfg(feature = "local")]
    pub(crate) fn rare(&self) -> Option<&RareStreamState> {
        match self.extra.as_deref() {
            Some(Extra::Stream(rare)) => Some(rare),
            _ => None,
        }
    }

    /// As [`Slot::rare`], to be changed; with no memory set aside, none.
    #[cfg(feature = "local")]
    pub(crate) fn rare_mut(&mut self) -> Option<&mut RareStreamState> {
        match self.extra.as_deref_mut() {
            Some(Extra::Stream(rare)) => Some(rare),
            _ => None,
        }
    }

    /// Operations may be started.
    #[inline(always)]
    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.phase, SlotPhase::Starting | SlotPhase::Open | SlotPhase::Moving)
    }
}
