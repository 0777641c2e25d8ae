//! Names of `--link`: those of the kernel's layouts and those of our own stack's links.

use crate::{layout::LinkChoice, stack_link::StackLink};

/// A link by the name that the command line uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LinkName {
    /// The kernel's TCP over veth where that is allowed, else over loopback
    Auto,
    /// The kernel's TCP over veth between two namespaces, or an error
    Veth,
    /// The kernel's TCP over the host's loopback interface
    Loopback,
    /// Our own stack at both ends of shared memory
    Memif,
    /// Our own stack behind a TAP device, the kernel's TCP before it
    Tap,
    /// Our own stack by AF_XDP on a veth, the kernel's TCP at the other end
    Xdp,
}

impl LinkName {
    /// A note about the layout that both back ends share, if any.
    pub(crate) const fn layout(self) -> Option<LinkChoice> {
        match self {
            Self::Auto => Some(LinkChoice::Auto),
            Self::Veth => Some(LinkChoice::Veth),
            Self::Loopback => Some(LinkChoice::Loopback),
            Self::Memif | Self::Tap | Self::Xdp => None,
        }
    }

    /// As `--link` has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Veth => "veth",
            Self::Loopback => "loopback",
            Self::Memif => "memif",
            Self::Tap => "tap",
            Self::Xdp => "xdp",
        }
    }

    /// The link of the stack that it names, if any.
    pub(crate) const fn stack(self) -> Option<StackLink> {
        match self {
            Self::Memif => Some(StackLink::Memif),
            Self::Tap => Some(StackLink::Tap),
            Self::Xdp => Some(StackLink::Xdp),
            Self::Auto | Self::Veth | Self::Loopback => None,
        }
    }
}
