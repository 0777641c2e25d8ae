//! Calls: ops that a caller waits for. Each has exactly one answer, with its cookie; but
//! [`SessionCall::SetOption`] with the cookie [`NO_ANSWER`] has none.
//!
//! A call lends the session's call buffer to the server until the answer. Text and lists that a
//! record has no field for lie there, and the record names them as a chunk.
//!
//! Read first: `op.rs`; `answer.rs` for what comes back.

use std::net::{IpAddr, SocketAddr};

use super::{
    AddressPairRecord, Chunk, Id, Letter, Record, RecordFault, Transfer, family_of, ip_of, octets,
};

/// The cookie of a call whose caller waits for no answer.
pub const NO_ANSWER: u64 = 0;

/// A call, and the answer that it has if it is not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionCall {
    /// Does nothing. The ops before it are done when it is answered: `Done`.
    Sync,
    /// Names the application's core to the shards: `Done`.
    SetCore {
        /// The core; `None`: no particular one.
        core: Option<u32>,
    },
    /// Accepts connections at `local`: `Listening`.
    Listen {
        /// The address; an unspecified one means any of the host's.
        local: SocketAddr,
        /// Most connections that wait to be accepted.
        backlog: u32,
        /// What other listeners may have of the address.
        sharing: ListenSharing,
        /// Cookie of the sockets that reserve the port at the host, if the application has passed
        /// any; else 0.
        reservation: u64,
    },
    /// Changes what other listeners may have of the address: `Done`.
    Share {
        /// The listener.
        listener: Id,
        /// What they may have.
        sharing: ListenSharing,
    },
    /// Limits the connections that begin with a SYN's data (Fast Open): `Done`.
    SetFastOpen {
        /// The listener.
        listener: Id,
        /// Most of them that are not established yet; 0: none.
        pending_max: u32,
    },
    /// Whether any shard listens at `local`: `Value`, 0 or 1.
    IsListening {
        /// The address.
        local: SocketAddr,
    },
    /// No more connections; those that wait go to other listeners of the address: `Done`.
    Unlisten {
        /// The listener.
        listener: Id,
    },
    /// Takes out a connection that was offered, for `HandOver`: `Done`.
    TakeOut {
        /// The connection.
        conn: Id,
    },
    /// Puts bytes before the unread bytes of the connection that was taken out: `Done`.
    PrependUnread {
        /// The connection.
        conn: Id,
        /// The bytes, in the call buffer.
        chunk: Chunk,
    },
    /// Hands the connection that was taken out to another listener of its address: `Done`.
    HandOver {
        /// The connection.
        conn: Id,
    },
    /// Takes out a connection that was offered and hands it over: `Done`.
    HandOverOffered {
        /// The connection.
        conn: Id,
    },
    /// Takes an established connection out, for `FinishMove`: `Done`.
    MoveOut {
        /// The connection.
        conn: Id,
    },
    /// Makes a kernel socket of the connection that was moved out, and gives it over the control
    /// socket: `Value`, its cookie there.
    FinishMove {
        /// The connection.
        conn: Id,
    },
    /// Takes a connection of the kernel's into the stack, whose socket the application has passed:
    /// `Connecting`.
    TakeOver {
        /// The cookie of the socket.
        cookie: u64,
    },
    /// Takes bytes that the kernel had received of the connection that was taken over last, from
    /// the first one on: `Written`, no bytes if there are no more.
    TakeUnread,
    /// A token owns connections from now on, too: `Done`. Their received bytes wait until the
    /// session asks for them again.
    Hold {
        /// Cookie of the token, which the service has given.
        token: u64,
        /// The connection; `None`: all that the session and its own token have.
        conn: Option<Id>,
    },
    /// The session owns a connection from now on that a token owns: `Connecting` if it is
    /// established; since version 11 of the protocol `AdoptedConnecting` or `ConnectFailed`, too.
    Adopt {
        /// Cookie of the token, which the application has passed; 0: the one by which the session
        /// was opened.
        token: u64,
        /// The connection; `None`: the only one of the token.
        conn: Option<Id>,
    },
    /// Gives received bytes of a connection that tokens own back, for the next reader: `Done`.
    /// They go before those that were given back earlier.
    GiveBack {
        /// The connection.
        conn: Id,
        /// The bytes, in the call buffer.
        chunk: Chunk,
    },
    /// A token owns endpoints from now on, too: `Done`. Their datagrams wait at the shard until a
    /// session takes them.
    HoldEndpoint {
        /// Cookie of the token, which the service has given.
        token: u64,
        /// The endpoint; `None`: all that the session and its own token have.
        endpoint: Option<Id>,
    },
    /// The session owns an endpoint from now on that a token owns: `Bound`.
    AdoptEndpoint {
        /// As of `Adopt`.
        token: u64,
        /// The endpoint; `None`: one of the token that the session does not own, or else any.
        endpoint: Option<Id>,
    },
    /// Takes the first datagram that waits for the owners of an endpoint: `Written`, no bytes if
    /// none waits. The session is informed of the next one that arrives.
    TakeDatagram {
        /// The endpoint.
        endpoint: Id,
        /// The datagram waits further.
        keeps: bool,
    },
    /// Asks whether a datagram waits for the owners of an endpoint: `Value`, 0, or 1 more than the
    /// bytes of the first one. The session is informed of the next one that arrives.
    AwaitDatagram {
        /// The endpoint.
        endpoint: Id,
    },
    /// Gives a received datagram of an endpoint with several owners back: `Done`. It waits before
    /// the others.
    GiveDatagramBack {
        /// The endpoint.
        endpoint: Id,
        /// The datagram and how it arrived, in the call buffer.
        chunk: Chunk,
    },
    /// A token owns a listener from now on, too: `Done`.
    HoldListener {
        /// Cookie of the token, which the service has given.
        token: u64,
        /// The listener.
        listener: Id,
    },
    /// The session is one more acceptor of a listener that a token owns: `Written`, the listener
    /// and its options.
    AdoptListener {
        /// As of `Adopt`.
        token: u64,
    },
    /// Opens a connection: `Connecting`.
    Connect {
        /// The peer.
        remote: SocketAddr,
        /// The local address; `None`: the server chooses it.
        local: Option<SocketAddr>,
        /// What holds from the first segment on, a set of `CONNECT_` flags.
        flags: u16,
        /// Cookie of the sockets that reserve the local port at the host; 0: none were passed.
        reservation: u64,
    },
    /// Describes a connection: `Written`.
    Info {
        /// The connection.
        conn: Id,
    },
    /// The addresses of a connection: `Addresses`.
    Addresses {
        /// The connection.
        conn: Id,
    },
    /// Sets an option of a connection: `Value`, the size of its send buffer.
    SetOption {
        /// The connection.
        conn: Id,
        /// The option's code.
        option: u32,
        /// Its value.
        value: u64,
    },
    /// Sends bytes that the server copies: `Done`.
    SendCopy {
        /// The connection.
        conn: Id,
        /// The bytes, in the call buffer.
        chunk: Chunk,
    },
    /// The connections at some local ports: `Written`; refused as `TooLong` if the call buffer has
    /// no room for them.
    Holders {
        /// The first and the last port.
        ports: (u16, u16),
    },
    /// A local port that no connection has: `Value`, 0 if there is none.
    FreePort {
        /// The first and the last port.
        ports: (u16, u16),
        /// The port to try first.
        from: u16,
    },
    /// Whether the peer of some connection of the server has not acknowledged all that was sent:
    /// `Value`, 0 or 1.
    HasUndelivered,
    /// Binds an endpoint for datagrams: `Bound`.
    Bind {
        /// The address; port 0: any.
        local: SocketAddr,
        /// A set of `BIND_` flags.
        flags: u16,
        /// Cookie of the sockets that reserve the port at the host; 0: none were passed.
        reservation: u64,
    },
    /// Gives an endpoint a peer, or none: `Addresses`, its local one.
    ConnectDatagram {
        /// The endpoint.
        endpoint: Id,
        /// The peer.
        peer: Option<SocketAddr>,
    },
    /// No more datagrams: `Done`.
    CloseDatagram {
        /// The endpoint.
        endpoint: Id,
    },
    /// Whether notices of an endpoint come with what they quote: `Done`.
    QuoteErrors {
        /// The endpoint.
        endpoint: Id,
        /// Whether they do.
        on: bool,
    },
    /// Bytes of the longest packet to an address: `Value`.
    PacketBytesMax {
        /// The address.
        to: IpAddr,
    },
    /// The local address of an endpoint, and its peer since version 9 of the protocol: `Addresses`.
    DatagramAddress {
        /// The endpoint.
        endpoint: Id,
    },
    /// Whether datagrams can be sent now: `Value`, the length of the longest.
    CheckDatagrams {
        /// The endpoint.
        endpoint: Id,
        /// The receiver.
        to: SocketAddr,
        /// The source address, if not the endpoint's; of the receiver's family.
        from: Option<IpAddr>,
        /// Length of the longest in bytes.
        len: u16,
        /// How many.
        count: u16,
    },
}

/// What other listeners may have of a listener's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListenSharing {
    /// A set of `LISTEN_` flags.
    pub flags: u16,
    /// Most connections that begin with a SYN's data and are not established yet.
    pub fast_open: u32,
    /// The cores whose connections the listener takes, ascending, four bytes each, in the call
    /// buffer; `None`: those that no other listener names.
    pub cores: Option<Chunk>,
}

/// No other shard listens at the address.
pub const LISTEN_EXCLUSIVE: u16 = 1;
/// SO_REUSEADDR.
pub const LISTEN_REUSE_ADDRESS: u16 = 2;
/// SO_REUSEPORT.
pub const LISTEN_REUSE_PORT: u16 = 4;
/// IPV6_V6ONLY.
pub const LISTEN_V6_ONLY: u16 = 8;
const LISTEN_FLAGS: u16 = 15;

/// `CONNECT_NODELAY` has a meaning.
pub const CONNECT_HAS_NODELAY: u16 = 1;
/// Small segments go at once.
pub const CONNECT_NODELAY: u16 = 2;
/// The SYN may carry data.
pub const CONNECT_FAST_OPEN: u16 = 4;
/// The connection is reset if its session ends ([`Command::ResetOnClose`]).
///
/// [`Command::ResetOnClose`]: super::Command::ResetOnClose
pub const CONNECT_RESETS: u16 = 8;
const CONNECT_FLAGS: u16 = 15;

/// Others may bind the address, if they set this too.
pub const BIND_SHARED: u16 = 1;
/// Datagrams are spread over the endpoints that set this.
pub const BIND_SPREADS: u16 = 2;
/// It is IPv4's part of an IPv6 socket.
pub const BIND_MAPPED: u16 = 4;
/// Endpoints of other programs are refused there; since version 10 of the protocol.
pub const BIND_EXCLUDES: u16 = 8;
const BIND_FLAGS: u16 = 15;

/// The kinds of calls: 0x140 on.
mod kind {
    pub(super) const SYNC: u16 = 0x140;
    pub(super) const SET_CORE: u16 = 0x141;
    pub(super) const LISTEN: u16 = 0x142;
    pub(super) const SHARE: u16 = 0x143;
    pub(super) const SET_FAST_OPEN: u16 = 0x144;
    pub(super) const IS_LISTENING: u16 = 0x145;
    pub(super) const UNLISTEN: u16 = 0x146;
    pub(super) const TAKE_OUT: u16 = 0x147;
    pub(super) const PREPEND_UNREAD: u16 = 0x148;
    pub(super) const HAND_OVER: u16 = 0x149;
    pub(super) const HAND_OVER_OFFERED: u16 = 0x14a;
    pub(super) const CONNECT: u16 = 0x14b;
    pub(super) const INFO: u16 = 0x14c;
    pub(super) const ADDRESSES: u16 = 0x14d;
    pub(super) const SET_OPTION: u16 = 0x14e;
    pub(super) const SEND_COPY: u16 = 0x14f;
    pub(super) const HOLDERS: u16 = 0x150;
    pub(super) const FREE_PORT: u16 = 0x151;
    pub(super) const BIND: u16 = 0x152;
    pub(super) const CONNECT_DATAGRAM: u16 = 0x153;
    pub(super) const CLOSE_DATAGRAM: u16 = 0x154;
    pub(super) const QUOTE_ERRORS: u16 = 0x155;
    pub(super) const PACKET_BYTES_MAX: u16 = 0x156;
    pub(super) const DATAGRAM_ADDRESS: u16 = 0x157;
    pub(super) const CHECK_DATAGRAMS: u16 = 0x158;
    pub(super) const MOVE_OUT: u16 = 0x159;
    pub(super) const FINISH_MOVE: u16 = 0x15a;
    pub(super) const TAKE_OVER: u16 = 0x15b;
    pub(super) const TAKE_UNREAD: u16 = 0x15c;
    pub(super) const HAS_UNDELIVERED: u16 = 0x15d;
    pub(super) const HOLD: u16 = 0x15e;
    pub(super) const ADOPT: u16 = 0x15f;
    pub(super) const GIVE_BACK: u16 = 0x160;
    pub(super) const HOLD_ENDPOINT: u16 = 0x161;
    pub(super) const ADOPT_ENDPOINT: u16 = 0x162;
    pub(super) const TAKE_DATAGRAM: u16 = 0x163;
    pub(super) const AWAIT_DATAGRAM: u16 = 0x164;
    pub(super) const GIVE_DATAGRAM_BACK: u16 = 0x165;
    pub(super) const HOLD_LISTENER: u16 = 0x166;
    pub(super) const ADOPT_LISTENER: u16 = 0x167;
}

impl SessionCall {
    /// The call as a record.
    pub(super) fn record(&self, cookie: u64) -> Record {
        let record = |kind| Record::new(kind, cookie);
        let pair = AddressPairRecord::default();
        match *self {
            Self::Sync => record(kind::SYNC),
            Self::SetCore { core } => {
                Record { flags: core.is_some().into(), ..record(kind::SET_CORE) }
                    .with_count(core.unwrap_or(0))
            }
            Self::Listen { local, backlog, sharing, reservation } => {
                let transfer = sharing.transfer().with_address(local);
                let record = record(kind::LISTEN).with_count(backlog).with_transfer(&transfer);
                let record = record.with_id(Id::of_cookie(reservation));
                Record { flags: sharing.flags, ..record }
            }
            Self::Share { listener, sharing } => {
                let record = record(kind::SHARE).with_id(listener);
                let record = record.with_transfer(&sharing.transfer());
                Record { flags: sharing.flags, ..record }
            }
            Self::SetFastOpen { listener, pending_max } => {
                record(kind::SET_FAST_OPEN).with_id(listener).with_count(pending_max)
            }
            Self::IsListening { local } => {
                record(kind::IS_LISTENING).with_pair(&pair.with_local(local))
            }
            Self::Unlisten { listener } => record(kind::UNLISTEN).with_id(listener),
            Self::TakeOut { conn } => record(kind::TAKE_OUT).with_id(conn),
            Self::PrependUnread { conn, chunk } => {
                let transfer = Transfer::default().with_chunk(chunk);
                record(kind::PREPEND_UNREAD).with_id(conn).with_transfer(&transfer)
            }
            Self::HandOver { conn } => record(kind::HAND_OVER).with_id(conn),
            Self::HandOverOffered { conn } => record(kind::HAND_OVER_OFFERED).with_id(conn),
            Self::MoveOut { conn } => record(kind::MOVE_OUT).with_id(conn),
            Self::FinishMove { conn } => record(kind::FINISH_MOVE).with_id(conn),
            Self::TakeOver { cookie: passed } => {
                record(kind::TAKE_OVER).with_id(Id::of_cookie(passed))
            }
            Self::TakeUnread => record(kind::TAKE_UNREAD),
            Self::Connect { remote, local, flags, reservation } => {
                let pair = pair.with_remote(remote);
                let pair = local.map_or(pair, |local| pair.with_local(local));
                let record = record(kind::CONNECT).with_id(Id::of_cookie(reservation));
                Record { flags, ..record.with_pair(&pair) }
            }
            Self::Info { conn } => record(kind::INFO).with_id(conn),
            Self::Addresses { conn } => record(kind::ADDRESSES).with_id(conn),
            Self::SetOption { conn, option, value } => Record {
                body: [value, 0, 0, 0, 0],
                ..record(kind::SET_OPTION).with_id(conn).with_count(option)
            },
            Self::SendCopy { conn, chunk } => {
                let transfer = Transfer::default().with_chunk(chunk);
                record(kind::SEND_COPY).with_id(conn).with_transfer(&transfer)
            }
            Self::Holders { ports } => record(kind::HOLDERS).with_count(range(ports)),
            Self::FreePort { ports, from } => {
                Record { flags: from, ..record(kind::FREE_PORT).with_count(range(ports)) }
            }
            Self::HasUndelivered => record(kind::HAS_UNDELIVERED),
            Self::Bind { local, flags, reservation } => {
                let record = record(kind::BIND).with_id(Id::of_cookie(reservation));
                Record { flags, ..record.with_pair(&pair.with_local(local)) }
            }
            _ => self.shared_record(cookie),
        }
    }

    /// As `record`, of calls about objects with several owners.
    fn shared_record(&self, cookie: u64) -> Record {
        let record = |kind| Record::new(kind, cookie);
        match *self {
            Self::Hold { token, conn } => of_token(record(kind::HOLD), token, conn),
            Self::Adopt { token, conn } => of_token(record(kind::ADOPT), token, conn),
            Self::GiveBack { conn, chunk } => {
                let transfer = Transfer::default().with_chunk(chunk);
                record(kind::GIVE_BACK).with_id(conn).with_transfer(&transfer)
            }
            Self::HoldListener { token, listener } => {
                let transfer = Transfer::default().with_other(listener);
                let record = record(kind::HOLD_LISTENER).with_id(Id::of_cookie(token));
                record.with_transfer(&transfer)
            }
            Self::AdoptListener { token } => {
                record(kind::ADOPT_LISTENER).with_id(Id::of_cookie(token))
            }
            Self::HoldEndpoint { token, endpoint } => {
                of_token(record(kind::HOLD_ENDPOINT), token, endpoint)
            }
            Self::AdoptEndpoint { token, endpoint } => {
                of_token(record(kind::ADOPT_ENDPOINT), token, endpoint)
            }
            Self::TakeDatagram { endpoint, keeps } => {
                record(kind::TAKE_DATAGRAM).with_id(endpoint).with_count(keeps.into())
            }
            Self::AwaitDatagram { endpoint } => record(kind::AWAIT_DATAGRAM).with_id(endpoint),
            Self::GiveDatagramBack { endpoint, chunk } => {
                let transfer = Transfer::default().with_chunk(chunk);
                record(kind::GIVE_DATAGRAM_BACK).with_id(endpoint).with_transfer(&transfer)
            }
            _ => self.datagram_record(cookie),
        }
    }

    /// As `record`, of calls about an endpoint for datagrams.
    fn datagram_record(&self, cookie: u64) -> Record {
        let record = |kind| Record::new(kind, cookie);
        let transfer = Transfer::default();
        match *self {
            Self::ConnectDatagram { endpoint, peer } => {
                let transfer = peer.map_or(transfer, |peer| transfer.with_address(peer));
                record(kind::CONNECT_DATAGRAM).with_id(endpoint).with_transfer(&transfer)
            }
            Self::CloseDatagram { endpoint } => record(kind::CLOSE_DATAGRAM).with_id(endpoint),
            Self::QuoteErrors { endpoint, on } => {
                record(kind::QUOTE_ERRORS).with_id(endpoint).with_count(on.into())
            }
            Self::PacketBytesMax { to } => {
                let transfer = transfer.with_address(SocketAddr::new(to, 0));
                record(kind::PACKET_BYTES_MAX).with_transfer(&transfer)
            }
            Self::DatagramAddress { endpoint } => record(kind::DATAGRAM_ADDRESS).with_id(endpoint),
            Self::CheckDatagrams { endpoint, to, from, len, count } => {
                let (letter, families) = Letter::to(to, from);
                let record = record(kind::CHECK_DATAGRAMS).with_id(endpoint).with_count(families);
                Record { flags: count, ..record.with_letter(&Letter { len, ..letter }) }
            }
            _ => unreachable!("`record` has encoded the others"),
        }
    }

    /// Parses the call of a record.
    pub(super) fn parse(record: &Record) -> Result<Self, RecordFault> {
        let Record { flags, count, id, .. } = *record;
        let transfer = record.transfer();
        Ok(match record.kind {
            kind::SYNC => Self::Sync,
            kind::SET_CORE => Self::SetCore { core: (flags == 1).then_some(count) },
            kind::LISTEN => Self::Listen {
                local: transfer.address()?,
                backlog: count,
                sharing: ListenSharing::parse(record)?,
                reservation: id.cookie(),
            },
            kind::SHARE => Self::Share { listener: id, sharing: ListenSharing::parse(record)? },
            kind::SET_FAST_OPEN => Self::SetFastOpen { listener: id, pending_max: count },
            kind::IS_LISTENING => Self::IsListening { local: record.pair().local()? },
            kind::UNLISTEN => Self::Unlisten { listener: id },
            kind::TAKE_OUT => Self::TakeOut { conn: id },
            kind::PREPEND_UNREAD => Self::PrependUnread { conn: id, chunk: transfer.chunk()? },
            kind::HAND_OVER => Self::HandOver { conn: id },
            kind::HAND_OVER_OFFERED => Self::HandOverOffered { conn: id },
            kind::MOVE_OUT => Self::MoveOut { conn: id },
            kind::FINISH_MOVE => Self::FinishMove { conn: id },
            kind::TAKE_OVER => Self::TakeOver { cookie: id.cookie() },
            kind::TAKE_UNREAD => Self::TakeUnread,
            kind::HOLD => Self::Hold { token: id.cookie(), conn: object_of_token(record)? },
            kind::ADOPT => Self::Adopt { token: id.cookie(), conn: object_of_token(record)? },
            kind::GIVE_BACK => Self::GiveBack { conn: id, chunk: transfer.chunk_or_none()? },
            kind::HOLD_LISTENER => {
                Self::HoldListener { token: id.cookie(), listener: transfer.other }
            }
            kind::ADOPT_LISTENER => Self::AdoptListener { token: id.cookie() },
            kind::CONNECT => {
                let pair = record.pair();
                let flags = known(record, CONNECT_FLAGS)?;
                let (remote, local) = (pair.remote()?, pair.local_if_any()?);
                Self::Connect { remote, local, flags, reservation: id.cookie() }
            }
            kind::INFO => Self::Info { conn: id },
            kind::ADDRESSES => Self::Addresses { conn: id },
            kind::SET_OPTION => Self::SetOption { conn: id, option: count, value: record.body[0] },
            kind::SEND_COPY => Self::SendCopy { conn: id, chunk: transfer.chunk()? },
            kind::HOLDERS => Self::Holders { ports: ports(count) },
            kind::FREE_PORT => Self::FreePort { ports: ports(count), from: flags },
            kind::HAS_UNDELIVERED => Self::HasUndelivered,
            kind::BIND => Self::Bind {
                local: record.pair().local()?,
                flags: known(record, BIND_FLAGS)?,
                reservation: id.cookie(),
            },
            _ => return Self::parse_datagram(record),
        })
    }

    /// As `parse`, of calls about an endpoint for datagrams.
    fn parse_datagram(record: &Record) -> Result<Self, RecordFault> {
        let Record { flags, count, id: endpoint, .. } = *record;
        let transfer = record.transfer();
        Ok(match record.kind {
            kind::CONNECT_DATAGRAM => {
                Self::ConnectDatagram { endpoint, peer: transfer.address_if_any()? }
            }
            kind::CLOSE_DATAGRAM => Self::CloseDatagram { endpoint },
            kind::QUOTE_ERRORS => Self::QuoteErrors { endpoint, on: count == 1 },
            kind::PACKET_BYTES_MAX => Self::PacketBytesMax { to: transfer.address()?.ip() },
            kind::DATAGRAM_ADDRESS => Self::DatagramAddress { endpoint },
            kind::HOLD_ENDPOINT => {
                Self::HoldEndpoint { token: endpoint.cookie(), endpoint: object_of_token(record)? }
            }
            kind::ADOPT_ENDPOINT => {
                Self::AdoptEndpoint { token: endpoint.cookie(), endpoint: object_of_token(record)? }
            }
            kind::TAKE_DATAGRAM => Self::TakeDatagram { endpoint, keeps: count == 1 },
            kind::AWAIT_DATAGRAM => Self::AwaitDatagram { endpoint },
            kind::GIVE_DATAGRAM_BACK => {
                Self::GiveDatagramBack { endpoint, chunk: transfer.chunk()? }
            }
            kind::CHECK_DATAGRAMS => {
                let letter = record.letter();
                let (to, from) = letter.way(count)?;
                Self::CheckDatagrams { endpoint, to, from, len: letter.len, count: flags }
            }
            kind => return Err(RecordFault::Kind { kind }),
        })
    }
}

impl ListenSharing {
    fn transfer(&self) -> Transfer {
        let transfer = Transfer::default().with_other(Id { index: self.fast_open, generation: 0 });
        self.cores.map_or(transfer, |cores| transfer.with_chunk(cores))
    }

    fn parse(record: &Record) -> Result<Self, RecordFault> {
        let (transfer, flags) = (record.transfer(), known(record, LISTEN_FLAGS)?);
        // A list without cores is a chunk of no bytes.
        let has_cores = transfer.buf != 0 || transfer.len > 0;
        let cores = has_cores.then(|| transfer.chunk_or_none()).transpose()?;
        Ok(Self { flags, fast_open: transfer.other.index, cores })
    }
}

/// The object of a call about a token has a flag and the place of another id.
fn of_token(record: Record, token: u64, object: Option<Id>) -> Record {
    let record = record.with_id(Id::of_cookie(token));
    match object {
        Some(object) => {
            let transfer = Transfer::default().with_other(object);
            Record { flags: 1, ..record.with_transfer(&transfer) }
        }
        None => record,
    }
}

fn object_of_token(record: &Record) -> Result<Option<Id>, RecordFault> {
    Ok((known(record, 1)? == 1).then_some(record.transfer().other))
}

/// The flags of a record, none but `all`.
fn known(record: &Record, all: u16) -> Result<u16, RecordFault> {
    if record.flags & !all == 0 {
        Ok(record.flags)
    } else {
        Err(RecordFault::Bits { kind: record.kind })
    }
}

const fn range((first, last): (u16, u16)) -> u32 {
    first as u32 | (last as u32) << 16
}

const fn ports(range: u32) -> (u16, u16) {
    (range as u16, (range >> 16) as u16)
}

/// Set in the families of a letter that has a source address.
const HAS_SOURCE: u32 = 0x100;

impl Letter {
    /// Where a datagram goes, and from which address; with the families of both.
    pub(super) fn to(to: SocketAddr, from: Option<IpAddr>) -> (Self, u32) {
        let source = if from.is_some() { HAS_SOURCE } else { 0 };
        let from = from.map_or([0; 16], octets);
        let letter = Self { from, to: octets(to.ip()), port: to.port(), ..Self::default() };
        (letter, u32::from(family_of(to.ip())) | source)
    }

    /// The addresses that [`Letter::to`] has encoded.
    pub(super) fn way(&self, families: u32) -> Result<(SocketAddr, Option<IpAddr>), RecordFault> {
        let family = u16::try_from(families & !HAS_SOURCE).unwrap_or(u16::MAX);
        let to = SocketAddr::new(ip_of(family, self.to)?, self.port);
        let from = (families & HAS_SOURCE != 0).then(|| ip_of(family, self.from)).transpose()?;
        Ok((to, from))
    }
}
