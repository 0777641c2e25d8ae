//! Servers on our own stack: the links they are measured over, and the options for either side.
//!
//! | link | server | load |
//! |---|---|---|
//! | memif | our stack | our stack, in another process, over shared memory |
//! | xdp | our stack on the veth's server side, by AF_XDP | the kernel's TCP |
//! | tap | our stack behind a TAP device with offloads | the kernel's TCP, in the same namespace |
//!
//! memif needs neither root nor namespaces; the others need both, which the veth layout has.

use crate::{
    layout::{Layout, LayoutError, Link},
    process::Place,
};
use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

/// Our stack's address where the link is its own.
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The other end's.
const LOAD_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Bits of the prefix that both ends share.
const PREFIX_BITS: u8 = 24;
/// The interface behind which the stack is, in the server's namespace.
const TAP: &str = "stack";

/// A link under our own stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StackLink {
    Memif,
    Tap,
    Xdp,
}

impl StackLink {
    pub(crate) const fn name(self) -> &'static str {
        self.link().name()
    }

    /// `link` in points.
    pub(crate) const fn link(self) -> Link {
        match self {
            Self::Memif => Link::Memif,
            Self::Tap => Link::Tap,
            Self::Xdp => Link::Xdp,
        }
    }

    /// Why nothing can be measured over this link here, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let needs_root = self != Self::Memif && !rustix::process::geteuid().is_root();
        needs_root.then(|| format!("{} needs root", self.name()))
    }

    /// Prepares what must be there before the server starts.
    ///
    /// # Errors
    /// [`LayoutError`]: there is no namespace to put it in, or the device cannot be made.
    pub(crate) fn prepare(self, layout: &Layout) -> Result<(), LayoutError> {
        match self {
            Self::Memif => Ok(()),
            Self::Xdp if layout.link == Link::Veth => Ok(()),
            Self::Tap if layout.link == Link::Veth => {
                layout.tap(TAP, &format!("{LOAD_ADDRESS}/{PREFIX_BITS}"))
            }
            Self::Xdp | Self::Tap => Err(LayoutError::NoNamespaces { link: self.name() }),
        }
    }

    /// Where the server listens.
    pub(crate) const fn server_address(self, layout: &Layout) -> IpAddr {
        match self {
            Self::Memif | Self::Tap => IpAddr::V4(SERVER_ADDRESS),
            Self::Xdp => layout.server_address(),
        }
    }

    /// The server's options, beside where it listens.
    pub(crate) fn server_args(self, layout: &Layout, scratch: &Path) -> Vec<String> {
        match self {
            Self::Memif => {
                let link = format!("{},role=server", Memif(scratch));
                options(&link, self.server_address(layout))
            }
            Self::Tap => sleepy(options(&format!("tap:{TAP}"), self.server_address(layout))),
            Self::Xdp => sleepy(options("xdp:srv", self.server_address(layout))),
        }
    }

    /// The load's options, beside whom it asks; none if it is on the kernel's TCP.
    pub(crate) fn load_args(self, scratch: &Path) -> Vec<String> {
        match self {
            Self::Memif => options(&format!("{},role=client", Memif(scratch)), LOAD_ADDRESS.into()),
            Self::Tap | Self::Xdp => Vec::new(),
        }
    }

    /// Where the load runs: on its own cores, and where it reaches the server.
    pub(crate) fn load_place(self, layout: &Layout) -> Place {
        let netns = match self {
            Self::Tap => layout.server.netns.clone(),
            Self::Memif | Self::Xdp => layout.load.netns.clone(),
        };
        Place { netns, ..layout.load.clone() }
    }
}

/// `count` more addresses of the load's end, for more connections than one has ports.
pub(crate) fn more_load_addresses(count: u8) -> impl Iterator<Item = Ipv4Addr> {
    let [a, b, c, d] = LOAD_ADDRESS.octets();
    (1..=count).map(move |more| Ipv4Addr::new(a, b, c, d + more))
}

/// The socket that both ends of a memif know.
struct Memif<'path>(&'path Path);

impl fmt::Display for Memif<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memif:{}", self.0.join("memif.sock").display())
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

/// A link was asked for that the layout does not have.
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
    use super::StackLink;
    use std::path::Path;

    #[test]
    fn both_ends_of_a_memif_name_the_same_socket() {
        let socket = "memif:/scratch/memif.sock";
        let load = StackLink::Memif.load_args(Path::new("/scratch"));
        assert!(load.contains(&format!("{socket},role=client")));
        assert!(load.contains(&"198.51.100.2/24".to_owned()));
        assert!(StackLink::Tap.load_args(Path::new("/scratch")).is_empty());
    }
}
