//! Links of servers on the stack, and the options of both sides.
//!
//! | link | server | load |
//! |---|---|---|
//! | memif | our stack | our stack, in another process, over shared memory |
//! | xdp | our stack on the veth's server side, by AF_XDP | the kernel's TCP |
//! | tap | our stack behind a TAP device with offloads | the kernel's TCP, in the same namespace |
//!
//! memif needs neither root nor namespaces; the others need both, which the veth layout has.
//!
//! Over a memif a server has a queue for each of its shards, and both ends know the key by which
//! flows are spread: where the load has as many threads, nothing has to be steered.

use crate::{
    layout::{BenchLayout, LayoutError, MeasuredLink},
    process::ProcessPlace,
};
use megapipe_apps::backend::PlacementName;
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

/// Our stack's address where the link is its own.
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The other end's.
const LOAD_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Bits of the prefix that both ends share.
const PREFIX_BITS: u8 = 24;
/// What both ends make their hash from where there are several queues.
const STEER_KEY: &str = "bench";
/// The interface behind which the stack is, in the server's namespace.
const TAP: &str = "stack";

/// A link of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StackLink {
    Memif,
    /// A memif of which one side sleeps whenever it has nothing to do, so that the time that its
    /// core was busy is what it cost. The other side pays for waking it.
    MemifAsleep(LinkSide),
    Tap,
    Xdp,
}

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LinkSide {
    Server,
    Load,
}

/// Placement of the stack other than `inline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StackPlacement {
    /// On a second thread on the same core.
    Thread,
    /// On its own core.
    Core,
    /// In a daemon.
    Service,
}

impl StackPlacement {
    /// The one that the command line names; none inside the channel's dispatch.
    pub(crate) const fn named(name: PlacementName) -> Option<Self> {
        match name {
            PlacementName::Inline => None,
            PlacementName::Thread => Some(Self::Thread),
            PlacementName::Core => Some(Self::Core),
        }
    }

    /// As `--placement` and points have it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::Core => "core",
            Self::Service => "service",
        }
    }
}

impl StackLink {
    pub(crate) const fn name(self) -> &'static str {
        self.link().name()
    }

    /// `link` in points.
    pub(crate) const fn link(self) -> MeasuredLink {
        match self {
            Self::Memif | Self::MemifAsleep(_) => MeasuredLink::Memif,
            Self::Tap => MeasuredLink::Tap,
            Self::Xdp => MeasuredLink::Xdp,
        }
    }

    /// `variant` in points.
    pub(crate) const fn variant(self) -> &'static str {
        match self {
            Self::MemifAsleep(LinkSide::Server) => "asleep",
            Self::MemifAsleep(LinkSide::Load) => "load asleep",
            _ => "",
        }
    }

    pub(crate) const fn is_memif(self) -> bool {
        matches!(self, Self::Memif | Self::MemifAsleep(_))
    }

    /// Why nothing can be measured over this link here, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let needs_root = !self.is_memif() && !rustix::process::geteuid().is_root();
        needs_root.then(|| format!("{} needs root", self.name()))
    }

    /// Prepares what must be there before the server starts.
    ///
    /// # Errors
    /// [`LayoutError`]: there is no namespace to put it in, or the device cannot be made.
    pub(crate) fn prepare(self, layout: &BenchLayout) -> Result<(), LayoutError> {
        match self {
            Self::Memif | Self::MemifAsleep(_) => Ok(()),
            Self::Xdp if layout.link == MeasuredLink::Veth => Ok(()),
            Self::Tap if layout.link == MeasuredLink::Veth => {
                layout.tap(TAP, &format!("{LOAD_ADDRESS}/{PREFIX_BITS}"))
            }
            Self::Xdp | Self::Tap => Err(LayoutError::NoNamespaces { link: self.name() }),
        }
    }

    /// Where the server listens.
    pub(crate) const fn server_address(self, layout: &BenchLayout) -> IpAddr {
        match self {
            Self::Memif | Self::MemifAsleep(_) | Self::Tap => IpAddr::V4(SERVER_ADDRESS),
            Self::Xdp => layout.server_address(),
        }
    }

    /// The server's options, except its address.
    pub(crate) fn server_args(self, layout: &BenchLayout, scratch: &Path) -> Vec<String> {
        match self {
            Self::Memif | Self::MemifAsleep(_) => {
                let end = MemifEnd { scratch, queues: queues(layout), role: "server" };
                self.rested(LinkSide::Server, end.options(self.server_address(layout)))
            }
            Self::Tap => sleepy(options(&format!("tap:{TAP}"), self.server_address(layout))),
            Self::Xdp => sleepy(options("xdp:srv", self.server_address(layout))),
        }
    }

    /// The options of a daemon at one end of this link: a program's there, but for the back end.
    pub(crate) fn daemon_args(
        self,
        side: LinkSide,
        layout: &BenchLayout,
        scratch: &Path,
    ) -> Vec<String> {
        let mut args = match side {
            LinkSide::Server => self.server_args(layout, scratch),
            LinkSide::Load => self.load_args(layout, scratch),
        };
        if let Some(place) = args.iter().position(|arg| arg == "--backend") {
            args.drain(place..place + 2);
        }
        args
    }

    /// The load's options, except the server's address; `None` if it is on the kernel's TCP.
    pub(crate) fn load_args(self, layout: &BenchLayout, scratch: &Path) -> Vec<String> {
        match self {
            Self::Memif | Self::MemifAsleep(_) => {
                let end = MemifEnd { scratch, queues: queues(layout), role: "client" };
                self.rested(LinkSide::Load, end.options(LOAD_ADDRESS.into()))
            }
            Self::Tap | Self::Xdp => Vec::new(),
        }
    }

    /// Where the load runs: on its own cores, and where it reaches the server.
    pub(crate) fn load_place(self, layout: &BenchLayout) -> ProcessPlace {
        let netns = match self {
            Self::Tap => layout.server.netns.clone(),
            Self::Memif | Self::MemifAsleep(_) | Self::Xdp => layout.load.netns.clone(),
        };
        ProcessPlace { netns, ..layout.load.clone() }
    }

    /// The load's end of a memif, for a peer in this process: link, address and prefix.
    pub(crate) fn memif_peer(layout: &BenchLayout, scratch: &Path) -> (String, IpAddr, u8) {
        let end = MemifEnd { scratch, queues: queues(layout), role: "client" };
        (end.link(), LOAD_ADDRESS.into(), PREFIX_BITS)
    }

    /// With the option to sleep, if it is to.
    fn rested(self, side: LinkSide, args: Vec<String>) -> Vec<String> {
        if self == Self::MemifAsleep(side) { sleepy(args) } else { args }
    }
}

/// One for each of the server's shards.
fn queues(layout: &BenchLayout) -> usize {
    layout.server.cpus.as_slice().len()
}

/// `count` more addresses of the load's end, for more connections than one has ports.
pub(crate) fn more_load_addresses(count: u8) -> impl Iterator<Item = Ipv4Addr> {
    let [a, b, c, d] = LOAD_ADDRESS.octets();
    (1..=count).map(move |more| Ipv4Addr::new(a, b, c, d + more))
}

/// One end of a memif, by the socket that both ends know.
struct MemifEnd<'path> {
    scratch: &'path Path,
    queues: usize,
    role: &'static str,
}

impl MemifEnd<'_> {
    /// Returns the command-line options for one end of the link.
    fn options(&self, address: IpAddr) -> Vec<String> {
        let mut args = options(&self.link(), address);
        if self.queues > 1 {
            args.extend(["--steer-key", STEER_KEY].map(str::to_owned));
        }
        args
    }

    /// As links are written.
    fn link(&self) -> String {
        let Self { scratch, queues, role } = self;
        let socket = scratch.join("memif.sock");
        let link = format!("memif:{},role={role}", socket.display());
        if *queues > 1 { format!("{link},queues={queues}") } else { link }
    }
}

/// Sleeps whenever nothing is to be done, as servers on the kernel's TCP do, so that what its core
/// was busy is what it cost.
fn sleepy(mut args: Vec<String>) -> Vec<String> {
    args.extend(["--spin", "0"].map(str::to_owned));
    args
}

fn options(link: &str, address: IpAddr) -> Vec<String> {
    let address = format!("{address}/{PREFIX_BITS}");
    ["--backend", "local", "--link", link, "--address", &address].map(str::to_owned).to_vec()
}

/// The layout does not have the requested link.
impl From<LayoutError> for io::Error {
    fn from(error: LayoutError) -> Self {
        match error {
            LayoutError::System(error) => error,
            other => Self::other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LinkSide, StackLink};
    use crate::layout::{BenchLayout, LinkChoice};
    use std::path::Path;

    fn layout(server_cores: usize) -> BenchLayout {
        let cpus: Vec<usize> = (0..server_cores * 2).collect();
        BenchLayout::new(LinkChoice::Loopback, Path::new("megapipe"), &cpus, server_cores).unwrap()
    }

    #[test]
    fn both_ends_of_a_memif_name_the_same_socket() {
        let (socket, one, scratch) =
            ("memif:/scratch/memif.sock", layout(1), Path::new("/scratch"));
        let load = StackLink::Memif.load_args(&one, scratch);
        assert!(load.contains(&format!("{socket},role=client")));
        assert!(load.contains(&"198.51.100.2/24".to_owned()));
        let server = StackLink::Memif.server_args(&one, scratch);
        assert!(server.contains(&format!("{socket},role=server")));
        assert!(!server.contains(&"--spin".to_owned()));
        let asleep = StackLink::MemifAsleep(LinkSide::Server);
        assert!(asleep.server_args(&one, scratch).contains(&"--spin".to_owned()));
        assert!(!asleep.load_args(&one, scratch).contains(&"--spin".to_owned()));
        assert!(StackLink::Tap.load_args(&one, scratch).is_empty());
    }

    #[test]
    fn shards_have_a_queue_each_and_both_ends_the_same_key() {
        let (two, scratch) = (layout(2), Path::new("/scratch"));
        for args in
            [StackLink::Memif.load_args(&two, scratch), StackLink::Memif.server_args(&two, scratch)]
        {
            assert!(args.iter().any(|arg| arg.ends_with(",queues=2")), "{args:?}");
            let key = args.iter().position(|arg| arg == "--steer-key").unwrap();
            assert_eq!(args[key + 1], "bench");
        }
    }
}
