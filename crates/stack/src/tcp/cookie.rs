//! SYN cookies: stateless handshakes (RFC 4987 §3.6).
//!
//! Read first: RFC 4987 §3.6 and appendix A.
//!
//! ```text
//!   sequence number:  | count of 64 s: 5 bits | MSS: 3 | hash of flow, IRS and count: 24 |
//!   timestamp:        | clock: 26 bits | ECN: 1 | SACK: 1 | scale: 4 bits, 15 if none |
//! ```
//!
//! Invariant: a cookie is good for the 64 s of its count and the 64 s after them.

use super::handshake::Offer;
use super::isn::{Secret, Use};
use crate::flow_table::Flow;
use crate::limits::MSS_MIN;
use crate::seq::SeqNum;
use crate::time::Instant;
use crate::wire::tcp::Timestamps;

/// The MSS that a cookie can name: the largest that is not over the peer's.
const MSS: [u16; 8] = [MSS_MIN, 536, 1220, 1300, 1400, 1440, 1460, 8960];
const HASH_BITS: u32 = 24;
const HASH_MASK: u32 = (1 << HASH_BITS) - 1;
const COUNT_MASK: u32 = 31;
const COUNT_S: u64 = 64;
/// Low bits of a timestamp that hold options.
const STAMP_MASK: u32 = 0x3f;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// What a cookie says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cookie {
    pub(super) mss: u16,
}

fn count(now: Instant) -> u64 {
    now.as_millis() / 1000 / COUNT_S
}

fn hash(secret: &Secret, flow: &Flow, irs: SeqNum, low: u32, count: u64) -> u32 {
    let extra = u64::from(irs.0) << 32 | u64::from(low);
    let first = secret.hash(Use::Cookie, flow, extra);
    secret.hash(Use::CookieCount, flow, first ^ count) as u32 & HASH_MASK
}

/// The sequence number of a SYN-ACK that says everything.
pub(super) fn make(secret: &Secret, flow: &Flow, irs: SeqNum, now: Instant, mss: u16) -> SeqNum {
    let index = MSS.iter().rposition(|known| *known <= mss).unwrap_or(0) as u32;
    let count = count(now);
    let top = (count as u32 & COUNT_MASK) << 3 | index;
    SeqNum(top << HASH_BITS | hash(secret, flow, irs, index, count))
}

/// Whether `iss` is a cookie of ours, and not too old.
pub(super) fn check(
    secret: &Secret,
    flow: &Flow,
    irs: SeqNum,
    now: Instant,
    iss: SeqNum,
) -> Option<Cookie> {
    let top = iss.0 >> HASH_BITS;
    let index = top & 7;
    let current = count(now);
    let is_of = |count: &u64| {
        *count as u32 & COUNT_MASK == top >> 3
            && hash(secret, flow, irs, index, *count) == iss.0 & HASH_MASK
    };
    let candidates = [Some(current), current.checked_sub(1)];
    candidates.iter().flatten().find(|count| is_of(count))?;
    Some(Cookie { mss: MSS[index as usize] })
}

/// Our timestamp, with the options of the SYN in its low bits. It is never later than `clock`.
pub(super) fn stamp(clock: u32, offer: &Offer) -> u32 {
    let mut low = offer.window_scale.map_or(NO_SCALE, u32::from);
    if offer.sack {
        low |= SACK;
    }
    if offer.ecn {
        low |= ECN;
    }
    let stamp = clock & !STAMP_MASK | low;
    if stamp > clock { stamp.wrapping_sub(STAMP_MASK + 1) } else { stamp }
}

/// What of an offer comes back: without timestamps, nothing but the MSS.
pub(super) fn kept(offer: &Offer) -> Offer {
    if offer.timestamps {
        return *offer;
    }
    Offer { window_scale: None, sack: false, ecn: false, ..*offer }
}

/// The offer that an echoed timestamp brings back.
pub(super) fn read_stamp(timestamps: Option<Timestamps>, mss: u16) -> Offer {
    let Some(times) = timestamps else {
        return Offer { mss, window_scale: None, timestamps: false, sack: false, ecn: false };
    };
    let low = times.echo & STAMP_MASK;
    let scale = low & 15;
    Offer {
        mss,
        window_scale: (scale != NO_SCALE).then_some(scale as u8),
        timestamps: true,
        sack: low & SACK != 0,
        ecn: low & ECN != 0,
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    fn flow(remote_port: u16) -> Flow {
        let ip = Ipv4Addr::new(10, 0, 0, 1).into();
        Flow { local: ip, remote: ip, local_port: 80, remote_port }
    }

    #[test]
    fn a_cookie_is_good_for_its_flow_and_a_minute_or_two() {
        let secret = Secret::new(&[9; 16]);
        let at = Instant::from_millis(1_000_000);
        let cookie = make(&secret, &flow(5), SeqNum(77), at, 1447);
        let check = |flow: &Flow, irs, later_s: u64| {
            let now = Instant::from_millis(1_000_000 + later_s * 1000);
            check(&secret, flow, SeqNum(irs), now, cookie).map(|cookie| cookie.mss)
        };
        assert_eq!(check(&flow(5), 77, 0), Some(1440));
        assert_eq!(check(&flow(5), 77, 64), Some(1440));
        assert_eq!(check(&flow(5), 77, 130), None);
        assert_eq!(check(&flow(6), 77, 0), None);
        assert_eq!(check(&flow(5), 78, 0), None);
        // The count's five bits come round again; the hash does not.
        assert_eq!(check(&flow(5), 77, 64 * 32), None);
    }

    #[test]
    fn a_timestamp_brings_the_options_back() {
        let offer =
            Offer { mss: 1460, window_scale: Some(7), timestamps: true, sack: true, ecn: false };
        for clock in [0_u32, 63, 64, 100_000, u32::MAX] {
            let value = stamp(clock, &offer);
            assert!(clock.wrapping_sub(value) <= 128, "{clock}: {value}");
            let echoed = Timestamps { value: 0, echo: value };
            assert_eq!(read_stamp(Some(echoed), 1460), offer);
        }
        let bare = Offer { window_scale: None, timestamps: false, sack: false, ..offer };
        assert_eq!(read_stamp(None, 1460), bare);
        assert_eq!(kept(&Offer { timestamps: false, ..offer }), bare);
    }
}
