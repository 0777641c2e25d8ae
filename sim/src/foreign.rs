//! A host with smoltcp, another implementation of TCP by other people: client and server of the
//! same streams as all other hosts.
//!
//! Invariant: smoltcp receives only the world's time, in microseconds.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use megapipe_stack::Instant;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::{Duration as Span, Instant as Moment};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use crate::check::Violation;
use crate::check::streams::{CheckedStream, HEADER_BYTES, Receiver};
use crate::host::{address, mac};
use crate::node::{NodeCounts, Send, SimNode};
use crate::pattern::Pattern;
use crate::program::PORT;
use crate::scenario::Scenario;

/// What one read takes at most.
const READ_BYTES: usize = 3_000;
/// What one write offers at most.
const WRITE_BYTES: usize = 5_000;
/// It asks to be polled at once as long as something waits for a window or a neighbour.
const POLL_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);
/// The first port of its connections.
const FIRST_PORT: u16 = 40_000;

/// Frames on their way into smoltcp and out of it.
struct FrameQueues {
    medium: Medium,
    mtu: usize,
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

struct ForeignInbound(Vec<u8>);

struct ForeignOutbound<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for ForeignInbound {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl TxToken for ForeignOutbound<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let answer = fill(&mut frame);
        self.0.push_back(frame);
        answer
    }
}

impl Device for FrameQueues {
    type RxToken<'a> = ForeignInbound;
    type TxToken<'a> = ForeignOutbound<'a>;

    fn receive(&mut self, _: Moment) -> Option<(ForeignInbound, ForeignOutbound<'_>)> {
        Some((ForeignInbound(self.incoming.pop_front()?), ForeignOutbound(&mut self.outgoing)))
    }

    fn transmit(&mut self, _: Moment) -> Option<ForeignOutbound<'_>> {
        Some(ForeignOutbound(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        // smoltcp counts Ethernet's header in.
        let header_bytes = if self.medium == Medium::Ethernet { 14 } else { 0 };
        capabilities.max_transmission_unit = self.mtu + header_bytes;
        capabilities
    }
}

/// One end of a connection, or a place for one that is to come.
struct ForeignEnd {
    handle: SocketHandle,
    /// A server's: what has come of the header.
    header: Option<Vec<u8>>,
    receiver: Option<Receiver>,
    pattern: Pattern,
    prelude: Vec<u8>,
    sent: u64,
    to_send: u64,
    is_shut: bool,
    has_ended: bool,
    /// There is, or was, a connection.
    is_used: bool,
    is_over: bool,
    read_at: Instant,
}

/// One host.
pub(crate) struct ForeignHost {
    queues: FrameQueues,
    interface: Interface,
    sockets: SocketSet<'static>,
    ends: Vec<ForeignEnd>,
    rng: fastrand::Rng,
    stall: u32,
    /// Connections of other hosts that may come.
    incoming_max: usize,
    now: Instant,
}

fn moment(now: Instant) -> Moment {
    Moment::from_micros(now.as_micros().cast_signed())
}

fn of_ip(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(address) => IpAddress::Ipv4(address),
        IpAddr::V6(address) => IpAddress::Ipv6(address),
    }
}

fn socket(rng: &mut fastrand::Rng) -> Socket<'static> {
    let buffer = |rng: &mut fastrand::Rng| SocketBuffer::new(vec![0; 1 << rng.u32(11..17)]);
    let mut socket = Socket::new(buffer(rng), buffer(rng));
    socket.set_nagle_enabled(rng.bool());
    socket.set_ack_delay(rng.bool().then(|| Span::from_micros(rng.u64(..100_000))));
    // Its value is no clock's and does not have to be: smoltcp reads none back.
    socket.set_tsval_generator(rng.bool().then_some(|| 1));
    socket
}

impl ForeignHost {
    /// A host that serves, and begins connections at once.
    ///
    /// # Panics
    /// Where smoltcp refuses the world's addresses.
    pub(crate) fn new(
        scenario: &Scenario,
        index: usize,
        to_begin: &[(CheckedStream, SocketAddr)],
        now: Instant,
    ) -> Self {
        let (medium, hardware) = if scenario.ethernet {
            let mac = EthernetAddress(mac(index));
            (Medium::Ethernet, HardwareAddress::Ethernet(mac))
        } else {
            (Medium::Ip, HardwareAddress::Ip)
        };
        let (incoming, outgoing) = (VecDeque::new(), VecDeque::new());
        let mut queues =
            FrameQueues { medium, mtu: scenario.mtu[index].into(), incoming, outgoing };
        let mut rng = fastrand::Rng::with_seed(scenario.seed ^ 0x736d_6f6c_7463_7000);
        let mut config = Config::new(hardware);
        config.random_seed = rng.u64(..);
        let mut interface = Interface::new(config, &mut queues, moment(now));
        interface.update_ip_addrs(|addresses| {
            let bits = if scenario.v6 { 64 } else { 24 };
            let here = IpCidr::new(of_ip(address(scenario, index)), bits);
            addresses.push(here).expect("room for one");
        });
        let mut host = Self {
            queues,
            interface,
            sockets: SocketSet::new(Vec::new()),
            ends: Vec::new(),
            rng,
            stall: scenario.stall,
            incoming_max: scenario.connections * (scenario.hosts - 1),
            now,
        };
        for (number, (stream, remote)) in to_begin.iter().enumerate() {
            host.connect(*stream, *remote, FIRST_PORT + number as u16);
        }
        host.keep_listening();
        host
    }

    /// Makes as many sockets listen as connections may come: smoltcp has no queue of handshakes. A
    /// late copy of a SYN takes one too, and leaves it in SYN-RECEIVED.
    fn keep_listening(&mut self) {
        let is_listening = |end: &&ForeignEnd| {
            self.sockets.get::<Socket<'static>>(end.handle).state() == State::Listen
        };
        let count = self.ends.iter().filter(is_listening).count();
        (count..self.incoming_max).for_each(|_| self.listen());
    }

    fn connect(&mut self, stream: CheckedStream, remote: SocketAddr, port: u16) {
        let mut socket = socket(&mut self.rng);
        let to = (of_ip(remote.ip()), remote.port());
        socket.connect(self.interface.context(), to, port).expect("an address");
        let (request, response) = stream.patterns();
        self.ends.push(ForeignEnd {
            receiver: Some(Receiver::new(stream.number, response, stream.response_bytes)),
            pattern: request,
            prelude: stream.header().to_vec(),
            to_send: stream.request_bytes,
            header: None,
            is_used: true,
            ..ForeignEnd::new(self.sockets.add(socket), self.now)
        });
    }

    fn listen(&mut self) {
        let mut socket = socket(&mut self.rng);
        socket.listen(PORT).expect("a port");
        self.ends.push(ForeignEnd::new(self.sockets.add(socket), self.now));
    }

    /// What the application does on one connection. `true`: something.
    fn act(&mut self, number: usize) -> Result<bool, Violation> {
        let Self { sockets, ends, rng, now, stall, .. } = self;
        let end = &mut ends[number];
        let socket = sockets.get_mut::<Socket<'static>>(end.handle);
        end.is_used |= socket.may_send();
        let mut has_acted = false;
        if end.is_used && !end.has_ended && end.read_at <= *now {
            has_acted |= end.read(socket)?;
            if has_acted && rng.u32(..1_000) < *stall {
                end.read_at = *now + std::time::Duration::from_micros(1 << rng.u32(8..23));
            }
        }
        if socket.may_send() && end.header.is_none() && !end.is_shut {
            has_acted |= end.write(socket, 1 + rng.usize(..WRITE_BYTES));
        }
        let is_closed = matches!(socket.state(), State::Closed | State::TimeWait);
        let is_over = end.is_shut && end.has_ended && is_closed;
        has_acted |= is_over != end.is_over;
        end.is_over = is_over;
        Ok(has_acted)
    }

    fn poll(&mut self) -> bool {
        let polled = self.interface.poll(moment(self.now), &mut self.queues, &mut self.sockets);
        polled == PollResult::SocketStateChanged
    }

    fn poll_at(&mut self) -> Option<Instant> {
        let at = self.interface.poll_at(moment(self.now), &self.sockets)?;
        let at = Instant::from_micros(at.total_micros().max(0).cast_unsigned());
        Some(at.max(self.now + POLL_PAUSE))
    }
}

impl ForeignEnd {
    const fn new(handle: SocketHandle, now: Instant) -> Self {
        Self {
            handle,
            header: Some(Vec::new()),
            receiver: None,
            pattern: Pattern::new(0),
            prelude: Vec::new(),
            sent: 0,
            to_send: 0,
            is_shut: false,
            has_ended: false,
            is_used: false,
            is_over: false,
            read_at: now,
        }
    }

    /// Whether something came.
    fn read(&mut self, socket: &mut Socket<'static>) -> Result<bool, Violation> {
        let mut bytes = [0; READ_BYTES];
        let len = match socket.recv_slice(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(len) => len,
            Err(RecvError::Finished) => {
                self.has_ended = true;
                return self.receiver.as_mut().map_or(Ok(()), Receiver::on_end).map(|()| true);
            }
            // Not connected yet; or reset, which the other end reports.
            Err(RecvError::InvalidState) => return Ok(false),
        };
        let mut rest = &bytes[..len];
        if let Some(header) = &mut self.header {
            let (front, behind) = rest.split_at(len.min(HEADER_BYTES - header.len()));
            header.extend(front);
            rest = behind;
            if let Ok(whole) = <&[u8; HEADER_BYTES]>::try_from(&header[..]) {
                let stream = CheckedStream::of_header(whole);
                let (request, response) = stream.patterns();
                self.receiver = Some(Receiver::new(stream.number, request, stream.request_bytes));
                (self.pattern, self.to_send) = (response, stream.response_bytes);
                self.header = None;
            }
        }
        match &mut self.receiver {
            Some(receiver) => receiver.on_bytes(rest).map(|()| true),
            None => Ok(true),
        }
    }

    /// Whether something was written, or the direction closed.
    fn write(&mut self, socket: &mut Socket<'static>, most: usize) -> bool {
        let left = usize::try_from(self.to_send - self.sent).unwrap_or(usize::MAX);
        let is_prelude = !self.prelude.is_empty();
        let bytes = if is_prelude {
            self.prelude.clone()
        } else {
            self.pattern.bytes(self.sent, left.min(most))
        };
        if bytes.is_empty() {
            socket.close();
            self.is_shut = true;
            return true;
        }
        let taken = socket.send_slice(&bytes).expect("it may send");
        if is_prelude {
            self.prelude.drain(..taken);
        } else {
            self.sent += taken as u64;
        }
        taken > 0
    }
}

impl SimNode for ForeignHost {
    fn start(&mut self, _: Instant) -> Result<(), Violation> {
        Ok(())
    }

    fn on_frame(&mut self, _: Instant, frame: &[u8]) {
        self.queues.incoming.push_back(frame.to_vec());
    }

    fn run(&mut self, now: Instant, send: &mut Send<'_>) -> Result<(), Violation> {
        self.now = now;
        loop {
            let mut has_acted = self.poll();
            self.keep_listening();
            for number in 0..self.ends.len() {
                has_acted |= self.act(number)?;
            }
            while let Some(frame) = self.queues.outgoing.pop_front() {
                send(&frame)?;
            }
            if !has_acted {
                return Ok(());
            }
        }
    }

    fn next_wake(&mut self) -> Option<Instant> {
        let now = self.now;
        let waits = |end: &&ForeignEnd| end.is_used && !end.has_ended && end.read_at > now;
        let paused = self.ends.iter().filter(waits).map(|end| end.read_at).min();
        paused.into_iter().chain(self.poll_at()).min()
    }

    fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_over || !end.is_used)
    }

    fn open(&self) -> usize {
        self.ends.iter().filter(|end| end.is_used && !end.is_over).count()
    }

    fn check_nothing_leaked(&self, _: usize) -> Result<(), Violation> {
        // What it keeps is its own affair.
        Ok(())
    }

    fn counts(&self) -> NodeCounts {
        let connections = self.ends.iter().filter(|end| end.is_over).count() as u64;
        NodeCounts { connections, ..NodeCounts::default() }
    }

    fn has_given_up(&mut self) -> bool {
        // A sender has to probe a window that it takes for closed (RFC 9293 §3.8.6.1: MUST-36).
        // smoltcp 0.14 stops for good now and then, where windows are tiny and segments come out
        // of order.
        let owes =
            |end: &ForeignEnd| self.sockets.get::<Socket<'static>>(end.handle).send_queue() > 0;
        self.ends.iter().any(|end| end.is_used && !end.is_over && owes(end))
            && self.interface.poll_at(moment(self.now), &self.sockets).is_none()
    }
}
