//! Clients that are slow, greedy, many, or gone.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use megapipe_apps::kv::MemorySize;

use crate::serving::{Client, DEADLINE, args, drivers, serve};

/// The value of a line of `stats`.
fn stat(client: &mut Client, name: &str) -> u64 {
    client.send(b"stats\r\n");
    let text = client.receive_until(|got| got.ends_with(b"END\r\n"));
    let text = String::from_utf8_lossy(&text).into_owned();
    let prefix = format!("STAT {name} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
    line.unwrap_or_else(|| panic!("{name} in {text}")).parse().expect("a number")
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    for driver in drivers("one_byte_at_a_time_is_enough") {
        let (running, address) = serve(&args(driver));
        let mut client = Client::connect(address);
        let value = "v".repeat(300);
        let commands =
            format!("set key 5 0 300\r\n{value}\r\nget key nope\r\nincr key 1\r\nmn\r\n");
        for byte in commands.as_bytes() {
            client.send(&[*byte]);
        }
        let answer = format!(
            "STORED\r\nVALUE key 5 300\r\n{value}\r\nEND\r\n\
             CLIENT_ERROR cannot increment or decrement non-numeric value\r\nMN\r\n"
        );
        assert_eq!(client.receive(answer.len()), answer.as_bytes());
        assert_eq!(running.stop().expect("a clean end").requests, 4);
    }
}

#[test]
fn large_values_go_in_and_come_out() {
    for driver in drivers("large_values_go_in_and_come_out") {
        let (running, address) = serve(&args(driver));
        let mut client = Client::connect(address);
        for len in [4_000, 4_096, 5_000, 65_536, 1_000_000, (1 << 20) - 100] {
            let value: Vec<u8> = (0..len).map(|index| (index * 31 / 7) as u8).collect();
            let set = [format!("set large 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
            client.expect(&set, b"STORED\r\n");
            client.send(b"get large\r\n");
            let head = format!("VALUE large 0 {len}\r\n");
            let expected = [head.as_bytes(), &value, b"\r\nEND\r\n"].concat();
            assert!(client.receive(expected.len()) == expected, "{len} bytes");
        }
        let too_large = vec![b'x'; (1 << 20) + 2];
        client.send(b"set large 0 0 1048576\r\n");
        client.expect(&too_large, b"SERVER_ERROR object too large for cache\r\n");
        client.expect(b"get large\r\n", b"END\r\n");
        running.stop().expect("a clean end");
    }
}

#[test]
fn kv_client_that_never_reads_does_not_block_others() {
    for driver in drivers("kv_client_that_never_reads_does_not_block_others") {
        let mut args = args(driver);
        args.stall_timeout = 2;
        let (running, address) = serve(&args);
        let mut other = Client::connect(address);
        let value = vec![b'x'; 100_000];
        other.expect(&[b"set big 0 0 100000\r\n", &value[..], b"\r\n"].concat(), b"STORED\r\n");
        let mut greedy = TcpStream::connect(address).expect("connecting");
        greedy.set_write_timeout(Some(Duration::from_millis(300))).expect("a time-out");
        let line = b"get big big big big\r\n".repeat(1_000);
        // The server stops reading; how much the kernel takes before is its own matter.
        let mut sent = 0;
        while let Ok(len) = greedy.write(&line) {
            sent += len;
            assert!(sent < 100 << 20, "the server reads on without being read");
        }
        for _ in 0..100 {
            other.expect(b"mg big s\r\n", b"HD s100000\r\n");
        }
        assert!(stat(&mut other, "bytes_written") < 64 << 20);
        wait_for("the client is cut off", || stat(&mut other, "curr_connections") == 1);
        assert_eq!(stat(&mut other, "idle_kicks"), 1);
        running.stop().expect("a clean end");
    }
}

#[test]
fn clients_that_stop_midway_or_rest_too_long_are_cut_off() {
    for driver in drivers("clients_that_stop_midway_or_rest_too_long_are_cut_off") {
        let mut args = args(driver);
        (args.stall_timeout, args.idle_timeout) = (1, 4);
        let (running, address) = serve(&args);
        let mut watcher = Client::connect(address);
        // A test that is kept waiting for a second sees it too late, and looks at the next one.
        let mut stopped = 0;
        loop {
            let mut midway = Client::connect(address);
            midway.send(b"set a 0 0 500000\r\nabc");
            stopped += 1;
            let mut is_seen = false;
            wait_for("the value is expected", || {
                is_seen |= stat(&mut watcher, "log_bytes_reserved") > 0;
                is_seen || stat(&mut watcher, "idle_kicks") == stopped
            });
            assert!(midway.is_closed());
            assert_eq!(stat(&mut watcher, "idle_kicks"), stopped);
            assert_eq!(stat(&mut watcher, "log_bytes_reserved"), 0);
            if is_seen {
                break;
            }
        }
        let start = Instant::now();
        let mut resting = Client::connect(address);
        assert!(resting.is_closed());
        // The server's time is coarse: a tick behind, and a turn of its loop.
        assert!(start.elapsed() >= Duration::from_secs(4) - 2 * megapipe_apps::limits::TICK);
        running.stop().expect("a clean end");
    }
}

#[test]
fn silent_kv_connections_give_way_at_the_limit() {
    for driver in drivers("silent_kv_connections_give_way_at_the_limit") {
        let mut args = args(driver);
        args.serve.max_connections = 4;
        let (running, address) = serve(&args);
        let mut idle: Vec<Client> = (0..4).map(|_| Client::connect(address)).collect();
        idle[0].expect(b"get a\r\n", b"END\r\n");
        let mut other = Client::connect(address);
        other.expect(b"get a\r\n", b"END\r\n");
        assert!(idle.iter_mut().any(Client::is_closed), "{driver:?}");
        drop((idle, other));
        assert_eq!(running.stop().expect("a clean end").failed, 0, "{driver:?}");
    }
}

#[test]
fn a_client_that_goes_leaves_nothing_behind() {
    for driver in drivers("a_client_that_goes_leaves_nothing_behind") {
        let (running, address) = serve(&args(driver));
        let mut watcher = Client::connect(address);
        for _ in 0..20 {
            let mut client = Client::connect(address);
            client.send(b"set a 0 0 500000\r\nabc");
        }
        wait_for("all are gone", || {
            stat(&mut watcher, "curr_connections") == 1
                && stat(&mut watcher, "total_connections") == 21
                && stat(&mut watcher, "log_bytes_reserved") == 0
        });
        running.stop().expect("a clean end");
    }
}

#[test]
fn nonsense_is_answered_or_ends_the_connection() {
    for driver in drivers("nonsense_is_answered_or_ends_the_connection") {
        let (running, address) = serve(&args(driver));
        let mut client = Client::connect(address);
        client.expect(b"set a 0 0 -1\r\n", b"CLIENT_ERROR bad command line format\r\n");
        client.expect(b"set a 0 0 1\r\nxyz\r\n", b"CLIENT_ERROR bad data chunk\r\nERROR\r\n");
        client.expect(&[b'\n'; 50], &b"ERROR\r\n".repeat(50));
        client.send(&vec![b'a'; 1 << 20]);
        assert!(client.is_closed(), "a line without an end");
        let mut keys = Client::connect(address);
        keys.send(b"get");
        for _ in 0..1_000 {
            keys.send(&b" some-key-or-other".repeat(50));
        }
        keys.expect(b"\r\n", b"END\r\n");
        running.stop().expect("a clean end");
    }
}

#[test]
fn a_thousand_connections_are_served_alike() {
    for driver in drivers("a_thousand_connections_are_served_alike") {
        let mut args = args(driver);
        // All goodbyes are to be heard, however late they are read.
        args.serve.drain = 60;
        let (running, address) = serve(&args);
        let mut clients: Vec<_> = (0..1_000).map(|_| Client::connect(address)).collect();
        for (index, client) in clients.iter_mut().enumerate() {
            client.send(format!("set key{index} 0 0 4\r\n{index:04}\r\n").as_bytes());
        }
        for client in &mut clients {
            assert_eq!(client.receive(8), b"STORED\r\n");
        }
        for (index, client) in clients.iter_mut().enumerate() {
            let other = (index + 500) % 1_000;
            client.send(format!("get key{other}\r\n").as_bytes());
        }
        for (index, client) in clients.iter_mut().enumerate() {
            let other = (index + 500) % 1_000;
            let answer = format!("VALUE key{other} 0 4\r\n{other:04}\r\nEND\r\n");
            assert_eq!(client.receive(answer.len()), answer.as_bytes());
        }
        assert_eq!(stat(&mut clients[7], "curr_connections"), 1_000);
        drop(clients);
        let tally = running.stop().expect("a clean end");
        assert_eq!((tally.accepted, tally.closed, tally.requests), (1_000, 1_000, 2_001));
    }
}

/// What one channel stores every other sees, and numbers are changed by all of them at once.
#[test]
fn channels_share_one_store() {
    for driver in drivers("channels_share_one_store") {
        let mut args = args(driver);
        args.serve.channels = Some(3);
        let (running, address) = serve(&args);
        let mut first = Client::connect(address);
        first.expect(b"set n 0 0 1\r\n0\r\n", b"STORED\r\n");
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut client = Client::connect(address);
                    let commands = b"incr n 1 noreply\r\n".repeat(500);
                    client.send(&commands);
                    client.expect(b"mn\r\n", b"MN\r\n");
                });
            }
        });
        first.expect(b"get n\r\n", b"VALUE n 0 4\r\n6000\r\nEND\r\n");
        for index in 0..200 {
            let mut writer = Client::connect(address);
            let set = format!("set k{index} {index} 0 3\r\nabc\r\n");
            writer.expect(set.as_bytes(), b"STORED\r\n");
            let answer = format!("VALUE k{index} {index} 3\r\nabc\r\nEND\r\n");
            let mut reader = Client::connect(address);
            reader.expect(format!("get k{index}\r\n").as_bytes(), answer.as_bytes());
        }
        assert_eq!(stat(&mut first, "threads"), 3);
        running.stop().expect("a clean end");
    }
}

#[test]
fn memory_has_a_limit_and_what_is_used_stays() {
    for driver in drivers("memory_has_a_limit_and_what_is_used_stays") {
        let mut args = args(driver);
        args.memory = MemorySize(8 << 20);
        let (running, address) = serve(&args);
        let mut client = Client::connect(address);
        client.expect(b"set used 0 0 2\r\nhi\r\n", b"STORED\r\n");
        let value = "x".repeat(10_000);
        for round in 0..100 {
            let commands: String = (0..30)
                .map(|index| format!("set k{round}-{index} 0 0 10000 noreply\r\n{value}\r\n"))
                .collect();
            client.send(commands.as_bytes());
            client.expect(b"get used\r\n", b"VALUE used 0 2\r\nhi\r\nEND\r\n");
        }
        assert!(stat(&mut client, "evictions") > 2_000);
        assert!(stat(&mut client, "log_bytes_used") < 8 << 20);
        assert_eq!(stat(&mut client, "limit_maxbytes"), 8 << 20);
        running.stop().expect("a clean end");
    }
}

#[test]
fn stop_answers_pending_commands() {
    for driver in drivers("stop_answers_pending_commands") {
        let mut args = args(driver);
        args.serve.drain = 60;
        let (running, address) = serve(&args);
        let mut client = Client::connect(address);
        client.expect(b"set a 0 0 1\r\nx\r\n", b"STORED\r\n");
        let start = Instant::now();
        let stopping = thread::spawn(move || running.stop());
        assert!(client.is_closed());
        drop(client);
        let tally = stopping.join().expect("no panic").expect("a clean end");
        assert_eq!((tally.requests, tally.failed), (1, 0));
        assert!(start.elapsed() < Duration::from_secs(30), "not by the deadline");
    }
}

/// Peers that begin as `starts` say and then send one byte after the other, until they are cut off.
fn trickle(address: SocketAddr, starts: &[&[u8]]) -> thread::JoinHandle<()> {
    let connect = |start: &&[u8]| {
        let mut stream = TcpStream::connect(address).expect("connecting");
        stream.write_all(start).expect("sending");
        stream
    };
    let mut peers: Vec<TcpStream> = starts.iter().map(connect).collect();
    thread::spawn(move || {
        let deadline = Instant::now() + 2 * DEADLINE;
        while !peers.is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(50));
            peers.retain_mut(|peer| peer.write_all(b"x").is_ok());
        }
        assert!(peers.is_empty(), "{} peers are not cut off", peers.len());
    })
}

#[test]
fn trickling_peers_do_not_starve_other_clients() {
    let long_line = vec![b'a'; 4_096];
    // Values, a line and keys that never end; and a protocol error, after which the server waits
    // for nothing but the peer's end.
    let starts: [&[u8]; 6] = [
        b"set a 0 0 1000\r\n",
        b"set a 0",
        b"get a",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000\r\n",
        b"\x80\x01\x00\x01\x08\x00\x00\x00\x00\x00\x10\x00",
        &long_line,
    ];
    for driver in drivers("trickling_peers_do_not_starve_other_clients") {
        let mut args = args(driver);
        (args.serve.max_connections, args.stall_timeout) = (starts.len() as u32, 1);
        let (running, address) = serve(&args);
        let trickling = trickle(address, &starts);
        let mut other = Client::connect(address);
        other.expect(b"set b 0 0 1\r\nx\r\n", b"STORED\r\n");
        trickling.join().expect("no panic");
        running.stop().expect("a clean end");
    }
}

#[test]
fn an_http_request_closes_the_connection_and_stores_nothing() {
    for driver in drivers("an_http_request_closes_the_connection_and_stores_nothing") {
        let (running, address) = serve(&args(driver));
        for method in ["POST", "GET", "HEAD", "PUT"] {
            for end in ["\r\n", "\n"] {
                for (body, before) in [
                    ("set a 0 0 1\r\nx\r\n", ""),
                    ("SET a x\r\n", ""),
                    ("SET a x\r\n", "PING\r\n"),
                    ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nx\r\n", ""),
                ] {
                    let mut browser = Client::connect(address);
                    let line = format!("{before}{method} / HTTP/1.1{end}Host: a{end}{end}{body}");
                    browser.send(line.as_bytes());
                    assert!(browser.is_closed(), "{line}");
                }
            }
        }
        let mut other = Client::connect(address);
        other.expect(b"get a\r\n", b"END\r\n");
        running.stop().expect("a clean end");
    }
}
