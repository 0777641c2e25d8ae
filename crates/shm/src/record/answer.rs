//! Answers: what comes back for an op, one each, with the op's cookie.
//!
//! Read first: `call.rs` for which call has which answer.

use std::net::{IpAddr, SocketAddr};

use super::code::{CloseCode, Refusal};
use super::{AddressPairRecord, Chunk, Id, Record, RecordFault, Transfer};

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerAnswer {
    /// It was done.
    Done,
    /// A listener was made.
    Listening {
        /// Its name.
        listener: Id,
    },
    /// A connection is being opened; `Connected` or `Closed` follows.
    Connecting {
        /// Its name.
        conn: Id,
    },
    /// A connection was adopted that is still being opened; `Connected` or `Closed` follows.
    AdoptedConnecting {
        /// Its name.
        conn: Id,
    },
    /// A connection is not adopted: the attempt to open it has failed.
    ConnectFailed {
        /// Why.
        reason: CloseCode,
    },
    /// An endpoint for datagrams was made.
    Bound {
        /// Its name.
        endpoint: Id,
    },
    /// A number.
    Value {
        /// The number.
        value: u64,
    },
    /// Addresses.
    Addresses {
        /// The local one, and its port.
        local: (IpAddr, u16),
        /// The peer's.
        remote: Option<(IpAddr, u16)>,
    },
    /// What was asked for lies in the call buffer.
    Written {
        /// Where; perhaps no bytes.
        chunk: Chunk,
    },
    /// It was not done.
    Refused {
        /// Why.
        refusal: Refusal,
        /// A number that belongs to the reason, or 0.
        detail: u32,
        /// The host's text, in the call buffer.
        text: Option<Chunk>,
    },
}

/// The kinds of answers: 0x240 on.
mod kind {
    pub(super) const DONE: u16 = 0x240;
    pub(super) const LISTENING: u16 = 0x241;
    pub(super) const CONNECTING: u16 = 0x242;
    pub(super) const BOUND: u16 = 0x243;
    pub(super) const VALUE: u16 = 0x244;
    pub(super) const ADDRESSES: u16 = 0x245;
    pub(super) const WRITTEN: u16 = 0x246;
    pub(super) const REFUSED: u16 = 0x247;
    pub(super) const ADOPTED_CONNECTING: u16 = 0x248;
    pub(super) const CONNECT_FAILED: u16 = 0x249;
}

impl ServerAnswer {
    /// A refusal without details.
    #[must_use]
    pub const fn refused(refusal: Refusal) -> Self {
        Self::Refused { refusal, detail: 0, text: None }
    }

    /// Addresses without flow labels and scopes.
    #[must_use]
    pub fn addresses(local: SocketAddr, remote: Option<SocketAddr>) -> Self {
        let short = |address: SocketAddr| (address.ip(), address.port());
        Self::Addresses { local: short(local), remote: remote.map(short) }
    }

    /// The answer as a record.
    pub(super) fn record(&self, cookie: u64) -> Record {
        let record = |kind| Record::new(kind, cookie);
        let transfer = Transfer::default();
        match *self {
            Self::Done => record(kind::DONE),
            Self::Listening { listener } => record(kind::LISTENING).with_id(listener),
            Self::Connecting { conn } => record(kind::CONNECTING).with_id(conn),
            Self::AdoptedConnecting { conn } => record(kind::ADOPTED_CONNECTING).with_id(conn),
            Self::ConnectFailed { reason } => {
                record(kind::CONNECT_FAILED).with_count(reason as u32)
            }
            Self::Bound { endpoint } => record(kind::BOUND).with_id(endpoint),
            Self::Value { value } => Record { body: [value, 0, 0, 0, 0], ..record(kind::VALUE) },
            Self::Addresses { local, remote } => {
                let pair = AddressPairRecord::default().with_local(local.into());
                let pair = remote.map_or(pair, |remote| pair.with_remote(remote.into()));
                record(kind::ADDRESSES).with_pair(&pair)
            }
            Self::Written { chunk } => {
                record(kind::WRITTEN).with_transfer(&transfer.with_chunk(chunk))
            }
            Self::Refused { refusal, detail, text } => {
                let transfer = text.map_or(transfer, |text| transfer.with_chunk(text));
                let transfer = transfer.with_other(Id { index: detail, generation: 0 });
                record(kind::REFUSED).with_count(refusal as u32).with_transfer(&transfer)
            }
        }
    }

    /// Parses the answer of a record.
    pub(super) fn parse(record: &Record) -> Result<Self, RecordFault> {
        let (id, transfer) = (record.id, record.transfer());
        Ok(match record.kind {
            kind::DONE => Self::Done,
            kind::LISTENING => Self::Listening { listener: id },
            kind::CONNECTING => Self::Connecting { conn: id },
            kind::ADOPTED_CONNECTING => Self::AdoptedConnecting { conn: id },
            kind::CONNECT_FAILED => {
                Self::ConnectFailed { reason: CloseCode::from_code(record.count)? }
            }
            kind::BOUND => Self::Bound { endpoint: id },
            kind::VALUE => Self::Value { value: record.body[0] },
            kind::ADDRESSES => {
                let pair = record.pair();
                Self::addresses(pair.local()?, pair.remote_if_any()?)
            }
            kind::WRITTEN => Self::Written { chunk: transfer.chunk_or_none()? },
            kind::REFUSED => Self::Refused {
                refusal: Refusal::from_code(record.count)?,
                detail: transfer.other.index,
                text: (transfer.len > 0).then(|| transfer.chunk()).transpose()?,
            },
            kind => return Err(RecordFault::Kind { kind }),
        })
    }
}
