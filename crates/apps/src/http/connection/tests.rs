//! A connection in virtual time, against a site that is a table.

use std::collections::HashMap;
use std::rc::Rc;

use proptest::prelude::*;

use super::super::cache::CachedFile;
use super::super::date;
use super::super::document_root::PathLookup;
use super::super::limits::CHUNK_BYTES;
use super::super::outbox::HttpOutbox;
use super::super::representation::tests::representation;
use super::super::response::PreparedFile;
use super::*;
use crate::serve::ServerTally;

const UNIX_S: i64 = 1_000_000_000;
const LARGE_LEN: usize = 3 * CHUNK_BYTES + 17;

/// Files by path; those in `large` are streamed.
struct Table {
    held: HashMap<&'static [u8], Rc<CachedFile>>,
}

impl Table {
    fn new() -> Self {
        let mut held = HashMap::new();
        let files = [(&b"/a"[..], 5), (b"/b", 10), (b"/big", 40_000), (b"/empty", 0)];
        for (path, len) in files {
            let representation = representation(len as u64, 784_111_777);
            let prepared = PreparedFile::new(&representation, &content(len));
            held.insert(path, Rc::new(CachedFile { representation, prepared }));
        }
        Self { held }
    }
}

impl DocumentRoot for Table {
    type File = ();

    fn find(&mut self, raw: &[u8], _now: &Now) -> PathLookup<()> {
        match (self.held.get(raw), raw) {
            (Some(entry), _) => PathLookup::Held(entry.clone()),
            (None, b"/large") => {
                PathLookup::Open(Box::new(representation(LARGE_LEN as u64, 784_111_777)), ())
            }
            (None, b"/dir") => PathLookup::Directory(b"/dir/".to_vec()),
            _ => PathLookup::Missing,
        }
    }
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| b'a' + (at % 23) as u8).collect()
}

/// The peer and the shell in one: gives inputs and does what the connection asks for.
struct Bench {
    connection: HttpConnection,
    document_root: Table,
    settings: HttpSettings,
    now: Now,
    out: HttpOutbox,
    tally: ServerTally,
    /// What the peer has got.
    received: Vec<u8>,
    /// Writes that are not completed, if the peer does not read.
    unwritten: usize,
    reading: bool,
    half_closed: bool,
    streaming: bool,
    /// The last input opened a file.
    opened: bool,
}

impl Bench {
    fn new() -> Self {
        let settings = HttpSettings {
            head_bytes_max: 2000,
            content_bytes_max: 100,
            requests_max: None,
            head_timeout_ms: 10_000,
            content_timeout_ms: 20_000,
            idle_timeout_ms: 30_000,
            write_timeout_ms: 40_000,
            linger_timeout_ms: 2_000,
        };
        let now = Now { ms: 1_000_000, unix_s: UNIX_S, date: date::format(UNIX_S) };
        Self {
            connection: HttpConnection::new(&now, &settings),
            document_root: Table::new(),
            settings,
            now,
            out: HttpOutbox::new(1),
            tally: ServerTally::default(),
            received: Vec::new(),
            unwritten: 0,
            reading: true,
            half_closed: false,
            streaming: false,
            opened: false,
        }
    }

    /// One input; what it says arrives and, if the peer reads, is reported as written.
    fn input<T>(
        &mut self,
        input: impl FnOnce(&mut HttpConnection, &mut InputContext<'_, Table>) -> T,
    ) -> T {
        let result = self.process(input);
        let mut said = self.deliver();
        while said > 0 && self.reading {
            self.process(|connection, context| connection.on_written(said, context));
            said = self.deliver();
        }
        if !self.reading {
            self.unwritten += said;
        }
        result
    }

    fn process<T>(
        &mut self,
        input: impl FnOnce(&mut HttpConnection, &mut InputContext<'_, Table>) -> T,
    ) -> T {
        let mut context = InputContext {
            now: &self.now,
            settings: &self.settings,
            document_root: &mut self.document_root,
            out: &mut self.out,
            tally: &mut self.tally,
            opened: None,
        };
        let result = input(&mut self.connection, &mut context);
        self.opened |= context.opened.is_some();
        self.streaming |= self.opened;
        result
    }

    fn deliver(&mut self) -> usize {
        let len = self.out.len();
        self.received.extend(self.out.concat());
        self.out.clear();
        len
    }

    /// Does what the connection asks for until it asks for nothing.
    fn settle(&mut self) {
        loop {
            self.opened = false;
            if let Some(read) = self.input(|connection, context| connection.poll_file(context)) {
                assert!(self.streaming, "reads only of a file that was handed out");
                let offset = read.offset as usize;
                self.received.extend(&content(LARGE_LEN)[offset..offset + read.len]);
                self.input(|connection, context| connection.on_file_bytes(read.len, context));
                if self.reading {
                    self.input(|connection, context| connection.on_written(read.len, context));
                } else {
                    self.unwritten += read.len;
                }
            } else if !self.opened {
                break;
            }
        }
        self.streaming = self.connection.is_streaming();
        self.half_closed |= self.connection.poll_half_close();
    }

    fn send(&mut self, bytes: &[u8]) {
        self.input(|connection, context| connection.on_bytes(bytes, context));
        self.settle();
    }

    fn end(&mut self) {
        self.input(|connection, context| connection.on_end(context));
        self.settle();
    }

    fn stop(&mut self) {
        self.input(|connection, context| connection.on_stop(context));
        self.settle();
    }

    /// The peer takes everything that was written.
    fn read_all(&mut self) {
        self.reading = true;
        while self.unwritten > 0 {
            let len = std::mem::take(&mut self.unwritten);
            self.input(|connection, context| connection.on_written(len, context));
            self.settle();
        }
    }

    /// Lets time pass; the deadline is looked at as the shell does.
    fn wait(&mut self, ms: u64) {
        self.now.ms += ms;
        if self.connection.deadline_ms() <= self.now.ms {
            self.input(|connection, context| connection.on_timeout(context));
            self.settle();
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }

    /// The status codes received, in order, by walking over heads and bodies.
    fn statuses(&self) -> Vec<u16> {
        let mut statuses = Vec::new();
        let mut rest = &self.received[..];
        while !rest.is_empty() {
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut response = httparse::Response::new(&mut fields);
            let httparse::Status::Complete(head_len) = response.parse(rest).unwrap() else {
                panic!("cut off head: {:?}", String::from_utf8_lossy(rest));
            };
            let field = |name: &str| {
                response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name))
            };
            assert!(field("date").is_some());
            let code = response.code.unwrap();
            let body_len = match code {
                204 | 304 => 0,
                _ => std::str::from_utf8(field("content-length").unwrap().value)
                    .unwrap()
                    .parse()
                    .unwrap(),
            };
            statuses.push(code);
            rest = &rest[head_len + body_len..];
        }
        statuses
    }

    fn closed(&self) -> Option<HttpCloseReason> {
        self.connection.closed()
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let mut bench = Bench::new();
    bench.send(&get("/a"));
    assert_eq!(bench.statuses(), [200]);
    assert!(bench.text().ends_with("\r\n\r\nabcde"));
    bench.send(&get("/nothing"));
    bench.send(&get("/dir?x=1"));
    bench.send(&get("/empty"));
    assert_eq!(bench.statuses(), [200, 404, 301, 200]);
    assert!(bench.text().contains("\r\nLocation: /dir/?x=1\r\n"));
    assert!(bench.connection.wants_bytes() && !bench.half_closed);
    assert_eq!((bench.tally.requests, bench.tally.rejected), (4, 0));
}

#[test]
fn pipelined_requests_are_answered_in_order_by_one_input() {
    let mut bench = Bench::new();
    bench.send(&[get("/a"), get("/large"), get("/b"), get("/nothing"), get("/big")].concat());
    assert_eq!(bench.statuses(), [200, 200, 200, 404, 200]);
    let lens: Vec<String> = bench
        .text()
        .lines()
        .filter_map(|line| line.strip_prefix("Content-Length: ").map(str::to_owned))
        .collect();
    assert_eq!(lens, ["5".into(), LARGE_LEN.to_string(), "10".into(), "14".into(), "40000".into()]);
}

#[test]
fn a_large_file_arrives_whole_and_ranges_of_it_too() {
    let mut bench = Bench::new();
    bench.send(&get("/large"));
    assert!(bench.received.ends_with(&content(LARGE_LEN)));
    let mut bench = Bench::new();
    bench.send(b"GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=70000-70009,-3\r\n\r\n");
    assert_eq!(bench.statuses(), [206]);
    let part = String::from_utf8(content(LARGE_LEN)[70_000..70_010].to_vec()).unwrap();
    assert!(bench.text().contains(&format!("\r\n\r\n{part}\r\n--megapipe-")));
    let mut bench = Bench::new();
    bench.send(b"HEAD /large HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.send(b"GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=999999999-\r\n\r\n");
    assert!(bench.text().contains(&format!("Content-Length: {LARGE_LEN}\r\n")));
    assert!(bench.text().contains(&format!("Content-Range: bytes */{LARGE_LEN}\r\n")));
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_ends_the_connection() {
    let mut bench = Bench::new();
    bench.reading = false;
    bench.input(|connection, context| connection.on_bytes(&get("/large"), context));
    assert!(bench.input(|connection, context| connection.poll_file(context)).is_some());
    bench.input(|connection, context| connection.on_file_bytes(0, context));
    assert_eq!(bench.closed(), Some(HttpCloseReason::FileChanged));
    assert!(!bench.connection.is_streaming());
}

#[test]
fn head_answers_have_the_head_only() {
    let mut bench = Bench::new();
    bench.send(b"HEAD /a HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0\r\n\r\n");
    bench.send(b"HEAD /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
    let text = bench.text();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("Content-Length: 5\r\n"));
    assert!(!text.contains("Content-Range"), "ranges are defined for GET only");
    assert!(text.contains("HTTP/1.1 404 Not Found") && text.ends_with("\r\n\r\n"));
}

#[test]
fn conditions_and_ranges_of_a_cached_file() {
    let tag =
        String::from_utf8_lossy(representation(10, 784_111_777).entity_tag.as_bytes()).into_owned();
    for (fields, status, body) in [
        ("Range: bytes=2-4\r\n".into(), "206 Partial Content", "cde"),
        ("Range: bytes=-2\r\n".into(), "206 Partial Content", "ij"),
        ("Range: bytes=10-\r\n".into(), "416 Range Not Satisfiable", "416 Range Not Satisfiable\n"),
        ("Range: lines=1\r\n".into(), "200 OK", "abcdefghij"),
        (format!("If-None-Match: {tag}\r\n"), "304 Not Modified", ""),
        (format!("If-None-Match: {tag}\r\nRange: bytes=0-1\r\n"), "304 Not Modified", ""),
        ("If-Match: \"x\"\r\n".into(), "412 Precondition Failed", "412 Precondition Failed\n"),
        (format!("If-Range: {tag}\r\nRange: bytes=0-1\r\n"), "206 Partial Content", "ab"),
        ("If-Range: \"x\"\r\nRange: bytes=0-1\r\n".into(), "200 OK", "abcdefghij"),
    ] {
        let mut bench = Bench::new();
        bench.send(format!("GET /b HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
        let text = bench.text();
        assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{fields}: {text}");
        assert!(text.ends_with(&format!("\r\n\r\n{body}")), "{fields}: {text}");
        assert_eq!(text.contains("ETag: "), !status.starts_with("41"), "{fields}");
    }
}

#[test]
fn refused_requests_are_answered_and_the_connection_lingers() {
    for (text, status) in [
        ("nonsense\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
        ("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n", 413),
        ("PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n", 413),
        ("PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n", 400),
    ] {
        let mut bench = Bench::new();
        bench.send(text.as_bytes());
        assert_eq!(bench.statuses(), [status], "{text}");
        assert!(bench.text().contains("\r\nConnection: close\r\n"));
        assert!(bench.half_closed && bench.closed().is_none(), "lingers");
        assert_eq!(bench.tally.rejected, 1);
        bench.send(&get("/a"));
        assert_eq!(bench.statuses(), [status], "nothing more is answered");
        bench.end();
        assert_eq!(bench.closed(), Some(HttpCloseReason::Finished));
    }
}

#[test]
fn too_long_heads_are_refused_before_they_end() {
    let mut bench = Bench::new();
    bench.send(format!("GET /{}", "x".repeat(1900)).as_bytes());
    assert_eq!(bench.received, b"");
    bench.send(&[b'x'; 200]);
    assert_eq!(bench.statuses(), [414]);
    let mut bench = Bench::new();
    bench.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(2000)).as_bytes());
    assert_eq!(bench.statuses(), [431]);
    let mut bench = Bench::new();
    bench.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(2000)).as_bytes());
    assert_eq!(bench.statuses(), [431], "complete, and too long all the same");
}

#[test]
fn methods_that_are_not_served_leave_the_connection_open() {
    let mut bench = Bench::new();
    bench.send(b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nxyz");
    bench.send(b"BREW /a HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.send(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.send(b"OPTIONS /a HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.send(&get("/a"));
    assert_eq!(bench.statuses(), [405, 501, 204, 204, 200]);
    assert_eq!(bench.text().matches("\r\nAllow: GET, HEAD, OPTIONS\r\n").count(), 3);
}

#[test]
fn content_is_thrown_away_and_never_read_as_a_request() {
    let smuggled = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
    let len = smuggled.len();
    let with_length =
        format!("GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{smuggled}");
    let chunked = format!(
        "GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
        {len:x}\r\n{smuggled}\r\n0\r\n\r\n"
    );
    for text in [with_length, chunked] {
        for cut in [text.len(), text.len() - 10, text.len() - len] {
            let mut bench = Bench::new();
            bench.send(&text.as_bytes()[..cut]);
            bench.send(&text.as_bytes()[cut..]);
            bench.send(&get("/empty"));
            assert_eq!(bench.statuses(), [200, 200], "{text}");
            assert!(!bench.text().contains("Content-Length: 10\r\n"), "{text}");
        }
    }
}

#[test]
fn content_behind_a_streamed_answer_is_thrown_away_too() {
    let mut bench = Bench::new();
    bench.send(b"GET /large HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nabc");
    bench.send(&[b"def", &get("/a")[..]].concat());
    assert_eq!(bench.statuses(), [200, 200]);
}

#[test]
fn malformed_content_behind_an_answer_closes() {
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nz");
    assert_eq!(bench.statuses(), [200]);
    bench.send(b"zz");
    assert!(bench.half_closed);
    assert_eq!(bench.statuses(), [200]);
}

#[test]
fn a_peer_that_expects_100_gets_the_answer_and_the_end() {
    let mut bench = Bench::new();
    let head = "GET /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    bench.send(head.as_bytes());
    assert_eq!(bench.statuses(), [200]);
    assert!(bench.text().contains("Connection: close\r\n") && bench.half_closed);
    let mut bench = Bench::new();
    bench.send(format!("{head}hello").as_bytes());
    bench.send(&get("/a"));
    assert_eq!(bench.statuses(), [200, 200], "content that came anyway leaves no doubt");
}

#[test]
fn http_1_0_closes_without_keep_alive() {
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.0\r\n\r\n");
    assert!(bench.text().contains("Connection: close\r\n") && bench.half_closed);
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    bench.send(b"GET /b HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(bench.statuses(), [200, 200]);
    assert_eq!(bench.text().matches("Connection: keep-alive\r\n").count(), 2);
}

#[test]
fn last_allowed_request_gets_connection_close() {
    let mut bench = Bench::new();
    bench.settings.requests_max = Some(2);
    bench.send(&[get("/a"), get("/a"), get("/a")].concat());
    assert_eq!(bench.statuses(), [200, 200]);
    assert_eq!(bench.text().matches("Connection: close\r\n").count(), 1);
    assert!(bench.half_closed);
}

#[test]
fn a_peer_that_does_not_read_is_not_read_from() {
    let mut bench = Bench::new();
    bench.reading = false;
    let mut sent = 0;
    while bench.connection.wants_bytes() {
        bench.send(&get("/big").repeat(40));
        sent += 40;
        assert!(sent < 1000);
    }
    let held = bench.unwritten;
    let bounds = UNWRITTEN_BYTES_HIGH..UNWRITTEN_BYTES_HIGH + 41_000;
    assert!(bounds.contains(&held), "{held}");
    bench.read_all();
    assert_eq!(bench.statuses(), vec![200; sent]);
    assert!(bench.connection.wants_bytes());
}

#[test]
fn a_peer_that_never_reads_is_cut_off() {
    let mut bench = Bench::new();
    bench.reading = false;
    bench.send(&get("/large"));
    bench.wait(39_999);
    assert_eq!(bench.closed(), None);
    bench.wait(1);
    assert_eq!(bench.closed(), Some(HttpCloseReason::TooSlow));
}

#[test]
fn progress_moves_the_write_deadline() {
    let mut bench = Bench::new();
    bench.reading = false;
    bench.send(&get("/large"));
    for _ in 0..3 {
        bench.wait(39_000);
        bench.unwritten -= 1000;
        bench.input(|connection, context| connection.on_written(1000, context));
        assert_eq!(bench.closed(), None);
    }
}

#[test]
fn a_head_has_its_time_and_no_more() {
    let mut bench = Bench::new();
    for byte in b"GET / HTT" {
        bench.send(&[*byte]);
        bench.wait(1_000);
        assert_eq!(bench.closed(), None);
    }
    bench.send(b"P");
    bench.wait(1_000);
    assert_eq!(bench.statuses(), [408]);
    assert!(bench.half_closed, "bytes of the head do not move its deadline");
    let mut bench = Bench::new();
    bench.wait(10_000);
    assert_eq!((bench.closed(), bench.received.len()), (Some(HttpCloseReason::Idle), 0));
}

#[test]
fn empty_lines_before_a_request_are_skipped_and_win_no_time() {
    let mut bench = Bench::new();
    bench.send(&[b"\r\n\r\n", &get("/a")[..], b"\r\n"].concat());
    bench.send(&get("/b"));
    assert_eq!(bench.statuses(), [200, 200]);
    for _ in 0..29 {
        bench.wait(1_000);
        bench.send(b"\r\n");
        assert_eq!(bench.closed(), None);
    }
    bench.wait(1_000);
    assert_eq!(bench.closed(), Some(HttpCloseReason::Idle));
    assert_eq!(bench.statuses(), [200, 200]);
}

#[test]
fn waiting_between_requests_has_its_own_time() {
    let mut bench = Bench::new();
    bench.send(&get("/a"));
    bench.wait(29_000);
    bench.send(b"GE");
    bench.wait(9_000);
    assert_eq!(bench.closed(), None);
    bench.wait(1_000);
    assert_eq!(bench.statuses(), [200, 408]);
    let mut bench = Bench::new();
    bench.send(&get("/a"));
    bench.wait(30_000);
    assert_eq!(bench.closed(), Some(HttpCloseReason::Idle));
}

#[test]
fn content_has_its_time() {
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n");
    for _ in 0..19 {
        bench.wait(1_000);
        bench.send(b"x");
    }
    assert_eq!(bench.closed(), None);
    bench.wait(1_000);
    assert_eq!(bench.closed(), Some(HttpCloseReason::TooSlow));
}

#[test]
fn lingering_is_bounded_in_time_and_bytes() {
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.0\r\n\r\n");
    bench.wait(1_999);
    assert_eq!(bench.closed(), None);
    bench.wait(1);
    assert_eq!(bench.closed(), Some(HttpCloseReason::Finished));
    let mut bench = Bench::new();
    bench.send(b"GET /a HTTP/1.0\r\n\r\n");
    let mut sent = 0;
    while bench.closed().is_none() {
        bench.send(&[b'x'; 4096]);
        sent += 4096;
    }
    assert_eq!(sent, LINGER_BYTES_MAX);
}

#[test]
fn a_peer_that_has_closed_its_side_gets_all_answers() {
    let mut bench = Bench::new();
    bench.reading = false;
    bench.send(&[get("/big"), get("/big"), get("/large"), get("/a")].concat());
    bench.end();
    assert_eq!(bench.closed(), None);
    bench.read_all();
    assert_eq!(bench.statuses(), [200, 200, 200, 200]);
    assert_eq!(bench.closed(), Some(HttpCloseReason::PeerClosed));
    let mut bench = Bench::new();
    bench.send(b"GET / HT");
    bench.end();
    assert_eq!((bench.closed(), bench.received.len()), (Some(HttpCloseReason::PeerClosed), 0));
}

#[test]
fn stop_answers_requests_already_received() {
    let mut idle = Bench::new();
    idle.send(&get("/a"));
    idle.stop();
    assert!(idle.half_closed);

    let mut streaming = Bench::new();
    streaming.reading = false;
    streaming.send(&get("/large"));
    streaming.stop();
    streaming.read_all();
    assert_eq!(streaming.statuses(), [200]);
    assert!(streaming.received.ends_with(&content(LARGE_LEN)) && streaming.half_closed);

    let mut late = Bench::new();
    late.connection.answer_once();
    late.send(&[get("/a"), get("/a")].concat());
    assert_eq!(late.statuses(), [200]);
    assert!(late.text().contains("Connection: close\r\n") && late.half_closed);
}

#[test]
fn idle_connections_give_way_when_it_is_crowded_but_not_at_once() {
    let mut silent = Bench::new();
    assert!(!silent.connection.may_give_way(&silent.now, &silent.settings));
    silent.now.ms += CROWDED_IDLE_MS;
    assert!(silent.connection.may_give_way(&silent.now, &silent.settings));
    silent.send(b"\r\n");
    assert!(silent.connection.may_give_way(&silent.now, &silent.settings), "no request has begun");
    silent.send(b"GET");
    assert!(!silent.connection.may_give_way(&silent.now, &silent.settings), "a request has begun");
    let mut bench = Bench::new();
    bench.send(&get("/a"));
    assert!(!bench.connection.may_give_way(&bench.now, &bench.settings));
    bench.now.ms += CROWDED_IDLE_MS;
    assert!(bench.connection.may_give_way(&bench.now, &bench.settings));
    bench.send(b"GET");
    assert!(!bench.connection.may_give_way(&bench.now, &bench.settings), "a request has begun");
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let path = prop_oneof![Just("/a"), Just("/b"), Just("/large"), Just("/nothing"), Just("/dir")];
    let fields = prop_oneof![
        Just(""),
        Just("Range: bytes=1-3\r\n"),
        Just("Range: bytes=0-0,-1\r\n"),
        Just("If-None-Match: *\r\n"),
    ];
    let body = prop_oneof![
        Just("\r\n".to_owned()),
        "[a-z]{1,30}".prop_map(|text| format!("Content-Length: {}\r\n\r\n{text}", text.len())),
        "[a-z]{1,30}".prop_map(|text| format!(
            "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{text}\r\n0\r\n\r\n",
            text.len()
        )),
    ];
    (path, fields, body).prop_map(|(path, fields, body)| {
        format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}{body}").into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the bytes of a series of requests are cut, the answers are the same, one each.
    #[test]
    fn cuts_make_no_difference(
        requests in proptest::collection::vec(request(), 1..6),
        cuts in proptest::collection::vec(1_usize..80, 0..40),
    ) {
        let bytes = requests.concat();
        let mut whole = Bench::new();
        whole.send(&bytes);
        let mut cut = Bench::new();
        let mut rest = &bytes[..];
        for len in cuts.into_iter().chain([usize::MAX]) {
            let (piece, behind) = rest.split_at(len.min(rest.len()));
            if !piece.is_empty() {
                cut.send(piece);
            }
            rest = behind;
        }
        prop_assert_eq!(whole.statuses().len(), requests.len());
        prop_assert!(whole.received == cut.received);
        prop_assert!(cut.connection.wants_bytes());
    }

    /// Whatever comes in whatever order: no panic, and the books stay within their bounds.
    #[test]
    fn any_program_of_inputs_is_survived(
        steps in proptest::collection::vec((0_u8..8, "[ -~\r\n]{0,40}", 0_u64..30_000), 0..60),
    ) {
        let mut bench = Bench::new();
        for (kind, junk, ms) in steps {
            if bench.closed().is_some() {
                break;
            }
            match kind {
                0 if bench.connection.wants_bytes() && !junk.is_empty() => {
                    bench.send(junk.as_bytes());
                }
                1..=3 if bench.connection.wants_bytes() => {
                    bench.send(&get(["/a", "/large", "/big"][usize::from(kind) - 1]));
                }
                4 => bench.reading = !bench.reading,
                5 => bench.read_all(),
                6 => bench.wait(ms),
                7 if ms < 1_000 => bench.stop(),
                _ => {}
            }
            let pending = bench.connection.inbox.len();
            prop_assert!(pending <= bench.settings.head_bytes_max + 2 * READ_BYTES);
            prop_assert!(bench.unwritten < UNWRITTEN_BYTES_HIGH + 2 * CHUNK_BYTES + 50_000);
            let waiting = bench.connection.deadline_ms() != NEVER;
            prop_assert!(waiting || bench.closed().is_some() || bench.unwritten > 0);
        }
    }
}
