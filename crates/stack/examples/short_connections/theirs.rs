//! smoltcp on both ends.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, IpEndpoint};

use crate::wire::FrameQueue;
use crate::{ConnectionEnd, ConnectionLoad, MESSAGE, PORT, StackPair};

const CLIENT: IpAddress = IpAddress::v4(192, 0, 2, 1);
const SERVER: IpAddress = IpAddress::v4(192, 0, 2, 2);
const STEP: Duration = Duration::from_micros(50);
/// smoltcp stays in TIME-WAIT for ten seconds.
const TIME_WAIT: Duration = Duration::from_secs(10);
/// Enough for every message, and small, as smoltcp's users choose them.
const BUFFER_BYTES: usize = 1024;

pub(crate) struct Smoltcp {
    now: Instant,
    client: SmoltcpHost,
    server: SmoltcpHost,
    to_server: FrameQueue,
    to_client: FrameQueue,
    next_port: u16,
}

struct SmoltcpHost {
    interface: Interface,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
    /// By index: messages that a connection sent.
    sent: Vec<u32>,
}

/// What one call of an interface reads and writes.
struct DeviceEnds<'a> {
    from: &'a mut FrameQueue,
    to: &'a mut FrameQueue,
}

struct ReceivedFrame<'a>(&'a [u8]);
struct FrameRoom<'a>(&'a mut FrameQueue);

impl RxToken for ReceivedFrame<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

impl TxToken for FrameRoom<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let answer = f(&mut self.0.room()[..len]);
        self.0.push(len);
        answer
    }
}

impl Device for DeviceEnds<'_> {
    type RxToken<'a>
        = ReceivedFrame<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = FrameRoom<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(ReceivedFrame<'_>, FrameRoom<'_>)> {
        Some((ReceivedFrame(self.from.pop()?), FrameRoom(self.to)))
    }

    fn transmit(&mut self, _: Instant) -> Option<FrameRoom<'_>> {
        Some(FrameRoom(self.to))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

impl SmoltcpHost {
    fn new(ip: IpAddress, last: u8, count: u32, ends: &mut DeviceEnds<'_>) -> Self {
        let mac = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, last]));
        let mut interface = Interface::new(Config::new(mac), ends, Instant::from_millis(1));
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(ip, 24)).expect("room for an address");
        });
        let mut sockets = SocketSet::new(Vec::new());
        let handles = (0..count)
            .map(|_| {
                let buffer = || SocketBuffer::new(vec![0; BUFFER_BYTES]);
                sockets.add(Socket::new(buffer(), buffer()))
            })
            .collect();
        Self { interface, sockets, handles, sent: vec![0; count as usize] }
    }

    fn receive_all(&mut self, now: Instant, from: &mut FrameQueue, to: &mut FrameQueue) {
        let ends = &mut DeviceEnds { from, to };
        while !ends.from.is_read() {
            self.interface.poll_ingress_single(now, ends, &mut self.sockets);
        }
        ends.from.clear();
    }

    fn send_all(&mut self, now: Instant, from: &mut FrameQueue, to: &mut FrameQueue) {
        self.interface.poll_egress(now, &mut DeviceEnds { from, to }, &mut self.sockets);
    }

    /// Listens on each socket that is free, echoes each message, and closes when the peer has.
    fn serve(&mut self) {
        for handle in &self.handles {
            let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
            match socket.state() {
                State::Closed => socket.listen(PORT).expect("listen"),
                State::Established if socket.can_recv() => {
                    let mut message = MESSAGE;
                    let len = socket.recv_slice(&mut message).expect("a message");
                    socket.send_slice(&message[..len]).expect("an answer");
                }
                State::CloseWait => socket.close(),
                _ => {}
            }
        }
    }

    /// Sends a message on each new connection, and the next after each answer but the last, which
    /// ends it. Returns how many ended.
    fn request(&mut self, load: ConnectionLoad) -> u32 {
        let mut ended = 0;
        for (handle, sent) in self.handles.iter().zip(&mut self.sent) {
            let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
            if socket.state() != State::Established {
                continue;
            }
            if *sent == 0 {
                *sent = 1;
                socket.send_slice(&MESSAGE).expect("room for a message");
            } else if socket.can_recv() {
                let mut message = MESSAGE;
                assert_eq!(socket.recv_slice(&mut message), Ok(MESSAGE.len()));
                if *sent < load.transactions {
                    *sent += 1;
                    socket.send_slice(&MESSAGE).expect("room for a message");
                    continue;
                }
                *sent = 0;
                ended += 1;
                match load.end {
                    ConnectionEnd::Reset => socket.abort(),
                    ConnectionEnd::Fin => socket.close(),
                }
            }
        }
        ended
    }
}

impl Smoltcp {
    pub(crate) fn new(at_once: u32) -> Self {
        let (mut to_server, mut to_client) = (FrameQueue::new(), FrameQueue::new());
        let client = SmoltcpHost::new(
            CLIENT,
            1,
            at_once,
            &mut DeviceEnds { from: &mut to_client, to: &mut to_server },
        );
        let mut server = SmoltcpHost::new(
            SERVER,
            2,
            at_once,
            &mut DeviceEnds { from: &mut to_server, to: &mut to_client },
        );
        server.serve();
        let now = Instant::from_millis(1);
        Self { now, client, server, to_server, to_client, next_port: 32_768 }
    }
}

impl StackPair for Smoltcp {
    fn round(&mut self, load: ConnectionLoad) {
        let Self { now, client, server, to_server, to_client, next_port } = self;
        assert_eq!(load.at_once as usize, client.handles.len());
        let remote = IpEndpoint::new(SERVER, PORT);
        for handle in &client.handles {
            let socket = client.sockets.get_mut::<Socket<'_>>(*handle);
            socket.connect(client.interface.context(), remote, *next_port).expect("connect");
            *next_port = if *next_port == 60_999 { 32_768 } else { *next_port + 1 };
        }
        let mut open = load.at_once;
        loop {
            *now += STEP;
            client.send_all(*now, to_client, to_server);
            server.receive_all(*now, to_server, to_client);
            server.serve();
            server.send_all(*now, to_server, to_client);
            if open == 0 && to_client.is_empty() {
                break;
            }
            client.receive_all(*now, to_client, to_server);
            open -= client.request(load);
        }
        if load.end == ConnectionEnd::Fin {
            *now += TIME_WAIT;
            client.send_all(*now, to_client, to_server);
        }
        // Sockets whose connection ended listen again.
        server.serve();
    }
}
