//! Result of the input path: what a received frame is for the transports.

use super::{Arrived, IcmpError, IcmpReport};
use crate::wire::Protocol;

/// What became of a frame.
pub(crate) enum Inbound<'a> {
    /// A segment.
    Tcp(Arrived<'a>),
    /// A datagram, and the packet to quote if no endpoint matches.
    Udp(Arrived<'a>, Original<'a>),
    /// Either of them, reassembled from fragments to an address shared with the host's kernel.
    /// Fragments carry no ports, so both sides receive them; only the owner of the port may answer.
    Shared(Protocol, Arrived<'a>),
    /// An error about something that a transport sent.
    Icmp(IcmpError, IcmpReport<'a>),
    /// It was for this layer, or waits for other fragments.
    Handled,
}

/// A packet that a complaint is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Original<'a> {
    /// From the IP header on.
    pub packet: &'a [u8],
    /// Sent to a multicast or broadcast address, on the link or in IP.
    pub to_group: bool,
}
