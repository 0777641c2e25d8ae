//! MegaPipe's ping-pong server: `megapipe serve rpc`.
//!
//! A client sends requests of some length and gets responses of some length [MegaPipe 2.2, 5.1];
//! [`protocol`] defines their format. The server does nothing else, so what is measured on it is
//! the network's cost alone. It is the smallest example of a server on [`crate::serve`].
//!
//! It is written twice: on a channel's completions (`rpc/shard.rs`), and on sockets and epoll,
//! which lie over a channel (`rpc/sockets.rs`, `--api sockets`). Everything else is the same, so
//! that the difference is what readiness costs.
//!
//! Read first: [`protocol`]; then `rpc/shard.rs`, the whole event loop.

use clap::{Args, ValueEnum};
use megapipe::Address;

pub mod protocol;
mod shard;
mod sockets;
mod timeouts;

use crate::limits::rpc::{STALL_TIMEOUT_S_DEFAULT, STALL_TIMEOUT_S_MAX};
use crate::number::within;
use crate::serve::{Running, ServeArgs, ServeError, ServerProperties, ShardSetup};
use protocol::{HEADER_LEN, LengthError, Lengths, MESSAGE_LEN_DEFAULT, MESSAGE_LEN_MAX};
use shard::RpcShard;

/// What the frame has to know about this server.
pub const SERVER: ServerProperties = ServerProperties {
    name: "rpc",
    listen_default: "127.0.0.1:7000",
    files_per_connection: 0,
    has_statuses: false,
};

/// What the server is written on.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// A channel: operations and their completions
    #[default]
    Channel,
    /// BSD sockets and epoll over a channel: readiness
    Sockets,
}

/// The options of `megapipe serve rpc`.
#[derive(Clone, Debug, Args)]
pub struct RpcArgs {
    /// What every server has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// Which of two programs that answer alike: one on channels, one on sockets and epoll
    #[arg(long, value_enum, default_value_t)]
    pub api: Api,

    /// Bytes of a request that does not state its length
    #[arg(long, value_name = "BYTES", default_value_t = MESSAGE_LEN_DEFAULT,
          value_parser = within(HEADER_LEN as u32..=MESSAGE_LEN_MAX))]
    pub request_bytes: u32,

    /// Bytes of the response to a request without a response length
    ///
    /// Without this option it is as long as such a request.
    #[arg(long, value_name = "BYTES", value_parser = within(1..=MESSAGE_LEN_MAX))]
    pub response_bytes: Option<u32>,

    /// Close connections whose request takes longer than so many seconds to arrive, or that read
    /// none of their responses for so long; 0 is never
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = STALL_TIMEOUT_S_DEFAULT,
          value_parser = within(0..=STALL_TIMEOUT_S_MAX))]
    pub stall_timeout: u32,
}

/// Why the server did not start, or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// A message length is out of range.
    #[error("--{message}-bytes: {0}", message = .0.message)]
    Length(#[from] LengthError),
    /// An option that sockets do not have.
    #[error("{option}: --api sockets {why}")]
    Api {
        /// The option.
        option: &'static str,
        /// What sockets have instead.
        why: &'static str,
    },
    /// The frame's errors.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

impl RpcError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Length(_) | Self::Api { .. } => true,
            Self::Serve(error) => error.is_usage(),
        }
    }
}

impl RpcArgs {
    /// A server with the default message lengths, on channels.
    #[must_use]
    pub const fn new(serve: ServeArgs) -> Self {
        let request_bytes = MESSAGE_LEN_DEFAULT;
        Self {
            serve,
            api: Api::Channel,
            request_bytes,
            response_bytes: None,
            stall_timeout: STALL_TIMEOUT_S_DEFAULT,
        }
    }

    fn lengths(&self) -> Result<Lengths, LengthError> {
        let response = self.response_bytes.unwrap_or(self.request_bytes);
        Lengths { request: self.request_bytes, response }.checked()
    }

    /// Refuses what would be passed over: options that sockets do not have.
    fn check_api(&self) -> Result<(), RpcError> {
        let refused = |option, why| Err(RpcError::Api { option, why });
        let is_unix = |address: &Address| matches!(address, Address::Unix(_));
        match self {
            Self { api: Api::Channel, .. } => Ok(()),
            Self { serve, .. } if serve.no_lwsockets => {
                refused("--no-lwsockets", "has descriptors in any case")
            }
            Self { serve, .. } if serve.no_partition => {
                refused("--no-partition", "has a listener of its own in each channel")
            }
            Self { serve, .. } if serve.listen.iter().any(is_unix) => {
                refused("--listen unix", "has TCP sockets only")
            }
            _ => Ok(()),
        }
    }
}

/// Runs the server until a signal ends it. Blocks.
///
/// # Errors
/// Lengths out of range, options that do not go together, and whatever [`crate::serve::serve`]
/// returns.
pub fn serve(args: &RpcArgs) -> Result<(), RpcError> {
    Ok(crate::serve::supervise(start(args)?, &args.serve)?)
}

/// Starts the server inside this process and returns when it listens.
///
/// # Errors
/// As [`serve`].
pub fn start(args: &RpcArgs) -> Result<Running, RpcError> {
    args.check_api()?;
    let lengths = args.lengths()?;
    let stall_ms = args.stall_timeout.saturating_mul(1_000);
    Ok(match args.api {
        Api::Channel => crate::serve::start(&args.serve, SERVER, factory(lengths, stall_ms))?,
        Api::Sockets => {
            let life = move |plan: &_, ready: &_| sockets::serve(plan, lengths, stall_ms, ready);
            crate::serve::start_threads(&args.serve, SERVER, life)?
        }
    })
}

fn factory(
    lengths: Lengths,
    stall_ms: u32,
) -> impl Fn(ShardSetup<'_>) -> Result<RpcShard, ServeError> + Send + Sync + 'static {
    move |setup| RpcShard::new(setup, lengths, stall_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_sockets_do_not_have_are_named() {
        let on = |address: &str| ServeArgs::on([address.parse().expect("an address")]);
        let refused = |serve: ServeArgs| {
            let args = RpcArgs { api: Api::Sockets, ..RpcArgs::new(serve) };
            args.check_api().map_err(|error| error.to_string())
        };
        let tcp = on("127.0.0.1:0");
        assert_eq!(refused(tcp.clone()), Ok(()));
        let lwsockets = ServeArgs { no_lwsockets: true, ..tcp.clone() };
        let partition = ServeArgs { no_partition: true, ..tcp };
        for (args, option) in [
            (lwsockets, "--no-lwsockets: --api sockets"),
            (partition, "--no-partition: --api sockets"),
            (on("unix:/run/rpc.sock"), "--listen unix: --api sockets"),
        ] {
            assert!(refused(args.clone()).is_err_and(|text| text.starts_with(option)), "{option}");
            assert!(RpcArgs::new(args).check_api().is_ok(), "channels have it");
        }
    }
}
