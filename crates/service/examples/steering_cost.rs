//! What steering in software costs: nanoseconds of processor time a frame, beside reading it.
//!
//! One thread plays two shards on one queue, so what a line of another core's cache costs is not
//! in it. `cargo run --profile fast -p megapipe-service --example steering_cost`

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use megapipe_link::{Link, Medium, Pair, PairConfig, Transmit, pair};
use megapipe_service::steering::{Ends, FlowHash};
use megapipe_service::{ShardLink, Taker, switch};
use megapipe_stack::Received;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const KEY: [u8; 16] = *b"of no importance";
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Frames of one measurement, in bursts.
const BURST: usize = 64;
const BURSTS: usize = 4_000;

/// Looks at a frame as little as a stack may.
struct Sum(u64);

impl Taker for Sum {
    fn knows(&self, _: &Ends) -> bool {
        true
    }

    fn on_frame(&mut self, frame: &[u8], _: Received) {
        self.0 += frame.iter().take(64).map(|byte| u64::from(*byte)).sum::<u64>();
    }

    fn refuse(&mut self, _: &[u8], _: Received) {}
}

/// An ACK with 64 bytes, from a port of the peer's.
fn segment(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 20 + 20 + 64];
    frame[0] = 0x45;
    frame[2..4].copy_from_slice(&104_u16.to_be_bytes());
    frame[9] = 6;
    frame[12..16].copy_from_slice(&THEIRS.octets());
    frame[16..20].copy_from_slice(&OURS.octets());
    frame[20..22].copy_from_slice(&port.to_be_bytes());
    frame[22..24].copy_from_slice(&80_u16.to_be_bytes());
    frame[32] = 0x50;
    frame[33] = 0x10;
    frame
}

fn send(peer: &mut Pair, frame: &[u8]) -> Outcome<()> {
    peer.tx_burst(BURST, &mut |room| {
        room[..frame.len()].copy_from_slice(frame);
        Some(Transmit { len: frame.len(), ..Transmit::default() })
    })?;
    Ok(())
}

/// How long it takes to read bursts of a frame, and to take them over where they go.
fn measure(peer: &mut Pair, links: &mut [ShardLink], frame: &[u8]) -> Outcome<[Duration; 2]> {
    let (mut sum, mut spent) = (Sum(0), [Duration::ZERO; 2]);
    for _ in 0..BURSTS {
        send(peer, frame)?;
        for (link, spent) in links.iter_mut().zip(&mut spent) {
            let start = Instant::now();
            link.receive(BURST, &mut sum)?;
            *spent += start.elapsed();
        }
    }
    std::hint::black_box(sum.0);
    Ok(spent)
}

fn main() -> Outcome<()> {
    let config = PairConfig { medium: Medium::Ip, ..PairConfig::default() };
    let (ours, mut peer) = pair(&config)?;
    let mut links = switch(vec![Box::new(ours)], 2, &KEY)?;
    let hash = FlowHash::new(&KEY);
    let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
    let home = |port| hash.shard_of(&Ends::from_peer(at(THEIRS, port), at(OURS, 80)), 2);
    let of = |shard| (1..u16::MAX).find(|port| home(*port) == shard).map(segment);
    let (Some(mine), Some(others)) = (of(0), of(1)) else { return Err("no such port".into()) };
    let frames = (BURST * BURSTS) as f64;
    for _ in 0..5 {
        let each = |spent: Duration| spent.as_nanos() as f64 / frames;
        let kept = measure(&mut peer, &mut links, &mine)?.map(each);
        let steered = measure(&mut peer, &mut links, &others)?.map(each);
        println!(
            "a frame: kept {:.1} ns; steered {:.1} ns by who reads and {:.1} ns by who takes",
            kept[0], steered[0], steered[1]
        );
    }
    Ok(())
}
