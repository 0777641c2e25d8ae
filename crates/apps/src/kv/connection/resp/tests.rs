//! Values in pieces, commands that are refused midway, and what is kept meanwhile.

use super::super::tests::{Talk, resp};
use super::*;
use crate::kv::limits::{ITEM_BYTES_MAX, RESERVATIONS_PER_SHARD_MAX};

#[test]
fn large_values_come_in_pieces() {
    let value: Vec<u8> = (0..600_000_u32).map(|index| (index / 7) as u8).collect();
    let answer = [b"$600000\r\n", &value[..], b"\r\n"].concat();
    for piece in [999, 4_096, 100_000, usize::MAX] {
        let mut talk = Talk::new();
        let send = |talk: &mut Talk, words: &[&[u8]]| talk.send_in_pieces(&resp(words), piece).0;
        assert_eq!(send(&mut talk, &[b"SET", b"a", &value]), b"+OK\r\n");
        assert_eq!(send(&mut talk, &[b"SET", b"b", &value, b"EX", b"9", b"GET"]), b"$-1\r\n");
        assert_eq!(send(&mut talk, &[b"TTL", b"b"]), b":9\r\n");
        assert_eq!(
            send(&mut talk, &[b"SET", b"b", &value, b"NX", b"EX"]),
            b"-ERR syntax error\r\n"
        );
        assert_eq!(send(&mut talk, &[b"SETNX", b"b", &value]), b":0\r\n");
        assert_eq!(send(&mut talk, &[b"SETEX", b"c", b"7", &value]), b"+OK\r\n");
        assert_eq!(send(&mut talk, &[b"APPEND", b"d", &value[..9_000]]), b":9000\r\n");
        assert_eq!(send(&mut talk, &[b"APPEND", b"d", &value[9_000..]]), b":600000\r\n");
        assert_eq!(send(&mut talk, &[b"DEL", b"a", b"b"]), b":2\r\n");
        let pairs: [&[u8]; 5] = [b"MSET", b"a", &value, b"b", &value];
        assert_eq!(send(&mut talk, &pairs), b"+OK\r\n");
        for key in [b"a", b"b", b"c", b"d"] {
            assert!(send(&mut talk, &[b"GET", key]) == answer, "in pieces of {piece}");
        }
        assert!(send(&mut talk, &[b"GETSET", b"a", &value[..5_000]]) == answer);
        assert_eq!(talk.store.counters().reserved_bytes, 0);
    }
}

#[test]
fn a_client_that_goes_midway_leaves_nothing_behind() {
    let value = vec![7; 5_000];
    let set = resp(&[b"SET", b"a", &value, b"EX", b"9"]);
    for len in [100, 5_030, set.len() - 1] {
        let mut talk = Talk::new();
        assert_eq!(talk.send_in_pieces(&set[..len], 50).0, b"");
        assert!(talk.connection.is_midway() && talk.store.counters().reserved_bytes > 5_000);
        talk.connection.abandon(&talk.store);
        assert_eq!(talk.store.counters().reserved_bytes, 0);
    }
}

#[test]
fn oversized_value_is_skipped_and_old_one_kept() {
    let value = vec![b'x'; ITEM_BYTES_MAX];
    let too_large = b"-ERR string exceeds maximum allowed size (1 MiB with its key)\r\n";
    for piece in [10_000, usize::MAX] {
        let mut talk = Talk::new();
        let send = |talk: &mut Talk, words: &[&[u8]]| talk.send_in_pieces(&resp(words), piece).0;
        send(&mut talk, &[b"SET", b"a", b"old"]);
        assert_eq!(send(&mut talk, &[b"SET", b"a", &value, b"EX", b"1"]), too_large);
        assert_eq!(send(&mut talk, &[b"APPEND", b"a", &value]), too_large);
        assert_eq!(send(&mut talk, &[b"APPEND", b"a", &value[..ITEM_BYTES_MAX - 61]]), too_large);
        let pairs: [&[u8]; 7] = [b"MSET", b"b", b"1", b"a", &value, b"c", b"2"];
        assert_eq!(send(&mut talk, &pairs), too_large);
        assert_eq!(
            send(&mut talk, &[b"MGET", b"a", b"b", b"c"]),
            b"*3\r\n$3\r\nold\r\n$1\r\n1\r\n$1\r\n2\r\n"
        );
        assert_eq!(send(&mut talk, &[b"ECHO", &value]), b"-ERR an argument is too long\r\n");
        assert_eq!(send(&mut talk, &[b"PING"]), b"+PONG\r\n");
        assert_eq!(talk.store.counters().reserved_bytes, 0);
    }
}

#[test]
fn resp_rejects_keys_that_are_too_long() {
    let key = vec![b'k'; 5_000];
    let too_long = b"-ERR key is longer than 250 bytes\r\n";
    for (piece, len) in [(64, 251), (64, 5_000), (usize::MAX, 251), (usize::MAX, 5_000)] {
        let key = &key[..len];
        let mut talk = Talk::new();
        let send = |talk: &mut Talk, words: &[&[u8]]| talk.send_in_pieces(&resp(words), piece).0;
        assert_eq!(send(&mut talk, &[b"MGET", b"a", key, b"b"]), b"*3\r\n$-1\r\n$-1\r\n$-1\r\n");
        assert_eq!(send(&mut talk, &[b"EXISTS", key, key]), b":0\r\n");
        assert_eq!(send(&mut talk, &[b"MSET", key, b"1", b"b", b"2"]), too_long);
        assert_eq!(send(&mut talk, &[b"GET", b"b"]), b"$1\r\n2\r\n");
        if len == 251 {
            for words in [&[b"SET", key, b"1"][..], &[b"APPEND", key, b"1"], &[b"INCR", key]] {
                assert_eq!(send(&mut talk, words), too_long);
            }
        } else {
            let answer = send(&mut talk, &[b"SET", key, b"1"]);
            assert_eq!(answer, b"-ERR an argument is too long\r\n");
        }
        let long = [&key[..251], &[b'v'; 3_000]];
        assert_eq!(send(&mut talk, &[b"SET", long[0], long[1]]), too_long);
        assert_eq!(send(&mut talk, &[b"PING"]), b"+PONG\r\n");
    }
}

#[test]
fn commands_that_are_refused_are_passed_over() {
    let long = vec![b'x'; 10_000];
    let many: Vec<&[u8]> = std::iter::once(&b"SET"[..]).chain([&b"a"[..]; 50]).collect();
    for piece in [3, 1_000, usize::MAX] {
        let mut talk = Talk::new();
        let send = |talk: &mut Talk, words: &[&[u8]]| talk.send_in_pieces(&resp(words), piece).0;
        let unknown = b"-ERR unknown command 'NOSUCH'\r\n";
        assert_eq!(send(&mut talk, &[b"NOSUCH", &long, b"x", &long]), unknown);
        assert_eq!(send(&mut talk, &many), b"-ERR syntax error\r\n");
        let arity = b"-ERR wrong number of arguments for 'get' command\r\n";
        assert_eq!(send(&mut talk, &[b"GET", &long, &long]), arity);
        assert!(send(&mut talk, &[&long, b"x"]).starts_with(b"-ERR unknown command"));
        assert_eq!(
            talk.connection.take_commands(),
            super::super::Commands { accepted: 0, refused: 4 }
        );
    }
}

#[test]
fn a_thousand_keys_are_one_command_and_one_answer() {
    let names: Vec<_> = (0..1_000).map(|index| format!("key-{index}").into_bytes()).collect();
    let with = |name: &'static [u8]| {
        let words: Vec<&[u8]> =
            std::iter::once(name).chain(names.iter().map(Vec::as_slice)).collect();
        resp(&words)
    };
    let pairs: Vec<&[u8]> = std::iter::once(&b"MSET"[..])
        .chain(names.iter().flat_map(|name| [&name[..], name]))
        .collect();
    let values: Vec<u8> = names
        .iter()
        .flat_map(|name| [format!("${}\r\n", name.len()).as_bytes(), name, b"\r\n"].concat())
        .collect();
    for piece in [1, 1_000, usize::MAX] {
        let mut talk = Talk::new();
        assert_eq!(talk.send_in_pieces(&resp(&pairs), piece).0, b"+OK\r\n");
        let got = talk.send_in_pieces(&with(b"MGET"), piece).0;
        assert!(got == [b"*1000\r\n", &values[..]].concat());
        assert_eq!(talk.send_in_pieces(&with(b"DEL"), piece).0, b":1000\r\n");
        assert_eq!(talk.connection.take_commands().accepted, 3);
    }
}

#[test]
fn a_client_that_never_reads_stops_being_served() {
    let mut talk = Talk::new();
    let value = vec![7; 100_000];
    assert_eq!(talk.send(&resp(&[b"SET", b"big", &value])), b"+OK\r\n");
    let keys: Vec<&[u8]> = std::iter::once(&b"MGET"[..]).chain([&b"big"[..]; 1_000]).collect();
    // The harness writes whatever waits when the connection pauses, and holds its bound.
    let got = talk.send(&resp(&keys));
    assert_eq!(got.len(), "*1000\r\n".len() + 1_000 * ("$100000\r\n".len() + 100_002));
}

#[test]
fn lent_memory_is_reported() {
    let mut talk = Talk::new();
    let head = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1000000\r\n";
    let mut lent = Vec::new();
    let mut out = Vec::new();
    while out.is_empty() {
        assert!(lent.len() < RESERVATIONS_PER_SHARD_MAX, "half of a shard is lent at most");
        let mut connection = KvConnection::new();
        let context = talk.context();
        connection.on_bytes(head, &context, &mut out);
        lent.push(connection);
    }
    assert_eq!(out, b"-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    for mut connection in lent {
        connection.abandon(&talk.store);
    }
    assert_eq!(talk.send(&resp(&[b"SET", b"a", b"1"])), b"+OK\r\n");
    assert_eq!(talk.store.counters().reserved_bytes, 0);
}

#[test]
fn info_response_is_well_formed() {
    let mut talk = Talk::new();
    talk.send(&resp(&[b"SET", b"a", b"1"]));
    let info = String::from_utf8(talk.send(&resp(&[b"INFO", b"server"]))).expect("text");
    let (head, text) = info.split_once("\r\n").expect("a length");
    assert_eq!(head, format!("${}", text.len() - 2));
    for line in ["tcp_port:11211", "maxmemory:8388608", "db0:keys=1,expires=0,avg_ttl=0"] {
        assert!(text.contains(&format!("{line}\r\n")), "{line} in {text}");
    }
    let hello = talk.send(&resp(&[b"HELLO", b"2"]));
    assert!(hello.starts_with(b"*14\r\n$6\r\nserver\r\n$8\r\nmegapipe\r\n"));
    assert!(hello.ends_with(b"$7\r\nmodules\r\n*0\r\n"));
    assert_eq!(
        talk.send(&resp(&[b"COMMAND", b"COUNT"])),
        format!(":{}\r\n", resp::COMMANDS.len()).as_bytes()
    );
    assert_eq!(talk.send(&resp(&[b"CONFIG", b"GET", b"save"])), b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
    assert!(talk.send(&resp(&[b"TIME"])).starts_with(b"*2\r\n$10\r\n1700000000"));
}

#[test]
fn commands_of_other_types_name_the_type_that_is_missing() {
    let mut talk = Talk::new();
    for (name, kind) in [
        ("LPUSH", "lists"),
        ("rpop", "lists"),
        ("SADD", "sets"),
        ("HSET", "hashes"),
        ("ZPOPMIN", "sorted sets"),
        ("XADD", "streams"),
    ] {
        let said = talk.send_in_pieces(&resp(&[name.as_bytes(), b"key", b"value"]), 7).0;
        let only = format!("this server stores strings only, {kind} are not supported");
        let expected = format!("-ERR unknown command '{name}': {only}\r\n");
        assert_eq!(String::from_utf8_lossy(&said), expected);
        assert_eq!(talk.send_in_pieces(&resp(&[b"PING"]), 7).0, b"+PONG\r\n");
    }
}
