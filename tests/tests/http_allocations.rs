//! A cached file is answered without allocating: not in the HTTP server, not in the channel.
//!
//! The allocator counts for the whole process, so this is the only test of its program, and the
//! client uses memory that it took before.

use std::alloc::System;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use megapipe::Address;
use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::serve::{DriverName, Running, ServeArgs};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REQUESTS: usize = 20_000;
/// What the server may allocate beside requests, in a second or so: deadlines that are due, the
/// file's check once a second.
const ASIDE: usize = 200;

/// A folder that is removed again.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn requests_for_a_cached_file_allocate_nothing() {
    let name = format!("mp-http-allocations-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let file = folder.0.join("1k.bin");
    std::fs::write(&file, [b'x'; 1024]).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(long_ago).unwrap();

    for driver in [DriverName::Uring, DriverName::Epoll] {
        let mut serve = ServeArgs::on(["127.0.0.1:0".parse::<Address>().unwrap()]);
        serve.driver = driver;
        match http::start(&HttpArgs::new(serve, folder.0.clone())) {
            Ok(running) => ask_many_times(running),
            Err(error) => println!(
                "skipped: requests_for_a_cached_file_allocate_nothing on {driver}: {error}"
            ),
        }
    }
}

fn ask_many_times(running: Running) {
    let Some(Address::Inet(address)) = running.addresses().first().cloned() else {
        panic!("not an internet address");
    };
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = b"GET /1k.bin HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut buffer = vec![0; 8192];

    stream.write_all(request).unwrap();
    let response_len = stream.read(&mut buffer).unwrap();
    assert!(buffer[..response_len].starts_with(b"HTTP/1.1 200 OK\r\n"));
    let mut ask = |count: usize| {
        for _ in 0..count {
            stream.write_all(request).unwrap();
            stream.read_exact(&mut buffer[..response_len]).unwrap();
            assert!(buffer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        }
    };
    ask(1_000);
    let region = Region::new(ALLOCATOR);
    ask(REQUESTS);
    let change = region.change();
    let allocations = change.allocations + change.reallocations;
    assert!(allocations < ASIDE, "{}: {REQUESTS} requests: {change:?}", running.driver());
    assert_eq!(running.stop().unwrap().requests, 1 + 1_000 + REQUESTS as u64);
}
