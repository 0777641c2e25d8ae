//! Requests of the binary protocol, byte by byte as memcached answers them.

use crate::serving::{Client, Memcached, args, drivers, serve};

const HEADER: usize = 24;

/// One request.
fn frame(opcode: u8, extras: &[u8], key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let mut frame = vec![0x80, opcode];
    frame.extend((key.len() as u16).to_be_bytes());
    frame.extend([extras.len() as u8, 0, 0, 0]);
    frame.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    frame.extend(0xdead_beef_u32.to_be_bytes());
    frame.extend(cas.to_be_bytes());
    [&frame, extras, key, value].concat()
}

fn store(opcode: u8, key: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    frame(opcode, &[0, 0, 0, 7, 0, 0, 0, 0], key, value, cas)
}

fn plain(opcode: u8, key: &[u8]) -> Vec<u8> {
    frame(opcode, b"", key, b"", 0)
}

fn arithmetic(opcode: u8, key: &[u8], delta: u64, initial: u64, exptime: u32) -> Vec<u8> {
    let delta = delta.to_be_bytes();
    let extras = [&delta[..], &initial.to_be_bytes(), &exptime.to_be_bytes()].concat();
    frame(opcode, &extras, key, b"", 0)
}

fn touch(opcode: u8, key: &[u8]) -> Vec<u8> {
    frame(opcode, &100u32.to_be_bytes(), key, b"", 0)
}

/// A conversation of well-formed requests; each block leaves the connection open.
fn requests() -> Vec<Vec<u8>> {
    let never = u32::MAX;
    let mut requests = vec![plain(0x08, b"")];
    requests.extend([0x00, 0x09, 0x0c, 0x0d].map(|opcode| plain(opcode, b"key")));
    requests.push(store(0x01, b"key", b"value", 0));
    requests.extend([0x00, 0x09, 0x0c, 0x0d].map(|opcode| plain(opcode, b"key")));
    for opcode in [0x01, 0x11, 0x02, 0x12, 0x03, 0x13] {
        requests.push(store(opcode, b"key", b"v", u64::MAX - 1));
        requests.push(store(opcode, b"none", b"v", u64::MAX - 1));
    }
    for opcode in [0x02, 0x12, 0x03, 0x13] {
        requests.push(store(opcode, b"key", b"v2", 0));
        requests.push(store(opcode, &[b'n', opcode], b"v2", 0));
        requests.push(plain(0x00, b"key"));
    }
    for opcode in [0x0e, 0x0f, 0x19, 0x1a] {
        requests.push(frame(opcode, b"", b"key", b"+", 0));
        requests.push(frame(opcode, b"", b"gone", b"+", 0));
        requests.push(frame(opcode, b"", b"key", b"+", u64::MAX - 1));
        requests.push(plain(0x00, b"key"));
    }
    for opcode in [0x05, 0x06, 0x15, 0x16] {
        let number = [b'c', opcode];
        requests.push(arithmetic(opcode, b"key", 1, 10, 0));
        requests.push(arithmetic(opcode, &number, 1, 10, never));
        requests.push(arithmetic(opcode, &number, 1, 10, 0));
        requests.push(arithmetic(opcode, &number, 3, 10, 0));
        requests.push(arithmetic(opcode, &number, 300, 10, 0));
        requests.push(plain(0x00, &number));
    }
    requests.push(arithmetic(0x05, b"wrap", 1, u64::MAX, 0));
    requests.push(arithmetic(0x05, b"wrap", 1, 0, 0));
    requests.push(plain(0x00, b"wrap"));
    for opcode in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
        requests.push(touch(opcode, b"key"));
        requests.push(touch(opcode, b"none"));
    }
    for opcode in [0x04, 0x14] {
        requests.push(store(0x01, b"key", b"value", 0));
        requests.push(frame(opcode, b"", b"key", b"", u64::MAX - 1));
        requests.push(plain(opcode, b"key"));
        requests.push(plain(opcode, b"key"));
    }
    requests.push(store(0x01, b"empty", b"", 0));
    requests.extend([0x00, 0x0c].map(|opcode| plain(opcode, b"empty")));
    requests.extend([0x20, 0x55, 0x1b].map(|opcode| plain(opcode, b"")));
    requests.push(plain(0x10, b"bogus"));
    requests.push(plain(0x10, b"reset"));
    requests.push(frame(0x08, &[0; 4], b"", b"", 0));
    requests.push(frame(0x18, &[0; 4], b"", b"", 0));
    requests.push(plain(0x18, b""));
    requests.push(store(0x01, b"key", &vec![b'x'; 1 << 20], 0));
    requests.push(store(0x11, b"key", &vec![b'x'; 1 << 20], 0));
    requests.push(frame(0x0e, b"", b"key", &vec![b'x'; 1 << 20], 0));
    requests
}

/// Requests after which the connection is closed.
fn last_requests() -> Vec<Vec<u8>> {
    vec![
        plain(0x07, b""),
        plain(0x17, b""),
        plain(0x00, b""),
        plain(0x00, &[b'k'; 251]),
        frame(0x00, b"1234", b"key", b"", 0),
        frame(0x00, b"", b"key", b"v", 0),
        frame(0x01, b"", b"key", b"v", 0),
        store(0x01, b"", b"v", 0),
        plain(0x0a, b"x"),
        plain(0x0b, b"x"),
        plain(0x07, b"x"),
        frame(0x08, b"abc", b"", b"", 0),
        frame(0x05, b"abcd", b"key", b"", 0),
        frame(0x04, b"1234", b"key", b"", 0),
        plain(0x1c, b"key"),
        frame(0x10, b"1234", b"", b"", 0),
        frame(0x0e, &[0; 8], b"key", b"x", 0),
    ]
}

/// Splits responses; a cas unique is only told from none, since its numbers are each server's own.
fn responses(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut responses = Vec::new();
    while bytes.len() >= HEADER {
        let body = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        let mut response = bytes[..(HEADER + body).min(bytes.len())].to_vec();
        bytes = &bytes[response.len()..];
        let has_cas = response[16..HEADER].iter().any(|&byte| byte != 0);
        response[16..HEADER].fill(u8::from(has_cas));
        responses.push(response);
    }
    assert!(bytes.is_empty(), "whole responses");
    responses
}

/// What is answered to a request and a noop behind it.
fn answers(client: &mut Client, request: &[u8]) -> Vec<Vec<u8>> {
    client.send(request);
    let noop = plain(0x0a, b"");
    client.send(&noop);
    let mut end = noop;
    end[0] = 0x81;
    let got = client.receive_until(|got| got.ends_with(&end));
    responses(&got)
}

/// What is answered to a request before the connection ends.
fn last_answers(client: &mut Client, request: &[u8]) -> Vec<Vec<u8>> {
    client.send(request);
    responses(&client.receive_until(|_| false))
}

#[test]
fn we_answer_binary_requests_as_memcached_does() {
    let test = "we_answer_binary_requests_as_memcached_does";
    let Some(memcached) = Memcached::start(test) else { return };
    for driver in drivers(test) {
        let (running, address) = serve(&args(driver));
        let mut theirs = Client::connect(memcached.address);
        let mut ours = Client::connect(address);
        for request in requests() {
            let shown = request[..request.len().min(100)].escape_ascii();
            let (expected, got) = (answers(&mut theirs, &request), answers(&mut ours, &request));
            assert_eq!(got, expected, "{shown}");
        }
        for request in last_requests() {
            let shown = request.escape_ascii();
            let expected = last_answers(&mut Client::connect(memcached.address), &request);
            let got = last_answers(&mut Client::connect(address), &request);
            assert_eq!(got, expected, "{shown}");
        }
        running.stop().expect("a clean end");
    }
}

#[test]
fn version_and_stats_have_their_binary_form() {
    for driver in drivers("version_and_stats_have_their_binary_form") {
        let (running, address) = serve(&args(driver));
        let mut client = Client::connect(address);
        let version = answers(&mut client, &plain(0x0b, b""));
        assert!(version[0][HEADER..].starts_with(b"1.6.18"));
        let stats = answers(&mut client, &plain(0x10, b""));
        assert!(stats.iter().any(|stat| stat.ends_with(b"curr_connections1")));
        // The list ends with an empty response, and then comes the noop's.
        assert_eq!(stats[stats.len() - 2].len(), HEADER);
        running.stop().expect("a clean end");
    }
}
