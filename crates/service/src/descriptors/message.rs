//! Messages of the control socket within a session, as bytes.
//!
//! ```text
//!  every message | magic (8) | kind (2) | cookie (8) |
//!  PASS          | purpose (2) |
//!  RELEASE       | (lane (2) | index (4) | generation (4)) × number of connections |
//!  RELEASE_ENDPOINTS | the same of endpoints |
//!  FORGET, PASSED, GIVE, TOKEN: nothing more
//!  NOT_PASSED    | errno (4) | sentence |
//! ```
//!
//! Integers are native-endian: both ends are on one machine. The sentence is UTF-8 up to the end.
//!
//! Invariant: a reader accepts exactly what the writer makes.

use megapipe_stack::{ConnId, DatagramId};

use crate::limits::PASS_SENTENCE_BYTES_MAX;

/// As of the messages of the handshake, whose kinds are 1 to 4.
const MAGIC: [u8; 8] = *b"megapipe";

const PASS: u16 = 5;
const FORGET: u16 = 6;
const PASSED: u16 = 7;
const NOT_PASSED: u16 = 8;
const GIVE: u16 = 9;
const TOKEN: u16 = 10;
const RELEASE: u16 = 11;
/// Since version 9 of the protocol.
const RELEASE_ENDPOINTS: u16 = 12;

/// In the cookie of a token that is given: shards count their own cookies from 1.
pub(crate) const GIVEN_TOKEN: u64 = 1 << 63;
/// Most connections or endpoints in a message.
pub(crate) const RELEASED_MAX: usize = 256;

/// What a client passes descriptors for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PassPurpose {
    /// The reservation of a port of TCP: sockets that are bound.
    TcpPort = 1,
    /// The same of UDP.
    UdpPort = 2,
    /// A connection of the kernel's that is to become the stack's: one socket.
    Connection = 3,
    /// Sockets of the program that listen at one port, which the stack is to serve.
    Listener = 4,
    /// A token: one socket, for a call that adopts what it owns.
    Token = 5,
}

impl PassPurpose {
    const fn of(number: u16) -> Option<Self> {
        match number {
            1 => Some(Self::TcpPort),
            2 => Some(Self::UdpPort),
            3 => Some(Self::Connection),
            4 => Some(Self::Listener),
            5 => Some(Self::Token),
            _ => None,
        }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionMessage {
    /// A client passes descriptors.
    Pass {
        /// Their name in a call.
        cookie: u64,
        /// What they are for.
        purpose: PassPurpose,
    },
    /// A client makes no call with a cookie any more.
    Forget {
        /// The cookie.
        cookie: u64,
    },
    /// The daemon keeps what was passed.
    Passed {
        /// Its name.
        cookie: u64,
    },
    /// The daemon has closed what was passed.
    NotPassed {
        /// Its name; 0 if it could not be read.
        cookie: u64,
        /// The nearest number of the kernel's.
        errno: i32,
        /// Names the rule.
        sentence: String,
    },
    /// The daemon gives a descriptor.
    Give {
        /// Its name in the answer to a call.
        cookie: u64,
    },
    /// A client wants a token; over a token: one for what that one owns.
    Token {
        /// Its name in a call.
        cookie: u64,
    },
    /// The holder of a token lets go of connections that it owns by it alone.
    Release {
        /// The connections, at most [`RELEASED_MAX`].
        conns: Vec<SharedConn>,
    },
    /// The same of endpoints for datagrams.
    ReleaseEndpoints {
        /// The endpoints, at most [`RELEASED_MAX`].
        endpoints: Vec<SharedEndpoint>,
    },
}

/// The name of a connection among all shards of a daemon: what a process inherits of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedConn {
    /// The lane of the session that shared it.
    pub lane: u16,
    /// Its name at the lane's shard.
    pub conn: ConnId,
}

/// As [`SharedConn`], of an endpoint for datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedEndpoint {
    /// The lane of the session that shared it.
    pub lane: u16,
    /// Its name at the lane's shard.
    pub endpoint: DatagramId,
}

impl SessionMessage {
    /// As bytes. Control characters of a sentence are left out.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, cookie) = match self {
            Self::Pass { cookie, .. } => (PASS, cookie),
            Self::Forget { cookie } => (FORGET, cookie),
            Self::Passed { cookie } => (PASSED, cookie),
            Self::NotPassed { cookie, .. } => (NOT_PASSED, cookie),
            Self::Give { cookie } => (GIVE, cookie),
            Self::Token { cookie } => (TOKEN, cookie),
            Self::Release { .. } => (RELEASE, &0),
            Self::ReleaseEndpoints { .. } => (RELEASE_ENDPOINTS, &0),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(cookie.to_ne_bytes());
        match self {
            Self::Pass { purpose, .. } => bytes.extend((*purpose as u16).to_ne_bytes()),
            Self::NotPassed { errno, sentence, .. } => {
                let plain: String = sentence.chars().filter(|it| !it.is_control()).collect();
                let end = plain.floor_char_boundary(PASS_SENTENCE_BYTES_MAX);
                bytes.extend(errno.to_ne_bytes());
                bytes.extend(&plain.as_bytes()[..end]);
            }
            Self::Release { conns } => {
                for SharedConn { lane, conn } in conns {
                    bytes.extend(encode_name(*lane, conn.index, conn.generation));
                }
            }
            Self::ReleaseEndpoints { endpoints } => {
                for SharedEndpoint { lane, endpoint } in endpoints {
                    bytes.extend(encode_name(*lane, endpoint.index, endpoint.generation));
                }
            }
            Self::Forget { .. } | Self::Passed { .. } | Self::Give { .. } | Self::Token { .. } => {}
        }
        bytes
    }

    /// Reads a message. `None`: it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let body = bytes.strip_prefix(&MAGIC)?;
        let (kind, body) = body.split_first_chunk()?;
        let (cookie, body) = body.split_first_chunk()?;
        let (kind, cookie) = (u16::from_ne_bytes(*kind), u64::from_ne_bytes(*cookie));
        let message = match kind {
            PASS => {
                let purpose = PassPurpose::of(u16::from_ne_bytes(body.try_into().ok()?))?;
                return Some(Self::Pass { cookie, purpose });
            }
            NOT_PASSED => {
                let (errno, text) = body.split_first_chunk()?;
                let sentence = std::str::from_utf8(text).ok()?.to_owned();
                let is_plain = !sentence.chars().any(char::is_control);
                let errno = i32::from_ne_bytes(*errno);
                let is_short = text.len() <= PASS_SENTENCE_BYTES_MAX;
                let message = Self::NotPassed { cookie, errno, sentence };
                return (is_plain && is_short).then_some(message);
            }
            FORGET => Self::Forget { cookie },
            PASSED => Self::Passed { cookie },
            GIVE => Self::Give { cookie },
            TOKEN => Self::Token { cookie },
            RELEASE | RELEASE_ENDPOINTS => {
                let (names, rest) = body.as_chunks::<NAME_BYTES>();
                let is_whole = rest.is_empty() && names.len() <= RELEASED_MAX && cookie == 0;
                let names = names.iter().map(decode_name);
                return is_whole.then(|| match kind {
                    RELEASE => Self::Release { conns: names.map(SharedConn::of).collect() },
                    _ => Self::ReleaseEndpoints {
                        endpoints: names.map(SharedEndpoint::of).collect(),
                    },
                });
            }
            _ => return None,
        };
        body.is_empty().then_some(message)
    }
}

/// Bytes of a name.
const NAME_BYTES: usize = 10;

fn encode_name(lane: u16, index: u32, generation: u32) -> [u8; NAME_BYTES] {
    let ([a, b], [c, d, e, f]) = (lane.to_ne_bytes(), index.to_ne_bytes());
    let [g, h, i, j] = generation.to_ne_bytes();
    [a, b, c, d, e, f, g, h, i, j]
}

/// Lane, index and generation.
const fn decode_name(bytes: &[u8; NAME_BYTES]) -> (u16, u32, u32) {
    let [a, b, c, d, e, f, g, h, i, j] = *bytes;
    let (index, generation) = (u32::from_ne_bytes([c, d, e, f]), u32::from_ne_bytes([g, h, i, j]));
    (u16::from_ne_bytes([a, b]), index, generation)
}

impl SharedConn {
    const fn of((lane, index, generation): (u16, u32, u32)) -> Self {
        Self { lane, conn: ConnId { index, generation } }
    }
}

impl SharedEndpoint {
    const fn of((lane, index, generation): (u16, u32, u32)) -> Self {
        Self { lane, endpoint: DatagramId { index, generation } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_messages_are_read_as_they_were_written() {
        let sentence = "TCP 0.0.0.0:80 is in use by another program".to_owned();
        for message in [
            SessionMessage::Pass { cookie: 7, purpose: PassPurpose::TcpPort },
            SessionMessage::Pass { cookie: 8, purpose: PassPurpose::Connection },
            SessionMessage::Pass { cookie: u64::MAX, purpose: PassPurpose::UdpPort },
            SessionMessage::Forget { cookie: 1 },
            SessionMessage::Passed { cookie: 2 },
            SessionMessage::NotPassed { cookie: 3, errno: 98, sentence },
            SessionMessage::Give { cookie: 4 },
            SessionMessage::Token { cookie: 5 },
        ] {
            let bytes = message.encode();
            assert_eq!(SessionMessage::decode(&bytes).as_ref(), Some(&message));
            let head = if matches!(message, SessionMessage::NotPassed { .. }) { 22 } else { 255 };
            for len in 0..bytes.len().min(head) {
                assert_eq!(SessionMessage::decode(&bytes[..len]), None, "{len} of {message:?}");
            }
            let mut other = bytes.clone();
            other[8] ^= 0x40;
            assert_eq!(SessionMessage::decode(&other), None, "another kind");
            other = bytes;
            other.push(0);
            assert_eq!(SessionMessage::decode(&other), None, "a byte more of {message:?}");
        }
    }

    #[test]
    fn released_endpoints_are_read_as_they_were_written() {
        let endpoint = DatagramId { index: 3, generation: 9 };
        let endpoints = vec![SharedEndpoint { lane: 2, endpoint }; RELEASED_MAX];
        let message = SessionMessage::ReleaseEndpoints { endpoints: endpoints.clone() };
        assert_eq!(SessionMessage::decode(&message.encode()), Some(message));
        let endpoints = [endpoints, vec![SharedEndpoint { lane: 2, endpoint }]].concat();
        let bytes = SessionMessage::ReleaseEndpoints { endpoints }.encode();
        assert_eq!(SessionMessage::decode(&bytes), None);
    }

    #[test]
    fn released_connections_are_read_as_they_were_written() {
        let name = |lane, index| SharedConn { lane, conn: ConnId { index, generation: 7 } };
        for count in [0, 1, 3, RELEASED_MAX] {
            let conns = (0..count as u32).map(|it| name(it as u16 % 4, it)).collect();
            let message = SessionMessage::Release { conns };
            let mut bytes = message.encode();
            assert_eq!(SessionMessage::decode(&bytes), Some(message));
            bytes.push(0);
            assert_eq!(SessionMessage::decode(&bytes), None);
        }
        let conns = vec![name(0, 0); RELEASED_MAX + 1];
        assert_eq!(SessionMessage::decode(&SessionMessage::Release { conns }.encode()), None);
    }
}
