//! The results as the JSON file holds them: documented in `docs/BENCHMARKING.md`, stable.
//!
//! Invariant: fields may be added, none is ever renamed or removed, so that results of different
//! versions can be compared. A test holds the list of names.

use crate::{figure::Figure, layout::MeasuredLink};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path, time::SystemTime};

/// Everything that one benchmark run found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// What it ran on.
    pub machine: Machine,
    /// The command line that measured it.
    pub command: String,
    /// One point for each server and each value of what was varied.
    pub points: Vec<Point>,
    /// What could not be measured and why, and what to keep in mind.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What is promised, of `bench bars`: each with what was measured.
    #[serde(default)]
    pub bars: Vec<Bar>,
    /// Figures and tables of `bench pika`.
    #[serde(default)]
    pub figures: Vec<Figure>,
}

impl Results {
    /// Adds what was measured on the same machine by another command.
    pub(crate) fn append(&mut self, more: Self) {
        if self.command != more.command {
            self.command = format!("{}; {}", self.command, more.command);
        }
        self.points.extend(more.points);
        self.bars.extend(more.bars);
        self.figures.extend(more.figures);
        let new = more.notes.into_iter().filter(|note| !self.notes.contains(note));
        let new: Vec<String> = new.collect();
        self.notes.extend(new);
    }
}

/// A promise, and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    /// As `--only` takes it.
    pub name: String,
    /// What was measured, in words.
    pub what: String,
    /// Whether the value is to be at most the bound, at least, or is there to compare with.
    pub sense: Sense,
    /// The bound; null where nothing is promised.
    pub bound: Option<f64>,
    /// Unit of bound and values; empty for ratios.
    pub unit: String,
    /// One value for each run; empty if nothing was measured.
    pub runs: Vec<f64>,
    /// Their median, which is held against the bound; null if nothing was measured.
    pub median: Option<f64>,
    /// Whether the promise is kept; null if nothing was measured or nothing is promised.
    pub met: Option<bool>,
    /// Whether the values come from a simulation with costs that were measured in the same run.
    pub simulated: bool,
    /// Why nothing was measured.
    pub why: Option<String>,
    /// Whether nothing was measured because the machine lacks a program or a right.
    #[serde(default)]
    pub skipped: bool,
    /// The servers that were compared, of `bench bars --preload`; else empty.
    #[serde(default)]
    pub servers: Vec<BarServer>,
}

/// A server of a bar: medians over its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BarServer {
    /// The row whose program it runs.
    pub program: String,
    /// Back end of the program: `kernel`, `local` or `service`, or `rules`: preloaded, with every
    /// socket on the kernel by its rules. Of a C program its build: `one thread`, `shared` or
    /// `preloaded`.
    pub backend: String,
    /// Requests per second.
    pub requests_per_s: f64,
    /// CPU time of the program for each request, on `service` with the daemon's, in microseconds.
    pub cpu_us_per_request: f64,
    /// Share of the window that the server's core was idle, 0 to 1.
    pub idle_share: f64,
    /// Whether the server was the limit.
    pub saturated: bool,
}

/// Which side of its bound a value is to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    /// At most the bound.
    AtMost,
    /// At least the bound.
    AtLeast,
    /// No promise: the value says what the machine allows.
    Floor,
}

/// The machine that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name for itself.
    pub cpu: String,
    /// Cores that the benchmark may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// megapipe's version.
    pub megapipe: String,
    /// When the benchmark ended, in UTC, as in RFC 3339; empty in older files.
    #[serde(default)]
    pub date: String,
    /// The commit that was built; empty where the build did not know it.
    #[serde(default)]
    pub commit: String,
    /// Clock of the first core when the results were written, in MHz; 0 if unknown.
    #[serde(default)]
    pub cpu_mhz: u64,
    /// The kernel's mitigations of processor faults that are active, by name; empty if unknown.
    #[serde(default)]
    pub mitigations: String,
}

/// One server under one load: medians over several runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which experiment it belongs to, such as `fig2.1a`.
    pub experiment: String,
    /// `channel`, `sockets`, `epoll-shared`, `epoll-reuseport`, `epoll-processes`, `io_uring`,
    /// `nginx` or `memcached`.
    pub server: String,
    /// Back end: `kernel` or `local`.
    pub backend: String,
    /// Which interface of the kernel: `uring` or `epoll`.
    pub driver: String,
    /// What lies between server and load.
    pub link: MeasuredLink,
    /// Where TCP's own loop runs: `kernel`.
    pub placement: String,
    /// Server threads, one core each.
    pub shards: usize,
    /// Transactions after which a connection is closed; none (0 in JSON) if it is kept.
    #[serde(with = "length")]
    pub transactions_per_connection: Option<u64>,
    /// Size of a response (rpc), value (kv) or file (http; the mean where sizes vary), in bytes.
    pub message_bytes: u64,
    /// Connections open at a time.
    pub connections: u64,
    /// Median of the runs.
    pub transactions_per_s: f64,
    /// Busy time of the server's cores per transaction in microseconds; median of the runs.
    pub server_cpu_us_per_transaction: f64,
    /// As the load saw it; each number the median of the runs.
    pub latency_us: Latency,
    /// Who had nothing left to give.
    pub saturated: Saturated,
    /// Number of runs.
    pub runs: usize,
    /// What distinguishes a channel server from the default one, such as `+PB`, `asleep` (between
    /// turns without work) or `one queue` (of the link, for all shards); else empty.
    #[serde(default)]
    pub variant: String,
    /// What is asked for: `rpc`, `kv`, `http-1k`, `http-specweb`, `http-yahoo`, `http-yahoo2`.
    #[serde(default)]
    pub workload: String,
    /// Lowest and highest transactions per second of the runs.
    #[serde(default)]
    pub transactions_per_s_range: [f64; 2],
    /// Lowest and highest CPU microseconds per transaction of the runs.
    #[serde(default)]
    pub server_cpu_us_range: [f64; 2],
    /// Share of their time that the server's cores were idle, 0 to 1; median.
    #[serde(default)]
    pub server_idle_share: f64,
    /// Failed transactions and connections, all runs together.
    #[serde(default)]
    pub errors: u64,
    /// What `server_cpu_us_per_transaction` is made of; medians.
    #[serde(default)]
    pub server_cpu_us: CpuSplit,
    /// Interrupts that the server's cores took from other cores, per transaction; median.
    #[serde(default)]
    pub server_calls_per_transaction: f64,
    /// Threads of the load, one core each.
    #[serde(default)]
    pub load_cores: usize,
    /// Busy time of the load's cores per transaction in microseconds; median of the runs.
    #[serde(default)]
    pub load_cpu_us_per_transaction: f64,
    /// Jain's index of the bytes that each connection received, 1 being fair; null unless
    /// connections are kept. The lowest of the runs.
    #[serde(default)]
    pub fairness: Option<f64>,
    /// Shares of the server's CPU time, where it was profiled; medians.
    #[serde(default)]
    pub cpu_shares: Option<CpuShares>,
    /// How long connecting took, where response times count from the beginning of the handshake;
    /// each number the median of the runs.
    #[serde(default)]
    pub connect_us: Option<Latency>,
    /// How long it took from the request to its answer, in the same runs.
    #[serde(default)]
    pub processing_us: Option<Latency>,
    /// How long the process of a server on our own stack ran for each transaction, in
    /// microseconds; median. Null for servers on the kernel's TCP, part of whose cost is outside.
    #[serde(default)]
    pub server_process_us_per_transaction: Option<f64>,
    /// How long the load's process ran in those runs.
    #[serde(default)]
    pub load_process_us_per_transaction: Option<f64>,
    /// Of a point that was not measured but simulated: from which costs, and what limits it.
    #[serde(default)]
    pub simulated: Option<Simulated>,
    /// Events that a stack with a thread of its own told for each time that it woke the server's;
    /// null where it has none. Median of the runs.
    #[serde(default)]
    pub events_per_wakeup: Option<f64>,
}

/// A simulation with measured costs: `docs/SCALING.md` says of what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// Queues of the link.
    pub queues: usize,
    /// The server's CPU time per transaction on one core, as measured, in microseconds.
    pub measured_server_us: f64,
    /// The load's.
    pub measured_load_us: f64,
    /// CPU time of a frame that one shard reads for another, beyond that of a frame from a queue of
    /// the shard's own, in nanoseconds.
    pub measured_steering_ns: f64,
    /// Share of the time that the server's shards worked, 0 to 1.
    pub server_busy: f64,
    /// Share of the time that the load's cores worked, 0 to 1.
    pub load_busy: f64,
    /// Transactions of the busiest shard over the mean.
    pub imbalance: f64,
    /// Share of the exchanges that one shard read for another.
    pub steered_share: f64,
    /// Share of the shards' time in which they had frames and waited for a queue.
    pub lock_wait_share: f64,
}

/// CPU time in microseconds, by who used it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSplit {
    /// The server's own code.
    pub user: f64,
    /// The kernel, called by the server.
    pub system: f64,
    /// The kernel, called by interrupts: packets as they arrive.
    pub softirq: f64,
}

/// Shares of a server's CPU time, 0 to 1, as mTCP's figure 1 divides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuShares {
    /// The server program.
    pub application: f64,
    /// Between the program and TCP: the channel and the stack's composition.
    pub channel: f64,
    /// TCP/IP, the kernel's or our own.
    pub tcp_ip: f64,
    /// Frames in and out: the device, the link.
    pub packet_io: f64,
    /// The rest of the kernel.
    pub kernel: f64,
}

/// Lengths of connections in JSON: 0 stands for no end.
mod length {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(length: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        length.unwrap_or(0).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        Ok(Some(u64::deserialize(from)?).filter(|&length| length > 0))
    }
}

/// Latency of a transaction in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Maximum.
    pub max: f64,
    /// Minimum.
    #[serde(default)]
    pub min: f64,
    /// Mean.
    #[serde(default)]
    pub mean: f64,
    /// Standard deviation.
    #[serde(default)]
    pub sd: f64,
}

/// Which side was the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Saturated {
    /// The server's cores were busy all the time, the load's were not.
    Server,
    /// The load's cores were busy all the time: the throughput is the load's, the CPU time per
    /// transaction still the server's.
    Load,
    /// Both were.
    Both,
    /// Neither was: latency decides.
    Neither,
}

impl Saturated {
    pub(crate) const fn of(server: bool, load: bool) -> Self {
        match (server, load) {
            (true, false) => Self::Server,
            (false, true) => Self::Load,
            (true, true) => Self::Both,
            (false, false) => Self::Neither,
        }
    }

    /// The word used in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Load => "load",
            Self::Both => "both",
            Self::Neither => "neither",
        }
    }
}

impl Machine {
    /// This machine with `cores` to use, from `/proc`. What cannot be read is "unknown" or 0.
    pub(crate) fn here(cores: usize) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores,
            memory_bytes: field(&meminfo, "MemTotal").map_or(0, kibibytes),
            kernel: kernel.trim().to_owned(),
            megapipe: env!("CARGO_PKG_VERSION").to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            commit: env!("MEGAPIPE_COMMIT").to_owned(),
            cpu_mhz: field(&cpuinfo, "cpu MHz").map_or(0, whole),
            mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
        }
    }
}

/// Which faults the kernel mitigates and which it leaves, from a folder with a file for each.
fn mitigations(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let (mut active, mut open) = (Vec::new(), Vec::new());
    for entry in entries {
        let state = fs::read_to_string(entry.path()).unwrap_or_default();
        let name = entry.file_name().to_string_lossy().into_owned();
        match state.trim() {
            state if state.starts_with("Mitigation") => active.push(name),
            state if state.starts_with("Vulnerable") => open.push(name),
            _ => {}
        }
    }
    active.sort_unstable();
    open.sort_unstable();
    let list = |what: &str, names: &[String]| match names {
        [] => String::new(),
        names => format!("{what}: {}", names.join(", ")),
    };
    let parts = [list("on", &active), list("vulnerable, not mitigated", &open)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The value of the first line `name : value` in a file of `/proc`.
pub(crate) fn field<'text>(text: &'text str, name: &str) -> Option<&'text str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The whole part of a text like `2100.012`.
fn whole(text: &str) -> u64 {
    text.split('.').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Bytes in a text like `1234 kB`.
pub(crate) fn kibibytes(text: &str) -> u64 {
    let number = text.split_ascii_whitespace().next().and_then(|digits| digits.parse().ok());
    number.unwrap_or(0u64) * 1024
}

#[cfg(test)]
mod tests {
    use super::{Machine, Saturated, field, kibibytes, mitigations};

    #[test]
    fn fields_of_proc_files() {
        let text = "MemTotal:       24600000 kB\nmodel name\t: A CPU: fast\n";
        assert_eq!(field(text, "MemTotal").map(kibibytes), Some(24_600_000 * 1024));
        assert_eq!(field(text, "model name"), Some("A CPU: fast"));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(kibibytes("lots"), 0);
    }

    #[test]
    fn this_machine_is_known() {
        let machine = Machine::here(2);
        assert!(machine.cores == 2 && machine.memory_bytes > 0);
        assert!(!machine.kernel.is_empty());
        assert!(machine.date.ends_with('Z') && machine.date.len() == 20, "{}", machine.date);
    }

    #[test]
    fn mitigations_are_listed_by_state() -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("mp-mitigations-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        for (name, state) in [
            ("meltdown", "Mitigation: PTI"),
            ("spectre_v2", "Mitigation: Retpolines"),
            ("mds", "Vulnerable: no microcode"),
            ("srbds", "Not affected"),
        ] {
            std::fs::write(folder.join(name), state)?;
        }
        let text = mitigations(&folder);
        std::fs::remove_dir_all(&folder)?;
        assert_eq!(text, "on: meltdown, spectre_v2; vulnerable, not mitigated: mds");
        assert_eq!(mitigations(&folder), "");
        Ok(())
    }

    #[test]
    fn saturation_names_the_bottleneck() {
        assert_eq!(Saturated::of(true, false).name(), "server");
        assert_eq!(Saturated::of(false, true).name(), "load");
        assert_eq!(Saturated::of(true, true).name(), "both");
        assert_eq!(Saturated::of(false, false).name(), "neither");
    }
}
