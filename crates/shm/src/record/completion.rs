//! What a server tells an application.

use std::net::{IpAddr, SocketAddr};

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

/// What happened. The first six are answers to ops, one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was done.
    Done,
    /// A listener was made.
    Listening {
        /// Its name.
        listener: Id,
    },
    /// A connection is being opened; [`Event::Connected`] or [`Event::Closed`] follows.
    Connecting {
        /// Its name.
        conn: Id,
    },
    /// An endpoint for datagrams was made.
    Bound {
        /// Its name.
        endpoint: Id,
    },
    /// It was not done.
    Refused {
        /// Why.
        refusal: Refusal,
    },
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
    /// A connection that was being opened is open.
    Connected {
        /// Which.
        conn: Id,
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
    /// The peer sends no more.
    PeerClosed {
        /// On which connection.
        conn: Id,
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

/// An enum whose values have numbers that never change.
macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $variant = $code,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            fn from_code(code: u32) -> Result<Self, RecordFault> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(RecordFault::Code { code }),
                }
            }
        }
    };
}

codes! {
    /// Why an op was not done.
    Refusal {
        /// The id is stale or never was.
        Unknown = 1,
        /// Not an address of this host.
        BadLocalAddress = 2,
        /// Not an address to connect or send to.
        BadRemoteAddress = 3,
        /// Port 0.
        BadPort = 4,
        /// The address and port are in use.
        InUse = 5,
        /// No route leads there.
        NoRoute = 6,
        /// Every usable port is in use.
        NoPort = 7,
        /// A table of the server is full.
        TooMany = 8,
        /// The connection is not established.
        NotConnected = 9,
        /// The direction was closed before.
        Closing = 10,
        /// The chunk is not within a buffer of the application's.
        BadChunk = 11,
        /// The send queue is full.
        QueueFull = 12,
        /// The datagram does not fit into the largest packet.
        TooLong = 13,
        /// The server's policy does not let this application.
        NotPermitted = 14,
    }
}

codes! {
    /// Why a connection ended.
    CloseCode {
        /// Both sides closed.
        Finished = 1,
        /// The peer reset it.
        ResetByPeer = 2,
        /// The peer refused it.
        Refused = 3,
        /// It was reset here.
        Aborted = 4,
        /// The peer stopped answering.
        TimedOut = 5,
        /// Keepalives got no answer.
        KeepaliveTimedOut = 6,
        /// The network says that the peer is unreachable.
        Unreachable = 7,
        /// Nobody on the link answers for the next hop.
        HostUnreachable = 8,
    }
}

codes! {
    /// Why a datagram did not get there.
    UndeliveredCode {
        /// There is no route to its network.
        NetworkUnreachable = 1,
        /// Its host does not answer.
        HostUnreachable = 2,
        /// Its host does not speak UDP.
        ProtocolUnreachable = 3,
        /// Nobody has the port.
        PortUnreachable = 4,
        /// An administrator forbids it.
        Prohibited = 5,
        /// It was larger than the path takes.
        TooLong = 6,
        /// It ran out of hops, or its fragments did not all arrive.
        TimeExceeded = 7,
        /// Somebody did not understand its header.
        ParameterProblem = 8,
    }
}

/// The kinds of completions: 0x200 on.
mod kind {
    pub(super) const DONE: u16 = 0x201;
    pub(super) const LISTENING: u16 = 0x202;
    pub(super) const CONNECTING: u16 = 0x203;
    pub(super) const BOUND: u16 = 0x204;
    pub(super) const REFUSED: u16 = 0x205;
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
}

impl Completion {
    /// The completion as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let record = |kind| Record::new(kind, self.cookie);
        let transfer = Transfer::default();
        match self.event {
            Event::Done => record(kind::DONE),
            Event::Listening { listener } => record(kind::LISTENING).with_id(listener),
            Event::Connecting { conn } => record(kind::CONNECTING).with_id(conn),
            Event::Bound { endpoint } => record(kind::BOUND).with_id(endpoint),
            Event::Refused { refusal } => record(kind::REFUSED).with_count(refusal as u32),
            Event::Incoming { listener, conn, remote, waiting } => record(kind::INCOMING)
                .with_id(conn)
                .with_count(waiting)
                .with_transfer(&transfer.with_address(remote).with_other(listener)),
            Event::Connected { conn } => record(kind::CONNECTED).with_id(conn),
            Event::Received { conn, chunk } => {
                Record { cookie: self.cookie, ..Self::received(conn, chunk) }
            }
            Event::Acked { conn, chunks, queued_bytes } => {
                let transfer = Transfer { len: queued_bytes, ..transfer };
                record(kind::ACKED).with_id(conn).with_count(chunks).with_transfer(&transfer)
            }
            Event::Urgent { conn, bytes } => record(kind::URGENT).with_id(conn).with_count(bytes),
            Event::PeerClosed { conn } => record(kind::PEER_CLOSED).with_id(conn),
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
            Event::Returned { bufs } => bufs.put(record(kind::RETURNED)),
        }
    }

    /// Received bytes, as a record: what most completions are.
    #[must_use]
    #[inline]
    pub fn received(conn: Id, chunk: Chunk) -> Record {
        let transfer = Transfer::default().with_chunk(chunk);
        Record::new(kind::RECEIVED, 0).with_id(conn).with_transfer(&transfer)
    }

    /// The completion that a record says.
    ///
    /// # Errors
    /// [`RecordFault`]: the server's fault.
    #[inline]
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let event = match record.kind {
            kind::RECEIVED => Event::Received { conn: record.id, chunk: record.chunk_alone()? },
            kind::RETURNED => Event::Returned { bufs: Bufs::get(record)? },
            _ => return Self::parse_rare(record),
        };
        Ok(Self { cookie: record.cookie, event })
    }

    /// As `parse`, of what is not said for each message.
    fn parse_rare(record: &Record) -> Result<Self, RecordFault> {
        let (id, count, transfer) = (record.id, record.count, record.transfer());
        let event = match record.kind {
            kind::DONE => Event::Done,
            kind::LISTENING => Event::Listening { listener: id },
            kind::CONNECTING => Event::Connecting { conn: id },
            kind::BOUND => Event::Bound { endpoint: id },
            kind::REFUSED => Event::Refused { refusal: Refusal::from_code(count)? },
            kind::INCOMING => {
                let (listener, remote) = (transfer.other, transfer.address()?);
                Event::Incoming { listener, conn: id, remote, waiting: count }
            }
            kind::CONNECTED => Event::Connected { conn: id },
            kind::ACKED => Event::Acked { conn: id, chunks: count, queued_bytes: transfer.len },
            kind::URGENT => Event::Urgent { conn: id, bytes: count },
            kind::PEER_CLOSED => Event::PeerClosed { conn: id },
            kind::CLOSED => Event::Closed { conn: id, reason: CloseCode::from_code(count)? },
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
            kind => return Err(RecordFault::Kind { kind }),
        };
        record.canonical(Self { cookie: record.cookie, event }, Self::record)
    }
}
