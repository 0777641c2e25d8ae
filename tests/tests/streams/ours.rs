//! Our end: the stack, memory on the heap, and an application that sends and checks patterns.
//!
//! Invariants
//! - The stack is driven as a link server drives it: frames in bursts, events, frames out.
//! - The port identifies an exchange, so that the ends need no further protocol.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use megapipe_link::{Fault, Link, Pair};
use megapipe_stack::{
    CloseReason, Config, ConnId, Event, HeapMemory, Instant, ListenerId, Medium, Memory,
    OperationError, PoolId, Received, Stack, TcpConfig,
};
use megapipe_tests::transfer::Pattern;

use crate::scenario::{Order, Scenario};
use crate::world::{Failure, OUR_MAC, Side, address, port};

/// Buffers of the application: more than the send queues of all connections take.
const BUFFERS: u32 = 16_384;
/// Frames that go at once.
const BURST: usize = 32;
/// How often a connection is begun anew when the neighbour could not be found: on a link that
/// loses frames three questions may be lost.
const ATTEMPTS: u32 = 20;

/// One connection, or one that is to come.
struct End {
    conn: Option<ConnId>,
    is_connected: bool,
    outward: Pattern,
    inward: Pattern,
    /// We send once the peer has ended.
    waits: bool,
    has_peer_ended: bool,
    is_shut: bool,
    is_over: bool,
    attempts: u32,
    read_again_at: Option<Instant>,
}

/// Our end.
pub(crate) struct Ours {
    stack: Stack,
    memory: HeapMemory,
    link: Fault<Pair>,
    ends: Vec<End>,
    listeners: Vec<ListenerId>,
    peer: IpAddr,
    read_pause: Duration,
    wants_again: Vec<usize>,
}

fn config(scenario: &Scenario) -> Config {
    let ours = &scenario.ours;
    let mut secret = [7; 32];
    secret[..8].copy_from_slice(&scenario.seed.to_le_bytes());
    Config {
        medium: if scenario.is_ethernet { Medium::Ethernet(OUR_MAC) } else { Medium::Ip },
        mtu: scenario.mtu,
        tx_frame_bytes: u32::from(scenario.mtu) + 14,
        addresses: vec![(
            address(scenario.is_ipv6, Side::Ours),
            if scenario.is_ipv6 { 64 } else { 24 },
        )],
        tcp: TcpConfig {
            receive_buffer: ours.receive_buffer,
            receive_buffer_max: ours.receive_buffer,
            send_buffer: ours.send_buffer,
            send_buffer_max: ours.send_buffer,
            window_scaling: ours.window_scaling,
            timestamps: ours.timestamps,
            nagle: ours.nagle,
            congestion: ours.congestion,
            ..TcpConfig::default()
        },
        ..Config::single([0; 4].into(), 24, secret)
    }
}

impl Ours {
    pub(crate) fn new(
        scenario: &Scenario,
        link: Fault<Pair>,
        now: Instant,
    ) -> Result<Self, Failure> {
        let ends = scenario.exchanges.iter().map(|exchange| {
            let (outward, inward) = exchange.patterns();
            End {
                conn: None,
                is_connected: false,
                outward,
                inward,
                waits: exchange.order == Order::OursLast,
                has_peer_ended: false,
                is_shut: false,
                is_over: false,
                attempts: 0,
                read_again_at: None,
            }
        });
        let mut ours = Self {
            stack: Stack::new(config(scenario), now).expect("settings within their ranges"),
            memory: HeapMemory::new(BUFFERS, scenario.ours.buf_bytes),
            link,
            ends: ends.collect(),
            listeners: Vec::new(),
            peer: address(scenario.is_ipv6, Side::Theirs),
            read_pause: scenario.ours.read_pause,
            wants_again: Vec::new(),
        };
        for number in 0..ours.ends.len() {
            if scenario.we_connect {
                ours.connect(now, number)?;
            } else {
                let local = SocketAddr::new(address(scenario.is_ipv6, Side::Ours), port(number));
                let listener = ours.stack.listen(local, 4, PoolId::default()).expect("a free port");
                ours.stack.accept(listener, 1).expect("a listener");
                ours.listeners.push(listener);
            }
        }
        Ok(ours)
    }

    fn connect(&mut self, now: Instant, number: usize) -> Result<(), Failure> {
        let end = &mut self.ends[number];
        end.attempts += 1;
        if end.attempts > ATTEMPTS {
            return Err(Failure::NeverConnected { number });
        }
        let remote = SocketAddr::new(self.peer, port(number));
        let memory = (PoolId::default(), &mut self.memory);
        let conn = self.stack.connect(now, remote, None, memory);
        end.conn = Some(conn.map_err(|error| Failure::NotBegun { number, error })?);
        Ok(())
    }

    /// Frames in, what they mean, frames out. `true`: something moved.
    pub(crate) fn turn(&mut self, now: Instant) -> Result<bool, Failure> {
        if self.stack.poll_timeout().is_some_and(|at| at <= now) {
            self.stack.on_timeout(now, &mut self.memory);
        }
        let Self { stack, memory, link, .. } = self;
        let received = link.rx_burst(BURST, &mut |frame, _| {
            stack.on_frame(now, frame, Received::default(), memory);
        });
        let received = received.expect("the pair's other end lives");
        let is_eventful = self.act(now)?;
        let Self { stack, memory, link, .. } = self;
        let sent = link.tx_burst(BURST, &mut |room| {
            let len = stack.poll_transmit(now, room, memory)?.frame_bytes();
            Some(megapipe_link::TxMetadata { len, ..megapipe_link::TxMetadata::default() })
        });
        let sent = sent.expect("the pair's other end lives");
        Ok(received + sent > 0 || is_eventful)
    }

    /// Acts on what happened, and on pauses that are over.
    fn act(&mut self, now: Instant) -> Result<bool, Failure> {
        let mut is_eventful = false;
        while let Some(event) = self.stack.poll_event() {
            is_eventful = true;
            self.on_event(now, event)?;
        }
        for number in std::mem::take(&mut self.wants_again) {
            self.connect(now, number)?;
        }
        for end in &mut self.ends {
            if let Some(conn) = end.conn
                && end.read_again_at.is_some_and(|at| at <= now)
            {
                end.read_again_at = None;
                is_eventful = true;
                self.stack.receive(now, conn).expect("a connection");
            }
        }
        Ok(is_eventful)
    }

    fn number_of(&self, conn: ConnId) -> Option<usize> {
        self.ends.iter().position(|end| end.conn == Some(conn))
    }

    fn on_event(&mut self, now: Instant, event: Event) -> Result<(), Failure> {
        match event {
            Event::Incoming { listener, conn, .. } => {
                let number = self.listeners.iter().position(|it| *it == listener);
                let number = number.expect("a listener of ours");
                self.ends[number].conn = Some(conn);
                self.on_connected(now, conn, number);
            }
            Event::Connected { conn } => {
                if let Some(number) = self.number_of(conn) {
                    self.on_connected(now, conn, number);
                }
            }
            Event::Received { conn, chunk } => {
                let bytes = self.memory.bytes(chunk).to_vec();
                self.memory.free(chunk.buf);
                let number = self.number_of(conn).ok_or(Failure::Unknown)?;
                let end = &mut self.ends[number];
                if end.has_peer_ended || !end.inward.matches(&bytes) {
                    return Err(Failure::WrongBytes { number, side: Side::Ours });
                }
                end.read_again_at = Some(now + self.read_pause);
            }
            Event::Acked { conn, .. } => {
                let number = self.number_of(conn).ok_or(Failure::Unknown)?;
                self.pump(now, number);
            }
            Event::PeerClosed { conn } => {
                let number = self.number_of(conn).ok_or(Failure::Unknown)?;
                self.ends[number].has_peer_ended = true;
                if self.ends[number].inward.left() > 0 {
                    return Err(Failure::EndedEarly { number, side: Side::Ours });
                }
                self.pump(now, number);
            }
            Event::Closed { conn, reason } | Event::Broken { conn, reason, .. } => {
                self.on_closed(conn, reason)?;
            }
            Event::Urgent { .. }
            | Event::UnsentBelow { .. }
            | Event::Datagram { .. }
            | Event::DatagramRefused { .. } => {
                return Err(Failure::Unknown);
            }
        }
        Ok(())
    }

    fn on_connected(&mut self, now: Instant, conn: ConnId, number: usize) {
        self.ends[number].is_connected = true;
        self.stack.receive(now, conn).expect("a connection");
        self.pump(now, number);
    }

    fn on_closed(&mut self, conn: ConnId, reason: CloseReason) -> Result<(), Failure> {
        let number = self.number_of(conn).ok_or(Failure::Unknown)?;
        let end = &mut self.ends[number];
        let is_whole = end.is_shut && end.has_peer_ended;
        end.conn = None;
        end.read_again_at = None;
        match reason {
            CloseReason::Finished if is_whole => end.is_over = true,
            CloseReason::HostUnreachable if !end.is_connected => self.wants_again.push(number),
            reason => return Err(Failure::ClosedBecause { number, reason }),
        }
        Ok(())
    }

    /// Queues as much as the stack takes; after the last byte the direction is closed.
    fn pump(&mut self, now: Instant, number: usize) {
        let end = &mut self.ends[number];
        let Some(conn) = end.conn else { return };
        if end.is_shut || (end.waits && !end.has_peer_ended) {
            return;
        }
        let buf_bytes = self.memory.buf_bytes(megapipe_stack::BufId(0)) as usize;
        while end.outward.left() > 0 {
            let mut after = end.outward;
            let chunk = self.memory.chunk_of(&after.take(buf_bytes)).expect("buffers for all");
            match self.stack.send(now, conn, chunk, &mut self.memory) {
                Ok(()) => end.outward = after,
                Err(error) => {
                    assert_eq!(error, OperationError::QueueFull, "connection {number}");
                    self.memory.free(chunk.buf);
                    self.stack.await_acks(conn).expect("a connection");
                    return;
                }
            }
        }
        end.is_shut = true;
        self.stack.shutdown(now, conn, &mut self.memory).expect("not closed before");
    }

    /// When it has something to do again.
    pub(crate) fn next(&self) -> Option<Instant> {
        let held = self.link.next_due().map(|due| Instant::ZERO + due);
        let paused = self.ends.iter().filter_map(|end| end.read_again_at);
        paused.chain(held).chain(self.stack.poll_timeout()).min()
    }

    /// Every exchange has ended as it should.
    pub(crate) fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_over)
    }

    /// Only the peer can continue: each connection has sent what it sends before the peer's end of
    /// stream, all of that is acknowledged, the window is open and nothing is unread.
    pub(crate) fn is_peers_turn(&self) -> bool {
        self.ends.iter().filter(|end| !end.is_over).all(|end| {
            let info = end.conn.and_then(|conn| self.stack.info(conn).ok());
            let has_sent = end.is_shut || (end.waits && !end.has_peer_ended);
            has_sent
                && info.is_some_and(|info| {
                    let sent = info.flight_bytes + info.queued_bytes == 0;
                    sent && info.unread_bytes == 0 && info.rcv_wnd > 0
                })
        })
    }

    /// How the connections stand that are not over.
    pub(crate) fn state(&self) -> String {
        let open = self.ends.iter().enumerate().filter(|(_, end)| !end.is_over);
        let of = |(number, end): (usize, &End)| {
            let info = end.conn.and_then(|conn| self.stack.info(conn).ok());
            let (out, inward) = (end.outward.left(), end.inward.left());
            format!("ours {number}: {out} to queue, {inward} to come, {info:?}")
        };
        open.map(of).collect::<Vec<_>>().join("; ")
    }

    /// Frames that met a fault.
    pub(crate) fn harmed(&self) -> u64 {
        let (inward, outward) = self.link.fault_counters();
        let of = |it: megapipe_link::fault::FaultCounters| {
            it.lost + it.duplicated + it.reordered + it.corrupted
        };
        of(inward) + of(outward)
    }

    /// Everything was given back.
    pub(crate) fn check_nothing_held(&self) -> Result<(), Failure> {
        let held = self.memory.in_use();
        if held > 0 { Err(Failure::Leaked { buffers: held }) } else { Ok(()) }
    }
}
