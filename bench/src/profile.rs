//! CPU time of a server by component, as in mTCP's figure 1: perf samples the server's cores
//! while they are measured, and each sample counts for the part that its symbol belongs to.
//!
//! Read first: [MT 2.1, figures 1 and 2].
//!
//! What it cannot see: code that the compiler inlined counts for the function that it was put
//! into, and where the kernel runs with interrupts off a sample by the clock falls to the end of
//! that stretch. The division is a picture, not a bill.
//!
//! Invariants
//! - Idle time is not counted.
//! - Other processes on the server's cores are not counted, except the kernel's TCP/IP and packet
//!   I/O: softirqs run in the context of the process that they interrupt.

use crate::{limits, point::CpuShares, process::ChildProcess};
use megapipe_apps::serve::CpuList;
use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// A profile that is being taken.
#[derive(Debug)]
pub(crate) struct Profile {
    process: ChildProcess,
    data: PathBuf,
    server: u32,
}

/// What a symbol belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SymbolGroup {
    Application,
    Channel,
    TcpIp,
    PacketIo,
    Kernel,
    Idle,
}

impl Profile {
    /// Begins to sample `cpus` for `length`, for the process `server` and those that it started.
    /// Needs root, as sampling cores does.
    pub(crate) fn start(
        (cpus, server): (&CpuList, u32),
        length: Duration,
        scratch: &Path,
    ) -> io::Result<Self> {
        let data = scratch.join("perf.data");
        let mut command = Command::new("perf");
        command
            .args(["record", "--quiet", "--event", "cpu-clock", "--output"])
            .arg(&data)
            .args(["--freq", &limits::PROFILE_HZ.to_string(), "--cpu", &cpus.to_string()])
            .args(["--", "sleep", &length.as_secs_f64().to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self { process: ChildProcess::start(&mut command)?, data, server })
    }

    /// Waits for the end and sums up; none if there are no samples. Blocks. The server still runs.
    pub(crate) fn finish(self) -> io::Result<Option<CpuShares>> {
        let servers = family(self.server)?;
        self.process.output_within(limits::PROFILE_MAX)?;
        let mut command = Command::new("perf");
        command
            .args(["report", "--stdio", "--no-children", "--sort", "pid,dso,sym"])
            .args(["--fields", "sample,pid,dso,sym", "--field-separator", "|", "--input"])
            .arg(&self.data)
            .stdin(Stdio::null());
        let report = command.output()?;
        Ok(shares(&String::from_utf8_lossy(&report.stdout), &servers))
    }
}

/// The threads of a process and of all that it started and those did, as `/proc` has them now.
fn family(pid: u32) -> io::Result<HashSet<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(child) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // Skips processes that have ended.
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        // proc_pid_stat(5): the name may contain anything; the parent is the second field after it.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        parents.extend(parent.and_then(|it| it.parse::<u32>().ok()).map(|parent| (child, parent)));
    }
    let mut family = HashSet::from([pid]);
    loop {
        let known = family.len();
        let children = parents.iter().filter(|(_, parent)| family.contains(parent));
        let children: Vec<u32> = children.map(|(child, _)| *child).collect();
        family.extend(children);
        if family.len() == known {
            break;
        }
    }
    let threads = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = family.iter().filter_map(|pid| threads(pid).ok()).flatten();
    let names = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

/// The shares of a report with lines `samples|thread:name|object|[k] symbol`; none without samples.
/// (perf calls the column `pid`.)
fn shares(report: &str, servers: &HashSet<u32>) -> Option<CpuShares> {
    let mut sums = CpuShares::default();
    let mut all = 0.0;
    for line in report.lines().filter(|line| !line.starts_with('#')) {
        let mut fields = line.splitn(4, '|').map(str::trim);
        let (Some(count), Some(thread), Some(object), Some(symbol)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let Ok(count) = count.parse::<f64>() else { continue };
        let thread = thread.split_once(':').and_then(|(number, _)| number.trim().parse().ok());
        let is_servers = thread.is_some_and(|number| servers.contains(&number));
        let sum = match part_of(object, symbol) {
            SymbolGroup::TcpIp if is_servers || is_kernels(object, symbol) => &mut sums.tcp_ip,
            SymbolGroup::PacketIo if is_servers || is_kernels(object, symbol) => {
                &mut sums.packet_io
            }
            SymbolGroup::Application if is_servers => &mut sums.application,
            SymbolGroup::Channel if is_servers => &mut sums.channel,
            SymbolGroup::Kernel if is_servers => &mut sums.kernel,
            _ => continue,
        };
        *sum += count;
        all += count;
    }
    let each = |sum: f64| sum / all;
    (all > 0.0).then(|| CpuShares {
        application: each(sums.application),
        channel: each(sums.channel),
        tcp_ip: each(sums.tcp_ip),
        packet_io: each(sums.packet_io),
        kernel: each(sums.kernel),
    })
}

/// Beginnings of the names of the kernel's functions, by part; the first that fits counts.
const KERNEL_PARTS: [(SymbolGroup, &[&str]); 3] = [
    (
        SymbolGroup::Idle,
        &[
            "default_idle",
            "native_safe_halt",
            "cpuidle",
            "pv_native_safe_halt",
            "do_idle",
            "poll_idle",
            "acpi_idle",
            "intel_idle",
            "arch_cpu_idle",
            "io_idle",
            "cpu_startup_entry",
        ],
    ),
    (
        SymbolGroup::TcpIp,
        &[
            "tcp_",
            "__tcp_",
            "ip_",
            "__ip_",
            "inet_",
            "__inet_",
            "inet6_",
            "ip6_",
            "ipv6_",
            "ipv4_",
            "fib_",
            "rt_",
            "udp_",
            "sock_",
            "sk_",
            "__sk_",
            "lock_sock",
            "release_sock",
            "reqsk_",
            "bictcp_",
            "cubictcp_",
            "dst_",
            "secure_",
            "csum_",
            "__csum",
        ],
    ),
    (
        SymbolGroup::PacketIo,
        &[
            "netif_",
            "__netif_",
            "net_rx",
            "net_tx",
            "napi_",
            "__napi_",
            "veth_",
            "dev_",
            "__dev_",
            "xdp_",
            "xsk_",
            "__xsk",
            "tun_",
            "eth_",
            "skb_",
            "__skb_",
            "__alloc_skb",
            "kfree_skb",
            "consume_skb",
            "validate_xmit",
            "sch_",
            "process_backlog",
            "enqueue_to_backlog",
            "get_rps_cpu",
            "bpf_prog",
            "neigh_",
            "__build_skb",
            "build_skb",
        ],
    ),
];

fn is_kernels(object: &str, symbol: &str) -> bool {
    symbol.starts_with("[k]") || object.starts_with("[kernel")
}

fn part_of(object: &str, symbol: &str) -> SymbolGroup {
    let (_, name) = symbol.split_at(symbol.find(']').map_or(0, |at| at + 1));
    let name = name.trim();
    if is_kernels(object, symbol) {
        let fits =
            |(_, starts): &&(SymbolGroup, &[&str])| starts.iter().any(|it| name.starts_with(it));
        return KERNEL_PARTS.iter().find(fits).map_or(SymbolGroup::Kernel, |(part, _)| *part);
    }
    // Generic code of the standard library counts for the crate whose types it was made for.
    let crates = [
        ("megapipe_stack", SymbolGroup::TcpIp),
        ("megapipe_link", SymbolGroup::PacketIo),
        ("megapipe_shm", SymbolGroup::PacketIo),
        ("megapipe_service", SymbolGroup::Channel),
        ("megapipe_apps", SymbolGroup::Application),
        ("megapipe::", SymbolGroup::Channel),
    ];
    let fits = |(prefix, _): &&(&str, SymbolGroup)| name.contains(prefix);
    crates.iter().find(fits).map_or(SymbolGroup::Application, |(_, part)| *part)
}

#[cfg(test)]
mod tests {
    use super::{SymbolGroup, family, part_of, shares};
    use std::collections::HashSet;

    #[test]
    fn symbols_belong_to_parts() {
        let cases = [
            ("megapipe", "[.] megapipe_stack::tcp::output::transmit", SymbolGroup::TcpIp),
            (
                "megapipe",
                "[.] <megapipe_link::memif::Memif as Link>::rx_burst",
                SymbolGroup::PacketIo,
            ),
            ("megapipe", "[.] megapipe::dispatch::Channel::dispatch", SymbolGroup::Channel),
            ("megapipe", "[.] megapipe_apps::http::shard::on_bytes", SymbolGroup::Application),
            ("nginx", "[.] ngx_http_parse_request_line", SymbolGroup::Application),
            ("libc.so.6", "[.] memcpy", SymbolGroup::Application),
            ("[kernel.kallsyms]", "[k] tcp_v4_rcv", SymbolGroup::TcpIp),
            ("[kernel.kallsyms]", "[k] veth_xmit", SymbolGroup::PacketIo),
            ("[kernel.kallsyms]", "[k] entry_SYSCALL_64", SymbolGroup::Kernel),
            ("[kernel.kallsyms]", "[k] default_idle", SymbolGroup::Idle),
            ("[veth]", "[k] veth_poll", SymbolGroup::PacketIo),
        ];
        for (object, symbol, part) in cases {
            assert_eq!(part_of(object, symbol), part, "{object} {symbol}");
        }
    }

    #[test]
    fn shares_leave_idle_time_out_and_add_up() {
        let report = "# comment\n\n   30| 7:nginx|nginx|[.] ngx_x\n\
            50|   7:nginx|[kernel.kallsyms]|[k] tcp_ack\n\
            20|7:nginx|[kernel.kallsyms]|[k] do_syscall_64\n\
            900|0:swapper|[kernel.kallsyms]|[k] default_idle\n";
        let shares = shares(report, &HashSet::from([7])).expect("samples");
        assert!((shares.application - 0.3).abs() < 1e-9 && (shares.tcp_ip - 0.5).abs() < 1e-9);
        assert!((shares.kernel - 0.2).abs() < 1e-9);
        assert!(shares.packet_io.abs() < 1e-9 && shares.channel.abs() < 1e-9);
    }

    #[test]
    fn nothing_sampled_has_no_shares() {
        let servers = HashSet::from([7]);
        assert_eq!(shares("", &servers), None);
        let idle = "# no samples\n 12|0:swapper|[kernel.kallsyms]|[k] default_idle\n";
        assert_eq!(shares(idle, &servers), None);
    }

    #[test]
    fn other_work_on_server_cores_counts_as_softirq() {
        let report = "10|7:nginx|nginx|[.] ngx_x\n 500|8:cc1|cc1|[.] parse\n\
            30|8:cc1|[kernel.kallsyms]|[k] tcp_v4_rcv\n 90|8:cc1|[kernel.kallsyms]|[k] do_fault\n\
            70|9:megapipe|megapipe|[.] megapipe_stack::tcp::x\n";
        let shares = shares(report, &HashSet::from([7])).expect("samples");
        assert!((shares.application - 0.25).abs() < 1e-9 && (shares.tcp_ip - 0.75).abs() < 1e-9);
    }

    #[test]
    fn a_family_is_the_threads_of_a_process_and_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let ours = family(std::process::id()).unwrap();
        let theirs = family(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(ours.contains(&std::process::id()) && ours.contains(&child.id()), "{ours:?}");
        let this = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(ours.contains(&this), "{ours:?}");
        assert_eq!(theirs, HashSet::from([child.id()]));
    }
}
