//! The peer killed, our side killed, and the link cut, in the middle of a transfer.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::host::{Host, Loss, OURS, PATIENCE, Program, Wire, at, ip};

const LEN: usize = 3_000_000;

fn serve(host: &Host) -> Program<'_> {
    host.random_file("site/large.bin", LEN);
    let root = host.folder().join("site");
    host.serve(Loss(0), &["http", "--root", root.to_str().expect("a path of ours")])
}

fn url(address: &str) -> String {
    format!("http://{}/large.bin", at(address, 80))
}

/// Waits until a file that is being written has some bytes.
fn until_begun(path: &PathBuf) {
    let deadline = Instant::now() + PATIENCE;
    while std::fs::metadata(path).map_or(0, |it| it.len()) < 20_000 {
        assert!(Instant::now() < deadline, "nothing comes");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn a_client_that_is_killed_takes_nothing_with_it(host: &Host) {
    let server = serve(host);
    for address in OURS {
        let mut clients = Vec::new();
        for number in 0..3 {
            let into = host.folder().join(format!("part-{number}"));
            let path = into.to_str().expect("a path of ours");
            let slowly = ["-gsS", "--limit-rate", "200k", "-o", path, &url(address)];
            clients.push((host.spawn("curl", &slowly), into));
        }
        for (mut client, into) in clients {
            until_begun(&into);
            client.signal(Signal::KILL);
            assert!(!client.end().success());
        }
        // The server goes on as if nothing had been.
        let into = host.folder().join("whole");
        host.must_run("curl", &["-gsS", "-o", into.to_str().expect("a path"), &url(address)]);
        assert_eq!(host.sha256(&into), host.sha256(&host.folder().join("site/large.bin")));
    }
    server.stop();
}

pub(crate) fn a_stack_that_comes_back_resets_what_it_does_not_know(host: &Host) {
    for address in OURS {
        let server = serve(host);
        let mut stream = TcpStream::connect(at(address, 80)).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        stream.write_all(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n").expect("asked");
        stream.read_exact(&mut [0; 1_000]).expect("it has begun");
        server.kill();

        let server = serve(host);
        // What had arrived can still be read; then the news comes.
        let mut rest = vec![0; 1 << 16];
        let error = loop {
            // Something to send, so that the peer has a reason to speak.
            let asked = stream.write_all(b"GET / HTTP/1.1\r\n");
            match asked.and_then(|()| stream.read(&mut rest)) {
                Ok(0) => panic!("closed in order"),
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(kinds.contains(&error.kind()), "{error}");
        let verdict = server.stop();
        // Where a kernel has our address, too, it may have reset the connection while we were away.
        if host.wire == Wire::Tap {
            verdict.expect_reset();
        }
    }
}

pub(crate) fn a_transfer_outlives_a_link_that_was_cut(host: &Host) {
    let server = serve(host);
    for address in OURS {
        let into = host.folder().join("whole");
        let _ = std::fs::remove_file(&into);
        let path = into.to_str().expect("a path of ours");
        let slowly = ["-gsS", "--limit-rate", "1500k", "-o", path, &url(address)];
        let mut client = host.spawn("curl", &slowly);
        until_begun(&into);
        let interface = host.wire.interface();
        ip(&format!("link set {interface} down")).expect("down");
        thread::sleep(Duration::from_millis(700));
        ip(&format!("link set {interface} up")).expect("up");
        assert!(client.end().success(), "the transfer broke off");
        assert_eq!(host.sha256(&into), host.sha256(&host.folder().join("site/large.bin")));
    }
    server.stop();
}
