//! Anything on the network: a host with the real stack, with sockets above it, or a foreign one.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::{ConnInfo, Drop, Instant};

use crate::check::Violation;

/// Puts a frame on the wire.
pub(crate) type Send<'a> = dyn FnMut(&[u8]) -> Result<(), Violation> + 'a;

/// What a node has counted since it came up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeCounts {
    /// Connections that came to their end.
    pub(crate) connections: u64,
    /// Connections among these that broke.
    pub(crate) broken: u64,
    /// Exchanges of datagrams that came to their end.
    pub(crate) datagrams: u64,
    /// Attempts to begin a connection that found no free port.
    pub(crate) waits_for_port: u64,
    /// Frames that were read by another shard than theirs.
    pub(crate) steered: u64,
    /// Frames that a shard passed on to the one that had their flow before.
    pub(crate) passed_on: u64,
}

/// A host, as the world's loop sees it. All times are the world's.
pub(crate) trait SimNode {
    /// The world begins.
    ///
    /// # Errors
    /// Something could not be begun.
    fn start(&mut self, now: Instant) -> Result<(), Violation>;

    /// A wake-up that it asked for is there, or the world begins.
    ///
    /// # Errors
    /// Something could not be begun.
    fn wake(&mut self, _: Instant) -> Result<(), Violation> {
        Ok(())
    }

    /// A frame arrives.
    fn on_frame(&mut self, now: Instant, frame: &[u8]);

    /// Does what is due, and sends what there is.
    ///
    /// # Errors
    /// What did not hold.
    fn run(&mut self, now: Instant, send: &mut Send<'_>) -> Result<(), Violation>;

    /// When it wants to run next; `None`: when a frame arrives.
    fn next_wake(&mut self) -> Option<Instant>;

    /// Nothing is open and nothing is left to begin.
    fn is_done(&self) -> bool;

    /// How many connections are open.
    fn open(&self) -> usize;

    /// It waits for nothing although it has bytes to send, by a known mistake of its own.
    fn has_given_up(&mut self) -> bool {
        false
    }

    /// Everything is over, here and elsewhere: servers end.
    fn finish(&mut self) {}

    /// Everything was given back.
    ///
    /// # Errors
    /// What was not.
    fn check_nothing_leaked(&self, host: usize) -> Result<(), Violation>;

    /// What it has counted.
    fn counts(&self) -> NodeCounts;

    /// Bytes received on all open connections, by stream.
    fn received(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Peers whose link-layer address was not found since the last call.
    fn take_unresolved(&mut self) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Returns a connection by its ends, if this is a host of our stack alone: for the attacker.
    fn connection(&self, _local: SocketAddr, _remote: SocketAddr) -> Option<ConnInfo> {
        None
    }

    /// Returns how many frames were dropped for a reason, and how many connections were reset by a
    /// peer, if this is a host of our stack alone: for the attacker.
    fn dropped(&self, _: Drop) -> Option<(u64, u64)> {
        None
    }
}
