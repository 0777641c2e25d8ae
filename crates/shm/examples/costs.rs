//! What the operations of this crate cost on this machine, in nanoseconds each: the median of some
//! runs, on one core, everything in the first-level cache unless it says otherwise.
//!
//! `cargo run --release --package megapipe-shm --example costs`

use std::hint::black_box;
use std::time::Instant;

use megapipe_shm::record::{Command, Id, Ids, Op, Record};
use megapipe_shm::{Pool, PoolLayout, Region, doorbell, ring};

const RUNS: usize = 15;

/// The median over runs of the time of one call of `work`.
fn cost_ns(calls: u32, mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(calls)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn print(what: &str, ns: f64) {
    println!("{what:<44} {ns:>8.1} ns");
}

fn main() {
    let layout = PoolLayout { buf_bytes: 2048, count: 64, tag: 0 };
    let region = Region::heap(layout.bytes()).expect("memory");
    let pool = Pool::owning(region, layout).expect("it fits");
    let buf = pool.alloc().expect("free");
    for len in [64, 512, 1460] {
        let mut bytes = vec![0x5a; len];
        let ns = cost_ns(100_000, || {
            pool.copy_in(buf, 0, black_box(&bytes)).expect("in bounds");
        });
        print(&format!("copy in, {len} bytes"), ns);
        let ns = cost_ns(100_000, || {
            pool.copy_out(buf, 0, black_box(&mut bytes)).expect("in bounds");
        });
        print(&format!("copy out, {len} bytes"), ns);
    }
    let ns = cost_ns(100_000, || {
        let buf = pool.alloc().expect("free");
        pool.free(black_box(buf)).expect("in use");
    });
    print("allocate and free a buffer", ns);
    rings();
}

/// Both ends on one core: the transfer of lines between cores comes on top.
fn rings() {
    let mut parts = Region::heap(1 << 20).expect("memory").into_parts();
    let (mut producer, mut consumer) = ring::<Record>(&mut parts, 256).expect("it fits");
    let op = Op { cookie: 1, command: Command::Receive { conns: Ids::of(Id::default()) } };
    let mut records = [op.record(); 64];
    for batch in [1, 8, 64] {
        let ns = cost_ns(20_000, || {
            producer.send(black_box(&records[..batch])).expect("honest");
            consumer.receive(black_box(&mut records[..batch])).expect("honest");
        });
        print(&format!("a record through a ring, batch of {batch}"), ns / batch as f64);
    }
    let ns = cost_ns(100_000, || {
        black_box(Op::parse(black_box(&op.record())).expect("an op"));
    });
    print("encode and parse a record", ns);
    let (_sleeper, ringer) = doorbell(&mut parts).expect("a doorbell");
    let ns = cost_ns(100_000, || {
        ringer.ring().expect("it works");
    });
    print("a doorbell without a waiter", ns);
}
