//! Requests as a server expects them, and every framing of a response.

use super::*;

const DONE: ResponseProgress = ResponseProgress::Done { reusable: true };
const LAST: ResponseProgress = ResponseProgress::Done { reusable: false };

fn protocol() -> HttpClient {
    HttpClient::new(vec![RequestTarget::path("/a", "host", true)], 200, 1, Rng::new(1))
}

fn request(protocol: &mut HttpClient, exchange: &mut HttpExchange) -> String {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    protocol.request(exchange, &mut RequestBuilder { head: &mut head, tail: &mut tail });
    String::from_utf8(head).expect("ASCII")
}

/// The last answer to a response that comes in pieces, however it is cut.
fn answer(response: &str) -> ResponseProgress {
    let mut all = Vec::new();
    for piece_len in [response.len().max(1), 1, 2, 3, 5, 17] {
        let (mut protocol, mut exchange) = (protocol(), HttpExchange::default());
        request(&mut protocol, &mut exchange);
        let mut last = ResponseProgress::More;
        for piece in response.as_bytes().chunks(piece_len) {
            assert_ne!(last, DONE, "complete too early: {response:?}");
            last = protocol.response(&mut exchange, piece);
            if last == ResponseProgress::Wrong {
                break;
            }
        }
        if last == ResponseProgress::More {
            last = protocol.end_of_stream(&mut exchange);
        }
        all.push(last);
    }
    assert!(all.iter().all(|&one| one == all[0]), "{response:?}: {all:?}");
    all[0]
}

#[test]
fn requests_are_what_a_server_expects() {
    let (mut protocol, mut exchange) = (protocol(), HttpExchange::default());
    let text = request(&mut protocol, &mut exchange);
    assert!(text.starts_with("GET /a HTTP/1.1\r\nHost: host\r\n") && text.ends_with("\r\n\r\n"));
    assert!(!text.contains("Connection"));
    let last = RequestTarget::path("/", "h", false);
    assert!(String::from_utf8_lossy(&last.request).contains("\r\nConnection: close\r\n"));
}

#[test]
fn every_framing_is_understood() {
    for (response, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", DONE),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", DONE),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nab", LAST),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nab", LAST),
        ("HTTP/1.1 200 OK\r\n\r\nuntil the end", LAST),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", DONE),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n",
            DONE,
        ),
    ] {
        assert_eq!(answer(response), expected, "{response:?}");
    }
}

#[test]
fn wrong_responses_are_counted_as_wrong() {
    for response in [
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
    ] {
        assert_eq!(answer(response), ResponseProgress::Wrong, "{response:?}");
    }
    let (mut protocol, mut exchange) = (protocol(), HttpExchange::default());
    request(&mut protocol, &mut exchange);
    let more = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab";
    assert_eq!(protocol.response(&mut exchange, more), ResponseProgress::Wrong, "a byte too many");
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEADER_LEN_MAX));
    request(&mut protocol, &mut exchange);
    assert_eq!(protocol.response(&mut exchange, endless.as_bytes()), ResponseProgress::Wrong);
}

#[test]
fn a_page_keeps_its_length() {
    let (mut protocol, mut exchange) = (protocol(), HttpExchange::default());
    for (response, expected) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", DONE),
        ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabd", DONE),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", ResponseProgress::Wrong),
    ] {
        request(&mut protocol, &mut exchange);
        assert_eq!(protocol.response(&mut exchange, response.as_bytes()), expected);
    }
    assert_eq!(protocol.details(), [("content_bytes", 8)]);
}

#[test]
fn files_of_a_set_are_checked_byte_by_byte() {
    let set: FileSet = "uniform:1-9000@20".parse().expect("a set");
    let targets = RequestTarget::files(&set, "host", true).expect("memory");
    let mut protocol = HttpClient::new(targets, 200, 1, Rng::new(9));
    let mut exchange = HttpExchange::default();
    for round in 0..100 {
        let text = request(&mut protocol, &mut exchange);
        let digits = text.strip_prefix("GET /set/").and_then(|rest| rest.get(..6));
        let file: usize = digits.expect(&text).parse().expect(&text);
        let len = set.lens()[file];
        let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").into_bytes();
        response.extend_from_slice(FileSet::content(file, 0, len));
        if round % 5 == 4 {
            let last = response.len() - 1;
            response[last] ^= 1;
            assert_eq!(protocol.response(&mut exchange, &response), ResponseProgress::Wrong);
        } else {
            assert_eq!(protocol.response(&mut exchange, &response), DONE);
        }
    }
}
