//! Our stack on both ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::{Config, ConnId, Event, Instant, Medium, Memory, PoolId, Received, Stack};

use crate::buffers::Buffers;
use crate::wire::FrameQueue;
use crate::{ConnectionEnd, ConnectionLoad, MESSAGE, PORT, StackPair};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Time between two polls of a stack.
const STEP: Duration = Duration::from_micros(50);
/// Short, so that as many waits in TIME-WAIT end as begin.
const MSL: Duration = Duration::from_millis(10);

pub(crate) struct Ours {
    now: Instant,
    client: OurHost,
    server: OurHost,
    to_server: FrameQueue,
    to_client: FrameQueue,
}

struct OurHost {
    stack: Stack,
    memory: Buffers,
    /// By index of a connection: its answers so far.
    answers: Vec<u32>,
}

impl OurHost {
    fn new(ip: Ipv4Addr, peer: Ipv4Addr, now: Instant) -> Self {
        let mac = |ip: Ipv4Addr| [2, 0, 0, 0, 0, ip.octets()[3]];
        let mut config = Config::single(ip, 24, [ip.octets()[3]; 32]);
        config.medium = Medium::Ethernet(mac(ip));
        config.external_neighbours = true;
        config.tcp.msl = MSL;
        let stack = Stack::new(config, now).expect("a valid configuration");
        let mut host = Self { stack, memory: Buffers::new(1024), answers: vec![0; 1024] };
        host.stack.set_neighbour(now, peer.into(), mac(peer), &mut host.memory);
        host
    }

    fn receive_all(&mut self, now: Instant, wire: &mut FrameQueue) {
        while let Some(frame) = wire.pop() {
            self.stack.on_frame(now, frame, Received::default(), &mut self.memory);
        }
        wire.clear();
    }

    fn send_all(&mut self, now: Instant, wire: &mut FrameQueue) {
        if self.stack.has_timer_due(now) {
            self.stack.on_timeout(now, &mut self.memory);
        }
        while let Some(sent) = self.stack.poll_transmit(now, wire.room(), &mut self.memory) {
            wire.push(sent.frame_bytes());
        }
    }

    /// Echoes each message, and closes when the peer has.
    fn serve(&mut self, now: Instant) {
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Incoming { conn, .. } => self.stack.receive(now, conn).expect("receive"),
                Event::Received { conn, chunk } => {
                    self.stack.send(now, conn, chunk, &mut self.memory).expect("send");
                    self.stack.receive(now, conn).expect("receive");
                }
                Event::PeerClosed { conn } => {
                    self.stack.close(now, conn, &mut self.memory).expect("close");
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, now: Instant, conn: ConnId) {
        let chunk = self.memory.chunk_of(&MESSAGE).expect("a buffer");
        self.stack.send(now, conn, chunk, &mut self.memory).expect("send");
        self.stack.receive(now, conn).expect("receive");
    }

    /// Sends a message on each new connection, and the next after each answer but the last, which
    /// ends it. Returns how many ended.
    fn request(&mut self, now: Instant, load: ConnectionLoad) -> u32 {
        let mut ended = 0;
        while let Some(event) = self.stack.poll_event() {
            match event {
                Event::Connected { conn } => {
                    self.answers[conn.index as usize] = 0;
                    self.ask(now, conn);
                }
                Event::Received { conn, chunk } => {
                    assert_eq!(chunk.len as usize, MESSAGE.len());
                    self.memory.free(chunk.buf);
                    let answers = &mut self.answers[conn.index as usize];
                    *answers += 1;
                    if *answers < load.transactions {
                        self.ask(now, conn);
                        continue;
                    }
                    ended += 1;
                    match load.end {
                        ConnectionEnd::Reset => self.stack.abort(now, conn, &mut self.memory),
                        ConnectionEnd::Fin => self.stack.close(now, conn, &mut self.memory),
                    }
                    .expect("an end");
                }
                _ => {}
            }
        }
        ended
    }
}

impl Ours {
    pub(crate) fn new() -> Self {
        let now = Instant::from_millis(1);
        let client = OurHost::new(CLIENT, SERVER, now);
        let mut server = OurHost::new(SERVER, CLIENT, now);
        let local = SocketAddr::new(SERVER.into(), PORT);
        let listener = server.stack.listen(local, 1024, PoolId(0)).expect("listen");
        server.stack.accept(listener, u32::MAX).expect("accept");
        Self { now, client, server, to_server: FrameQueue::new(), to_client: FrameQueue::new() }
    }
}

impl StackPair for Ours {
    fn round(&mut self, load: ConnectionLoad) {
        let Self { now, client, server, to_server, to_client } = self;
        let remote = SocketAddr::new(SERVER.into(), PORT);
        for _ in 0..load.at_once {
            let pool = (PoolId(0), &mut client.memory);
            client.stack.connect(*now, remote, None, pool).expect("connect");
        }
        let mut open = load.at_once;
        loop {
            *now += STEP;
            client.send_all(*now, to_server);
            server.receive_all(*now, to_server);
            server.serve(*now);
            server.send_all(*now, to_client);
            if open == 0 && to_client.is_empty() {
                break;
            }
            client.receive_all(*now, to_client);
            open -= client.request(*now, load);
        }
    }
}
