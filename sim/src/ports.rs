//! Which ports a host's connections may have taken, as far as its application can know: for each
//! peer, those of open connections and of those that ended a short while ago (TIME-WAIT, RFC 9293
//! §3.3.2).
//!
//! Invariant: a count here is never smaller than what the stack has a reason to keep.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_stack::Instant;

use crate::hands::Hands;
use crate::scenario::Scenario;

/// The ports of the connections that one application began.
pub(crate) struct ConnectionPorts {
    /// How many there are; `None`: more than any world uses.
    count: Option<usize>,
    /// How long one is kept after its connection.
    kept: Duration,
    open: BTreeMap<u32, SocketAddr>,
    /// When each is free again.
    ended: Vec<(Instant, SocketAddr)>,
    /// How often none was free.
    pub(crate) waits: u64,
}

impl ConnectionPorts {
    pub(crate) fn new(scenario: &Scenario, host: usize) -> Self {
        let count = scenario.client_ports.map(|(first, last)| usize::from(last - first) + 1);
        // A FIN that the peer sends again begins the wait again.
        let kept = scenario.tcp[host].msl * 2 + Duration::from_secs(60);
        Self { count, kept, open: BTreeMap::new(), ended: Vec::new(), waits: 0 }
    }

    /// A connection took one.
    pub(crate) fn begin(&mut self, conn: u32, remote: SocketAddr) {
        if self.count.is_some() {
            self.open.insert(conn, remote);
        }
    }

    /// A connection is over.
    pub(crate) fn end(&mut self, conn: u32, now: Instant) {
        if let Some(remote) = self.open.remove(&conn) {
            self.ended.push((now + self.kept, remote));
        }
    }

    /// Whether all may be taken by connections to `remote`.
    pub(crate) fn may_be_taken(&mut self, hands: &Hands<'_>, remote: SocketAddr) -> bool {
        self.ended.retain(|(until, _)| *until > hands.now);
        let open = self.open.values().filter(|other| **other == remote).count();
        let ended = self.ended.iter().filter(|(_, other)| *other == remote).count();
        self.waits += 1;
        self.count.is_some_and(|count| open + ended >= count)
    }
}
