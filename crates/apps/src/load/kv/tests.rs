//! The key space is filled once, and wrong answers are noticed.

use std::collections::HashMap;

use super::*;

const DONE: ResponseProgress = ResponseProgress::Done { reusable: true };

fn protocol(keys: u64, fill: bool, gets: f64, values: &str) -> KvClient {
    let plan = KvPlan {
        keys,
        key_len: 64,
        value_bytes: values.parse().expect(values),
        gets,
        fill: if fill { 0..keys } else { 0..0 },
        verify_every: 1,
    };
    KvClient::new(plan, Rng::new(5))
}

fn request(protocol: &mut KvClient, exchange: &mut KvExchange) -> Vec<u8> {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    protocol.request(exchange, &mut RequestBuilder { head: &mut head, tail: &mut tail });
    [head, tail.concat()].concat()
}

/// A cache that knows `get` and `set`, for whole commands.
#[derive(Default)]
struct Cache(HashMap<Vec<u8>, Vec<u8>>);

impl Cache {
    fn answer(&mut self, command: &[u8]) -> Vec<u8> {
        let end = command.windows(2).position(|pair| pair == b"\r\n").expect("a line");
        let words: Vec<&[u8]> = command[..end].split(|&byte| byte == b' ').collect();
        match words[..] {
            [b"get", key] => match self.0.get(key) {
                Some(value) => {
                    let head = format!("VALUE {} 0 {}\r\n", key.escape_ascii(), value.len());
                    [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
                }
                None => b"END\r\n".to_vec(),
            },
            [b"set", key, b"0", b"0", len] => {
                let value = &command[end + 2..command.len() - 2];
                assert_eq!(number(len), Some(value.len() as u64));
                assert_eq!(&command[command.len() - 2..], b"\r\n");
                self.0.insert(key.to_vec(), value.to_vec());
                b"STORED\r\n".to_vec()
            }
            _ => panic!("{}", command.escape_ascii()),
        }
    }
}

#[test]
fn the_key_space_is_filled_once_and_then_every_get_hits() {
    let (mut cache, mut exchange) = (Cache::default(), KvExchange::default());
    let mut protocol = protocol(50, true, 0.9, "1K");
    for _ in 0..50 {
        assert!(protocol.preparing() && !protocol.prepared());
        let command = request(&mut protocol, &mut exchange);
        assert!(command.starts_with(b"set k000"));
        assert_eq!(protocol.response(&mut exchange, &cache.answer(&command)), DONE);
    }
    assert!(protocol.prepared() && !protocol.preparing());
    assert_eq!(cache.0.len(), 50);
    assert!(cache.0.iter().all(|(key, value)| key.len() == 64 && value.len() == 1_024));
    for _ in 0..5_000 {
        let command = request(&mut protocol, &mut exchange);
        assert_eq!(protocol.response(&mut exchange, &cache.answer(&command)), DONE);
    }
    let [("hits", hits), ("misses", 0), ("sets", sets)] = protocol.details()[..] else {
        panic!("{:?}", protocol.details());
    };
    assert_eq!(hits + sets, 5_050);
    assert!((4_400..4_600).contains(&hits), "nine in ten are gets: {hits}");
}

#[test]
fn responses_may_come_in_any_pieces() {
    for piece_len in [1, 2, 3, 7, 64, 1_000] {
        let (mut cache, mut exchange) = (Cache::default(), KvExchange::default());
        let mut protocol = protocol(3, true, 0.7, "uniform:0-5000");
        for round in 0..60 {
            let command = request(&mut protocol, &mut exchange);
            let response = cache.answer(&command);
            let mut answers: Vec<ResponseProgress> = response
                .chunks(piece_len)
                .map(|piece| protocol.response(&mut exchange, piece))
                .collect();
            assert_eq!(answers.pop(), Some(DONE), "round {round}, pieces of {piece_len}");
            assert!(answers.iter().all(|answer| *answer == ResponseProgress::More));
        }
    }
}

#[test]
fn wrong_answers_are_noticed() {
    let mut protocol = protocol(10, false, 1.0, "8");
    let mut exchange = KvExchange::default();
    let get = request(&mut protocol, &mut exchange);
    let key = exchange.key;
    let name = &get[4..68];
    let value: Vec<u8> = value_at(key, 0, 8).to_vec();
    let response = |name: &[u8], len: &str, value: &[u8], end: &str| {
        [b"VALUE ", name, b" 0 ", len.as_bytes(), b"\r\n", value, end.as_bytes()].concat()
    };
    let mut damaged = value.clone();
    damaged[7] ^= 1;
    let mut other = name.to_vec();
    other[63] ^= 1;
    for (wrong, why) in [
        (response(name, "8", &damaged, "\r\nEND\r\n"), "a damaged value"),
        (response(&other, "8", &value, "\r\nEND\r\n"), "another key"),
        (response(name, "9", &value, "?\r\nEND\r\n"), "a length that was never set"),
        (response(name, "8", &value, "\r\nEND\r\nEND\r\n"), "more than was asked for"),
        (response(name, "8", &value, "END\r\n"), "no end of line behind the value"),
        (b"ERROR\r\n".to_vec(), "an error"),
        (b"STORED\r\n".to_vec(), "an answer to a set"),
        (b"END\n".to_vec(), "a bare line feed"),
        (vec![b'x'; HEADER_LEN_MAX + 1], "a line without end"),
    ] {
        let mut exchange = KvExchange { expect: Expect::Value, key, ..KvExchange::default() };
        exchange.verified = true;
        assert_eq!(protocol.response(&mut exchange, &wrong), ResponseProgress::Wrong, "{why}");
    }
    let right = response(name, "8", &value, "\r\nEND\r\n");
    assert_eq!(protocol.response(&mut exchange, &right), DONE);
}

#[test]
fn a_key_lost_while_filling_is_set_again() {
    let (mut cache, mut exchange) = (Cache::default(), KvExchange::default());
    let mut protocol = protocol(2, true, 1.0, "100");
    let lost = request(&mut protocol, &mut exchange);
    protocol.abandoned(&mut exchange);
    for _ in 0..2 {
        assert!(protocol.preparing());
        let command = request(&mut protocol, &mut exchange);
        assert_eq!(protocol.response(&mut exchange, &cache.answer(&command)), DONE);
    }
    assert!(protocol.prepared() && cache.0.contains_key(&lost[4..68]));
    request(&mut protocol, &mut exchange);
    protocol.abandoned(&mut exchange);
    assert!(protocol.prepared(), "a lost get changes nothing");
}
