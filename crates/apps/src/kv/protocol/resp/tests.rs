//! Framing, numbers, times and options, against what Redis's documentation says.

use super::*;

const NOW: u32 = 1_700_000_000;

#[test]
fn headers_are_whole_or_wanted_or_wrong() {
    assert_eq!(array(b"*3\r\n$1"), RespPiece::Whole(3, 4));
    assert_eq!(array(b"*-1\r\n"), RespPiece::Whole(0, 5));
    assert_eq!(array(b"*1048576\r\n"), RespPiece::Whole(1 << 20, 10));
    assert_eq!(array(b"*1048577\r\n"), RespPiece::Malformed(Malformed::ArrayLength));
    for short in ["", "*", "*3", "*3\r"] {
        assert_eq!(array(short.as_bytes()), RespPiece::NeedMore, "{short:?}");
    }
    for wrong in ["*\r\n", "*x\r\n", "*1\n", "*01\r\n", "*+1\r\n", "* 1\r\n"] {
        let malformed = RespPiece::Malformed(Malformed::ArrayLength);
        assert_eq!(array(wrong.as_bytes()), malformed, "{wrong:?}");
    }
    assert_eq!(array(&[b'1'; 40]), RespPiece::Malformed(Malformed::ArrayLength));
    assert_eq!(bulk_header(b"$536870912\r\n"), RespPiece::Whole(512 << 20, 12));
    for wrong in ["$536870913\r\n", "$-1\r\n", "$9223372036854775808\r\n"] {
        let malformed = RespPiece::Malformed(Malformed::BulkLength);
        assert_eq!(bulk_header(wrong.as_bytes()), malformed, "{wrong:?}");
    }
    assert_eq!(bulk_header(b"+OK\r\n"), RespPiece::Malformed(Malformed::NotABulk(b'+')));
}

#[test]
fn bulk_strings_say_how_long_they_are() {
    assert_eq!(bulk(b"$3\r\nabc\r\nx"), Bulk::Whole(b"abc", 9));
    assert_eq!(bulk(b"$0\r\n\r\n"), Bulk::Whole(b"", 6));
    assert_eq!(bulk(b"$3"), Bulk::NeedMore(None));
    assert_eq!(bulk(b"$3\r\nab"), Bulk::NeedMore(Some(9)));
    assert_eq!(bulk(b"$3\r\nabcde"), Bulk::Malformed(Malformed::BulkEnding));
}

#[test]
fn integers_are_what_redis_takes() {
    assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(integer(b"0"), Some(0));
    for wrong in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
        assert_eq!(integer(wrong.as_bytes()), None, "{wrong:?}");
    }
}

#[test]
fn times_are_rounded_up_to_seconds() {
    let from_now = |unit, time| unix_second(time, (unit, Epoch::Now), NOW);
    assert_eq!(from_now(Unit::Seconds, 5), Some(NOW + 5));
    assert_eq!(from_now(Unit::Milliseconds, 1), Some(NOW + 1));
    assert_eq!(from_now(Unit::Milliseconds, 1_000), Some(NOW + 1));
    assert_eq!(from_now(Unit::Milliseconds, -1), Some(NOW));
    assert_eq!(from_now(Unit::Seconds, i64::MIN + 5), Some(1));
    assert_eq!(from_now(Unit::Seconds, i64::MAX), None);
    assert_eq!(unix_second(-3, (Unit::Seconds, Epoch::Unix), NOW), Some(1));
    assert_eq!(unix_second(1 << 33, (Unit::Seconds, Epoch::Unix), NOW), None);
}

#[test]
fn options_of_set_go_together_or_not() {
    let options = |words: &str| {
        let words: Vec<&[u8]> = words.split_whitespace().map(str::as_bytes).collect();
        set_options(&words, NOW)
    };
    let all = SetOptions {
        condition: Condition::Present,
        life: ValueLifetime::Until(NOW + 9),
        get: true,
    };
    assert_eq!(options("GET xx ex 9"), Ok(all));
    assert_eq!(options(""), Ok(SetOptions::default()));
    assert_eq!(options("keepttl").map(|options| options.life), Ok(ValueLifetime::Kept));
    for wrong in ["nx xx", "ex", "ex 1 px 1", "keepttl ex 1", "ex 1 keepttl", "what"] {
        assert_eq!(options(wrong), Err(RespFault::Syntax), "{wrong}");
    }
    assert_eq!(options("ex 1x"), Err(RespFault::NotAnInteger));
    assert_eq!(options("px 0"), Err(RespFault::InvalidExpire("set")));
    assert_eq!(options("exat 4294967296"), Err(RespFault::InvalidExpire("set")));
}

#[test]
fn ranges_stay_inside() {
    for (start, end, expected) in [
        (0, -1, 0..5),
        (1, 3, 1..4),
        (-2, -1, 3..5),
        (0, 100, 0..5),
        (5, 9, 0..0),
        (3, 2, 0..0),
        (-100, -200, 0..0),
        (-100, 0, 0..1),
        (i64::MIN, i64::MAX, 0..5),
        (i64::MAX, i64::MIN, 0..0),
    ] {
        assert_eq!(range(5, start, end), expected, "{start} to {end}");
        assert_eq!(range(0, start, end), 0..0, "{start} to {end} of nothing");
    }
}

#[test]
fn every_command_is_found_by_its_name_alone() {
    for (at, command) in COMMANDS.iter().enumerate() {
        assert!(COMMANDS[..at].iter().all(|other| other.name != command.name), "{}", command.name);
        assert_eq!(find(command.name.to_uppercase().as_bytes()), Some(command));
        let value_is_there = command.verb.value_index().is_none_or(|at| at < 4);
        assert!(command.count_min >= 1 && value_is_there);
    }
    assert_eq!(find(b"nosuch"), None);
    assert_eq!(find(b""), None);
}
