//! A thousand transfers of random sizes in which one side closes before the other, half of them
//! asked for by Linux and half by us.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use megapipe_tests::transfer::{Header, Mode, answer, ask, lens};

use super::host::{Host, LINUXES, LOSSES, Loss, OURS, PATIENCE, at};

/// A thousand in all: fewest where each takes longest.
const fn count(loss: Loss) -> u64 {
    match loss.0 {
        0 => 250,
        1 => 200,
        _ => 50,
    }
}

/// Longest of Linux's transfers, as a power of two.
const LEN_BITS: u32 = 17;
const THREADS: u64 = 8;

pub(crate) fn linux_asks_us_for_transfers(host: &Host) {
    for loss in LOSSES {
        let total = count(loss);
        let mut server = host.serve(loss, &["accept", "--count", &total.to_string()]);
        let next = AtomicU64::new(0);
        let lens: Vec<u64> = lens(11, LEN_BITS).take(total as usize).collect();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    // Relaxed: a number is taken once, and carries nothing else.
                    let numbers = std::iter::from_fn(|| {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        (number < total).then_some(number)
                    });
                    numbers.for_each(|number| ask_for(number, lens[number as usize]));
                });
            }
        });
        assert_eq!(server.line("ended "), format!("{total} good 0 wrong"));
        server.finish().expect_no_reset(loss);
    }
}

fn ask_for(number: u64, len: u64) {
    let address = at(OURS[(number / 2) as usize % 2], 80);
    let mut stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mode = if number.is_multiple_of(2) { Mode::Echo } else { Mode::Give };
    let header = Header { mode, len, seed: number };
    ask(&mut stream, header).unwrap_or_else(|error| panic!("{header:?} at {address}: {error}"));
}

pub(crate) fn we_ask_linux_for_transfers(host: &Host) {
    for (port, loss) in (7_000..).zip(LOSSES) {
        // A port of its own: Linux may still have connections of the round before, whose FIN was
        // lost, and client ports come again.
        let to = LINUXES.map(|address| at(address, port).to_string());
        for address in &to {
            let listener = TcpListener::bind(address).expect("a listener");
            // The thread stays behind with the namespace's last socket until the process ends.
            thread::spawn(move || serve(&listener));
        }
        let arguments = ["connect", "--to", &to[0], "--to", &to[1], "--count"];
        let total = count(loss);
        let mut client = host.start(loss, &[&arguments[..], &[&total.to_string()]].concat());
        assert_eq!(client.line("ended "), format!("{total} good 0 wrong"));
        client.finish().expect_no_reset(loss);
    }
}

/// Answers each connection on a thread of its own.
pub(crate) fn serve(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        thread::spawn(move || {
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            // The client judges; what is wrong here is wrong there, too.
            if let Err(error) = answer(&mut stream) {
                eprintln!("a transfer that we were asked for: {error}");
            }
        });
    }
}
