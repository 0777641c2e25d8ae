//! Responses that both protocols of memcached have: faults, statuses and their headers.
//!
//! Pure: outcomes in, bytes out.

use super::{Afterwards, ResponseBuffer, StoreReply};
use crate::kv::protocol::CommandFault;
use crate::kv::protocol::binary::{BinaryStatus, RequestFrame, ResponseHeader};
use crate::kv::store::{StoreOutcome, expiry};

/// Writes a fault's line in the text protocol.
pub(super) fn push_fault(fault: CommandFault, out: &mut impl ResponseBuffer) {
    out.extend_from_slice(fault.line().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The line for an item that cannot be stored.
pub(super) const fn store_fault(outcome: StoreOutcome) -> CommandFault {
    match outcome {
        StoreOutcome::TooLarge => CommandFault::TooLarge,
        _ => CommandFault::OutOfMemory,
    }
}

/// The status of a store in the binary protocol.
pub(super) const fn store_status(outcome: StoreOutcome) -> BinaryStatus {
    match outcome {
        StoreOutcome::Stored(_) => BinaryStatus::Success,
        StoreOutcome::NotStored => BinaryStatus::NotStored,
        StoreOutcome::Exists => BinaryStatus::KeyExists,
        StoreOutcome::NotFound => BinaryStatus::KeyNotFound,
        StoreOutcome::TooLarge => BinaryStatus::TooLarge,
        StoreOutcome::OutOfMemory => BinaryStatus::OutOfMemory,
    }
}

/// Returns the response to a block for which there is no memory.
pub(super) fn refusal(outcome: StoreOutcome, reply: StoreReply) -> Afterwards {
    match reply {
        StoreReply::Text { noreply: true } | StoreReply::Resp(_) => Afterwards::Nothing,
        StoreReply::Text { noreply: false } | StoreReply::Meta => {
            Afterwards::Tell(store_fault(outcome))
        }
        StoreReply::Binary { opcode, opaque, .. } => {
            let status = store_status(outcome);
            Afterwards::Status { status, opcode, opaque }
        }
    }
}

/// The header of a response to this request, so far without a body.
pub(super) fn header_of(frame: &RequestFrame<'_>) -> ResponseHeader {
    let RequestFrame { opcode, opaque, .. } = *frame;
    ResponseHeader { opcode, opaque, ..ResponseHeader::default() }
}

/// A response without extras and key; without value unless it reports a failure.
pub(super) fn answer_status(
    status: BinaryStatus,
    opcode: u8,
    opaque: u32,
    out: &mut impl ResponseBuffer,
) {
    let text = status.text().as_bytes();
    let header = ResponseHeader {
        opcode,
        opaque,
        status: status as u16,
        value_len: text.len() as u32,
        ..ResponseHeader::default()
    };
    out.extend_from_slice(&header.to_bytes());
    out.extend_from_slice(text);
}

/// A flush at once, or at a second to come.
pub(super) fn flush_time(delay: i64, now: u32) -> u32 {
    if delay <= 0 { now } else { expiry(delay, now) }
}
