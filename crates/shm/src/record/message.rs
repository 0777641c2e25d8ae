//! Messages between servers and applications about the owner of a new connection.
//!
//! Read first: Pika, sections 3.2 (the speculative three-way hand-over) and 3.3 (balancing). The
//! names of the messages are the paper's.

use std::net::SocketAddr;

use super::{Id, Record, RecordFault, Transfer};

/// One message. `acceptor` is an application's place in a connection manager's list for one
/// listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// An application can take connections of a listener from now on.
    AcceptConnection {
        /// The listener.
        listener: Id,
        /// Who.
        acceptor: Id,
    },
    /// A connection is there for an application to claim.
    ConnectionAvailable {
        /// The connection.
        conn: Id,
        /// To whom it is offered.
        acceptor: Id,
        /// The peer.
        remote: SocketAddr,
    },
    /// An application takes a connection that was offered.
    ClaimConnection {
        /// The connection.
        conn: Id,
        /// Who.
        acceptor: Id,
    },
    /// The claim came in time: the connection is the application's.
    ClaimConfirmed {
        /// The connection.
        conn: Id,
        /// Its owner.
        acceptor: Id,
    },
    /// The claim came too late: the connection went to another, and the application is no acceptor
    /// any more until it says so again.
    ClaimRefused {
        /// The connection.
        conn: Id,
        /// Whose claim it was.
        acceptor: Id,
    },
    /// An application is no acceptor any more.
    AcceptorGone {
        /// The listener.
        listener: Id,
        /// Who.
        acceptor: Id,
    },
    /// A connection manager's fastest acceptor.
    Offer(Offer),
}

/// What one connection manager tells the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// For connections of which listener.
    pub listener: Id,
    /// The application that takes them.
    pub acceptor: Id,
    /// Moving median of the time from a connection's offer to its close, in nanoseconds.
    pub service_time_ns: u64,
    /// Which server speaks.
    pub server: u32,
}

/// The kinds of messages: 0x300 on.
mod kind {
    pub(super) const ACCEPT_CONNECTION: u16 = 0x301;
    pub(super) const CONNECTION_AVAILABLE: u16 = 0x302;
    pub(super) const CLAIM_CONNECTION: u16 = 0x303;
    pub(super) const CLAIM_CONFIRMED: u16 = 0x304;
    pub(super) const CLAIM_REFUSED: u16 = 0x305;
    pub(super) const ACCEPTOR_GONE: u16 = 0x306;
    pub(super) const OFFER: u16 = 0x307;
}

impl Message {
    /// The message as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let record = |kind, id, acceptor| {
            let transfer = Transfer::default().with_other(acceptor);
            Record::new(kind, 0).with_id(id).with_transfer(&transfer)
        };
        match *self {
            Self::AcceptConnection { listener, acceptor } => {
                record(kind::ACCEPT_CONNECTION, listener, acceptor)
            }
            Self::ConnectionAvailable { conn, acceptor, remote } => {
                let transfer = Transfer::default().with_other(acceptor).with_address(remote);
                record(kind::CONNECTION_AVAILABLE, conn, acceptor).with_transfer(&transfer)
            }
            Self::ClaimConnection { conn, acceptor } => {
                record(kind::CLAIM_CONNECTION, conn, acceptor)
            }
            Self::ClaimConfirmed { conn, acceptor } => {
                record(kind::CLAIM_CONFIRMED, conn, acceptor)
            }
            Self::ClaimRefused { conn, acceptor } => record(kind::CLAIM_REFUSED, conn, acceptor),
            Self::AcceptorGone { listener, acceptor } => {
                record(kind::ACCEPTOR_GONE, listener, acceptor)
            }
            Self::Offer(Offer { listener, acceptor, service_time_ns, server }) => {
                let record = record(kind::OFFER, listener, acceptor).with_count(server);
                Record { cookie: service_time_ns, ..record }
            }
        }
    }

    /// Parses the message of a record.
    ///
    /// # Errors
    /// [`RecordFault`]: the other end's fault.
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let (id, transfer) = (record.id, record.transfer());
        let acceptor = transfer.other;
        let message = match record.kind {
            kind::ACCEPT_CONNECTION => Self::AcceptConnection { listener: id, acceptor },
            kind::CONNECTION_AVAILABLE => {
                let remote = transfer.address()?;
                Self::ConnectionAvailable { conn: id, acceptor, remote }
            }
            kind::CLAIM_CONNECTION => Self::ClaimConnection { conn: id, acceptor },
            kind::CLAIM_CONFIRMED => Self::ClaimConfirmed { conn: id, acceptor },
            kind::CLAIM_REFUSED => Self::ClaimRefused { conn: id, acceptor },
            kind::ACCEPTOR_GONE => Self::AcceptorGone { listener: id, acceptor },
            kind::OFFER => Self::Offer(Offer {
                listener: id,
                acceptor,
                service_time_ns: record.cookie,
                server: record.count,
            }),
            kind => return Err(RecordFault::Kind { kind }),
        };
        record.canonical(message, Self::record)
    }
}
