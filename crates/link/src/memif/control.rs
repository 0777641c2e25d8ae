//! The messages of the control channel, to bytes and back.
//!
//! Every message is one SEQPACKET record of 128 bytes: a type of 16 bits, then a packed payload,
//! the rest zero. Numbers are in the host's byte order: both ends are on one machine. The shape is
//! that of version 2.0 in VPP's and DPDK's `memif.h`.
//!
//! Invariants
//! - `decode` never panics, whatever the bytes are, and `decode(encode(m)) == m` for every message
//!   whose texts fit.

/// Bytes in a message.
pub(super) const MESSAGE_BYTES: usize = 128;

/// Version 2.0, the one that VPP and DPDK speak.
pub(super) const VERSION: u16 = 2 << 8;

/// Bytes in a name, its last one a zero.
const NAME_BYTES: usize = 32;

/// Bytes in the secret.
pub(super) const SECRET_BYTES: usize = 24;

/// Bytes in the reason of a DISCONNECT.
const REASON_BYTES: usize = 96;

/// ADD_RING: the ring leads from client to server.
const RING_TO_SERVER: u16 = 1;

/// A name: printable, at most 31 bytes.
pub(super) type Name = FixedText<NAME_BYTES>;

/// A text in a field of `N` bytes, ended by a zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FixedText<const N: usize>([u8; N]);

impl<const N: usize> FixedText<N> {
    /// As much of `text` as fits before the zero.
    pub(super) fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        let len = text.len().min(N - 1);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        Self(bytes)
    }

    /// The text, fit to be shown: what is not UTF-8 or steers a terminal is replaced.
    pub(super) fn to_text(self) -> String {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        String::from_utf8_lossy(&self.0[..len]).replace(char::is_control, "\u{fffd}")
    }
}

/// What the server can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    /// Name of the server.
    pub(super) name: Name,
    /// The lowest version.
    pub(super) version_min: u16,
    /// The highest version.
    pub(super) version_max: u16,
    /// The highest index of a region.
    pub(super) region_index_max: u16,
    /// The highest index of a ring towards the client.
    pub(super) to_client_index_max: u16,
    /// The highest index of a ring towards the server.
    pub(super) to_server_index_max: u16,
    /// The largest ring, as a power of two.
    pub(super) ring_size_log2_max: u8,
}

/// What the client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Init {
    /// The version that it speaks.
    pub(super) version: u16,
    /// The interface on this socket that it wants.
    pub(super) id: u32,
    /// What frames start with: 0 Ethernet, 1 IP.
    pub(super) mode: u8,
    /// What the server asks for before it talks.
    pub(super) secret: [u8; SECRET_BYTES],
    /// Name of the client.
    pub(super) name: Name,
}

/// Where a ring lies; its event descriptor comes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AddRing {
    /// It leads from client to server.
    pub(super) to_server: bool,
    /// Which of the rings in that direction.
    pub(super) index: u16,
    /// The region that holds it.
    pub(super) region: u16,
    /// Its first byte in the region.
    pub(super) offset: u32,
    /// Descriptors, as a power of two.
    pub(super) size_log2: u8,
    /// Bytes of private data in front of each frame; we want none.
    pub(super) private_header_bytes: u16,
}

/// One message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemifMessage {
    /// The last message was taken.
    Ack,
    /// Server to client, first of all.
    Hello(Hello),
    /// Client to server: the answer to HELLO.
    Init(Init),
    /// Client to server, with a descriptor: memory.
    AddRegion {
        /// Which region.
        index: u16,
        /// Its bytes.
        bytes: u64,
    },
    /// Client to server, with an event descriptor: a ring in a region.
    AddRing(AddRing),
    /// Client to server: everything was added.
    Connect {
        /// The client's interface.
        name: Name,
    },
    /// Server to client: frames may flow.
    Connected {
        /// The server's interface.
        name: Name,
    },
    /// Either way: it is over.
    Disconnect {
        /// A number for machines.
        code: u32,
        /// Words for people.
        reason: FixedText<REASON_BYTES>,
    },
}

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoMessage {
    /// Not 128 bytes.
    #[error("a message of another length than 128 bytes")]
    Length,
    /// A type that the protocol does not have.
    #[error("a message of an unknown type")]
    Type,
}

impl MemifMessage {
    /// The bytes to send.
    pub(super) fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = FieldWriter { bytes: [0; MESSAGE_BYTES], at: 0 };
        match self {
            Self::Ack => out.put(1u16.to_ne_bytes()),
            Self::Hello(hello) => {
                out.put(2u16.to_ne_bytes());
                out.put(hello.name.0);
                out.put(hello.version_min.to_ne_bytes());
                out.put(hello.version_max.to_ne_bytes());
                out.put(hello.region_index_max.to_ne_bytes());
                out.put(hello.to_client_index_max.to_ne_bytes());
                out.put(hello.to_server_index_max.to_ne_bytes());
                out.put([hello.ring_size_log2_max]);
            }
            Self::Init(init) => {
                out.put(3u16.to_ne_bytes());
                out.put(init.version.to_ne_bytes());
                out.put(init.id.to_ne_bytes());
                out.put([init.mode]);
                out.put(init.secret);
                out.put(init.name.0);
            }
            Self::AddRegion { index, bytes } => {
                out.put(4u16.to_ne_bytes());
                out.put(index.to_ne_bytes());
                out.put(bytes.to_ne_bytes());
            }
            Self::AddRing(ring) => {
                out.put(5u16.to_ne_bytes());
                out.put(if ring.to_server { RING_TO_SERVER } else { 0 }.to_ne_bytes());
                out.put(ring.index.to_ne_bytes());
                out.put(ring.region.to_ne_bytes());
                out.put(ring.offset.to_ne_bytes());
                out.put([ring.size_log2]);
                out.put(ring.private_header_bytes.to_ne_bytes());
            }
            Self::Connect { name } => {
                out.put(6u16.to_ne_bytes());
                out.put(name.0);
            }
            Self::Connected { name } => {
                out.put(7u16.to_ne_bytes());
                out.put(name.0);
            }
            Self::Disconnect { code, reason } => {
                out.put(8u16.to_ne_bytes());
                out.put(code.to_ne_bytes());
                out.put(reason.0);
            }
        }
        out.bytes
    }

    /// What was received.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, NoMessage> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| NoMessage::Length)?;
        let mut from = FieldReader { bytes, at: 0 };
        Ok(match from.u16() {
            1 => Self::Ack,
            2 => Self::Hello(from.hello()),
            3 => Self::Init(from.init()),
            4 => Self::AddRegion { index: from.u16(), bytes: u64::from_ne_bytes(from.take()) },
            5 => Self::AddRing(from.add_ring()),
            6 => Self::Connect { name: FixedText(from.take()) },
            7 => Self::Connected { name: FixedText(from.take()) },
            8 => Self::Disconnect { code: from.u32(), reason: FixedText(from.take()) },
            _ => return Err(NoMessage::Type),
        })
    }
}

/// Puts fields one behind another. The longest message is shorter than the record, so nothing that
/// `encode` puts can run over its end.
struct FieldWriter {
    bytes: [u8; MESSAGE_BYTES],
    at: usize,
}

impl FieldWriter {
    fn put<const N: usize>(&mut self, field: [u8; N]) {
        self.bytes[self.at..self.at + N].copy_from_slice(&field);
        self.at += N;
    }
}

/// Takes fields one behind another; the same bound as [`FieldWriter`]'s.
struct FieldReader<'a> {
    bytes: &'a [u8; MESSAGE_BYTES],
    at: usize,
}

impl FieldReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn hello(&mut self) -> Hello {
        Hello {
            name: FixedText(self.take()),
            version_min: self.u16(),
            version_max: self.u16(),
            region_index_max: self.u16(),
            to_client_index_max: self.u16(),
            to_server_index_max: self.u16(),
            ring_size_log2_max: self.u8(),
        }
    }

    fn init(&mut self) -> Init {
        Init {
            version: self.u16(),
            id: self.u32(),
            mode: self.u8(),
            secret: self.take(),
            name: FixedText(self.take()),
        }
    }

    fn add_ring(&mut self) -> AddRing {
        AddRing {
            to_server: self.u16() & RING_TO_SERVER != 0,
            index: self.u16(),
            region: self.u16(),
            offset: self.u32(),
            size_log2: self.u8(),
            private_header_bytes: self.u16(),
        }
    }
}

#[cfg(test)]
mod tests;
