//! What goes over the wire when a link was asked to cut a frame or to fill in a checksum.
//!
//! Read first: RFC 9293 §3.1 (the pseudo header), RFC 8200 §8.1; for the cutting, what Linux
//! documents under "Segmentation Offloads".
//!
//! Pure: a frame and what is to be done to it in, frames out.
//!
//! Invariants
//! - Segments are the frame's payload in order, nothing twice and nothing left out.
//! - A frame that is not what its `TxMetadata` says is handed on as it is.

use crate::checksum::{fold, sum};
use crate::virtio::ip_header;
use crate::{LinkMedium, TxMetadata};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// Offset of the checksum in UDP and TCP headers.
const UDP_FIELD: u16 = 6;
const TCP_FIELD: u16 = 16;
const TCP_FLAGS: usize = 13;
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Calls `out` with each frame that a link makes of `frame`. `scratch` has to be as long as the
/// frame.
pub(super) fn each(
    medium: LinkMedium,
    frame: &[u8],
    transmit: TxMetadata,
    scratch: &mut [u8],
    out: &mut dyn FnMut(&[u8]),
) {
    if transmit.checksum_start == 0 {
        return out(frame);
    }
    let start = usize::from(transmit.checksum_start);
    let field = start + usize::from(transmit.checksum_field);
    if field + 2 > frame.len() || frame.len() > scratch.len() {
        return out(frame);
    }
    if let Some(cut) = Cut::new(medium, frame, transmit) {
        return cut.each(scratch, out);
    }
    let whole = &mut scratch[..frame.len()];
    whole.copy_from_slice(frame);
    // The field holds the pseudo header's part, so it is summed with the rest.
    let value = !fold(sum(0, &whole[start..]));
    let is_udp = transmit.checksum_field == UDP_FIELD;
    // RFC 768: a sum of zero is sent as all ones.
    let value = if is_udp && value == 0 { 0xffff } else { value };
    whole[field..field + 2].copy_from_slice(&value.to_be_bytes());
    out(whole);
}

/// Fills in the checksum of a received frame that is marked as verified but carries none.
/// Returns anything but whole TCP and UDP packets unchanged.
pub(super) fn completed<'a>(
    medium: LinkMedium,
    frame: &'a [u8],
    scratch: &'a mut [u8],
) -> &'a [u8] {
    let Some((start, field, pseudo, end)) = transport(medium, frame) else {
        return frame;
    };
    let Some(whole) = scratch.get_mut(..frame.len()) else {
        return frame;
    };
    whole.copy_from_slice(frame);
    whole[field..field + 2].fill(0);
    let value = !fold(sum(pseudo, &whole[start..end]));
    let is_udp = field == start + usize::from(UDP_FIELD);
    let value = if is_udp && value == 0 { 0xffff } else { value };
    whole[field..field + 2].copy_from_slice(&value.to_be_bytes());
    whole
}

/// Where the transport header starts, where its checksum is, the sum of the pseudo header, and
/// where the packet ends.
fn transport(medium: LinkMedium, frame: &[u8]) -> Option<(usize, usize, u32, usize)> {
    let (ip, version) = ip_header(medium, frame)?;
    let half = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
    let (start, end, protocol, addresses) = if version == 4 {
        let is_fragment = half(ip + 6)? & 0x3fff != 0;
        let start = ip + usize::from(frame[ip] & 15) * 4;
        let end = ip + usize::from(half(ip + 2)?);
        (!is_fragment).then_some((start, end, *frame.get(ip + 9)?, ip + 12..ip + 20))?
    } else {
        let end = ip + 40 + usize::from(half(ip + 4)?);
        (ip + 40, end, *frame.get(ip + 6)?, ip + 8..ip + 40)
    };
    let field = start
        + match protocol {
            TCP => usize::from(TCP_FIELD),
            UDP => usize::from(UDP_FIELD),
            _ => return None,
        };
    if field + 2 > end || end > frame.len() {
        return None;
    }
    let addresses = frame.get(addresses)?;
    Some((start, field, pseudo_sum(addresses, protocol, end - start), end))
}

fn pseudo_sum(addresses: &[u8], protocol: u8, len: usize) -> u32 {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    sum(sum(u32::from(protocol), addresses), &len.to_be_bytes())
}

/// A TCP frame that is to be cut.
struct Cut<'a> {
    headers: &'a [u8],
    payload: &'a [u8],
    segment_bytes: usize,
    /// Where the IP header starts, and its version.
    ip: (usize, u8),
    /// Where the TCP header starts.
    tcp: usize,
}

impl<'a> Cut<'a> {
    fn new(medium: LinkMedium, frame: &'a [u8], transmit: TxMetadata) -> Option<Self> {
        let (headers, payload) = frame.split_at_checked(usize::from(transmit.header_bytes))?;
        let tcp = usize::from(transmit.checksum_start);
        let (ip, version) = ip_header(medium, frame)?;
        let is_tcp = transmit.checksum_field == TCP_FIELD && headers.len() >= tcp + 20;
        let fits_ip = tcp >= ip + if version == 4 { 20 } else { 40 };
        let segment_bytes = usize::from(transmit.segment_bytes);
        (is_tcp && fits_ip && segment_bytes > 0 && !payload.is_empty()).then_some(Self {
            headers,
            payload,
            segment_bytes,
            ip: (ip, version),
            tcp,
        })
    }

    fn each(&self, scratch: &mut [u8], out: &mut dyn FnMut(&[u8])) {
        let count = self.payload.len().div_ceil(self.segment_bytes);
        for (index, part) in self.payload.chunks(self.segment_bytes).enumerate() {
            let segment = &mut scratch[..self.headers.len() + part.len()];
            let (headers, payload) = segment.split_at_mut(self.headers.len());
            headers.copy_from_slice(self.headers);
            payload.copy_from_slice(part);
            let flags = &mut headers[self.tcp + TCP_FLAGS];
            if index > 0 {
                *flags &= !CWR;
            }
            if index + 1 < count {
                *flags &= !FIN_AND_PSH;
            }
            self.number(headers, index, part.len());
            self.fill_checksum(segment);
            out(segment);
        }
    }

    /// Lengths, identification, and sequence number of one segment.
    fn number(&self, headers: &mut [u8], index: usize, payload_bytes: usize) {
        let (ip, version) = self.ip;
        let packet_bytes = (headers.len() - ip + payload_bytes) as u16;
        if version == 4 {
            let identification = u16::from_be_bytes([headers[ip + 4], headers[ip + 5]]);
            let identification = identification.wrapping_add(index as u16);
            headers[ip + 2..ip + 4].copy_from_slice(&packet_bytes.to_be_bytes());
            headers[ip + 4..ip + 6].copy_from_slice(&identification.to_be_bytes());
            headers[ip + 10..ip + 12].fill(0);
            let value = !fold(sum(0, &headers[ip..self.tcp]));
            headers[ip + 10..ip + 12].copy_from_slice(&value.to_be_bytes());
        } else {
            headers[ip + 4..ip + 6].copy_from_slice(&(packet_bytes - 40).to_be_bytes());
        }
        let at = self.tcp + 4;
        let sequence: [u8; 4] = std::array::from_fn(|byte| headers[at + byte]);
        let sent = (index * self.segment_bytes) as u32;
        let sequence = u32::from_be_bytes(sequence).wrapping_add(sent);
        headers[at..at + 4].copy_from_slice(&sequence.to_be_bytes());
    }

    fn fill_checksum(&self, segment: &mut [u8]) {
        let (ip, version) = self.ip;
        let addresses = if version == 4 { ip + 12..ip + 20 } else { ip + 8..ip + 40 };
        let pseudo = pseudo_sum(&segment[addresses], TCP, segment.len() - self.tcp);
        let field = self.tcp + usize::from(TCP_FIELD);
        segment[field..field + 2].fill(0);
        let value = !fold(sum(pseudo, &segment[self.tcp..]));
        segment[field..field + 2].copy_from_slice(&value.to_be_bytes());
    }
}
