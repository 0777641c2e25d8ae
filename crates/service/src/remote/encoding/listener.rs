//! A listener that a session adopts, as the call buffer has it: its name, address and options.

use std::net::SocketAddr;

use megapipe_stack::ListenerId;

use super::{ValueReader, ValueWriter, decode_sharing, encode_sharing};
use crate::sharing::{ListenerOptions, Sharing};

/// A listener of one lane, with its options.
pub(in crate::remote) type AdoptedLaneListener = (ListenerId, ListenerOptions);

/// A listener as bytes. The cores whose connections it takes are left out: a session of a daemon
/// takes those of all.
pub(in crate::remote) fn encode_listener(
    listener: ListenerId,
    options: &ListenerOptions,
) -> Vec<u8> {
    let ListenerOptions { address, backlog, sharing } = options;
    let mut to = ValueWriter::default();
    to.u32(listener.index);
    to.u32(listener.generation);
    to.ip(address.ip());
    to.u16(address.port());
    to.u32(*backlog);
    to.u16(encode_sharing(sharing).0);
    to.u32(sharing.fast_open);
    to.into_bytes()
}

/// Reads what [`encode_listener`] made. `None`: it is none.
pub(in crate::remote) fn decode_listener(bytes: &[u8]) -> Option<AdoptedLaneListener> {
    let mut from = ValueReader::new(bytes);
    let listener = ListenerId { index: from.u32()?, generation: from.u32()? };
    let address = SocketAddr::new(from.ip()?, from.u16()?);
    let (backlog, flags, fast_open) = (from.u32()?, from.u16()?, from.u32()?);
    let sharing = decode_sharing(flags, fast_open, None);
    let sharing = sharing.filter(|sharing: &Sharing| encode_sharing(sharing).0 == flags)?;
    from.end((listener, ListenerOptions { address, backlog, sharing }))
}

#[cfg(test)]
mod tests {
    use megapipe_stack::Reuse;

    use super::*;
    use crate::steering::Takes;

    #[test]
    fn adopted_listener_is_read_as_it_was_written() {
        let reuse = Reuse { address: true, port: false, v6_only: true };
        let sharing = Sharing { takes: Takes::Rest, is_exclusive: true, reuse, fast_open: 7 };
        for address in ["10.0.0.1:80", "[fd00::1]:443", "0.0.0.0:1"] {
            let address = address.parse().expect("an address");
            let listener = ListenerId { index: 3, generation: u32::MAX };
            let options = ListenerOptions { address, backlog: 128, sharing: sharing.clone() };
            let mut bytes = encode_listener(listener, &options);
            assert_eq!(decode_listener(&bytes), Some((listener, options)));
            for len in 0..bytes.len() {
                assert_eq!(decode_listener(&bytes[..len]), None, "{len}");
            }
            bytes.push(0);
            assert_eq!(decode_listener(&bytes), None, "a byte more");
        }
        let bytes = encode_listener(
            ListenerId { index: 0, generation: 0 },
            &ListenerOptions {
                address: "10.0.0.1:80".parse().expect("an address"),
                backlog: 1,
                sharing: Sharing::default(),
            },
        );
        let mut unknown = bytes;
        let flags = unknown.len() - 6;
        unknown[flags..flags + 2].fill(0xff);
        assert_eq!(decode_listener(&unknown), None, "flags that nothing has");
    }
}
