//! Load generator: `megapipe load rpc|http|kv`.
//!
//! In: [`args`] (where the server is, how many connections, what to ask, how fast, how long).
//! Out: a [`Summary`] with rates, latencies and faults, which also says whether the load itself
//! was the bottleneck.
//!
//! Read first: `worker.rs`, one thread with its channel and its connections. Each protocol is a
//! pure `ClientProtocol` (`rpc.rs`, `http.rs`, `kv.rs`); what may be random follows
//! from [`distribution`] and a seed; `window.rs` decides what counts.
//!
//! A run has four parts: connections open (a bounded number at a time) and caches are filled; the
//! load begins and warms up; the window is measured; what was under way in it may end. Latencies
//! of a fixed rate are measured from when a transaction was meant to start, so that a server that
//! stalls cannot hide it (see `latency.rs`).
//!
//! Invariants
//! - The load uses only its channel for I/O, so it works on every driver.
//! - Memory is bounded by the number of connections, however long the run.

pub mod args;
mod client_protocol;
mod control;
mod coordinator;
mod cores;
pub mod distribution;
mod error;
mod fairness;
pub mod fault;
pub mod file_set;
mod http;
mod kv;
pub mod latency;
pub mod pacing;
mod ramp_up;
pub mod rng;
mod rpc;
mod summary;
mod window;
mod worker;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub use args::{Close, HttpLoadArgs, KvLoadArgs, LoadArgs, RpcLoadArgs, Transactions};
pub use coordinator::LoadPhase;
pub use error::LoadError;
pub use summary::Summary;

use crate::limits::load::PATHS_MAX;
use crate::result_file;
use coordinator::{LoadJob, ThreadShare, coordinate};
use http::{HttpClient, RequestTarget};
use kv::{KvClient, KvPlan};
use rng::Rng;
use rpc::RpcClient;

/// The exit code of a load that got not one answer.
const NO_ANSWER: u8 = 3;

/// Memory that a request's own bytes are written into before it has to grow.
const REQUEST_HEAD_LEN: usize = 2_048;

/// Runs a ping-pong load. Blocks until it ends. Calls `observe` on the calling thread within a few
/// milliseconds after the window begins and ends.
///
/// # Errors
/// Arguments out of range, a channel that cannot be created or breaks. Faults of the server are
/// no errors but part of the summary.
pub fn run_rpc(
    args: &RpcLoadArgs,
    observe: &mut dyn FnMut(LoadPhase),
) -> Result<Summary, LoadError> {
    let RpcLoadArgs { load, request_bytes, response_bytes } = args.clone();
    let protocol = move |part: ThreadShare| {
        let protocol = RpcClient::new(
            request_bytes.clone(),
            response_bytes.clone(),
            load.verify,
            Rng::stream(load.seed, part.index * 2 + 1),
        );
        Ok(protocol?)
    };
    coordinate(
        &LoadJob {
            name: "rpc",
            server_default: crate::rpc::SERVER.listen_default,
            args: &args.load,
        },
        protocol,
        observe,
    )
}

/// Runs a web load. Blocks until it is over; see [`run_rpc`].
///
/// # Errors
/// As [`run_rpc`]; a list of paths that cannot be read or is empty.
pub fn run_http(
    args: &HttpLoadArgs,
    observe: &mut dyn FnMut(LoadPhase),
) -> Result<Summary, LoadError> {
    let job = LoadJob {
        name: "http",
        server_default: crate::http::SERVER.listen_default,
        args: &args.load,
    };
    let targets = targets(args, &job.server()?.to_string())?;
    let HttpLoadArgs { load, status, .. } = args.clone();
    let protocol = move |part: ThreadShare| {
        let rng = Rng::stream(load.seed, part.index * 2 + 1);
        let targets = RequestTarget::copies(&targets).map_err(LoadError::Targets)?;
        Ok(HttpClient::new(targets, status, load.verify, rng))
    };
    coordinate(&job, protocol, observe)
}

/// Runs a key-value load. Blocks until it is over; see [`run_rpc`].
///
/// # Errors
/// As [`run_rpc`]; values longer than a cache takes.
pub fn run_kv(args: &KvLoadArgs, observe: &mut dyn FnMut(LoadPhase)) -> Result<Summary, LoadError> {
    if args.value_bytes.max() > kv::VALUE_LEN_MAX {
        return Err(LoadError::ValueBytes { len: args.value_bytes.max(), max: kv::VALUE_LEN_MAX });
    }
    let KvLoadArgs { load, keys, key_bytes, value_bytes, gets, no_fill } = args.clone();
    let protocol = move |part: ThreadShare| {
        let share =
            |index: u64| (u128::from(keys) * u128::from(index) / u128::from(part.count)) as u64;
        let fill = if no_fill { 0..0 } else { share(part.index)..share(part.index + 1) };
        let plan = KvPlan {
            keys,
            key_len: usize::from(key_bytes),
            value_bytes: value_bytes.clone(),
            gets,
            fill,
            verify_every: load.verify,
        };
        Ok(KvClient::new(plan, Rng::stream(load.seed, part.index * 2 + 1)))
    };
    coordinate(
        &LoadJob { name: "kv", server_default: crate::kv::SERVER.listen_default, args: &args.load },
        protocol,
        observe,
    )
}

/// Prints the summary of a load ([`report`]), and returns the exit code: with 3 if there
/// was not one answer.
///
/// # Errors
/// As [`report`].
pub fn finish(summary: &Summary, args: &LoadArgs) -> Result<ExitCode, LoadError> {
    report(summary, args)?;
    Ok(if summary.transactions == 0 { ExitCode::from(NO_ANSWER) } else { ExitCode::SUCCESS })
}

/// Shows what a load found out: as a table on standard output (on standard error if the JSON goes
/// to standard output), and as JSON to the file that `--json` names.
///
/// # Errors
/// The JSON file cannot be written.
pub fn report(summary: &Summary, args: &LoadArgs) -> Result<(), LoadError> {
    let to_stdout = args.json.as_deref() == Some(Path::new("-"));
    let table = summary.table();
    // A closed pipe is no error.
    let _ = match (args.quiet, to_stdout) {
        (true, _) => Ok(()),
        (false, true) => std::io::stderr().write_all(table.as_bytes()),
        (false, false) => std::io::stdout().write_all(table.as_bytes()),
    };
    let Some(path) = &args.json else { return Ok(()) };
    let file = |source| LoadError::File { path: path.clone(), source };
    let mut json = serde_json::to_string_pretty(summary).map_err(|error| file(error.into()))?;
    json.push('\n');
    if to_stdout {
        let _ = std::io::stdout().write_all(json.as_bytes());
        return Ok(());
    }
    result_file::write(path, &json).map_err(file)
}

/// Writes the files of `--prepare`. Returns whether the option is set.
///
/// # Errors
/// A file cannot be written.
pub fn prepare(args: &HttpLoadArgs) -> Result<bool, LoadError> {
    let (Some(root), Some(files)) = (&args.prepare, &args.files) else { return Ok(false) };
    let written = files.write_below(root);
    written.map_err(|source| LoadError::File { path: root.clone(), source })?;
    Ok(true)
}

/// The requests of a web load.
fn targets(args: &HttpLoadArgs, server: &str) -> Result<Vec<RequestTarget>, LoadError> {
    if let Some(host) = args.host.as_ref().filter(|host| !is_host(host)) {
        return Err(LoadError::Host { host: host.clone() });
    }
    let host = args.host.as_deref().unwrap_or(server);
    let keep_alive = !args.no_keep_alive;
    if let Some(files) = &args.files {
        return RequestTarget::files(files, host, keep_alive).map_err(LoadError::Targets);
    }
    check_paths(&args.paths, "--path")?;
    let mut paths = args.paths.clone();
    if let Some(list) = &args.path_list {
        let listed = read_paths(list)?;
        if listed.is_empty() {
            return Err(LoadError::NoPaths { path: list.clone(), max: PATHS_MAX });
        }
        check_paths(&listed, &format!("--path-list {}", list.display()))?;
        paths.extend(listed);
    }
    if paths.is_empty() {
        paths.push("/".to_owned());
    }
    if paths.len() > PATHS_MAX {
        return Err(LoadError::Paths { count: paths.len(), max: PATHS_MAX });
    }
    Ok(paths.iter().map(|path| RequestTarget::path(path, host, keep_alive)).collect())
}

/// Refuses paths that cannot stand in a request; `option` is where they are from.
fn check_paths(paths: &[String], option: &str) -> Result<(), LoadError> {
    match paths.iter().find(|path| !is_path(path)) {
        Some(path) => Err(LoadError::Path { option: option.to_owned(), path: path.clone() }),
        None => Ok(()),
    }
}

fn read_paths(list: &Path) -> Result<Vec<String>, LoadError> {
    let file = |source| LoadError::File { path: list.to_owned(), source };
    let text = std::fs::read_to_string(list).map_err(file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}

/// Whether this can stand in a Host field (RFC 9110 §7.2): a name or an address of RFC 3986.
fn is_host(host: &str) -> bool {
    let is_of_host =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(&byte);
    !host.is_empty() && host.bytes().all(is_of_host)
}

/// Whether this can stand in a request line as it is.
fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_would_break_a_request_are_refused() {
        assert!(is_path("/") && is_path("/a/b?c=%20"));
        for path in ["", "a", "/a b", "/a\r\nHost: x", "/ä"] {
            assert!(!is_path(path), "{path:?}");
        }
    }

    #[test]
    fn hosts_that_would_break_a_request_are_refused() {
        for host in ["a", "example.com:80", "[::1]:80", "10.0.0.1", "a_b", "x%2e"] {
            assert!(is_host(host), "{host}");
        }
        for host in ["", "a\r\nX: b", "a b", "a\t", "a/b", "u@a", "ä", "a\0"] {
            assert!(!is_host(host), "{host:?}");
        }
    }
}
