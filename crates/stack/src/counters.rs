//! Event and drop counters, by name.
//!
//! Invariant: every frame that comes in is counted once under `frames_in`, and if nothing could be
//! done with it, once under one reason of [`Drop`].

/// Makes a struct of counters whose names can be listed.
macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl $name {
            /// Each counter with its name, in the order of the declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }
        }
    };
}

/// Makes the enum of drop reasons and their counters.
macro_rules! drops {
    ($($(#[$doc:meta])* $variant:ident => $text:literal,)*) => {
        /// Why a frame was dropped.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Drop { $($(#[$doc])* $variant,)* }

        impl Drop {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The counter's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

drops! {
    /// Shorter than its headers say.
    Truncated => "truncated",
    /// Not for our address on the link.
    OtherLinkAddress => "other_link_address",
    /// An EtherType or a version that we do not speak.
    UnknownNetworkProtocol => "unknown_network_protocol",
    /// A header that contradicts itself.
    BadHeader => "bad_header",
    /// The IPv4 header's checksum is wrong.
    BadIpChecksum => "bad_ip_checksum",
    /// Not for an address of ours.
    OtherAddress => "other_address",
    /// A source that may not be one: multicast, broadcast, loopback, our own.
    BadSource => "bad_source",
    /// IPv4 options or IPv6 extension headers that must not be followed.
    ForbiddenOption => "forbidden_option",
    /// A fragment that overlaps, exceeds the limits or came too late.
    BadFragment => "bad_fragment",
    /// A datagram was given up for another one: no room is left, or both have one identification.
    ReassemblyFull => "reassembly_full",
    /// A transport protocol that we do not speak.
    UnknownTransport => "unknown_transport",
    /// The TCP, UDP or ICMP checksum is wrong.
    BadTransportChecksum => "bad_transport_checksum",
    /// No connection and no listener (answered by RST where the RFC says so).
    NoConnection => "no_connection",
    /// For a connection that moved to another stack a moment ago, or a SYN for a listener that left
    /// others to listen there: the peer sends it again.
    DepartedConnection => "departed_connection",
    /// A SYN for an address where a listener is expected: the peer sends it again.
    AwaitedListener => "awaited_listener",
    /// No UDP endpoint (answered by ICMP).
    NoEndpoint => "no_endpoint",
    /// No buffer for the bytes.
    NoBuffer => "no_buffer",
    /// An endpoint's queue is full, or a listener has so many SYNs that there is no room for more.
    QueueFull => "queue_full",
/// A SYN, or the last ACK of a handshake, for a listener whose backlog is full: the peer
    /// retransmits.
    BacklogFull => "backlog_full",
    /// The same for a listener whose group has as many connections as it may.
    ListenerGroupFull => "listener_group_full",
    /// No room for one more connection.
    NoConnectionRoom => "no_connection_room",
    /// Outside the window (RFC 9293 §3.10.7.4).
    OutsideWindow => "outside_window",
    /// A timestamp from the past (RFC 7323 §5).
    OldTimestamp => "old_timestamp",
    /// An acknowledgment of what was never sent, or too old (RFC 5961 §5).
    BadAck => "bad_ack",
    /// A RST that does not hit the next sequence number (RFC 5961 §3).
    UnexactReset => "unexact_reset",
    /// A SYN within a connection (RFC 5961 §4).
    SynInConnection => "syn_in_connection",
    /// A SYN cookie that is not ours or too old.
    BadCookie => "bad_cookie",
    /// A segment that its state has no use for.
    UnexpectedSegment => "unexpected_segment",
    /// A message that this host has no use for: redirects, routers' and group managers' messages,
    /// echoes that it does not answer.
    IgnoredMessage => "ignored_message",
    /// ARP or NDP that we do not believe.
    BadNeighbourMessage => "bad_neighbour_message",
    /// An ICMP error about nothing of ours, or one outside the window.
    BadIcmpError => "bad_icmp_error",
    /// Over a rate limit.
    RateLimited => "rate_limited",
    /// The next hop did not answer.
    NextHopUnresolved => "next_hop_unresolved",
}

counters! {
    /// What a shard counted since it was made. Drops are apart: [`Counters::drops`].
    Totals {
        /// Frames that came in.
        frames_in,
        /// Frames that went out.
        frames_out,
        /// TCP segments that came in.
        segments_in,
        /// TCP segments that went out.
        segments_out,
        /// Payload bytes that came in and were new.
        bytes_in,
        /// Payload bytes that went out, retransmissions included.
        bytes_out,
        /// Segments that were retransmitted.
        segments_retransmitted,
        /// Segments that came out of order and were kept.
        segments_out_of_order,
        /// Segments, or parts, that had been received before.
        segments_duplicate,
        /// Connections that we began.
        connects,
        /// Connections that a listener got.
        accepts,
        /// Connections among these whose SYN's data was taken, by a Fast Open cookie.
        fast_opens,
        /// Connections that ended by a reset of the peer.
        resets_in,
        /// RSTs that we sent.
        resets_out,
        /// Retransmission timeouts.
        retransmission_timeouts,
        /// Fast recoveries begun.
        recoveries,
        /// Tail loss probes sent.
        tail_loss_probes,
        /// Retransmissions that turned out to be needless.
        spurious_retransmissions,
        /// Challenge ACKs sent.
        challenge_acks,
        /// SYN cookies sent.
        cookies_sent,
        /// Connections made from SYN cookies.
        cookies_accepted,
        /// Keepalives sent.
        keepalives,
        /// Zero-window probes sent.
        window_probes,
        /// Segments that carried congestion experienced.
        congestion_marks_in,
        /// Datagrams that came in.
        datagrams_in,
        /// Datagrams that went out.
        datagrams_out,
        /// ICMP messages that came in.
        icmp_in,
        /// ICMP messages that went out.
        icmp_out,
        /// Packets that were put together from fragments.
        packets_reassembled,
    }
}

/// Everything that a shard counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// What was done.
    pub totals: Totals,
    dropped: [u64; Drop::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        Self { totals: Totals::default(), dropped: [0; Drop::ALL.len()] }
    }
}

impl Counters {
    /// Counts a drop.
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.dropped[reason as usize] += 1;
    }

    /// How many were dropped for `reason`.
    #[must_use]
    pub const fn dropped(&self, reason: Drop) -> u64 {
        self.dropped[reason as usize]
    }

    /// Each reason with its count.
    pub fn drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.iter().map(|reason| (*reason, self.dropped(*reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_is_counted_under_its_reason_alone() {
        let mut counters = Counters::default();
        counters.drop(Drop::BadCookie);
        assert_eq!(counters.dropped(Drop::BadCookie), 1);
        assert_eq!(counters.drops().map(|(_, count)| count).sum::<u64>(), 1);
    }
}
