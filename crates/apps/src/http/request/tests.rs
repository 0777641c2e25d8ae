//! What is accepted, what is refused and why.

use proptest::prelude::*;

use super::*;

/// Parses and hands what is borrowed to `look`.
fn look<T>(
    text: &[u8],
    look: impl FnOnce(HttpRequest<'_, '_>) -> T,
) -> Result<Option<T>, HeadRefusal> {
    let mut storage = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    parse(text, &mut storage).map(|request| request.map(look))
}

fn refusal(text: &str) -> Option<HeadRefusal> {
    look(text.as_bytes(), |_| ()).err()
}

fn with_fields(fields: &str) -> String {
    format!("GET /x HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

#[test]
fn a_plain_request_is_read() {
    let text = b"GET /a/b?c=d HTTP/1.1\r\nHost: example.com:80\r\nAccept: */*\r\n\r\nGET ";
    let seen = look(text, |request| {
        assert_eq!(request.method, Method::Get);
        assert_eq!(request.target, HttpTarget::Path { path: b"/a/b", query: b"?c=d" });
        assert_eq!(request.framing, Framing::Length(0));
        assert_eq!(request.persistence, Persistence::Implied);
        assert!(!request.expects_continue && !request.preconditions.any && !request.ranged);
        assert_eq!(request.head_len, text.len() - 4);
    });
    assert_eq!(seen, Ok(Some(())));
}

#[test]
fn every_prefix_is_incomplete() {
    let text = b"\r\nGET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n";
    for len in 0..text.len() {
        assert_eq!(look(&text[..len], |_| ()), Ok(None), "{len}");
        assert!(!may_be_complete(&text[..len], 0), "{len}");
    }
    assert_eq!(look(text, |request| request.ranged), Ok(Some(true)));
    for searched in 0..text.len() {
        assert!(may_be_complete(text, searched), "{searched}");
    }
}

#[test]
fn methods_are_distinguished() {
    for (name, method) in [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("OPTIONS", Method::Options),
        ("POST", Method::NotAllowed),
        ("TRACE", Method::NotAllowed),
        ("get", Method::Unknown),
        ("BREW", Method::Unknown),
    ] {
        let text = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(look(text.as_bytes(), |request| request.method), Ok(Some(method)), "{name}");
    }
}

#[test]
fn targets_have_four_forms() {
    let path = |path: &'static [u8], query: &'static [u8]| Some(HttpTarget::Path { path, query });
    for (line, target) in [
        ("GET /", path(b"/", b"")),
        ("GET /?", path(b"/", b"?")),
        ("GET /a?b?c", path(b"/a", b"?b?c")),
        ("GET http://a/b", path(b"/b", b"")),
        ("GET HTTP://a:80", path(b"/", b"")),
        ("GET https://a?b", path(b"/", b"?b")),
        ("OPTIONS *", Some(HttpTarget::Server)),
        ("OPTIONS http://a", Some(HttpTarget::Server)),
        ("CONNECT a:80", Some(HttpTarget::Server)),
        ("GET *", None),
        ("GET a", None),
        ("GET a:80", None),
        ("GET ftp://a/b", None),
        ("GET http:///b", None),
        ("GET http://user@a/b", None),
        ("GET /a#b", None),
    ] {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let seen =
            look(text.as_bytes(), |request| assert_eq!(Some(request.target), target, "{line}"));
        match target {
            Some(_) => assert_eq!(seen, Ok(Some(())), "{line}"),
            None => assert_eq!(seen, Err(HeadRefusal::Target), "{line}"),
        }
    }
}

#[test]
fn bad_syntax_is_refused() {
    for text in [
        "GET /\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET / http/1.1\r\nHost: a\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "G\u{e9}T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n: empty\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    ] {
        assert_eq!(refusal(text), Some(HeadRefusal::Syntax), "{text:?}");
    }
}

#[test]
fn lines_end_in_both_characters() {
    for text in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(refusal(text), Some(HeadRefusal::BareLineFeed), "{text:?}");
        assert!(may_be_complete(text.as_bytes(), 0), "{text:?}");
    }
}

#[test]
fn versions_other_than_one_are_refused() {
    for (version, expected) in [
        ("HTTP/2.0", HeadRefusal::Version),
        ("HTTP/0.9", HeadRefusal::Version),
        ("HTTP/9.9", HeadRefusal::Version),
        ("HTTP/2", HeadRefusal::Syntax),
        ("HTTP/11.1", HeadRefusal::Syntax),
        ("HTTP/1.1x", HeadRefusal::Syntax),
        ("SPDY/1.1", HeadRefusal::Syntax),
    ] {
        let text = format!("GET / {version}\r\nHost: a\r\n\r\n");
        assert_eq!(refusal(&text), Some(expected), "{version}");
    }
    assert_eq!(refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Some(HeadRefusal::Version));
}

#[test]
fn hosts_are_exactly_one() {
    assert_eq!(refusal("GET / HTTP/1.1\r\n\r\n"), Some(HeadRefusal::Host));
    assert_eq!(refusal("GET / HTTP/1.0\r\n\r\n"), None);
    assert_eq!(refusal("GET / HTTP/1.1\r\nHost:\r\n\r\n"), Some(HeadRefusal::Host));
    assert_eq!(refusal("GET / HTTP/1.0\r\nHost: \t\r\n\r\n"), Some(HeadRefusal::Host));
    assert_eq!(refusal("GET / HTTP/1.0\r\n\r\n"), None);
    assert_eq!(refusal("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), None);
    for fields in ["Host: a\r\n", "hOST: b\r\n"] {
        assert_eq!(refusal(&with_fields(fields)), Some(HeadRefusal::Host), "{fields}");
    }
    for value in ["a b", "a/b", "u@a", "a,b c", "\"a\""] {
        let text = format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n");
        assert_eq!(refusal(&text), Some(HeadRefusal::Host), "{value}");
    }
}

#[test]
fn framing_has_one_reading_or_none() {
    let framing = |fields: &str| {
        look(with_fields(fields).as_bytes(), |request| request.framing).map(Option::unwrap)
    };
    assert_eq!(framing("Content-Length: 0\r\n"), Ok(Framing::Length(0)));
    assert_eq!(framing("Content-Length:  12 \r\n"), Ok(Framing::Length(12)));
    assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Ok(Framing::Chunked));
    let endless = "Content-Length: 99999999999999999999999\r\n";
    assert_eq!(framing(endless), Ok(Framing::Length(u64::MAX)), "too large, not wrapped");
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\ncontent-length: 5\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 5\r\n",
        "Content-Length: five\r\n",
        "Content-Length:\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: gzip\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Transfer-Encoding: chunked,\r\n",
    ] {
        assert_eq!(framing(fields), Err(HeadRefusal::Framing), "{fields}");
    }
    for fields in [
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n",
        "Transfer-Encoding: \x0bchunked\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked;q=1\r\n",
        "Transfer-Encoding:\r\n",
    ] {
        let refused = framing(fields);
        assert!(
            matches!(refused, Err(HeadRefusal::TransferCoding | HeadRefusal::Syntax)),
            "{fields:?}: {refused:?}"
        );
    }
    let old = "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(refusal(old), Some(HeadRefusal::Framing), "HTTP/1.0 has no transfer codings");
}

#[test]
fn persistence_follows_version_and_options() {
    for (version, value, expected) in [
        ("1.1", None, Persistence::Implied),
        ("1.1", Some("keep-alive"), Persistence::Implied),
        ("1.1", Some("close"), Persistence::Close),
        ("1.1", Some("upgrade, CLOSE"), Persistence::Close),
        ("1.1", Some("keep-alive, close"), Persistence::Close),
        ("1.1", Some("closed"), Persistence::Implied),
        ("1.0", None, Persistence::Close),
        ("1.0", Some("Keep-Alive"), Persistence::Asked),
        ("1.0", Some("keep-alive,close"), Persistence::Close),
    ] {
        let field = value.map(|value| format!("Connection: {value}\r\n")).unwrap_or_default();
        let text = format!("GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n");
        let seen = look(text.as_bytes(), |request| request.persistence);
        assert_eq!(seen, Ok(Some(expected)), "{version} {value:?}");
    }
}

#[test]
fn expectations_are_understood_or_refused() {
    let expects = |text: &str| look(text.as_bytes(), |request| request.expects_continue);
    assert_eq!(expects(&with_fields("Expect: 100-Continue\r\n")), Ok(Some(true)));
    assert_eq!(refusal(&with_fields("Expect: tea\r\n")), Some(HeadRefusal::Expectation));
    assert_eq!(expects("GET / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"), Ok(Some(false)));
    assert_eq!(expects("GET / HTTP/1.0\r\nExpect: tea\r\n\r\n"), Ok(Some(false)));
}

#[test]
fn oversized_requests_have_their_own_status() {
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(TARGET_BYTES_MAX));
    assert_eq!(refusal(&long), Some(HeadRefusal::TargetTooLong));
    let many = with_fields(&"X: y\r\n".repeat(FIELDS_MAX));
    assert_eq!(refusal(&many), Some(HeadRefusal::HeadTooLarge));
    assert_eq!(refusal(&with_fields(&"X: y\r\n".repeat(FIELDS_MAX - 1))), None);
    assert_eq!(too_large(b"GET / HTTP/1.1\r\nX: xxxx"), HeadRefusal::HeadTooLarge);
    assert_eq!(too_large(b"GET /xxxxxxxxx"), HeadRefusal::TargetTooLong);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = look(&text, |_| ());
    }

    #[test]
    fn damaged_heads_are_survived(at in 0_usize..90, byte in any::<u8>()) {
        let mut text = b"GET /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nConnection: close\r\n\
            If-None-Match: \"x\"\r\n\r\n".to_vec();
        let at = at % text.len();
        text[at] = byte;
        if let Ok(Some(len)) = look(&text, |request| request.head_len) {
            prop_assert!(len <= text.len());
            prop_assert!(text[..len].ends_with(b"\r\n\r\n"));
        }
    }

    /// Whatever the search says is no complete head, the parser must not accept.
    #[test]
    fn the_search_misses_no_end(
        text in "(GET / HTTP/1.1\r?\n)?(Host: a\r?\n)?[\r\nx]{0,6}", cut in 0_usize..40,
    ) {
        let cut = cut.min(text.len());
        if !may_be_complete(text.as_bytes(), 0) {
            prop_assert!(!matches!(look(text.as_bytes(), |_| ()), Ok(Some(()))));
        }
        if !may_be_complete(&text.as_bytes()[..cut], 0) {
            prop_assert_eq!(
                may_be_complete(text.as_bytes(), cut), may_be_complete(text.as_bytes(), 0)
            );
        }
    }
}
