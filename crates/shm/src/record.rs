//! The records that cross a process border, and what they may say.
//!
//! ```text
//!  0       2       4            8                        16                      24          64
//!  | kind  | flags | count      | cookie                 | index  | generation   | body      |
//! ```
//!
//! One raw record of one cache line for all rings, and a checked enum for each direction:
//! [`Op`] from an application to a server, [`Completion`] back, [`Message`] between servers about
//! the owner of a new connection. Bytes are native-endian: both ends run on one
//! machine.
//!
//! Read first: `op.rs` and `call.rs`; `bytes.rs` on how a record is copied out before it is parsed.
//!
//! Invariants
//! - A record is parsed once, from a private copy, at the border; behind it only the enums exist.
//! - Parsing accepts exactly what encoding makes: each record that is accepted encodes to the same
//!   bytes again. So a field that a kind does not use is zero, and an unknown bit is a fault.
//! - Kinds of different enums have different numbers: a record in the wrong ring is a fault.
//! - What parsing cannot know (whether an id is alive, a buffer the sender's) it does not promise.
//!
//! Pure: bytes in, enums out.

mod answer;
mod call;
mod code;
mod completion;
mod list;
mod message;
mod op;

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::bytes::Plain;
use crate::limits;
use crate::pool::BufId;

pub use answer::ServerAnswer;
pub use call::{
    BIND_EXCLUDES, BIND_MAPPED, BIND_SHARED, BIND_SPREADS, CONNECT_FAST_OPEN, CONNECT_HAS_NODELAY,
    CONNECT_NODELAY, CONNECT_RESETS, LISTEN_EXCLUSIVE, LISTEN_REUSE_ADDRESS, LISTEN_REUSE_PORT,
    LISTEN_V6_ONLY, ListenSharing, NO_ANSWER, SessionCall,
};
pub use code::{CloseCode, Refusal, UndeliveredCode};
pub use completion::{Arrival, Completion, Event};
pub use list::{Bufs, Ids};
pub use message::{AcceptorRef, ConnRef, Message, MessageSubject};
pub use op::{Command, Op};

/// A record as it lies in a ring.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    kind: u16,
    flags: u16,
    count: u32,
    cookie: u64,
    id: Id,
    body: Body,
}

/// The last 40 bytes of a record: as each kind says.
type Body = [u64; 5];

/// The name of a connection, a listener, an endpoint or an acceptor in a server's tables.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Id {
    /// Its place.
    pub index: u32,
    /// Which of the things that ever were in that place.
    pub generation: u32,
}

impl Id {
    /// A number in the place of a name.
    #[must_use]
    pub const fn of_cookie(cookie: u64) -> Self {
        Self { index: cookie as u32, generation: (cookie >> 32) as u32 }
    }

    /// The number that [`Id::of_cookie`] has put in the place of a name.
    #[must_use]
    pub const fn cookie(self) -> u64 {
        self.index as u64 | (self.generation as u64) << 32
    }
}

/// Bytes in a buffer of the channel's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The buffer.
    pub buf: BufId,
    /// Where the bytes begin, from the buffer's start.
    pub offset: u32,
    /// How many bytes; at least one, but of a datagram or of a list.
    pub len: u32,
}

/// A record that no honest other end would have written. The session with that end is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Not a kind of this ring's.
    #[error("unknown kind {kind:#x}")]
    Kind {
        /// The kind's number.
        kind: u16,
    },
    /// An address family that is none, or missing where it is needed.
    #[error("unknown address family {family}")]
    Family {
        /// The family's number.
        family: u16,
    },
    /// A code (of a refusal, of a reason) that is none.
    #[error("unknown code {code}")]
    Code {
        /// The code.
        code: u32,
    },
    /// A chunk of no bytes, or one that would be longer than any buffer.
    #[error("{len} bytes at {offset} are no chunk of a buffer")]
    Chunk {
        /// Where it begins.
        offset: u32,
        /// How long it is.
        len: u32,
    },
    /// A list of none, or of more than a record has room for.
    #[error("no record names {count}")]
    Count {
        /// How many it says there are.
        count: u32,
    },
    /// Bits that this kind does not use are set.
    #[error("bits set that kind {kind:#x} does not use")]
    Bits {
        /// The kind's number.
        kind: u16,
    },
}

/// A body with two addresses, each of which may be missing.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AddressPairRecord {
    local_family: u16,
    local_port: u16,
    remote_family: u16,
    remote_port: u16,
    local: [u8; 16],
    remote: [u8; 16],
}

/// A body with a chunk, an address, or both, and two numbers.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Transfer {
    buf: u32,
    offset: u32,
    len: u32,
    family: u16,
    port: u16,
    address: [u8; 16],
    /// A second id, or numbers, as each kind says.
    other: Id,
}

/// A body with a datagram: two addresses of one family, and the bytes of a buffer from its start.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Letter {
    buf: u32,
    len: u16,
    /// Of the sender; of one to be sent, of the receiver.
    port: u16,
    from: [u8; 16],
    to: [u8; 16],
}

// SAFETY: integers and arrays of them, `repr(C)`, without padding (the assertions below add up the
// fields), 64 bytes, aligned to 8.
unsafe impl Plain for Record {}
// SAFETY: as above; 40 bytes, aligned to 2.
unsafe impl Plain for AddressPairRecord {}
// SAFETY: as above; 40 bytes, aligned to 4.
unsafe impl Plain for Transfer {}
// SAFETY: as above; 40 bytes, aligned to 4.
unsafe impl Plain for Letter {}

const _: () = assert!(size_of::<Record>() == limits::LINE_BYTES && align_of::<Record>() == 8);
const _: () = assert!(offset_of!(Record, kind) == 0 && offset_of!(Record, flags) == 2);
const _: () = assert!(offset_of!(Record, count) == 4 && offset_of!(Record, cookie) == 8);
const _: () = assert!(offset_of!(Record, id) == 16 && size_of::<Id>() == 8);
const _: () = assert!(offset_of!(Id, index) == 0 && offset_of!(Id, generation) == 4);
const _: () = assert!(offset_of!(Record, body) == 24 && size_of::<Body>() == 40);
const _: () = assert!(
    size_of::<AddressPairRecord>() == 40 && offset_of!(AddressPairRecord, local_family) == 0
);
const _: () = assert!(
    offset_of!(AddressPairRecord, local_port) == 2
        && offset_of!(AddressPairRecord, remote_family) == 4
);
const _: () = assert!(offset_of!(AddressPairRecord, remote_port) == 6);
const _: () = assert!(
    offset_of!(AddressPairRecord, local) == 8 && offset_of!(AddressPairRecord, remote) == 24
);
const _: () = assert!(size_of::<Transfer>() == 40 && offset_of!(Transfer, offset) == 4);
const _: () = assert!(offset_of!(Transfer, len) == 8 && offset_of!(Transfer, family) == 12);
const _: () = assert!(offset_of!(Transfer, port) == 14 && offset_of!(Transfer, address) == 16);
const _: () = assert!(offset_of!(Transfer, other) == 32);
const _: () = assert!(size_of::<Letter>() == 40 && offset_of!(Letter, len) == 4);
const _: () = assert!(offset_of!(Letter, port) == 6 && offset_of!(Letter, from) == 8);
const _: () = assert!(offset_of!(Letter, to) == 24);

/// Reads a body as `B`, or writes it as one: the same bytes.
#[inline]
fn cast<A: Plain, B: Plain>(from: &A) -> B {
    const { assert!(size_of::<A>() == size_of::<B>()) };
    // SAFETY: the sizes are equal (asserted above), `A` has no padding and `B` takes any bytes
    // (`Plain`); the copy does not care for alignment.
    unsafe { std::mem::transmute_copy(from) }
}

impl Record {
    #[inline]
    fn new(kind: u16, cookie: u64) -> Self {
        Self { kind, cookie, ..Self::default() }
    }

    #[inline]
    fn with_id(self, id: Id) -> Self {
        Self { id, ..self }
    }

    #[inline]
    fn with_count(self, count: u32) -> Self {
        Self { count, ..self }
    }

    fn with_pair(self, pair: &AddressPairRecord) -> Self {
        Self { body: cast(pair), ..self }
    }

    #[inline]
    fn with_transfer(self, transfer: &Transfer) -> Self {
        Self { body: cast(transfer), ..self }
    }

    fn with_letter(self, letter: &Letter) -> Self {
        Self { body: cast(letter), ..self }
    }

    fn letter(&self) -> Letter {
        cast(&self.body)
    }

    fn pair(&self) -> AddressPairRecord {
        cast(&self.body)
    }

    #[inline]
    fn transfer(&self) -> Transfer {
        cast(&self.body)
    }

    /// The chunk of a record that holds only its owner.
    #[inline]
    fn chunk_alone(&self) -> Result<Chunk, RecordFault> {
        let transfer = self.transfer();
        let chunk = transfer.chunk()?;
        let Transfer { family, port, address, other, .. } = transfer;
        let unused = u64::from(self.flags) | u64::from(self.count) << 32;
        let is_alone = unused == 0
            && u32::from(family) | u32::from(port) << 16 == 0
            && u128::from_ne_bytes(address) == 0
            && other == Id::default();
        if is_alone { Ok(chunk) } else { Err(self.has_other_bits()) }
    }

    /// The id and the count of a record that has nothing else.
    #[inline]
    fn id_and_count(&self) -> Result<(Id, u32), RecordFault> {
        let unused = self.body.iter().fold(u64::from(self.flags), |all, word| all | word);
        if unused == 0 { Ok((self.id, self.count)) } else { Err(self.has_other_bits()) }
    }

    /// The id of a record that has nothing else.
    #[inline]
    fn id_alone(&self) -> Result<Id, RecordFault> {
        let (id, count) = self.id_and_count()?;
        if count == 0 { Ok(id) } else { Err(self.has_other_bits()) }
    }

    /// The id of a record that has nothing else, but perhaps an address.
    #[inline]
    fn id_and_address(&self) -> Result<(Id, Option<SocketAddr>), RecordFault> {
        if self.transfer().family == NO_ADDRESS {
            return Ok((self.id_alone()?, None));
        }
        match self.ids_and_address()? {
            (id, other, address, 0) if other == Id::default() => Ok((id, Some(address))),
            _ => Err(self.has_other_bits()),
        }
    }

    /// The two ids and the count of a record that has nothing else.
    #[inline]
    fn ids_and_count(&self) -> Result<(Id, Id, u32), RecordFault> {
        let [first, second, third, fourth, _] = self.body;
        let unused = first | second | third | fourth | u64::from(self.flags);
        let ids = (self.id, self.transfer().other, self.count);
        if unused == 0 { Ok(ids) } else { Err(self.has_other_bits()) }
    }

    /// The two ids, the address and the count of a record that has nothing else.
    #[inline]
    fn ids_and_address(&self) -> Result<(Id, Id, SocketAddr, u32), RecordFault> {
        let Transfer { buf, offset, len, family, address, other, .. } = self.transfer();
        let remote = self.transfer().address()?;
        // Those of IPv4 come first.
        let behind = if family == FAMILY_4 { u128::from_le_bytes(address) >> u32::BITS } else { 0 };
        let unused = u64::from(buf | offset | len) | u64::from(self.flags);
        let is_whole = unused == 0 && behind == 0;
        if is_whole { Ok((self.id, other, remote, self.count)) } else { Err(self.has_other_bits()) }
    }

    #[cold]
    const fn has_other_bits(&self) -> RecordFault {
        RecordFault::Bits { kind: self.kind }
    }

    /// What was parsed, if it encodes to this record again.
    fn canonical<T>(&self, parsed: T, encode: impl FnOnce(&T) -> Self) -> Result<T, RecordFault> {
        if encode(&parsed) == *self { Ok(parsed) } else { Err(self.has_other_bits()) }
    }
}

const NO_ADDRESS: u16 = 0;
const FAMILY_4: u16 = 4;
const FAMILY_6: u16 = 6;

fn family_of(ip: IpAddr) -> u16 {
    if ip.is_ipv4() { FAMILY_4 } else { FAMILY_6 }
}

/// The address's bytes; those of IPv4 with zeros behind them.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address's bytes as IPv6 has them, so that they say of which family it is.
fn mapped(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address with those bytes.
fn unmapped(octets: [u8; 16]) -> IpAddr {
    IpAddr::V6(octets.into()).to_canonical()
}

fn ip_of(family: u16, octets: [u8; 16]) -> Result<IpAddr, RecordFault> {
    match family {
        FAMILY_4 => Ok(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()),
        FAMILY_6 => Ok(Ipv6Addr::from(octets).into()),
        _ => Err(RecordFault::Family { family }),
    }
}

impl AddressPairRecord {
    fn with_local(self, local: SocketAddr) -> Self {
        let (local_family, local_port) = (family_of(local.ip()), local.port());
        Self { local_family, local_port, local: octets(local.ip()), ..self }
    }

    fn with_remote(self, remote: SocketAddr) -> Self {
        let (remote_family, remote_port) = (family_of(remote.ip()), remote.port());
        Self { remote_family, remote_port, remote: octets(remote.ip()), ..self }
    }

    fn local(&self) -> Result<SocketAddr, RecordFault> {
        Ok(SocketAddr::new(ip_of(self.local_family, self.local)?, self.local_port))
    }

    fn local_if_any(&self) -> Result<Option<SocketAddr>, RecordFault> {
        if self.local_family == NO_ADDRESS { Ok(None) } else { self.local().map(Some) }
    }

    fn remote(&self) -> Result<SocketAddr, RecordFault> {
        Ok(SocketAddr::new(ip_of(self.remote_family, self.remote)?, self.remote_port))
    }

    fn remote_if_any(&self) -> Result<Option<SocketAddr>, RecordFault> {
        if self.remote_family == NO_ADDRESS { Ok(None) } else { self.remote().map(Some) }
    }
}

impl Letter {
    /// Where it came from, and where it was sent to.
    fn addresses(&self, family: u32) -> Result<(IpAddr, IpAddr), RecordFault> {
        let family = u16::try_from(family).unwrap_or(u16::MAX);
        Ok((ip_of(family, self.from)?, ip_of(family, self.to)?))
    }
}

impl Transfer {
    #[inline]
    fn with_chunk(self, chunk: Chunk) -> Self {
        Self { buf: chunk.buf.bits(), offset: chunk.offset, len: chunk.len, ..self }
    }

    fn with_address(self, address: SocketAddr) -> Self {
        let (family, port) = (family_of(address.ip()), address.port());
        Self { family, port, address: octets(address.ip()), ..self }
    }

    fn with_other(self, other: Id) -> Self {
        Self { other, ..self }
    }

    #[inline]
    fn chunk(&self) -> Result<Chunk, RecordFault> {
        let (offset, len) = (self.offset, self.len);
        // The pool that the buffer is of says how long it really is (`Pool::check`).
        let fits = u64::from(offset) + u64::from(len) <= limits::BUF_BYTES_MAX as u64;
        if len == 0 || !fits {
            return Err(RecordFault::Chunk { offset, len });
        }
        Ok(Chunk { buf: BufId::from_bits(self.buf), offset, len })
    }

    /// As `chunk`, but it may be of no bytes, as datagrams and bytes that are given back may.
    fn chunk_or_none(&self) -> Result<Chunk, RecordFault> {
        match self.len {
            0 if self.offset == 0 => {
                Ok(Chunk { buf: BufId::from_bits(self.buf), offset: 0, len: 0 })
            }
            _ => self.chunk(),
        }
    }

    fn address(&self) -> Result<SocketAddr, RecordFault> {
        Ok(SocketAddr::new(ip_of(self.family, self.address)?, self.port))
    }

    fn address_if_any(&self) -> Result<Option<SocketAddr>, RecordFault> {
        if self.family == NO_ADDRESS { Ok(None) } else { self.address().map(Some) }
    }
}

#[cfg(test)]
mod tests;
