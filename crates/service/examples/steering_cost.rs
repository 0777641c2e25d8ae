//! What steering in software costs: nanoseconds of processor time a frame, beside what reading the
//! same frames costs where no shard shares the link.
//!
//! One thread plays two shards on one queue, so what a line of another core's cache costs is not
//! in it. `cargo run --profile fast -p megapipe-service --example steering_cost`; with `alone`,
//! `kept` or `steered` only that is run, to count instructions by callgrind.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use megapipe_link::{Link, Medium, Pair, PairConfig, Transmit, pair};
use megapipe_service::steering::{Ends, FlowHash};
use megapipe_service::{ShardLink, Taker, switch};
use megapipe_stack::Received;
use rustix::time::{ClockId, clock_gettime};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const KEY: [u8; 16] = *b"of no importance";
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Frames of one measurement, in bursts.
const BURST: usize = 64;
const BURSTS: usize = 4_000;
/// Measurements, the quickest of which counts.
const ROUNDS: usize = 9;

/// Looks at a frame as little as a stack may.
struct Sum(u64);

impl Taker for Sum {
    fn knows(&self, _: &Ends) -> bool {
        true
    }

    fn on_frame(&mut self, frame: &[u8], _: Received) {
        let words = frame.as_chunks::<8>().0.iter().take(8);
        self.0 += words.map(|word| u64::from_ne_bytes(*word)).fold(0, u64::wrapping_add) >> 32;
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

/// Nanoseconds of processor time for each frame, sent and read, in the quickest round.
fn measure(
    peer: &mut Pair,
    frame: &[u8],
    mut read: impl FnMut(&mut Sum) -> Outcome<()>,
) -> Outcome<f64> {
    let (mut sum, mut best) = (Sum(0), f64::MAX);
    for _ in 0..ROUNDS {
        let start = processor_ns();
        for _ in 0..BURSTS {
            send(peer, frame)?;
            read(&mut sum)?;
        }
        best = best.min((processor_ns() - start) as f64 / (BURST * BURSTS) as f64);
    }
    std::hint::black_box(sum.0);
    Ok(best)
}

/// What this thread was on a processor for: others may run on it meanwhile.
fn processor_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A queue that is read by whom it belongs to.
fn alone(frame: &[u8]) -> Outcome<f64> {
    let (mut ours, mut peer) = ends()?;
    measure(&mut peer, frame, |sum| {
        ours.rx_burst(BURST, &mut |frame, _| sum.on_frame(frame, Received::default()))?;
        Ok(())
    })
}

/// The same queue, of two shards, of which the first reads.
fn shared(frame: &[u8]) -> Outcome<f64> {
    let (ours, mut peer) = ends()?;
    let mut links: Vec<ShardLink> = switch(vec![Box::new(ours)], 2, &KEY)?;
    measure(&mut peer, frame, |sum| {
        for link in &mut links {
            link.receive(BURST, sum)?;
        }
        Ok(())
    })
}

fn ends() -> Outcome<(Pair, Pair)> {
    Ok(pair(&PairConfig { medium: Medium::Ip, ..PairConfig::default() })?)
}

fn main() -> Outcome<()> {
    let hash = FlowHash::new(&KEY);
    let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
    let home = |port| hash.shard_of(&Ends::from_peer(at(THEIRS, port), at(OURS, 80)), 2);
    let of = |shard| (1..u16::MAX).find(|port| home(*port) == shard).map(segment);
    let (Some(mine), Some(others)) = (of(0), of(1)) else { return Err("no such port".into()) };
    match std::env::args().nth(1).as_deref() {
        Some("alone") => println!("{:.1} ns", alone(&mine)?),
        Some("kept") => println!("{:.1} ns", shared(&mine)?),
        Some("steered") => println!("{:.1} ns", shared(&others)?),
        _ => {
            let (alone, kept, steered) = (alone(&mine)?, shared(&mine)?, shared(&others)?);
            println!("a frame, sent and read on a queue of one shard: {alone:.1} ns");
            println!("kept by the one of two shards that reads it: {:.1} ns more", kept - alone);
            println!("steered to the other: {:.1} ns more", steered - alone);
        }
    }
    Ok(())
}
