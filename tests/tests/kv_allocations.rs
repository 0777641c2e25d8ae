//! A get of an item, and a set over one, are answered without allocating: not in the key-value
//! server, not in the channel.
//!
//! The allocator counts for the whole process, so this is the only test of its program, and the
//! client uses memory that it took before.

use std::alloc::System;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use megapipe::Address;
use megapipe_apps::kv::{self, KvArgs};
use megapipe_apps::serve::ServeArgs;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 10_000;
/// What the server may allocate beside requests in a second or so: the round for time-outs.
const ASIDE: usize = 100;

#[test]
fn gets_and_sets_of_items_that_are_there_allocate_nothing() {
    let serve = ServeArgs::on(["127.0.0.1:0".parse::<Address>().expect("an address")]);
    let running = kv::start(&KvArgs::new(serve)).expect("the server starts");
    let address = running.addresses()[0].as_inet().expect("TCP");
    let mut stream = TcpStream::connect(address).expect("connecting");
    stream.set_nodelay(true).expect("no delay");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out");

    let (key, value) = ("k".repeat(64), "v".repeat(1024));
    let set = format!("set {key} 7 0 1024\r\n{value}\r\n").into_bytes();
    let get = format!("get {key}\r\n").into_bytes();
    let found = format!("VALUE {key} 7 1024\r\n{value}\r\nEND\r\n").into_bytes();
    let mut buffer = vec![0; found.len()];
    let mut rounds = |count: usize| {
        for _ in 0..count {
            stream.write_all(&set).expect("sending");
            stream.read_exact(&mut buffer[..8]).expect("a response");
            assert_eq!(&buffer[..8], b"STORED\r\n");
            stream.write_all(&get).expect("sending");
            stream.read_exact(&mut buffer).expect("a response");
            assert!(buffer == found);
        }
    };
    rounds(500);
    let region = Region::new(ALLOCATOR);
    rounds(ROUNDS);
    let change = region.change();
    let allocations = change.allocations + change.reallocations;
    assert!(allocations < ASIDE, "{ROUNDS} rounds: {change:?}");
    drop(stream);
    assert_eq!(running.stop().expect("a clean end").requests, 2 * (500 + ROUNDS) as u64);
}
