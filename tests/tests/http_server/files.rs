//! Which file, which part of it, and under which condition.

use std::fs;
use std::os::unix::fs::symlink;

use super::fixture::{LARGE_LEN, MODIFIED, Response, Server, content, drivers, get, get_with};

/// The parts of a multipart body, each with its Content-Range.
fn parts(response: &Response) -> Vec<(String, Vec<u8>)> {
    let media_type = response.field("content-type").unwrap();
    let boundary = media_type.strip_prefix("multipart/byteranges; boundary=").unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let body = String::from_utf8(response.body.iter().map(|byte| byte & 0x7f).collect()).unwrap();
    assert!(body.ends_with(&format!("{delimiter}--\r\n")));
    let pieces: Vec<&str> = body.split(&delimiter).collect();
    let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
    assert_eq!((first, last), ("", "--\r\n"));
    pieces[1..pieces.len() - 1]
        .iter()
        .map(|piece| {
            let (head, body) = piece.split_once("\r\n\r\n").unwrap();
            let range = head.lines().find_map(|line| line.strip_prefix("Content-Range: ")).unwrap();
            (range.to_owned(), body.as_bytes().to_vec())
        })
        .collect()
}

#[test]
fn ranges_of_cached_and_of_streamed_files() {
    for driver in drivers("ranges_of_cached_and_of_streamed_files") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for (path, len) in [("/1k.bin", 1024), ("/300k.bin", 300_000), ("/large.bin", LARGE_LEN)] {
            let whole = content(len);
            for (value, start, end) in [
                ("bytes=0-0", 0, 1),
                ("bytes=10-19", 10, 20),
                ("bytes=1000-", 1000, len),
                ("bytes=-24", len - 24, len),
                ("bytes=0-99999999", 0, len),
                ("bytes=-99999999", 0, len),
                ("bytes=500-600,550-700", 500, 701),
            ] {
                client.send(get_with(path, &format!("Range: {value}\r\n")).as_bytes());
                let response = client.response();
                assert_eq!(response.status, 206, "{driver} {path} {value}");
                let range = format!("bytes {start}-{}/{len}", end - 1);
                assert_eq!(response.field("content-range"), Some(range.as_str()), "{value}");
                assert!(response.body == whole[start..end], "{driver} {path} {value}");
            }
            client.send(get_with(path, &format!("Range: bytes={len}-\r\n")).as_bytes());
            let response = client.response();
            let range = format!("bytes */{len}");
            assert_eq!(
                (response.status, response.field("content-range")),
                (416, Some(range.as_str()))
            );
            for ignored in
                ["bytes=5-4", "lines=1-2", "bytes=x", &format!("bytes={}0-0", "1-1,".repeat(99))]
            {
                client.send(get_with(path, &format!("Range: {ignored}\r\n")).as_bytes());
                let response = client.response();
                assert_eq!((response.status, response.body.len()), (200, len), "{ignored}");
            }
        }
    }
}

#[test]
fn several_ranges_are_several_parts() {
    for driver in drivers("several_ranges_are_several_parts") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for (path, len) in [("/1k.bin", 1024), ("/large.bin", LARGE_LEN)] {
            // Below 128 the fixture's bytes are ASCII, which keeps this test's reader simple.
            let range = "Range: bytes=20-29, -3, 251-260, 300-\r\n";
            let range = range.replace("300-", "300-310");
            client.send(get_with(path, &range).as_bytes());
            let response = client.response();
            assert_eq!(response.status, 206, "{driver} {path}");
            assert_eq!(response.field("content-range"), None);
            let whole: Vec<u8> = content(len).iter().map(|byte| byte & 0x7f).collect();
            let expected: Vec<(String, Vec<u8>)> =
                [(20, 30), (len - 3, len), (251, 261), (300, 311)]
                    .iter()
                    .map(|&(start, end)| {
                        (format!("bytes {start}-{}/{len}", end - 1), whole[start..end].to_vec())
                    })
                    .collect();
            assert_eq!(parts(&response), expected, "{driver} {path}");
            assert_eq!(client.get("/hello.txt").status, 200, "the length was right");
        }
    }
}

#[test]
fn conditions_in_their_order() {
    let before = "Sun, 09 Sep 2001 01:46:39 GMT";
    let after = "Monday, 10-Sep-01 00:00:00 GMT";
    for driver in drivers("conditions_in_their_order") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for path in ["/1k.bin", "/large.bin"] {
            let tag = client.get(path).field("etag").unwrap().to_owned();
            for (fields, status) in [
                (format!("If-None-Match: {tag}\r\n"), 304),
                (format!("If-None-Match: \"x\", W/{tag}\r\n"), 304),
                ("If-None-Match: *\r\n".into(), 304),
                ("If-None-Match: \"x\"\r\n".into(), 200),
                (format!("If-Modified-Since: {MODIFIED}\r\n"), 304),
                (format!("If-Modified-Since: {after}\r\n"), 304),
                (format!("If-Modified-Since: {before}\r\n"), 200),
                ("If-Modified-Since: never\r\n".into(), 200),
                (format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {after}\r\n"), 200),
                (format!("If-Match: {tag}\r\n"), 200),
                (format!("If-Match: W/{tag}\r\n"), 412),
                ("If-Match: *\r\n".into(), 200),
                ("If-Match: \"x\"\r\n".into(), 412),
                (format!("If-Unmodified-Since: {before}\r\n"), 412),
                (format!("If-Unmodified-Since: {MODIFIED}\r\n"), 200),
                (format!("If-Match: {tag}\r\nIf-Unmodified-Since: {before}\r\n"), 200),
                (format!("If-Match: {tag}\r\nIf-None-Match: {tag}\r\n"), 304),
                ("If-Match: \"x\"\r\nRange: bytes=0-1\r\n".into(), 412),
                (format!("If-None-Match: {tag}\r\nRange: bytes=0-1\r\n"), 304),
                (format!("If-Range: {tag}\r\nRange: bytes=0-1\r\n"), 206),
                (format!("If-Range: {MODIFIED}\r\nRange: bytes=0-1\r\n"), 206),
                (format!("If-Range: W/{tag}\r\nRange: bytes=0-1\r\n"), 200),
                (format!("If-Range: {after}\r\nRange: bytes=0-1\r\n"), 200),
                ("If-Range: \"x\"\r\nRange: bytes=9999999-\r\n".into(), 200),
            ] {
                client.send(get_with(path, &fields).as_bytes());
                let response = client.response();
                assert_eq!(response.status, status, "{driver} {path} {fields}");
                if status == 304 {
                    assert_eq!(response.field("etag"), Some(tag.as_str()));
                    assert_eq!(response.field("content-length"), None);
                }
                let head = get_with(path, &fields).replacen("GET", "HEAD", 1);
                client.send(head.as_bytes());
                let of_head = client.head_response().status;
                let expected = if status == 206 { 200 } else { status };
                assert_eq!(of_head, expected, "{driver} HEAD {path} {fields}");
            }
        }
    }
}

#[test]
fn nothing_outside_the_root_is_served() {
    let ways_out = [
        "/outside",
        "/absolute",
        "/parent/secret.txt",
        "/parent/site/hello.txt",
        "/../secret.txt",
        "/plain/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/.%2e/secret.txt",
        "/plain/%2e%2e/%2E%2E/secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "//../secret.txt",
        "/..\\secret.txt",
        "/..%5csecret.txt",
        "/..;/secret.txt",
        "/%252e%252e/secret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/secret.txt%00.html",
        "http://localhost/../secret.txt",
        "/plain/../..",
        "/dir/../../secret.txt/..",
    ];
    for driver in drivers("nothing_outside_the_root_is_served") {
        let server = Server::start(driver, |_| {});
        for path in ways_out {
            let response = server.ask(get(path).as_bytes());
            assert!(matches!(response.status, 400 | 403 | 404), "{path}: {}", response.head);
            assert!(!response.body.windows(6).any(|six| six == b"secret"), "{path}");
        }
        assert_eq!(server.ask(get("/inside").as_bytes()).body, b"hello, world\n");
        let server = Server::start(driver, |args| args.follow_links = true);
        assert_eq!(server.ask(get("/outside").as_bytes()).body, b"secret");
        assert_eq!(server.ask(get("/absolute").as_bytes()).body, b"secret");
        assert_eq!(server.ask(get("/../secret.txt").as_bytes()).status, 400);
    }
}

#[test]
fn a_directory_swapped_for_a_link_does_not_open_the_way_out() {
    for driver in drivers("a_directory_swapped_for_a_link_does_not_open_the_way_out") {
        let server = Server::start(driver, |_| {});
        let root = server.root();
        fs::create_dir(root.join("swap")).unwrap();
        fs::write(root.join("swap/secret.txt"), b"public").unwrap();
        symlink("..", root.join("trap")).unwrap();
        let swapping = root.clone();
        let swapper = std::thread::spawn(move || {
            for _ in 0..300 {
                for (from, to) in
                    [("swap", "aside"), ("trap", "swap"), ("swap", "trap"), ("aside", "swap")]
                {
                    fs::rename(swapping.join(from), swapping.join(to)).unwrap();
                }
            }
        });
        let mut client = server.connect();
        while !swapper.is_finished() {
            let response = client.get("/swap/secret.txt");
            assert_ne!(response.body, b"secret");
            assert!(matches!(response.status, 200 | 403 | 404 | 503), "{}", response.head);
        }
        swapper.join().unwrap();
    }
}

#[test]
fn changed_files_are_served_changed() {
    for driver in drivers("changed_files_are_served_changed") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        assert_eq!(client.get("/hello.txt").body, b"hello, world\n");
        fs::write(server.root().join("hello.txt"), b"HELLO, WORLD\n").unwrap();
        let deadline = std::time::Instant::now() + super::fixture::PATIENCE;
        while client.get("/hello.txt").body != b"HELLO, WORLD\n" {
            assert!(std::time::Instant::now() < deadline, "the old file is still served");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let young = client.get("/hello.txt");
        let tag = young.field("etag").unwrap();
        assert!(tag.starts_with("W/\""), "the file may change again within this time stamp: {tag}");
        fs::remove_file(server.root().join("hello.txt")).unwrap();
        while client.get("/hello.txt").status != 404 {
            assert!(std::time::Instant::now() < deadline, "the removed file is still served");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_is_not_passed_off_as_whole() {
    for driver in drivers("a_file_that_shrinks_while_it_is_sent_is_not_passed_off_as_whole") {
        let server = Server::start(driver, |_| {});
        let big = server.root().join("big.bin");
        fs::write(&big, vec![b'x'; 30_000_000]).unwrap();
        let mut client = server.connect();
        client.send(get("/big.bin").as_bytes());
        // The server is held up by a full socket while the file loses its end.
        server.wait_until("the request", |tally| tally.requests == 1);
        fs::File::options().write(true).open(&big).unwrap().set_len(100_000).unwrap();
        client.wait_for_end();
        server.wait_until("the end", |tally| tally.closed == 1);
        assert_eq!(server.tally().failed, 1);
    }
}

#[test]
fn index_names_are_tried_in_order() {
    for driver in drivers("index_names_are_tried_in_order") {
        let server = Server::start(driver, |args| {
            args.index = vec!["none.html".into(), "hello.txt".into(), "index.html".into()];
        });
        let home = server.ask(get("/").as_bytes());
        assert_eq!(home.body, b"hello, world\n");
        assert_eq!(home.field("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(server.ask(get("/dir/").as_bytes()).body, b"in dir\n");
    }
}

#[test]
fn without_a_cache_everything_is_served_all_the_same() {
    for driver in drivers("without_a_cache_everything_is_served_all_the_same") {
        let server = Server::start(driver, |args| {
            args.cache_file_bytes = 0;
            args.cache_entries = 0;
        });
        let mut client = server.connect();
        for (path, body) in [
            ("/hello.txt", b"hello, world\n".to_vec()),
            ("/empty.txt", vec![]),
            ("/300k.bin", content(300_000)),
        ] {
            assert!(client.get(path).body == body, "{path}");
        }
    }
}
