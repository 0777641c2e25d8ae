//! Messages between the servers of a daemon: who owns a new connection.
//!
//! Read first: Pika, sections 3.2 (the speculative three-way hand-over) and 3.3 (balancing). What a
//! server exchanges with an application (CONNECTION-AVAILABLE, CLAIM-CONNECTION) are operations and
//! completions; these records go from server to server.
//!
//! Servers name a listener by its address, a session by the number that the daemon gave it, a
//! connection and an acceptor by names that are valid at all servers.

use std::net::SocketAddr;

use super::{Id, Record, RecordFault, Transfer};

/// The name of an acceptor among those of all connection managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptorRef {
    /// The connection manager that it enlisted with.
    pub manager: u16,
    /// Its number there.
    pub id: u64,
    /// Its enlistment.
    pub enlistment: u32,
}

/// The name of an established connection among those of all transport servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnRef {
    /// The transport server.
    pub transport: u16,
    /// Its number there.
    pub id: u64,
    /// Hash of its flow.
    pub flow_hash: u32,
}

/// One message, about one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The address of the listener.
    pub listener: SocketAddr,
    /// What it says.
    pub subject: MessageSubject,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageSubject {
    /// ACCEPT-CONNECTION: an acceptor takes more connections. To its connection manager.
    Accept {
        /// The session.
        session: u64,
        /// The acceptor's number in the session.
        number: u64,
        /// How many.
        credit: u32,
    },
    /// ACCEPT-CONNECTION after a late claim: the acceptor enlists again. To its connection manager.
    AcceptAgain {
        /// The enlistment that the claim names.
        lost: AcceptorRef,
    },
    /// A session takes no more connections over the sender. To the manager of its acceptors.
    Gone {
        /// The session.
        session: u64,
    },
    /// A connection needs an acceptor. To the connection manager of its transport server.
    Established {
        /// The connection.
        conn: ConnRef,
    },
    /// The peer has reset a connection that waits. To the same.
    Reset {
        /// The connection.
        conn: ConnRef,
    },
    /// An acceptor did not claim a connection in time. To the same.
    TakenBack {
        /// The connection.
        conn: ConnRef,
        /// The acceptor.
        acceptor: AcceptorRef,
    },
    /// A connection is to be offered to an acceptor. To the transport server of the connection.
    Assign {
        /// The connection.
        conn: ConnRef,
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Why, and whether it needs no claim, as the servers encode it.
        how: u32,
    },
    /// There is no room for a connection that waits. To the same.
    Refuse {
        /// The connection.
        conn: ConnRef,
    },
    /// An offer was withdrawn. To the manager of the acceptor, as are the next two.
    Withdrawn {
        /// The acceptor.
        acceptor: AcceptorRef,
    },
    /// The acceptor has sent the first byte on a connection.
    Answered {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Time since the offer.
        service_time_ns: u64,
    },
    /// A connection of the acceptor's is finished.
    Closed {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Time since the offer.
        service_time_ns: u64,
    },
    /// Membership: an acceptor enlisted. To all managers, and by them to transport servers.
    Joined {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Its session.
        session: u64,
        /// Its number in the session.
        number: u64,
    },
    /// Membership: an enlistment has ended. To the same.
    Left {
        /// The acceptor.
        acceptor: AcceptorRef,
    },
    /// The sender's fastest acceptor. To all managers.
    Offer {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Its service time.
        service_time_ns: u64,
        /// Credit of the acceptor that the receiver has from now on.
        credits: u32,
    },
    /// A connection of the sender's waits, and it has borrowed no credit. To another manager.
    Request {
        /// The receiver's number.
        lender: u16,
        /// The sender's.
        borrower: u16,
    },
    /// As [`MessageSubject::Offer`], to a manager that requested credit. An acceptor without a
    /// service time has 0.
    Granted {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// Its service time.
        service_time_ns: u64,
        /// Credit of the acceptor that the receiver has from now on.
        credits: u32,
    },
    /// A connection of the sender's waits for credit of its acceptor that offers gave away. To all
    /// managers.
    Recall {
        /// The acceptor.
        acceptor: AcceptorRef,
    },
    /// The sender has assigned a connection to an acceptor. To its manager.
    Assigned {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// The sender's number, if it had credit of the acceptor's for it.
        borrower: Option<u16>,
    },
    /// The sender returns credit that an offer gave it. To the acceptor's manager.
    Returned {
        /// The acceptor.
        acceptor: AcceptorRef,
        /// How much.
        credits: u32,
        /// The sender's number.
        borrower: u16,
    },
    /// An acceptor did not claim a connection of the sender's in time. To its manager.
    TimedOut {
        /// The acceptor.
        acceptor: AcceptorRef,
    },
}

/// The kinds of messages: 0x300 on.
mod kind {
    pub(super) const ACCEPT: u16 = 0x301;
    pub(super) const ACCEPT_AGAIN: u16 = 0x302;
    pub(super) const GONE: u16 = 0x303;
    pub(super) const ESTABLISHED: u16 = 0x304;
    pub(super) const RESET: u16 = 0x305;
    pub(super) const TAKEN_BACK: u16 = 0x306;
    pub(super) const ASSIGN: u16 = 0x307;
    pub(super) const REFUSE: u16 = 0x308;
    pub(super) const WITHDRAWN: u16 = 0x309;
    pub(super) const ANSWERED: u16 = 0x30a;
    pub(super) const CLOSED: u16 = 0x30b;
    pub(super) const JOINED: u16 = 0x30c;
    pub(super) const LEFT: u16 = 0x30d;
    pub(super) const OFFER: u16 = 0x30e;
    pub(super) const ASSIGNED: u16 = 0x30f;
    pub(super) const TIMED_OUT: u16 = 0x310;
    pub(super) const RETURNED: u16 = 0x311;
    pub(super) const RECALL: u16 = 0x312;
    pub(super) const REQUEST: u16 = 0x313;
    pub(super) const GRANTED: u16 = 0x314;
}

const fn id_of(number: u64) -> Id {
    Id { index: number as u32, generation: (number >> 32) as u32 }
}

const fn number_of(id: Id) -> u64 {
    (id.generation as u64) << 32 | id.index as u64
}

/// An acceptor in the fields beside the body.
const fn with_acceptor(kind: u16, acceptor: AcceptorRef) -> Record {
    let AcceptorRef { manager, id, enlistment } = acceptor;
    Record { kind, flags: manager, count: enlistment, cookie: id, id: id_of(0), body: [0; 5] }
}

/// A connection in the same fields.
const fn with_conn(kind: u16, conn: ConnRef) -> Record {
    let ConnRef { transport, id, flow_hash } = conn;
    Record { kind, flags: transport, count: flow_hash, cookie: id, id: id_of(0), body: [0; 5] }
}

impl Record {
    const fn acceptor(&self) -> AcceptorRef {
        AcceptorRef { manager: self.flags, id: self.cookie, enlistment: self.count }
    }

    const fn conn(&self) -> ConnRef {
        ConnRef { transport: self.flags, id: self.cookie, flow_hash: self.count }
    }
}

/// An acceptor in the fields of the body that an address leaves.
fn second_acceptor(acceptor: AcceptorRef, how: u32) -> Transfer {
    let AcceptorRef { manager, id, enlistment } = acceptor;
    let numbers =
        Transfer { buf: manager.into(), offset: enlistment, len: how, ..Default::default() };
    numbers.with_other(id_of(id))
}

impl Transfer {
    fn second_acceptor(&self) -> AcceptorRef {
        let (manager, id) = (self.buf as u16, number_of(self.other));
        AcceptorRef { manager, id, enlistment: self.offset }
    }
}

impl MessageSubject {
    /// The record without the address, and the body that the address goes into.
    fn encode(&self) -> (Record, Transfer) {
        let (record, transfer) = match *self {
            Self::Accept { session, number, credit } => {
                let record = Record::new(kind::ACCEPT, session).with_count(credit);
                (record.with_id(id_of(number)), None)
            }
            Self::AcceptAgain { lost } => (with_acceptor(kind::ACCEPT_AGAIN, lost), None),
            Self::Gone { session } => (Record::new(kind::GONE, session), None),
            Self::Established { conn } => (with_conn(kind::ESTABLISHED, conn), None),
            Self::Reset { conn } => (with_conn(kind::RESET, conn), None),
            Self::TakenBack { conn, acceptor } => {
                (with_conn(kind::TAKEN_BACK, conn), Some(second_acceptor(acceptor, 0)))
            }
            Self::Assign { conn, acceptor, how } => {
                (with_conn(kind::ASSIGN, conn), Some(second_acceptor(acceptor, how)))
            }
            Self::Refuse { conn } => (with_conn(kind::REFUSE, conn), None),
            Self::Withdrawn { acceptor } => (with_acceptor(kind::WITHDRAWN, acceptor), None),
            Self::Answered { acceptor, service_time_ns } => {
                (with_acceptor(kind::ANSWERED, acceptor).with_id(id_of(service_time_ns)), None)
            }
            Self::Closed { acceptor, service_time_ns } => {
                (with_acceptor(kind::CLOSED, acceptor).with_id(id_of(service_time_ns)), None)
            }
            Self::Joined { acceptor, session, number } => {
                let numbers = Transfer::default().with_other(id_of(number));
                let record = with_acceptor(kind::JOINED, acceptor);
                (record.with_id(id_of(session)), Some(numbers))
            }
            Self::Left { acceptor } => (with_acceptor(kind::LEFT, acceptor), None),
            Self::Offer { acceptor, service_time_ns, credits } => {
                let record = with_acceptor(kind::OFFER, acceptor).with_id(id_of(service_time_ns));
                (record, Some(Transfer { len: credits, ..Transfer::default() }))
            }
            Self::Request { lender, borrower } => {
                let id = Id { index: lender.into(), generation: borrower.into() };
                (Record::new(kind::REQUEST, 0).with_id(id), None)
            }
            Self::Granted { acceptor, service_time_ns, credits } => {
                let record = with_acceptor(kind::GRANTED, acceptor).with_id(id_of(service_time_ns));
                (record, Some(Transfer { len: credits, ..Transfer::default() }))
            }
            Self::Recall { acceptor } => (with_acceptor(kind::RECALL, acceptor), None),
            Self::Assigned { acceptor, borrower } => {
                let number = borrower.map_or(0, |borrower| 1 + u64::from(borrower));
                (with_acceptor(kind::ASSIGNED, acceptor).with_id(id_of(number)), None)
            }
            Self::Returned { acceptor, credits, borrower } => {
                let id = Id { index: credits, generation: borrower.into() };
                (with_acceptor(kind::RETURNED, acceptor).with_id(id), None)
            }
            Self::TimedOut { acceptor } => (with_acceptor(kind::TIMED_OUT, acceptor), None),
        };
        (record, transfer.unwrap_or_default())
    }

    fn decode(record: &Record, transfer: &Transfer) -> Result<Self, RecordFault> {
        let (acceptor, conn) = (record.acceptor(), record.conn());
        let service_time_ns = number_of(record.id);
        Ok(match record.kind {
            kind::ACCEPT => {
                let (session, credit) = (record.cookie, record.count);
                Self::Accept { session, number: number_of(record.id), credit }
            }
            kind::ACCEPT_AGAIN => Self::AcceptAgain { lost: acceptor },
            kind::GONE => Self::Gone { session: record.cookie },
            kind::ESTABLISHED => Self::Established { conn },
            kind::RESET => Self::Reset { conn },
            kind::TAKEN_BACK => Self::TakenBack { conn, acceptor: transfer.second_acceptor() },
            kind::ASSIGN => {
                Self::Assign { conn, acceptor: transfer.second_acceptor(), how: transfer.len }
            }
            kind::REFUSE => Self::Refuse { conn },
            kind::WITHDRAWN => Self::Withdrawn { acceptor },
            kind::ANSWERED => Self::Answered { acceptor, service_time_ns },
            kind::CLOSED => Self::Closed { acceptor, service_time_ns },
            kind::JOINED => {
                let (session, number) = (number_of(record.id), number_of(transfer.other));
                Self::Joined { acceptor, session, number }
            }
            kind::LEFT => Self::Left { acceptor },
            kind::OFFER => Self::Offer { acceptor, service_time_ns, credits: transfer.len },
            kind::ASSIGNED => {
                let number = number_of(record.id).checked_sub(1);
                let borrower = number.and_then(|number| u16::try_from(number).ok());
                Self::Assigned { acceptor, borrower }
            }
            kind::RECALL => Self::Recall { acceptor },
            kind::REQUEST => {
                let Id { index, generation } = record.id;
                Self::Request { lender: index as u16, borrower: generation as u16 }
            }
            kind::GRANTED => Self::Granted { acceptor, service_time_ns, credits: transfer.len },
            kind::RETURNED => {
                let Id { index: credits, generation } = record.id;
                Self::Returned { acceptor, credits, borrower: generation as u16 }
            }
            kind::TIMED_OUT => Self::TimedOut { acceptor },
            kind => return Err(RecordFault::Kind { kind }),
        })
    }
}

impl Message {
    /// The message as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let (record, transfer) = self.subject.encode();
        record.with_transfer(&transfer.with_address(self.listener))
    }

    /// Parses the message of a record.
    ///
    /// # Errors
    /// [`RecordFault`]: the other end's fault.
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let transfer = record.transfer();
        let subject = MessageSubject::decode(record, &transfer)?;
        let message = Self { listener: transfer.address()?, subject };
        record.canonical(message, Self::record)
    }
}
