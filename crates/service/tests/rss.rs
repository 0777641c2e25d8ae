//! A device that spreads what it receives over its queues by a hash that it tells: connections that
//! we open leave from ports whose answers arrive on their own shard, and nothing is handed over.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use megapipe_link::rss::FieldsByKind;
use megapipe_link::{
    Caps, FrameCounters, Link, LinkError, LinkMedium, Pair, PairConfig, Rss, RxMetadata,
    TxMetadata, pair,
};
use megapipe_service::steering::{self, Classified, Transport};
use megapipe_service::{AcceptorId, Attachment, Frames, Server, ServerConfig, Sharing, switch};
use megapipe_stack::{Event, HeapMemory, Instant, Medium as StackMedium};

const POLL_PERIOD: Duration = Duration::from_micros(20);
const CONNECTIONS: usize = 200;
const PORT: u16 = 80;

const OURS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
];
const THEIRS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];

/// A device that spreads over the queues that `table` names by the hash's low bits.
fn rss(table: &[Option<u16>]) -> Arc<Rss> {
    let key: Vec<u8> = (0..40).map(|at: u8| at.wrapping_mul(71).wrapping_add(5)).collect();
    Arc::new(Rss::new(&key, table.into(), FieldsByKind::ALL).unwrap())
}

/// One of the device's queues: a pair that says how it gets its frames.
struct Queue {
    pair: Pair,
    caps: Caps,
}

impl Link for Queue {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        self.pair.rx_burst(max, each)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        self.pair.tx_burst(max, fill)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.pair.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.pair.wait_fd()
    }

    fn counters(&self) -> FrameCounters {
        self.pair.counters()
    }
}

/// The wire's other end: what is sent there passes the device, which chooses a queue for it.
struct Wire {
    queues: Vec<Pair>,
    rss: Arc<Rss>,
    frame: Vec<u8>,
    /// Frames for queues that are not open.
    lost: u64,
}

impl Link for Wire {
    fn caps(&self) -> &Caps {
        self.queues[0].caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        for queue in &mut self.queues {
            count += queue.rx_burst(max - count, each)?;
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < max
            && let Some(transmit) = fill(&mut self.frame)
        {
            count += 1;
            let frame = &self.frame[..transmit.len];
            let Classified::Flow { ends, .. } = steering::classify(StackMedium::Ip, frame) else {
                panic!("only segments are sent here");
            };
            let hash = self.rss.hash(megapipe_link::Transport::Tcp, ends.src, ends.dst);
            let Some(queue) = self.rss.queue(hash) else {
                self.lost += 1;
                continue;
            };
            let mut left = Some(transmit);
            self.queues[usize::from(queue)].tx_burst(1, &mut |room| {
                room[..frame.len()].copy_from_slice(frame);
                left.take()
            })?;
            assert!(left.is_none(), "the pair has room");
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.queues[0].wait_fd()
    }

    fn counters(&self) -> FrameCounters {
        self.queues[0].counters()
    }
}

fn server(frames: Frames, addresses: &[IpAddr]) -> Server<HeapMemory> {
    let addresses = addresses.iter().map(|ip| (*ip, if ip.is_ipv4() { 24 } else { 64 }));
    let config = ServerConfig { addresses: addresses.collect(), ..ServerConfig::default() };
    Server::new(frames, &config, HeapMemory::new(1 << 10, 2_048), Instant::ZERO).unwrap()
}

/// The device's open queues, and the host at the wire's other end that listens.
fn device(queues: u16, rss: &Arc<Rss>) -> (Vec<Box<dyn Link>>, Server<HeapMemory>) {
    let config = PairConfig { medium: LinkMedium::Ip, frames: 1_024, ..PairConfig::default() };
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..queues).map(|_| pair(&config).unwrap()).unzip();
    let queue = |pair: Pair| {
        let caps = Caps { rss: Some(Arc::clone(rss)), ..pair.caps().clone() };
        Box::new(Queue { pair, caps }) as Box<dyn Link>
    };
    let wire = Wire { queues: theirs, rss: Arc::clone(rss), frame: vec![0; 2_048], lost: 0 };
    let mut peer = server(Frames::Queue(Box::new(wire)), &THEIRS);
    for ip in THEIRS {
        let (at, sharing) = (SocketAddr::new(ip, PORT), Sharing::default());
        let listener = peer.listen(Instant::ZERO, at, 1 << 12, sharing).unwrap();
        peer.accept(listener, AcceptorId(0), 1 << 30).unwrap();
    }
    (ours.into_iter().map(queue).collect(), peer)
}

/// Opens connections from each shard to both addresses of the peer, and exchanges a message on
/// each. The local addresses of each shard's.
fn exchange(
    shards: &mut [Server<HeapMemory>],
    peer: &mut Server<HeapMemory>,
) -> Vec<HashSet<SocketAddr>> {
    let mut now = Instant::ZERO;
    for shard in &mut *shards {
        for number in 0..CONNECTIONS {
            let remote = SocketAddr::new(THEIRS[number % 2], PORT);
            shard.connect(now, remote, None).unwrap();
        }
    }
    let mut answered = vec![HashSet::new(); shards.len()];
    for _ in 0..2_000 {
        now += POLL_PERIOD;
        for (shard, answered) in shards.iter_mut().zip(&mut answered) {
            shard.poll(now).unwrap();
            while let Some((event, _)) = shard.event() {
                let (stack, memory) = shard.parts();
                match event {
                    Event::Connected { conn } => {
                        let chunk = memory.chunk_of(&[1; 64]).unwrap();
                        stack.send(now, conn, chunk, memory).unwrap();
                        stack.receive(now, conn).unwrap();
                    }
                    Event::Received { conn, chunk } => {
                        assert!(answered.insert(stack.addresses(conn).unwrap().0));
                        megapipe_stack::Memory::free(memory, chunk.buf);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        peer.poll(now).unwrap();
        while let Some((event, _)) = peer.event() {
            let (stack, memory) = peer.parts();
            match event {
                Event::Incoming { conn, .. } => stack.receive(now, conn).unwrap(),
                Event::Received { conn, chunk } => stack.send(now, conn, chunk, memory).unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
    answered
}

fn shards_over(queues: Vec<Box<dyn Link>>, shards: u16) -> Vec<Server<HeapMemory>> {
    let links = switch(queues, shards, &[3; 16]).unwrap();
    links.into_iter().map(|link| server(Frames::Shared(Box::new(link)), &OURS)).collect()
}

#[test]
fn answers_arrive_on_the_shard_that_asked_and_nothing_is_handed_over() {
    // A device's usual table, and one that favours a queue.
    let usual: Vec<_> = (0..128).map(|entry| Some(entry % 4)).collect();
    let favouring: Vec<_> = (0..64_u16).map(|entry| Some(entry.saturating_sub(60))).collect();
    for table in [usual, favouring] {
        let (queues, mut peer) = device(4, &rss(&table));
        let mut shards = shards_over(queues, 4);
        assert!(shards[0].caps().notes.iter().any(|note| note.contains("the device's hash")));
        let answered = exchange(&mut shards, &mut peer);
        assert!(answered.iter().all(|local| local.len() == CONNECTIONS));
        let counted = shards[0].attachment().unwrap().counters();
        assert_eq!((counted.steered, counted.passed_on, counted.dropped_full), (0, 0, 0));
        assert!(counted.kept >= 4 * CONNECTIONS as u64 * 2, "{counted:?}");
        // Each chose alone, and none chose what another did.
        let all: HashSet<_> = answered.iter().flatten().collect();
        assert_eq!(all.len(), 4 * CONNECTIONS);
    }
}

#[test]
fn shards_that_share_a_queue_hand_over_only_among_themselves() {
    let (queues, mut peer) = device(2, &rss(&[Some(0), Some(1)]));
    let mut shards = shards_over(queues, 4);
    let answered = exchange(&mut shards, &mut peer);
    assert!(answered.iter().all(|local| local.len() == CONNECTIONS));
    let hash = rss(&[Some(0), Some(1)]);
    for (shard, locals) in answered.iter().enumerate() {
        for local in locals {
            let peer = SocketAddr::new(THEIRS[usize::from(local.is_ipv6())], PORT);
            let hash_of = hash.hash(megapipe_link::Transport::Tcp, peer, *local);
            assert_eq!(hash.queue(hash_of), Some(shard as u16 % 2), "{local}");
        }
    }
}

#[test]
fn fewer_shards_than_queues_have_several_each() {
    let (queues, mut peer) = device(4, &rss(&[Some(0), Some(1), Some(2), Some(3)]));
    let mut shards = shards_over(queues, 2);
    let answered = exchange(&mut shards, &mut peer);
    assert!(answered.iter().all(|local| local.len() == CONNECTIONS));
    let attachment: Attachment = shards[0].attachment().unwrap();
    let both = attachment.counters();
    assert!(both.kept > 0 && both.dropped_full == 0, "{both:?}");
    let at = |ip| SocketAddr::new(ip, PORT);
    assert!(!attachment.is_bound(Transport::Tcp, at(OURS[0])), "a question binds nothing");
}

#[test]
fn no_connection_is_opened_whose_answers_would_be_lost() {
    // Of the device's eight queues one is open, and it has a sixteenth of all flows.
    let mut table = vec![None; 16];
    table[5] = Some(0);
    let (mut queues, mut peer) = device(1, &rss(&table));
    let mut shards = vec![server(Frames::Queue(queues.pop().unwrap()), &OURS)];
    let answered = exchange(&mut shards, &mut peer);
    assert_eq!(answered[0].len(), CONNECTIONS);
    let counters = shards[0].stack().counters();
    assert_eq!(counters.totals.segments_retransmitted, 0);
}
