//! Parts of a host that its program works on: stack and memory.

use std::net::SocketAddr;

use megapipe_stack::{HeapMemory, Instant, Stack};

/// Buffers of a host.
pub(crate) const BUFFERS: u32 = 8_192;

/// What the hands of a program work on.
pub(crate) struct Hands<'a> {
    pub(crate) now: Instant,
    pub(crate) stack: &'a mut Stack,
    pub(crate) memory: &'a mut HeapMemory,
    /// Whether what a peer sends to an address of ours arrives at this stack.
    pub(crate) arrives: &'a dyn Fn(SocketAddr, SocketAddr) -> bool,
}
