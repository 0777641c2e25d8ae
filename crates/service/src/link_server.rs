//! The link server: owns one queue of a link, or shares all with other shards, and moves frames
//! between it and the stack.
//!
//! Read first: `megapipe_link::Link`.
//!
//! Invariant: frames are counted where they are moved; what the link lost is the link's to count.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use megapipe_link::{Caps, Link, LinkError, Ownership, RxChecksum, Transport};
use megapipe_stack as stack;

use crate::limits::{RX_FRAMES_PER_POLL, TX_FRAMES_PER_POLL};
use crate::rx_mux::{Attachment, FrameSink, ShardLink};

/// What a link server counts beside what its link does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Bursts that had frames.
    pub rx_bursts: u64,
    /// The same, out.
    pub tx_bursts: u64,
    /// Times it slept.
    pub sleeps: u64,
}

/// Where frames come from.
pub enum Frames {
    /// A queue of its own.
    Queue(Box<dyn Link>),
    /// Queues that many shards share.
    Shared(Box<ShardLink>),
}

/// Owns one queue of a link, or a share of all.
pub struct LinkServer {
    frames: Frames,
    counters: LinkCounters,
}

impl LinkServer {
    /// Takes over a queue, or a share.
    #[must_use]
    pub fn new(frames: Frames) -> Self {
        Self { frames, counters: LinkCounters::default() }
    }

    /// Lends a poll's share of waiting frames to the taker. How many there were.
    ///
    /// # Errors
    /// What the link says.
    pub fn receive(&mut self, taker: &mut impl FrameSink) -> Result<usize, LinkError> {
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
        };
        self.counters.rx_bursts += u64::from(frames > 0);
        Ok(frames)
    }

    /// Takes connections that other shards hand over to this one.
    pub fn take_handovers(&mut self) -> Vec<stack::Handover> {
        match &mut self.frames {
            Frames::Queue(_) => Vec::new(),
            Frames::Shared(link) => link.take_handovers(),
        }
    }

    /// A listener is gone: frames that were steered here before go on to where they belong now.
    pub fn steer_again(&mut self) {
        if let Frames::Shared(link) = &mut self.frames {
            link.steer_again();
        }
    }

    /// Lets `fill` fill frames until it has none left, or a poll's share. How many left.
    ///
    /// # Errors
    /// What the link says.
    pub fn transmit(
        &mut self,
        mut fill: impl FnMut(&mut [u8]) -> Option<stack::Transmit>,
    ) -> Result<usize, LinkError> {
        let mut fill = |room: &mut [u8]| {
            let transmit = fill(room)?;
            Some(megapipe_link::TxMetadata {
                len: transmit.len,
                checksum_start: transmit.checksum_start,
                checksum_field: transmit.checksum_field,
                segment_bytes: transmit.segment_bytes,
                header_bytes: transmit.header_bytes,
            })
        };
        let frames = match &mut self.frames {
            Frames::Queue(link) => link.tx_burst(TX_FRAMES_PER_POLL, &mut fill)?,
            Frames::Shared(link) => link.transmit(TX_FRAMES_PER_POLL, &mut fill)?,
        };
        self.counters.tx_bursts += u64::from(frames > 0);
        Ok(frames)
    }

    /// Says which frames are ours ([`Link::set_ownership`]).
    ///
    /// # Errors
    /// What the link says; the ownership is then as it was.
    pub fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        match &mut self.frames {
            Frames::Queue(link) => link.set_ownership(ownership),
            Frames::Shared(link) => link.set_ownership(ownership),
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
        }
    }

    /// Prepares for sleep on [`LinkServer::wait_fd`]. `false`: there is work already.
    ///
    /// # Errors
    /// What the link says.
    pub fn arm(&mut self) -> Result<bool, LinkError> {
        let armed = match &mut self.frames {
            Frames::Queue(link) => link.arm()?,
            Frames::Shared(link) => link.arm()?,
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
        }
    }

    /// What the link can do.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        match &self.frames {
            Frames::Queue(link) => link.caps(),
            Frames::Shared(link) => link.caps(),
        }
    }

    /// The shard's place among others, where it has some.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        match &self.frames {
            Frames::Queue(_) => None,
            Frames::Shared(link) => Some(link.attachment()),
        }
    }

    /// Whether what `remote` sends to `local` by TCP arrives here: a device with queues that are
    /// not open loses what it brings to those.
    #[must_use]
    pub fn arrives_here(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        match &self.frames {
            Frames::Queue(link) => link
                .caps()
                .rss
                .as_ref()
                .is_none_or(|rss| rss.queue(rss.hash(Transport::Tcp, remote, local)).is_some()),
            Frames::Shared(link) => link.arrives_here(local, remote),
        }
    }

    /// What this server counted.
    #[must_use]
    pub const fn counters(&self) -> LinkCounters {
        self.counters
    }
}
