//! The application of a host: serves, connects, checks every byte, and misbehaves as told.
//!
//! A client sends a header and its pattern, a server answers with its own pattern; each closes its
//! direction when it has sent everything. Both may stall before they read on, and reset a
//! connection at any moment. In some worlds servers close before they have read anything, and some
//! connections have no server: both ends open them, at the same moment (RFC 9293 §3.5).
//!
//! Invariant: an end that the stack has closed, or that was reset here, is forgotten at once.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{
    Chunk, CloseReason, ConnId, ConnectError, Event, Instant, ListenerId, Memory, OperationError,
    PoolId,
};

use crate::check::Violation;
use crate::check::streams::{CheckedStream, HEADER_BYTES, Receiver};
use crate::hands::{BUFFERS, Hands};
use crate::pattern::Pattern;
use crate::ports::ConnectionPorts;
use crate::scenario::{HostPrograms, Scenario, ScenarioKind};

/// Where servers listen.
pub(crate) const PORT: u16 = 7;

/// The first port of connections that both ends open.
const CROSSING_PORT: u16 = 20_000;

/// How long smoltcp stays in TIME-WAIT.
const FOREIGN_TIME_WAIT: Duration = Duration::from_secs(10);

/// How long an application that has no buffer waits before it tries again.
const RETRY: Duration = Duration::from_millis(1);

/// One end of a connection.
struct ProgramEnd {
    conn: ConnId,
    /// Address of the peer, if this end connects.
    peer: Option<IpAddr>,
    /// A server's: what has come of the header.
    header: Option<Vec<u8>>,
    stream: Option<CheckedStream>,
    receiver: Option<Receiver>,
    /// What it sends after `prelude`.
    pattern: Pattern,
    prelude: Vec<u8>,
    sent: u64,
    to_send: u64,
    /// Time of its FIN's submission.
    shut_at: Option<Instant>,
    /// The handshake is over.
    is_open: bool,
    /// It reads on, or sends on, no earlier.
    stalled_until: Option<Instant>,
}

/// The application of one host.
pub(crate) struct HostProgram {
    scenario: Scenario,
    rng: fastrand::Rng,
    listener: Option<ListenerId>,
    ends: BTreeMap<u32, ProgramEnd>,
    /// Connections still to begin, and where to.
    to_begin: Vec<(CheckedStream, SocketAddr)>,
    /// When the next of them are begun.
    begin_at: Option<Instant>,
    pub(crate) ports: ConnectionPorts,
    /// Connections that came to their end.
    pub(crate) finished: u64,
    /// Connections among these that broke.
    pub(crate) broken: u64,
    /// Connections that were reset here.
    pub(crate) aborted: u64,
    /// Peers whose link-layer address was not found, since the world looked.
    pub(crate) unresolved: Vec<IpAddr>,
}

impl HostProgram {
    pub(crate) fn new(
        scenario: &Scenario,
        host: usize,
        life: u64,
        to_begin: Vec<(CheckedStream, SocketAddr)>,
    ) -> Self {
        let seed = scenario.seed ^ (host as u64 + 1).wrapping_mul(0x1234_5678_9abc_def1) ^ life;
        Self {
            scenario: scenario.clone(),
            rng: fastrand::Rng::with_seed(seed),
            listener: None,
            ends: BTreeMap::new(),
            to_begin,
            begin_at: None,
            ports: ConnectionPorts::new(scenario, host),
            finished: 0,
            broken: 0,
            aborted: 0,
            unresolved: Vec::new(),
        }
    }

    /// Nothing is open and nothing is left to begin.
    pub(crate) fn is_done(&self) -> bool {
        self.ends.is_empty() && self.to_begin.is_empty()
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.ends.len()
    }

    /// Bytes received on all open connections, by stream.
    pub(crate) fn received(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.values().filter_map(|end| Some((end.stream?.number, end.receiver?.received)))
    }

    /// The host comes up.
    pub(crate) fn start(&mut self, hands: &mut Hands<'_>, local: SocketAddr) {
        let listener = hands.stack.listen(local, 4_096, PoolId::default());
        self.listener = listener.ok();
        if let Some(listener) = self.listener {
            let _ = hands.stack.accept(listener, 16);
        }
    }

    /// Begins the connections that are due, all at once or one by one.
    pub(crate) fn begin(&mut self, hands: &mut Hands<'_>, host: usize) -> Result<(), Violation> {
        if self.begin_at.is_some_and(|at| hands.now < at) {
            return Ok(());
        }
        let at_once = match self.scenario.kind {
            ScenarioKind::Short => 1 + self.rng.usize(..8),
            _ => self.to_begin.len(),
        };
        for _ in 0..at_once {
            let Some((stream, remote)) = self.to_begin.pop() else { break };
            let begun = hands.stack.connect_where(
                hands.now,
                remote,
                None,
                (PoolId::default(), hands.memory),
                &|local| (hands.arrives)(local, remote),
            );
            let conn = match begun {
                Ok(conn) => conn,
                Err(ConnectError::NoPort) if self.ports.may_be_taken(hands, remote) => {
                    self.to_begin.push((stream, remote));
                    break;
                }
                Err(error) => return Err(Violation::NotBegun { host, why: error.to_string() }),
            };
            self.ports.begin(conn.index, remote);
            let (request, response) = stream.patterns();
            let end = ProgramEnd {
                peer: Some(remote.ip()),
                stream: Some(stream),
                receiver: Some(Receiver::new(stream.number, response, stream.response_bytes)),
                pattern: request,
                prelude: stream.header().to_vec(),
                to_send: stream.request_bytes,
                ..ProgramEnd::new(conn)
            };
            self.ends.insert(conn.index, end);
        }
        let pause = Duration::from_micros(1 << self.rng.u32(4..17));
        self.begin_at = (!self.to_begin.is_empty()).then(|| hands.now + pause);
        Ok(())
    }

    /// Opens the connections that `peer`, the other host's address, opens at this very moment, too.
    /// `first`: which of the two this is.
    pub(crate) fn cross(
        &mut self,
        hands: &mut Hands<'_>,
        (here, peer): (IpAddr, IpAddr),
        first: bool,
    ) -> Result<(), Violation> {
        let mut rng = fastrand::Rng::with_seed(self.scenario.seed ^ 0x6372_6f73_7300);
        for number in 0..self.scenario.crossing {
            let mut bytes = || rng.u64(..=self.scenario.bytes_max);
            let (mut sent, mut expected) = (bytes(), bytes());
            let stream = CheckedStream {
                number: rng.u64(..),
                request_bytes: sent,
                response_bytes: expected,
            };
            let (mut ours, mut theirs) = stream.patterns();
            if !first {
                (sent, expected) = (expected, sent);
                (ours, theirs) = (theirs, ours);
            }
            let at = |ip| SocketAddr::new(ip, CROSSING_PORT + number);
            if !(hands.arrives)(at(here), at(peer)) {
                continue;
            }
            let memory = (PoolId::default(), &mut *hands.memory);
            let conn = hands.stack.connect(hands.now, at(peer), Some(at(here)), memory);
            let host = usize::from(!first);
            let conn =
                conn.map_err(|error| Violation::NotBegun { host, why: error.to_string() })?;
            let receiver = Some(Receiver::new(stream.number, theirs, expected));
            let end = ProgramEnd {
                peer: Some(peer),
                stream: Some(stream),
                receiver,
                pattern: ours,
                to_send: sent,
                ..ProgramEnd::new(conn)
            };
            self.ends.insert(conn.index, end);
        }
        Ok(())
    }

    /// When something that was put off is to be done.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.ends.values().filter_map(|end| end.stalled_until).chain(self.begin_at).min()
    }

    /// The time of what was put off has come.
    pub(crate) fn on_wake(&mut self, hands: &mut Hands<'_>) {
        let due: Vec<u32> = self
            .ends
            .iter()
            .filter(|(_, end)| end.stalled_until.is_some_and(|at| at <= hands.now))
            .map(|(index, _)| *index)
            .collect();
        for index in due {
            let Some(end) = self.ends.get_mut(&index) else { continue };
            end.stalled_until = None;
            let _ = hands.stack.receive(hands.now, end.conn);
            pump(end, hands, &mut self.rng);
        }
    }

    /// Something happened.
    pub(crate) fn on_event(
        &mut self,
        hands: &mut Hands<'_>,
        event: Event,
    ) -> Result<(), Violation> {
        match event {
            Event::Incoming { conn, listener, .. } => {
                let _ = hands.stack.accept(listener, 1);
                self.accept(hands, conn);
            }
            Event::Connected { conn } => {
                if let Some(end) = self.ends.get_mut(&conn.index) {
                    end.is_open = true;
                }
                let _ = hands.stack.receive(hands.now, conn);
                self.go_on(hands, conn);
            }
            Event::Received { conn, chunk } => self.on_received(hands, conn, chunk)?,
            Event::Acked { conn, .. } => self.go_on(hands, conn),
            Event::PeerClosed { conn } => {
                if let Some(end) = self.ends.get_mut(&conn.index)
                    && let Some(receiver) = &mut end.receiver
                {
                    let is_rough = end.stream.is_some_and(CheckedStream::is_rough);
                    if !(is_rough && self.scenario.kind == ScenarioKind::Sockets) {
                        receiver.on_end()?;
                    }
                }
            }
            Event::Closed { conn, reason } => {
                self.ports.end(conn.index, hands.now);
                if let Some(end) = self.ends.remove(&conn.index)
                    && let Some(receiver) = end.receiver
                {
                    // A handshake fails while its peer's address is not resolved (RFC 1122
                    // §2.3.2.2, §4.2.3.9). The world checks that the network is the cause.
                    let is_unresolved = reason == CloseReason::HostUnreachable && !end.is_open;
                    if is_unresolved {
                        self.unresolved.extend(end.peer);
                    }
                    let may_fail = self.scenario.may_fail(reason)
                        || is_unresolved && end.peer.is_some()
                        || self.scenario.kind == ScenarioKind::Sockets
                            && end.stream.is_some_and(CheckedStream::is_rough)
                        || reason == CloseReason::ResetByPeer
                            && is_forgotten(&self.scenario, &end, receiver, hands.now);
                    receiver.on_closed(reason, may_fail)?;
                    self.finished += 1;
                    self.broken += u64::from(reason != CloseReason::Finished && !is_unresolved);
                }
            }
            // What is left is asked for when the program goes on to read.
            Event::Broken { .. }
            | Event::Urgent { .. }
            | Event::UnsentBelow { .. }
            | Event::Datagram { .. }
            | Event::DatagramRefused { .. } => {}
        }
        Ok(())
    }

    fn accept(&mut self, hands: &mut Hands<'_>, conn: ConnId) {
        let shut_at = self.scenario.silent_servers.then_some(hands.now);
        let header = Some(Vec::with_capacity(HEADER_BYTES));
        self.ends.insert(
            conn.index,
            ProgramEnd { header, shut_at, is_open: true, ..ProgramEnd::new(conn) },
        );
        let _ = hands.stack.receive(hands.now, conn);
        if shut_at.is_some() {
            let _ = hands.stack.shutdown(hands.now, conn, hands.memory);
        }
    }

    fn on_received(
        &mut self,
        hands: &mut Hands<'_>,
        conn: ConnId,
        chunk: Chunk,
    ) -> Result<(), Violation> {
        let bytes = hands.memory.bytes(chunk).to_vec();
        hands.memory.free(chunk.buf);
        let Some(end) = self.ends.get_mut(&conn.index) else { return Ok(()) };
        let rest = end.read_header(&bytes);
        if let Some(receiver) = &mut end.receiver {
            receiver.on_bytes(rest)?;
        }
        if self.rng.u32(..1_000) < self.scenario.abort {
            self.ends.remove(&conn.index);
            self.ports.end(conn.index, hands.now);
            self.aborted += 1;
            let _ = hands.stack.abort(hands.now, conn, hands.memory);
            return Ok(());
        }
        if self.rng.u32(..1_000) < self.scenario.stall {
            let stall = Duration::from_micros(1 << self.rng.u32(8..23));
            end.stalled_until = Some(hands.now + stall);
        } else {
            let _ = hands.stack.receive(hands.now, conn);
        }
        pump(end, hands, &mut self.rng);
        Ok(())
    }

    fn go_on(&mut self, hands: &mut Hands<'_>, conn: ConnId) {
        if let Some(end) = self.ends.get_mut(&conn.index) {
            pump(end, hands, &mut self.rng);
        }
    }
}

/// Whether the peer may have forgotten the connection, while its last acknowledgment was lost: an
/// end that waits for nothing else is reset then. Either a new connection of the peer uses the same
/// port, or the peer's TIME-WAIT is over.
fn is_forgotten(scenario: &Scenario, end: &ProgramEnd, receiver: Receiver, now: Instant) -> bool {
    let (Some(shut_at), true) = (end.shut_at, receiver.ended) else { return false };
    let is_foreign = scenario.programs.contains(&HostPrograms::Foreign);
    let msl = scenario.tcp.iter().map(|tcp| tcp.msl).min().unwrap_or_default();
    let time_wait = if is_foreign { FOREIGN_TIME_WAIT } else { msl * 2 };
    // The peer's clock may be the faster one.
    scenario.client_ports.is_some() || now.since(shut_at) >= time_wait * 2 / 3
}

impl ProgramEnd {
    /// An end that has nothing to send yet.
    const fn new(conn: ConnId) -> Self {
        Self {
            conn,
            peer: None,
            header: None,
            stream: None,
            receiver: None,
            pattern: Pattern::new(0),
            prelude: Vec::new(),
            sent: 0,
            to_send: u64::MAX,
            shut_at: None,
            is_open: false,
            stalled_until: None,
        }
    }

    /// Takes the header from the front of what a server receives; the rest.
    fn read_header<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(header) = &mut self.header else { return bytes };
        let (front, rest) = bytes.split_at(bytes.len().min(HEADER_BYTES - header.len()));
        header.extend(front);
        let Ok(whole) = <&[u8; HEADER_BYTES]>::try_from(&header[..]) else { return rest };
        let stream = CheckedStream::of_header(whole);
        let (request, response) = stream.patterns();
        self.stream = Some(stream);
        self.receiver = Some(Receiver::new(stream.number, request, stream.request_bytes));
        self.pattern = response;
        self.to_send = stream.response_bytes;
        self.header = None;
        rest
    }
}

/// Sends as much as the stack takes, and closes the direction after the last byte.
fn pump(end: &mut ProgramEnd, hands: &mut Hands<'_>, rng: &mut fastrand::Rng) {
    if end.header.is_some() || end.shut_at.is_some() {
        return;
    }
    let buf_bytes = hands.memory.buf_bytes(megapipe_stack::BufId(0)) as usize;
    loop {
        let bytes = if end.prelude.is_empty() {
            let left = usize::try_from(end.to_send - end.sent).unwrap_or(usize::MAX);
            let len = left.min(1 + rng.usize(..buf_bytes));
            end.pattern.bytes(end.sent, len)
        } else {
            end.prelude.clone()
        };
        if bytes.is_empty() {
            end.shut_at = Some(hands.now);
            let _ = hands.stack.shutdown(hands.now, end.conn, hands.memory);
            return;
        }
        // A program that fills all buffers with what it sends has none left to receive. If all
        // programs do so, all stall.
        let may_fill = hands.memory.in_use() < BUFFERS as usize / 2;
        let chunk = may_fill.then(|| hands.memory.chunk_of(&bytes)).flatten();
        let Some(chunk) = chunk else {
            end.stalled_until = Some(hands.now + RETRY);
            return;
        };
        match hands.stack.send(hands.now, end.conn, chunk, hands.memory) {
            Ok(()) if end.prelude.is_empty() => end.sent += bytes.len() as u64,
            Ok(()) => end.prelude.clear(),
            Err(error) => {
                hands.memory.free(chunk.buf);
                if error == OperationError::QueueFull {
                    let _ = hands.stack.await_acks(end.conn);
                }
                return;
            }
        }
    }
}
