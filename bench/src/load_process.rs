//! `megapipe bench load`: a load that also reads what the cores did in its measured window.
//!
//! The same load as `megapipe load`, run by the same code. It reads `/proc/stat` when its window
//! begins and when it ends, so that CPU time and transactions are of the same moments, however
//! long it took to connect and to fill a cache before.

use crate::cpu_time::CoreTimes;
use megapipe_apps::{
    load::{self, HttpLoadArgs, KvLoadArgs, LoadError, Moment, RpcLoadArgs, Summary},
    serve::CpuList,
};
use serde::Serialize;
use std::{io, time::Instant};

/// Options of `megapipe bench load`.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadProcessArgs {
    /// Cores of the server
    #[arg(long)]
    server_cpus: CpuList,
    /// Cores of the load
    #[arg(long)]
    load_cpus: CpuList,
    #[command(subcommand)]
    load: Kind,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Kind {
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
    summary: Summary,
}

/// Runs the load and prints what came of it as JSON. Blocks until it is over.
pub(crate) fn run(args: &LoadProcessArgs) -> Result<(), LoadProcessError> {
    let mut readings: Vec<io::Result<(Instant, CoreTimes, CoreTimes)>> = Vec::new();
    let mut observe = |moment: Moment| {
        if matches!(moment, Moment::Measuring | Moment::Measured) {
            readings.push(read(args));
        }
    };
    let summary = match &args.load {
        Kind::Rpc(rpc) => load::run_rpc(rpc, &mut observe),
        Kind::Http(http) => load::run_http(http, &mut observe),
        Kind::Kv(kv) => load::run_kv(kv, &mut observe),
    }?;
    let readings: Vec<_> = readings.into_iter().collect::<io::Result<_>>()?;
    let [before, after] = readings[..] else {
        return Err(io::Error::other("the load ended before its window").into());
    };
    let observed = Observed {
        seconds: (after.0 - before.0).as_secs_f64(),
        server: after.1 - before.1,
        load: after.2 - before.2,
        summary,
    };
    serde_json::to_writer(io::stdout().lock(), &observed).map_err(io::Error::from)?;
    Ok(())
}

fn read(args: &LoadProcessArgs) -> io::Result<(Instant, CoreTimes, CoreTimes)> {
    let server = CoreTimes::read(&args.server_cpus)?;
    Ok((Instant::now(), server, CoreTimes::read(&args.load_cpus)?))
}
