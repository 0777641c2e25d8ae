//! Counts the instructions of short connections, both ends in one process, ours against smoltcp.
//!
//! `cargo run --release -p megapipe-stack --example short_connections` runs this program under
//! callgrind (valgrind) once per row, and prints a table. `short_connections run STACK LOAD` is one
//! such row without callgrind, to look at with another tool: STACK is `ours` or `smoltcp`, LOAD a
//! name of the table. `short_connections time LOAD` runs both in turn, and prints the nanoseconds
//! of each.
//!
//! A connection is opened, carries 64 bytes in each direction, once or 128 times, and ends by the
//! client's RST or by the FINs of both. Both stacks run on Ethernet and IPv4, verify and write
//! checksums, and exchange frames through the same buffers; connections before the counted ones
//! warm the tables. What the program does to drive a stack is counted with it.

#[path = "../memory/buffers.rs"]
mod buffers;
mod ours;
mod theirs;
mod wire;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Times that each stack is measured, in turn with the other.
const TIMED_RUNS: usize = 15;
const MESSAGE: [u8; 64] = [7; 64];
const PORT: u16 = 80;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionEnd {
    /// The client resets it when it has the answer.
    Reset,
    /// The client closes when it has the answer, then the server.
    Fin,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
struct ConnectionLoad {
    name: &'static str,
    title: &'static str,
    /// Connections that are open at a time.
    at_once: u32,
    /// Transactions on each.
    transactions: u32,
    end: ConnectionEnd,
    /// Connections that are counted; a multiple of `at_once`. A quarter of them go before.
    connections: u32,
}

impl ConnectionLoad {
    /// What the result is divided by: connections with one transaction, or transactions.
    const fn count(self) -> u32 {
        self.connections * self.transactions
    }
}

const LOADS: [ConnectionLoad; 4] = [
    ConnectionLoad {
        name: "reset",
        title: "RST, one at a time",
        at_once: 1,
        transactions: 1,
        end: ConnectionEnd::Reset,
        connections: 4096,
    },
    ConnectionLoad {
        name: "reset-256",
        title: "RST, 256 at once",
        at_once: 256,
        transactions: 1,
        end: ConnectionEnd::Reset,
        connections: 4096,
    },
    ConnectionLoad {
        name: "fin",
        title: "FIN, one at a time",
        at_once: 1,
        transactions: 1,
        end: ConnectionEnd::Fin,
        connections: 4096,
    },
    ConnectionLoad {
        name: "transactions",
        title: "a transaction, 16 connections with 128 each",
        at_once: 16,
        transactions: 128,
        end: ConnectionEnd::Reset,
        connections: 256,
    },
];

/// Two stacks of a kind, a client and a server, with a wire between them.
trait StackPair {
    /// Opens the connections that `load` has at once, and carries them to their end.
    fn round(&mut self, load: ConnectionLoad);
}

/// The part that callgrind counts.
#[inline(never)]
fn measured(pair: &mut dyn StackPair, load: ConnectionLoad) {
    for _ in 0..load.connections / load.at_once {
        pair.round(load);
    }
}

fn pair_of(stack: &str, load: ConnectionLoad) -> Option<Box<dyn StackPair>> {
    match stack {
        "ours" => Some(Box::new(ours::Ours::new())),
        "smoltcp" => Some(Box::new(theirs::Smoltcp::new(load.at_once))),
        _ => None,
    }
}

/// Runs a row; how long the counted part took.
#[expect(clippy::disallowed_methods, reason = "the example measures; the stack is given its time")]
fn run(stack: &str, load: ConnectionLoad) -> Option<Duration> {
    let mut pair = pair_of(stack, load)?;
    for _ in 0..load.connections / 4 / load.at_once {
        pair.round(load);
    }
    let begun = Instant::now();
    measured(pair.as_mut(), load);
    Some(begun.elapsed())
}

fn load_named(name: &str) -> Option<ConnectionLoad> {
    LOADS.into_iter().find(|known| known.name == name)
}

/// Prints the median nanoseconds of both stacks, which run in turn, and their ratio.
fn time(load: ConnectionLoad) {
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..TIMED_RUNS {
        for (stack, samples) in ["ours", "smoltcp"].into_iter().zip(&mut samples) {
            samples.extend(run(stack, load));
        }
    }
    let [ours, theirs] = samples.map(|mut samples| {
        samples.sort_unstable();
        samples[samples.len() / 2].as_nanos() as f64 / f64::from(load.count())
    });
    println!("{ours:.0} {theirs:.0} {:.3}", ours / theirs);
}

/// Runs a row under callgrind; its instructions per connection.
fn counted(stack: &str, load: ConnectionLoad) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*::measured"])
        .arg("--callgrind-out-file=/dev/null")
        .arg(own)
        .args(["run", stack, load.name])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let line = printed.lines().find(|line| line.contains("Collected :"));
    let count = line.and_then(|line| line.rsplit(':').next()?.trim().parse::<u64>().ok());
    match count.filter(|count| *count > 0 && output.status.success()) {
        Some(count) => Ok(count / u64::from(load.count())),
        None => Err(format!("callgrind counted nothing:\n{printed}")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["run", stack, load] if load_named(load).is_some_and(|load| run(stack, load).is_some()) => {
            return ExitCode::SUCCESS;
        }
        ["time", load] if load_named(load).is_some() => {
            load_named(load).into_iter().for_each(time);
            return ExitCode::SUCCESS;
        }
        _ => {
            let loads = LOADS.map(|load| load.name).join("|");
            eprintln!("usage: short_connections [run ours|smoltcp {loads} | time {loads}]");
            return ExitCode::from(2);
        }
    }
    println!("| instructions per connection | ours | smoltcp |\n|---|---|---|");
    for load in LOADS {
        match (counted("ours", load), counted("smoltcp", load)) {
            (Ok(ours), Ok(theirs)) => println!("| {} | {ours} | {theirs} |", load.title),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
