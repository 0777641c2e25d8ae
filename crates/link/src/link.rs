//! `trait Link`: one queue of frames, with its capabilities and counters.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{LinkError, LinkMedium, Ownership, Rss, sleep};

/// An IEEE 802 address.
pub type MacAddress = [u8; 6];

/// What is known about the transport checksum of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RxChecksum {
    /// No verification: the reader verifies the frame.
    #[default]
    Unverified,
    /// The device or the sender on this machine vouches for it; the field may hold only the
    /// pseudo header's part.
    Verified,
}

/// What came with a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMetadata {
    /// The state of the transport checksum.
    pub checksums: RxChecksum,
    /// Payload bytes of each segment that was merged into this frame (GRO); 0: not merged.
    pub segment_bytes: u16,
}

/// What is to be done to a frame on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxMetadata {
    /// Length of the frame in bytes, from the start of the slice that was lent.
    pub len: usize,
    /// Offset of the transport header from the frame's start, if the link is to fill in the
    /// transport checksum (the field holds the pseudo header's part then); 0: it is complete.
    pub checksum_start: u16,
    /// Offset of the checksum field from `checksum_start`.
    pub checksum_field: u16,
    /// Payload bytes of each segment that this frame is to be cut into (TSO); 0: send as it is.
    pub segment_bytes: u16,
    /// Bytes of headers, link to transport, that each of those segments starts with.
    pub header_bytes: u16,
}

/// What a link can do. Does not change while it is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// The driver's name, as in `--link tap:…`.
    pub driver: &'static str,
    /// What a frame starts with.
    pub medium: LinkMedium,
    /// Our address on it; zero for [`LinkMedium::Ip`].
    pub mac: MacAddress,
    /// The largest IP packet in bytes.
    pub mtu: usize,
    /// The largest frame in bytes that may be lent for sending: over `mtu` where the link
    /// segments (`tso`).
    pub tx_frame_bytes: usize,
    /// The link fills in transport checksums (TCP, UDP; IPv4, IPv6).
    pub tx_checksum: bool,
    /// The link cuts large TCP frames (IPv4, IPv6).
    pub tso: bool,
    /// The host's address is ours too, and the kernel keeps what is not (`xdp`, `packet`).
    pub shares_host_address: bool,
    /// How the queues that were opened together get their frames, where the device says it; `None`:
    /// that is not known.
    pub rss: Option<Arc<Rss>>,
    /// What else a user should know, in words: copy or zero-copy, native or generic mode, offloads
    /// refused, with reasons.
    pub notes: Vec<String>,
}

/// What a link counts. Frames that were lost say why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameCounters {
    /// Frames lent to the receiver.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames handed to the outside.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Received frames longer than a buffer of this link.
    pub rx_dropped_too_long: u64,
    /// Received frames that break the link's own format (a bad descriptor, a bad header).
    pub rx_dropped_malformed: u64,
    /// Frames that the kernel or the peer reports as lost before we could take them.
    pub rx_dropped_overrun: u64,
    /// Frames that the outside refused when they were handed over.
    pub tx_dropped_refused: u64,
    /// Times when no frame could be lent because the queue to the outside was full.
    pub tx_full: u64,
    /// System calls made.
    pub system_calls: u64,
}

/// One queue of frames in both directions.
///
/// One poll of a loop: `rx_burst`, work, `tx_burst`; then either the next poll or `wait`. Only one
/// thread at a time may call it.
pub trait Link: Send {
    /// What this link can do.
    fn caps(&self) -> &Caps;

    /// Lends at most `max` waiting frames to `each`, oldest first, and returns how many. Does not
    /// block.
    ///
    /// # Errors
    /// [`LinkError::Gone`] or [`LinkError::Io`]; frames lent before count all the same.
    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError>;

    /// Lends room for frames to `fill`, one after another, until it answers `None`, `max` frames
    /// are filled or the queue is full; then hands all of them over. Returns how many were filled.
    /// Does not block. The room's first bytes hold nothing of meaning.
    ///
    /// # Errors
    /// [`LinkError::Gone`] or [`LinkError::Io`].
    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError>;

    /// Prepares for sleep: asks the outside to make [`Link::wait_fd`] readable when a frame comes
    /// (and when there is room again, if the queue was full). `false`: there is work already, do
    /// not sleep.
    ///
    /// # Errors
    /// [`LinkError::Gone`] or [`LinkError::Io`].
    fn arm(&mut self) -> Result<bool, LinkError>;

    /// The descriptor to poll for reading, after [`Link::arm`] said `true`.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Arms and sleeps until there is a frame, or `timeout` has passed (`None`: for ever).
    /// `true`: there may be work.
    ///
    /// # Errors
    /// [`LinkError::Gone`] or [`LinkError::Io`].
    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        if !self.arm()? {
            return Ok(true);
        }
        let woken = sleep::until_readable(self.wait_fd(), timeout);
        self.slept();
        woken
    }

    /// Records a frame that the stack sent to itself, and that this link does not see, where there
    /// is a capture.
    fn record_looped(&mut self, frame: &[u8], transmit: TxMetadata) {
        let _ = (frame, transmit);
    }

    /// Called by [`Link::wait`] after a sleep, so that a driver counts it, or disables wake-ups by
    /// the peer.
    fn slept(&mut self) {}

    /// What was counted since the link was opened.
    fn counters(&self) -> FrameCounters;

    /// Says which frames are ours, where the host's address is shared
    /// ([`Caps::shares_host_address`]). Such a link starts with nothing. Any other link takes all
    /// that reaches it, and has nothing to do here.
    ///
    /// # Errors
    /// [`LinkError::Setting`] when a port is another program's or the rules are too many. The
    /// ownership is then as it was.
    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        let _ = ownership;
        Ok(())
    }

    /// Whether an ownership fits the link: [`Link::set_ownership`] would not refuse it for its
    /// size. Changes nothing.
    ///
    /// # Errors
    /// [`LinkError::Setting`] when the rules are too many.
    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        let _ = ownership;
        Ok(())
    }
}

/// A link chosen at run time is a link: wrappers go around it as around any other.
impl<L: Link + ?Sized> Link for Box<L> {
    fn caps(&self) -> &Caps {
        (**self).caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        (**self).rx_burst(max, each)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        (**self).tx_burst(max, fill)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        (**self).arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        (**self).wait_fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        (**self).wait(timeout)
    }

    fn record_looped(&mut self, frame: &[u8], transmit: TxMetadata) {
        (**self).record_looped(frame, transmit);
    }

    fn slept(&mut self) {
        (**self).slept();
    }

    fn counters(&self) -> FrameCounters {
        (**self).counters()
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        (**self).set_ownership(ownership)
    }

    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        (**self).check_ownership(ownership)
    }
}
