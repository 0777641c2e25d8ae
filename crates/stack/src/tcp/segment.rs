//! A received segment with metadata of its packet.

use crate::counters::Drop;
use crate::flow_table::Flow;
use crate::frame::{Checksums, Received};
use crate::ip::Arrived;
use crate::seq::SeqNum;
use crate::wire::fast_path::{FastSegment, Other};
use crate::wire::tcp::{Flags, Options, View};
use crate::wire::{Ecn, Protocol, checksum};

/// A segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment<'a> {
    pub(crate) flow: Flow,
    pub(crate) seq: SeqNum,
    /// Means something with ACK only.
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    /// Not scaled.
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Options,
    pub(crate) payload: &'a [u8],
    pub(crate) ecn: Ecn,
    /// Payload bytes of each of the segments that the link merged; 0: it is one.
    pub(crate) segment_bytes: u16,
}

impl<'a> Segment<'a> {
    /// Checks lengths and checksum.
    pub(crate) fn parse(arrived: &Arrived<'a>) -> Result<Self, Drop> {
        let view = View::new(arrived.payload)?;
        if arrived.checksums == Checksums::Unverified {
            let pseudo = checksum::pseudo_header(
                arrived.src,
                arrived.dst,
                Protocol::Tcp.number(),
                arrived.payload.len(),
            );
            // MUST-3.
            if !view.checksum_is_right(pseudo) {
                return Err(Drop::BadTransportChecksum);
            }
        }
        Ok(Self {
            flow: Flow {
                local: arrived.dst.into(),
                remote: arrived.src.into(),
                local_port: view.dst_port(),
                remote_port: view.src_port(),
            },
            seq: view.seq(),
            ack: view.ack(),
            flags: view.flags(),
            window: view.window(),
            urgent: view.urgent(),
            options: view.options(),
            payload: view.payload(),
            ecn: arrived.ecn,
            segment_bytes: arrived.segment_bytes,
        })
    }

    /// The same of headers that were read already, without a mark of congestion; the checksum is
    /// to be checked.
    #[inline(always)]
    pub(crate) fn of_fast_segment(usual: &FastSegment<'a>, received: Received) -> Self {
        Self {
            flow: Flow {
                local: usual.dst,
                remote: usual.src,
                local_port: usual.dst_port,
                remote_port: usual.src_port,
            },
            seq: usual.content.seq(),
            ack: usual.content.ack(),
            flags: usual.flags,
            window: usual.content.window(),
            urgent: 0,
            options: Options { timestamps: usual.content.times(), ..Options::default() },
            payload: usual.content.payload,
            ecn: Ecn::NotEct,
            segment_bytes: received.segment_bytes,
        }
    }

    /// The same of a segment with other flags, or with a SYN's options.
    #[inline(always)]
    pub(crate) fn of_other(other: &Other<'a>, received: Received) -> Self {
        Self {
            flow: Flow {
                local: other.dst,
                remote: other.src,
                local_port: other.dst_port,
                remote_port: other.src_port,
            },
            seq: other.seq,
            ack: other.ack,
            flags: other.flags,
            window: other.window,
            urgent: 0,
            options: other.options,
            payload: other.payload,
            ecn: Ecn::NotEct,
            segment_bytes: received.segment_bytes,
        }
    }

    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// SEG.LEN: sequence numbers that it takes (RFC 9293 §3.3.1).
    pub(crate) fn len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.has(Flags::SYN))
            + u32::from(self.has(Flags::FIN))
    }

    /// One past its last sequence number.
    pub(crate) fn end(&self) -> SeqNum {
        self.seq + self.len()
    }

    /// Where its payload starts.
    pub(crate) fn payload_seq(&self) -> SeqNum {
        self.seq + u32::from(self.has(Flags::SYN))
    }
}
