//! What a daemon answers to `ss` and `explain`: entries, queries, and answers in pages.
//!
//! A process connects to the control socket and sends a QUERY in place of a HELLO. The answer is
//! one page; the next query names where the page ended. A listing over several pages is no
//! snapshot: what exists throughout is listed once.
//!
//! Pure: the sockets are in `attach/`, and what a shard reads of its tables for a page is in
//! `remote/shard/observe.rs`.

mod entries;
mod query;
mod wire;

pub use crate::balancer::PickReason;
pub use entries::{
    ManagedAcceptor, ManagedListener, ManagerOffer, QuotaUse, ServiceAcceptor, ServiceDaemon,
    ServiceHandOver, ServiceLinkServer, ServiceListener, ServiceManager, ServiceNetworks,
    ServicePick, ServiceSession, ServiceShard, ServiceSocket, ServiceUser, SessionUse, SocketState,
    SocketTimer, SocketTimerKind,
};
pub(crate) use query::is_query;
pub use query::{AnswerBody, AnswerPage, QUERY_VERSIONS, QuerySubject, ServiceQuery};

/// The process that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewer {
    /// Its effective user.
    pub uid: u32,
    /// It is root or the daemon's own user, and sees what belongs to any user or to none.
    pub sees_all: bool,
}

impl Viewer {
    /// Whether it sees what belongs to a user.
    #[must_use]
    pub fn sees(&self, owner: Option<u32>) -> bool {
        self.sees_all || owner == Some(self.uid)
    }
}
