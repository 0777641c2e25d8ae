//! The recorded conversations over a network: memcached must still hold them as recorded, and we
//! must hold them alike.

#[path = "../../../crates/apps/src/kv/connection/tests/transcript.rs"]
mod transcript;

use std::net::SocketAddr;

use transcript::{
    Conversation, Exchange, bytes_of, conversations, matches_pattern, resp_bytes_of,
    resp_conversations,
};

use crate::serving::{Client, Memcached, Redis, args, drivers, serve};

/// What is spoken.
struct Language {
    conversations: fn() -> Vec<Conversation>,
    bytes_of: fn(&str) -> Vec<u8>,
    /// Empties the store, and its answer.
    flush: (&'static [u8], &'static [u8]),
    /// Is answered at once, and its answer.
    nothing: (&'static [u8], &'static [u8]),
}

const TEXT: Language = Language {
    conversations,
    bytes_of,
    flush: (b"flush_all\r\n", b"OK\r\n"),
    nothing: (b"mn\r\n", b"MN\r\n"),
};

const RESP: Language = Language {
    conversations: resp_conversations,
    bytes_of: resp_bytes_of,
    flush: (b"*1\r\n$8\r\nFLUSHALL\r\n", b"+OK\r\n"),
    nothing: (b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
};

/// Holds all conversations. `as_good` tells another answer that is as good as the expected one.
fn hold(
    address: SocketAddr,
    language: &Language,
    expected: impl Fn(&Exchange) -> &str,
    as_good: impl Fn(&str) -> Option<String>,
) {
    for Conversation { name, exchanges } in (language.conversations)() {
        // On another connection: the first bytes of a connection decide about its protocol.
        Client::connect(address).expect(language.flush.0, language.flush.1);
        let mut client = Client::connect(address);
        let mut cas = String::new();
        let mut open = true;
        for exchange in exchanges {
            let expected = expected(&exchange);
            let other = as_good(expected);
            let matches = |got: &[u8], cas: &mut String| {
                matches_pattern(expected, got, cas)
                    || other.as_ref().is_some_and(|other| matches_pattern(other, got, cas))
            };
            client.send(&(language.bytes_of)(&exchange.sent.replace("{cas}", &cas)));
            let mut matched = String::new();
            // Silence shows in the next answer.
            let got = client.receive_until(|got| expected.is_empty() || matches(got, &mut matched));
            let sent = &exchange.sent;
            let shown = got.escape_ascii();
            let right = matches(&got, &mut cas);
            assert!(right, "{name}\n> {sent}\n< {expected}\nis {shown}");
            if exchange.closed {
                assert!(client.is_closed(), "{name}\n> {sent}\nnot closed");
                open = false;
            }
        }
        if open {
            client.expect(language.nothing.0, language.nothing.1);
        }
    }
}

#[test]
fn we_answer_as_recorded() {
    for driver in drivers("we_answer_as_recorded") {
        let (running, address) = serve(&args(driver));
        for language in [TEXT, RESP] {
            hold(address, &language, |exchange| &exchange.ours, |_| None);
        }
        running.stop().expect("a clean end");
    }
}

#[test]
fn memcached_answers_as_recorded() {
    let Some(memcached) = Memcached::start("memcached_answers_as_recorded") else { return };
    hold(memcached.address, &TEXT, |exchange| &exchange.theirs, unpadded);
}

#[test]
fn redis_answers_as_recorded() {
    let Some(redis) = Redis::start("redis_answers_as_recorded") else { return };
    hold(redis.address, &RESP, |exchange| &exchange.theirs, |_| None);
}

/// memcached pads a number that became shorter with spaces, to change it in place; while its own
/// maintenance holds the item it makes a new one instead, without padding. Both are its answers.
fn unpadded(expected: &str) -> Option<String> {
    let padded = "VALUE n 3 20\\r\\n7                   \\r\\n";
    expected.contains(padded).then(|| expected.replace(padded, "VALUE n 3 1\\r\\n7\\r\\n"))
}
