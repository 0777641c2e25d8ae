//! A shard's part of the link server: owns one queue of a link, shares all with other shards, or
//! exchanges frames with link servers on threads of their own; and moves frames between it and the
//! stack.
//!
//! Read first: `megapipe_link::Link`; `rx_mux.rs` for queues that are shared.
//!
//! Invariant: frames are counted where they are moved; what the link lost is the link's to count.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, Link, LinkError, Ownership, RxChecksum, Transport, TxMetadata};
use megapipe_stack as stack;

use crate::limits::{LINK_STUCK_AFTER, RX_FRAMES_PER_POLL, TX_FRAMES_PER_POLL};
use crate::loopback::{self, LoopbackQueue};
use crate::rx_mux::{Attachment, FrameSink, ServedLink, ShardLink};

/// What a link server counts beside what its link does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Bursts that had frames.
    pub rx_bursts: u64,
    /// The same, out.
    pub tx_bursts: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Frames for the stack's own addresses, which came back without the link.
    pub looped: u64,
    /// Frames for a link that had no room for [`LINK_STUCK_AFTER`], dropped so that others could
    /// loop.
    pub tx_dropped_stuck: u64,
    /// Frames to the stack's own addresses that were dropped for want of memory.
    pub looped_dropped: u64,
}

/// Where frames come from.
pub enum Frames {
    /// A queue of its own.
    Queue(Box<dyn Link>),
    /// Queues that many shards share.
    Shared(Box<ShardLink>),
    /// Queues that link servers read which are apart from the shards.
    Served(Box<ServedLink>),
}

/// Owns one queue of a link, or a share of all.
pub struct LinkServer {
    frames: Frames,
    /// What comes back without the link.
    looped: LoopbackQueue,
    /// Since when the link has had no room, while frames may wait that are not for it.
    full_since: Option<stack::Instant>,
    /// Room for a frame where the link has none.
    scratch: Vec<u8>,
    counters: LinkCounters,
}

impl LinkServer {
    /// Takes over a queue, or a share.
    #[must_use]
    pub fn new(frames: Frames) -> Self {
        Self {
            frames,
            looped: LoopbackQueue::default(),
            full_since: None,
            scratch: Vec::new(),
            counters: LinkCounters::default(),
        }
    }

    /// Lends a poll's share of waiting frames to the taker, those that were looped first. How many
    /// there were.
    ///
    /// # Errors
    /// What the link says.
    pub fn receive(&mut self, taker: &mut impl FrameSink) -> Result<usize, LinkError> {
        let looped = if self.looped.is_empty() { 0 } else { self.receive_looped(taker) };
        let frames = match &mut self.frames {
            Frames::Queue(link) => link.rx_burst(RX_FRAMES_PER_POLL, &mut |frame, received| {
                let checksums = match received.checksums {
                    RxChecksum::Unverified => stack::Checksums::Unverified,
                    RxChecksum::Verified => stack::Checksums::Verified,
                };
                let segment_bytes = received.segment_bytes;
                taker.on_frame(frame, stack::Received { checksums, segment_bytes });
            })?,
            Frames::Shared(link) => link.receive(RX_FRAMES_PER_POLL, taker)?,
            Frames::Served(link) => link.receive(RX_FRAMES_PER_POLL, taker)?,
        };
        self.counters.rx_bursts += u64::from(frames > 0);
        Ok(frames + looped)
    }

    /// Frames wait that came back without the link.
    pub(crate) const fn has_looped(&self) -> bool {
        !self.looped.is_empty()
    }

    /// Lends the frames that were looped to the taker, or sends them to the shards that they are
    /// for. How many there were; none while another shard has the queue.
    #[cold]
    pub(crate) fn receive_looped(&mut self, taker: &mut impl FrameSink) -> usize {
        let Self { frames, looped, counters, .. } = self;
        let count = match frames {
            Frames::Queue(link) => looped.take(|frame, transmit| {
                link.record_looped(frame, transmit);
                taker.on_frame(frame, loopback::received(transmit));
            }),
            Frames::Shared(link) => link.loop_back(looped, taker),
            Frames::Served(link) => link.loop_back(looped),
        };
        counters.looped += count as u64;
        count
    }

    /// Takes connections that other shards hand over to this one.
    pub fn take_handovers(&mut self) -> Vec<stack::Handover> {
        match &mut self.frames {
            Frames::Queue(_) => Vec::new(),
            Frames::Shared(link) => link.take_handovers(),
            Frames::Served(link) => link.take_handovers(),
        }
    }

    /// A listener is gone: frames that were steered here before go on to where they belong now.
    pub fn steer_again(&mut self) {
        match &mut self.frames {
            Frames::Queue(_) => {}
            Frames::Shared(link) => link.steer_again(),
            Frames::Served(link) => link.steer_again(),
        }
    }

    /// Lets `fill` fill frames until it has none left, or a poll's share. How many left, or wait to
    /// be received. `has_local_peers`: some may be for the stack's own addresses.
    ///
    /// # Errors
    /// What the link says.
    pub fn transmit(
        &mut self,
        (now, has_local_peers): (stack::Instant, bool),
        mut fill: impl FnMut(&mut [u8]) -> Option<stack::Transmit>,
    ) -> Result<usize, LinkError> {
        let Self { frames, looped, counters, .. } = self;
        let mut has_room = false;
        let mut fill_link = |room: &mut [u8]| {
            has_room = true;
            loop {
                if looped.is_full() {
                    return None;
                }
                let transmit = fill(room)?;
                let metadata = metadata_of(&transmit);
                if !transmit.stays_here() {
                    return Some(metadata);
                }
                counters.looped_dropped += u64::from(!looped.push(room, metadata));
            }
        };
        let sent = match frames {
            Frames::Queue(link) => link.tx_burst(TX_FRAMES_PER_POLL, &mut fill_link)?,
            Frames::Shared(link) => link.transmit(TX_FRAMES_PER_POLL, &mut fill_link)?,
            Frames::Served(link) => link.transmit(TX_FRAMES_PER_POLL, &mut fill_link)?,
        };
        counters.tx_bursts += u64::from(sent > 0);
        if has_local_peers {
            self.loop_past_full_link(now, has_room, &mut fill);
        }
        Ok(sent + self.looped.len())
    }

    /// If the link has had no room for long, asks for frames all the same, and keeps those that are
    /// not for it.
    #[cold]
    fn loop_past_full_link(
        &mut self,
        now: stack::Instant,
        has_room: bool,
        fill: &mut impl FnMut(&mut [u8]) -> Option<stack::Transmit>,
    ) {
        if has_room {
            self.full_since = None;
            return;
        }
        let since = *self.full_since.get_or_insert(now);
        if now.since(since) < LINK_STUCK_AFTER {
            return;
        }
        self.scratch.resize(self.caps().tx_frame_bytes, 0);
        let Self { looped, scratch, counters, .. } = self;
        for _ in 0..TX_FRAMES_PER_POLL {
            if looped.is_full() {
                break;
            }
            let Some(transmit) = fill(scratch) else { break };
            if transmit.stays_here() {
                let is_kept = looped.push(scratch, metadata_of(&transmit));
                counters.looped_dropped += u64::from(!is_kept);
            } else {
                counters.tx_dropped_stuck += 1;
            }
        }
    }

    /// When a poll is due because the link has had no room for long, if that is after `now`.
    pub(crate) fn passes_full_link_at(&self, now: stack::Instant) -> Option<stack::Instant> {
        self.full_since.map(|since| since + LINK_STUCK_AFTER).filter(|at| *at > now)
    }

    /// Waits for room where frames leave over a ring that is full, at most `timeout`. Whether
    /// [`LinkServer::transmit`] is worth another try.
    ///
    /// # Errors
    /// What the link says.
    pub(crate) fn wait_for_room(&mut self, timeout: Duration) -> Result<bool, LinkError> {
        match &mut self.frames {
            Frames::Queue(_) | Frames::Shared(_) => Ok(false),
            Frames::Served(link) => link.wait_for_room(timeout),
        }
    }

    /// Says which frames are ours ([`Link::set_ownership`]).
    ///
    /// # Errors
    /// What the link says; the ownership is then as it was.
    pub fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        match &mut self.frames {
            Frames::Queue(link) => link.set_ownership(ownership),
            Frames::Shared(link) => link.set_ownership(ownership),
            Frames::Served(link) => link.set_ownership(ownership),
        }
    }

    /// Whether the frames of an ownership fit the link ([`Link::check_ownership`]).
    ///
    /// # Errors
    /// As there; nothing has changed.
    pub fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        match &self.frames {
            Frames::Queue(link) => link.check_ownership(ownership),
            Frames::Shared(link) => link.check_ownership(ownership),
            Frames::Served(link) => link.check_ownership(ownership),
        }
    }

    /// Prepares for sleep on [`LinkServer::wait_fd`]. `false`: there is work already.
    ///
    /// # Errors
    /// What the link says.
    pub fn arm(&mut self) -> Result<bool, LinkError> {
        if self.has_looped() {
            return Ok(false);
        }
        let armed = match &mut self.frames {
            Frames::Queue(link) => link.arm()?,
            Frames::Shared(link) => link.arm()?,
            Frames::Served(link) => link.arm()?,
        };
        self.counters.sleeps += u64::from(armed);
        Ok(armed)
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        match &self.frames {
            Frames::Queue(link) => link.wait_fd(),
            Frames::Shared(link) => link.wait_fd(),
            Frames::Served(link) => link.wait_fd(),
        }
    }

    /// What the link can do.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        match &self.frames {
            Frames::Queue(link) => link.caps(),
            Frames::Shared(link) => link.caps(),
            Frames::Served(link) => link.caps(),
        }
    }

    /// The shard's place among others, where it has some.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        match &self.frames {
            Frames::Queue(_) => None,
            Frames::Shared(link) => Some(link.attachment()),
            Frames::Served(link) => Some(link.attachment()),
        }
    }

    /// Whether what `remote` sends to `local` by TCP arrives here: a device with queues that are
    /// not open loses what it brings to those.
    #[must_use]
    pub fn arrives_here(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        match &self.frames {
            Frames::Queue(link) => {
                link.caps()
                    .rss
                    .as_ref()
                    .is_none_or(|rss| rss.queue(rss.hash(Transport::Tcp, remote, local)).is_some())
                    || local.ip() == remote.ip()
            }
            Frames::Shared(link) => link.arrives_here(local, remote),
            Frames::Served(link) => link.arrives_here(local, remote),
        }
    }

    /// What this server counted.
    #[must_use]
    pub const fn counters(&self) -> LinkCounters {
        self.counters
    }
}

#[inline]
const fn metadata_of(transmit: &stack::Transmit) -> TxMetadata {
    TxMetadata {
        len: transmit.frame_bytes(),
        checksum_start: transmit.checksum_start(),
        checksum_field: transmit.checksum_field() as u16,
        segment_bytes: transmit.segment_bytes(),
        header_bytes: transmit.header_bytes(),
    }
}

#[cfg(test)]
mod tests;
