//! The connection without a network: the recorded conversations, whole and byte by byte, and what
//! a hostile client may try.

mod transcript;

use proptest::prelude::*;

use self::transcript::{
    Conversation, Exchange, bytes_of, conversations, matches_pattern, resp_bytes_of,
    resp_conversations,
};
use super::*;
use crate::kv::limits::{ITEM_BYTES_MAX, KEY_BYTES_MAX, MEMORY_BYTES_MIN};

const NOW: u32 = 1_700_000_000;

struct Alone;

impl ServerView for Alone {
    fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot { address: "127.0.0.1:11211".to_owned(), ..ServerSnapshot::default() }
    }

    fn reset(&self) {}
}

fn store() -> KvStore {
    KvStore::new(MEMORY_BYTES_MIN).expect("the least memory is enough")
}

/// A connection and the store it talks to.
pub(super) struct Talk {
    pub(super) connection: KvConnection,
    pub(super) store: KvStore,
    now: u32,
}

impl Talk {
    pub(super) fn new() -> Self {
        Self { connection: KvConnection::new(), store: store(), now: NOW }
    }

    pub(super) fn context(&self) -> KvContext<'_> {
        KvContext { store: &self.store, now: self.now, server: &Alone }
    }

    /// Sends `input` in pieces of `piece` bytes; returns the responses and whether the connection
    /// is to be closed. Plays the shell: writes whatever waits whenever it must.
    pub(super) fn send_in_pieces(&mut self, input: &[u8], piece: usize) -> (Vec<u8>, bool) {
        let context = KvContext { store: &self.store, now: self.now, server: &Alone };
        let mut written = Vec::new();
        for mut bytes in input.chunks(piece.max(1)) {
            loop {
                let mut out = Vec::new();
                let progress = self.connection.on_bytes(bytes, &context, &mut out);
                assert!(out.len() <= OUTPUT_BYTES_MAX + ITEM_BYTES_MAX + 1024);
                assert!(self.connection.partial.len() <= LINE_BYTES_MAX);
                written.append(&mut out);
                match progress.flow {
                    NextStep::Close => return (written, true),
                    NextStep::Paused => bytes = &bytes[progress.consumed..],
                    NextStep::ReadOn => {
                        assert_eq!(progress.consumed, bytes.len());
                        break;
                    }
                }
            }
        }
        (written, false)
    }

    pub(super) fn send(&mut self, input: &[u8]) -> Vec<u8> {
        self.send_in_pieces(input, usize::MAX).0
    }
}

/// A command in RESP.
pub(super) fn resp(words: &[&[u8]]) -> Vec<u8> {
    let bulk = |word: &&[u8]| [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat();
    let words: Vec<_> = std::iter::once(format!("*{}\r\n", words.len()).into_bytes())
        .chain(words.iter().map(bulk))
        .collect();
    words.concat()
}

/// Holds all recorded conversations, each command in pieces of so many bytes.
fn replay(piece: usize) {
    replay_all(conversations(), bytes_of, piece);
    replay_all(resp_conversations(), resp_bytes_of, piece);
}

fn replay_all(conversations: Vec<Conversation>, bytes_of: fn(&str) -> Vec<u8>, piece: usize) {
    let mut differences = String::new();
    for Conversation { name, exchanges } in conversations {
        let mut talk = Talk::new();
        let mut cas = String::new();
        for Exchange { sent, ours, closed: expected_closed, .. } in exchanges {
            let bytes = bytes_of(&sent.replace("{cas}", &cas));
            let (got, closed) = talk.send_in_pieces(&bytes, piece);
            if !matches_pattern(&ours, &got, &mut cas) || closed != expected_closed {
                let got = got.escape_ascii();
                differences += &format!("{name}\n> {sent}\n< {ours}\nis {got}, closed: {closed}\n");
            }
        }
    }
    assert!(differences.is_empty(), "in pieces of {piece}:\n{differences}");
}

#[test]
fn recorded_conversations_in_whole_pieces() {
    replay(usize::MAX);
}

#[test]
fn recorded_conversations_in_small_pieces() {
    for piece in [1, 2, 3, 7, 64] {
        replay(piece);
    }
}

#[test]
fn a_line_of_keys_may_be_of_any_length() {
    let mut talk = Talk::new();
    talk.send(b"set hit 5 0 2\r\nok\r\n");
    let mut line = b"get".to_vec();
    for index in 0..100_000 {
        line.extend_from_slice(if index % 1_000 == 0 {
            b" hit"
        } else {
            b" a-key-that-is-not-here"
        });
    }
    line.extend_from_slice(b"\r\nmn\r\n");
    let hits = b"VALUE hit 5 2\r\nok\r\n".repeat(100);
    let expected = [&hits[..], b"END\r\nMN\r\n"].concat();
    for piece in [1_000, 4_096, usize::MAX] {
        assert!(talk.send_in_pieces(&line, piece).0 == expected);
    }
    line.iter_mut().filter(|byte| **byte == b' ').skip(1).for_each(|byte| *byte = b'.');
    assert_eq!(talk.send(&line), b"CLIENT_ERROR bad command line format\r\nMN\r\n");
}

#[test]
fn a_client_that_never_reads_stops_being_served() {
    let mut talk = Talk::new();
    let value = vec![7; ITEM_BYTES_MAX - 100];
    let head = format!("set big 0 0 {}\r\n", value.len());
    assert_eq!(talk.send(&[head.as_bytes(), &value, b"\r\n"].concat()), b"STORED\r\n");
    let context = KvContext { store: &talk.store, now: NOW, server: &Alone };
    let line = b"get big big big big\r\n".repeat(100);
    let mut out = Vec::new();
    let progress = talk.connection.on_bytes(&line, &context, &mut out);
    assert_eq!(progress.flow, NextStep::Paused);
    assert!(progress.consumed < 10 && out.len() < ITEM_BYTES_MAX + 100);
    let again = talk.connection.on_bytes(&line[progress.consumed..], &context, &mut out);
    assert_eq!((again.flow, again.consumed), (NextStep::Paused, 0));
    let (rest, closed) = talk.send_in_pieces(&line[progress.consumed..], usize::MAX);
    assert!(!closed);
    let item = format!("VALUE big 0 {}\r\n", value.len()).len() + value.len() + 2;
    assert_eq!(out.len() + rest.len(), 400 * item + 100 * 5);
}

#[test]
fn large_values_come_in_pieces_and_leave_nothing_behind_when_the_client_goes() {
    let mut talk = Talk::new();
    let value: Vec<u8> = (0..600_000u32).map(|index| (index / 7) as u8).collect();
    let set = [b"set a 1 0 600000\r\n", &value[..], b"\r\n"].concat();
    for piece in [999, 4_096, 100_000] {
        assert_eq!(talk.send_in_pieces(&set, piece).0, b"STORED\r\n");
        let got = talk.send(b"get a\r\n");
        assert!(got == [b"VALUE a 1 600000\r\n", &value[..], b"\r\nEND\r\n"].concat());
    }
    talk.send(&set[..300_000]);
    assert!(talk.store.counters().reserved_bytes > 600_000);
    assert!(talk.connection.is_midway());
    talk.connection.abandon(&talk.store);
    assert_eq!(talk.store.counters().reserved_bytes, 0);
}

#[test]
fn a_value_too_large_is_passed_over_and_the_old_one_is_gone() {
    for (line, kept) in [("set", false), ("add", true), ("append", true), ("replace", true)] {
        let mut talk = Talk::new();
        talk.send(b"set a 0 0 1\r\n1\r\n");
        let head = format!("{line} a 0 0 {ITEM_BYTES_MAX}\r\n");
        let block = vec![b'x'; ITEM_BYTES_MAX + 2];
        let got = talk.send_in_pieces(&[head.as_bytes(), &block].concat(), 10_000).0;
        assert_eq!(got, b"SERVER_ERROR object too large for cache\r\n", "{line}");
        let got = talk.send(b"get a\r\n");
        let expected: &[u8] = if kept { b"VALUE a 0 1\r\n1\r\nEND\r\n" } else { b"END\r\n" };
        assert_eq!(got, expected, "{line}");
    }
}

#[test]
fn too_many_arriving_values_are_refused() {
    let talk = Talk::new();
    let context = KvContext { store: &talk.store, now: NOW, server: &Alone };
    let mut connections: Vec<_> = (0..8).map(|_| KvConnection::new()).collect();
    let mut refused = 0;
    for (index, connection) in connections.iter_mut().enumerate() {
        let mut out = Vec::new();
        let head = format!("set k{index} 0 0 1000000\r\n");
        connection.on_bytes(head.as_bytes(), &context, &mut out);
        let block = vec![0; 500_000];
        connection.on_bytes(&block, &context, &mut out);
        connection.on_bytes(&block, &context, &mut out);
        connection.on_bytes(b"\r", &context, &mut out);
        assert!(out.is_empty(), "the block has not ended");
        refused += u32::from(matches!(connection.state, ConnectionState::Skip { .. }));
    }
    assert_eq!(refused, 4, "a shard of 8 MiB lends half of it");
    for connection in &mut connections {
        let mut out = Vec::new();
        connection.on_bytes(b"\n", &context, &mut out);
        assert!(out == b"STORED\r\n" || out == b"SERVER_ERROR out of memory storing object\r\n");
    }
    assert_eq!(talk.store.counters().out_of_memory, 4);
}

#[test]
fn a_delayed_flush_comes_at_its_second() {
    let mut talk = Talk::new();
    talk.send(b"set a 0 0 1\r\nx\r\nflush_all 10\r\n");
    talk.now += 9;
    assert_eq!(talk.send(b"get a\r\n"), b"VALUE a 0 1\r\nx\r\nEND\r\n");
    talk.now += 1;
    assert_eq!(talk.send(b"get a\r\n"), b"END\r\n");
}

#[test]
fn stats_name_what_clients_look_for() {
    let mut talk = Talk::new();
    talk.send(b"set a 0 0 1\r\nx\r\nget a b\r\n");
    let general = String::from_utf8(talk.send(b"stats\r\n")).expect("text");
    for line in [
        "STAT curr_items 1",
        "STAT get_hits 1",
        "STAT get_misses 1",
        "STAT cmd_set 1",
        "STAT limit_maxbytes 8388608",
    ] {
        assert!(general.contains(&format!("{line}\r\n")), "{line} in {general}");
    }
    assert!(general.ends_with("END\r\n"));
    let settings = String::from_utf8(talk.send(b"stats settings\r\n")).expect("text");
    assert!(settings.contains("STAT tcpport 11211\r\n"), "{settings}");
    assert!(talk.send(b"stats items\r\n").starts_with(b"STAT items:1:number 1\r\n"));
    assert!(talk.send(b"stats slabs\r\n").ends_with(b"END\r\n"));
    assert_eq!(
        talk.send(b"stats cachedump 1 1\r\n"),
        b"CLIENT_ERROR stats cachedump not allowed\r\n"
    );
    talk.send(b"stats reset\r\n");
    assert!(String::from_utf8_lossy(&talk.send(b"stats\r\n")).contains("STAT get_hits 0\r\n"));
}

/// A request of the binary protocol.
fn frame(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, opcode];
    frame.extend((key.len() as u16).to_be_bytes());
    frame.extend([extras.len() as u8, 0, 0, 0]);
    frame.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    frame.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
    [&frame, extras, key, value].concat()
}

#[test]
fn binary_requests_in_any_pieces() {
    let set = frame(1, &[0, 0, 0, 9, 0, 0, 0, 0], b"key", b"value");
    let input = [
        set,
        frame(0x0c, &[], b"key", b""),
        frame(0x09, &[], b"none", b""),
        frame(0x55, &[], b"none", b"body"),
        frame(0x0a, &[], b"", b""),
    ]
    .concat();
    let mut first = None;
    for piece in [usize::MAX, 1, 5, 24, 33] {
        let (mut got, closed) = Talk::new().send_in_pieces(&input, piece);
        assert!(!closed);
        // The cas unique is in the first two responses.
        assert!(got[16..24] != [0; 8] && got[16..24] == got[24 + 16..24 + 24]);
        got[16..24].fill(0);
        assert_eq!(&got[48..60], b"\0\0\0\x09keyvalue");
        assert_eq!(got.len(), 24 + 24 + 12 + 24 + "Unknown command".len() + 24);
        assert_eq!(first.get_or_insert_with(|| got[..24].to_vec()), &got[..24].to_vec());
    }
}

#[test]
fn binary_nonsense_closes() {
    for input in [
        frame(0, b"1234", b"key", b""),
        frame(0, b"", b"", b""),
        frame(0, b"", &[b'k'; KEY_BYTES_MAX + 1], b""),
        frame(1, b"", b"key", b"value"),
        frame(0x0a, b"", b"key", b""),
    ] {
        let (got, closed) = Talk::new().send_in_pieces(&input, usize::MAX);
        assert!(closed);
        assert_eq!(&got[24..], b"Invalid arguments");
    }
    let input = [frame(0x0a, b"", b"", b""), b"get a\r\n".to_vec()].concat();
    let (got, closed) = Talk::new().send_in_pieces(&input, usize::MAX);
    assert_eq!((got.len(), closed), (24, true));
}

/// Bytes that look like the protocols more often than chance.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let word =
        prop_oneof![
            prop::sample::select(vec![
                "get",
                "gets",
                "gat",
                "set",
                "add",
                "cas",
                "append",
                "incr",
                "delete",
                "touch",
                "mg",
                "ms",
                "md",
                "ma",
                "me",
                "mn",
                "a",
                "b",
                "0",
                "1",
                "7",
                "-1",
                "noreply",
                "q",
                "k",
                "v",
                "N5",
                "T0",
                "b",
                "\r\n",
                "\n",
                "\r\n",
                " ",
                "stats",
                "flush_all",
                "99999999999",
            ])
            .prop_map(|word| word.as_bytes().to_vec()),
            prop::collection::vec(any::<u8>(), 0..40),
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..30))
                .prop_map(|(opcode, body)| frame(opcode % 0x26, &[], &body, &[])),
            (0x0u8..0x1b).prop_map(|opcode| frame(opcode, &[0; 8], b"a", b"123")),
        ];
    prop::collection::vec((word, any::<bool>()), 1..60).prop_map(|words| {
        let spaced = words.into_iter().map(|(mut word, space)| {
            if space {
                word.push(b' ');
            }
            word
        });
        spaced.collect::<Vec<_>>().concat()
    })
}

/// The same for RESP, which has to begin with its first byte.
fn hostile_resp() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(vec![
            "get", "set", "mset", "mget", "del", "append", "setex", "incr", "a", "b", "1", "nx",
            "ex", "get",
        ])
        .prop_map(|word| word.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(any::<u8>(), 240..3_000),
    ];
    let command = prop::collection::vec(word, 1..8).prop_map(|words| {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        resp(&words)
    });
    let noise = prop_oneof![
        9 => Just(Vec::new()),
        1 => prop::sample::select(vec![&b"*3\r\n"[..], b"$5\r\n", b"\r\n", b"PING\r\n", b"*"])
            .prop_map(<[u8]>::to_vec),
    ];
    prop::collection::vec((command, noise), 1..8).prop_map(|pieces| {
        let pieces: Vec<_> =
            pieces.into_iter().flat_map(|(command, noise)| [command, noise]).collect();
        pieces.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn how_the_bytes_are_cut_does_not_matter(input in hostile(), piece in 1usize..50) {
        let whole = Talk::new().send_in_pieces(&input, usize::MAX);
        let mut cut_talk = Talk::new();
        let cut = cut_talk.send_in_pieces(&input, piece);
        prop_assert_eq!(whole, cut);
        cut_talk.connection.abandon(&cut_talk.store);
        prop_assert_eq!(cut_talk.store.counters().reserved_bytes, 0);
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn how_resp_is_cut_does_not_matter(input in hostile_resp(), piece in 1usize..5_000) {
        let mut whole_talk = Talk::new();
        let whole = whole_talk.send_in_pieces(&input, usize::MAX);
        let mut cut_talk = Talk::new();
        let cut = cut_talk.send_in_pieces(&input, piece);
        prop_assert_eq!(whole, cut);
        cut_talk.connection.abandon(&cut_talk.store);
        prop_assert_eq!(cut_talk.store.counters().reserved_bytes, 0);
    }
}
