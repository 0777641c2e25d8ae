//! What an application asks of a server.
//!
//! An op that makes something (a listener, a connection, an endpoint) is answered by one completion
//! with its cookie, of a kind that `Event` names under "answers". The others are answered by what
//! they bring about: bytes for `Receive`, the buffer for `Send`, the end of a connection; and by
//! nothing where the connection is over, whose end was told or was asked for.

use std::net::SocketAddr;

use super::{Bufs, Chunk, Id, Ids, Pair, Record, RecordFault, Transfer};

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
    /// Accept connections at `local` (an unspecified address: any of the host's).
    Listen {
        /// Where.
        local: SocketAddr,
        /// Most connections that wait to be accepted.
        backlog: u32,
    },
    /// So many more connections of a listener may be announced.
    Accept {
        /// The listener.
        listener: Id,
        /// How many.
        credit: u32,
    },
    /// No more connections; those that wait are reset.
    Unlisten {
        /// The listener.
        listener: Id,
    },
    /// Open a connection.
    Connect {
        /// To whom.
        remote: SocketAddr,
        /// From where; `None`: the server chooses.
        local: Option<SocketAddr>,
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
    /// Receive datagrams at `local`.
    BindDatagram {
        /// Where.
        local: SocketAddr,
    },
    /// Send a datagram. The buffer is the server's until it comes back.
    SendDatagram {
        /// From which endpoint.
        endpoint: Id,
        /// To whom.
        to: SocketAddr,
        /// Its bytes.
        chunk: Chunk,
    },
    /// No more datagrams.
    CloseDatagram {
        /// The endpoint.
        endpoint: Id,
    },
}

/// The kinds of ops: 0x100 on.
mod kind {
    pub(super) const LISTEN: u16 = 0x101;
    pub(super) const ACCEPT: u16 = 0x102;
    pub(super) const UNLISTEN: u16 = 0x103;
    pub(super) const CONNECT: u16 = 0x104;
    pub(super) const RECEIVE: u16 = 0x105;
    pub(super) const SEND: u16 = 0x106;
    pub(super) const AWAIT_ACKS: u16 = 0x107;
    pub(super) const SHUTDOWN: u16 = 0x108;
    pub(super) const CLOSE: u16 = 0x109;
    pub(super) const ABORT: u16 = 0x10a;
    pub(super) const RETURN: u16 = 0x10b;
    pub(super) const BIND_DATAGRAM: u16 = 0x10c;
    pub(super) const SEND_DATAGRAM: u16 = 0x10d;
    pub(super) const CLOSE_DATAGRAM: u16 = 0x10e;
}

impl Op {
    /// The op as a record. Flow labels and scopes of IPv6 addresses are left out.
    #[must_use]
    pub fn record(&self) -> Record {
        let record = |kind| Record::new(kind, self.cookie);
        let pair = Pair::default();
        match self.command {
            Command::Listen { local, backlog } => {
                record(kind::LISTEN).with_count(backlog).with_pair(&pair.with_local(local))
            }
            Command::Accept { listener, credit } => {
                record(kind::ACCEPT).with_id(listener).with_count(credit)
            }
            Command::Unlisten { listener } => record(kind::UNLISTEN).with_id(listener),
            Command::Connect { remote, local } => {
                let pair = pair.with_remote(remote);
                let pair = local.map_or(pair, |local| pair.with_local(local));
                record(kind::CONNECT).with_pair(&pair)
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
            Command::BindDatagram { local } => {
                record(kind::BIND_DATAGRAM).with_pair(&pair.with_local(local))
            }
            Command::SendDatagram { endpoint, to, chunk } => {
                let transfer = Transfer::default().with_chunk(chunk).with_address(to);
                record(kind::SEND_DATAGRAM).with_id(endpoint).with_transfer(&transfer)
            }
            Command::CloseDatagram { endpoint } => record(kind::CLOSE_DATAGRAM).with_id(endpoint),
        }
    }

    /// Bytes to send, as a record: what most ops are.
    #[must_use]
    #[inline]
    pub fn send(conn: Id, chunk: Chunk) -> Record {
        let transfer = Transfer::default().with_chunk(chunk);
        Record::new(kind::SEND, 0).with_id(conn).with_transfer(&transfer)
    }

    /// The op that a record says.
    ///
    /// # Errors
    /// [`RecordFault`]: the application's fault.
    #[inline]
    pub fn parse(record: &Record) -> Result<Self, RecordFault> {
        let command = match record.kind {
            kind::SEND => Command::Send { conn: record.id, chunk: record.chunk_alone()? },
            kind::RECEIVE => Command::Receive { conns: Ids::get(record)? },
            kind::RETURN => Command::Return { bufs: Bufs::get(record)? },
            _ => return Self::parse_rare(record),
        };
        Ok(Self { cookie: record.cookie, command })
    }

    /// As `parse`, of what is not said for each message.
    fn parse_rare(record: &Record) -> Result<Self, RecordFault> {
        let id = record.id;
        let command = match record.kind {
            kind::LISTEN => {
                Command::Listen { local: record.pair().local()?, backlog: record.count }
            }
            kind::ACCEPT => Command::Accept { listener: id, credit: record.count },
            kind::UNLISTEN => Command::Unlisten { listener: id },
            kind::CONNECT => {
                let pair = record.pair();
                Command::Connect { remote: pair.remote()?, local: pair.local_if_any()? }
            }
            kind::AWAIT_ACKS => Command::AwaitAcks { conn: id },
            kind::SHUTDOWN => Command::Shutdown { conn: id },
            kind::CLOSE => Command::Close { conn: id },
            kind::ABORT => Command::Abort { conn: id },
            kind::BIND_DATAGRAM => Command::BindDatagram { local: record.pair().local()? },
            kind::SEND_DATAGRAM => {
                let transfer = record.transfer();
                let (to, chunk) = (transfer.address()?, transfer.datagram()?);
                Command::SendDatagram { endpoint: id, to, chunk }
            }
            kind::CLOSE_DATAGRAM => Command::CloseDatagram { endpoint: id },
            kind => return Err(RecordFault::Kind { kind }),
        };
        record.canonical(Self { cookie: record.cookie, command }, Self::record)
    }
}
