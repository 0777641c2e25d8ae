//! Limits of a session, what a session counts, and why one ends.

use std::sync::Arc;
use std::time::Duration;

use crate::acceptor::ManagerId;
use crate::descriptors::{PassedDescriptors, ShareToken};
use crate::limits::{DRAIN_BYTES_DEFAULT, DRAIN_TIME_DEFAULT};
use crate::policy::SessionRights;

/// What a session may have at once; with rights, all lanes of a channel have connections and
/// endpoints together. What exceeds a limit is refused with an error, or waits: a
/// connection that a session has no room for stays in its listener's backlog.
#[derive(Debug, Clone)]
pub struct SessionLimits {
    /// Connections that the application uses. Those that it has accepted in advance count too.
    pub connections: u32,
    /// Of the connections that it has begun, those that are not established.
    pub connecting: u32,
    /// Connections that wait at one of its listeners: a larger backlog is cut to this.
    pub waiting: u32,
    /// Listeners.
    pub listeners: u32,
    /// Endpoints for datagrams.
    pub endpoints: u32,
    /// After its end: time in which its connections send what was handed over.
    pub drain_time: Duration,
    /// After its end: bytes that its connections may still have to send. Connections beyond are
    /// reset.
    pub drain_bytes: u64,
    /// Sessions of one user may listen at one address, if none of them is exclusive there.
    pub user: u32,
    /// Its client reads where a new connection begins, and that bytes of a broken one are left;
    /// `false`: such bytes are dropped.
    pub knows_event_details: bool,
    /// Its client knows that connections which are being opened may be shared; `false`: its tokens
    /// own none, and it adopts none.
    pub shares_connecting: bool,
    /// Name of the session at its holder.
    pub key: u64,
    /// Share of a poll's operations, beside those of the other sessions.
    pub weight: u16,
    /// Ports, and quotas of the session's user. `None`: all ports, and no quotas.
    pub rights: Option<Arc<SessionRights>>,
    /// What its client has passed. `None`: nothing can be passed.
    pub descriptors: Option<Arc<PassedDescriptors>>,
    /// Number of the shard among those that the session has lanes to.
    pub shard: u16,
    /// Every session of the daemon has a lane on each shard, so a listener is exclusive by what
    /// this shard has, and needs no exclusive binding among the shards.
    pub is_on_all_shards: bool,
    /// The connection manager that its acceptors enlist with.
    pub home: ManagerId,
    /// The token by which it was opened: the session may adopt what that one owns.
    pub token: Option<Arc<ShareToken>>,
}

impl SessionLimits {
    /// No limits but those of the shard: for a session that has the shard to itself.
    pub const WHOLE_SHARD: Self = Self {
        connections: u32::MAX,
        connecting: u32::MAX,
        waiting: u32::MAX,
        listeners: u32::MAX,
        endpoints: u32::MAX,
        drain_time: DRAIN_TIME_DEFAULT,
        drain_bytes: DRAIN_BYTES_DEFAULT,
        user: 0,
        knows_event_details: true,
        shares_connecting: true,
        key: 0,
        weight: 1,
        rights: None,
        descriptors: None,
        shard: 0,
        is_on_all_shards: false,
        home: ManagerId(0),
        token: None,
    };
}

/// What a shard counts of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionCounters {
    /// Operations taken.
    pub ops: u64,
    /// Events and answers published.
    pub events: u64,
    /// Names of other sessions' objects in operations.
    pub foreign_names: u64,
    /// Operations that a limit refused.
    pub refused: u64,
    /// Events that waited because the application did not read: the most at once.
    pub parked_max: u32,
    /// Datagrams that were dropped for the same reason.
    pub datagrams_dropped: u64,
    /// CPU time of the shard that is charged to the session, in nanoseconds.
    pub cpu_ns: u64,
}

/// Why the shard ended a session: what no correct application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionFault {
    /// An index of a ring moved where it cannot be.
    #[error("an index of a ring is out of range")]
    Ring,
    /// A record that does not parse.
    #[error("a record is no operation")]
    Record,
    /// A range outside the buffers, or more buffers under way than there are.
    #[error("an operation names a buffer that the application does not have")]
    Buffer,
    /// A call that no correct application makes.
    #[error("an invalid call")]
    Call,
    /// Bytes of a shared connection, or a datagram, that the application never had.
    #[error("an application gives back bytes that it was not given")]
    GivenBack,
    /// More events wait than a quota or its connections allow.
    #[error("events are never read (quotas channel.waiting_events, user.waiting_events)")]
    Unread,
}
