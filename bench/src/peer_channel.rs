//! Errors of a channel in the benchmark's own process: the peer of a
//! server that is measured, or as both sides of an exchange.

use megapipe::{
    ConnectError, CreateError, DispatchError, ListenError, Misuse, NetworkError, OpError,
    SubmitError,
};

/// A channel of the benchmark's own failed, or its peer did.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// There is no network.
    #[error("the network: {0}")]
    Network(#[from] NetworkError),
    /// No channel on it.
    #[error("making a channel: {0}")]
    Create(#[from] CreateError),
    /// It cannot listen.
    #[error("listening: {0}")]
    Listen(#[from] ListenError),
    /// It cannot connect.
    #[error("connecting: {0}")]
    Connect(#[from] ConnectError),
    /// A mistake of ours.
    #[error("a call: {0}")]
    Misuse(#[from] Misuse),
    /// An operation was not taken.
    #[error("an operation: {0}")]
    Submit(#[from] SubmitError),
    /// An operation failed.
    #[error("a connection: {0}")]
    Operation(#[from] OpError),
    /// The channel itself failed.
    #[error("a channel: {0}")]
    Dispatch(#[from] DispatchError),
    /// What came is not what was asked for.
    #[error("the exchange is not as it should be: {0}")]
    Exchange(&'static str),
}
