//! The values of the stack as records have them, and back.
//!
//! Pure: what a reader of a record gets is checked here, and never trusted for what only its owner
//! knows (whether an id is alive, a buffer the sender's).

mod bytes;
mod datagram;
mod description;
mod info;
mod listener;
mod options;
mod refusals;
#[cfg(test)]
mod tests;

use megapipe_shm::record::{self, CloseCode, Event as Says, Id, UndeliveredCode};
use megapipe_stack::{
    Arrival, BufId, Chunk, CloseReason, ConnId, DatagramId, Event, ListenerId, Notice, Stack,
    Undelivered,
};

use super::buffer_names::in_record;
pub(crate) use bytes::{ValueReader, ValueWriter};
pub use datagram::SharedDatagram;
pub(super) use datagram::{TakenDatagram, decode_datagram, encode_datagram};
pub(super) use description::Description;
pub(super) use info::{decode_holders, encode_holders};
pub(crate) use info::{decode_info, encode_info};
pub(super) use listener::{AdoptedLaneListener, decode_listener, encode_listener};
pub(super) use options::{
    decode_begin, decode_bind, decode_option, decode_sharing, encode_begin, encode_bind,
    encode_option, encode_sharing,
};
pub(super) use refusals::{Coded, decode_port_error, encode_port_error};

pub(super) const fn conn_id(id: Id) -> ConnId {
    ConnId { index: id.index, generation: id.generation }
}

pub(super) const fn id_of(conn: ConnId) -> Id {
    Id { index: conn.index, generation: conn.generation }
}

pub(super) const fn listener_id(id: Id) -> ListenerId {
    ListenerId { index: id.index, generation: id.generation }
}

pub(super) const fn id_of_listener(listener: ListenerId) -> Id {
    Id { index: listener.index, generation: listener.generation }
}

pub(super) const fn endpoint_id(id: Id) -> DatagramId {
    DatagramId { index: id.index, generation: id.generation }
}

pub(super) const fn id_of_endpoint(endpoint: DatagramId) -> Id {
    Id { index: endpoint.index, generation: endpoint.generation }
}

pub(super) const fn chunk_of(chunk: record::Chunk) -> Chunk {
    Chunk { buf: BufId(chunk.buf.bits()), offset: chunk.offset, len: chunk.len }
}

/// Received bytes, as a record to their session names them.
pub(super) const fn record_chunk(chunk: Chunk) -> record::Chunk {
    record::Chunk { buf: in_record(chunk.buf), offset: chunk.offset, len: chunk.len }
}

/// The last event of the stack as a record has it; `None`: its datagram has a length that none has.
/// `knows_event_details`: as [`SessionLimits`](crate::SessionLimits) has it.
pub(super) fn encode_event(event: Event, stack: &Stack, knows_event_details: bool) -> Option<Says> {
    Some(match event {
        Event::Incoming { listener, conn, remote, waiting } => Says::Incoming {
            listener: id_of_listener(listener),
            conn: id_of(conn),
            remote,
            waiting,
        },
        Event::Connected { conn } => {
            let ends = if knows_event_details { stack.addresses(conn).ok() } else { None };
            let local = ends.map(|(local, _)| local);
            Says::Connected { conn: id_of(conn), local }
        }
        Event::Received { conn, chunk } => {
            Says::Received { conn: id_of(conn), chunk: record_chunk(chunk) }
        }
        Event::PeerClosed { conn } => Says::PeerClosed { conn: id_of(conn) },
        Event::Broken { conn, reason, is_whole } => {
            Says::Broken { conn: id_of(conn), reason: close_code(reason), is_whole }
        }
        Event::Closed { conn, reason } => {
            Says::Closed { conn: id_of(conn), reason: close_code(reason) }
        }
        Event::Acked { conn, chunks, queued_bytes } => {
            Says::Acked { conn: id_of(conn), chunks, queued_bytes }
        }
        Event::Datagram { endpoint, from, chunk } => {
            let endpoint = id_of_endpoint(endpoint);
            let Arrival { to, hop_limit, traffic_class } = stack.last_arrival();
            let arrival = record::Arrival { to, hop_limit, traffic_class };
            let record::Chunk { buf, len, .. } = record_chunk(chunk);
            // It came in one packet of IP, and begins where its buffer does.
            let (from, port, len) = (from.ip(), from.port(), u16::try_from(len).ok()?);
            Says::Datagram { endpoint, from, port, arrival, buf, len }
        }
        Event::Urgent { conn, bytes } => Says::Urgent { conn: id_of(conn), bytes },
        Event::UnsentBelow { conn } => Says::UnsentBelow { conn: id_of(conn) },
        Event::DatagramRefused { endpoint, to, why } => {
            let endpoint = id_of_endpoint(endpoint);
            Says::DatagramRefused { endpoint, to, why: undelivered_code(why) }
        }
    })
}

/// The notice of an undelivered datagram as a record has it.
pub(super) fn encode_notice(notice: &Notice) -> Says {
    let Notice { by, kind, code, info, arrival, quote } = *notice;
    let Arrival { to, hop_limit, traffic_class } = arrival;
    // No quote is longer than an ICMP error.
    let quote = quote.map(|chunk| {
        let record::Chunk { buf, len, .. } = record_chunk(chunk);
        (buf, len as u16)
    });
    Says::Notice {
        by,
        kind_and_code: (kind, code),
        info,
        arrival: record::Arrival { to, hop_limit, traffic_class },
        quote,
    }
}

const fn undelivered_code(why: Undelivered) -> UndeliveredCode {
    match why {
        Undelivered::NetworkUnreachable => UndeliveredCode::NetworkUnreachable,
        Undelivered::HostUnreachable => UndeliveredCode::HostUnreachable,
        Undelivered::ProtocolUnreachable => UndeliveredCode::ProtocolUnreachable,
        Undelivered::PortUnreachable => UndeliveredCode::PortUnreachable,
        Undelivered::Prohibited => UndeliveredCode::Prohibited,
        Undelivered::TooLong => UndeliveredCode::TooLong,
        Undelivered::TimeExceeded => UndeliveredCode::TimeExceeded,
        Undelivered::ParameterProblem => UndeliveredCode::ParameterProblem,
    }
}

pub(super) const fn close_code(reason: CloseReason) -> CloseCode {
    match reason {
        CloseReason::Finished => CloseCode::Finished,
        CloseReason::ResetByPeer => CloseCode::ResetByPeer,
        CloseReason::Refused => CloseCode::Refused,
        CloseReason::Aborted => CloseCode::Aborted,
        CloseReason::TimedOut => CloseCode::TimedOut,
        CloseReason::KeepaliveTimedOut => CloseCode::KeepaliveTimedOut,
        CloseReason::Unreachable => CloseCode::Unreachable,
        CloseReason::HostUnreachable => CloseCode::HostUnreachable,
    }
}

pub(super) const fn undelivered(code: UndeliveredCode) -> Undelivered {
    match code {
        UndeliveredCode::NetworkUnreachable => Undelivered::NetworkUnreachable,
        UndeliveredCode::HostUnreachable => Undelivered::HostUnreachable,
        UndeliveredCode::ProtocolUnreachable => Undelivered::ProtocolUnreachable,
        UndeliveredCode::PortUnreachable => Undelivered::PortUnreachable,
        UndeliveredCode::Prohibited => Undelivered::Prohibited,
        UndeliveredCode::TooLong => Undelivered::TooLong,
        UndeliveredCode::TimeExceeded => Undelivered::TimeExceeded,
        UndeliveredCode::ParameterProblem => Undelivered::ParameterProblem,
    }
}

pub(super) const fn reason_of(code: CloseCode) -> CloseReason {
    match code {
        CloseCode::Finished => CloseReason::Finished,
        CloseCode::ResetByPeer => CloseReason::ResetByPeer,
        CloseCode::Refused => CloseReason::Refused,
        CloseCode::Aborted => CloseReason::Aborted,
        CloseCode::TimedOut => CloseReason::TimedOut,
        CloseCode::KeepaliveTimedOut => CloseReason::KeepaliveTimedOut,
        CloseCode::Unreachable => CloseReason::Unreachable,
        CloseCode::HostUnreachable => CloseReason::HostUnreachable,
    }
}
