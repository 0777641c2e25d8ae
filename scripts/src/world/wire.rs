//! A link whose other end is the script's interpreter: IP packets in memory, stamped when they
//! leave.
//!
//! Invariant: neither direction holds more than [`PACKETS_MAX`] packets.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use megapipe::Clock;
use megapipe_link::{Caps, FrameCounters, Link, LinkError, LinkMedium, RxMetadata, TxMetadata};
use rustix::event::{EventfdFlags, eventfd};

use crate::limits::PACKETS_MAX;

/// A packet that the stack has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackSent {
    /// From the IP header on.
    pub bytes: Vec<u8>,
    /// Time of departure, on the host's clock.
    pub at: Duration,
}

#[derive(Debug, Default)]
struct Packets {
    /// Each with the payload of its segments, where it is a train of them.
    to_stack: VecDeque<(Vec<u8>, u16)>,
    from_stack: VecDeque<StackSent>,
    counters: FrameCounters,
}

/// The stack's end.
#[derive(Debug)]
pub(super) struct StackWire {
    packets: Arc<Mutex<Packets>>,
    caps: Caps,
    clock: Clock,
    room: Vec<u8>,
    /// Rings for a shard that sleeps on it; other drivers of the host poll.
    bell: Arc<OwnedFd>,
}

/// The interpreter's end.
#[derive(Debug, Clone)]
pub(super) struct Far {
    packets: Arc<Mutex<Packets>>,
    bell: Arc<OwnedFd>,
}

impl StackWire {
    /// Both ends of a wire that carries packets of at most `mtu` bytes.
    pub(super) fn new(mtu: u16, clock: Clock) -> io::Result<(Self, Far)> {
        let packets = Arc::new(Mutex::new(Packets::default()));
        let caps = Caps {
            driver: "script",
            medium: LinkMedium::Ip,
            mac: [0; 6],
            mtu: mtu.into(),
            tx_frame_bytes: mtu.into(),
            tx_checksum: false,
            tso: false,
            shares_host_address: false,
            rss: None,
            notes: Vec::new(),
        };
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let far = Far { packets: Arc::clone(&packets), bell: Arc::clone(&bell) };
        Ok((Self { packets, caps, clock, room: vec![0; mtu.into()], bell }, far))
    }
}

fn lock(packets: &Mutex<Packets>) -> MutexGuard<'_, Packets> {
    // Queues are whole after each statement, so a panic elsewhere leaves them whole.
    packets.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Far {
    /// A packet arrives at the stack; `false`: too many do.
    pub(super) fn send(&self, packet: &[u8], segment_bytes: u16) -> bool {
        let mut packets = lock(&self.packets);
        let fits = packets.to_stack.len() < PACKETS_MAX;
        if fits {
            packets.to_stack.push_back((packet.to_vec(), segment_bytes));
        } else {
            packets.counters.rx_dropped_overrun += 1;
        }
        fits
    }

    /// Wakes a shard that sleeps on the wire.
    pub(super) fn ring(&self) {
        // Fails only when as many rings as a counter can hold were not heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Whether the stack has sent a packet that was not received yet.
    pub(super) fn has_sent(&self) -> bool {
        !lock(&self.packets).from_stack.is_empty()
    }

    /// The next packet that the stack has sent.
    pub(super) fn receive(&self) -> Option<StackSent> {
        lock(&self.packets).from_stack.pop_front()
    }
}

impl Link for StackWire {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let mut packets = lock(&self.packets);
        let count = packets.to_stack.len().min(max);
        let burst: Vec<(Vec<u8>, u16)> = packets.to_stack.drain(..count).collect();
        packets.counters.rx_frames += count as u64;
        packets.counters.rx_bytes +=
            burst.iter().map(|(packet, _)| packet.len() as u64).sum::<u64>();
        // Frames are taken without holding the lock.
        drop(packets);
        for (packet, segment_bytes) in &burst {
            each(packet, RxMetadata { segment_bytes: *segment_bytes, ..RxMetadata::default() });
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let at = self.clock.elapsed();
        let mut count = 0;
        while count < max {
            if lock(&self.packets).from_stack.len() >= PACKETS_MAX {
                lock(&self.packets).counters.tx_full += 1;
                break;
            }
            let Some(TxMetadata { len, .. }) = fill(&mut self.room) else { break };
            let bytes = self.room[..len].to_vec();
            let mut packets = lock(&self.packets);
            packets.counters.tx_frames += 1;
            packets.counters.tx_bytes += len as u64;
            packets.from_stack.push_back(StackSent { bytes, at });
            count += 1;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        // Nothing to read means that it has not rung.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        Ok(lock(&self.packets).to_stack.is_empty())
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn wait(&mut self, _: Option<Duration>) -> Result<bool, LinkError> {
        // Time passes elsewhere.
        Ok(!lock(&self.packets).to_stack.is_empty())
    }

    fn counters(&self) -> FrameCounters {
        lock(&self.packets).counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transmit(wire: &mut StackWire, bytes: &[u8]) -> usize {
        let mut left = Some(bytes);
        let sent = wire.tx_burst(8, &mut |room| {
            let bytes = left.take()?;
            room[..bytes.len()].copy_from_slice(bytes);
            Some(TxMetadata { len: bytes.len(), ..TxMetadata::default() })
        });
        sent.expect("it never fails")
    }

    #[test]
    fn packets_go_both_ways_in_order_and_are_stamped() {
        let clock = Clock::by_hand();
        let (mut wire, far) = StackWire::new(1500, clock.clone()).expect("an eventfd");
        assert!(far.send(b"one", 0) && far.send(b"two", 0));
        assert!(!wire.arm().expect("it never fails"), "there is work");
        let mut got = Vec::new();
        let count = wire.rx_burst(8, &mut |frame, _| got.push(frame.to_vec()));
        assert_eq!((count.expect("it never fails"), got), (2, vec![b"one".into(), b"two".into()]));
        let began = clock.elapsed();
        assert_eq!(transmit(&mut wire, b"three"), 1);
        clock.advance(Duration::from_micros(7));
        assert_eq!(transmit(&mut wire, b"four"), 1);
        let three = far.receive().expect("sent");
        assert_eq!((three.bytes.as_slice(), three.at), (&b"three"[..], began));
        assert_eq!(far.receive().expect("sent").at, began + Duration::from_micros(7));
        assert_eq!(far.receive(), None);
    }

    #[test]
    fn a_wire_holds_only_so_many_packets() {
        let (mut wire, far) = StackWire::new(1500, Clock::by_hand()).expect("an eventfd");
        let taken = (0..PACKETS_MAX + 5).filter(|_| far.send(b"x", 0)).count();
        assert_eq!((taken, wire.counters().rx_dropped_overrun), (PACKETS_MAX, 5));
        for _ in 0..PACKETS_MAX {
            assert_eq!(transmit(&mut wire, b"y"), 1);
        }
        let full = wire.counters().tx_full;
        assert_eq!((transmit(&mut wire, b"z"), wire.counters().tx_full), (0, full + 1));
    }
}
