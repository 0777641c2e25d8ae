//! memcached's and Redis's clients against `serve kv` on our stack.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::host::{Host, LOSSES, Loss, OURS, PATIENCE, at};

pub(crate) fn libmemcacheds_tools_find_a_cache(host: &Host) {
    for loss in LOSSES {
        let server = host.serve(loss, &["kv"]);
        // The suite's many small exchanges take a retransmission time-out for each lost frame.
        if loss.0 <= 1 {
            capable(host);
        }
        if loss == Loss(0) {
            slap(host, OURS[0]);
        }
        // The tools know no addresses of IPv6.
        tools(host, OURS[0], None);
        tools(host, OURS[0], Some("--binary"));
        server.stop();
    }
}

fn capable(host: &Host) {
    for protocol in ["-a", "-b"] {
        let said = host.must_run("memccapable", &["-h", OURS[0], "-p", "80", "-t", "20", protocol]);
        assert!(said.contains("All tests passed") && !said.contains("[FAIL]"), "{said}");
    }
}

/// libmemcached's own load: sets, then gets, by several threads.
fn slap(host: &Host, address: &str) {
    let servers = format!("--servers={}", at(address, 80));
    for test in ["--test=set", "--test=get", "--test=mget"] {
        for protocol in [&[][..], &["--binary"]] {
            let load = [&servers, test, "--concurrency=4", "--execute-number=300"];
            let said = host.must_run("memcslap", &[&load[..], protocol].concat());
            assert!(said.contains("Time"), "{said}");
        }
    }
}

fn tools(host: &Host, address: &str, protocol: Option<&str>) {
    let servers = format!("--servers={}", at(address, 80));
    let run = |program: &str, argument: &str| {
        let mut arguments = vec![servers.as_str(), argument];
        arguments.extend(protocol);
        host.run(program, &arguments)
    };
    let file = host.folder().join("some-file");
    let content = "a line of text\n".repeat(5_000);
    std::fs::write(&file, &content).expect("a file");
    let copied = run("memccp", file.to_str().expect("a path of ours"));
    assert!(copied.status.success(), "{copied:?}");
    let shown = run("memccat", "some-file");
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim_end(), content.trim_end());
    assert!(run("memcexist", "some-file").status.success());
    assert!(run("memctouch", "some-file").status.success());
    assert!(!run("memctouch", "another-file").status.success());
    // It speaks text alone.
    assert!(host.run("memcping", &[&servers]).status.success());
    let told = run("memcstat", "--quiet");
    let told = String::from_utf8_lossy(&told.stdout);
    let items = told.lines().find_map(|line| line.trim().strip_prefix("curr_items: "));
    assert!(items.is_some_and(|items| items.parse::<u64>().is_ok_and(|it| it > 0)), "{told}");
    assert!(run("memcrm", "some-file").status.success());
    assert!(!run("memcexist", "some-file").status.success());
    assert!(run("memccp", file.to_str().expect("a path of ours")).status.success());
    assert!(run("memcflush", "--quiet").status.success());
    assert!(!run("memcexist", "some-file").status.success());
}

pub(crate) fn rediss_tools_find_a_cache(host: &Host) {
    for loss in LOSSES {
        let server = host.serve(loss, &["kv"]);
        for address in OURS {
            let cli = |command: &[&str]| {
                host.must_run("redis-cli", &[&["-h", address, "-p", "80"][..], command].concat())
            };
            // Each loss costs a retransmission time-out where little is under way.
            let text =
                "a line of text and more of it ".repeat(if loss == Loss(0) { 3_000 } else { 100 });
            assert_eq!(cli(&["set", "some key", text.trim_end(), "ex", "100"]).trim_end(), "OK");
            assert_eq!(cli(&["get", "some key"]).trim_end(), text.trim_end());
            assert_eq!(cli(&["incrby", address, "41"]).trim_end(), "41");
            assert_eq!(cli(&["del", "some key", address]).trim_end(), "2");
        }
        if loss == Loss(0) {
            redis_benchmark(host);
        }
        server.stop();
    }
}

fn redis_benchmark(host: &Host) {
    for (pipelined, bytes) in [("1", "64"), ("16", "3000")] {
        let load = ["-q", "-n", "2000", "-c", "20", "-r", "100", "-P", pipelined, "-d", bytes];
        let place = ["-h", OURS[0], "-p", "80", "-t", "ping_mbulk,set,get,incr,mset"];
        let said = host.must_run("redis-benchmark", &[&load[..], &place].concat());
        for name in ["PING_MBULK: ", "SET: ", "GET: ", "INCR: ", "MSET (10 keys): "] {
            assert!(said.contains(name), "{name} in {said}");
        }
    }
}

/// Each loss costs a retransmission time-out: there is nothing behind it that would show it.
const fn count(loss: Loss) -> usize {
    match loss.0 {
        0 => 60,
        1 => 30,
        _ => 8,
    }
}

pub(crate) fn a_client_sets_and_gets_over_both_families(host: &Host) {
    for loss in LOSSES {
        let server = host.serve(loss, &["kv"]);
        for address in OURS {
            talk(address, count(loss));
        }
        server.stop().expect_no_reset(loss);
    }
}

fn talk(address: &str, count: usize) {
    let mut stream = TcpStream::connect(at(address, 80)).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
    let mut line = String::new();
    for number in 0..count {
        let value = vec![number as u8; number * 200];
        write!(stream, "set k{number} 0 0 {}\r\n", value.len()).expect("sent");
        stream.write_all(&value).expect("sent");
        stream.write_all(b"\r\n").expect("sent");
        line.clear();
        reader.read_line(&mut line).expect("an answer");
        assert_eq!(line, "STORED\r\n");
    }
    for number in 0..count {
        write!(stream, "get k{number}\r\n").expect("sent");
        line.clear();
        reader.read_line(&mut line).expect("an answer");
        assert_eq!(line, format!("VALUE k{number} 0 {}\r\n", number * 200));
        let mut value = vec![0; number * 200 + "\r\nEND\r\n".len()];
        reader.read_exact(&mut value).expect("a value");
        assert!(value[..number * 200].iter().all(|byte| *byte == number as u8));
        assert!(value.ends_with(b"\r\nEND\r\n"));
    }
}
