//! Reason for which a peer, or the memory that it offers, is rejected.

/// Why a peer is sent away. The text goes to it in a DISCONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct MemifRefusal(pub(super) &'static str);
