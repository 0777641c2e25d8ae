//! Resident memory per idle connection of a server on the stack.
//!
//! A server on a memif has a million connections opened to it, which then do next to nothing. Its
//! resident memory at that moment, all of it, is divided by their number: connection, socket,
//! flow table, timer, what the application keeps, and what the process has anyway.

use crate::{
    idle_memory::resident_bytes,
    limits,
    load::LoadPath,
    process::ChildProcess,
    run::Bench,
    server::{RunningServer, ServerStartError, ServiceKind, TestedServer},
    stack_link::{self, StackLink},
};
use megapipe_apps::threads;
use megapipe_stack::{self as stack, Config, ConfigError, Stack, TableMemory};
use serde::Deserialize;
use std::{
    io,
    net::Ipv4Addr,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

/// The memory could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StackIdleError {
    #[error(transparent)]
    Server(#[from] ServerStartError),
    #[error("running the load or reading /proc: {0}")]
    System(#[from] io::Error),
    #[error("the load's report cannot be read: {0}")]
    Report(#[from] serde_json::Error),
    #[error("only some of the connections were opened: {0} failed")]
    NotAll(u64),
    #[error("the load did not end in {} s", limits::STACK_IDLE_MAX.as_secs())]
    Endless,
}

/// Of the load's summary: what went wrong while it opened its connections, and after.
#[derive(Deserialize)]
struct IdleSummaryJson {
    errors: std::collections::BTreeMap<String, u64>,
    errors_before: std::collections::BTreeMap<String, u64>,
}

/// Resident bytes of a server for each of a million idle connections. The bench's layout must be
/// set up. Blocks for about half a minute.
pub(crate) fn bytes_per_connection(bench: &mut Bench) -> Result<f64, StackIdleError> {
    let scratch = bench.scratch.path().to_owned();
    let layout = bench.layout(1).map_err(io::Error::from)?;
    let server = TestedServer::Local(StackLink::Memif);
    let service = ServiceKind::ManyIdle;
    let server = RunningServer::start(server, service, layout, &scratch)?;
    let path = LoadPath::new(TestedServer::Local(StackLink::Memif), layout, &scratch);
    let mut args = vec!["load".to_owned(), "rpc".to_owned(), server.address.to_string()];
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("--connections", limits::STACK_IDLE_CONNECTIONS.to_string());
    option("--rate", limits::STACK_IDLE_RATE.to_string());
    option("--warmup", "0.5".to_owned());
    option("--duration", limits::STACK_IDLE_WINDOW.as_secs_f64().to_string());
    option("--timeout", "30".to_owned());
    option("--cpus", path.place.cpus.to_string());
    option("--json", "-".to_owned());
    args.push("--quiet".to_owned());
    args.extend(path.link_args.iter().cloned());
    // A source has some 28,000 ports.
    for address in stack_link::more_load_addresses(limits::STACK_IDLE_SOURCES) {
        args.extend(["--address".to_owned(), format!("{address}/24")]);
        args.extend(["--source".to_owned(), format!("{address}:0")]);
    }
    let mut command = path.place.command(&path.place.program, &args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let load = ChildProcess::start(&mut command)?;
    let watched = watch(server.pid())?;
    let output = load.output_within(limits::STACK_IDLE_MAX)?.ok_or(StackIdleError::Endless)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(said).into());
    }
    let summary: IdleSummaryJson = serde_json::from_slice(&output.stdout)?;
    let failed: u64 = summary.errors.values().chain(summary.errors_before.values()).sum();
    if failed > 0 {
        return Err(StackIdleError::NotAll(failed));
    }
    let most = watched.join().unwrap_or(0);
    Ok(most as f64 / f64::from(limits::STACK_IDLE_CONNECTIONS))
}

/// What one connection of the full tables of such a server's stack is given in each of them, as
/// the stack counts it; first what every connection has, then what is set aside for those that
/// need it. Resident is of the latter only what was ever needed at once.
pub(crate) fn shares_of_tables() -> Result<String, ConfigError> {
    let mut config = Config::single(Ipv4Addr::new(192, 0, 2, 1), 24, [0; 32]);
    config.connections = limits::STACK_IDLE_ROOM;
    let tables = Stack::new(config, stack::Instant::ZERO)?.memory();
    let share = |memory: &TableMemory| {
        let bytes = memory.reserved_bytes as f64 / f64::from(limits::STACK_IDLE_ROOM);
        (bytes >= 0.5).then(|| format!("{} {bytes:.0}", memory.table.name()))
    };
    let (every, some): (Vec<_>, Vec<_>) =
        tables.iter().partition(|memory| memory.table.is_everyones());
    let list = |of: Vec<&TableMemory>| of.into_iter().filter_map(share).collect::<Vec<_>>();
    Ok(format!(
        "bytes of the stack's tables for each connection: {}; set aside until needed: {}",
        list(every).join(", "),
        list(some).join(", ")
    ))
}

/// The most that a process had resident until it ended.
fn watch(pid: u32) -> io::Result<thread::JoinHandle<u64>> {
    threads::spawn("watch", move || {
        let deadline = Instant::now() + limits::STACK_IDLE_MAX;
        let mut most = 0;
        while let Ok(bytes) = resident_bytes(pid) {
            most = most.max(bytes);
            if Instant::now() > deadline {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        most
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_that_every_connection_has_are_within_what_the_stack_promises() {
        let shares = shares_of_tables().unwrap();
        let (every, some) = shares.split_once("; ").unwrap();
        let bytes = every.split_once(": ").unwrap().1.split(", ");
        let sum: usize =
            bytes.map(|share| share.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum();
        let (least, most) = (size_of::<u64>() * 32, stack::IDLE_CONNECTION_BYTES + 5);
        assert!((least..=most).contains(&sum), "{shares}");
        assert!(some.contains("records") && some.contains("rares"), "{shares}");
    }
}
