//! Control data (cmsg) of datagrams on our own stack: written for recvmsg(2), parsed for
//! sendmsg(2). On the kernel it is the kernel's, and passes through unchanged.
//!
//! Read first: cmsg(3), ip(7) on IP_PKTINFO, ipv6(7), socket(7) on SO_TIMESTAMP.
//!
//! Pure: facts and bytes go in, bytes and errors come out. Messages are written in Linux's order
//! and cut as Linux cuts them; a message that is not known here is rejected, as by Linux (EINVAL).
//!
//! Invariant: nothing is written that would not fit, and nothing is read beyond what was given.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bitflags::bitflags;
use megapipe::{Arrival, Departure};

use crate::error::Error;
use crate::error_queue::QueuedError;

bitflags! {
    /// Kinds of control messages that a socket has requested.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub(crate) struct ControlKinds: u16 {
        /// IP_PKTINFO: where it was sent to.
        const PLACE4 = 1;
        /// IP_RECVTTL.
        const HOPS4 = 1 << 1;
        /// IP_RECVTOS.
        const CLASS4 = 1 << 2;
        /// IPV6_RECVPKTINFO.
        const PLACE6 = 1 << 3;
        /// IPV6_RECVHOPLIMIT.
        const HOPS6 = 1 << 4;
        /// IPV6_RECVTCLASS.
        const CLASS6 = 1 << 5;
        /// SO_TIMESTAMP: in microseconds.
        const STAMP = 1 << 6;
        /// SO_TIMESTAMPNS: in nanoseconds, instead.
        const STAMP_NS = 1 << 7;
        /// IP_RECVERR: errors wait in a queue of their own.
        const ERRORS4 = 1 << 8;
        /// IPV6_RECVERR.
        const ERRORS6 = 1 << 9;
        /// UDP_GRO: several datagrams of one sender are returned as one, with the size of each.
        const SEGMENTS = 1 << 10;
        /// TCP_INQ: bytes that a stream has left to read.
        const UNREAD = 1 << 11;
    }
}

impl ControlKinds {
    /// The option that asks for something, if it is one.
    pub(crate) const fn by(level: i32, name: i32) -> Option<Self> {
        Some(match (level, name) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => Self::PLACE4,
            (libc::IPPROTO_IP, libc::IP_RECVTTL) => Self::HOPS4,
            (libc::IPPROTO_IP, libc::IP_RECVTOS) => Self::CLASS4,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => Self::PLACE6,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT) => Self::HOPS6,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) => Self::CLASS6,
            (libc::IPPROTO_IP, libc::IP_RECVERR) => Self::ERRORS4,
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => Self::ERRORS6,
            (libc::SOL_UDP, libc::UDP_GRO) => Self::SEGMENTS,
            (libc::SOL_SOCKET, libc::SO_TIMESTAMP) => Self::STAMP,
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS) => Self::STAMP_NS,
            _ => return None,
        })
    }

    /// The option by which errors of datagrams to `ip` are queued.
    pub(crate) const fn errors_of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::ERRORS4 } else { Self::ERRORS6 }
    }

    /// Asks for it, or not any more. Of the two stamps the last one asked for counts.
    pub(crate) fn ask(&mut self, what: Self, on: bool) {
        let stamps = Self::STAMP | Self::STAMP_NS;
        if stamps.contains(what) {
            self.remove(stamps);
        }
        self.set(what, on);
    }
}

/// Each recvmsg(2) on a stream reports how much is left to read (linux/tcp.h).
pub(crate) const TCP_INQ: i32 = 36;
/// The index of the one interface that our own stack has.
const INTERFACE: u32 = 1;
/// `struct cmsghdr`: a length, a level, a type.
const HEADER_BYTES: usize = 16;

const fn aligned(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// Control data on its way to the caller's memory.
struct ControlWriter<'a> {
    to: &'a mut [u8],
    filled: usize,
    is_cut: bool,
}

impl ControlWriter<'_> {
    /// One message, or as much of it as there is room for (`put_cmsg` in the kernel).
    fn put(&mut self, level: i32, name: i32, parts: &[&[u8]]) {
        let room = &mut self.to[self.filled..];
        if room.len() < HEADER_BYTES {
            self.is_cut = true;
            return;
        }
        let data_len: usize = parts.iter().map(|part| part.len()).sum();
        let len = (HEADER_BYTES + data_len).min(room.len());
        self.is_cut |= len < HEADER_BYTES + data_len;
        let header = [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &name.to_ne_bytes()];
        let bytes = header.iter().chain(parts).flat_map(|part| part.iter());
        room[..len].iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        let space = aligned(HEADER_BYTES + data_len).min(room.len());
        room[len.min(space)..space].fill(0);
        self.filled += space;
    }

    fn put_stamp(&mut self, kinds: ControlKinds, stamp: Duration) {
        let seconds = (stamp.as_secs() as i64).to_ne_bytes();
        if kinds.contains(ControlKinds::STAMP_NS) {
            let nanos = i64::from(stamp.subsec_nanos()).to_ne_bytes();
            self.put(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &[&seconds, &nanos]);
        } else if kinds.contains(ControlKinds::STAMP) {
            let micros = i64::from(stamp.subsec_micros()).to_ne_bytes();
            self.put(libc::SOL_SOCKET, libc::SO_TIMESTAMP, &[&seconds, &micros]);
        }
    }

    /// `local`: the local address that the datagram was for, which IPv4 has beside its destination.
    fn put_arrival(&mut self, kinds: ControlKinds, arrival: Arrival, is_v6: bool, local: Ipv4Addr) {
        let index = INTERFACE.to_ne_bytes();
        let (hops, class) = (i32::from(arrival.hop_limit), i32::from(arrival.traffic_class));
        if is_v6 && kinds.contains(ControlKinds::PLACE6) {
            let to = match arrival.to {
                IpAddr::V4(to) => to.to_ipv6_mapped(),
                IpAddr::V6(to) => to,
            };
            self.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &[&to.octets(), &index]);
        }
        match arrival.to {
            IpAddr::V4(to) => {
                if kinds.contains(ControlKinds::PLACE4) {
                    let parts: [&[u8]; 3] = [&index, &local.octets(), &to.octets()];
                    self.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &parts);
                }
                if kinds.contains(ControlKinds::HOPS4) {
                    self.put(libc::IPPROTO_IP, libc::IP_TTL, &[&hops.to_ne_bytes()]);
                }
                if kinds.contains(ControlKinds::CLASS4) {
                    self.put(libc::IPPROTO_IP, libc::IP_TOS, &[&[arrival.traffic_class]]);
                }
            }
            IpAddr::V6(_) => {
                if kinds.contains(ControlKinds::HOPS6) {
                    self.put(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &[&hops.to_ne_bytes()]);
                }
                if kinds.contains(ControlKinds::CLASS6) {
                    self.put(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &[&class.to_ne_bytes()]);
                }
            }
        }
    }
}

/// What control data contains of the datagrams of one recvmsg(2).
#[derive(Debug, Clone, Copy)]
pub(crate) struct DatagramMetadata {
    pub(crate) arrival: Arrival,
    /// When it came, since 1970.
    pub(crate) stamp: Duration,
    /// Bytes of each datagram but the last one, where there are several.
    pub(crate) segment_len: Option<usize>,
}

/// Writes what a datagram's receiver has asked for. How many bytes, and whether there was too
/// little room (MSG_CTRUNC).
pub(crate) fn write_control(
    kinds: ControlKinds,
    metadata: DatagramMetadata,
    is_v6: bool,
    to: &mut [u8],
) -> (usize, bool) {
    let mut out = ControlWriter { to, filled: 0, is_cut: false };
    let DatagramMetadata { arrival, stamp, segment_len } = metadata;
    out.put_stamp(kinds, stamp);
    if let Some(len) = segment_len {
        out.put(libc::SOL_UDP, libc::UDP_GRO, &[&(len as i32).to_ne_bytes()]);
    }
    let local = match arrival.to {
        IpAddr::V4(to) => to,
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    };
    out.put_arrival(kinds, arrival, is_v6, local);
    (out.filled, out.is_cut)
}

/// Writes how much a stream has left to read (TCP_INQ); returns as [`write_control`] does.
pub(crate) fn write_unread(unread: i32, to: &mut [u8]) -> (usize, bool) {
    let mut out = ControlWriter { to, filled: 0, is_cut: false };
    // Its option and its message have one number (TCP_CM_INQ).
    out.put(libc::SOL_TCP, TCP_INQ, &[&unread.to_ne_bytes()]);
    (out.filled, out.is_cut)
}

/// Writes the control messages of a queued error; returns as [`write_control`] does.
pub(crate) fn write_error(
    kinds: ControlKinds,
    failure: &QueuedError,
    is_v6: bool,
    to: &mut [u8],
) -> (usize, bool) {
    let mut out = ControlWriter { to, filled: 0, is_cut: false };
    out.put_stamp(kinds, failure.stamp);
    if let Some(arrival) = failure.arrival {
        // Of the place that was asked for, the kernel knows nothing here.
        out.put_arrival(kinds, arrival, is_v6, Ipv4Addr::UNSPECIFIED);
    }
    let (level, name) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        false => (libc::IPPROTO_IP, libc::IP_RECVERR),
    };
    let (bytes, len) = failure.extended(is_v6);
    out.put(level, name, &[&bytes[..len]]);
    (out.filled, out.is_cut)
}

/// The messages in control data: level, type and bytes of each.
struct ControlMessages<'a> {
    left: &'a [u8],
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = Result<(i32, i32, &'a [u8]), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (header, _) = self.left.split_first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| {
            i32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let len = header.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let Some(data) = self.left.get(HEADER_BYTES..len) else {
            self.left = &[];
            return Some(Err(Error::InvalidArgument));
        };
        self.left = self.left.get(aligned(len)..).unwrap_or_default();
        Some(Ok((word(8), word(12), data)))
    }
}

/// Copies the kernel's control data, cut as the kernel would have cut it: how much, and whether
/// there was too little room.
pub(crate) fn copy_control(control: &[u8], to: &mut [u8]) -> (usize, bool) {
    let mut out = ControlWriter { to, filled: 0, is_cut: false };
    for (level, name, data) in (ControlMessages { left: control }).flatten() {
        out.put(level, name, &[data]);
    }
    (out.filled, out.is_cut)
}

/// How a datagram is to leave that is sent with this control data, and otherwise as `departure`;
/// `is_v4`: it goes to IPv4.
///
/// # Errors
/// EINVAL for what is malformed, out of range or not known here, ENODEV for another interface.
pub(crate) fn parse_departure(
    control: &[u8],
    is_v4: bool,
    mut departure: Departure,
) -> Result<Departure, Error> {
    for message in (ControlMessages { left: control }) {
        let (level, name, data) = message?;
        match (level, name) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if is_v4 => {
                // The index, the source, and a place that only receivers read.
                let bytes: &[u8; 12] = data.try_into().map_err(|_| Error::InvalidArgument)?;
                check_interface([bytes[0], bytes[1], bytes[2], bytes[3]])?;
                let from = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
                departure.from = (!from.is_unspecified()).then_some(from.into());
            }
            (libc::IPPROTO_IP, libc::IP_TTL) if is_v4 => {
                departure.hop_limit = Some(within(int(data)?, 1)?);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) if is_v4 => {
                departure.traffic_class = match data {
                    [class] => *class,
                    data => within(int(data)?, 0)?,
                };
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let bytes: &[u8; 20] = data.try_into().map_err(|_| Error::InvalidArgument)?;
                let from = bytes
                    .first_chunk()
                    .map_or(Ipv6Addr::UNSPECIFIED, |it: &[u8; 16]| Ipv6Addr::from(*it));
                check_interface([bytes[16], bytes[17], bytes[18], bytes[19]])?;
                departure.from = match (from.to_ipv4_mapped(), is_v4) {
                    _ if from.is_unspecified() => None,
                    (Some(from), true) => Some(from.into()),
                    (None, false) => Some(from.into()),
                    _ => return Err(Error::InvalidArgument),
                };
            }
            (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) if !is_v4 => match int(data)? {
                -1 => {}
                hops => departure.hop_limit = Some(within(hops, 0)?),
            },
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if !is_v4 => match int(data)? {
                -1 => {}
                class => departure.traffic_class = within(class, 0)?,
            },
            // It determines how many datagrams there are (`parse_segment_len`).
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {}
            // What is of the other family is passed over, as in Linux.
            (libc::IPPROTO_IP, _) if !is_v4 => {}
            (libc::IPPROTO_IPV6, _) if is_v4 => {}
            _ => return Err(Error::InvalidArgument),
        }
    }
    Ok(departure)
}

/// The bytes of each datagram that control data asks for (UDP_SEGMENT), or `otherwise`; 0: there is
/// one datagram.
///
/// # Errors
/// EINVAL for what is malformed.
pub(crate) fn parse_segment_len(control: &[u8], otherwise: u16) -> Result<u16, Error> {
    let mut segment_len = otherwise;
    for message in (ControlMessages { left: control }) {
        if let (libc::SOL_UDP, libc::UDP_SEGMENT, data) = message? {
            let bytes = data.try_into().map_err(|_| Error::InvalidArgument)?;
            segment_len = u16::from_ne_bytes(bytes);
        }
    }
    Ok(segment_len)
}

/// Control data for a stream: there is nothing that it could ask for. What is not of SOL_SOCKET is
/// passed over, as in Linux.
pub(crate) fn check_for_stream(control: &[u8]) -> Result<(), Error> {
    for message in (ControlMessages { left: control }) {
        if message?.0 == libc::SOL_SOCKET {
            return Err(Error::InvalidArgument);
        }
    }
    Ok(())
}

fn check_interface(index: [u8; 4]) -> Result<(), Error> {
    match u32::from_ne_bytes(index) {
        0 | INTERFACE => Ok(()),
        _ => Err(Error::NoDevice),
    }
}

fn int(data: &[u8]) -> Result<i32, Error> {
    let bytes = data.try_into().map_err(|_| Error::InvalidArgument)?;
    Ok(i32::from_ne_bytes(bytes))
}

fn within(number: i32, min: u8) -> Result<u8, Error> {
    let number = u8::try_from(number).map_err(|_| Error::InvalidArgument)?;
    if number < min { Err(Error::InvalidArgument) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: Arrival =
        Arrival { to: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), hop_limit: 61, traffic_class: 0xb9 };
    const TAKEN: DatagramMetadata =
        DatagramMetadata { arrival: V4, stamp: Duration::ZERO, segment_len: None };

    fn message(level: i32, name: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        let mut out = ControlWriter { to: &mut bytes, filled: 0, is_cut: false };
        out.put(level, name, &[data]);
        let filled = out.filled;
        bytes.truncate(filled);
        bytes
    }

    #[test]
    fn written_control_data_is_parsed_again() {
        let mut control = [0; 256];
        let kinds = ControlKinds::PLACE4 | ControlKinds::HOPS4 | ControlKinds::CLASS4;
        let (len, is_cut) = write_control(kinds, TAKEN, false, &mut control);
        assert_eq!((len, is_cut), (32 + 24 + 24, false));
        let departure = parse_departure(&control[..len], true, Departure::default()).unwrap();
        let expected = Departure { from: Some(V4.to), hop_limit: Some(61), traffic_class: 0xb9 };
        assert_eq!(departure, expected);
    }

    #[test]
    fn control_data_is_cut_as_by_linux() {
        let kinds = ControlKinds::HOPS4 | ControlKinds::CLASS4;
        for (room, expected) in
            [(0, (0, true)), (15, (0, true)), (16, (16, true)), (20, (20, true)), (24, (24, true))]
        {
            let mut control = vec![0xff; room];
            assert_eq!(write_control(kinds, TAKEN, false, &mut control), expected, "{room}");
        }
        let mut control = [0; 41];
        assert_eq!(write_control(kinds, TAKEN, false, &mut control), (41, false));
    }

    #[test]
    fn malformed_control_data_is_rejected() {
        let plain = Departure::default();
        let ip = libc::IPPROTO_IP;
        for (control, error) in [
            (message(ip, libc::IP_TTL, &0_i32.to_ne_bytes()), Error::InvalidArgument),
            (message(ip, libc::IP_TTL, &256_i32.to_ne_bytes()), Error::InvalidArgument),
            (message(ip, libc::IP_TTL, &[64]), Error::InvalidArgument),
            (message(ip, libc::IP_TOS, &300_i32.to_ne_bytes()), Error::InvalidArgument),
            (message(ip, libc::IP_PKTINFO, &[0; 8]), Error::InvalidArgument),
            (message(ip, libc::IP_PKTINFO, &[9; 12]), Error::NoDevice),
            (message(ip, libc::IP_RETOPTS, &[0; 4]), Error::InvalidArgument),
            (message(libc::SOL_SOCKET, libc::SO_MARK, &[0; 4]), Error::InvalidArgument),
            (message(libc::SOL_UDP, libc::UDP_GRO, &[0; 4]), Error::InvalidArgument),
            (vec![0xff; 24], Error::InvalidArgument),
            (vec![0; 24], Error::InvalidArgument),
        ] {
            assert_eq!(parse_departure(&control, true, plain), Err(error), "{control:?}");
        }
        assert_eq!(parse_departure(&[0; 15], true, plain), Ok(plain), "too short for a message");
        let other = message(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &[0; 4]);
        assert_eq!(parse_departure(&other, true, plain), Ok(plain), "the other family's");
    }

    #[test]
    fn last_requested_stamp_counts() {
        let mut kinds = ControlKinds::default();
        kinds.ask(ControlKinds::STAMP, true);
        kinds.ask(ControlKinds::STAMP_NS, true);
        assert_eq!(kinds, ControlKinds::STAMP_NS);
        kinds.ask(ControlKinds::STAMP, false);
        assert_eq!(kinds, ControlKinds::empty());
    }
}
