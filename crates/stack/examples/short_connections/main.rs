//! Counts the instructions of short connections, both ends in one process, ours against smoltcp.
//!
//! `cargo run --release -p megapipe-stack --example short_connections` runs this program under
//! callgrind (valgrind) once per row, and prints a table. `short_connections run STACK LOAD` is one
//! such row without callgrind, to look at with another tool: STACK is `ours` or `smoltcp`, LOAD a
//! name of the table.
//!
//! A connection is opened, carries 64 bytes in each direction, and ends by the client's RST or by
//! the FINs of both. Both stacks run on Ethernet and IPv4, verify and write checksums, and exchange
//! frames through the same buffers; connections before the counted ones warm the tables. What the
//! program does to drive a stack is counted with it.

#[path = "../memory/buffers.rs"]
mod buffers;
mod ours;
mod theirs;
mod wire;

use std::process::{Command, ExitCode};

/// Connections that are counted; a multiple of every `ConnectionLoad::at_once`.
const CONNECTIONS: u32 = 4096;
/// Connections before those.
const WARM_UP: u32 = 1024;
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
    at_once: u32,
    end: ConnectionEnd,
}

const LOADS: [ConnectionLoad; 3] = [
    ConnectionLoad {
        name: "reset",
        title: "RST, one at a time",
        at_once: 1,
        end: ConnectionEnd::Reset,
    },
    ConnectionLoad {
        name: "reset-256",
        title: "RST, 256 at once",
        at_once: 256,
        end: ConnectionEnd::Reset,
    },
    ConnectionLoad {
        name: "fin",
        title: "FIN, one at a time",
        at_once: 1,
        end: ConnectionEnd::Fin,
    },
];

/// Two stacks of a kind, a client and a server, with a wire between them.
trait StackPair {
    /// Opens `count` connections at once and carries them to their end.
    fn round(&mut self, count: u32, end: ConnectionEnd);
}

/// The part that callgrind counts.
#[inline(never)]
fn measured(pair: &mut dyn StackPair, load: ConnectionLoad) {
    for _ in 0..CONNECTIONS / load.at_once {
        pair.round(load.at_once, load.end);
    }
}

fn run(pair: &mut dyn StackPair, load: ConnectionLoad) {
    for _ in 0..WARM_UP / load.at_once {
        pair.round(load.at_once, load.end);
    }
    measured(pair, load);
}

fn run_named(stack: &str, load: &str) -> Option<()> {
    let load = LOADS.into_iter().find(|known| known.name == load)?;
    match stack {
        "ours" => run(&mut ours::Ours::new(), load),
        "smoltcp" => run(&mut theirs::Smoltcp::new(load.at_once), load),
        _ => return None,
    }
    Some(())
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
        Some(count) => Ok(count / u64::from(CONNECTIONS)),
        None => Err(format!("callgrind counted nothing:\n{printed}")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["run", stack, load] if run_named(stack, load).is_some() => return ExitCode::SUCCESS,
        _ => {
            let loads = LOADS.map(|load| load.name).join("|");
            eprintln!("usage: short_connections [run ours|smoltcp {loads}]");
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
