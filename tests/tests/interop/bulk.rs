//! One long stream in each direction; SHA-256 of what arrived.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use super::host::{Host, LOSSES, Loss, OURS, PATIENCE, at};

fn len(loss: Loss) -> usize {
    match loss.0 {
        0 => 6_000_000,
        1 => 2_000_000,
        _ => 500_000,
    }
}

pub(crate) fn what_linux_sends_arrives_whole(host: &Host) {
    for loss in LOSSES {
        for address in OURS {
            upload(host, loss, address);
        }
    }
}

fn upload(host: &Host, loss: Loss, address: &str) {
    let sent = host.random_file("sent", len(loss));
    let arrived = host.folder().join("arrived");
    let into = arrived.to_str().expect("a path of ours");
    let server = host.serve(loss, &["accept", "--into", into]);
    let mut stream = TcpStream::connect(at(address, 80)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    io::copy(&mut File::open(&sent).expect("a file"), &mut stream).expect("sent");
    stream.shutdown(Shutdown::Write).expect("closed");
    let mut counted = String::new();
    stream.read_to_string(&mut counted).expect("an answer");
    assert_eq!(counted, len(loss).to_string());
    drop(stream);
    let verdict = server.finish();
    verdict.expect_no_reset(loss);
    verdict.expect_segments_above(10);
    assert_eq!(host.sha256(&arrived), host.sha256(&sent));
}

pub(crate) fn what_we_send_arrives_whole(host: &Host) {
    for loss in LOSSES {
        let sent = host.random_file("site/bulk", len(loss));
        let root = host.folder().join("site");
        let root = root.to_str().expect("a path of ours");
        // More than the cache holds, so that it goes from the disk through the stack.
        let server = host.serve(loss, &["http", "--root", root, "--cache-file-bytes", "1000"]);
        for address in OURS {
            let mut stream = TcpStream::connect(at(address, 80)).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            let request = b"GET /bulk HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            stream.write_all(request).expect("asked");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
            let arrived = host.folder().join("arrived");
            std::fs::write(&arrived, &answer[head + 4..]).expect("a file");
            assert_eq!(host.sha256(&arrived), host.sha256(&sent));
        }
        server.stop().expect_segments_above(len(loss) / 1_448);
    }
}
