//! Pieces of long payloads: the front that a send queue has room for.

use megapipe_stack::{ConnInfo, OperationError};

use crate::buffer::Payload;

/// Bytes of a write from which on it is sent in pieces, as the send queue has room: its memory is
/// freed piece by piece, and it is not complete before the last.
pub(super) const PIECES_FROM: usize = 64 << 10;
/// Room in the send queue that is not worth a piece.
const ROOM_MIN: usize = 16 << 10;

/// Removes the front of a payload that there is room for: all of a short one. `info` is asked for
/// long ones only.
///
/// # Errors
/// [`OperationError::QueueFull`]: there is too little room; others: as of `info`.
pub(super) fn take_front(
    payload: &mut Payload,
    info: impl FnOnce() -> Result<ConnInfo, OperationError>,
) -> Result<Payload, OperationError> {
    if payload.len() <= PIECES_FROM {
        return Ok(std::mem::replace(payload, Payload::Static(&[])));
    }
    let room = room_for_a_piece(&info()?)?;
    Ok(payload.split_to(room))
}

/// Puts a front that was not sent back before the rest: there was no place in the queue in spite of
/// the room.
pub(super) fn put_back(payload: &mut Payload, front: Option<Payload>) {
    let Some(front) = front else { return };
    *payload = if payload.is_empty() {
        front
    } else {
        Payload::Vec([front.as_slice(), payload.as_slice()].concat())
    };
}

/// Number of bytes of a long payload that the send queue takes now.
fn room_for_a_piece(info: &ConnInfo) -> Result<usize, OperationError> {
    let room = info.send_buffer_bytes.saturating_sub(info.queued_bytes) as usize;
    if room < ROOM_MIN && info.queued_bytes > 0 {
        return Err(OperationError::QueueFull);
    }
    Ok(room.max(ROOM_MIN))
}
