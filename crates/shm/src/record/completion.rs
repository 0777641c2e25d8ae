//! What a server tells an application.

use std::net::{IpAddr, SocketAddr};

use super::answer::ServerAnswer;
use super::code::{CloseCode, Refusal, UndeliveredCode};
use super::{
    Bufs, Chunk, Id, Letter, Record, RecordFault, Transfer, family_of, mapped, octets, unmapped,
};
use crate::pool::BufId;

/// One completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// That of the op which this answers; of an event, that of the op which asked for it, or 0.
    pub cookie: u64,
    /// What happened.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The answer to an op.
    Answer(ServerAnswer),
    /// A connection arrived; uses up one credit of the listener.
    Incoming {
        /// Where it arrived.
        listener: Id,
        /// The connection.
        conn: Id,
        /// The peer.
        remote: SocketAddr,
        /// How many more wait.
        waiting: u32,
    },
    /// CONNECTION-AVAILABLE: a connection is offered to an acceptor, which may claim it. The cookie
    /// is the acceptor's.
    Available {
        /// The connection.
        conn: Id,
        /// The acceptor, as a claim names it.
        acceptor: Id,
    },
    /// An offer is over before its claim: the peer has reset the connection.
    Withdrawn {
        /// The connection.
        conn: Id,
    },
    /// A claim came too late, or names no offer.
    ClaimRefused {
        /// The connection.
        conn: Id,
        /// The acceptor, as the claim named it.
        acceptor: Id,
    },
    /// A connection that was being opened is open.
    Connected {
        /// Which.
        conn: Id,
        /// Our address of it, since version 8 of the protocol.
        local: Option<SocketAddr>,
    },
    /// The next bytes. The buffer is the application's until it returns it.
    Received {
        /// On which connection.
        conn: Id,
        /// Which bytes.
        chunk: Chunk,
    },
    /// So many chunks, from the oldest on, were acknowledged.
    Acked {
        /// On which connection.
        conn: Id,
        /// How many.
        chunks: u32,
        /// Bytes that wait in the send queue.
        queued_bytes: u32,
    },
    /// The urgent pointer moved (RFC 9293 §3.8.5).
    Urgent {
        /// On which connection.
        conn: Id,
        /// Bytes from the next one to be received to the end of the urgent ones.
        bytes: u32,
    },
    /// Fewer bytes are unsent than the application asked to hear of.
    UnsentBelow {
        /// On which connection.
        conn: Id,
    },
    /// The peer sends no more.
    PeerClosed {
        /// On which connection.
        conn: Id,
    },
    /// A connection is over, not in order, and received bytes are left: they come if they are asked
    /// for, and `Closed` after them. Since version 8 of the protocol; before, they are lost.
    Broken {
        /// Which.
        conn: Id,
        /// Why.
        reason: CloseCode,
        /// None of the peer's bytes are missing.
        is_whole: bool,
    },
    /// A connection is over.
    Closed {
        /// Which.
        conn: Id,
        /// Why.
        reason: CloseCode,
    },
    /// A datagram. The buffer is the application's until it returns it.
    Datagram {
        /// Where it arrived.
        endpoint: Id,
        /// From whom.
        from: IpAddr,
        /// From which port.
        port: u16,
        /// How it came.
        arrival: Arrival,
        /// Where its bytes are, from the start on.
        buf: BufId,
        /// How many bytes.
        len: u16,
    },
    /// What says that a datagram did not get there; [`Event::DatagramRefused`] follows at once.
    Notice {
        /// Who says so.
        by: IpAddr,
        /// Type and code of the message of ICMP.
        kind_and_code: (u8, u8),
        /// The MTU or the place of which it speaks.
        info: u32,
        /// How the message came.
        arrival: Arrival,
        /// What it quotes, at least a byte: from the start of a buffer that is the application's
        /// until it returns it.
        quote: Option<(BufId, u16)>,
    },
    /// The network refused a datagram that was sent.
    DatagramRefused {
        /// From where.
        endpoint: Id,
        /// To whom.
        to: SocketAddr,
        /// Why.
        why: UndeliveredCode,
    },
    /// The stack did not take a datagram.
    DatagramFailed {
        /// From where.
        endpoint: Id,
        /// Why.
        refusal: Refusal,
    },
    /// A datagram waits for the owners of an endpoint, since version 9 of the protocol: one that
    /// takes it gets it.
    DatagramWaits {
        /// Where it arrived.
        endpoint: Id,
        /// Bytes of the first one that waits.
        len: u32,
    },
    /// Sent buffers are the application's again.
    Returned {
        /// Which.
        bufs: Bufs,
    },
}

/// How a datagram came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// To which address; of the family that it came from.
    pub to: IpAddr,
    /// Hops that were left to it.
    pub hop_limit: u8,
    /// Its traffic class.
    pub traffic_class: u8,
}

// What is said of bytes of connections pays for what is said of datagrams.
const _: () = assert!(size_of::<Completion>() <= 64);

/// The kinds of completions: 0x200 on.
mod kind {
    pub(super) const INCOMING: u16 = 0x206;
    pub(super) const CONNECTED: u16 = 0x207;
    pub(super) const RECEIVED: u16 = 0x208;
    pub(super) const ACKED: u16 = 0x209;
    pub(super) const URGENT: u16 = 0x20a;
    pub(super) const PEER_CLOSED: u16 = 0x20b;
    pub(super) const CLOSED: u16 = 0x20c;
    pub(super) const DATAGRAM: u16 = 0x20d;
    pub(super) const DATAGRAM_REFUSED: u16 = 0x20e;
    pub(super) const RETURNED: u16 = 0x20f;
    pub(super) const NOTICE: u16 = 0x210;
    pub(super) const UNSENT_BELOW: u16 = 0x211;
    pub(super) const DATAGRAM_FAILED: u16 = 0x212;
    pub(super) const AVAILABLE: u16 = 0x213;
    pub(super) const WITHDRAWN: u16 = 0x214;
    pub(super) const CLAIM_REFUSED: u16 = 0x215;
    pub(super) const BROKEN: u16 = 0x216;
    pub(super) const DATAGRAM_WAITS: u16 = 0x217;
}

impl Completion {
    /// The completion as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let record = |kind| Record::new(kind, self.cookie);
        let transfer = Transfer::default();
        match self.event {
            Event::Answer(answer) => answer.record(self.cookie),
            Event::Incoming { listener, conn, remote, waiting } => {
                Self::incoming(self.cookie, (listener, conn), remote, waiting)
            }
            Event::Available { conn, acceptor } => Self::available(self.cookie, conn, acceptor),
            Event::Withdrawn { conn } => record(kind::WITHDRAWN).with_id(conn),
            Event::ClaimRefused { conn, acceptor } => record(kind::CLAIM_REFUSED)
                .with_id(conn)
                .with_transfer(&transfer.with_other(acceptor)),
            Event::Connected { conn, local } => {
                let transfer = local.map_or(transfer, |local| transfer.with_address(local));
                record(kind::CONNECTED).with_id(conn).with_transfer(&transfer)
            }
            Event::Received { conn, chunk } => {
                Record { cookie: self.cookie, ..Self::received(conn, chunk) }
            }
            Event::Acked { conn, chunks, queued_bytes } => {
                let transfer = Transfer { len: queued_bytes, ..transfer };
                record(kind::ACKED).with_id(conn).with_count(chunks).with_transfer(&transfer)
            }
            Event::Urgent { conn, bytes } => record(kind::URGENT).with_id(conn).with_count(bytes),
            Event::UnsentBelow { conn } => record(kind::UNSENT_BELOW).with_id(conn),
            Event::PeerClosed { conn } => record(kind::PEER_CLOSED).with_id(conn),
            Event::Broken { conn, reason, is_whole } => {
                let record = record(kind::BROKEN).with_id(conn).with_count(reason as u32);
                Record { flags: is_whole.into(), ..record }
            }
            Event::Closed { conn, reason } => {
                record(kind::CLOSED).with_id(conn).with_count(reason as u32)
            }
            Event::Datagram { endpoint, from, port, arrival, buf, len } => {
                let Arrival { to, hop_limit, traffic_class } = arrival;
                let (from_octets, to) = (octets(from), octets(to));
                let letter = Letter { buf: buf.bits(), len, port, from: from_octets, to };
                let record = record(kind::DATAGRAM).with_id(endpoint);
                let record = record.with_count(family_of(from).into()).with_letter(&letter);
                Record { flags: u16::from_le_bytes([hop_limit, traffic_class]), ..record }
            }
            Event::Notice { by, kind_and_code, info, arrival, quote } => {
                let Arrival { to, hop_limit, traffic_class } = arrival;
                let (buf, len) = quote.map_or((0, 0), |(buf, len)| (buf.bits(), len));
                let port = u16::from_le_bytes(kind_and_code.into());
                let letter = Letter { buf, len, port, from: mapped(by), to: mapped(to) };
                let record = record(kind::NOTICE).with_count(info).with_letter(&letter);
                Record { flags: u16::from_le_bytes([hop_limit, traffic_class]), ..record }
            }
            Event::DatagramRefused { endpoint, to, why } => record(kind::DATAGRAM_REFUSED)
                .with_id(endpoint)
                .with_count(why as u32)
                .with_transfer(&transfer.with_address(to)),
            Event::DatagramFailed { endpoint, refusal } => {
                record(kind::DATAGRAM_FAILED).with_id(endpoint).with_count(refusal as u32)
            }
            Event::DatagramWaits { endpoint, len } => {
                record(kind::DATAGRAM_WAITS).with_id(endpoint).with_count(len)
            }
            Event::Returned { bufs } => bufs.put(record(kind::RETURNED)),
        }
    }

    /// A connection that arrived at a listener, as a record.
    #[must_use]
    #[inline]
    pub fn incoming(
        cookie: u64,
        (listener, conn): (Id, Id),
        remote: SocketAddr,
        waiting: u32,
    ) -> Record {
        let transfer = Transfer::default().with_address(remote).with_other(listener);
        Record::new(kind::INCOMING, cookie)
            .with_id(conn)
            .with_count(waiting)
            .with_transfer(&transfer)
    }

    /// A connection that is offered, as a record.
    #[must_use]
    #[inline]
    pub fn available(cookie: u64, conn: Id, acceptor: Id) -> Record {
        let transfer = Transfer::default().with_other(acceptor);
        Record::new(kind::AVAILABLE, cookie).with_id(conn).with_transfer(&transfer)
    }

    /// Received bytes, as a record: what most completions are.
    #[must_use]
    #[inline]
    pub fn received(conn: Id, chunk: Chunk) -> Record {
        let transfer = Transfer::default().with_chunk(chunk);
        Record::new(kind::RECEIVED, 0).with_id(conn).with_transfer(&transfer)
    }

    /// The connection and the bytes of a record with received ones: what most completions are.
    /// `None`: it is another completion, or none at all ([`Completion::parse`]).
    #[must_use]
    #[inline]
    pub fn parse_bytes(record: &Record) -> Option<(Id, Chunk)> {
        let is_received = record.kind == kind::RECEIVED;
        if is_received { record.chunk_alone().ok().map(|chunk| (record.id, chunk)) } else { None }
    }

    /// Parses the completion of a record.
    ///
    /// # Errors
    /// [`RecordFault`]: the server's fault.
    #[inline]
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let event = match record.kind {
            kind::RECEIVED => Event::Received { conn: record.id, chunk: record.chunk_alone()? },
            kind::RETURNED => Event::Returned { bufs: Bufs::get(record)? },
            _ => return Self::parse_of_connection(record),
        };
        Ok(Self { cookie: record.cookie, event })
    }

    /// As `parse`, of what comes once for each connection: without encoding it again.
    fn parse_of_connection(record: &Record) -> Result<Self, RecordFault> {
        let event = match record.kind {
            kind::INCOMING => {
                let (conn, listener, remote, waiting) = record.ids_and_address()?;
                Event::Incoming { listener, conn, remote, waiting }
            }
            kind::AVAILABLE => match record.ids_and_count()? {
                (conn, acceptor, 0) => Event::Available { conn, acceptor },
                _ => return Err(record.has_other_bits()),
            },
            kind::WITHDRAWN => Event::Withdrawn { conn: record.id_alone()? },
            kind::CONNECTED => {
                let (conn, local) = record.id_and_address()?;
                Event::Connected { conn, local }
            }
            kind::PEER_CLOSED => Event::PeerClosed { conn: record.id_alone()? },
            kind::BROKEN => {
                let (conn, reason) = Record { flags: 0, ..*record }.id_and_count()?;
                let is_whole = match record.flags {
                    0 | 1 => record.flags == 1,
                    _ => return Err(record.has_other_bits()),
                };
                Event::Broken { conn, reason: CloseCode::from_code(reason)?, is_whole }
            }
            kind::CLOSED => {
                let (conn, reason) = record.id_and_count()?;
                Event::Closed { conn, reason: CloseCode::from_code(reason)? }
            }
            _ => return Self::parse_rare(record),
        };
        Ok(Self { cookie: record.cookie, event })
    }

    /// As `parse`, of other kinds.
    #[inline(never)]
    fn parse_rare(record: &Record) -> Result<Self, RecordFault> {
        let (id, count, transfer) = (record.id, record.count, record.transfer());
        let event = match record.kind {
            kind::CLAIM_REFUSED => Event::ClaimRefused { conn: id, acceptor: transfer.other },
            kind::ACKED => Event::Acked { conn: id, chunks: count, queued_bytes: transfer.len },
            kind::URGENT => Event::Urgent { conn: id, bytes: count },
            kind::UNSENT_BELOW => Event::UnsentBelow { conn: id },
            kind::DATAGRAM => {
                let letter = record.letter();
                let (from, to) = letter.addresses(count)?;
                let [hop_limit, traffic_class] = record.flags.to_le_bytes();
                let arrival = Arrival { to, hop_limit, traffic_class };
                let (buf, Letter { len, port, .. }) = (BufId::from_bits(letter.buf), letter);
                Event::Datagram { endpoint: id, from, port, arrival, buf, len }
            }
            kind::NOTICE => {
                let Letter { buf, len, port, from, to } = record.letter();
                let [hop_limit, traffic_class] = record.flags.to_le_bytes();
                let arrival = Arrival { to: unmapped(to), hop_limit, traffic_class };
                Event::Notice {
                    by: unmapped(from),
                    kind_and_code: port.to_le_bytes().into(),
                    info: count,
                    arrival,
                    quote: (len > 0).then_some((BufId::from_bits(buf), len)),
                }
            }
            kind::DATAGRAM_REFUSED => {
                let (to, why) = (transfer.address()?, UndeliveredCode::from_code(count)?);
                Event::DatagramRefused { endpoint: id, to, why }
            }
            kind::DATAGRAM_FAILED => {
                Event::DatagramFailed { endpoint: id, refusal: Refusal::from_code(count)? }
            }
            kind::DATAGRAM_WAITS => Event::DatagramWaits { endpoint: id, len: count },
            _ => Event::Answer(ServerAnswer::parse(record)?),
        };
        record.canonical(Self { cookie: record.cookie, event }, Self::record)
    }
}
