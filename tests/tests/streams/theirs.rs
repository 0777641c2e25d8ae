//! smoltcp's end: its interface on the other end of the pair, a socket for each exchange.

use std::net::IpAddr;

use megapipe_link::{Link, Pair, TxMetadata};
use megapipe_stack::Instant;
use megapipe_tests::transfer::Pattern;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant as Moment};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use crate::scenario::{BUFFER_BYTES_MAX, Order, PAUSE_MS_MAX, Scenario};
use crate::world::{Failure, Side, THEIR_MAC, address, port};

/// An end of the pair, as smoltcp sees a device.
struct Phy {
    link: Pair,
    medium: Medium,
    mtu: usize,
    /// Frames in either direction.
    moved: u64,
}

/// Bytes that are read at once. smoltcp forgets what was not read ten seconds after both sides have
/// closed (its TIME-WAIT), so even the slowest reader has to be through its buffer by then.
const READ_BYTES: usize = 16 << 10;
const _: () = assert!((BUFFER_BYTES_MAX / READ_BYTES) as u64 * PAUSE_MS_MAX < 10_000);
/// How long smoltcp waits for its next turn where it wants one at once and had one just now.
const POLL_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

struct Frame(Vec<u8>);

struct Slot<'a>(&'a mut Phy);

impl RxToken for Frame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Slot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let answer = f(&mut frame);
        let mut is_filled = false;
        // A full queue loses it, as a device would.
        let sent = self.0.link.tx_burst(1, &mut |room| {
            if std::mem::replace(&mut is_filled, true) {
                return None;
            }
            room[..len].copy_from_slice(&frame);
            Some(TxMetadata { len, ..TxMetadata::default() })
        });
        self.0.moved += sent.expect("our end lives") as u64;
        answer
    }
}

impl Device for Phy {
    type RxToken<'a> = Frame;
    type TxToken<'a> = Slot<'a>;

    fn receive(&mut self, _: Moment) -> Option<(Frame, Slot<'_>)> {
        let mut taken = None;
        let count = self.link.rx_burst(1, &mut |frame, _| taken = Some(frame.to_vec()));
        self.moved += count.expect("our end lives") as u64;
        Some((Frame(taken?), Slot(self)))
    }

    fn transmit(&mut self, _: Moment) -> Option<Slot<'_>> {
        Some(Slot(self))
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

struct End {
    handle: SocketHandle,
    outward: Pattern,
    inward: Pattern,
    waits: bool,
    has_peer_ended: bool,
    is_shut: bool,
    is_over: bool,
    read_again_at: Instant,
}

/// smoltcp's end.
pub(crate) struct Theirs {
    phy: Phy,
    interface: Interface,
    sockets: SocketSet<'static>,
    ends: Vec<End>,
    read_pause: std::time::Duration,
}

fn moment(now: Instant) -> Moment {
    Moment::from_micros(now.as_micros().cast_signed())
}

fn socket(scenario: &Scenario) -> Socket<'static> {
    let theirs = &scenario.theirs;
    let buffer = |bytes| SocketBuffer::new(vec![0; bytes]);
    let mut socket = Socket::new(buffer(theirs.receive_buffer), buffer(theirs.send_buffer));
    socket.set_nagle_enabled(theirs.nagle);
    let delay = theirs.ack_delay.map(|delay| Duration::from_micros(delay.as_micros() as u64));
    socket.set_ack_delay(delay);
    // Its value is no clock's and does not have to be: smoltcp reads none back.
    socket.set_tsval_generator(theirs.timestamps.then_some(|| 1));
    socket
}

fn of_ip(address: IpAddr) -> IpAddress {
    match address {
        IpAddr::V4(address) => IpAddress::Ipv4(address),
        IpAddr::V6(address) => IpAddress::Ipv6(address),
    }
}

impl Theirs {
    pub(crate) fn new(scenario: &Scenario, link: Pair, now: Instant) -> Self {
        let (medium, hardware) = if scenario.is_ethernet {
            (Medium::Ethernet, HardwareAddress::Ethernet(EthernetAddress(THEIR_MAC)))
        } else {
            (Medium::Ip, HardwareAddress::Ip)
        };
        let mut phy = Phy { link, medium, mtu: scenario.mtu.into(), moved: 0 };
        let mut config = Config::new(hardware);
        config.random_seed = scenario.seed;
        let mut interface = Interface::new(config, &mut phy, moment(now));
        let ours = of_ip(address(scenario.is_ipv6, Side::Ours));
        let here = of_ip(address(scenario.is_ipv6, Side::Theirs));
        interface.update_ip_addrs(|addresses| {
            let bits = if scenario.is_ipv6 { 64 } else { 24 };
            addresses.push(IpCidr::new(here, bits)).expect("room for one");
        });
        let mut sockets = SocketSet::new(Vec::new());
        let mut ends = Vec::new();
        for (number, exchange) in scenario.exchanges.iter().enumerate() {
            let mut socket = socket(scenario);
            if scenario.we_connect {
                socket.listen(port(number)).expect("a port");
            } else {
                let local = 40_000 + number as u16;
                let remote = (ours, port(number));
                socket.connect(interface.context(), remote, local).expect("an address");
            }
            let (inward, outward) = exchange.patterns();
            ends.push(End {
                handle: sockets.add(socket),
                outward,
                inward,
                waits: exchange.order == Order::TheirsLast,
                has_peer_ended: false,
                is_shut: false,
                is_over: false,
                read_again_at: now,
            });
        }
        let read_pause = scenario.theirs.read_pause;
        Self { phy, interface, sockets, ends, read_pause }
    }

    /// Frames in, what they mean, frames out. `true`: something moved.
    pub(crate) fn turn(&mut self, now: Instant) -> Result<bool, Failure> {
        let before = self.phy.moved;
        let polled = self.interface.poll(moment(now), &mut self.phy, &mut self.sockets);
        let mut has_acted = false;
        for number in 0..self.ends.len() {
            has_acted |= self.act(now, number)?;
        }
        if has_acted {
            self.interface.poll(moment(now), &mut self.phy, &mut self.sockets);
        }
        let is_changed = polled == PollResult::SocketStateChanged;
        Ok(has_acted || is_changed || self.phy.moved > before)
    }

    /// What the application does on one connection. `true`: something.
    fn act(&mut self, now: Instant, number: usize) -> Result<bool, Failure> {
        let end = &mut self.ends[number];
        let socket = self.sockets.get_mut::<Socket<'static>>(end.handle);
        let mut has_acted = false;
        if !end.has_peer_ended && end.read_again_at <= now {
            let mut buffer = [0; READ_BYTES];
            match socket.recv_slice(&mut buffer) {
                Ok(0) => {}
                Ok(len) if end.inward.matches(&buffer[..len]) => {
                    has_acted = true;
                    end.read_again_at = now + self.read_pause;
                }
                Ok(_) => return Err(Failure::WrongBytes { number, side: Side::Theirs }),
                Err(RecvError::Finished) if end.inward.left() == 0 => {
                    has_acted = true;
                    end.has_peer_ended = true;
                }
                Err(RecvError::Finished) => {
                    return Err(Failure::EndedEarly { number, side: Side::Theirs });
                }
                // Not connected yet; or reset, which our end reports.
                Err(RecvError::InvalidState) => {}
            }
        }
        let may_send = socket.may_send() && (!end.waits || end.has_peer_ended);
        if may_send && !end.is_shut {
            let mut after = end.outward;
            let taken = socket.send_slice(&after.take(2_048)).expect("it may send");
            has_acted |= taken > 0;
            // Maybe fewer than were offered.
            let _ = end.outward.take(taken);
            if end.outward.left() == 0 {
                socket.close();
                end.is_shut = true;
                has_acted = true;
            }
        }
        let is_over = matches!(socket.state(), State::Closed | State::TimeWait);
        end.is_over = end.is_shut && end.has_peer_ended && is_over;
        Ok(has_acted)
    }

    /// When it has something to do again.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Instant> {
        let at = self.interface.poll_at(moment(now), &self.sockets);
        let at = at.map(|at| Instant::from_micros(at.total_micros().max(0).cast_unsigned()));
        // It asks to be polled at once as long as something waits for a window or a neighbour.
        let at = at.map(|at| at.max(now + POLL_PAUSE));
        let paused = self.ends.iter().filter(|end| !end.has_peer_ended && end.read_again_at > now);
        paused.map(|end| end.read_again_at).chain(at).min()
    }

    /// Each connection that is not over has bytes to send, and smoltcp sets itself no time to.
    pub(crate) fn has_stopped(&mut self, now: Instant) -> bool {
        let sockets = &self.sockets;
        let owes = |end: &End| sockets.get::<Socket<'static>>(end.handle).send_queue() > 0;
        let all_owe = self.ends.iter().filter(|end| !end.is_over).all(owes);
        all_owe && self.next(now).is_none()
    }

    /// How the connections stand that are not over.
    pub(crate) fn state(&self) -> String {
        let open = self.ends.iter().enumerate().filter(|(_, end)| !end.is_over);
        let of = |(number, end): (usize, &End)| {
            let socket = self.sockets.get::<Socket<'static>>(end.handle);
            let (out, inward) = (end.outward.left(), end.inward.left());
            let (state, queue) = (socket.state(), socket.send_queue());
            format!("theirs {number}: {out} to queue, {inward} to come, {state}, {queue} queued")
        };
        open.map(of).collect::<Vec<_>>().join("; ")
    }

    /// Every exchange has ended as it should.
    pub(crate) fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_over)
    }
}
