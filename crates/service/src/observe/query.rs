//! QUERY and ANSWER, the messages of processes that only look.
//!
//! ```text
//!  QUERY  | magic (8) | kind (2) | oldest version (2) | newest (2) | subject (2) | shard (2) |
//!         | from (8) | with TCP_INFO (1) |
//!  ANSWER | magic (8) | kind (2) | version (2) | next (1, 8) | subject (2) | entries |
//! ```
//!
//! Invariants
//! - A reader accepts exactly what the writer makes.
//! - An answer has at most [`ANSWER_BYTES_MAX`]; its reader allocates no more than a small multiple
//!   of what it was given.

use super::entries::{
    ServiceDaemon, ServiceLinkServer, ServiceListener, ServiceManager, ServiceNetworks,
    ServiceSession, ServiceShard, ServiceSocket, ServiceUser,
};
use super::wire::WireValue;
use crate::limits::ANSWER_BYTES_MAX;
use crate::remote::{ValueReader, ValueWriter};

/// The first bytes of every message on the control socket.
const MAGIC: u64 = u64::from_ne_bytes(*b"megapipe");
/// The versions of QUERY and ANSWER that this code speaks, oldest and newest. Any change of an
/// entry is a new version, and the oldest one if answers of older ones are not written any more: a
/// test has the layout.
///
/// Answers of version 2 have three layouts, by the date of their build: none of them is read.
pub const QUERY_VERSIONS: (u16, u16) = (6, 6);

/// Kinds of messages, beside those of the handshake.
const QUERY: u16 = 5;
const ANSWER: u16 = 6;

/// What a query is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuerySubject {
    /// The daemon as a whole.
    Daemon,
    /// A shard.
    Shard,
    /// The sessions of a shard.
    Sessions,
    /// The listeners of a shard.
    Listeners,
    /// All sockets of a shard.
    Sockets,
    /// Users with their quotas, of all shards.
    Users,
    /// The networks that a shard's stack reaches; since version 2.
    Networks,
    /// A connection manager, by its number in place of a shard's.
    Manager,
    /// A link server on a thread of its own, by its number in place of a shard's.
    LinkServer,
}

impl QuerySubject {
    const ALL: [Self; 9] = [
        Self::Daemon,
        Self::Shard,
        Self::Sessions,
        Self::Listeners,
        Self::Sockets,
        Self::Users,
        Self::Networks,
        Self::Manager,
        Self::LinkServer,
    ];
}

impl WireValue for QuerySubject {
    fn put(&self, to: &mut ValueWriter) {
        to.u16(*self as u16);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        Self::ALL.get(usize::from(from.u16()?)).copied()
    }
}

/// A query: one page is its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceQuery {
    /// Oldest and newest version that the asking process speaks.
    pub versions: (u16, u16),
    /// What it is about.
    pub subject: QuerySubject,
    /// Of which shard.
    pub shard: u16,
    /// Where the page begins: 0, or as the page before says.
    pub from: u64,
    /// Sockets come with TCP_INFO.
    pub with_info: bool,
}

impl ServiceQuery {
    /// A query of this code's versions, for the first page.
    #[must_use]
    pub const fn new(subject: QuerySubject, shard: u16) -> Self {
        Self { versions: QUERY_VERSIONS, subject, shard, from: 0, with_info: false }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { versions, subject, shard, from, with_info } = self;
        let mut to = ValueWriter::default();
        (MAGIC, QUERY).put(&mut to);
        versions.put(&mut to);
        subject.put(&mut to);
        (*shard, *from).put(&mut to);
        with_info.put(&mut to);
        to.into_bytes()
    }

    /// Reads a query. `None`: it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = ValueReader::new(bytes);
        if <(u64, u16)>::get(&mut from)? != (MAGIC, QUERY) {
            return None;
        }
        let versions = <(u16, u16)>::get(&mut from)?;
        if versions.0 == 0 || versions.0 > versions.1 {
            return None;
        }
        let subject = QuerySubject::get(&mut from)?;
        let (shard, place) = <(u16, u64)>::get(&mut from)?;
        let with_info = bool::get(&mut from)?;
        from.end(Self { versions, subject, shard, from: place, with_info })
    }

    /// The newest version that both ends speak. `None`: there is none.
    #[must_use]
    pub fn version(&self) -> Option<u16> {
        let ((oldest, newest), ours) = (self.versions, QUERY_VERSIONS);
        (newest >= ours.0 && oldest <= ours.1).then_some(newest.min(ours.1))
    }
}

/// Whether a message claims to be a query.
pub(crate) fn is_query(bytes: &[u8]) -> bool {
    <(u64, u16)>::get(&mut ValueReader::new(bytes)) == Some((MAGIC, QUERY))
}

/// Entries of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerBody {
    /// The daemon.
    Daemon(ServiceDaemon),
    /// A shard; `None`: there is no such shard.
    Shard(Option<Box<ServiceShard>>),
    /// Sessions.
    Sessions(Vec<ServiceSession>),
    /// Listeners.
    Listeners(Vec<ServiceListener>),
    /// Sockets.
    Sockets(Vec<ServiceSocket>),
    /// Users.
    Users(Vec<ServiceUser>),
    /// What a shard's stack reaches.
    Networks(ServiceNetworks),
    /// A connection manager; `None`: there is no such one.
    Manager(Option<Box<ServiceManager>>),
    /// A link server; `None`: there is no such one.
    LinkServer(Option<ServiceLinkServer>),
}

/// A page of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerPage {
    /// Where the next page begins; `None`: this is the last.
    pub next: Option<u64>,
    /// What is on it.
    pub body: AnswerBody,
}

impl AnswerPage {
    /// The last page of a listing.
    #[must_use]
    pub const fn last(body: AnswerBody) -> Self {
        Self { next: None, body }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self, version: u16) -> Vec<u8> {
        let Self { next, body } = self;
        let mut to = ValueWriter::default();
        (MAGIC, ANSWER).put(&mut to);
        version.put(&mut to);
        next.put(&mut to);
        self.subject().put(&mut to);
        match body {
            AnswerBody::Daemon(daemon) => daemon.put(&mut to),
            AnswerBody::Shard(shard) => to.option(shard.as_deref(), |to, shard| shard.put(to)),
            AnswerBody::Sessions(sessions) => sessions.put(&mut to),
            AnswerBody::Listeners(listeners) => listeners.put(&mut to),
            AnswerBody::Sockets(sockets) => sockets.put(&mut to),
            AnswerBody::Users(users) => users.put(&mut to),
            AnswerBody::Networks(networks) => networks.put(&mut to),
            AnswerBody::Manager(manager) => to.option(manager.as_deref(), |to, it| it.put(to)),
            AnswerBody::LinkServer(server) => server.put(&mut to),
        }
        to.into_bytes()
    }

    /// Reads an answer to a query of this code's versions. `None`: it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return None;
        }
        let mut from = ValueReader::new(bytes);
        if <(u64, u16)>::get(&mut from)? != (MAGIC, ANSWER) {
            return None;
        }
        let version = u16::get(&mut from)?;
        if !(QUERY_VERSIONS.0..=QUERY_VERSIONS.1).contains(&version) {
            return None;
        }
        let next = WireValue::get(&mut from)?;
        let body = match QuerySubject::get(&mut from)? {
            QuerySubject::Daemon => AnswerBody::Daemon(WireValue::get(&mut from)?),
            QuerySubject::Shard => AnswerBody::Shard(from.option(ServiceShard::get)?.map(Box::new)),
            QuerySubject::Sessions => AnswerBody::Sessions(WireValue::get(&mut from)?),
            QuerySubject::Listeners => AnswerBody::Listeners(WireValue::get(&mut from)?),
            QuerySubject::Sockets => AnswerBody::Sockets(WireValue::get(&mut from)?),
            QuerySubject::Users => AnswerBody::Users(WireValue::get(&mut from)?),
            QuerySubject::Networks => AnswerBody::Networks(WireValue::get(&mut from)?),
            QuerySubject::Manager => {
                AnswerBody::Manager(from.option(ServiceManager::get)?.map(Box::new))
            }
            QuerySubject::LinkServer => AnswerBody::LinkServer(WireValue::get(&mut from)?),
        };
        from.end(Self { next, body })
    }

    /// What its query was about.
    #[must_use]
    pub const fn subject(&self) -> QuerySubject {
        match self.body {
            AnswerBody::Daemon(_) => QuerySubject::Daemon,
            AnswerBody::Shard(_) => QuerySubject::Shard,
            AnswerBody::Sessions(_) => QuerySubject::Sessions,
            AnswerBody::Listeners(_) => QuerySubject::Listeners,
            AnswerBody::Sockets(_) => QuerySubject::Sockets,
            AnswerBody::Users(_) => QuerySubject::Users,
            AnswerBody::Networks(_) => QuerySubject::Networks,
            AnswerBody::Manager(_) => QuerySubject::Manager,
            AnswerBody::LinkServer(_) => QuerySubject::LinkServer,
        }
    }
}

#[cfg(test)]
mod tests;
