//! The io_uring baseline: the yardstick that a channel is held to.
//!
//! One ring per thread. Single issuer with deferred task work, so that completions are made where
//! they are reaped; one multishot accept into direct descriptors, so that a connection never has
//! a descriptor number; one multishot receive per connection out of a shared buffer ring; one
//! system call per turn of the loop, which submits everything and waits for the next. A direct
//! descriptor is closed only after its receive has ended, since closing under an armed receive
//! does nothing that the peer can see.
//!
//! An echo is over when it is submitted: it does not wait for room (`MSG_DONTWAIT`) and completes
//! only if not all of it went out (`IOSQE_CQE_SKIP_SUCCESS`); the rest is then sent by a request
//! that waits. So the frequent case costs one completion, that of the receive.
//!
//! Every completion carries the connection's generation, so that one of an earlier connection in
//! the same slot is never taken for this one's.
//!
//! Invariants: one send in flight per connection (parallel sends may be reordered), where an echo
//! is in flight until the turn that queued it is over; what arrives meanwhile is held. A failed
//! echo's completion is made when it is submitted, so it is seen before whatever arrives later.
//! Buffers are given back in the turn that received them; re-arming is keyed on `F_MORE`, never on
//! an error.

use super::{
    BaselineError, Stop,
    buffer_ring::BaselineBufferRing,
    framing::{self, PIECES_MAX, ProtocolViolation, Requests},
};
use crate::limits;
use io_uring::{
    IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue,
    types::{CancelBuilder, Fd, Fixed, Timespec},
};
use megapipe_apps::rpc::protocol::{Lengths, PREFIX_LEN, RpcReply};
use std::{
    io, mem,
    os::fd::{AsRawFd, OwnedFd},
    ptr,
};

const BUFFER_GROUP: u16 = 0;
/// One completion for the whole reply, however often the socket fills.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
/// No completion for a whole echo, and an immediate one for less.
const ECHO_FLAGS: i32 = SEND_FLAGS | libc::MSG_DONTWAIT;

/// What a completion is about: the low byte of its user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum RequestKind {
    Accept,
    Receive,
    Send,
    /// A send that completes only if not all of it went out.
    Echo,
    Close,
    Stop,
}

/// User data: op (8 bits), slot (24), generation (32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UserData {
    op: RequestKind,
    slot: u32,
    generation: u32,
}

impl UserData {
    const fn of(op: RequestKind) -> Self {
        Self { op, slot: 0, generation: 0 }
    }

    const fn pack(self) -> u64 {
        self.op as u64 | (self.slot as u64) << 8 | (self.generation as u64) << 32
    }

    fn unpack(user_data: u64) -> Self {
        let op = match user_data as u8 {
            0 => RequestKind::Accept,
            1 => RequestKind::Receive,
            2 => RequestKind::Send,
            3 => RequestKind::Echo,
            4 => RequestKind::Close,
            _ => RequestKind::Stop,
        };
        let slot = (user_data >> 8) as u32 & 0xff_ffff;
        Self { op, slot, generation: (user_data >> 32) as u32 }
    }
}

/// One connection. Its address is stable: the table never grows.
struct UringConnection {
    generation: u32,
    requests: Requests,
    /// An echo in flight points here; a longer reply into `message`.
    echo: [u8; PREFIX_LEN],
    echo_len: u8,
    /// The turn that queued the echo.
    echo_turn: u64,
    message: Option<Box<ReplyMessage>>,
    sending: bool,
    /// The receive has ended: close once no send is in flight.
    closing: bool,
}

impl UringConnection {
    fn new() -> Self {
        Self {
            generation: 0,
            requests: Requests::default(),
            echo: [0; PREFIX_LEN],
            echo_len: 0,
            echo_turn: 0,
            message: None,
            sending: false,
            closing: false,
        }
    }
}

/// A reply in pieces, as `sendmsg` takes it. Boxed, because the kernel holds its address.
struct ReplyMessage {
    reply: RpcReply,
    pieces: [libc::iovec; PIECES_MAX],
    header: libc::msghdr,
}

struct UringServer<'ring> {
    submitter: Submitter<'ring>,
    submissions: SubmissionQueue<'ring>,
    buffers: BaselineBufferRing,
    connections: Box<[UringConnection]>,
    listener: Fd,
    defaults: Lengths,
    /// Turns of the loop that were submitted, counted from 1.
    turn: u64,
    /// Connections that hold what came while their echo was being queued, or whose receive ended
    /// then.
    held: Vec<UserData>,
    stopped: bool,
}

const _: () = assert!(PREFIX_LEN <= u8::MAX as usize);

/// Serves `listener` until `stop`. Blocks.
pub(super) fn run(listener: &OwnedFd, defaults: Lengths, stop: &Stop) -> Result<(), BaselineError> {
    let refused = |step| move |source| BaselineError::Ring { step, source };
    let mut ring: IoUring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        // Without it a submit that does not wait never runs deferred work.
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_no_sqarray()
        .setup_cqsize(limits::RING_COMPLETION_ENTRIES)
        .build(limits::RING_SUBMISSION_ENTRIES)
        .map_err(refused("setup"))?;
    let slots = descriptor_limit().min(limits::RING_CONNECTIONS_MAX);
    let (mut submitter, submissions, mut completions) = ring.split();
    // Saves looking the ring's descriptor up in each system call; an old kernel goes without.
    let _ = submitter.register_ring_fd();
    submitter.register_files_sparse(slots).map_err(refused("direct descriptors"))?;
    let (count, buffer_bytes) = (limits::RING_BUFFERS, limits::RING_BUFFER_BYTES);
    let buffers = BaselineBufferRing::register(&submitter, BUFFER_GROUP, count, buffer_bytes)
        .map_err(refused("buffer ring"))?;
    let connections = (0..slots).map(|_| UringConnection::new()).collect();
    let listener = Fd(listener.as_raw_fd());
    let mut server = UringServer {
        submitter,
        submissions,
        buffers,
        connections,
        listener,
        defaults,
        turn: 1,
        held: Vec::new(),
        stopped: false,
    };
    server.accept();
    let watch = opcode::PollAdd::new(Fd(stop.as_fd().as_raw_fd()), libc::POLLIN as u32).build();
    server.push(&watch.user_data(UserData::of(RequestKind::Stop).pack()));
    while !server.stopped {
        server.submissions.sync();
        // Held connections continue at the end of this poll.
        let want = usize::from(server.held.is_empty());
        match server.submitter.submit_and_wait(want) {
            Ok(_) => {}
            // Interrupted, or the completion queue is over-full: reap, then go on.
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(BaselineError::Loop(error)),
        }
        completions.sync();
        // What was not submitted in this turn (a transient error) is still on its way.
        server.turn += u64::from(server.submissions_taken());
        for completion in &mut completions {
            server.on_completion(&completion);
        }
        server.answer_held();
        server.buffers.publish();
    }
    server.finish().map_err(refused("cancelling"))
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY | libc::EAGAIN))
}

fn descriptor_limit() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    u32::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(u32::MAX)
}

impl UringServer<'_> {
    fn push(&mut self, entry: &squeue::Entry) {
        loop {
            // SAFETY: what entries point to outlives the operations: echoes and messages lie in
            // the table of connections, are not changed while `sending` is set, and `finish`
            // cancels what is in flight before the table goes.
            let pushed = unsafe { self.submissions.push(entry) };
            if pushed.is_ok() {
                return;
            }
            // The queue is full: submit now. Entries that the kernel rejects are retried above.
            self.submissions.sync();
            let _ = self.submitter.submit();
            self.submissions.sync();
        }
    }

    fn on_completion(&mut self, completion: &cqueue::Entry) {
        let tag = UserData::unpack(completion.user_data());
        let (result, flags) = (completion.result(), completion.flags());
        match tag.op {
            RequestKind::Accept => self.on_accepted(result, flags),
            RequestKind::Receive => self.on_received(tag, result, flags),
            RequestKind::Send => self.on_sent(tag, result),
            RequestKind::Echo => self.on_echo_cut(tag, result),
            RequestKind::Close => {}
            RequestKind::Stop => self.stopped = true,
        }
    }

    fn accept(&mut self) {
        let accept = opcode::AcceptMulti::new(self.listener).allocate_file_index(true).build();
        self.push(&accept.user_data(UserData::of(RequestKind::Accept).pack()));
    }

    fn on_accepted(&mut self, result: i32, flags: u32) {
        if !cqueue::more(flags) {
            self.accept();
        }
        // A failure is the peer's (it left) or a full table, which the kernel has answered.
        let Ok(slot) = u32::try_from(result) else { return };
        let Some(connection) = self.connections.get_mut(slot as usize) else { return };
        connection.generation = connection.generation.wrapping_add(1);
        connection.requests = Requests::default();
        connection.closing = false;
        connection.sending = false;
        let generation = connection.generation;
        self.receive(slot, generation);
    }

    fn receive(&mut self, slot: u32, generation: u32) {
        let receive = opcode::RecvMulti::new(Fixed(slot), BUFFER_GROUP).build();
        self.push(
            &receive.user_data(UserData { op: RequestKind::Receive, slot, generation }.pack()),
        );
    }

    /// The connection that a completion is about, unless the slot has become another's.
    fn connection(&mut self, tag: UserData) -> Option<&mut UringConnection> {
        let connection = self.connections.get_mut(tag.slot as usize)?;
        (connection.generation == tag.generation).then_some(connection)
    }

    fn on_received(&mut self, tag: UserData, result: i32, flags: u32) {
        if let Some(buffer) = cqueue::buffer_select(flags) {
            let len = usize::try_from(result).unwrap_or(0);
            let fate = self.answer(tag, buffer, len);
            self.buffers.give_back(buffer);
            if fate.is_err() {
                // Ends the receive with a completion, which closes the connection.
                let shutdown = opcode::Shutdown::new(Fixed(tag.slot), libc::SHUT_RDWR).build();
                let shutdown = shutdown.flags(squeue::Flags::SKIP_SUCCESS);
                self.push(&shutdown.user_data(UserData { op: RequestKind::Close, ..tag }.pack()));
            }
        }
        if cqueue::more(flags) || self.connection(tag).is_none() {
            return;
        }
        if result > 0 || result == -libc::ENOBUFS {
            self.buffers.publish();
            self.receive(tag.slot, tag.generation);
        } else {
            self.close_when_sent(tag);
        }
    }

    /// Answers what has arrived in a buffer, or keeps it while an answer is being sent.
    fn answer(&mut self, tag: UserData, buffer: u16, len: usize) -> Result<(), ProtocolViolation> {
        let (defaults, turn) = (self.defaults, self.turn);
        let received = self.buffers.received(buffer, len);
        let connection = self.connections.get_mut(tag.slot as usize);
        let Some(connection) = connection.filter(|it| it.generation == tag.generation) else {
            return Ok(());
        };
        if connection.sending {
            return connection.requests.hold(received);
        }
        if connection.echo_turn == turn {
            connection.requests.hold(received)?;
            self.held.push(tag);
            return Ok(());
        }
        if connection.requests.is_echo(received, defaults) {
            connection.echo[..len].copy_from_slice(received);
            connection.echo_len = len as u8;
            connection.echo_turn = turn;
            let start = connection.echo.as_ptr();
            let send = opcode::Send::new(Fixed(tag.slot), start, len as u32).flags(ECHO_FLAGS);
            let send = send.build().flags(squeue::Flags::SKIP_SUCCESS);
            self.push(&send.user_data(UserData { op: RequestKind::Echo, ..tag }.pack()));
            return Ok(());
        }
        if let Some(reply) = connection.requests.on_received(received, defaults)? {
            self.send(tag, reply);
        }
        Ok(())
    }

    fn send(&mut self, tag: UserData, reply: RpcReply) {
        let connection = &mut self.connections[tag.slot as usize];
        connection.sending = true;
        let message = connection.message.insert(ReplyMessage::new(reply));
        let send = opcode::SendMsg::new(Fixed(tag.slot), &raw const message.header)
            .flags(SEND_FLAGS as u32)
            .build();
        self.push(&send.user_data(UserData { op: RequestKind::Send, ..tag }.pack()));
    }

    /// Whether the kernel has taken all that was queued.
    fn submissions_taken(&mut self) -> bool {
        self.submissions.sync();
        self.submissions.is_empty()
    }

    /// Continues connections that changed while their echoes were being queued.
    fn answer_held(&mut self) {
        for tag in mem::take(&mut self.held) {
            let turn = self.turn;
            match self.connection(tag) {
                // Still in the same turn: once more after it.
                Some(connection) if connection.echo_turn == turn => self.held.push(tag),
                Some(connection) if !connection.sending => self.on_sent(tag, 0),
                _ => {}
            }
        }
    }

    /// An echo met a full socket: the rest waits for room. Any other failure means that the peer
    /// is gone; then the receive ends too and closes.
    fn on_echo_cut(&mut self, tag: UserData, result: i32) {
        let sent_bytes = match result {
            0.. => result as usize,
            _ if result == -libc::EAGAIN => 0,
            _ => return,
        };
        let Some(connection) = self.connection(tag) else { return };
        connection.sending = true;
        let rest = &connection.echo[..usize::from(connection.echo_len)][sent_bytes..];
        let (start, len) = (rest.as_ptr(), rest.len() as u32);
        let send = opcode::Send::new(Fixed(tag.slot), start, len).flags(SEND_FLAGS).build();
        self.push(&send.user_data(UserData { op: RequestKind::Send, ..tag }.pack()));
    }

    fn on_sent(&mut self, tag: UserData, result: i32) {
        let defaults = self.defaults;
        let Some(connection) = self.connection(tag) else { return };
        connection.sending = false;
        let next = if result < 0 { Ok(None) } else { connection.requests.next(defaults) };
        let closing = connection.closing;
        match next {
            Ok(Some(reply)) => self.send(tag, reply),
            // A failed send means that the peer has closed; then the receive ends too and closes.
            Ok(None) | Err(ProtocolViolation) if closing => self.close(tag),
            Ok(None) | Err(ProtocolViolation) => {}
        }
    }

    /// The receive has ended. A reply in flight is let go first, so that a peer that closed only
    /// its sending side still gets it.
    fn close_when_sent(&mut self, tag: UserData) {
        let turn = self.turn;
        let Some(connection) = self.connection(tag) else { return };
        connection.closing = true;
        if connection.echo_turn == turn {
            self.held.push(tag);
        } else if !connection.sending {
            self.close(tag);
        }
    }

    fn close(&mut self, tag: UserData) {
        let close = opcode::Close::new(Fixed(tag.slot)).build();
        let close = close.flags(squeue::Flags::SKIP_SUCCESS);
        self.push(&close.user_data(UserData { op: RequestKind::Close, ..tag }.pack()));
    }

    /// Ends everything in flight, so that the kernel no longer touches buffers and replies.
    fn finish(&mut self) -> io::Result<()> {
        self.submissions.sync();
        self.submitter.submit()?;
        let limit = Timespec::from(limits::RING_CANCEL_MAX);
        match self.submitter.register_sync_cancel(Some(limit), CancelBuilder::any()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.buffers.unregister(&self.submitter, BUFFER_GROUP)
    }
}

impl ReplyMessage {
    fn new(reply: RpcReply) -> Box<Self> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        // SAFETY: a msghdr is numbers and pointers, for which zero is a value: no name, no
        // control data, no pieces.
        let header: libc::msghdr = unsafe { mem::zeroed() };
        let mut message = Box::new(Self { reply, pieces: [empty; PIECES_MAX], header });
        let (pieces, count) = framing::pieces(&message.reply, 0);
        let pieces = pieces.map(|piece| libc::iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        });
        message.pieces = pieces;
        message.header.msg_iov = message.pieces.as_mut_ptr();
        message.header.msg_iovlen = count;
        message
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestKind, UserData};

    #[test]
    fn tags_survive_user_data() {
        for op in [
            RequestKind::Accept,
            RequestKind::Receive,
            RequestKind::Send,
            RequestKind::Echo,
            RequestKind::Close,
            RequestKind::Stop,
        ] {
            for (slot, generation) in [(0, 0), (1, u32::MAX), (0xff_ffff, 7)] {
                let tag = UserData { op, slot, generation };
                assert_eq!(UserData::unpack(tag.pack()), tag);
            }
        }
    }
}
