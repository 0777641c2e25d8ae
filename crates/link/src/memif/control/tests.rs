//! Each message survives the way there and back, lies where the protocol puts it, and no bytes
//! make the decoder fall.

use super::*;

fn hello() -> MemifMessage {
    MemifMessage::Hello(Hello {
        name: FixedText::new("a server"),
        version_min: VERSION,
        version_max: VERSION,
        region_index_max: 3,
        to_client_index_max: 4,
        to_server_index_max: 5,
        ring_size_log2_max: 14,
    })
}

fn add_ring() -> AddRing {
    AddRing {
        to_server: true,
        index: 1,
        region: 2,
        offset: 0x1234_5678,
        size_log2: 10,
        private_header_bytes: 7,
    }
}

#[test]
fn each_message_survives_the_way_there_and_back() {
    let name = FixedText::new("port0");
    let init = Init { version: VERSION, id: 7, mode: 1, secret: [9; SECRET_BYTES], name };
    let all = [
        MemifMessage::Ack,
        hello(),
        MemifMessage::Init(init),
        MemifMessage::AddRegion { index: 1, bytes: 1 << 33 },
        MemifMessage::AddRing(add_ring()),
        MemifMessage::AddRing(AddRing { to_server: false, ..add_ring() }),
        MemifMessage::Connect { name },
        MemifMessage::Connected { name },
        MemifMessage::Disconnect { code: 5, reason: FixedText::new("enough") },
    ];
    for message in all {
        assert_eq!(MemifMessage::decode(&message.encode()), Ok(message));
    }
}

/// The offsets of `memif.h`: packed, behind the type's two bytes.
#[test]
fn fields_lie_where_the_protocol_puts_them() {
    let bytes = hello().encode();
    assert_eq!(&bytes[..2], 2u16.to_ne_bytes());
    assert_eq!(&bytes[2..10], b"a server");
    assert_eq!(&bytes[34..36], VERSION.to_ne_bytes());
    assert_eq!(&bytes[42..44], 5u16.to_ne_bytes());
    assert_eq!(bytes[44], 14);
    let bytes = MemifMessage::AddRing(add_ring()).encode();
    assert_eq!(&bytes[8..12], 0x1234_5678u32.to_ne_bytes());
    assert_eq!(bytes[12], 10);
    assert_eq!(&bytes[13..15], 7u16.to_ne_bytes());
    let bytes = MemifMessage::AddRegion { index: 1, bytes: 0x55aa }.encode();
    assert_eq!(&bytes[4..12], 0x55aau64.to_ne_bytes());
}

#[test]
fn a_long_text_is_cut_before_its_zero() {
    let text: FixedText<8> = FixedText::new("0123456789");
    assert_eq!(text.to_text(), "0123456");
    assert_eq!(FixedText([b'x'; 8]).to_text(), "xxxxxxxx");
    assert_eq!(FixedText(*b"a\x1b[2J\xff\0b").to_text(), "a\u{fffd}[2J\u{fffd}");
}

#[test]
fn no_bytes_make_the_decoder_fall() {
    assert_eq!(MemifMessage::decode(&[0; 127]), Err(NoMessage::Length));
    assert_eq!(MemifMessage::decode(&[]), Err(NoMessage::Length));
    for kind in 0..=u8::MAX {
        for fill in [0, 0x7f, 0xff] {
            let mut bytes = [fill; MESSAGE_BYTES];
            bytes[..2].copy_from_slice(&u16::from(kind).to_ne_bytes());
            let decoded = MemifMessage::decode(&bytes);
            assert_eq!(decoded.is_ok(), (1..=8).contains(&kind));
        }
    }
}
