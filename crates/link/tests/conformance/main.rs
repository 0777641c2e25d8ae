//! Every driver of this crate against the one suite, and what some of them promise beyond it.

mod counting;
mod hosts;
mod memif;
mod netlink;
mod offload;
mod packet;
mod pair;
mod tap;
mod veth;
mod wire;
mod wrappers;
mod xdp;
