//! What the binary parser says of single requests, complete and cut off.

use super::*;

fn frame(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![MAGIC_REQUEST, opcode];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0, 0, 0]);
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend(0xdead_beef_u32.to_be_bytes());
    bytes.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
    [&bytes, extras, key, value].concat()
}

#[test]
fn a_request_is_read_whole() {
    let bytes = frame(0x11, &[0, 0, 0, 9, 0, 0, 1, 0], b"key", b"value");
    let ParsedFrame::Frame { frame, consumed } = parse(&bytes) else {
        panic!("a request");
    };
    assert_eq!(consumed, bytes.len() - 5);
    assert_eq!(frame.operation, BinaryOperation::Store(StoreKind::Set));
    assert!(frame.quiet);
    assert_eq!((frame.opaque, frame.cas), (0xdead_beef, 0x0102_0304_0506_0708));
    assert_eq!((frame.extra_u32(0), frame.extra_u32(4)), (9, 256));
    assert_eq!((frame.key, frame.value_len), (&b"key"[..], 5));
    assert_eq!(frame.extra_u64(0), 9 << 32 | 256);
    assert_eq!(frame.extra_u32(5), 0, "beyond the extras");
    for len in 0..consumed {
        assert_eq!(parse(&bytes[..len]), ParsedFrame::NeedMore);
    }
}

#[test]
fn parts_must_fit_the_opcode() {
    let mut huge = frame(0x00, b"", b"key", b"");
    huge[8] = 0x7f;
    for (bytes, expected, must_close) in [
        (frame(0x00, b"1234", b"key", b""), BinaryStatus::InvalidArguments, true),
        (frame(0x00, b"", b"", b""), BinaryStatus::InvalidArguments, true),
        (frame(0x00, b"", &[b'k'; 251], b""), BinaryStatus::InvalidArguments, true),
        (frame(0x01, b"", b"key", b"v"), BinaryStatus::InvalidArguments, true),
        (frame(0x05, b"1234", b"key", b""), BinaryStatus::InvalidArguments, true),
        (frame(0x08, b"123", b"", b""), BinaryStatus::InvalidArguments, true),
        (frame(0x0a, b"", b"key", b""), BinaryStatus::InvalidArguments, true),
        (frame(0x10, b"", b"key", b"v"), BinaryStatus::InvalidArguments, true),
        (huge, BinaryStatus::InvalidArguments, true),
        (frame(0x20, b"", b"", b""), BinaryStatus::UnknownCommand, false),
        (frame(0xff, b"12", b"key", b"v"), BinaryStatus::UnknownCommand, false),
    ] {
        let ParsedFrame::Fault { status, close, .. } = parse(&bytes) else {
            panic!("{bytes:?} is no request");
        };
        assert_eq!((status, close), (expected, must_close));
    }
    let mut short = frame(0x00, b"", b"key", b"");
    short[11] = 2;
    assert!(matches!(
        parse(&short),
        ParsedFrame::Fault { status: BinaryStatus::UnknownCommand, close: true, .. }
    ));
}

#[test]
fn another_magic_is_no_request() {
    assert_eq!(parse(b"\x81"), ParsedFrame::NotARequest);
    assert_eq!(parse(b"get"), ParsedFrame::NotARequest);
    assert_eq!(parse(&[0; 30]), ParsedFrame::NotARequest);
}

#[test]
fn a_response_header_is_what_a_client_reads() {
    let header = ResponseHeader {
        opcode: 0x0c,
        opaque: 7,
        status: BinaryStatus::KeyNotFound as u16,
        cas: 9,
        extras_len: 4,
        key_len: 3,
        value_len: 2,
    };
    let expected = [0x81, 0x0c, 0, 3, 4, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9];
    assert_eq!(header.to_bytes(), expected);
}
