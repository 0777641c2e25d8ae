//! What is asked and what is answered: methods, targets, faults, smuggling.

use super::fixture::{Server, content, drivers, get, get_with};

#[test]
fn files_are_served_with_their_fields() {
    for driver in drivers("files_are_served_with_their_fields") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for (path, media_type, body) in [
            ("/hello.txt", "text/plain; charset=utf-8", b"hello, world\n".to_vec()),
            ("/hello.txt?query=1", "text/plain; charset=utf-8", b"hello, world\n".to_vec()),
            ("/with%20space.txt", "text/plain; charset=utf-8", b"space".to_vec()),
            ("/plain/../hello.txt", "text/plain; charset=utf-8", b"hello, world\n".to_vec()),
            ("http://localhost/hello.txt", "text/plain; charset=utf-8", b"hello, world\n".to_vec()),
            ("/dir/", "text/html; charset=utf-8", b"in dir\n".to_vec()),
            ("/plain/file.css", "text/css; charset=utf-8", b"a{}".to_vec()),
            ("/empty.txt", "text/plain; charset=utf-8", Vec::new()),
            ("/1k.bin", "application/octet-stream", content(1024)),
            ("/30k.bin", "application/octet-stream", content(30_000)),
            ("/300k.bin", "application/octet-stream", content(300_000)),
            ("/large.bin", "application/octet-stream", content(super::fixture::LARGE_LEN)),
        ] {
            for round in 0..2 {
                let response = client.get(path);
                assert_eq!(response.status, 200, "{driver} {path} {round}");
                assert_eq!(response.field("content-type"), Some(media_type), "{path}");
                assert_eq!(response.field("accept-ranges"), Some("bytes"), "{path}");
                assert_eq!(response.field("last-modified"), Some(super::fixture::MODIFIED));
                let tag = response.field("etag").unwrap();
                assert!(tag.starts_with('"') && tag.ends_with('"'), "{tag}");
                assert!(response.field("connection").is_none());
                assert!(response.body == body, "{driver} {path} {round}");
            }
        }
    }
}

#[test]
fn missing_and_forbidden_files_are_refused() {
    for driver in drivers("missing_and_forbidden_files_are_refused") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for (path, status) in [
            ("/nothing", 404),
            ("/hello.txt/", 404),
            ("/hello.txt/x", 404),
            ("/plain/", 403),
            ("/%", 400),
            ("/%zz", 400),
            ("/a%00b", 400),
            ("/..%2f..%2fetc/passwd", 404),
        ] {
            let response = client.get(path);
            assert_eq!(response.status, status, "{path}");
            assert!(!response.closes(), "{path}: the request was whole");
        }
        client.send(b"BREW /hello.txt HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().status, 501);
        server.wait_until("errors", |tally| (tally.status_4xx, tally.status_5xx) == (8, 1));
        let moved = client.get("/dir?a=b");
        assert_eq!((moved.status, moved.field("location")), (301, Some("/dir/?a=b")));
        let moved = client.get("//dir");
        assert_eq!(moved.field("location"), Some("/dir/"), "never the name of another host");
    }
}

#[test]
fn methods() {
    for driver in drivers("methods") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        client.send(b"HEAD /300k.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n");
        let head = client.head_response();
        assert_eq!((head.status, head.field("content-length")), (200, Some("300000")));
        for (method, status) in [
            ("POST", 405),
            ("PUT", 405),
            ("DELETE", 405),
            ("TRACE", 405),
            ("PATCH", 405),
            ("BREW", 501),
            ("get", 501),
        ] {
            let text =
                format!("{method} /hello.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
            client.send(text.as_bytes());
            let response = client.response();
            assert_eq!(response.status, status, "{method}");
            let allowed = (status == 405).then_some("GET, HEAD, OPTIONS");
            assert_eq!(response.field("allow"), allowed, "{method}");
        }
        for target in ["*", "/hello.txt"] {
            client.send(format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
            let response = client.response();
            assert_eq!(
                (response.status, response.field("allow")),
                (204, Some("GET, HEAD, OPTIONS"))
            );
        }
        assert_eq!(client.get("/hello.txt").status, 200, "and the connection is in step");
    }
}

#[test]
fn malformed_requests_get_their_status_and_the_end() {
    let long_target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9_000));
    let long_field = get_with("/", &format!("X: {}\r\n", "y".repeat(20_000)));
    let endless_line = "G".repeat(40_000);
    let many_fields = get_with("/", &"X: y\r\n".repeat(120));
    let table: Vec<(&[u8], u16)> = vec![
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n", 400),
        (b"GET nowhere HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1073741824\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 413),
        (long_target.as_bytes(), 414),
        (endless_line.as_bytes(), 414),
        (long_field.as_bytes(), 431),
        (many_fields.as_bytes(), 431),
    ];
    for driver in drivers("malformed_requests_get_their_status_and_the_end") {
        let server = Server::start(driver, |_| {});
        for (request, status) in &table {
            let start = String::from_utf8_lossy(&request[..request.len().min(60)]).into_owned();
            let mut client = server.connect();
            client.send(request);
            // What follows must not be answered, and must not destroy the answer by a reset.
            client.send(get("/hello.txt").repeat(50).as_bytes());
            client.finish();
            let response = client.response();
            assert_eq!(response.status, *status, "{driver} {start:?}");
            assert!(response.closes(), "{start:?}");
            assert_eq!(client.rest(), b"", "{start:?}");
        }
        assert_eq!(server.ask(get("/hello.txt").as_bytes()).status, 200);
        server.wait_until("refusals", |tally| tally.rejected == table.len() as u64);
    }
}

#[test]
fn requests_cannot_be_smuggled() {
    let inner = "GET /secret-path HTTP/1.1\r\nHost: a\r\n\r\n";
    let len = inner.len();
    let refused = [
        format!("Content-Length: {len}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\nContent-Length: {len}\r\n\r\n0\r\n\r\n{inner}"),
        format!("Content-Length: 0\r\nContent-Length: {len}\r\n\r\n{inner}"),
        format!("Content-Length: 0, {len}\r\n\r\n{inner}"),
        format!("Content-Length: +{len}\r\n\r\n{inner}"),
        format!("Content-Length: 0x{len:x}\r\n\r\n{inner}"),
        format!("Content-Length : {len}\r\n\r\n{inner}"),
        format!("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n0\n\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n0;x\ny\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n 0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n{inner}"),
        format!("Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n{inner}"),
    ];
    for driver in drivers("requests_cannot_be_smuggled") {
        let server = Server::start(driver, |_| {});
        for fields in &refused {
            for method in ["GET", "POST"] {
                let mut client = server.connect();
                let text = format!("{method} /hello.txt HTTP/1.1\r\nHost: a\r\n{fields}");
                client.send(text.as_bytes());
                client.finish();
                let response = client.response();
                assert!(
                    matches!(response.status, 400 | 501),
                    "{driver} {text:?}: {}",
                    response.head
                );
                assert!(response.closes(), "{text:?}");
                assert_eq!(client.rest(), b"", "{text:?}");
            }
        }
        let whole = format!(
            "GET /hello.txt HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
            {len:x}\r\n{inner}\r\n0\r\n\r\n"
        );
        let mut client = server.connect();
        client.send(whole.repeat(3).as_bytes());
        client.finish();
        for _ in 0..3 {
            assert_eq!(client.response().body, b"hello, world\n");
        }
        assert_eq!(client.rest(), b"", "content is never a request");
    }
}

#[test]
fn versions_and_persistence() {
    for driver in drivers("versions_and_persistence") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        client.send(b"GET /hello.txt HTTP/1.0\r\n\r\n");
        assert!(client.response().closes());
        assert_eq!(client.rest(), b"");
        let mut client = server.connect();
        for _ in 0..3 {
            client.send(b"GET /hello.txt HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
            assert_eq!(client.response().field("connection"), Some("keep-alive"));
        }
        client.send(get_with("/hello.txt", "Connection: close\r\n").as_bytes());
        assert!(client.response().closes());
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn expectations() {
    for driver in drivers("expectations") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        let waits = get_with("/hello.txt", "Expect: 100-continue\r\nContent-Length: 4\r\n");
        client.send(waits.as_bytes());
        let response = client.response();
        assert_eq!((response.status, response.closes()), (200, true));
        let mut client = server.connect();
        client.send(format!("{waits}body{}", get("/empty.txt")).as_bytes());
        assert_eq!(client.response().body, b"hello, world\n");
        assert_eq!(client.response().field("content-length"), Some("0"));
    }
}
