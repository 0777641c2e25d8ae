//! ICMP for IPv4 (RFC 792): echo, and the errors.
//!
//! ```text
//! type (1) | code (1) | checksum (2) | by type (4) | payload: echoed bytes, or the quoted packet
//! ```
//!
//! Invariant: redirects, timestamps and everything else are [`Repr::Other`]: a host with configured
//! routes needs none of them (RFC 1812 §4.3.3.8; RFC 6633 for source quench).

use super::checksum;
use super::field::{put_u16, rest, u8_at, u16_at};
use crate::counters::Drop;

/// Bytes before the payload.
pub const HEADER_BYTES: usize = 8;

/// Code of "unreachable": the network.
pub const CODE_NETWORK: u8 = 0;
/// Code of "unreachable": the host.
pub const CODE_HOST: u8 = 1;
/// Code of "unreachable": the protocol.
pub const CODE_PROTOCOL: u8 = 2;
/// Code of "unreachable": the port.
pub const CODE_PORT: u8 = 3;
/// Code of "unreachable": larger than the next link takes, and not to be cut.
pub const CODE_FRAGMENTATION_NEEDED: u8 = 4;
/// Code of "time exceeded": in reassembly.
pub const CODE_REASSEMBLY: u8 = 1;

const ECHO_REPLY: u8 = 0;
/// Type of errors: it did not get there.
pub const UNREACHABLE: u8 = 3;
const ECHO: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
/// Type of errors: parameter problem.
pub const PARAMETER_PROBLEM: u8 = 12;

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

    /// The checksum is right.
    #[must_use]
    pub fn checksum_is_right(&self) -> bool {
        checksum::sum(self.bytes) == 0xffff
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
        /// With [`CODE_FRAGMENTATION_NEEDED`]: MTU of the next link in bytes, or zero from a
        /// router that does not say (RFC 1191 §4). Otherwise zero.
        mtu: u16,
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
        pointer: u8,
    },
    /// A message that we have no use for.
    Other {
        /// Its type: none of the above.
        kind: u8,
        /// Its code.
        code: u8,
    },
}

impl Repr {
    /// What `view` says.
    ///
    /// # Errors
    ///
    /// [`Drop::BadTransportChecksum`].
    pub fn parse(view: &View<'_>) -> Result<Self, Drop> {
        if !view.checksum_is_right() {
            return Err(Drop::BadTransportChecksum);
        }
        let (high, low) = (u16_at(view.bytes, 4), u16_at(view.bytes, 6));
        Ok(match (view.kind(), view.code()) {
            (ECHO, code) => Self::Echo { code, identifier: high, sequence: low },
            (ECHO_REPLY, code) => Self::EchoReply { code, identifier: high, sequence: low },
            (UNREACHABLE, CODE_FRAGMENTATION_NEEDED) => {
                Self::Unreachable { code: CODE_FRAGMENTATION_NEEDED, mtu: low }
            }
            (UNREACHABLE, code) => Self::Unreachable { code, mtu: 0 },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code },
            (PARAMETER_PROBLEM, code) => {
                Self::ParameterProblem { code, pointer: u8_at(view.bytes, 4) }
            }
            (kind, code) => Self::Other { kind, code },
        })
    }

    /// It speaks of a packet that went wrong, and quotes it.
    #[must_use]
    pub const fn is_error(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::TimeExceeded { .. } | Self::ParameterProblem { .. }
        )
    }

    /// Length of the header in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        HEADER_BYTES
    }

    /// Writes the header to the start of `message`, whose payload is in place, with a checksum of
    /// both.
    ///
    /// # Panics
    ///
    /// If `message` is shorter than [`Repr::header_bytes`].
    pub fn emit(&self, message: &mut [u8]) {
        let (kind, code, high, low) = match *self {
            Self::Echo { code, identifier, sequence } => (ECHO, code, identifier, sequence),
            Self::EchoReply { code, identifier, sequence } => {
                (ECHO_REPLY, code, identifier, sequence)
            }
            Self::Unreachable { code, mtu } => (UNREACHABLE, code, 0, mtu),
            Self::TimeExceeded { code } => (TIME_EXCEEDED, code, 0, 0),
            Self::ParameterProblem { code, pointer } => {
                (PARAMETER_PROBLEM, code, u16::from(pointer) << 8, 0)
            }
            Self::Other { kind, code } => (kind, code, 0, 0),
        };
        message[0..2].copy_from_slice(&[kind, code]);
        put_u16(message, 2, 0);
        put_u16(message, 4, high);
        put_u16(message, 6, low);
        let checksum = checksum::finish(checksum::sum(message));
        put_u16(message, 2, checksum);
    }
}
