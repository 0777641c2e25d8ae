//! The experiments as data: servers, loads, and the paper's results.
//!
//! Read the MegaPipe report's figures 2.1 and 5.1 to 5.5 and table 5.1 beside this; `mtcp.rs` has
//! the plans of the mTCP paper's chapter 5. Pure: a plan is a function of the experiment, the
//! effort and the number of cores.
//!
//! Invariant: all trials of a group differ only in the server, so that they can be measured in
//! turn and compared.

use crate::{
    baseline::Baseline,
    files::ServedFileSet,
    limits,
    load::{LoadPlan, Workload},
    server::{Ablation, ForcedDriver, ServiceKind, TestedServer},
    trial::{BenchTrial, Effort},
};
use std::time::Duration;

mod mtcp;

/// Experiments of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Suite {
    Rpc,
    Accept,
    Kv,
    Http,
    Bulk,
    Latency,
    Mtcp,
    /// Experiments of `bench bars --shards` that are not in the mTCP paper.
    Shards,
    Demo,
}

/// Which paper an experiment is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paper {
    MegaPipe,
    Mtcp,
}

impl Paper {
    /// As reports name it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MegaPipe => "MegaPipe report",
            Self::Mtcp => "mTCP paper",
        }
    }
}

/// What an experiment varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    TransactionsPerConnection,
    MessageBytes,
    Cores,
    LoadCores,
    Connections,
    Workload,
}

impl Axis {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::TransactionsPerConnection => "transactions per connection",
            Self::MessageBytes => "message size (bytes)",
            Self::Cores => "server cores",
            Self::LoadCores => "cores of the load",
            Self::Connections => "connections",
            Self::Workload => "workload",
        }
    }
}

/// Description of an experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Experiment {
    pub(crate) name: &'static str,
    pub(crate) suite: Suite,
    pub(crate) title: &'static str,
    pub(crate) axis: Axis,
    /// Whether the paper reports latency rather than throughput.
    pub(crate) latency: bool,
    /// What the paper measured, in our words, with its place.
    pub(crate) paper: &'static str,
}

impl Experiment {
    /// The paper that `paper` is about.
    pub(crate) const fn source(&self) -> Paper {
        match self.suite {
            Suite::Mtcp | Suite::Shards => Paper::Mtcp,
            _ => Paper::MegaPipe,
        }
    }

    /// Whether servers are sampled by perf while they are measured.
    pub(crate) fn is_profiled(&self) -> bool {
        self.name == "mt-fig1"
    }
}

/// Every experiment, in the order in which they are measured and reported.
pub(crate) const EXPERIMENTS: [Experiment; 29] = [
    Experiment {
        name: "fig2.1a",
        suite: Suite::Rpc,
        title: "Connection length",
        axis: Axis::TransactionsPerConnection,
        latency: false,
        paper: "Figure 2.1(a): eight cores, Linux 3.1.3, 10 GbE. Single-transaction connections \
                ran at about one nineteenth of the throughput of long ones on the baseline; \
                MegaPipe gained 582 % at 1 transaction per connection and 29 % at 128 (table 5.1).",
    },
    Experiment {
        name: "fig2.1b",
        suite: Suite::Rpc,
        title: "Message size",
        axis: Axis::MessageBytes,
        latency: false,
        paper: "Figure 2.1(b): ten transactions per connection, eight cores. A 1 KiB message cost \
                about 2 % more than a 64 B one; up to 1 KiB the server did not fill the 10 Gb/s \
                link.",
    },
    Experiment {
        name: "fig2.1c",
        suite: Suite::Rpc,
        title: "Server cores, ten transactions per connection",
        axis: Axis::Cores,
        latency: false,
        paper: "Figure 2.1(c): on eight cores the baseline reached a speed-up of 4.6 with ten \
                transactions per connection, 1.3 with one, 6.7 with 128.",
    },
    Experiment {
        name: "table5.1",
        suite: Suite::Rpc,
        title: "What partitioning, batching and lwsockets each contribute",
        axis: Axis::TransactionsPerConnection,
        latency: false,
        paper: "Table 5.1: throughput over the baseline in percent, eight cores, 64 B messages; \
                the rows beside ours are the paper's.",
    },
    Experiment {
        name: "fig5.1",
        suite: Suite::Rpc,
        title: "Speed-up over one core, by connection length",
        axis: Axis::Cores,
        latency: false,
        paper: "Figure 5.1: MegaPipe's speed-up on eight cores was 6.4 or more at every connection \
                length; the baseline's collapsed for short connections.",
    },
    Experiment {
        name: "fig5.2",
        suite: Suite::Rpc,
        title: "Improvement over the baseline, by message size and cores",
        axis: Axis::MessageBytes,
        latency: false,
        paper: "Figure 5.2: ten transactions per connection. On one core, where the gain is mostly \
                batching, 15 to 33 %, more for messages up to 1 KiB.",
    },
    Experiment {
        name: "accept",
        suite: Suite::Accept,
        title: "Connections per second, by connections open at a time",
        axis: Axis::Connections,
        latency: false,
        paper: "One transaction per connection, as in the left-most points of figure 2.1(a).",
    },
    Experiment {
        name: "accept-reset",
        suite: Suite::Accept,
        title: "Connections accepted and reset in a tight loop",
        axis: Axis::Connections,
        latency: false,
        paper: "Not in the MegaPipe report; after mTCP's figure 8, on whose eight cores our kind \
                of stack accepted ten times as many connections as Linux.",
    },
    Experiment {
        name: "rpc-1k",
        suite: Suite::Rpc,
        title: "1 KiB responses, persistent connections",
        axis: Axis::Connections,
        latency: false,
        paper: "Not in the paper: figure 2.1(b)'s 1 KiB without connection set-up.",
    },
    Experiment {
        name: "bulk",
        suite: Suite::Bulk,
        title: "One bulk stream from the server",
        axis: Axis::MessageBytes,
        latency: false,
        paper: "Not in the paper: one connection, responses of a mebibyte one after the other.",
    },
    Experiment {
        name: "latency",
        suite: Suite::Latency,
        title: "Round trips of few connections",
        axis: Axis::Connections,
        latency: true,
        paper: "Not in the paper: what a transaction takes where nothing waits for anything else.",
    },
    Experiment {
        name: "fig5.3",
        suite: Suite::Kv,
        title: "Key-value store, by requests per connection",
        axis: Axis::TransactionsPerConnection,
        latency: false,
        paper: "Figure 5.3: memcached 1.4.13 on eight cores, 64 B keys, 1 KiB values, nine gets \
                to one set. MegaPipe gained 15 % (persistent connections, global lock removed) to \
                320 %; about 16 % on one core.",
    },
    Experiment {
        name: "fig5.4",
        suite: Suite::Kv,
        title: "Key-value latency, by persistent connections",
        axis: Axis::Connections,
        latency: true,
        paper: "Figure 5.4: MegaPipe left the median latency alone; it raised the 99th percentile \
                slightly with 72 to 264 connections and lowered it much with 768 and more.",
    },
    Experiment {
        name: "fig5.5",
        suite: Suite::Http,
        title: "Static files over HTTP",
        axis: Axis::Workload,
        latency: false,
        paper: "Figure 5.5: nginx 1.0.15. With the halved Yahoo trace MegaPipe gained 47 % on one \
                core and 75 % on eight (speed-up 6.5 instead of 5.4).",
    },
    Experiment {
        name: "http-1k",
        suite: Suite::Http,
        title: "One 1 KiB file, persistent connections",
        axis: Axis::Connections,
        latency: false,
        paper: "Not in the paper: the smallest honest file, without connection set-up.",
    },
    Experiment {
        name: "mt-fig1",
        suite: Suite::Mtcp,
        title: "Where the CPU time goes: one 64 B file per connection",
        axis: Axis::Workload,
        latency: false,
        paper: "Figures 1 and 2: lighttpd, 64 B files, eight cores. Linux and MegaPipe spent 80 to \
                83 % of their time in the kernel. Per CPU cycle outside the application mTCP \
                carried 4.3 times as many transactions as Linux, and 3.1 and 1.8 times as many \
                as Linux and MegaPipe in all.",
    },
    Experiment {
        name: "mt-fig7a",
        suite: Suite::Mtcp,
        title: "Server cores, one 64 B message per connection",
        axis: Axis::Cores,
        latency: false,
        paper: "Figure 7(a): on eight cores mTCP carried 25 times as many connections as Linux, 5 \
                times as many as REUSEPORT and 3 times as many as MegaPipe, and scaled almost \
                linearly.",
    },
    Experiment {
        name: "mt-fig7b",
        suite: Suite::Mtcp,
        title: "Messages per connection, 64 B",
        axis: Axis::TransactionsPerConnection,
        latency: false,
        paper: "Figure 7(b): eight cores. mTCP nearly filled the 10 Gb/s link from 64 messages per \
                connection; at 32 it was up to 2.7 times ahead of all others.",
    },
    Experiment {
        name: "mt-fig7c",
        suite: Suite::Mtcp,
        title: "Message size, one message per connection",
        axis: Axis::MessageBytes,
        latency: false,
        paper: "Figure 7(c): eight cores. mTCP filled the 10 Gb/s link from 1 KiB, MegaPipe from \
                4 KiB, Linux at no size; the gain was largest for small messages.",
    },
    Experiment {
        name: "mt-fig8",
        suite: Suite::Mtcp,
        title: "Connections accepted and reset in a tight loop, by server cores",
        axis: Axis::Cores,
        latency: false,
        paper: "Figure 8: on eight cores mTCP accepted 13 times as many connections as Linux, 7.5 \
                times as many as REUSEPORT and 5 times as many as Multiprocess, REUSEPORT with a \
                process per core, which scaled best of the three.",
    },
    Experiment {
        name: "mt-table2",
        suite: Suite::Mtcp,
        title: "Response times with 8,000 connections at once, handshake included",
        axis: Axis::Connections,
        latency: true,
        paper: "Table 2: 8K connections, 64 B, one message each: minimum 0 ms for Linux and 9 ms \
                for mTCP, median 3 and 13 ms. Mean and maximum were 8.8 and 54.2 times smaller \
                with mTCP, at 9.5 times the transactions.",
    },
    Experiment {
        name: "mt-fairness",
        suite: Suite::Mtcp,
        title: "Bulk connections: Jain's index of what each received",
        axis: Axis::Connections,
        latency: false,
        paper: "Section 5.2, fairness: 8K connections, each loading 10 MiB over one 10 Gb/s link: \
                0.973 for Linux, 0.999 for mTCP.",
    },
    Experiment {
        name: "mt-fig9",
        suite: Suite::Mtcp,
        title: "A web server on the static SpecWeb-like files",
        axis: Axis::Cores,
        latency: false,
        paper: "Figure 9: lighttpd on eight cores: with mTCP 3.2 times the throughput of Linux, \
                2.2 of REUSEPORT, 1.5 of MegaPipe.",
    },
    Experiment {
        name: "mt-fig10",
        suite: Suite::Mtcp,
        title: "The load generator itself, by its cores: one 64 B file per connection",
        axis: Axis::LoadCores,
        latency: false,
        paper: "Figure 10: ab on mTCP replaced more than four machines with ab on Linux, which did \
                not scale over cores because of the shared descriptors.",
    },
    Experiment {
        name: "mt-fig11",
        suite: Suite::Mtcp,
        title: "The load generator itself, by file size",
        axis: Axis::MessageBytes,
        latency: false,
        paper: "Figure 11: ab on mTCP filled the 10 Gb/s link from files of 2 KiB on, with less \
                CPU time than on Linux.",
    },
    Experiment {
        name: "mt-placement",
        suite: Suite::Shards,
        title: "Where our stack runs, and what readiness costs: 64 B, persistent connections",
        axis: Axis::Connections,
        latency: false,
        paper: "Section 3.2: mTCP runs on a thread beside the application's, on the same core, \
                and pays for it with a switch of threads for each batch, of 2,170 events where \
                the paper looked.",
    },
    Experiment {
        name: "demo-rpc",
        suite: Suite::Demo,
        title: "RPC ping-pong, 64 B",
        axis: Axis::TransactionsPerConnection,
        latency: false,
        paper: "A short version of figure 2.1(a): MegaPipe gained 582 % in throughput at 1 \
                transaction per connection and 45 % at 64, on eight cores (table 5.1).",
    },
    Experiment {
        name: "demo-http",
        suite: Suite::Demo,
        title: "HTTP, one 1 KiB file, persistent connections",
        axis: Axis::Connections,
        latency: false,
        paper: "In the manner of figure 5.5: nginx on MegaPipe gained 47 % on one core with the \
                halved Yahoo trace.",
    },
    Experiment {
        name: "demo-kv",
        suite: Suite::Demo,
        title: "Key-value store, persistent connections",
        axis: Axis::Connections,
        latency: false,
        paper: "The right-most points of figure 5.3: memcached on MegaPipe gained about 16 % on \
                one core.",
    },
];

/// Table 5.1 of the paper: improvement over the baseline in percent, at 1, 2, 4 … 128
/// transactions per connection.
pub(crate) const TABLE_5_1: [(&str, [f64; 8]); 4] = [
    ("+P", [211.6, 207.5, 181.3, 83.5, 38.9, 29.5, 17.2, 8.8]),
    ("+B", [18.8, 22.8, 72.4, 44.6, 31.8, 30.4, 27.3, 19.8]),
    ("+L", [352.1, 230.5, 79.3, 22.0, 9.7, 2.9, 0.4, 0.1]),
    ("total", [582.4, 460.8, 333.1, 150.1, 80.4, 62.8, 45.0, 28.7]),
];

/// Connections open at a time in the paper's microbenchmark [MP 2.2].
pub(crate) const CONNECTIONS: u64 = 256;
/// Transactions per connection where the paper varies something else [MP 2.2].
const TRANSACTIONS: u64 = 10;
const MESSAGE_BYTES: u64 = 64;

const URING: TestedServer = TestedServer::Channel(ForcedDriver::Uring, None);
const EPOLL: TestedServer = TestedServer::Channel(ForcedDriver::Epoll, None);
const SHARED: TestedServer = TestedServer::Baseline(Baseline::EpollShared);
const REUSEPORT: TestedServer = TestedServer::Baseline(Baseline::EpollReuseport);
const PROCESSES: TestedServer = TestedServer::Baseline(Baseline::EpollProcesses);
const IO_URING: TestedServer = TestedServer::Baseline(Baseline::IoUring);

/// Trials to be measured in turn, on the same number of server cores.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrialGroup {
    pub(crate) server_cores: usize,
    pub(crate) trials: Vec<BenchTrial>,
}

impl Experiment {
    /// The experiment of that name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        EXPERIMENTS.iter().find(|experiment| experiment.name == name)
    }

    /// The groups to measure where the server may have up to `cores_max` cores.
    pub(crate) fn groups(&self, quick: bool, cores_max: usize) -> Vec<TrialGroup> {
        if self.source() == Paper::Mtcp {
            return self.mtcp_groups(quick, cores_max);
        }
        match self.name {
            "fig2.1a" => self.over_transactions(quick),
            "fig2.1b" => self.over_sizes(quick, 1),
            "fig2.1c" => self.over_cores(&[TRANSACTIONS], cores_max),
            "table5.1" => self.ablation(quick),
            "fig5.1" => self.over_cores(if quick { &[1, 128] } else { &[1, 8, 128] }, cores_max),
            "fig5.2" => (1..=cores_max).flat_map(|cores| self.over_sizes(quick, cores)).collect(),
            "accept" => self.over_connections(quick),
            "fig5.3" => self.kv_over_requests(quick),
            "fig5.4" => self.kv_over_connections(quick),
            "fig5.5" => self.http_workloads(cores_max),
            "accept-reset" => self.accept_reset(),
            "rpc-1k" => vec![self.kept(CONNECTIONS, 1024)],
            "bulk" => vec![self.kept(1, limits::BULK_BYTES)],
            "latency" => [1, 8].map(|count| self.kept(count, MESSAGE_BYTES)).to_vec(),
            "demo-rpc" => self.demo_rpc(),
            "demo-kv" => vec![self.kv(CONNECTIONS, None)],
            _ => self.http_one_file(quick),
        }
    }

    fn group(
        &self,
        server_cores: usize,
        service: ServiceKind,
        load: &LoadPlan,
        of: &[TestedServer],
    ) -> TrialGroup {
        let trial =
            |&server| BenchTrial { experiment: self.name, server, service, load: load.clone() };
        TrialGroup { server_cores, trials: of.iter().map(trial).collect() }
    }

    fn rpc(&self, cores: usize, load: &LoadPlan, servers: &[TestedServer]) -> TrialGroup {
        self.group(cores, ServiceKind::Rpc, load, servers)
    }

    fn over_transactions(&self, quick: bool) -> Vec<TrialGroup> {
        let servers = if quick {
            &[URING, SHARED, REUSEPORT, IO_URING][..]
        } else {
            &[URING, EPOLL, SHARED, REUSEPORT, IO_URING]
        };
        let lengths = if quick { &[1, 8, 32, 128][..] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
        lengths.iter().map(|&length| self.rpc(1, &rpc(length, MESSAGE_BYTES), servers)).collect()
    }

    fn over_sizes(&self, quick: bool, cores: usize) -> Vec<TrialGroup> {
        let servers = match self.name {
            "fig5.2" => &[URING, SHARED][..],
            _ if quick => &[URING, SHARED, IO_URING],
            _ => &[URING, SHARED, REUSEPORT, IO_URING],
        };
        let sizes = match (self.name, quick) {
            ("fig5.2", true) => &[64, 4096][..],
            ("fig5.2", false) => &[64, 256, 1024, 2048, 4096],
            (_, true) => &[64, 4096, 65_536],
            _ => &[64, 256, 1024, 2048, 4096, 16_384, 65_536],
        };
        sizes.iter().map(|&size| self.rpc(cores, &rpc(TRANSACTIONS, size), servers)).collect()
    }

    fn over_cores(&self, lengths: &[u64], cores_max: usize) -> Vec<TrialGroup> {
        let servers = &[URING, SHARED, REUSEPORT, IO_URING];
        let mut groups = Vec::new();
        for &length in lengths {
            for cores in 1..=cores_max {
                groups.push(self.rpc(cores, &rpc(length, MESSAGE_BYTES), servers));
            }
        }
        groups
    }

    fn ablation(&self, quick: bool) -> Vec<TrialGroup> {
        let steps = [
            Ablation { no_partition: true, no_batching: true, no_lwsockets: true },
            Ablation { no_partition: false, no_batching: true, no_lwsockets: true },
            Ablation { no_partition: false, no_batching: false, no_lwsockets: true },
            Ablation::default(),
        ];
        let servers =
            steps.map(|ablation| TestedServer::Channel(ForcedDriver::Uring, Some(ablation)));
        let lengths = if quick { &[1, 8, 128][..] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
        lengths.iter().map(|&length| self.rpc(1, &rpc(length, MESSAGE_BYTES), &servers)).collect()
    }

    fn over_connections(&self, quick: bool) -> Vec<TrialGroup> {
        let servers = &[URING, EPOLL, SHARED, REUSEPORT, IO_URING];
        let counts = if quick { &[64, 1024][..] } else { &[16, 64, 256, 1024, 4096] };
        let load = |&connections| LoadPlan { connections, ..rpc(1, MESSAGE_BYTES) };
        counts.iter().map(|count| self.rpc(1, &load(count), servers)).collect()
    }

    fn accept_reset(&self) -> Vec<TrialGroup> {
        let load = accept_reset();
        vec![self.group(1, ServiceKind::AcceptReset, &load, &[URING, EPOLL])]
    }

    /// Connections that are kept.
    fn kept(&self, connections: u64, response_bytes: u64) -> TrialGroup {
        let load =
            LoadPlan { connections, transactions_per_connection: None, ..rpc(1, response_bytes) };
        self.rpc(1, &load, &[URING, REUSEPORT, IO_URING])
    }

    fn demo_rpc(&self) -> Vec<TrialGroup> {
        let servers = &[URING, IO_URING, REUSEPORT];
        [1, 64].map(|length| self.rpc(1, &rpc(length, MESSAGE_BYTES), servers)).to_vec()
    }

    fn kv(&self, connections: u64, transactions_per_connection: Option<u64>) -> TrialGroup {
        let workload = Workload::Kv;
        let load =
            LoadPlan { workload, connections, transactions_per_connection, with_connect: false };
        self.group(1, ServiceKind::Kv, &load, &[URING, EPOLL, TestedServer::MEMCACHED])
    }

    fn kv_over_requests(&self, quick: bool) -> Vec<TrialGroup> {
        let lengths = if quick {
            &[Some(1), Some(16), None][..]
        } else {
            &[Some(1), Some(2), Some(4), Some(8), Some(16), Some(32), Some(64), Some(128), None]
        };
        lengths.iter().map(|&length| self.kv(CONNECTIONS, length)).collect()
    }

    fn kv_over_connections(&self, quick: bool) -> Vec<TrialGroup> {
        let counts = if quick { &[72, 768][..] } else { &[72, 144, 264, 528, 768, 1536] };
        counts.iter().map(|&count| self.kv(count, None)).collect()
    }

    fn http_workloads(&self, cores_max: usize) -> Vec<TrialGroup> {
        let servers = &[URING, EPOLL, TestedServer::NGINX];
        let mut groups = Vec::new();
        for files in [ServedFileSet::SpecWeb, ServedFileSet::Yahoo, ServedFileSet::YahooHalf] {
            for cores in 1..=cores_max {
                // The other workloads draw how long each connection lives.
                let transactions_per_connection = (files == ServedFileSet::SpecWeb).then_some(6);
                let load = http(files, CONNECTIONS, transactions_per_connection);
                groups.push(self.group(cores, ServiceKind::Http(files), &load, servers));
            }
        }
        groups
    }

    fn http_one_file(&self, quick: bool) -> Vec<TrialGroup> {
        let servers = &[URING, EPOLL, TestedServer::NGINX];
        let counts = if quick { &[256][..] } else { &[64, 256, 1024] };
        let load = |&connections| http(ServedFileSet::OneKibibyte, connections, None);
        let service = ServiceKind::Http(ServedFileSet::OneKibibyte);
        counts.iter().map(|count| self.group(1, service, &load(count), servers)).collect()
    }
}

/// The microbenchmark's load.
pub(crate) const fn rpc(transactions: u64, response_bytes: u64) -> LoadPlan {
    LoadPlan {
        workload: Workload::Rpc { request_bytes: MESSAGE_BYTES, response_bytes },
        connections: CONNECTIONS,
        transactions_per_connection: Some(transactions),
        with_connect: false,
    }
}

/// Connections that come and go.
const fn accept_reset() -> LoadPlan {
    LoadPlan { workload: Workload::AcceptReset, ..rpc(1, MESSAGE_BYTES) }
}

/// A web server's load.
const fn http(
    files: ServedFileSet,
    connections: u64,
    transactions_per_connection: Option<u64>,
) -> LoadPlan {
    let workload = Workload::Http(files);
    LoadPlan { workload, connections, transactions_per_connection, with_connect: false }
}

/// Default duration and number of runs.
pub(crate) const fn effort(quick: bool) -> Effort {
    if quick {
        Effort { runs: 3, window: Duration::from_secs(2) }
    } else {
        Effort { runs: 5, window: Duration::from_secs(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::{EXPERIMENTS, Experiment, Suite, effort};
    use crate::{limits, trial::BenchTrial};
    use std::time::Duration;

    /// As long as the plan takes at least: each distinct trial once per run.
    fn duration(suite: Suite, quick: bool) -> Duration {
        let mut trials: Vec<BenchTrial> = Vec::new();
        for experiment in EXPERIMENTS.iter().filter(|experiment| experiment.suite == suite) {
            for group in experiment.groups(quick, 1) {
                for trial in group.trials {
                    if !trials.iter().any(|other| other.is_same_run(&trial)) {
                        trials.push(trial);
                    }
                }
            }
        }
        let effort = effort(quick);
        let overhead = limits::LOAD_WARM_UP + Duration::from_millis(400);
        (effort.window + overhead) * u32::try_from(effort.runs * trials.len()).unwrap()
    }

    #[test]
    fn the_quick_plans_are_quick() {
        assert!(duration(Suite::Rpc, true) < Duration::from_secs(360));
        for suite in [Suite::Accept, Suite::Kv, Suite::Http, Suite::Bulk, Suite::Latency] {
            assert!(duration(suite, true) < Duration::from_secs(180));
        }
        assert!(duration(Suite::Rpc, false) < Duration::from_secs(3600));
    }

    #[test]
    fn groups_differ_only_in_the_server() {
        for experiment in &EXPERIMENTS {
            for cores_max in [1, 3] {
                for group in experiment.groups(false, cores_max) {
                    let first = &group.trials[0];
                    assert!(group.server_cores >= 1 && group.server_cores <= cores_max);
                    for trial in &group.trials[1..] {
                        assert_eq!((&trial.load, trial.service), (&first.load, first.service));
                        assert_ne!(trial.server, first.server);
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for experiment in &EXPERIMENTS {
            assert_eq!(Experiment::named(experiment.name), Some(experiment));
        }
        assert_eq!(Experiment::named("fig9"), None);
    }
}
