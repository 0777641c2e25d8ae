//! What does a message cost? MegaPipe's ping-pong server on channels: `megapipe serve rpc`.
//!
//! A client sends requests of some length and gets responses of some length [MegaPipe 2.2, 5.1];
//! [`protocol`] says how they look. The server does nothing else, so what is measured on it is the
//! network's cost alone. It is the smallest example of a server on [`crate::serve`].
//!
//! Read first: [`protocol`]; then `rpc/shard.rs`, the whole event loop.

use clap::Args;

pub mod protocol;
mod shard;

use crate::serve::{Running, ServeArgs, ServeError, Server, ShardSetup};
use protocol::{LengthError, Lengths, MESSAGE_LEN_DEFAULT};
use shard::RpcShard;

/// What the frame has to know about this server.
pub const SERVER: Server = Server { name: "rpc", listen_default: "127.0.0.1:7000" };

/// The options of `megapipe serve rpc`.
#[derive(Clone, Debug, Args)]
pub struct RpcArgs {
    /// What every server has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Bytes of a request that does not say its length itself
    #[arg(long, value_name = "BYTES", default_value_t = MESSAGE_LEN_DEFAULT)]
    pub request_bytes: u32,

    /// Bytes of the response to a request that does not ask for a length
    ///
    /// Without this option it is as long as such a request.
    #[arg(long, value_name = "BYTES")]
    pub response_bytes: Option<u32>,
}

/// Why the server did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// A message length is out of range.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The frame's errors.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl RpcArgs {
    /// A server with the default message lengths.
    #[must_use]
    pub const fn new(serve: ServeArgs) -> Self {
        Self { serve, request_bytes: MESSAGE_LEN_DEFAULT, response_bytes: None }
    }

    fn lengths(&self) -> Result<Lengths, LengthError> {
        let response = self.response_bytes.unwrap_or(self.request_bytes);
        Lengths { request: self.request_bytes, response }.checked()
    }
}

/// Runs the server until a signal ends it. Blocks.
///
/// # Errors
/// Lengths out of range, and whatever [`crate::serve::serve`] returns.
pub fn serve(args: &RpcArgs) -> Result<(), RpcError> {
    Ok(crate::serve::serve(&args.serve, SERVER, factory(args.lengths()?))?)
}

/// Starts the server inside this process and returns when it listens.
///
/// # Errors
/// As [`serve`].
pub fn start(args: &RpcArgs) -> Result<Running, RpcError> {
    Ok(crate::serve::start(&args.serve, SERVER, factory(args.lengths()?))?)
}

fn factory(
    lengths: Lengths,
) -> impl Fn(ShardSetup<'_>) -> Result<RpcShard, ServeError> + Send + Sync + 'static {
    move |setup| RpcShard::new(setup, lengths)
}
