//! What codes of records say, in the stack's words; the other way is the worker's.
//!
//! Pure: codes in, enums out.

use megapipe_shm::record::{CloseCode, Refusal, UndeliveredCode};
use megapipe_stack::{CloseReason, ConnectError, Undelivered};

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

pub(super) const fn connect_error(refusal: Refusal) -> ConnectError {
    match refusal {
        Refusal::NoRoute => ConnectError::NoRoute,
        Refusal::BadRemoteAddress => ConnectError::BadRemoteAddress,
        Refusal::BadLocalAddress => ConnectError::BadLocalAddress,
        Refusal::InUse => ConnectError::InUse,
        Refusal::TooMany => ConnectError::TooManyConnections,
        _ => ConnectError::NoPort,
    }
}
