//! Transport checksums that a sender on this machine left to its device.
//!
//! A veth passes frames to its other end in memory. If the sender's kernel offloads checksums, the
//! field holds the sum of the pseudo header only, and nothing completes it: AF_XDP hides the mark
//! (`CHECKSUM_PARTIAL`) that the kernel's own receiver goes by. A stack that verified such a
//! segment would drop it, and every other one of that sender.
//!
//! Pure: a frame in, an answer out.

use crate::checksum::{fold, sum};

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The bit for more fragments, and the fragment's offset.
const FRAGMENT: u16 = 0x3fff;

/// Whether the checksum field of a TCP segment or UDP datagram holds the sum of its pseudo header.
/// One complete checksum of 65,536 looks the same.
pub(super) fn has_partial_checksum(frame: &[u8]) -> bool {
    is_partial(frame).unwrap_or(false)
}

/// `None`: too short, or another protocol.
fn is_partial(frame: &[u8]) -> Option<bool> {
    let packet = frame.get(14..)?;
    let (addresses, protocol, transport, len) = match [frame[12], frame[13]] {
        IPV4 => {
            let header_bytes = usize::from(packet.first()? & 15) * 4;
            if half(packet, 6)? & FRAGMENT != 0 {
                return None;
            }
            let len = usize::from(half(packet, 2)?).checked_sub(header_bytes)?;
            (packet.get(12..20)?, packet[9], packet.get(header_bytes..)?, len)
        }
        // Behind another extension header nothing of ours comes.
        IPV6 => (packet.get(8..40)?, packet[6], packet.get(40..)?, half(packet, 4)?.into()),
        _ => return None,
    };
    let field = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let pseudo_header = sum(u32::from(protocol) + len as u32, addresses);
    Some(half(transport, field)? == fold(pseudo_header))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ethernet frame with a TCP segment of 20 bytes, and this checksum.
    fn segment(is_ipv6: bool, checksum: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if is_ipv6 {
            frame.extend(IPV6);
            frame.extend([0x60, 0, 0, 0, 0, 20, TCP, 64]);
            frame.extend([1; 16]);
            frame.extend([2; 16]);
        } else {
            frame.extend(IPV4);
            frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([7; 16]);
        frame.extend(checksum.to_be_bytes());
        frame.extend([0; 2]);
        frame
    }

    #[test]
    fn partial_checksum_is_the_sum_of_the_pseudo_header() {
        let v4 = fold(sum(6 + 20, &[10, 0, 0, 1, 10, 0, 0, 2]));
        let v6 = fold(sum(6 + 20, &[[1; 16], [2; 16]].concat()));
        for (is_ipv6, partial) in [(false, v4), (true, v6)] {
            assert!(has_partial_checksum(&segment(is_ipv6, partial)));
            assert!(!has_partial_checksum(&segment(is_ipv6, !partial)));
            assert!(!has_partial_checksum(&segment(is_ipv6, partial ^ 1)));
        }
    }

    #[test]
    fn partial_checksum_of_other_frames_is_none() {
        let whole = segment(false, fold(sum(6 + 20, &[10, 0, 0, 1, 10, 0, 0, 2])));
        for len in 0..14 + 20 + 18 {
            assert!(!has_partial_checksum(&whole[..len]), "{len} bytes");
        }
        for (at, byte) in [(12, 9), (14 + 6, 0x20), (14 + 9, 1), (14, 0x4f)] {
            let mut other = whole.clone();
            other[at] = byte;
            assert!(!has_partial_checksum(&other), "byte {at}");
        }
    }
}
