//! The server's end: a server's turns on a thread of its own.
//!
//! Invariant: before it sleeps, all events that there was room for have gone over, and the
//! application was woken if it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

use megapipe_link::LinkError;
use megapipe_shm::record::{
    self, CloseCode, Command, Completion, Event as Says, Id, Op, Record, Refusal, UndeliveredCode,
};
use megapipe_shm::{Consumer, Producer, Ringer, Sleeper};
use megapipe_stack::{
    Arrival, BufId, Chunk, CloseReason, ConnId, ConnectError, Event, Instant, ListenerId, Notice,
    Stack, Undelivered,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::deferred::{Deferred, End};
use super::{Call, SharedMemory};
use crate::clock::Clock;
use crate::connection_manager::AcceptorId;
use crate::error::PortError;
use crate::limits::{GOODBYE_TURNS, OPS_PER_TURN};
use crate::server::Server;
use crate::waiting::Next;

/// The server's ends of what it shares with its application.
pub(super) struct Ends {
    pub(super) ops: Consumer<Record>,
    pub(super) events: Producer<Record>,
    pub(super) sleeper: Sleeper,
    pub(super) ringer: Ringer,
    pub(super) questions: Receiver<Call>,
    /// Set when there will be no more turns.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// A server, and its ends.
pub(super) struct Worker {
    server: Server<SharedMemory>,
    ends: Ends,
    clock: Clock,
    /// Sends that the stack had no room for.
    deferred: Deferred,
    /// A call that waits for ops before it, which wait for room for their answers.
    held: Option<Call>,
    /// Events that the application was not woken for yet.
    untold: u32,
    /// The application is gone.
    is_over: bool,
}

impl Worker {
    pub(super) fn new(server: Server<SharedMemory>, ends: Ends) -> Self {
        let clock = Clock::new();
        let deferred = Deferred::default();
        Self { server, ends, clock, deferred, held: None, untold: 0, is_over: false }
    }

    /// Turns until the application is gone, or the link.
    ///
    /// # Errors
    /// What the link said.
    pub(super) fn run(mut self) -> Result<(), LinkError> {
        loop {
            let now = self.clock.now();
            let asked = self.take_ops(now)? + self.answer_calls(now)?;
            let turn = self.server.turn(now)?;
            let told = self.tell(now);
            if self.is_over {
                return self.say_goodbye();
            }
            let worked = asked > 0 || told > 0 || turn.worked();
            self.wake()?;
            if self.server.after_turn(worked, now) == Next::Sleep {
                self.sleep(now)?;
            }
        }
    }

    /// Does what the application asked for, a turn's share of it. How much that was.
    fn take_ops(&mut self, now: Instant) -> Result<u32, LinkError> {
        let waiting = self.ends.ops.peek(OPS_PER_TURN).map_err(|_| gone())?;
        // Each may have an answer, for which there has to be room.
        let room = self.ends.events.reserve(OPS_PER_TURN).map_err(|_| gone())?;
        let count = waiting.min(OPS_PER_TURN).min(room);
        for _ in 0..count {
            let Some(record) = self.ends.ops.take() else { break };
            // What no honest application would write ends its session.
            let op = Op::parse(&record).map_err(|_| gone())?;
            self.execute(now, op);
        }
        self.ends.ops.release();
        // An honest application has no more chunks under way than it has buffers.
        let (_, memory) = self.server.parts();
        if memory.is_overdrawn() || self.deferred.chunks() > memory.send_count() {
            return Err(gone());
        }
        Ok(count)
    }

    #[inline]
    fn execute(&mut self, now: Instant, op: Op) {
        match op.command {
            Command::Send { conn, chunk } => {
                let (stack, memory) = self.server.parts();
                let chunk = chunk_of(chunk);
                if memory.holds(chunk) {
                    self.deferred.send(now, conn_id(conn), chunk, (stack, memory));
                }
            }
            Command::Receive { conns } => {
                let (stack, _) = self.server.parts();
                for conn in conns.iter() {
                    // What is asked of a connection that is over needs no answer.
                    let _ = stack.receive(now, conn_id(conn));
                }
            }
            Command::Return { bufs } => {
                let (_, memory) = self.server.parts();
                bufs.iter().for_each(|buf| memory.take_back(buf));
            }
            _ => self.execute_rare(now, op),
        }
    }

    /// As `execute`, what is not asked for each message.
    fn execute_rare(&mut self, now: Instant, op: Op) {
        let (stack, memory) = self.server.parts();
        // What is asked of a connection that is over needs no answer: its end is on the way.
        let done = match op.command {
            Command::Shutdown { conn } => {
                self.deferred.end(now, conn_id(conn), End::Shutdown, (stack, memory))
            }
            Command::Close { conn } => {
                self.deferred.end(now, conn_id(conn), End::Close, (stack, memory))
            }
            Command::Abort { conn } => {
                self.deferred.drop_of(conn_id(conn), memory);
                stack.abort(now, conn_id(conn), memory)
            }
            Command::AwaitAcks { conn } => stack.await_acks(conn_id(conn)),
            Command::Accept { listener, credit } => {
                self.server.accept(listener_id(listener), AcceptorId(op.cookie), credit)
            }
            Command::Unlisten { listener } => {
                self.server.unlisten(now, listener_id(listener));
                Ok(())
            }
            Command::Connect { remote, local } => {
                return match self.server.connect(now, remote, local) {
                    Ok(conn) => self.say(op.cookie, Says::Connecting { conn: id_of(conn) }),
                    Err(error) => self.refuse(op.cookie, connect_refusal(&error)),
                };
            }
            Command::Send { .. } | Command::Receive { .. } | Command::Return { .. } => return,
            // Asked by calls, whose answers name the error (`Session::call`).
            Command::Listen { .. }
            | Command::BindDatagram { .. }
            | Command::SendDatagram { .. }
            | Command::CloseDatagram { .. } => {
                return self.refuse(op.cookie, Refusal::NotPermitted);
            }
        };
        let _ = done;
    }

    /// Answers calls, each after the ops that were asked for before it. How many ops that were.
    fn answer_calls(&mut self, now: Instant) -> Result<u32, LinkError> {
        let mut asked = 0;
        while let Some(call) = self.held.take().or_else(|| self.next_call()) {
            loop {
                match self.take_ops(now)? {
                    0 => break,
                    count => asked += count,
                }
            }
            if self.has_ops()? {
                self.held = Some(call);
                break;
            }
            self.ends.events.commit();
            // A call that looks at a queue sees none that is empty while sends wait for it.
            let (stack, memory) = self.server.parts();
            self.deferred.retry_all(now, (stack, memory));
            call(&mut self.server);
        }
        Ok(asked)
    }

    fn next_call(&mut self) -> Option<Call> {
        let call = self.ends.questions.try_recv();
        self.is_over |= matches!(call, Err(TryRecvError::Disconnected));
        call.ok()
    }

    fn has_ops(&mut self) -> Result<bool, LinkError> {
        self.ends.ops.peek(1).map(|count| count > 0).map_err(|_| gone())
    }

    /// Puts events into the ring, as far as there is room: the rest stays in the stack. How many.
    fn tell(&mut self, now: Instant) -> u32 {
        let before = self.untold;
        while self.has_room()
            && let Some((event, offer)) = self.server.event()
        {
            if let Event::Received { conn, chunk } = event {
                // Nearly all of them.
                self.put(&Completion::received(id_of(conn), record_chunk(chunk)));
                continue;
            }
            let (stack, memory) = self.server.parts();
            match event {
                Event::Acked { conn, .. } => self.deferred.retry(now, conn, (stack, memory)),
                Event::Closed { conn, .. } => self.deferred.drop_of(conn, memory),
                _ => {}
            }
            if let Event::DatagramRefused { .. } = event
                && let Some(notice) = self.server.parts().0.take_notice()
            {
                self.say(0, words_of_notice(&notice));
            }
            let acceptor = offer.map_or(u64::MAX, |offer| offer.acceptor.0);
            if let Some(says) = words_of(event, self.server.stack()) {
                self.say(acceptor, says);
            }
        }
        // After the events: buffers that an end has freed are no sign of room.
        while self.has_room() {
            let (_, memory) = self.server.parts();
            let Some(bufs) = memory.take_returned() else { break };
            self.say(0, Says::Returned { bufs });
        }
        self.ends.events.commit();
        self.untold - before
    }

    #[inline]
    fn has_room(&mut self) -> bool {
        // Half of it is for answers, which are not held back.
        let half = crate::limits::COMPLETIONS_MAX / 2;
        self.ends.events.reserve(half).is_ok_and(|room| room >= half)
    }

    fn refuse(&mut self, cookie: u64, refusal: Refusal) {
        self.say(cookie, Says::Refused { refusal });
    }

    fn say(&mut self, cookie: u64, event: Says) {
        self.put(&Completion { cookie, event }.record());
    }

    /// There is room: it was seen before (`has_room`, `take_ops`).
    #[inline]
    fn put(&mut self, record: &Record) {
        let put = self.ends.events.put(record);
        debug_assert!(put.is_ok(), "as much as was seen before");
        self.untold += u32::from(put.is_ok());
    }

    /// Wakes the application, if it sleeps and there is something for it.
    fn wake(&mut self) -> Result<(), LinkError> {
        if self.untold > 0 {
            self.ends.events.commit();
            self.untold = 0;
            self.ends.ringer.ring().map_err(|_| gone())?;
        }
        Ok(())
    }

    /// Sleeps until there is an op, a call, a frame, or a timer.
    fn sleep(&mut self, now: Instant) -> Result<(), LinkError> {
        self.wake()?;
        self.ends.sleeper.arm();
        let has_ops = self.has_ops()? || self.answer_calls(now)? > 0;
        // An answer to a call may have given the stack something to send.
        let transmitted = self.server.transmit(now)?;
        let may_sleep = !has_ops && !self.is_over && transmitted == 0;
        if may_sleep && self.server.arm(now)? {
            self.poll(now)?;
        }
        self.ends.sleeper.disarm();
        self.ends.sleeper.clear().map_err(|_| gone())
    }

    fn poll(&self, now: Instant) -> Result<(), LinkError> {
        let patience = self.server.patience(now);
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let (bell, link) = (self.ends.sleeper.fd(), self.server.wait_fd());
        let host = self.server.host_fd().unwrap_or(link);
        let mut fds = [bell, link, host].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let count = if self.server.host_fd().is_some() { 3 } else { 2 };
        match poll(&mut fds[..count], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(LinkError::Io { what: "poll", source: errno.into() }),
        }
    }

    /// The application is gone: what it asked for last is done, and FINs and RSTs go out.
    fn say_goodbye(&mut self) -> Result<(), LinkError> {
        while self.take_ops(self.clock.now())? > 0 {}
        for _ in 0..GOODBYE_TURNS {
            if !self.server.turn(self.clock.now())?.worked() {
                break;
            }
        }
        Ok(())
    }
}

/// Also after a panic: nobody else would wake an application that sleeps.
impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.has_ended.store(true, Ordering::Release);
        // One that goes to sleep at this moment sees the flag, or is rung.
        let _ = self.ends.ringer.ring();
    }
}

fn gone() -> LinkError {
    LinkError::Gone { driver: "the application" }
}

pub(super) const fn conn_id(id: Id) -> ConnId {
    ConnId { index: id.index, generation: id.generation }
}

pub(super) const fn id_of(conn: ConnId) -> Id {
    Id { index: conn.index, generation: conn.generation }
}

const fn listener_id(id: Id) -> ListenerId {
    ListenerId { index: id.index, generation: id.generation }
}

const fn chunk_of(chunk: record::Chunk) -> Chunk {
    Chunk { buf: BufId(chunk.buf.bits()), offset: chunk.offset, len: chunk.len }
}

const fn record_chunk(chunk: Chunk) -> record::Chunk {
    let buf = megapipe_shm::BufId::from_bits(chunk.buf.0);
    record::Chunk { buf, offset: chunk.offset, len: chunk.len }
}

/// The event that the stack told of last, as a record says it; `None`: no application asks for it.
fn words_of(event: Event, stack: &Stack) -> Option<Says> {
    Some(match event {
        Event::Incoming { listener, conn, remote, waiting } => {
            let listener = Id { index: listener.index, generation: listener.generation };
            Says::Incoming { listener, conn: id_of(conn), remote, waiting }
        }
        Event::Connected { conn } => Says::Connected { conn: id_of(conn) },
        Event::Received { conn, chunk } => {
            Says::Received { conn: id_of(conn), chunk: record_chunk(chunk) }
        }
        Event::PeerClosed { conn } => Says::PeerClosed { conn: id_of(conn) },
        Event::Closed { conn, reason } => {
            Says::Closed { conn: id_of(conn), reason: close_code(reason) }
        }
        Event::Acked { conn, chunks, queued_bytes } => {
            Says::Acked { conn: id_of(conn), chunks, queued_bytes }
        }
        Event::Datagram { endpoint, from, chunk } => {
            let endpoint = Id { index: endpoint.index, generation: endpoint.generation };
            let Arrival { to, hop_limit, traffic_class } = stack.last_arrival();
            let arrival = record::Arrival { to, hop_limit, traffic_class };
            let record::Chunk { buf, len, .. } = record_chunk(chunk);
            // It came in one packet of IP, and begins where its buffer does.
            let (from, port, len) = (from.ip(), from.port(), u16::try_from(len).ok()?);
            Says::Datagram { endpoint, from, port, arrival, buf, len }
        }
        Event::Urgent { conn, bytes } => Says::Urgent { conn: id_of(conn), bytes },
        Event::DatagramRefused { endpoint, to, why } => {
            let endpoint = Id { index: endpoint.index, generation: endpoint.generation };
            Says::DatagramRefused { endpoint, to, why: undelivered_code(why) }
        }
    })
}

/// What says that a datagram was refused, as a record says it.
fn words_of_notice(notice: &Notice) -> Says {
    let Notice { by, kind, code, info, arrival, quote } = *notice;
    let Arrival { to, hop_limit, traffic_class } = arrival;
    // No quote is longer than an ICMP error.
    let quote = quote.map(|chunk| {
        let record::Chunk { buf, len, .. } = record_chunk(chunk);
        (buf, len as u16)
    });
    Says::Notice {
        by,
        kind_and_code: (kind, code),
        info,
        arrival: record::Arrival { to, hop_limit, traffic_class },
        quote,
    }
}

const fn undelivered_code(why: Undelivered) -> UndeliveredCode {
    match why {
        Undelivered::NetworkUnreachable => UndeliveredCode::NetworkUnreachable,
        Undelivered::HostUnreachable => UndeliveredCode::HostUnreachable,
        Undelivered::ProtocolUnreachable => UndeliveredCode::ProtocolUnreachable,
        Undelivered::PortUnreachable => UndeliveredCode::PortUnreachable,
        Undelivered::Prohibited => UndeliveredCode::Prohibited,
        Undelivered::TooLong => UndeliveredCode::TooLong,
        Undelivered::TimeExceeded => UndeliveredCode::TimeExceeded,
        Undelivered::ParameterProblem => UndeliveredCode::ParameterProblem,
    }
}

const fn close_code(reason: CloseReason) -> CloseCode {
    match reason {
        CloseReason::Finished => CloseCode::Finished,
        CloseReason::ResetByPeer => CloseCode::ResetByPeer,
        CloseReason::Refused => CloseCode::Refused,
        CloseReason::Aborted => CloseCode::Aborted,
        CloseReason::TimedOut => CloseCode::TimedOut,
        CloseReason::KeepaliveTimedOut => CloseCode::KeepaliveTimedOut,
        CloseReason::Unreachable => CloseCode::Unreachable,
        CloseReason::HostUnreachable => CloseCode::HostUnreachable,
    }
}

const fn connect_refusal(error: &PortError<ConnectError>) -> Refusal {
    match error {
        PortError::Stack(ConnectError::NoRoute) => Refusal::NoRoute,
        PortError::Stack(ConnectError::BadLocalAddress) => Refusal::BadLocalAddress,
        PortError::Stack(ConnectError::BadRemoteAddress) => Refusal::BadRemoteAddress,
        PortError::Stack(ConnectError::TooManyConnections) => Refusal::TooMany,
        PortError::Stack(ConnectError::NoPort) => Refusal::NoPort,
        PortError::Stack(_) | PortError::Shared(_) => Refusal::InUse,
        PortError::Host(_) => Refusal::NotPermitted,
    }
}
