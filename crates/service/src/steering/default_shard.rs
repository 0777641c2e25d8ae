//! The default shard of a flow (its home): the shard that has it where no binding says otherwise.
//!
//! Read first: `hash.rs` for our own hash, `megapipe_link`'s `rss.rs` for a device's.
//!
//! Where the device says how it spreads flows over its queues, the shard that reads a queue is the
//! home of what arrives there, and nothing has to be handed over. Else our own hash says it. Either
//! way it is a function of the packet alone: a device that does otherwise than it says, or that is
//! told otherwise meanwhile, costs hand-overs and no flow.

use std::sync::Arc;

use megapipe_link::{Rss, Transport as LinkTransport};

use super::bindings::Transport;
use super::fast_parse::FastParsed;
use super::hash::{End4, FlowHash, SteeringKey, share_of};

/// How the default shard of a flow is computed.
#[derive(Debug, Clone)]
pub(super) enum DefaultShards {
    /// Our own hash.
    Ours(FlowHash),
    /// That of the device behind so many queues.
    Device(Arc<Rss>, u16),
}

impl DefaultShards {
    /// The default shard of a flow, of `shards`.
    #[inline]
    pub(super) fn of(&self, transport: Transport, ends: &SteeringKey, shards: u16) -> u16 {
        match self {
            Self::Ours(hash) => hash.shard_of(ends, shards),
            Self::Device(rss, queues) => {
                let hash = device_hash(rss, transport, ends);
                shard_of_queue(hash, rss.queue(hash), *queues, shards)
            }
        }
    }

    /// The same, of a fast-parsed packet.
    #[inline]
    pub(super) fn of_fast_parsed(&self, parsed: FastParsed, shards: u16) -> u16 {
        match self {
            Self::Ours(hash) => share_of(hash.of_v4(parsed.src, parsed.dst), shards),
            Self::Device(..) => self.of_v4(parsed.transport, parsed.src, parsed.dst, shards),
        }
    }

    /// The home of a flow of IPv4, out of the way of those that our own hash is for.
    #[inline(never)]
    fn of_v4(&self, transport: Transport, src: End4, dst: End4, shards: u16) -> u16 {
        self.of(transport, &SteeringKey::of_v4(src, dst), shards)
    }

    /// Packets of a flow arrive at a queue that is open.
    pub(super) fn arrives(&self, transport: Transport, ends: &SteeringKey) -> bool {
        match self {
            Self::Ours(_) => true,
            Self::Device(rss, _) => rss.queue(device_hash(rss, transport, ends)).is_some(),
        }
    }
}

#[inline]
fn device_hash(rss: &Rss, transport: Transport, ends: &SteeringKey) -> u32 {
    let transport = match transport {
        Transport::Tcp => LinkTransport::Tcp,
        Transport::Udp => LinkTransport::Udp,
    };
    rss.hash(transport, ends.src, ends.dst)
}

/// The shard, of `shards`, that has what arrives at one of `queues` queues. Where there are more
/// shards than queues, the upper half of the hash chooses among those of the queue.
#[inline]
fn shard_of_queue(hash: u32, queue: Option<u16>, queues: u16, shards: u16) -> u16 {
    let Some(queue) = queue else {
        // No shard's queue: a shard that reads such a flow after all passes it to the same shard.
        return share_of(hash, shards);
    };
    if shards <= queues {
        return queue % shards;
    }
    let queue = queue % queues;
    let sharing = (shards - queue).div_ceil(queues);
    queue + queues * (((hash >> 16) * u32::from(sharing)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_a_part_of_its_own_queue_and_of_no_other() {
        for (queues, shards) in [(1, 3), (2, 2), (2, 5), (3, 4), (4, 3), (8, 2)] {
            let mut counts = vec![0_u32; usize::from(shards)];
            for step in 0..100_000_u32 {
                let hash = step.wrapping_mul(0x9e37_79b9);
                let queue = (step % u32::from(queues)) as u16;
                let shard = shard_of_queue(hash, Some(queue), queues, shards);
                let reads = if shards <= queues { queue % shards } else { shard % queues };
                assert!(shard < shards && (reads == queue || reads == shard), "{queue}: {shard}");
                counts[usize::from(shard)] += 1;
            }
            assert!(counts.iter().all(|count| *count > 100_000 / (2 * u32::from(shards))));
        }
        assert!((0..=u32::MAX).step_by(1 << 24).all(|hash| shard_of_queue(hash, None, 2, 3) < 3));
    }
}
