//! The application's end: what it asks for goes into one ring, what happened comes out of another.
//!
//! Connections have names of the session's own, given at once, while the server's names come with
//! its answers. So an application need not wait for the answer to `connect`, and an event of a
//! connection that it has let go of meanwhile finds nobody.
//!
//! Invariants
//! - `by_server[conn.index]` names the connection that the server knows under that index, and no
//!   other.
//! - A send buffer is in the server's hands from the op until `Returned` says otherwise; until then
//!   its bytes count against its connection (`sending.rs`).

mod sending;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_shm::record::{
    self, Bufs, Command, Completion, Event as Says, Id, Ids, Op, Record, Refusal,
};
use megapipe_shm::{BufId, Consumer, PoolLayout, Producer, Region, Ringer, Sleeper};
use megapipe_stack::{
    Arrival, Chunk, ConnId, ConnectError, DatagramId, Event, ListenerId, Notice, OperationError,
};

use super::codes::{connect_error, reason_of, undelivered};
use super::sends::{Held, Sends};
use super::worker::{conn_id, id_of};
use super::{Call, SharedMemory};
use crate::connection_manager::{AcceptorId, Offer};
use crate::limits::{COMPLETIONS_MAX, OPS_MAX};
use crate::server::Server;
use crate::server_thread;
use crate::switch::Attachment;

/// How often who waits for an answer looks whether the server waits for room.
const ROOM_EVERY: Duration = Duration::from_millis(1);

/// The application's ends of what it shares with its server.
pub(super) struct Ends {
    pub(super) region: Arc<Region>,
    pub(super) ops: Producer<Record>,
    pub(super) events: Consumer<Record>,
    pub(super) sleeper: Sleeper,
    pub(super) ringer: Ringer,
    pub(super) calls: Sender<Call>,
    /// The server's thread takes no more turns, and is about to end.
    pub(super) has_ended: Arc<AtomicBool>,
}

/// What does not change while the server runs.
pub(super) struct Description {
    caps: Caps,
    attachment: Option<Attachment>,
}

impl Description {
    pub(super) fn of(server: &Server<SharedMemory>) -> Self {
        Self { caps: server.caps().clone(), attachment: server.attachment() }
    }
}

/// A connection, under the session's name.
#[derive(Debug, Clone, Copy, Default)]
struct Conn {
    generation: u32,
    is_used: bool,
    /// The server's name, once it has said it.
    server: Option<ConnId>,
    /// Bytes with the server.
    queued_bytes: u32,
    /// Size of its send buffer: the most bytes with the server at once, but for a first chunk.
    send_buffer_bytes: u32,
    /// Send buffers with the server.
    held: Held,
    /// `Acked` is due when there is room again.
    awaits: bool,
    /// Its bytes lie in memory of the server's own: until they are acknowledged none follow.
    has_copy: bool,
    /// Nothing more is to be sent.
    is_shut: bool,
}

/// What a session counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionCounters {
    /// Events taken from the server.
    pub events: u64,
    /// Times that the application slept and was woken by events.
    pub wakeups: u64,
    /// Times that the ring of ops was full.
    pub ops_full: u64,
}

/// What is told beside an event.
#[derive(Debug, Clone, Copy, Default)]
struct Beside {
    /// How the datagram came.
    arrival: Option<Arrival>,
    /// What says that a datagram did not get there.
    notice: Option<Notice>,
}

/// What the server tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// As the stack says it.
    Event(Event, Option<Offer>),
    /// A connection was not begun.
    NotBegun(ConnId, ConnectError),
}

/// An application's end of a server apart. For one thread.
pub struct Session {
    pub(super) ends: Ends,
    sends: Sends,
    receives: PoolLayout,
    description: Description,
    conns: Vec<Conn>,
    free: Vec<u32>,
    by_server: Vec<Option<ConnId>>,
    /// Connections whose sends may go on.
    unblocked: VecDeque<ConnId>,
    /// What was told while something else was waited for.
    backlog: VecDeque<(Told, Beside)>,
    /// Records that were taken out of the ring only to make room in it.
    taken: VecDeque<Record>,
    /// What belongs to what was told last.
    beside: Beside,
    /// Connections whose next bytes are wanted, and received buffers that go back: each is said of
    /// many in one record, at the latest when what was asked for goes over.
    pub(super) wanted: Ids,
    pub(super) back: Bufs,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
    is_armed: bool,
    counters: SessionCounters,
}

impl Session {
    pub(super) fn new(
        ends: Ends,
        sends: Sends,
        receives: PoolLayout,
        description: Description,
        thread: JoinHandle<Result<(), LinkError>>,
    ) -> Self {
        Self {
            ends,
            sends,
            receives,
            description,
            conns: Vec::new(),
            free: Vec::new(),
            by_server: Vec::new(),
            unblocked: VecDeque::new(),
            backlog: VecDeque::new(),
            taken: VecDeque::new(),
            beside: Beside::default(),
            wanted: Ids::default(),
            back: Bufs::default(),
            thread: Some(thread),
            is_armed: false,
            counters: SessionCounters::default(),
        }
    }

    /// What the link can do.
    #[must_use]
    pub const fn caps(&self) -> &Caps {
        &self.description.caps
    }

    /// The shard's place among others, where it has some.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        self.description.attachment.clone()
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> SessionCounters {
        self.counters
    }

    /// Asks the server something that is rare, and waits for the answer, which comes after whatever
    /// was asked for before. `None`: it is gone.
    pub fn call<R: Send + 'static>(
        &mut self,
        ask: impl FnOnce(&mut Server<SharedMemory>) -> R + Send + 'static,
    ) -> Option<R> {
        self.flush();
        let (answer, answered) = mpsc::sync_channel(1);
        let call = Box::new(move |server: &mut Server<SharedMemory>| {
            // Whoever asked waits for it.
            let _ = answer.send(ask(server));
        });
        self.ends.calls.send(call).ok()?;
        self.ring();
        loop {
            match answered.recv_timeout(ROOM_EVERY) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Timeout) => self.make_room(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Takes the server's events out of their ring, to be looked at later: it takes no op whose
    /// answer has no room there.
    #[cold]
    fn make_room(&mut self) {
        while self.ends.events.peek(COMPLETIONS_MAX).is_ok_and(|count| count > 0) {
            self.taken.extend(std::iter::from_fn(|| self.ends.events.take()));
            self.ends.events.release();
        }
    }

    fn ring(&self) {
        // A bell that cannot be rung belongs to a thread that has ended, which `check` finds out.
        let _ = self.ends.ringer.ring();
    }

    /// Hands over what was asked for.
    pub fn flush(&mut self) {
        self.put_wanted();
        self.put_back();
        self.commit();
    }

    fn commit(&mut self) {
        if self.ends.ops.commit() > 0 {
            self.ring();
        }
    }

    fn put_wanted(&mut self) {
        if !self.wanted.is_empty() {
            let conns = std::mem::take(&mut self.wanted);
            self.ask(0, Command::Receive { conns });
        }
    }

    fn put_back(&mut self) {
        if !self.back.is_empty() {
            let bufs = std::mem::take(&mut self.back);
            self.ask(0, Command::Return { bufs });
        }
    }

    fn ask(&mut self, cookie: u64, command: Command) {
        self.put(&Op { cookie, command }.record());
    }

    #[inline]
    pub(super) fn put(&mut self, record: &Record) {
        if self.ends.ops.put(record).is_err() {
            self.put_when_there_is_room(record);
        }
    }

    #[cold]
    fn put_when_there_is_room(&mut self, record: &Record) {
        while self.ends.ops.reserve(1).is_ok_and(|room| room == 0) {
            // The server takes ops whatever else it does; it may need this core for it.
            self.counters.ops_full += 1;
            self.commit();
            self.ring();
            if !self.lives() {
                return;
            }
            self.make_room();
            std::thread::yield_now();
        }
        // There is room, or the ring is broken, as the next event tells.
        let _ = self.ends.ops.put(record);
    }

    /// The server still runs.
    ///
    /// # Errors
    /// Why it does not.
    #[inline]
    pub fn check(&mut self) -> Result<(), LinkError> {
        // The thread itself is still there when it rings for the last time: whoever went by that
        // would sleep again.
        if self.lives() { Ok(()) } else { server_thread::join(&mut self.thread) }
    }

    #[inline]
    fn lives(&self) -> bool {
        !self.ends.has_ended.load(Ordering::Acquire)
    }

    /// Prepares for sleep on [`Session::wait_fd`]. `false`: there is something already.
    #[must_use]
    pub fn arm(&mut self) -> bool {
        self.flush();
        self.ends.sleeper.arm();
        self.is_armed = true;
        let waits = self.ends.events.peek(1).is_ok_and(|count| count == 0)
            && self.taken.is_empty()
            && self.backlog.is_empty()
            && self.unblocked.is_empty();
        if !(waits && self.lives()) {
            self.wake_up();
            return false;
        }
        true
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ends.sleeper.fd()
    }

    /// Is awake: nobody has to ring.
    pub fn wake_up(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.ends.sleeper.disarm();
            // Rings that came are of no more use; a bell that is broken is found by `check`.
            let _ = self.ends.sleeper.clear();
            let came = self.ends.events.peek(1).is_ok_and(|count| count > 0);
            self.counters.wakeups += u64::from(came);
        }
    }
}

/// Commands.
impl Session {
    /// An acceptor takes so many more connections of a listener.
    pub fn accept(&mut self, listener: ListenerId, acceptor: AcceptorId, credit: u32) {
        let listener = Id { index: listener.index, generation: listener.generation };
        self.ask(acceptor.0, Command::Accept { listener, credit });
    }

    /// Stops listening.
    pub fn unlisten(&mut self, listener: ListenerId) {
        let listener = Id { index: listener.index, generation: listener.generation };
        self.ask(0, Command::Unlisten { listener });
    }

    /// Begins to connect from where the stack likes. What is wrong with it comes as
    /// [`Told::NotBegun`].
    pub fn connect(&mut self, remote: SocketAddr) -> ConnId {
        let conn = self.name(None);
        let cookie = u64::from(conn.generation) << 32 | u64::from(conn.index);
        // Cookie 0 is nobody's.
        self.ask(cookie + 1, Command::Connect { remote, local: None });
        conn
    }

    /// The next bytes are wanted.
    ///
    /// # Errors
    /// [`OperationError::Unknown`]: the connection is over.
    #[inline]
    pub fn receive(&mut self, conn: ConnId) -> Result<(), OperationError> {
        let server = self.server_of(conn)?;
        self.wanted.push(id_of(server));
        if self.wanted.is_full() {
            self.put_wanted();
        }
        Ok(())
    }

    /// Nothing more will be sent.
    pub fn shutdown(&mut self, conn: ConnId) {
        if let Ok(server) = self.server_of(conn) {
            self.conns[conn.index as usize].is_shut = true;
            self.ask(0, Command::Shutdown { conn: id_of(server) });
        }
    }

    /// The application is done with a connection.
    pub fn close(&mut self, conn: ConnId) {
        self.let_go(conn, |conn| Command::Close { conn });
    }

    /// Resets a connection.
    pub fn abort(&mut self, conn: ConnId) {
        self.let_go(conn, |conn| Command::Abort { conn });
    }

    fn let_go(&mut self, conn: ConnId, command: impl FnOnce(Id) -> Command) {
        if !self.is_known(conn) {
            return;
        }
        // One that the server has not named yet is aborted when it does (`on_connecting`).
        if let Some(server) = self.conns[conn.index as usize].server {
            self.ask(0, command(id_of(server)));
        }
        self.forget(conn);
    }

    /// Copies a received chunk to `to`, as far as that reaches, and gives the buffer back.
    #[inline]
    pub fn take_bytes(&mut self, chunk: Chunk, to: &mut [u8]) {
        let buf = BufId::from_bits(chunk.buf.0);
        let place = self.receives.offset + buf.index() as usize * self.receives.stride_bytes();
        let len = to.len().min(chunk.len as usize);
        if buf.index() < self.receives.count {
            let read = self.ends.region.read(place + chunk.offset as usize, &mut to[..len]);
            debug_assert!(read.is_ok(), "the server's chunk lies in its buffer");
        }
        self.give_back(chunk);
    }

    /// Gives a received buffer back.
    #[inline]
    pub fn give_back(&mut self, chunk: Chunk) {
        self.back.push(BufId::from_bits(chunk.buf.0));
        if self.back.is_full() {
            self.put_back();
        }
    }
}

/// After a fork.
impl Session {
    /// This is the child of a fork, where the server's thread is not: nothing is asked for or
    /// waited for any more.
    pub fn abandon(&mut self) {
        // Neither to be joined nor to be let go of: it is the parent's.
        std::mem::forget(self.thread.take());
    }
}

/// Events.
impl Session {
    /// How the datagram came that [`Session::event`] told of last.
    #[must_use]
    pub const fn last_arrival(&self) -> Option<Arrival> {
        self.beside.arrival
    }

    /// What said so, if [`Session::event`] told last of a datagram that did not get there, once.
    /// A quote in it lies in a received buffer ([`Session::take_bytes`]).
    pub const fn take_notice(&mut self) -> Option<Notice> {
        self.beside.notice.take()
    }

    /// What happened next.
    #[inline]
    pub fn event(&mut self) -> Option<Told> {
        if self.backlog.is_empty() {
            return self.next_told();
        }
        let (told, beside) = self.backlog.pop_front()?;
        self.beside = beside;
        Some(told)
    }

    #[inline]
    fn next_told(&mut self) -> Option<Told> {
        loop {
            if let Some(conn) = self.unblocked.pop_front() {
                if !self.is_known(conn) {
                    continue;
                }
                let state = &mut self.conns[conn.index as usize];
                if !std::mem::take(&mut state.awaits) {
                    continue;
                }
                let queued_bytes = state.queued_bytes;
                return Some(Told::Event(Event::Acked { conn, chunks: 0, queued_bytes }, None));
            }
            // Taken one by one, given back when there are no more: a batch costs one store.
            let Some(record) = self.next_record() else {
                self.ends.events.release();
                return None;
            };
            self.counters.events += 1;
            let Ok(Completion { cookie, event }) = Completion::parse(&record) else { continue };
            if let Says::Received { conn, chunk } = event {
                // Nearly all of them.
                let buf = megapipe_stack::BufId(chunk.buf.bits());
                let chunk = Chunk { buf, offset: chunk.offset, len: chunk.len };
                match self.ours(conn) {
                    Some(conn) => return Some(Told::Event(Event::Received { conn, chunk }, None)),
                    None => self.give_back(chunk),
                }
                continue;
            }
            if let Some(told) = self.understand(cookie, event) {
                return Some(told);
            }
        }
    }

    #[inline]
    fn next_record(&mut self) -> Option<Record> {
        if !self.taken.is_empty() {
            return self.taken.pop_front();
        }
        match self.ends.events.take() {
            Some(record) => Some(record),
            None => {
                self.ends.events.release();
                self.ends.events.peek(OPS_MAX).ok()?;
                self.ends.events.take()
            }
        }
    }

    fn understand(&mut self, cookie: u64, event: Says) -> Option<Told> {
        let told = |event| Some(Told::Event(event, None));
        match event {
            Says::Returned { bufs } => {
                bufs.iter().for_each(|buf| self.on_returned(buf));
                None
            }
            Says::Incoming { listener, conn, remote, waiting } => {
                let conn = self.name(Some(conn_id(conn)));
                let listener =
                    ListenerId { index: listener.index, generation: listener.generation };
                let acceptor = AcceptorId(cookie);
                let offer = (cookie != u64::MAX).then_some(Offer { acceptor, credit_left: 0 });
                Some(Told::Event(Event::Incoming { listener, conn, remote, waiting }, offer))
            }
            Says::Connecting { conn } => {
                self.on_connecting(cookie, conn_id(conn));
                None
            }
            Says::Refused { refusal } => self.on_refused(cookie, refusal),
            Says::Connected { conn } => told(Event::Connected { conn: self.ours(conn)? }),
            Says::PeerClosed { conn } => told(Event::PeerClosed { conn: self.ours(conn)? }),
            Says::Closed { conn, reason } => {
                let conn = self.ours(conn)?;
                self.forget(conn);
                told(Event::Closed { conn, reason: reason_of(reason) })
            }
            Says::Datagram { endpoint, from, port, arrival, buf, len } => {
                let endpoint =
                    DatagramId { index: endpoint.index, generation: endpoint.generation };
                let record::Arrival { to, hop_limit, traffic_class } = arrival;
                self.beside.arrival = Some(Arrival { to, hop_limit, traffic_class });
                let buf = megapipe_stack::BufId(buf.bits());
                let chunk = Chunk { buf, offset: 0, len: len.into() };
                let from = SocketAddr::new(from, port);
                told(Event::Datagram { endpoint, from, chunk })
            }
            Says::Notice { by, kind_and_code: (kind, code), info, arrival, quote } => {
                let record::Arrival { to, hop_limit, traffic_class } = arrival;
                let arrival = Arrival { to, hop_limit, traffic_class };
                let quote = quote.map(|(buf, len)| Chunk {
                    buf: megapipe_stack::BufId(buf.bits()),
                    offset: 0,
                    len: len.into(),
                });
                self.beside.notice = Some(Notice { by, kind, code, info, arrival, quote });
                None
            }
            // Room is known by the buffers that come back: asked for by `await_delivery`, and for
            // bytes that lie in no buffer.
            Says::Acked { conn, chunks, queued_bytes } => {
                let conn = self.ours(conn)?;
                self.on_acked(conn, queued_bytes);
                told(Event::Acked { conn, chunks, queued_bytes })
            }
            Says::Done | Says::Listening { .. } | Says::Bound { .. } | Says::Received { .. } => {
                None
            }
            Says::Urgent { conn, bytes } => told(Event::Urgent { conn: self.ours(conn)?, bytes }),
            Says::DatagramRefused { endpoint, to, why } => {
                let endpoint =
                    DatagramId { index: endpoint.index, generation: endpoint.generation };
                told(Event::DatagramRefused { endpoint, to, why: undelivered(why) })
            }
        }
    }

    fn on_connecting(&mut self, cookie: u64, server: ConnId) {
        let cookie = cookie.wrapping_sub(1);
        let conn = ConnId { index: cookie as u32, generation: (cookie >> 32) as u32 };
        if !self.is_known(conn) {
            return self.ask(0, Command::Abort { conn: id_of(server) });
        }
        self.conns[conn.index as usize].server = Some(server);
        self.map(server, conn);
    }

    fn on_refused(&mut self, cookie: u64, refusal: Refusal) -> Option<Told> {
        let cookie = cookie.checked_sub(1)?;
        let conn = ConnId { index: cookie as u32, generation: (cookie >> 32) as u32 };
        if !self.is_known(conn) {
            return None;
        }
        self.forget(conn);
        Some(Told::NotBegun(conn, connect_error(refusal)))
    }
}

/// Names.
impl Session {
    fn name(&mut self, server: Option<ConnId>) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(Conn::default());
            (self.conns.len() - 1) as u32
        });
        let conn = &mut self.conns[index as usize];
        let generation = conn.generation;
        let send_buffer_bytes = self.sends.buffer_bytes;
        *conn = Conn { generation, is_used: true, server, send_buffer_bytes, ..Conn::default() };
        let name = ConnId { index, generation };
        if let Some(server) = server {
            self.map(server, name);
        }
        name
    }

    fn map(&mut self, server: ConnId, conn: ConnId) {
        let index = server.index as usize;
        if self.by_server.len() <= index {
            self.by_server.resize(index + 1, None);
        }
        self.by_server[index] = Some(conn);
    }

    fn is_known(&self, conn: ConnId) -> bool {
        let there = self.conns.get(conn.index as usize);
        there.is_some_and(|it| it.is_used && it.generation == conn.generation)
    }

    /// The server's name of a connection.
    fn server_of(&self, conn: ConnId) -> Result<ConnId, OperationError> {
        if !self.is_known(conn) {
            return Err(OperationError::Unknown);
        }
        self.conns[conn.index as usize].server.ok_or(OperationError::NotConnected)
    }

    /// As [`Session::named`], of a connection that may have been asked for a moment ago: waits
    /// until the server has answered that.
    pub fn named_soon(&mut self, conn: ConnId) -> Option<ConnId> {
        if self.is_known(conn) && self.conns[conn.index as usize].server.is_none() {
            // The op's answer is there before this one.
            self.call(|_| ())?;
            while let Some(told) = self.next_told() {
                self.backlog.push_back((told, std::mem::take(&mut self.beside)));
            }
        }
        self.named(conn)
    }

    /// The server's name of a connection, for calls.
    #[must_use]
    pub fn named(&self, conn: ConnId) -> Option<ConnId> {
        self.server_of(conn).ok()
    }

    /// The session's name of a connection that the server speaks of; `None`: it was let go of.
    #[inline]
    fn ours(&self, server: Id) -> Option<ConnId> {
        let conn = (*self.by_server.get(server.index as usize)?)?;
        (self.conns[conn.index as usize].server == Some(conn_id(server))).then_some(conn)
    }

    /// A connection that a call has made is known under a name of the session's.
    pub fn adopt(&mut self, server: ConnId) -> ConnId {
        self.name(Some(server))
    }

    fn forget(&mut self, conn: ConnId) {
        let state = &mut self.conns[conn.index as usize];
        if let Some(server) = state.server.take() {
            self.by_server[server.index as usize] = None;
        }
        state.is_used = false;
        state.generation = state.generation.wrapping_add(1);
        self.free.push(conn.index);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.thread.is_none() {
            return;
        }
        self.flush();
        // Without anybody to ask, the server ends; the sender that stands here was the last.
        let (nobody, _) = mpsc::channel();
        drop(std::mem::replace(&mut self.ends.calls, nobody));
        self.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the server's was printed; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}
