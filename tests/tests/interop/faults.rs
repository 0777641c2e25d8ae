//! Whole streams against the kernel while frames are lost, doubled, reordered and damaged, by a
//! seed: each byte once and in order, in both directions.
//!
//! `MEGAPIPE_SEED=N` runs one seed alone.

use std::net::{TcpListener, TcpStream};
use std::time::{SystemTime, UNIX_EPOCH};

use megapipe_tests::transfer::{Header, Mode, ask, lens};

use super::host::{Faults, Host, LINUXES, OURS, PATIENCE, at};

/// Seeds that are run each time; one more is new.
const FIXED: [u64; 2] = [1, 2];
/// Transfers that Linux asks for, and as many that we ask for.
const COUNT: u64 = 12;
/// Longest of Linux's transfers, as a power of two.
const LEN_BITS: u32 = 17;

/// What a seed decides.
fn faults(seed: u64) -> Faults {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let share = |shift: u32, most: u64| ((mixed >> shift) & 0xff) as u32 % (most as u32 + 1);
    let (loss, duplication, reordering) = (share(24, 10), share(32, 10), share(40, 10));
    Faults { loss, duplication, reordering, corruption: 1, seed }
}

pub(crate) fn streams_are_whole_whatever_happens_to_frames(host: &Host) {
    let seeds: Vec<u64> = match std::env::var("MEGAPIPE_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            FIXED.into_iter().chain([since.as_nanos() as u64 >> 8]).collect()
        }
    };
    let to = LINUXES.map(|address| at(address, 7_000));
    for address in to {
        let listener = TcpListener::bind(address).expect("a listener");
        // The thread stays behind with the namespace's last socket until the process ends.
        std::thread::spawn(move || super::transfers::serve(&listener));
    }
    for seed in seeds {
        // Shown when the test fails.
        println!("MEGAPIPE_SEED={seed}: {:?} on {:?}", faults(seed), host.wire);
        linux_asks(host, seed);
        let [v4, v6] = to.map(|address| address.to_string());
        let (count, seed_text) = (COUNT.to_string(), seed.to_string());
        let arguments = ["connect", "--to", &v4, "--to", &v6, "--count", &count];
        let arguments = [&arguments[..], &["--at-once", "4", "--seed", &seed_text]].concat();
        let mut client = host.start(faults(seed), &arguments);
        assert_eq!(client.line("ended "), format!("{COUNT} good 0 wrong"));
        client.finish();
    }
}

fn linux_asks(host: &Host, seed: u64) {
    let count = COUNT.to_string();
    let mut server = host.serve(faults(seed), &["accept", "--count", &count]);
    let lens: Vec<u64> = lens(seed, LEN_BITS).take(COUNT as usize).collect();
    std::thread::scope(|scope| {
        for (number, len) in (0..COUNT).zip(lens) {
            scope.spawn(move || {
                let address = at(OURS[number as usize % 2], 80);
                let mut stream = TcpStream::connect(address).expect("connected");
                stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
                let mode = if number % 4 < 2 { Mode::Echo } else { Mode::Give };
                let header = Header { mode, len, seed: seed ^ number };
                let asked = ask(&mut stream, header);
                asked.unwrap_or_else(|error| panic!("{header:?} at {address}: {error}"));
            });
        }
    });
    assert_eq!(server.line("ended "), format!("{COUNT} good 0 wrong"));
    server.finish();
}
