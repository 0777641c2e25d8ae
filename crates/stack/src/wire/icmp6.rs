//! ICMP for IPv6 (RFC 4443): echo, and the errors. Neighbour discovery, which is carried in it, is
//! in `ndp.rs`.
//!
//! ```text
//! type (1) | code (1) | checksum (2) | by type (4) | payload: echoed bytes, or the quoted packet
//! ```
//!
//! Invariant: the checksum covers the pseudo header (§2.3), so that reading and writing need its
//! sum.

use super::checksum;
use super::field::{put_u16, put_u32, rest, u8_at, u16_at, u32_at};
use crate::counters::Drop;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 8;

/// Code of "unreachable": no route.
pub const CODE_NO_ROUTE: u8 = 0;
/// Code of "unreachable": forbidden.
pub const CODE_PROHIBITED: u8 = 1;
/// Code of "unreachable": the host does not answer.
pub const CODE_ADDRESS: u8 = 3;
/// Code of "unreachable": the port.
pub const CODE_PORT: u8 = 4;
/// Code of "time exceeded": in reassembly.
pub const CODE_REASSEMBLY: u8 = 1;

/// Type of errors: it did not get there.
pub const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// A message whose length was checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks that the header is there.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`].
    pub const fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        if bytes.len() < HEADER_BYTES { Err(Drop::Truncated) } else { Ok(Self { bytes }) }
    }

    /// Type.
    #[must_use]
    pub fn kind(&self) -> u8 {
        u8_at(self.bytes, 0)
    }

    /// Code.
    #[must_use]
    pub fn code(&self) -> u8 {
        u8_at(self.bytes, 1)
    }

    /// The checksum is right; `pseudo_header` is the sum of the pseudo header.
    #[must_use]
    pub fn checksum_is_right(&self, pseudo_header: u16) -> bool {
        checksum::combine(pseudo_header, checksum::sum(self.bytes)) == 0xffff
    }

    /// Header and payload.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What follows the header.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        rest(self.bytes, HEADER_BYTES)
    }
}

/// A message's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repr {
    /// Send this back.
    Echo {
        /// Zero by the RFC; hosts do not check it and return what they received.
        code: u8,
        /// Which series.
        identifier: u16,
        /// Which of the series.
        sequence: u16,
    },
    /// It was sent back.
    EchoReply {
        /// That of the question.
        code: u8,
        /// Which series.
        identifier: u16,
        /// Which of the series.
        sequence: u16,
    },
    /// The quoted packet did not get there.
    Unreachable {
        /// Why.
        code: u8,
    },
    /// The quoted packet is larger than the next link takes.
    PacketTooBig {
        /// MTU of that link in bytes.
        mtu: u32,
    },
    /// The quoted packet took too long.
    TimeExceeded {
        /// Where.
        code: u8,
    },
    /// The quoted packet has a bad header.
    ParameterProblem {
        /// Which kind of problem.
        code: u8,
        /// The byte that is the problem.
        pointer: u32,
    },
    /// A message of another type: neighbour discovery's, or one that we have no use for.
    Other {
        /// Its type: none of the above.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl Repr {
    /// What `view` says; `pseudo_header` is the sum of the pseudo header.
    ///
    /// # Errors
    ///
    /// [`Drop::BadTransportChecksum`].
    pub fn parse(view: &View<'_>, pseudo_header: u16) -> Result<Self, Drop> {
        if !view.checksum_is_right(pseudo_header) {
            return Err(Drop::BadTransportChecksum);
        }
        let (high, low) = (u16_at(view.bytes, 4), u16_at(view.bytes, 6));
        Ok(match (view.kind(), view.code()) {
            (ECHO, code) => Self::Echo { code, identifier: high, sequence: low },
            (ECHO_REPLY, code) => Self::EchoReply { code, identifier: high, sequence: low },
            (UNREACHABLE, code) => Self::Unreachable { code },
            // The code is unused (RFC 4443 §3.2).
            (PACKET_TOO_BIG, _) => Self::PacketTooBig { mtu: u32_at(view.bytes, 4) },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code },
            (PARAMETER_PROBLEM, code) => {
                Self::ParameterProblem { code, pointer: u32_at(view.bytes, 4) }
            }
            (kind, code) => Self::Other { kind, code },
        })
    }

    /// It speaks of a packet that went wrong, and quotes it.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        match *self {
            Self::Echo { .. } | Self::EchoReply { .. } => false,
            // Types below 128 are errors, also those we do not know (§2.1).
            Self::Other { kind, .. } => kind < 128,
            _ => true,
        }
    }

    /// Length of the header in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }

    /// Writes the header to the start of `message`, whose payload is in place, with a checksum of
    /// all of it and of a pseudo header that sums to `pseudo_header`.
    ///
    /// # Panics
    ///
    /// If `message` is shorter than [`Repr::header_bytes`].
    pub fn emit(&self, message: &mut [u8], pseudo_header: u16) {
        let pair = |high: u16, low: u16| u32::from(high) << 16 | u32::from(low);
        let (kind, code, by_type) = match *self {
            Self::Echo { code, identifier, sequence } => (ECHO, code, pair(identifier, sequence)),
            Self::EchoReply { code, identifier, sequence } => {
                (ECHO_REPLY, code, pair(identifier, sequence))
            }
            Self::Unreachable { code } => (UNREACHABLE, code, 0),
            Self::PacketTooBig { mtu } => (PACKET_TOO_BIG, 0, mtu),
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code, 0),
            Self::ParameterProblem { code, pointer } => (PARAMETER_PROBLEM, code, pointer),
            Self::Other { kind, code } => (kind, code, 0),
        };
        message[0..2].copy_from_slice(&[kind, code]);
        put_u32(message, 4, by_type);
        write_checksum(message, pseudo_header);
    }
}

/// Writes the checksum of a message that is otherwise in place.
///
/// # Panics
///
/// If `message` is shorter than [`HEADER_BYTES`].
pub fn write_checksum(message: &mut [u8], pseudo_header: u16) {
    put_u16(message, 2, 0);
    let sum = checksum::combine(pseudo_header, checksum::sum(message));
    put_u16(message, 2, checksum::finish(sum));
}
