//! Pieces of long payloads: the front that a send queue has room for.

use megapipe_stack::{Chunk, ConnInfo, OperationError};

use crate::buffer::Payload;

/// Bytes of a write from which on it is sent in pieces, as the send queue has room: its memory is
/// freed piece by piece, and it is not complete before the last.
pub(super) const PIECES_FROM: usize = 64 << 10;
/// Room in the send queue that is not worth a piece.
const ROOM_MIN: usize = 16 << 10;

/// The front of a payload that there is room for: all of a short one, which is taken out of
/// `payload`, or a part of a long one, which shares its memory. `info` is asked for long ones only.
/// After it was sent, [`Payload::skip`] leaves it out.
///
/// # Errors
/// [`OperationError::QueueFull`]: there is too little room; [`OperationError::NoMemory`]: there is
/// no memory to share; others: as of `info`.
pub(super) fn take_front(
    payload: &mut Payload,
    info: impl FnOnce() -> Result<ConnInfo, OperationError>,
) -> Result<Payload, OperationError> {
    if payload.len() <= PIECES_FROM {
        return Ok(std::mem::replace(payload, Payload::Static(&[])));
    }
    let room = room_for_a_piece(&info()?)?;
    payload.front(room).ok_or(OperationError::NoMemory)
}

/// What came of sending a front of `len` bytes: leaves them out of `payload`, or puts a front that
/// was not sent back. Returns `len`.
///
/// # Errors
/// That of sending: there was no place in the queue in spite of the room, or no memory.
#[inline]
pub(super) fn settle_front(
    payload: &mut Payload,
    len: usize,
    sent: Result<(), (OperationError, Option<Payload>)>,
) -> Result<usize, OperationError> {
    let Err((error, front)) = sent else {
        payload.skip(len);
        return Ok(len);
    };
    // A part of a long payload was not taken out of it.
    if let Some(front) = front
        && payload.is_empty()
    {
        *payload = front;
    }
    Err(error)
}

/// Number of bytes of a long payload that the send queue takes now.
fn room_for_a_piece(info: &ConnInfo) -> Result<usize, OperationError> {
    let room = info.send_buffer_bytes.saturating_sub(info.queued_bytes) as usize;
    if room < ROOM_MIN && info.queued_bytes > 0 {
        return Err(OperationError::QueueFull);
    }
    Ok(room.max(ROOM_MIN))
}

/// Memory for the chunks of a payload that is sent in segments.
///
/// # Errors
/// [`OperationError::NoMemory`].
pub(super) fn room_for_segments(
    len: usize,
    segment_len: usize,
) -> Result<Vec<Chunk>, OperationError> {
    let mut chunks = Vec::new();
    let count = len.div_ceil(segment_len.max(1));
    chunks.try_reserve_exact(count).map_err(|_| OperationError::NoMemory)?;
    Ok(chunks)
}
