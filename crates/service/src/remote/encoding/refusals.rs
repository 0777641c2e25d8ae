//! Errors in answers: their codes, and the host's text.

use std::io;

use megapipe_link::LinkError;
use megapipe_shm::record::Refusal;
use megapipe_stack::{BindError, ConnectError, ListenError, OperationError};

use super::bytes::{ValueReader, ValueWriter};
use crate::error::PortError;
use crate::policy::PolicyRefusal;
use crate::steering::BindingError;

/// An error of the stack that has a code for each of its values.
pub(in crate::remote) trait Coded: Copy + PartialEq + 'static {
    /// The values and their codes.
    const CODES: &'static [(Self, Refusal)];

    fn refusal(self) -> Refusal {
        let code = Self::CODES.iter().find(|(error, _)| *error == self);
        code.map_or(Refusal::NotPermitted, |(_, code)| *code)
    }

    /// The error with a code; `None` if it has no such code.
    fn from_refusal(refusal: Refusal) -> Option<Self> {
        Self::CODES.iter().find(|(_, code)| *code == refusal).map(|(error, _)| *error)
    }
}

impl Coded for OperationError {
    const CODES: &'static [(Self, Refusal)] = &[
        (Self::Unknown, Refusal::Unknown),
        (Self::NotConnected, Refusal::NotConnected),
        (Self::Closing, Refusal::Closing),
        (Self::BadChunk, Refusal::BadChunk),
        (Self::QueueFull, Refusal::QueueFull),
        (Self::BadAddress, Refusal::BadRemoteAddress),
        (Self::TooLong, Refusal::TooLong),
        (Self::NoMemory, Refusal::TooMany),
    ];
}

impl Coded for ListenError {
    const CODES: &'static [(Self, Refusal)] = &[
        (Self::BadLocalAddress, Refusal::BadLocalAddress),
        (Self::BadPort, Refusal::BadPort),
        (Self::InUse, Refusal::InUse),
        (Self::TooManyListeners, Refusal::TooMany),
        (Self::NoMemory, Refusal::QueueFull),
    ];
}

impl Coded for BindError {
    const CODES: &'static [(Self, Refusal)] = &[
        (Self::BadLocalAddress, Refusal::BadLocalAddress),
        (Self::InUse, Refusal::InUse),
        (Self::NoPort, Refusal::NoPort),
        (Self::TooManyEndpoints, Refusal::TooMany),
        (Self::NoMemory, Refusal::QueueFull),
    ];
}

impl Coded for ConnectError {
    const CODES: &'static [(Self, Refusal)] = &[
        (Self::NoRoute, Refusal::NoRoute),
        (Self::BadLocalAddress, Refusal::BadLocalAddress),
        (Self::BadRemoteAddress, Refusal::BadRemoteAddress),
        (Self::InUse, Refusal::InUse),
        (Self::NoPort, Refusal::NoPort),
        (Self::TooManyConnections, Refusal::TooMany),
    ];
}

/// An error of a port: its code, a number that belongs to it, and the host's text.
pub(in crate::remote) fn encode_port_error<E: Coded>(
    error: &PortError<E>,
) -> (Refusal, u32, Vec<u8>) {
    match error {
        PortError::Stack(error) => (error.refusal(), 0, Vec::new()),
        PortError::Host(error) => (Refusal::Host, 0, encode_link_error(error)),
        PortError::Shared(error) => {
            let (refusal, core) = match error {
                BindingError::InUse => (Refusal::AddressTaken, 0),
                BindingError::Overlap { core } => (Refusal::CoreTaken, *core),
                BindingError::NoCore => (Refusal::NoCore, 0),
                BindingError::Full => (Refusal::BindingsFull, 0),
                BindingError::NotBound => (Refusal::NotBound, 0),
            };
            (refusal, core, Vec::new())
        }
        PortError::Policy(PolicyRefusal::Port(text)) => (Refusal::PortDenied, 0, sentence(text)),
        PortError::Policy(PolicyRefusal::Quota(text)) => (Refusal::QuotaReached, 0, sentence(text)),
    }
}

fn sentence(text: &str) -> Vec<u8> {
    let mut to = ValueWriter::default();
    to.text(text);
    to.into_bytes()
}

/// A sentence that can be printed.
fn decode_sentence(bytes: &[u8]) -> Option<String> {
    let mut from = ValueReader::new(bytes);
    let text = from.text()?;
    from.end(text).filter(|text| !text.chars().any(char::is_control))
}

/// The error that [`encode_port_error`] has encoded; `None` if it is something else.
pub(in crate::remote) fn decode_port_error<E: Coded>(
    refusal: Refusal,
    detail: u32,
    text: &[u8],
) -> Option<PortError<E>> {
    let shared = match refusal {
        Refusal::Host => return decode_link_error(text).map(PortError::Host),
        Refusal::PortDenied => {
            return decode_sentence(text).map(|text| PortError::Policy(PolicyRefusal::Port(text)));
        }
        Refusal::QuotaReached => {
            return decode_sentence(text).map(|text| PortError::Policy(PolicyRefusal::Quota(text)));
        }
        Refusal::AddressTaken => BindingError::InUse,
        Refusal::CoreTaken => BindingError::Overlap { core: detail },
        Refusal::NoCore => BindingError::NoCore,
        Refusal::BindingsFull => BindingError::Full,
        Refusal::NotBound => BindingError::NotBound,
        other => return E::from_refusal(other).map(PortError::Stack),
    };
    Some(PortError::Shared(shared))
}

/// Names in a [`LinkError`], which are static: what was tried, drivers, settings.
const NAMES: &[&str] = &[
    "the server",
    "ownership",
    "interface",
    "port",
    "socket",
    "bind",
    "listen",
    "setsockopt",
    "netlink",
    "poll",
    "tap",
    "tun",
    "packet",
    "xdp",
    "memif",
    "pair",
];

/// The name, or that of the server where it is none that is known here.
fn static_name(name: &str) -> &'static str {
    NAMES.iter().find(|known| **known == name).unwrap_or(&NAMES[0])
}

fn encode_link_error(error: &LinkError) -> Vec<u8> {
    let mut to = ValueWriter::default();
    let (kind, name, why, errno) = match error {
        LinkError::Io { what, source } => {
            (0, *what, source.to_string(), source.raw_os_error().unwrap_or(0))
        }
        LinkError::Gone { driver } => (1, *driver, String::new(), 0),
        // The client that gets it does not try again.
        LinkError::Unavailable { driver, why } | LinkError::InUse { driver, why } => {
            (2, *driver, why.clone(), 0)
        }
        LinkError::Setting { setting, why } => (3, *setting, why.clone(), 0),
    };
    to.u8(kind);
    to.u32(errno as u32);
    to.text(name);
    to.text(&why);
    to.into_bytes()
}

fn decode_link_error(bytes: &[u8]) -> Option<LinkError> {
    let mut from = ValueReader::new(bytes);
    let (kind, errno, name, why) = (from.u8()?, from.u32()?, from.text()?, from.text()?);
    let known = static_name(&name);
    let error = match kind {
        0 => {
            let errno = io::Error::from_raw_os_error(errno as i32);
            // The text names what was tried, if that is a name of the server's own.
            let why = if known == name { why } else { format!("{name}: {why}") };
            LinkError::Io { what: known, source: io::Error::new(errno.kind(), why) }
        }
        1 => LinkError::Gone { driver: known },
        2 => LinkError::Unavailable { driver: known, why },
        3 => LinkError::Setting { setting: known, why },
        _ => return None,
    };
    from.end(error)
}
