//! What an application asks of a server.
//!
//! A call ([`SessionCall`]) and `Connect` are answered by one completion with their cookie. The
//! others are answered by what they bring about: bytes for `Receive`, the buffer for `Send` and
//! `SendDatagram`, the end of a connection; and by nothing where the connection is over, which the
//! application knows or has asked for.

use std::net::{IpAddr, SocketAddr};

use super::call::{CONNECT_RESETS, SessionCall};
use super::{AddressPairRecord, Bufs, Chunk, Id, Ids, Letter, Record, RecordFault, Transfer};
use crate::pool::BufId;

/// One op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Comes back with the answer.
    pub cookie: u64,
    /// What is asked.
    pub command: Command,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// So many more connections of a listener may be announced.
    Accept {
        /// The listener.
        listener: Id,
        /// How many.
        credit: u32,
    },
    /// Open a connection.
    Connect {
        /// To whom.
        remote: SocketAddr,
        /// From where; `None`: the server chooses.
        local: Option<SocketAddr>,
        /// What holds from its first segment on: as of [`SessionCall::Connect`]. Before version 7
        /// of the protocol only [`CONNECT_RESETS`].
        flags: u16,
    },
    /// Whether a connection is reset instead of closed in order when its session ends: what
    /// SO_LINGER with time 0 does. Since version 5 of the protocol.
    ResetOnClose {
        /// The connection.
        conn: Id,
        /// Whether it is.
        on: bool,
    },
    /// The next bytes of each of these connections may be handed over.
    Receive {
        /// The connections.
        conns: Ids,
    },
    /// Send bytes. The buffer is the server's until it comes back.
    Send {
        /// The connection.
        conn: Id,
        /// The bytes.
        chunk: Chunk,
    },
    /// Say when the next chunks are acknowledged.
    AwaitAcks {
        /// The connection.
        conn: Id,
    },
    /// Nothing more will be sent.
    Shutdown {
        /// The connection.
        conn: Id,
    },
    /// The application is done with a connection; what is queued is still sent.
    Close {
        /// The connection.
        conn: Id,
    },
    /// Reset a connection.
    Abort {
        /// The connection.
        conn: Id,
    },
    /// Received buffers go back to the server.
    Return {
        /// The buffers.
        bufs: Bufs,
    },
    /// Send a datagram: bytes of a buffer from its start. The buffer is the server's until it comes
    /// back.
    SendDatagram {
        /// From which endpoint.
        endpoint: Id,
        /// To whom.
        to: SocketAddr,
        /// From which address, if not the endpoint's; of the receiver's family.
        from: Option<IpAddr>,
        /// Hops that it may go; 0: as many as usual.
        hop_limit: u8,
        /// Its traffic class.
        traffic_class: u8,
        /// The buffer.
        buf: BufId,
        /// How many bytes.
        len: u16,
    },
    /// CLAIM-CONNECTION: take a connection that was offered. Answered by `Incoming` or by
    /// `ClaimRefused`.
    Claim {
        /// The connection.
        conn: Id,
        /// The acceptor, as the offer names it.
        acceptor: Id,
        /// Whether the connection's next bytes are wanted as well.
        receives: bool,
    },
    /// A call.
    Call(SessionCall),
}

/// The kinds of ops: 0x100 on.
mod kind {
    pub(super) const ACCEPT: u16 = 0x102;
    pub(super) const CONNECT: u16 = 0x104;
    pub(super) const RECEIVE: u16 = 0x105;
    pub(super) const SEND: u16 = 0x106;
    pub(super) const AWAIT_ACKS: u16 = 0x107;
    pub(super) const SHUTDOWN: u16 = 0x108;
    pub(super) const CLOSE: u16 = 0x109;
    pub(super) const ABORT: u16 = 0x10a;
    pub(super) const RETURN: u16 = 0x10b;
    pub(super) const SEND_DATAGRAM: u16 = 0x10d;
    pub(super) const CLAIM: u16 = 0x10e;
    pub(super) const RESET_ON_CLOSE: u16 = 0x10f;
}

/// The flags of a connection in a record, of which a daemon before version 7 of the protocol knows
/// the first bit.
fn connect_count(flags: u16) -> u32 {
    let resets = u32::from(flags & CONNECT_RESETS != 0);
    resets | u32::from(flags & !CONNECT_RESETS) << 1
}

/// What [`connect_count`] has made.
///
/// # Errors
/// [`RecordFault::Code`]: there are others.
fn connect_flags(count: u32) -> Result<u16, RecordFault> {
    let resets = if count & 1 != 0 { CONNECT_RESETS } else { 0 };
    let flags = u16::try_from(count >> 1).ok().filter(|rest| *rest < CONNECT_RESETS);
    flags.map(|rest| rest | resets).ok_or(RecordFault::Code { code: count })
}

impl Op {
    /// The op as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let record = |kind| Record::new(kind, self.cookie);
        let pair = AddressPairRecord::default();
        match self.command {
            Command::Accept { listener, credit } => {
                record(kind::ACCEPT).with_id(listener).with_count(credit)
            }
            Command::Connect { remote, local, flags } => {
                let pair = pair.with_remote(remote);
                let pair = local.map_or(pair, |local| pair.with_local(local));
                record(kind::CONNECT).with_count(connect_count(flags)).with_pair(&pair)
            }
            Command::ResetOnClose { conn, on } => {
                record(kind::RESET_ON_CLOSE).with_id(conn).with_count(on.into())
            }
            Command::Receive { conns } => conns.put(record(kind::RECEIVE)),
            Command::Send { conn, chunk } => {
                Record { cookie: self.cookie, ..Self::send(conn, chunk) }
            }
            Command::AwaitAcks { conn } => record(kind::AWAIT_ACKS).with_id(conn),
            Command::Shutdown { conn } => record(kind::SHUTDOWN).with_id(conn),
            Command::Close { conn } => record(kind::CLOSE).with_id(conn),
            Command::Abort { conn } => record(kind::ABORT).with_id(conn),
            Command::Return { bufs } => bufs.put(record(kind::RETURN)),
            Command::SendDatagram { endpoint, to, from, hop_limit, traffic_class, buf, len } => {
                let (letter, families) = Letter::to(to, from);
                let letter = Letter { buf: buf.bits(), len, ..letter };
                let record = record(kind::SEND_DATAGRAM).with_id(endpoint).with_count(families);
                let flags = u16::from_le_bytes([hop_limit, traffic_class]);
                Record { flags, ..record.with_letter(&letter) }
            }
            Command::Claim { conn, acceptor, receives } => record(kind::CLAIM)
                .with_id(conn)
                .with_count(receives.into())
                .with_transfer(&Transfer::default().with_other(acceptor)),
            Command::Call(call) => call.record(self.cookie),
        }
    }

    /// Bytes to send, as a record: what most ops are.
    #[must_use]
    #[inline]
    pub fn send(conn: Id, chunk: Chunk) -> Record {
        let transfer = Transfer::default().with_chunk(chunk);
        Record::new(kind::SEND, 0).with_id(conn).with_transfer(&transfer)
    }

    /// The connection and the bytes of a record that sends some: what most ops are. `None`: it is
    /// another op, or none at all ([`Op::parse`]).
    #[must_use]
    #[inline]
    pub fn parse_bytes(record: &Record) -> Option<(Id, Chunk)> {
        let is_send = record.kind == kind::SEND;
        if is_send { record.chunk_alone().ok().map(|chunk| (record.id, chunk)) } else { None }
    }

    /// Parses the op of a record.
    ///
    /// # Errors
    /// [`RecordFault`]: the application's fault.
    #[inline]
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let command = match record.kind {
            kind::SEND => Command::Send { conn: record.id, chunk: record.chunk_alone()? },
            kind::RECEIVE => Command::Receive { conns: Ids::get(record)? },
            kind::RETURN => Command::Return { bufs: Bufs::get(record)? },
            _ => return Self::parse_of_connection(record),
        };
        Ok(Self { cookie: record.cookie, command })
    }

    /// As `parse`, of what comes once for each connection: without encoding it again.
    fn parse_of_connection(record: &Record) -> Result<Self, RecordFault> {
        let command = match record.kind {
            kind::ACCEPT => {
                let (listener, credit) = record.id_and_count()?;
                Command::Accept { listener, credit }
            }
            kind::AWAIT_ACKS => Command::AwaitAcks { conn: record.id_alone()? },
            kind::SHUTDOWN => Command::Shutdown { conn: record.id_alone()? },
            kind::CLOSE => Command::Close { conn: record.id_alone()? },
            kind::ABORT => Command::Abort { conn: record.id_alone()? },
            kind::CLAIM => match record.ids_and_count()? {
                (conn, acceptor, count @ 0..=1) => {
                    Command::Claim { conn, acceptor, receives: count == 1 }
                }
                _ => return Err(record.has_other_bits()),
            },
            _ => return Self::parse_rare(record),
        };
        Ok(Self { cookie: record.cookie, command })
    }

    /// As `parse`, of other kinds.
    #[inline(never)]
    fn parse_rare(record: &Record) -> Result<Self, RecordFault> {
        let id = record.id;
        let command = match record.kind {
            kind::CONNECT => {
                let pair = record.pair();
                let (remote, local) = (pair.remote()?, pair.local_if_any()?);
                Command::Connect { remote, local, flags: connect_flags(record.count)? }
            }
            kind::RESET_ON_CLOSE => Command::ResetOnClose { conn: id, on: record.count == 1 },
            kind::SEND_DATAGRAM => {
                let letter = record.letter();
                let (to, from) = letter.way(record.count)?;
                let [hop_limit, traffic_class] = record.flags.to_le_bytes();
                let (buf, len) = (BufId::from_bits(letter.buf), letter.len);
                Command::SendDatagram { endpoint: id, to, from, hop_limit, traffic_class, buf, len }
            }
            _ => Command::Call(SessionCall::parse(record)?),
        };
        record.canonical(Self { cookie: record.cookie, command }, Self::record)
    }
}
