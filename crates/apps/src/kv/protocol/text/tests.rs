//! What the text parser says of single commands, complete and cut off.

use super::*;

fn request(line: &str) -> TextRequest<'_> {
    match parse(line.as_bytes()) {
        ParsedLine::Request { request, consumed } => {
            assert_eq!(consumed, line.len());
            request
        }
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn a_storage_line_is_read_whole() {
    let line = StoreLine {
        verb: StoreVerb::Append,
        key: b"key",
        flags: 7,
        exptime: -3,
        value_len: 12,
        cas: None,
        noreply: true,
    };
    assert_eq!(request("append key 7 -3 12 noreply\r\n"), TextRequest::Store(line));
    let cas = StoreLine { verb: StoreVerb::Set, cas: Some(9), noreply: false, ..line };
    assert_eq!(request(" cas  key 7 -3 12 9\n"), TextRequest::Store(cas));
}

#[test]
fn every_line_cut_short_needs_more_and_none_is_misread() {
    for line in [
        "set key 1 2 3\r\n",
        "cas key 1 2 3 4 noreply\r\n",
        "incr n 5\r\n",
        "delete key\r\n",
        "gat 5\r\n",
        "mg key v t\r\n",
        "stats settings\r\n",
        "quit\r\n",
        "  touch key 5\r\n",
    ] {
        for len in 0..line.len() {
            assert_eq!(parse(&line.as_bytes()[..len]), ParsedLine::NeedMore, "{}", &line[..len]);
        }
        assert_ne!(parse(line.as_bytes()), ParsedLine::NeedMore);
    }
}

#[test]
fn a_retrieval_needs_only_its_head() {
    let plain = Retrieval { with_cas: false, touch: None };
    assert_eq!(parse(b"get k"), ParsedLine::Retrieve { retrieval: plain, consumed: 4 });
    let with_cas = Retrieval { with_cas: true, touch: None };
    assert_eq!(parse(b"  gets k"), ParsedLine::Retrieve { retrieval: with_cas, consumed: 7 });
    let touching = Retrieval { with_cas: true, touch: Some(-5) };
    assert_eq!(parse(b"gats  -5 k"), ParsedLine::Retrieve { retrieval: touching, consumed: 8 });
    assert_eq!(parse(b"gats  -5"), ParsedLine::NeedMore);
}

#[test]
fn keys_are_taken_one_by_one() {
    assert_eq!(next_key(b"  ab c\r\n"), NextKey::Key { key: b"ab", consumed: 4 });
    assert_eq!(next_key(b"ab\r\n"), NextKey::Key { key: b"ab", consumed: 2 });
    assert_eq!(next_key(b"ab\n"), NextKey::Key { key: b"ab", consumed: 2 });
    assert_eq!(next_key(b"a\rb\n"), NextKey::Key { key: b"a\rb", consumed: 3 });
    assert_eq!(next_key(b" \r\nget"), NextKey::End { consumed: 3 });
    assert_eq!(next_key(b"\n"), NextKey::End { consumed: 1 });
    assert_eq!(next_key(b"  ab"), NextKey::NeedMore { consumed: 2 });
    assert_eq!(next_key(b"ab\r"), NextKey::NeedMore { consumed: 0 });
    assert_eq!(next_key(b"   "), NextKey::NeedMore { consumed: 3 });
    let longest = [&[b'k'; KEY_BYTES_MAX][..], b"\r\n"].concat();
    assert!(matches!(next_key(&longest), NextKey::Key { consumed: KEY_BYTES_MAX, .. }));
    assert_eq!(next_key(&longest[..KEY_BYTES_MAX + 1]), NextKey::NeedMore { consumed: 0 });
    let too_long = [b'k'; KEY_BYTES_MAX + 2];
    assert_eq!(next_key(&too_long), NextKey::TooLong { consumed: KEY_BYTES_MAX + 2 });
}

#[test]
fn a_line_ends_within_its_limit_or_is_refused() {
    let mut line = vec![b'x'; LINE_BYTES_MAX - 1];
    assert_eq!(parse(&line), ParsedLine::NeedMore);
    line.push(b'\n');
    assert!(matches!(parse(&line), ParsedLine::Fault { fault: CommandFault::UnknownCommand, .. }));
    line[LINE_BYTES_MAX - 1] = b'x';
    assert_eq!(parse(&line), ParsedLine::LineTooLong);
    let digits = [&b"gat "[..], &[b'1'; LINE_BYTES_MAX]].concat();
    assert_eq!(parse(&digits), ParsedLine::LineTooLong);
    let spaces = vec![b' '; LINE_BYTES_MAX + 100];
    assert_eq!(parse(&spaces), ParsedLine::LineTooLong);
}

#[test]
fn the_last_word_silences_even_a_fault() {
    for (line, fault) in [
        ("set k x 0 1 noreply\r\n", CommandFault::BadLine),
        ("incr k x noreply\r\n", CommandFault::InvalidDelta),
        ("touch k x noreply\r\n", CommandFault::InvalidExptime),
        ("verbosity noreply\r\n", CommandFault::BadLine),
    ] {
        let consumed = line.len();
        let expected = ParsedLine::Fault { fault, noreply: true, consumed, line_ended: true };
        assert_eq!(parse(line.as_bytes()), expected, "{line}");
    }
}

#[test]
fn numbers_are_read_to_their_limits() {
    assert_eq!(parse_value_len(b"2147483645"), Some(2_147_483_645));
    assert_eq!(parse_value_len(b"2147483646"), None);
    assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(parse_i64(b"9223372036854775808"), None);
    assert_eq!(parse_i64(b"-+1"), None);
    assert_eq!(parse_i64(b"-"), None);
    assert_eq!(parse_u64(b"18446744073709551616"), None);
    assert_eq!(parse_flags(b"4294967297"), Some(1));
}
