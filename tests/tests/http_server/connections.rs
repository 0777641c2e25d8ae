//! How connections live and end: pipelining, dribbled bytes, slow and silent peers, stopping.

use std::io::Write;
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use super::fixture::{LARGE_LEN, PATIENCE, Server, content, drivers, get, get_with, read_some};

#[test]
fn many_requests_on_one_connection() {
    for driver in drivers("many_requests_on_one_connection") {
        let mut server = Server::start(driver, |_| {});
        let mut client = server.connect();
        for _ in 0..1000 {
            assert_eq!(client.get("/1k.bin").body.len(), 1024);
        }
        drop(client);
        server.wait_until("the connection's end", |tally| tally.closed == 1);
        let tally = server.stop();
        assert_eq!((tally.accepted, tally.requests, tally.rejected, tally.failed), (1, 1000, 0, 0));
    }
}

#[test]
fn pipelined_answers_come_in_order() {
    let paths =
        ["/1k.bin", "/large.bin", "/nothing", "/hello.txt", "/300k.bin", "/empty.txt", "/dir"];
    for driver in drivers("pipelined_answers_come_in_order") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        let rounds = 20;
        let requests: String = paths.iter().map(|path| get(path)).collect();
        client.send(requests.repeat(rounds).as_bytes());
        client.finish();
        for round in 0..rounds {
            for (path, status, len) in [
                (paths[0], 200, 1024),
                (paths[1], 200, LARGE_LEN),
                (paths[2], 404, 14),
                (paths[3], 200, 13),
                (paths[4], 200, 300_000),
                (paths[5], 200, 0),
                (paths[6], 301, 22),
            ] {
                let response = client.response();
                let seen = (response.status, response.body.len());
                assert_eq!(seen, (status, len), "{driver} {path} {round}");
            }
        }
        assert_eq!(client.rest(), b"", "everything was answered, then the end");
    }
}

#[test]
fn requests_may_dribble_in() {
    for driver in drivers("requests_may_dribble_in") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        let request = get_with("/hello.txt", "Content-Length: 3\r\n") + "abc" + &get("/empty.txt");
        for byte in request.as_bytes() {
            client.send(&[*byte]);
            thread::yield_now();
        }
        assert_eq!(client.response().body, b"hello, world\n");
        assert_eq!(client.response().field("content-length"), Some("0"));
    }
}

#[test]
fn slow_heads_are_cut_off() {
    for driver in drivers("slow_heads_are_cut_off") {
        let server = Server::start(driver, |args| args.head_timeout = 3);
        let started = Instant::now();
        let mut silent = server.connect();
        let mut slow = server.connect();
        slow.send(b"GET / HTTP/1.1\r\n");
        let mut again = server.connect();
        assert_eq!(again.get("/hello.txt").status, 200);
        again.send(b"GET / HTTP");
        // One more field every 100 ms does not help.
        let mut writer = slow.stream.try_clone().unwrap();
        let dribble = thread::spawn(move || {
            for _ in 0..100 {
                thread::sleep(Duration::from_millis(100));
                if writer.write_all(b"X: y\r\n").is_err() {
                    break;
                }
            }
        });
        assert_eq!(slow.response().status, 408);
        assert_eq!(again.response().status, 408);
        assert!(!silent.wait_for_end());
        assert!(started.elapsed() >= Duration::from_millis(2_900));
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
        dribble.join().unwrap();
    }
}

#[test]
fn slow_content_and_idle_connections_are_cut_off() {
    for driver in drivers("slow_content_and_idle_connections_are_cut_off") {
        let server = Server::start(driver, |args| {
            args.content_timeout = 1;
            args.idle_timeout = 1;
        });
        let mut idle = server.connect();
        assert_eq!(idle.get("/hello.txt").status, 200);
        let mut slow = server.connect();
        slow.send(get_with("/hello.txt", "Content-Length: 1000\r\n").as_bytes());
        assert_eq!(slow.response().status, 200);
        slow.send(b"some of it");
        assert!(!idle.wait_for_end(), "an idle connection ends cleanly");
        slow.wait_for_end();
        server.wait_until("both ends", |tally| tally.closed == 2);
        assert_eq!(server.tally().failed, 1, "{:?}", server.tally());
    }
}

#[test]
fn a_peer_that_never_reads_is_bounded_and_cut_off() {
    for driver in drivers("a_peer_that_never_reads_is_bounded_and_cut_off") {
        let server = Server::start(driver, |args| args.write_timeout = 1);
        let mut client = server.connect();
        client.send(get("/300k.bin").repeat(20_000).as_bytes());
        server.wait_until("the end", |tally| tally.closed == 1);
        let tally = server.tally();
        // As many as the kernel's buffers take, and the server's own.
        assert!((1..200).contains(&tally.requests), "{tally:?}");
        assert_eq!(tally.failed, 1);
        assert_eq!(server.ask(get("/hello.txt").as_bytes()).status, 200);
    }
}

#[test]
fn a_slow_reader_gets_everything() {
    for driver in drivers("a_slow_reader_gets_everything") {
        let server = Server::start(driver, |args| args.write_timeout = 3);
        // More than the kernel's buffers take, at a pace that needs longer than the time-out.
        let len = 16_000_000;
        server.folder.write("site/slow.bin", &content(len));
        let mut stream = server.connect().stream;
        stream.write_all(get_with("/slow.bin", "Connection: close\r\n").as_bytes()).unwrap();
        let (mut received, mut buffer) = (Vec::new(), vec![0; 40_000]);
        let started = Instant::now();
        loop {
            match read_some(&mut stream, &mut buffer).unwrap() {
                0 => break,
                len => received.extend(&buffer[..len]),
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert!(started.elapsed() > Duration::from_secs(3), "{:?}", started.elapsed());
        assert!(received.ends_with(&content(len)), "{driver}: {} bytes", received.len());
    }
}

#[test]
fn a_peer_that_half_closes_gets_its_answers() {
    for driver in drivers("a_peer_that_half_closes_gets_its_answers") {
        let server = Server::start(driver, |_| {});
        let mut client = server.connect();
        client.send((get("/300k.bin") + &get("/large.bin") + "GET / HT").as_bytes());
        client.finish();
        assert_eq!(client.response().body.len(), 300_000);
        assert_eq!(client.response().body.len(), LARGE_LEN);
        assert_eq!(client.rest(), b"", "half a request is none");
    }
}

#[test]
fn peers_that_vanish_leave_nothing_behind() {
    for driver in drivers("peers_that_vanish_leave_nothing_behind") {
        let server = Server::start(driver, |_| {});
        for round in 0..50 {
            let mut client = server.connect();
            client.send((get("/large.bin") + &get("/300k.bin")).as_bytes());
            if round % 2 == 0 {
                // Unread data: the kernel resets the connection.
                drop(client);
            } else {
                client.stream.shutdown(Shutdown::Both).unwrap();
            }
        }
        server.wait_until("the ends", |tally| tally.accepted == 50 && tally.closed == 50);
        assert_eq!(server.ask(get("/hello.txt").as_bytes()).status, 200);
    }
}

#[test]
fn more_connections_than_allowed_wait_and_idle_ones_give_way() {
    for driver in drivers("more_connections_than_allowed_wait_and_idle_ones_give_way") {
        let server = Server::start(driver, |args| args.serve.max_connections = 4);
        let mut first: Vec<_> = (0..4).map(|_| server.connect()).collect();
        for client in &mut first {
            assert_eq!(client.get("/hello.txt").status, 200);
        }
        let started = Instant::now();
        let mut waiting = server.connect();
        assert_eq!(waiting.get("/hello.txt").status, 200);
        assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
        assert!(server.tally().open() <= 4);
        assert!(first.iter_mut().any(|client| !client.wait_for_end()));
    }
}

#[test]
fn silent_connections_give_way_when_the_limit_is_reached() {
    for driver in drivers("silent_connections_give_way_when_the_limit_is_reached") {
        // With two listeners each has half of the connections.
        for listeners in [1, 2] {
            let server = Server::start(driver, |args| {
                args.serve.listen = vec!["127.0.0.1:0".parse().unwrap(); listeners];
                args.serve.max_connections = 10 * listeners as u32;
            });
            let mut silent: Vec<_> = (0..10).map(|_| server.connect()).collect();
            let started = Instant::now();
            let mut waiting = server.connect();
            assert_eq!(waiting.get("/hello.txt").status, 200);
            // Well before the time for a head is over.
            assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
            assert!(silent.iter_mut().any(|client| !client.wait_for_end()));
        }
    }
}

#[test]
fn many_connections_at_once() {
    for driver in drivers("many_connections_at_once") {
        let server = Server::start(driver, |_| {});
        let mut clients: Vec<_> = (0..300).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send(get("/30k.bin").as_bytes());
        }
        for client in &mut clients {
            assert_eq!(client.response().body.len(), 30_000);
        }
        drop(clients);
        server.wait_until("the ends", |tally| tally.closed == 300);
    }
}

#[test]
fn stop_answers_requests_already_received() {
    for driver in drivers("stop_answers_requests_already_received") {
        let mut server = Server::start(driver, |_| {});
        let mut idle = server.connect();
        assert_eq!(idle.get("/hello.txt").status, 200);
        let mut busy = server.connect();
        busy.send(get("/large.bin").repeat(2).as_bytes());
        server.wait_until("the request", |tally| tally.requests >= 2);
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            let response = busy.response();
            (response.body.len(), idle.wait_for_end())
        });
        let started = Instant::now();
        server.stop();
        assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
        assert_eq!(reader.join().unwrap(), (LARGE_LEN, false));
    }
}

#[test]
fn several_channels_share_the_work() {
    for driver in drivers("several_channels_share_the_work") {
        let mut server = Server::start(driver, |args| args.serve.channels = Some(2));
        for _ in 0..40 {
            assert_eq!(server.ask(get("/1k.bin").as_bytes()).body.len(), 1024);
        }
        assert_eq!(server.stop().requests, 40);
    }
}
