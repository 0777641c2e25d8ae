//! Cores of server and load, and the network between them.
//!
//! The fair layout is a veth pair between two network namespaces, each end's receive processing
//! steered (RPS) to the cores of its own side, so that the server's cores pay for what the server
//! receives and for nothing else. Where that is not allowed, both run on the host's loopback, and
//! the sender's core does part of the receiver's work; every point says which it was.
//!
//! The namespaces are called `mp-bench-srv-PID` and `mp-bench-cli-PID` after the benchmark's
//! process and removed with the layout, or by the keeper (`keeper.rs`) if this process is killed.
//! Those that outlived even that are removed at the next start.

use crate::{
    limits,
    process::{self, ProcessPlace},
};
use megapipe_apps::{serve::CpuList, threads};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOAD_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const PREFIXES: [&str; 2] = ["mp-bench-srv-", "mp-bench-cli-"];
const NETNS_DIRECTORY: &str = "/run/netns";

/// Which link to measure over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkChoice {
    /// veth where that is allowed, else loopback
    #[default]
    Auto,
    /// veth between two namespaces, or an error
    Veth,
    /// The host's loopback interface
    Loopback,
}

/// The link that was measured over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredLink {
    /// A veth pair, receive processing steered to each side's own cores.
    Veth,
    /// The host's loopback: the sender's core does part of the receiver's work.
    Loopback,
    /// Shared memory between two stacks.
    Memif,
    /// A TAP device: the stack on one side, the kernel on the other.
    Tap,
    /// AF_XDP on a veth pair: our own stack on the server's side, the kernel on the load's.
    Xdp,
}

impl MeasuredLink {
    /// The name used in points and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Veth => "veth",
            Self::Loopback => "loopback",
            Self::Memif => "memif",
            Self::Tap => "tap",
            Self::Xdp => "xdp",
        }
    }
}

/// Why there is no layout to measure in.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// A command that sets up namespaces failed.
    #[error("cannot set up network namespaces: `{command}`: {reason}")]
    Namespace {
        /// The command line.
        command: String,
        /// The error output.
        reason: String,
    },
    /// A link of the stack that needs the namespaces of a veth layout.
    #[error("{link} needs network namespaces: --link veth, as root")]
    NoNamespaces {
        /// The link.
        link: &'static str,
    },
    /// Server and load need a core each.
    #[error("{wanted} server cores and one for the load do not fit on {online} cores")]
    TooFewCores {
        /// Requested server cores.
        wanted: usize,
        /// Cores that this process may use.
        online: usize,
    },
    /// Something else that the kernel refused.
    #[error("layout: {0}")]
    System(#[from] io::Error),
}

/// Two sides and a link. Dropping it removes the namespaces.
#[derive(Debug)]
pub(crate) struct BenchLayout {
    pub(crate) link: MeasuredLink,
    /// Why it is not veth, if veth was requested.
    pub(crate) note: Option<String>,
    pub(crate) server: ProcessPlace,
    pub(crate) load: ProcessPlace,
    offloads_load_checksums: AtomicBool,
    _namespaces: Option<Namespaces>,
}

impl BenchLayout {
    /// Of `cpus`, `server_cores` for the server, all others for the load.
    pub(crate) fn new(
        choice: LinkChoice,
        program: &Path,
        cpus: &[usize],
        server_cores: usize,
    ) -> Result<Self, LayoutError> {
        let (server_cpus, load_cpus) = split_cores(cpus, server_cores)?;
        let place = |cpus| ProcessPlace { program: program.to_owned(), netns: None, cpus };
        let (server, load) = (place(server_cpus), place(load_cpus));
        let loopback = |note| Self {
            link: MeasuredLink::Loopback,
            note,
            server: server.clone(),
            load: load.clone(),
            offloads_load_checksums: AtomicBool::new(true),
            _namespaces: None,
        };
        if choice == LinkChoice::Loopback {
            return Ok(loopback(None));
        }
        match Self::veth(server.clone(), load.clone()) {
            Err(error) if choice == LinkChoice::Auto => Ok(loopback(Some(error.to_string()))),
            other => other,
        }
    }

    fn veth(mut server: ProcessPlace, mut load: ProcessPlace) -> Result<Self, LayoutError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LayoutError::Namespace {
                command: "ip netns add".to_owned(),
                reason: "needs root".to_owned(),
            });
        }
        sweep();
        let namespaces = Namespaces(names(std::process::id()));
        let [server_netns, load_netns] = &namespaces.0;
        set_up(server_netns, load_netns, &server.cpus, &load.cpus)?;
        server.netns = Some(Path::new(NETNS_DIRECTORY).join(server_netns));
        load.netns = Some(Path::new(NETNS_DIRECTORY).join(load_netns));
        let offloads_load_checksums = AtomicBool::new(true);
        let namespaces = Some(namespaces);
        Ok(Self {
            link: MeasuredLink::Veth,
            note: None,
            server,
            load,
            offloads_load_checksums,
            _namespaces: namespaces,
        })
    }

    /// Whether the load's kernel leaves transport checksums to the link, which a veth takes as
    /// done. Frames that are read from the veth by AF_XDP need them complete.
    pub(crate) fn offload_load_checksums(&self, offload: bool) -> Result<(), LayoutError> {
        if self.load.netns.is_none() {
            return Ok(());
        }
        if self.offloads_load_checksums.swap(offload, Ordering::Relaxed) == offload {
            return Ok(());
        }
        let switched =
            self.on_load_side(|| megapipe_link::set_transmit_checksums("cli", offload))?;
        Ok(switched.map_err(io::Error::other)?)
    }

    /// A TAP device in the server's namespace, with the kernel's `address` on it. What arrives
    /// there from our stack is handled on the load's cores, as on a veth.
    pub(crate) fn tap(&self, name: &str, address: &str) -> Result<(), LayoutError> {
        let Some(netns) = self.server.netns.as_deref().and_then(Path::file_name) else {
            return Err(LayoutError::NoNamespaces { link: MeasuredLink::Tap.name() });
        };
        let netns = netns.to_string_lossy();
        if ip(&["-n", &netns, "link", "show", "dev", name]).is_ok() {
            return Ok(());
        }
        ip(&["-n", &netns, "tuntap", "add", "dev", name, "mode", "tap", "vnet_hdr"])?;
        ip(&["-n", &netns, "address", "add", address, "dev", name])?;
        ip(&["-n", &netns, "link", "set", name, "up"])?;
        let rps = format!("/sys/class/net/{name}/queues/rx-0/rps_cpus");
        write_in(&netns, &rps, &sysfs_mask(&self.load.cpus))
    }

    /// The address that the server listens on and the load connects to.
    pub(crate) const fn server_address(&self) -> IpAddr {
        match self.link {
            MeasuredLink::Veth => IpAddr::V4(SERVER_ADDRESS),
            _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// Where a server at the load's side listens.
    pub(crate) const fn load_address(&self) -> IpAddr {
        match self.link {
            MeasuredLink::Veth => IpAddr::V4(LOAD_ADDRESS),
            _ => IpAddr::V4(Ipv4Addr::LOCALHOST),
        }
    }

    /// Runs `body` on a thread that has the load's view of the network. Blocks until it is done.
    pub(crate) fn on_load_side<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let on_side = || {
                if let Some(netns) = &self.load.netns {
                    process::enter_netns(netns)?;
                }
                Ok(body())
            };
            let side = threads::spawn_scoped(scope, "load-side", on_side)?;
            side.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The cores that this process may use, in order.
pub(crate) fn online_cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..limits::CPUS_MAX).filter(|&cpu| set.is_set(cpu)).collect())
}

/// The first cores for the server, the rest for the load.
fn split_cores(online: &[usize], server_cores: usize) -> Result<(CpuList, CpuList), LayoutError> {
    if server_cores == 0 || online.len() <= server_cores {
        return Err(LayoutError::TooFewCores { wanted: server_cores, online: online.len() });
    }
    let (server, load) = online.split_at(server_cores);
    Ok((CpuList::from(server.to_vec()), CpuList::from(load.to_vec())))
}

fn names(pid: u32) -> [String; 2] {
    PREFIXES.map(|prefix| format!("{prefix}{pid}"))
}

/// The process of namespace `name`, if this program made it.
fn owner(name: &str) -> Option<u32> {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?.parse().ok()
}

/// Removes the namespaces of benchmarks that no longer exist.
fn sweep() {
    let Ok(entries) = fs::read_dir(NETNS_DIRECTORY) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = owner(&name) else { continue };
        if !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

fn set_up(
    server: &str,
    load: &str,
    server_cpus: &CpuList,
    load_cpus: &CpuList,
) -> Result<(), LayoutError> {
    ip(&["netns", "add", server])?;
    ip(&["netns", "add", load])?;
    ip(&["link", "add", "srv", "netns", server, "type", "veth", "peer", "cli", "netns", load])?;
    let sides =
        [(server, "srv", SERVER_ADDRESS, server_cpus), (load, "cli", LOAD_ADDRESS, load_cpus)];
    for (netns, interface, address, cpus) in sides {
        // No router or address discovery: only the measured traffic is on the link.
        write_in(netns, "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")?;
        ip(&["-n", netns, "address", "add", &format!("{address}/30"), "dev", interface])?;
        ip(&["-n", netns, "link", "set", interface, "up"])?;
        ip(&["-n", netns, "link", "set", "lo", "up"])?;
        let rps = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        write_in(netns, &rps, &sysfs_mask(cpus))?;
    }
    // Short connections need many ports at the same time.
    write_in(load, "/proc/sys/net/ipv4/ip_local_port_range", "2000 65000")
}

/// Writes a kernel setting as a namespace sees it: `ip netns exec` mounts its own `/sys`.
fn write_in(netns: &str, path: &str, value: &str) -> Result<(), LayoutError> {
    let script = format!("echo '{value}' > {path}");
    ip(&["netns", "exec", netns, "sh", "-c", &script])
}

/// The mask as the kernel's sysfs files take it: hexadecimal words of 32 bits, highest first.
fn sysfs_mask(cpus: &CpuList) -> String {
    let words = cpus.as_slice().iter().max().map_or(1, |cpu| cpu / 32 + 1);
    let mut mask = vec![0u32; words];
    for cpu in cpus.as_slice() {
        mask[cpu / 32] |= 1 << (cpu % 32);
    }
    let texts: Vec<String> = mask.iter().rev().map(|word| format!("{word:08x}")).collect();
    texts.join(",")
}

fn ip(args: &[&str]) -> Result<(), LayoutError> {
    let failed =
        |reason| LayoutError::Namespace { command: format!("ip {}", args.join(" ")), reason };
    let program = process::find_program("ip").unwrap_or_else(|| PathBuf::from("ip"));
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Namespaces that are removed on drop; if it never comes to that, by the keeper.
#[derive(Debug)]
struct Namespaces([String; 2]);

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes the resources of `pid`. Missing ones are ignored.
pub(crate) fn remove_namespaces_of(pid: u32) {
    remove(&names(pid));
}

fn remove(names: &[String; 2]) {
    for name in names {
        if Path::new(NETNS_DIRECTORY).join(name).exists() {
            let _ = ip(&["netns", "delete", name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LayoutError, names, owner, split_cores, sysfs_mask};

    #[test]
    fn only_our_own_namespaces_are_recognised() {
        for name in names(123) {
            assert_eq!(owner(&name), Some(123));
        }
        assert_eq!(owner("mp-bench-srv-"), None);
        assert_eq!(owner("mp-bench-srv-12x"), None);
        assert_eq!(owner("mp-load-srv-12"), None);
        assert_eq!(owner("something"), None);
    }

    #[test]
    fn masks_as_sysfs_takes_them() {
        for (cpus, mask) in
            [(vec![0], "00000001"), (vec![1, 3], "0000000a"), (vec![0, 33], "00000002,00000001")]
        {
            assert_eq!(sysfs_mask(&cpus.into()), mask);
        }
    }

    #[test]
    fn the_load_always_has_a_core() {
        let (server, load) = split_cores(&[0, 1, 4, 5], 1).unwrap();
        assert_eq!((server.as_slice(), load.as_slice()), (&[0][..], &[1, 4, 5][..]));
        for wanted in [0, 2, 3] {
            let split = split_cores(&[0, 1], wanted);
            assert!(matches!(split, Err(LayoutError::TooFewCores { online: 2, .. })));
        }
    }
}
