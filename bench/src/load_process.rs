//! `megapipe bench load`: a load that also measures CPU time in its window.
//!
//! The same load as `megapipe load`, run by the same code. It reads `/proc/stat` when its window
//! begins and when it ends, so that CPU time and transactions are of the same moments, however
//! long it took to connect and to fill a cache before.

use crate::cpu_time::{CoreTimes, run_time, run_time_with_children};
use megapipe_apps::{
    load::{self, HttpLoadArgs, KvLoadArgs, LoadError, LoadPhase, RpcLoadArgs, Summary},
    serve::CpuList,
};
use serde::Serialize;
use std::{
    io,
    time::{Duration, Instant},
};

/// Options of `megapipe bench load`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadProcessArgs {
    /// Cores of the server
    #[arg(long)]
    server_cpus: CpuList,
    /// Cores of the load
    #[arg(long)]
    load_cpus: CpuList,
    /// The server's process, of which the time that it and its children ran is read, too; several
    /// times for several
    #[arg(long)]
    server_pid: Vec<u32>,
    #[command(subcommand)]
    load: LoadKind,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum LoadKind {
    /// As `megapipe load rpc`
    Rpc(RpcLoadArgs),
    /// As `megapipe load http`
    Http(HttpLoadArgs),
    /// As `megapipe load kv`
    Kv(KvLoadArgs),
}

/// The load could not be run or observed.
#[derive(Debug, thiserror::Error)]
pub enum LoadProcessError {
    /// The load's own error.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `/proc/stat` could not be read, or the result not be written.
    #[error("observing the load: {0}")]
    System(#[from] io::Error),
}

/// What is printed: the load's summary, and what the cores did meanwhile.
#[derive(Serialize)]
struct Observed {
    seconds: f64,
    server: CoreTimes,
    load: CoreTimes,
    /// How long the server's processes ran, and this one; only if the server's were named.
    server_ran_us: Option<f64>,
    load_ran_us: Option<f64>,
    summary: Summary,
}

/// What is read at a phase.
struct Reading {
    at: Instant,
    server: CoreTimes,
    load: CoreTimes,
    /// Of the server's process and of this one.
    ran: Option<[Duration; 2]>,
}

/// Runs the load and prints what came of it as JSON. Blocks until it is over.
pub(crate) fn run(args: &LoadProcessArgs) -> Result<(), LoadProcessError> {
    let mut readings: Vec<io::Result<Reading>> = Vec::new();
    let mut observe = |phase: LoadPhase| {
        if matches!(phase, LoadPhase::Measuring | LoadPhase::Measured) {
            readings.push(read(args));
        }
    };
    let summary = match &args.load {
        LoadKind::Rpc(rpc) => load::run_rpc(rpc, &mut observe),
        LoadKind::Http(http) => load::run_http(http, &mut observe),
        LoadKind::Kv(kv) => load::run_kv(kv, &mut observe),
    }?;
    let readings: Vec<_> = readings.into_iter().collect::<io::Result<_>>()?;
    let [before, after] = &readings[..] else {
        return Err(io::Error::other("the load ended before its window").into());
    };
    let ran_us = |index: usize| {
        let (before, after) = before.ran.zip(after.ran)?;
        Some(after[index].saturating_sub(before[index]).as_secs_f64() * 1e6)
    };
    let observed = Observed {
        seconds: (after.at - before.at).as_secs_f64(),
        server: after.server - before.server,
        load: after.load - before.load,
        server_ran_us: ran_us(0),
        load_ran_us: ran_us(1),
        summary,
    };
    serde_json::to_writer(io::stdout().lock(), &observed).map_err(io::Error::from)?;
    Ok(())
}

fn read(args: &LoadProcessArgs) -> io::Result<Reading> {
    let server = CoreTimes::read(&args.server_cpus)?;
    let (at, load) = (Instant::now(), CoreTimes::read(&args.load_cpus)?);
    let ran = match &args.server_pid[..] {
        [] => None,
        pids => {
            let server = pids.iter().map(|pid| run_time_with_children(*pid));
            let server = server.sum::<io::Result<Duration>>()?;
            Some([server, run_time(std::process::id())?])
        }
    };
    Ok(Reading { at, server, load, ran })
}
