//! Headers round-trip; invalid requests are rejected; responses have their length.

use super::*;

fn request(lengths: Lengths, tag: u32) -> Vec<u8> {
    let mut bytes = header(lengths, tag).to_vec();
    bytes.extend((bytes.len()..lengths.request as usize).map(|index| (index * 7) as u8));
    bytes
}

fn echo_len(bytes: &[u8], defaults: Lengths) -> usize {
    echoes(bytes, defaults).len
}

fn lengths(request: u32, response: u32) -> Lengths {
    Lengths { request, response }
}

/// Feeds `stream` in pieces of `piece_len` bytes; returns the responses in full.
fn responses(stream: &[u8], piece_len: usize) -> Result<Vec<Vec<u8>>, LengthError> {
    let mut framer = Framer::default();
    let mut all = Vec::new();
    for mut piece in stream.chunks(piece_len) {
        while !piece.is_empty() {
            if let Some(reply) = framer.next(&mut piece, Lengths::default())? {
                let mut response = Vec::new();
                reply.append_to(&mut response);
                assert_eq!(response.len(), reply.response_len as usize);
                all.push(response);
            }
        }
    }
    assert!(framer.at_boundary(), "the stream ends with a request");
    Ok(all)
}

#[test]
fn a_plain_request_is_echoed() {
    let plain = [9; 64];
    assert_eq!(responses(&plain, 64), Ok(vec![plain.to_vec()]));
    assert_eq!(echo_len(&plain, Lengths::default()), 64);
}

#[test]
fn replies_do_not_depend_on_how_the_stream_is_cut() {
    let shapes = [(64, 64), (16, 1), (16, 64), (100, 30), (1024, 1024), (40, 65_536 * 2 + 5)];
    let stream: Vec<u8> = shapes
        .iter()
        .zip(0..)
        .flat_map(|(&(asked, owed), tag)| request(lengths(asked, owed), tag))
        .collect();
    let whole = responses(&stream, stream.len()).expect("well-formed");
    assert_eq!(whole.len(), shapes.len());
    for (response, (&(asked, owed), tag)) in whole.iter().zip(shapes.iter().zip(0..)) {
        let sent = request(lengths(asked, owed), tag);
        let prefix = &sent[..asked.min(owed).min(64) as usize];
        assert_eq!(response.len(), owed as usize);
        assert!(matches_response(prefix, 0, response));
    }
    for piece_len in [1, 2, 3, 15, 16, 17, 63, 64, 65, 1000] {
        assert_eq!(responses(&stream, piece_len).as_ref(), Ok(&whole), "pieces of {piece_len}");
    }
}

#[test]
fn only_whole_echoes_are_sent_back_as_they_are() {
    let echo = request(lengths(64, 64), 1);
    let short = request(lengths(20, 20), 2);
    let sized = request(lengths(64, 100), 3);
    let long = request(lengths(65, 65), 4);
    let defaults = Lengths::default();
    assert_eq!(echo_len(&[&echo[..], &short, &echo].concat(), defaults), 148);
    assert_eq!(echo_len(&[&echo[..], &sized].concat(), defaults), 64);
    assert_eq!(echo_len(&long, defaults), 0, "the last byte comes from the pattern");
    assert_eq!(echo_len(&echo[..63], defaults), 0);
    assert_eq!(echo_len(&[&echo[..], &echo[..10]].concat(), defaults), 64);
    assert_eq!(echo_len(&[7; 64], lengths(64, 128)), 0);
    assert_eq!(echoes(&[&echo[..], &short, &echo].concat(), defaults).count, 3);
    for (bytes, tag) in [(echo, 1), (short, 2)] {
        let len = bytes.len() as u32;
        assert_eq!(responses(&bytes, 5), Ok(vec![request(lengths(len, len), tag)]));
    }
}

#[test]
fn lengths_beyond_the_limits_are_refused() {
    for (asked, owed, (message, len_min), len) in [
        (15, 64, ("request", 16), 15),
        (0, 64, ("request", 16), 0),
        (MESSAGE_LEN_MAX + 1, 64, ("request", 16), MESSAGE_LEN_MAX + 1),
        (64, MESSAGE_LEN_MAX + 1, ("response", 1), MESSAGE_LEN_MAX + 1),
    ] {
        let bytes = header(lengths(asked, owed), 0);
        let refused = Framer::default().next(&mut &bytes[..], Lengths::default());
        assert_eq!(refused, Err(LengthError { message, len_min, len }));
        assert_eq!(echo_len(&bytes, Lengths::default()), 0);
    }
    assert_eq!(
        lengths(64, 0).checked(),
        Err(LengthError { message: "response", len_min: 1, len: 0 })
    );
}

#[test]
fn response_length_zero_is_the_servers_default() {
    let bytes = header(lengths(16, 0), 0);
    let reply = Framer::default().next(&mut &bytes[..], lengths(64, 300));
    assert_eq!(reply.map(|reply| reply.map(|reply| reply.response_len)), Ok(Some(300)));
}

#[test]
fn a_wrong_byte_anywhere_is_noticed() {
    let sent = request(lengths(64, 70_000), 5);
    let mut response = responses(&sent, 64).expect("well-formed").remove(0);
    for at in [0, 15, 63, 64, 65_535, 65_536, 69_999] {
        response[at] ^= 1;
        assert!(!matches_response(&sent, 0, &response), "byte {at}");
        response[at] ^= 1;
        let (front, back) = response.split_at(at);
        assert!(matches_response(&sent, 0, front) && matches_response(&sent, at, back));
    }
}

#[test]
fn the_pattern_is_not_constant_and_not_short() {
    for shift in [1, 64, 1 << 8, 1 << 12, 1 << 15] {
        let same = PATTERN.iter().zip(PATTERN.iter().cycle().skip(shift)).filter(|(a, b)| a == b);
        assert!(same.count() < PATTERN_LEN / 16, "shift {shift}");
    }
}
