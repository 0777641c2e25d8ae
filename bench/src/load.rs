//! The load: `megapipe bench load …` as a child process on the load's cores, and its JSON.

use crate::{
    cpu_time::CoreTimes,
    files::ServedFileSet,
    layout::BenchLayout,
    limits,
    point::Latency,
    process::{ChildProcess, ProcessPlace},
    server::TestedServer,
    stack_link::StackLink,
};
use megapipe_apps::serve::CpuList;
use serde::Deserialize;
use std::{collections::BTreeMap, io, net::SocketAddr, path::Path, process::Stdio, time::Duration};

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Rpc {
        request_bytes: u64,
        response_bytes: u64,
    },
    /// 90 % get, 64 B keys, 1 KiB values [MP 5.2].
    Kv,
    Http(ServedFileSet),
    /// Connections that are opened and reset by the server.
    AcceptReset,
}

/// A load on a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LoadPlan {
    pub(crate) workload: Workload,
    pub(crate) connections: u64,
    /// After so many transactions a connection is reset; none: it is kept.
    pub(crate) transactions_per_connection: Option<u64>,
    /// Whether a response time counts from the beginning of the handshake; then all connections
    /// may be on their way at once.
    pub(crate) with_connect: bool,
}

/// How a load comes to a server: from where, and over which link.
#[derive(Clone, Debug)]
pub(crate) struct LoadPath {
    pub(crate) place: ProcessPlace,
    server_cpus: CpuList,
    /// The server's processes, if the time that they run is all that it costs: on our own stack.
    pub(crate) server_pids: Vec<u32>,
    /// Options of the load that name a link; none for the kernel's TCP.
    pub(crate) link_args: Vec<String>,
}

impl LoadPath {
    /// To `server` in this layout.
    pub(crate) fn new(server: TestedServer, layout: &BenchLayout, scratch: &Path) -> Self {
        Self::over(server.stack_link(), layout, scratch)
    }

    /// Over a link of the stack, or the layout's.
    pub(crate) fn over(link: Option<StackLink>, layout: &BenchLayout, scratch: &Path) -> Self {
        let (place, link_args) = match link {
            Some(link) => (link.load_place(layout), link.load_args(layout, scratch)),
            None => (layout.load.clone(), Vec::new()),
        };
        Self { place, server_cpus: layout.server.cpus.clone(), server_pids: Vec::new(), link_args }
    }
}

/// What the load says about its measured window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadReport {
    pub(crate) transactions_per_s: f64,
    pub(crate) latency_us: Latency,
    pub(crate) errors: u64,
    /// Length of the window, and what the cores of either side did in it.
    pub(crate) seconds: f64,
    pub(crate) server: CoreTimes,
    pub(crate) load: CoreTimes,
    /// Jain's index of what each connection received; none unless connections are kept.
    pub(crate) fairness: Option<f64>,
    /// How long connecting took, and from the request to its answer; none unless response times
    /// include the handshake.
    pub(crate) connect_us: Option<Latency>,
    pub(crate) processing_us: Option<Latency>,
    /// How long either process ran in the window; none if the server's was not watched.
    pub(crate) server_ran_us: Option<f64>,
    pub(crate) load_ran_us: Option<f64>,
}

/// A load that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadFailure {
    /// It could not be started or waited for.
    #[error("cannot run the load: {0}")]
    System(#[from] io::Error),
    /// It ended with an error.
    #[error("the load failed: {said}")]
    Failed {
        /// Its last words.
        said: String,
    },
    /// It did not end in time.
    #[error("the load did not end")]
    Endless,
    /// Its JSON is not what it should be.
    #[error("the load's report cannot be read: {0}")]
    Report(#[from] serde_json::Error),
}

impl LoadPlan {
    pub(crate) const fn workload_name(&self) -> &'static str {
        match self.workload {
            Workload::Rpc { .. } => "rpc",
            Workload::Kv => "kv",
            Workload::Http(files) => files.name(),
            Workload::AcceptReset => "accept-reset",
        }
    }

    /// `message_bytes` of points.
    pub(crate) const fn message_bytes(&self) -> u64 {
        match self.workload {
            Workload::Rpc { response_bytes, .. } => response_bytes,
            Workload::Kv => limits::KV_VALUE_BYTES,
            Workload::Http(files) => files.mean_bytes(),
            Workload::AcceptReset => 0,
        }
    }

    /// Puts the load on `address` for the warm-up and `window`, and reads its report. Blocks.
    pub(crate) fn run(
        &self,
        address: SocketAddr,
        window: Duration,
        path: &LoadPath,
    ) -> Result<LoadReport, LoadFailure> {
        let args = self.args(address, window, path);
        let mut command = path.place.command(&path.place.program, &args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let limit = limits::LOAD_WARM_UP + window + limits::LOAD_REST_MAX;
        let output = ChildProcess::start(&mut command)?.output_within(limit)?;
        let output = output.ok_or(LoadFailure::Endless)?;
        if output.status.success() {
            let mut report = read_report(&output.stdout)?;
            if !self.with_connect {
                (report.connect_us, report.processing_us) = (None, None);
            }
            return Ok(report);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines.len().saturating_sub(limits::LOG_LINES_SHOWN);
        Err(LoadFailure::Failed { said: lines[last..].join(" | ") })
    }

    fn args(&self, address: SocketAddr, duration: Duration, path: &LoadPath) -> Vec<String> {
        let kind = match self.workload {
            Workload::AcceptReset => return self.accept_args(address, duration, path),
            Workload::Rpc { .. } => "rpc",
            Workload::Kv => "kv",
            Workload::Http(_) => "http",
        };
        let mut args = vec!["bench".to_owned(), "load".to_owned()];
        args.extend(["--server-cpus".to_owned(), path.server_cpus.to_string()]);
        args.extend(["--load-cpus".to_owned(), path.place.cpus.to_string()]);
        for pid in &path.server_pids {
            args.extend(["--server-pid".to_owned(), pid.to_string()]);
        }
        args.extend([kind.to_owned(), address.to_string()]);
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--connections", self.connections.to_string());
        option("--transactions", self.transactions_text());
        option("--close", "rst".to_owned());
        option("--warmup", limits::LOAD_WARM_UP.as_secs_f64().to_string());
        option("--duration", duration.as_secs_f64().to_string());
        option("--cpus", path.place.cpus.to_string());
        match self.workload {
            Workload::Rpc { request_bytes, response_bytes } => {
                option("--request-bytes", request_bytes.to_string());
                option("--response-bytes", response_bytes.to_string());
            }
            // 90 % get, 64 B keys and 1 KiB values are what the load does unasked.
            Workload::Kv => {}
            Workload::Http(files) => option("--files", files.argument().into_owned()),
            Workload::AcceptReset => {}
        }
        if self.with_connect {
            option("--connecting", self.connections.to_string());
            args.push("--with-connect".to_owned());
        }
        args.extend(path.link_args.iter().cloned());
        args.push("--quiet".to_owned());
        args
    }

    fn accept_args(&self, address: SocketAddr, duration: Duration, path: &LoadPath) -> Vec<String> {
        let mut args = ["bench", "accept-load", &address.to_string()].map(str::to_owned).to_vec();
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--connections", self.connections.to_string());
        option("--watched-cpus", path.server_cpus.to_string());
        option("--cpus", path.place.cpus.to_string());
        option("--warmup", limits::LOAD_WARM_UP.as_secs_f64().to_string());
        option("--duration", duration.as_secs_f64().to_string());
        args.extend(path.link_args.iter().cloned());
        args
    }

    fn transactions_text(&self) -> String {
        match (self.transactions_per_connection, self.workload) {
            (_, Workload::Http(ServedFileSet::Yahoo | ServedFileSet::YahooHalf)) => {
                "yahoo-requests".to_owned()
            }
            (Some(transactions), _) => transactions.to_string(),
            (None, _) => "inf".to_owned(),
        }
    }
}

/// The fields of the JSON of `megapipe bench load` that are used here.
#[derive(Deserialize)]
struct ReportJson {
    seconds: f64,
    server: CoreTimes,
    load: CoreTimes,
    #[serde(default)]
    server_ran_us: Option<f64>,
    #[serde(default)]
    load_ran_us: Option<f64>,
    summary: SummaryJson,
}

#[derive(Deserialize)]
struct SummaryJson {
    transactions_per_s: f64,
    latency_us: Latency,
    #[serde(default)]
    connect_us: Option<Latency>,
    #[serde(default)]
    latency_uncorrected_us: Option<Latency>,
    #[serde(default)]
    fairness: Option<f64>,
    /// By kind, from the beginning of the measured window on.
    errors: BTreeMap<String, u64>,
}

fn read_report(json: &[u8]) -> Result<LoadReport, LoadFailure> {
    let ReportJson { seconds, server, load, summary, server_ran_us, load_ran_us } =
        serde_json::from_slice(json)?;
    let SummaryJson { transactions_per_s, latency_us, fairness, errors, .. } = summary;
    let (connect_us, processing_us) = (summary.connect_us, summary.latency_uncorrected_us);
    let errors = errors.values().sum();
    Ok(LoadReport {
        transactions_per_s,
        latency_us,
        errors,
        seconds,
        server,
        load,
        fairness,
        connect_us,
        processing_us,
        server_ran_us,
        load_ran_us,
    })
}

#[cfg(test)]
mod tests {
    use super::{LoadPlan, Workload, read_report};
    use crate::files::ServedFileSet;

    #[test]
    fn reports_are_read_and_faults_summed() {
        let json = br#"{"seconds": 2.0, "summary": {"load": "rpc", "transactions_per_s": 1000.5,
            "errors": {"reset": 2, "refused": 1}, "latency_us": {"p50": 1.0, "p90": 2.0,
            "p99": 3.0, "p999": 4.0, "max": 5.0}, "more": null},
            "server": {"busy_ticks": 1, "idle_ticks": 2, "steal_ticks": 3, "user_ticks": 7,
            "system_ticks": 8, "softirq_ticks": 9, "calls": 10},
            "load": {"busy_ticks": 4, "idle_ticks": 5, "steal_ticks": 6, "user_ticks": 1,
            "system_ticks": 1, "softirq_ticks": 1, "calls": 1}}"#;
        let report = read_report(json).unwrap();
        assert!((report.transactions_per_s - 1000.5).abs() < 1e-9);
        assert!((report.latency_us.p999 - 4.0).abs() < 1e-9);
        assert_eq!((report.errors, report.server.idle_ticks, report.load.busy_ticks), (3, 2, 4));
        assert!(read_report(b"{}").is_err());
    }

    #[test]
    fn the_workload_may_say_how_long_connections_live() {
        let text = |workload, transactions_per_connection| {
            let connections = 1;
            LoadPlan { workload, connections, transactions_per_connection, with_connect: false }
                .transactions_text()
        };
        assert_eq!(text(Workload::Kv, None), "inf");
        assert_eq!(text(Workload::Kv, Some(8)), "8");
        assert_eq!(text(Workload::Http(ServedFileSet::SpecWeb), Some(6)), "6");
        assert_eq!(text(Workload::Http(ServedFileSet::Yahoo), None), "yahoo-requests");
    }
}
