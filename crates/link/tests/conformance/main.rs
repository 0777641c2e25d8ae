//! Every driver of this crate against the one suite.

mod counting;
mod memif;
mod pair;
mod tap;
mod wire;
mod wrappers;
