//! The link server: owns one queue of a link, and moves frames between it and the stack.
//!
//! Read first: `megapipe_link::Link`.
//!
//! Invariant: frames are counted where they are moved; what the link lost is the link's to count.

use std::os::fd::BorrowedFd;

use megapipe_link::{Caps, Checksums, Counters, Link, LinkError, Ownership};
use megapipe_stack as stack;

use crate::limits::{RX_FRAMES_PER_TURN, TX_FRAMES_PER_TURN};

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

/// Owns one queue of a link.
pub struct LinkServer {
    link: Box<dyn Link>,
    counters: LinkCounters,
}

impl LinkServer {
    /// Takes over a queue.
    #[must_use]
    pub fn new(link: Box<dyn Link>) -> Self {
        Self { link, counters: LinkCounters::default() }
    }

    /// Lends a turn's share of waiting frames to `each`. How many there were.
    ///
    /// # Errors
    /// What the link says.
    pub fn receive(
        &mut self,
        mut each: impl FnMut(&[u8], stack::Received),
    ) -> Result<usize, LinkError> {
        let frames = self.link.rx_burst(RX_FRAMES_PER_TURN, &mut |frame, received| {
            let checksums = match received.checksums {
                Checksums::Unverified => stack::Checksums::Unverified,
                Checksums::Verified => stack::Checksums::Verified,
            };
            let segment_bytes = received.segment_bytes;
            each(frame, stack::Received { checksums, segment_bytes });
        })?;
        self.counters.rx_bursts += u64::from(frames > 0);
        Ok(frames)
    }

    /// Lets `fill` fill frames until it has none left, or a turn's share. How many left.
    ///
    /// # Errors
    /// What the link says.
    pub fn transmit(
        &mut self,
        mut fill: impl FnMut(&mut [u8]) -> Option<stack::Transmit>,
    ) -> Result<usize, LinkError> {
        let frames = self.link.tx_burst(TX_FRAMES_PER_TURN, &mut |room| {
            let transmit = fill(room)?;
            Some(megapipe_link::Transmit {
                len: transmit.len,
                checksum_start: transmit.checksum_start,
                checksum_field: transmit.checksum_field,
                segment_bytes: transmit.segment_bytes,
                header_bytes: transmit.header_bytes,
            })
        })?;
        self.counters.tx_bursts += u64::from(frames > 0);
        Ok(frames)
    }

    /// Says which frames are ours ([`Link::set_ownership`]).
    ///
    /// # Errors
    /// What the link says; the ownership is then as it was.
    pub fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.set_ownership(ownership)
    }

    /// Prepares for sleep on [`LinkServer::wait_fd`]. `false`: there is work already.
    ///
    /// # Errors
    /// What the link says.
    pub fn arm(&mut self) -> Result<bool, LinkError> {
        let armed = self.link.arm()?;
        self.counters.sleeps += u64::from(armed);
        Ok(armed)
    }

    /// What to poll for reading while asleep.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.link.wait_fd()
    }

    /// What the link can do.
    #[must_use]
    pub fn caps(&self) -> &Caps {
        self.link.caps()
    }

    /// What the link counted.
    #[must_use]
    pub fn link_counters(&self) -> Counters {
        self.link.counters()
    }

    /// What this server counted.
    #[must_use]
    pub const fn counters(&self) -> LinkCounters {
        self.counters
    }
}
