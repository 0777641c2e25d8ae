//! Negotiated options of a connection: MSS, window scale, timestamps, SACK, ECN.
//!
//! Read first: RFC 9293 §3.7.1 (MSS), RFC 7323 §2.2 and §3.2, RFC 2018 §2, RFC 3168 §6.1.1.
//!
//! Invariant: an option is in use only if both SYNs carried it; a peer never gets one in its
//! SYN-ACK that its SYN did not have.

use crate::config::TcpConfig;
use crate::host_address::HostAddress;
use crate::limits::{MSS_DEFAULT, MSS_DEFAULT_V6, MSS_MIN, WINDOW_SCALE_MAX};
use crate::wire::headers::Offers;
use crate::wire::tcp::{Flags, Options, Timestamps};

const TCP_HEADER_BYTES: u16 = 20;
/// Timestamps in every segment cost so many bytes.
pub(crate) const TIMESTAMPS_BYTES: u16 = 12;

/// What a peer's SYN offered, or what both agreed on: four bytes, so that an embryonic connection
/// is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    /// Largest payload of a segment without options, in bytes.
    pub(crate) mss: u16,
    /// The peer's window shift; `None`: windows are not scaled.
    pub(crate) window_scale: Option<u8>,
    pub(crate) timestamps: bool,
    pub(crate) sack: bool,
    pub(crate) ecn: bool,
}

impl Offer {
    /// What a SYN or SYN-ACK offers, of what `config` lets us use.
    pub(crate) fn of(config: &TcpConfig, options: &Options, remote: HostAddress) -> Self {
        // MUST-15; a smaller one than MSS_MIN would make us send mostly headers.
        let mss = options.mss.unwrap_or_else(|| default_mss(remote)).max(MSS_MIN);
        let window_scale = options
            .window_scale
            .filter(|_| config.window_scaling)
            // RFC 7323 §2.3: a larger shift counts as the largest.
            .map(|shift| shift.min(WINDOW_SCALE_MAX));
        Self {
            mss,
            window_scale,
            timestamps: config.timestamps && options.timestamps.is_some(),
            sack: config.sack && options.sack_permitted,
            ecn: false,
        }
    }
}

/// The MSS of a peer that does not name one.
pub(crate) const fn default_mss(remote: HostAddress) -> u16 {
    if remote.is_ipv4() { MSS_DEFAULT } else { MSS_DEFAULT_V6 }
}

/// The largest text, without TCP options, in a segment of `segment_bytes` (MUST-16, MUST-67).
pub(crate) fn mss_of(segment_bytes: u16) -> u16 {
    segment_bytes.saturating_sub(TCP_HEADER_BYTES).max(MSS_MIN)
}

/// The MSS that we announce where a packet holds `segment_bytes`.
pub(crate) fn announced_mss(config: &TcpConfig, segment_bytes: u16) -> u16 {
    let fits = mss_of(segment_bytes);
    config.mss.map_or(fits, |mss| mss.min(fits).max(MSS_MIN))
}

/// The window shift that we announce: the smallest that lets the largest buffer be said.
pub(crate) fn announced_scale(config: &TcpConfig) -> u8 {
    let needed = || {
        let buffer = config.receive_buffer_max.max(config.receive_buffer);
        let bits = u32::BITS - (buffer >> 16).leading_zeros();
        (bits as u8).min(WINDOW_SCALE_MAX)
    };
    config.window_scale.unwrap_or_else(needed).min(WINDOW_SCALE_MAX)
}

/// What our SYN offers.
pub(crate) fn syn_options(
    config: &TcpConfig,
    mss: u16,
    timestamp: u32,
) -> (Offers, Option<Timestamps>) {
    let window_scale = config.window_scaling.then(|| announced_scale(config));
    let times = config.timestamps.then_some(Timestamps { value: timestamp, echo: 0 });
    (Offers { mss: Some(mss), sack_permitted: config.sack, window_scale }, times)
}

/// What our SYN-ACK agrees to, of what the SYN had.
pub(crate) fn syn_ack_options(
    config: &TcpConfig,
    offer: &Offer,
    mss: u16,
    timestamps: Timestamps,
) -> (Offers, Option<Timestamps>) {
    let window_scale = offer.window_scale.map(|_| announced_scale(config));
    let times = offer.timestamps.then_some(timestamps);
    (Offers { mss: Some(mss), sack_permitted: offer.sack, window_scale }, times)
}

/// RFC 3168 §6.1.1: an ECN-setup SYN has ECE and CWR.
pub(crate) const fn is_ecn_setup_syn(flags: Flags) -> bool {
    flags.contains(Flags::ECE) && flags.contains(Flags::CWR)
}

/// RFC 3168 §6.1.1: an ECN-setup SYN-ACK has ECE without CWR.
pub(crate) const fn is_ecn_setup_syn_ack(flags: Flags) -> bool {
    flags.contains(Flags::ECE) && !flags.contains(Flags::CWR)
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const V4: HostAddress = HostAddress::of_ipv4(Ipv4Addr::LOCALHOST);
    const V6: HostAddress = HostAddress::of_ipv6(Ipv6Addr::LOCALHOST);

    #[test]
    fn an_mss_is_assumed_and_bounded() {
        let config = TcpConfig::default();
        let of = |mss, remote| Offer::of(&config, &Options { mss, ..Options::default() }, remote);
        assert_eq!(of(None, V4).mss, 536);
        assert_eq!(of(None, V6).mss, 1220);
        assert_eq!(of(Some(1), V4).mss, MSS_MIN);
        assert_eq!(of(Some(9000), V4).mss, 9000);
        assert_eq!(announced_mss(&config, 1480), 1460);
        assert_eq!(announced_mss(&config, 1460), 1440);
        let small = TcpConfig { mss: Some(1000), ..config };
        assert_eq!(announced_mss(&small, 1480), 1000);
    }

    #[test]
    fn the_window_scale_is_as_large_as_the_buffer_needs() {
        let with = |receive_buffer_max| {
            let receive_buffer = 1000;
            announced_scale(&TcpConfig {
                receive_buffer_max,
                receive_buffer,
                ..TcpConfig::default()
            })
        };
        assert_eq!(with(65_535), 0);
        assert_eq!(with(65_536), 1);
        assert_eq!(with(6 << 20), 7);
        assert_eq!(with(1 << 30), WINDOW_SCALE_MAX);
    }

    #[test]
    fn what_is_switched_off_is_neither_taken_nor_offered() {
        let config = TcpConfig {
            window_scaling: false,
            timestamps: false,
            sack: false,
            ..TcpConfig::default()
        };
        let (offers, timestamps) = syn_options(&TcpConfig::default(), 1460, 7);
        let options = offers.and(timestamps);
        let offer = Offer::of(&config, &options, V4);
        assert_eq!((offer.window_scale, offer.timestamps, offer.sack), (None, false, false));
        let mine = syn_options(&config, 1460, 7);
        assert_eq!(mine, (Offers { mss: Some(1460), ..Offers::NONE }, None));
        let times = Timestamps { value: 1, echo: 2 };
        assert_eq!(syn_ack_options(&config, &offer, 1460, times), mine);
    }
}
