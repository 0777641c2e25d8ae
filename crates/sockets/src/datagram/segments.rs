//! Several datagrams in one call: UDP_SEGMENT cuts what is sent, UDP_GRO joins what is received.
//!
//! Read first: udp(7), `udp_send_skb` and `udp_gro_receive` in the kernel.
//!
//! What is joined is what waits at the socket when the program reads: datagrams one after the
//! other, of one sender, that came alike, all as long as the first one, but for the last.
//!
//! Invariant: what is joined is no longer than a datagram may be, and of [`SEGMENTS_MAX`] at most.

use super::DatagramSocket;
use crate::control_data::{ControlKinds, DatagramMetadata, copy_control, write_control};
use crate::gather::ReceivePieces;
use crate::limits::{DATAGRAM_BYTES_MAX, SEGMENTS_MAX};

/// The datagrams at the front that a program reads as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DatagramRun {
    /// How many.
    pub(super) count: usize,
    /// Bytes of them all.
    pub(super) bytes: usize,
}

impl DatagramSocket {
    /// What the next read takes; nothing of it, where there is nothing.
    pub(super) fn run(&self) -> DatagramRun {
        let mut run = DatagramRun { count: 0, bytes: 0 };
        let Some(first) = self.inbox.front() else { return run };
        let joins =
            self.options.control_kinds.contains(ControlKinds::SEGMENTS) && first.arrival.is_some();
        let most = if joins { SEGMENTS_MAX } else { 1 };
        let segment_len = first.data.len();
        for message in self.inbox.iter().take(most) {
            let len = message.data.len();
            let is_alike = message.from == first.from && message.arrival == first.arrival;
            let fits = len <= segment_len && run.bytes + len <= DATAGRAM_BYTES_MAX;
            if run.count > 0 && !(is_alike && fits && len > 0) {
                break;
            }
            run.count += 1;
            run.bytes += len;
            if len < segment_len {
                break;
            }
        }
        run
    }

    /// Copies a run, and writes its control data: how much of that, and whether there was too
    /// little room for it.
    pub(super) fn show(
        &self,
        run: DatagramRun,
        to: &mut ReceivePieces<'_, '_>,
        control: &mut [u8],
    ) -> (usize, bool) {
        for message in self.inbox.iter().take(run.count) {
            to.put(&message.data, false);
        }
        let Some(first) = self.inbox.front() else { return (0, false) };
        let (kinds, stamp) = (self.options.control_kinds, first.stamp);
        match first.arrival {
            Some(_) if kinds.is_empty() => (0, false),
            Some(arrival) => {
                let segment_len = (run.count > 1).then_some(first.data.len());
                write_control(
                    kinds,
                    DatagramMetadata { arrival, stamp, segment_len },
                    self.is_v6,
                    control,
                )
            }
            None if first.control.is_empty() => (0, false),
            None => copy_control(&first.control, control),
        }
    }
}
