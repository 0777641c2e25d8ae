//! The load: `megapipe load …` as a child process on the load's cores, and its JSON.

use crate::{files::FileSet, layout::Layout, limits, point::Latency, process::Running};
use serde::Deserialize;
use std::{collections::BTreeMap, io, net::SocketAddr, process::Stdio, time::Duration};

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Rpc {
        request_bytes: u64,
        response_bytes: u64,
    },
    /// 90 % get, 64 B keys, 1 KiB values [MP 5.2].
    Kv,
    Http(FileSet),
}

/// A load on a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) workload: Workload,
    pub(crate) connections: u64,
    /// After so many transactions a connection is reset; none: it is kept.
    pub(crate) transactions_per_connection: Option<u64>,
}

/// What the load says about its measured window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadReport {
    pub(crate) transactions_per_s: f64,
    pub(crate) latency_us: Latency,
    pub(crate) errors: u64,
}

/// A load that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
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

/// A load that is running. Ends on drop.
#[derive(Debug)]
pub(crate) struct RunningLoad {
    process: Running,
    limit: Duration,
}

impl Load {
    pub(crate) const fn workload_name(&self) -> &'static str {
        match self.workload {
            Workload::Rpc { .. } => "rpc",
            Workload::Kv => "kv",
            Workload::Http(files) => files.name(),
        }
    }

    /// `message_bytes` of points.
    pub(crate) const fn message_bytes(&self) -> u64 {
        match self.workload {
            Workload::Rpc { response_bytes, .. } => response_bytes,
            Workload::Kv => limits::KV_VALUE_BYTES,
            Workload::Http(files) => files.mean_bytes(),
        }
    }

    /// Puts the load on `address` for the warm-up, `window` and a margin.
    pub(crate) fn start(
        &self,
        address: SocketAddr,
        window: Duration,
        layout: &Layout,
    ) -> Result<RunningLoad, LoadError> {
        let duration = window + 2 * limits::WINDOW_MARGIN;
        let args = self.args(address, duration, layout);
        let mut command = layout.load.command(&layout.load.program, &args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Running::start(&mut command)?;
        Ok(RunningLoad { process, limit: limits::LOAD_WARM_UP + duration + limits::LOAD_END_MAX })
    }

    fn args(&self, address: SocketAddr, duration: Duration, layout: &Layout) -> Vec<String> {
        let kind = match self.workload {
            Workload::Rpc { .. } => "rpc",
            Workload::Kv => "kv",
            Workload::Http(_) => "http",
        };
        let mut args = vec!["load".to_owned(), kind.to_owned(), address.to_string()];
        let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
        option("--connections", self.connections.to_string());
        option("--transactions", self.transactions_text());
        option("--close", "rst".to_owned());
        option("--warmup", limits::LOAD_WARM_UP.as_secs_f64().to_string());
        option("--duration", duration.as_secs_f64().to_string());
        option("--cpus", layout.load.cpus.to_string());
        match self.workload {
            Workload::Rpc { request_bytes, response_bytes } => {
                option("--request-bytes", request_bytes.to_string());
                option("--response-bytes", response_bytes.to_string());
            }
            // 90 % get, 64 B keys and 1 KiB values are what the load does unasked.
            Workload::Kv => {}
            Workload::Http(files) => option("--files", files.argument().to_owned()),
        }
        option("--json", "-".to_owned());
        args.push("--quiet".to_owned());
        args
    }

    fn transactions_text(&self) -> String {
        match (self.transactions_per_connection, self.workload) {
            (_, Workload::Http(FileSet::Yahoo | FileSet::YahooHalf)) => "yahoo-requests".to_owned(),
            (Some(transactions), _) => transactions.to_string(),
            (None, _) => "inf".to_owned(),
        }
    }
}

impl RunningLoad {
    /// Waits for the load's end and reads its report. Blocks.
    pub(crate) fn finish(self) -> Result<LoadReport, LoadError> {
        let output = self.process.output_within(self.limit)?.ok_or(LoadError::Endless)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
            let last = lines.len().saturating_sub(limits::LOG_LINES_SHOWN);
            return Err(LoadError::Failed { said: lines[last..].join(" | ") });
        }
        read_report(&output.stdout)
    }
}

/// The fields of the load's JSON that are used here.
#[derive(Deserialize)]
struct ReportJson {
    transactions_per_s: f64,
    latency_us: Latency,
    /// By kind, from the beginning of the measured window on.
    errors: BTreeMap<String, u64>,
}

fn read_report(json: &[u8]) -> Result<LoadReport, LoadError> {
    let report: ReportJson = serde_json::from_slice(json)?;
    let ReportJson { transactions_per_s, latency_us, errors } = report;
    Ok(LoadReport { transactions_per_s, latency_us, errors: errors.values().sum() })
}

#[cfg(test)]
mod tests {
    use super::{Load, Workload, read_report};
    use crate::files::FileSet;

    #[test]
    fn reports_are_read_and_faults_summed() {
        let json = br#"{"load": "rpc", "transactions_per_s": 1000.5, "errors": {"reset": 2,
            "refused": 1}, "latency_us": {"p50": 1.0, "p90": 2.0, "p99": 3.0, "p999": 4.0,
            "max": 5.0}, "more": null}"#;
        let report = read_report(json).unwrap();
        assert!((report.transactions_per_s - 1000.5).abs() < 1e-9);
        assert!((report.latency_us.p999 - 4.0).abs() < 1e-9);
        assert_eq!(report.errors, 3);
        assert!(read_report(b"{}").is_err());
    }

    #[test]
    fn the_workload_may_say_how_long_connections_live() {
        let text = |workload, transactions_per_connection| {
            Load { workload, connections: 1, transactions_per_connection }.transactions_text()
        };
        assert_eq!(text(Workload::Kv, None), "inf");
        assert_eq!(text(Workload::Kv, Some(8)), "8");
        assert_eq!(text(Workload::Http(FileSet::SpecWeb), Some(6)), "6");
        assert_eq!(text(Workload::Http(FileSet::Yahoo), None), "yahoo-requests");
    }
}
