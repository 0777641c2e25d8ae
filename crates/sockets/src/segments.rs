//! Several datagrams in one call: UDP_SEGMENT cuts what is sent, UDP_GRO joins what is received.
//!
//! Read first: udp(7), `udp_send_skb` and `udp_gro_receive` in the kernel.
//!
//! What is joined is what waits at the socket when the program reads: datagrams one after the
//! other, of one sender, that came alike, all as long as the first one, but for the last.
//!
//! Invariant: what is joined is no longer than a datagram may be, and of [`SEGMENTS_MAX`] at most.

use std::net::SocketAddr;

use megapipe::{Departure, OpError};

use crate::control::{Taken, Told, copy, tell};
use crate::datagram::Endpoint;
use crate::error::Error;
use crate::gather::{Gather, Scatter};
use crate::limits::{DATAGRAM_BYTES_MAX, SEGMENTS_MAX};
use crate::sockets::Sockets;

/// The datagrams at the front that a program reads as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// How many.
    pub(crate) count: usize,
    /// Bytes of them all.
    pub(crate) bytes: usize,
}

impl Endpoint {
    /// What the next read takes; nothing of it, where there is nothing.
    pub(crate) fn run(&self) -> Run {
        let mut run = Run { count: 0, bytes: 0 };
        let Some(first) = self.inbox.front() else { return run };
        let joins = self.options.told.contains(Told::SEGMENTS) && first.arrival.is_some();
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
    pub(crate) fn show(
        &self,
        run: Run,
        to: &mut Scatter<'_, '_>,
        control: &mut [u8],
    ) -> (usize, bool) {
        for message in self.inbox.iter().take(run.count) {
            to.put(&message.data, false);
        }
        let Some(first) = self.inbox.front() else { return (0, false) };
        let (told, stamp) = (self.options.told, first.stamp);
        match first.arrival {
            Some(_) if told.is_empty() => (0, false),
            Some(arrival) => {
                let segment_len = (run.count > 1).then_some(first.data.len());
                tell(told, Taken { arrival, stamp, segment_len }, self.is_v6, control)
            }
            None if first.control.is_empty() => (0, false),
            None => copy(&first.control, control),
        }
    }
}

impl Sockets {
    /// Gives a datagram to our own stack, or several where it is longer than a segment.
    pub(crate) fn send_to_stack(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        to: SocketAddr,
        (departure, segment_len): (&Departure, usize),
    ) -> Result<usize, Error> {
        let len = from.left();
        let is_cut = segment_len > 0 && len > segment_len;
        if segment_len > 0 && len > segment_len * SEGMENTS_MAX {
            return Err(Error::InvalidArgument);
        }
        let Some((endpoint, channel)) = self.endpoint_mut(object) else {
            return Err(Error::NotASocket);
        };
        let handle = endpoint.towards(to);
        let mut bytes = channel.alloc(len);
        from.take(len, |part| bytes.extend_from_slice(part));
        let sent = match is_cut {
            true => channel.send_datagrams(handle, (bytes, segment_len), to, departure),
            false => channel.send_datagram(handle, bytes, to, departure),
        };
        match sent {
            Ok(()) => Ok(len),
            Err(OpError::MessageTooLong) if !is_cut => Err(self.refuse_length(object, to)),
            Err(error) => Err(error.into()),
        }
    }
}
