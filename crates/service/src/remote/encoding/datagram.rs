//! A datagram of an endpoint with several owners, as the call buffer has it.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::Arrival;

use super::{ValueReader, ValueWriter};

/// A datagram, and how it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDatagram {
    /// Its sender.
    pub from: SocketAddr,
    /// How it arrived.
    pub arrival: Arrival,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What the server gives: a datagram, and 1 more than the bytes of the first one that waits
/// afterwards, or 0.
pub(in crate::remote) type TakenDatagram = (SharedDatagram, u32);

/// A datagram as bytes: at most [`crate::limits::CALL_BYTES`], as it is no longer than a packet.
pub(in crate::remote) fn encode_datagram(
    (from, arrival): (SocketAddr, Arrival),
    waiting: u32,
    bytes: &[u8],
) -> Vec<u8> {
    let mut to = ValueWriter::default();
    to.u32(waiting);
    to.ip(from.ip());
    to.u16(from.port());
    to.ip(arrival.to);
    to.u8(arrival.hop_limit);
    to.u8(arrival.traffic_class);
    to.bytes(bytes);
    to.into_bytes()
}

/// Reads what [`encode_datagram`] made. `None`: it is none.
pub(in crate::remote) fn decode_datagram(bytes: &[u8]) -> Option<TakenDatagram> {
    let mut from = ValueReader::new(bytes);
    let (waiting, ip, port) = (from.u32()?, from.ip()?, from.u16()?);
    let (to, hop_limit, traffic_class) = (from.ip()?, from.u8()?, from.u8()?);
    let arrival = Arrival { to, hop_limit, traffic_class };
    let is_of_family = |other: IpAddr| other.is_ipv4() == ip.is_ipv4();
    let datagram = from.bytes().filter(|_| is_of_family(to))?.to_vec();
    let datagram = SharedDatagram { from: SocketAddr::new(ip, port), arrival, bytes: datagram };
    from.end((datagram, waiting))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::CALL_BYTES;

    #[test]
    fn shared_datagrams_are_read_as_they_were_written() {
        for (from, to, most) in
            [("10.0.0.2:9", "10.0.0.1", 65_507), ("[fd00::2]:9", "fd00::1", 65_487)]
        {
            for len in [0, 1, most] {
                let from: SocketAddr = from.parse().unwrap();
                let arrival =
                    Arrival { to: to.parse().unwrap(), hop_limit: 63, traffic_class: 0xb8 };
                let bytes = vec![7; len];
                let mut encoded = encode_datagram((from, arrival), 5, &bytes);
                assert!(encoded.len() <= CALL_BYTES, "{}", encoded.len());
                let datagram = SharedDatagram { from, arrival, bytes };
                assert_eq!(decode_datagram(&encoded), Some((datagram, 5)));
                for short in 0..encoded.len().min(60) {
                    assert_eq!(decode_datagram(&encoded[..short]), None);
                }
                encoded.push(0);
                assert_eq!(decode_datagram(&encoded), None);
            }
        }
        let arrival = Arrival { to: "fd00::1".parse().unwrap(), hop_limit: 1, traffic_class: 0 };
        let mixed = encode_datagram(("10.0.0.2:9".parse().unwrap(), arrival), 0, b"x");
        assert_eq!(decode_datagram(&mixed), None);
    }
}
