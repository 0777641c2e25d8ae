//! What a load found out: as a value, as JSON, as a table.
//!
//! The JSON is this file's [`Summary`], field by field. It is stable: later versions add fields
//! and rename none.

use std::fmt::Write as _;

use serde::Serialize;

use super::fault::FaultCounts;
use super::latency::Quantiles;
use super::window::Count;
use crate::limits::load::{BUSY_SHARE_MAX, LATENESS_US_MAX};
use crate::terminal::{COLUMNS, wrap};

/// The result of one load run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// `rpc`, `http` or `kv`.
    pub load: &'static str,
    /// The server's address.
    pub server: String,
    /// The driver of the load's own channels.
    pub driver: String,
    /// Threads of the load.
    pub threads: u32,
    /// Connections held open.
    pub connections: u32,
    /// Transactions per connection: a number, a distribution, or `inf`.
    pub transactions_per_connection: String,
    /// `rst` or `fin`.
    pub close: &'static str,
    /// The fixed rate of requests; null in a closed loop.
    pub rate_per_s: Option<f64>,
    /// What the random lengths and keys followed from.
    pub seed: u64,
    /// Seconds of the window that was measured.
    pub seconds: f64,
    /// Responses that came in the window.
    pub transactions: u64,
    /// The same, a second.
    pub transactions_per_s: f64,
    /// Connections established in the window.
    pub connections_opened: u64,
    /// The same, a second.
    pub connections_per_s: f64,
    /// Payload bytes received in the window.
    pub bytes_in: u64,
    /// Payload bytes sent in the window.
    pub bytes_out: u64,
    /// Transactions meant to start in the window:
    /// `started = completed + failed + unfinished`.
    pub started: u64,
    /// Those of them that were answered, in the window or shortly after.
    pub completed: u64,
    /// Those of them that a fault ended.
    pub failed: u64,
    /// Those of them that were still open, or not even begun, at the end.
    pub unfinished: u64,
    /// Faults from the beginning of the window on.
    pub errors: FaultCounts,
    /// Faults before, while connecting and warming up.
    pub errors_before: FaultCounts,
    /// From the time a transaction was meant to start to its end, in microseconds. Includes those
    /// that were unfinished, with the time they had taken.
    pub latency_us: Quantiles,
    /// From the time a request was sent, in microseconds.
    pub latency_uncorrected_us: Quantiles,
    /// From the call to the established connection, in microseconds.
    pub connect_us: Quantiles,
    /// How late transactions of a fixed rate were started although a connection was free.
    pub lateness_us: Quantiles,
    /// Jain's index of what each connection received, 1 being fair; null unless connections are
    /// kept for the whole window.
    pub fairness: Option<f64>,
    /// The share of the window that each thread spent on a processor.
    pub threads_busy: Vec<f64>,
    /// The share of the window that each thread's processor was busy, with interrupts and whatever
    /// else ran there; empty unless --cpus pinned the threads.
    pub cores_busy: Vec<f64>,
    /// `load` if the load, and not the server, set the limit.
    pub saturated: Option<&'static str>,
    /// What has to be known to read the numbers right, in sentences.
    pub remarks: Vec<String>,
    /// Counts of the protocol, such as `hits` and `misses`, from the very beginning.
    pub details: std::collections::BTreeMap<&'static str, u64>,
}

/// The options of the load, repeated in the summary.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) load: &'static str,
    pub(crate) server: String,
    pub(crate) driver: String,
    pub(crate) threads: u32,
    pub(crate) connections: u32,
    pub(crate) transactions: String,
    pub(crate) close: &'static str,
    pub(crate) rate: Option<f64>,
    pub(crate) seed: u64,
}

/// How busy the load itself was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy {
    pub(crate) threads: Vec<f64>,
    pub(crate) cores: Vec<f64>,
}

impl Summary {
    /// Sums up a window of `seconds`.
    pub(crate) fn new(
        asked: Asked,
        count: &Count,
        seconds: f64,
        busy: Busy,
        details: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let mut sums = std::collections::BTreeMap::new();
        for (name, count) in details {
            *sums.entry(name).or_insert(0) += count;
        }
        let mut summary = Self {
            load: asked.load,
            server: asked.server,
            driver: asked.driver,
            threads: asked.threads,
            connections: asked.connections,
            transactions_per_connection: asked.transactions,
            close: asked.close,
            rate_per_s: asked.rate,
            seed: asked.seed,
            seconds,
            transactions: count.answered,
            transactions_per_s: per_second(count.answered),
            connections_opened: count.connected,
            connections_per_s: per_second(count.connected),
            bytes_in: count.bytes_in,
            bytes_out: count.bytes_out,
            started: count.started,
            completed: count.completed,
            failed: count.failed,
            unfinished: count.unfinished,
            errors: count.faults,
            errors_before: count.faults_before,
            latency_us: count.latencies.corrected.quantiles(),
            latency_uncorrected_us: count.latencies.uncorrected.quantiles(),
            connect_us: count.connecting.quantiles(),
            lateness_us: count.lateness.quantiles(),
            fairness: count.shares.jain(),
            threads_busy: busy.threads,
            cores_busy: busy.cores,
            saturated: None,
            remarks: Vec::new(),
            details: sums,
        };
        summary.judge();
        summary
    }

    /// Says what a reader would otherwise have to find out.
    fn judge(&mut self) {
        let busiest = |shares: &[f64]| shares.iter().copied().fold(0.0, f64::max);
        let (thread, core) = (busiest(&self.threads_busy), busiest(&self.cores_busy));
        if thread.max(core) > BUSY_SHARE_MAX {
            self.saturated = Some("load");
            self.remarks.push(format!(
                "The load was the bottleneck: {} was busy {:.0} % of the time. Give it more \
                 threads on other processors; the server may be able to do more than this.",
                if thread >= core { "one of its threads" } else { "one of its processors" },
                thread.max(core) * 100.0
            ));
        }
        if self.lateness_us.p99 > LATENESS_US_MAX {
            self.saturated = Some("load");
            self.remarks.push(format!(
                "The load fell behind its schedule: one transaction in a hundred started over \
                 {:.1} ms late although a connection was free.",
                self.lateness_us.p99 / 1e3
            ));
        }
        if let Some(rate) = self.rate_per_s
            && self.unfinished > 0
            && self.unfinished as f64 > rate * self.seconds / 100.0
        {
            self.remarks.push(format!(
                "{} of the transactions that were due had no answer in the end: the rate is more \
                 than {} connections to this server carry.",
                self.unfinished, self.connections
            ));
        }
        if self.errors.no_ports + self.errors_before.no_ports > 0 {
            self.remarks.push(
                "Local ports ran out: connections closed with FIN keep theirs in TIME-WAIT for a \
                 minute. Close with --close rst, connect from more addresses with --source, or \
                 widen net.ipv4.ip_local_port_range."
                    .to_owned(),
            );
        }
        let unreachable = self.errors.unreachable + self.errors_before.unreachable;
        if unreachable > 0 {
            self.remarks.push(format!(
                "{} was unreachable {unreachable} times: no route, or its address or the \
                 gateway's was not resolved (ARP, neighbour discovery). Such connections were \
                 retried.",
                self.server
            ));
        }
        if self.transactions == 0 {
            // Most such loads end before their measurement begins, with a table of zeros.
            let mut errors = self.errors;
            errors.add(&self.errors_before);
            let mut remark = "Not one transaction was answered.".to_owned();
            if errors.total() > 0 {
                remark += &format!(" Errors since the start: {}.", errors.listed());
            }
            self.remarks.push(remark);
        }
    }

    /// The summary as a table for people, at most [`COLUMNS`] wide.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_table(&mut text);
        text
    }

    fn write_table(&self, out: &mut String) -> std::fmt::Result {
        write_wrapped(out, "", &self.heading())?;
        writeln!(
            out,
            "  {:<16}{:>14.0} /s  {:>12} in {:.2} s",
            "transactions", self.transactions_per_s, self.transactions, self.seconds
        )?;
        writeln!(
            out,
            "  {:<16}{:>14.0} /s  {:>12} opened",
            "connections", self.connections_per_s, self.connections_opened
        )?;
        let rate = |bytes: u64| bytes as f64 / self.seconds.max(1e-9) / 1e6;
        writeln!(
            out,
            "  {:<16}{:>14.1} MB/s in {:>9.1} MB/s out",
            "payload",
            rate(self.bytes_in),
            rate(self.bytes_out)
        )?;
        self.write_latencies(out)?;
        if let Some(fairness) = self.fairness {
            writeln!(out, "  {:<16}{fairness:>14.4} Jain's index of bytes in", "fairness")?;
        }
        for (name, values) in self.lists() {
            write_wrapped(out, &format!("  {name:<16}"), &values)?;
        }
        self.remarks.iter().try_for_each(|remark| write_wrapped(out, "  ! ", remark))
    }

    /// The options of the load, in one sentence.
    fn heading(&self) -> String {
        let plural =
            |count: u32, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let mode = match self.rate_per_s {
            Some(rate) => format!("{rate} a second"),
            None => "closed loop".to_owned(),
        };
        format!(
            "{} load on {}: {}, {}, {} per connection, {}, driver {}",
            self.load,
            self.server,
            plural(self.threads, "thread"),
            plural(self.connections, "connection"),
            self.transactions_per_connection,
            mode,
            self.driver,
        )
    }

    /// The rows with many values: each row's name, and its values with blanks between.
    fn lists(&self) -> Vec<(&'static str, String)> {
        let errors = match self.errors.total() {
            0 => "none".to_owned(),
            _ => self.errors.listed(),
        };
        let details: Vec<String> =
            self.details.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let shares = |shares: &[f64]| {
            let shares: Vec<String> =
                shares.iter().map(|share| format!("{:.0} %", share * 100.0)).collect();
            shares.join(" ")
        };
        let mut lists = vec![("errors", errors)];
        if !details.is_empty() {
            lists.push(("protocol", details.join(", ")));
        }
        lists.push(("threads busy", shares(&self.threads_busy)));
        if !self.cores_busy.is_empty() {
            lists.push(("cores busy", shares(&self.cores_busy)));
        }
        lists
    }

    fn write_latencies(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "  {:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "latency (µs)", "p50", "p99", "p99.9", "max", "mean", "sd"
        )?;
        let mut rows = vec![("  transaction", &self.latency_us)];
        if self.rate_per_s.is_some() {
            rows = vec![
                ("  from schedule", &self.latency_us),
                ("  from sending", &self.latency_uncorrected_us),
            ];
        }
        rows.push(("  connecting", &self.connect_us));
        for (name, latency) in rows.into_iter().filter(|(_, latency)| latency.count > 0) {
            let Quantiles { p50, p99, p999, max, mean, sd, .. } = latency;
            writeln!(
                out,
                "  {name:<16}{p50:>10.1}{p99:>10.1}{p999:>10.1}{max:>10.1}{mean:>10.1}{sd:>10.1}"
            )?;
        }
        Ok(())
    }
}

fn write_wrapped(out: &mut String, head: &str, text: &str) -> std::fmt::Result {
    wrap(head, text, COLUMNS).iter().try_for_each(|line| writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::super::fault::TransactionFault;
    use super::super::latency::Times;
    use super::super::window::MeasuredWindow;
    use super::*;

    fn asked(rate: Option<f64>) -> Asked {
        Asked {
            load: "rpc",
            server: "127.0.0.1:7000".into(),
            driver: "uring".into(),
            threads: 1,
            connections: 2,
            transactions: "inf".into(),
            close: "rst",
            rate,
            seed: 1,
        }
    }

    fn count() -> Count {
        let mut window = MeasuredWindow::unset();
        window.set(0..1_000_000_000);
        for index in 0..100 {
            window.on_start(index, index, 64);
            window.on_done(Times { intended_ns: index, sent_ns: index, done_ns: index + 50_000 });
        }
        window.count
    }

    fn busy(thread: f64) -> Busy {
        Busy { threads: vec![thread], cores: Vec::new() }
    }

    #[test]
    fn the_numbers_are_rates_of_the_window() {
        let summary =
            Summary::new(asked(None), &count(), 0.5, busy(0.5), [("hits", 1), ("hits", 2)]);
        assert_eq!((summary.transactions, summary.transactions_per_s), (100, 200.0));
        assert_eq!(summary.details["hits"], 3);
        assert!((summary.latency_us.p50 - 50.0).abs() < 0.1);
        assert_eq!((summary.saturated, summary.remarks.len()), (None, 0));
        let json = serde_json::to_value(&summary).expect("a value");
        assert_eq!(json["fairness"], serde_json::Value::Null, "no connection was kept");
        assert_eq!(json["errors"]["refused"], 0);
        assert_eq!(json["rate_per_s"], serde_json::Value::Null);
    }

    #[test]
    fn saturated_load_is_reported() {
        let summary = Summary::new(asked(None), &count(), 1.0, busy(0.97), []);
        assert_eq!(summary.saturated, Some("load"));
        assert!(summary.remarks[0].contains("97 %"), "{:?}", summary.remarks);
        let mut late = count();
        (0..100).for_each(|_| late.lateness.record(5_000_000));
        let summary = Summary::new(asked(Some(100.0)), &late, 1.0, busy(0.2), []);
        assert_eq!(summary.saturated, Some("load"));
        assert!(summary.remarks[0].contains("5.0 ms late"), "{:?}", summary.remarks);
    }

    #[test]
    fn a_rate_that_is_not_carried_is_not_the_loads_fault() {
        let mut count = count();
        count.unfinished = 50;
        let summary = Summary::new(asked(Some(150.0)), &count, 1.0, busy(0.2), []);
        assert_eq!(summary.saturated, None);
        assert!(summary.remarks[0].starts_with("50 of the transactions"));
    }

    #[test]
    fn a_server_that_there_was_no_way_to_is_named() {
        let mut count = count();
        count.faults_before.count(TransactionFault::Unreachable);
        count.faults.count(TransactionFault::Unreachable);
        let summary = Summary::new(asked(None), &count, 1.0, busy(0.2), []);
        let remark = "127.0.0.1:7000 was unreachable 2 times";
        assert!(summary.remarks[0].starts_with(remark), "{:?}", summary.remarks);
        assert!(summary.table().contains("1 unreachable"), "{}", summary.table());
    }

    #[test]
    fn load_without_an_answer_lists_the_errors_before_its_measurement() {
        let mut count = MeasuredWindow::unset().count;
        count.faults_before.count(TransactionFault::Refused);
        count.faults_before.count(TransactionFault::Refused);
        count.faults.count(TransactionFault::Reset);
        let summary = Summary::new(asked(None), &count, 1.0, busy(0.2), []);
        let remark =
            "Not one transaction was answered. Errors since the start: 2 refused, 1 reset.";
        assert_eq!(summary.remarks, [remark]);
    }

    #[test]
    fn table_fits_the_columns_of_a_terminal() {
        let mut asked = asked(Some(123_456.5));
        asked.server = "[2001:db8:1111:2222:3333:4444:5555:6666]:65535".into();
        let busy = Busy { threads: vec![0.97; 64], cores: vec![0.97; 64] };
        let mut count = count();
        [
            TransactionFault::Refused,
            TransactionFault::Reset,
            TransactionFault::Closed,
            TransactionFault::TimedOut,
            TransactionFault::WrongResponse,
            TransactionFault::Unreachable,
            TransactionFault::Other,
        ]
        .into_iter()
        .for_each(|fault| count.faults.count(fault));
        let details = ["gets", "hits", "misses", "sets", "stored", "rejected"].map(|it| (it, 1));
        let summary = Summary::new(asked, &count, 0.5, busy, details);
        assert!(!summary.remarks.is_empty());
        let table = summary.table();
        for line in table.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}\n{table}");
        }
    }

    #[test]
    fn the_table_shows_both_ways_to_look_at_an_open_loop() {
        let closed = Summary::new(asked(None), &count(), 1.0, busy(0.2), []).table();
        assert!(closed.contains("transaction ") && !closed.contains("from schedule"));
        let open = Summary::new(asked(Some(100.0)), &count(), 1.0, busy(0.2), []).table();
        assert!(open.contains("from schedule") && open.contains("from sending"));
        assert!(open.lines().all(|line| !line.ends_with(' ')));
    }
}
