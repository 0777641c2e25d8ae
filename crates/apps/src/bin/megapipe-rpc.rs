//! The ping-pong server alone, for machines that need nothing else; `megapipe serve rpc` is the
//! same.

use std::process::ExitCode;

use clap::Parser;
use megapipe_apps::number::parse_or_exit;
use megapipe_apps::reason::{exit_code, reason};
use megapipe_apps::rpc::{RpcArgs, serve};

/// MegaPipe's ping-pong server: what does a message cost?
#[derive(Parser)]
#[command(version)]
struct RpcCommand {
    #[command(flatten)]
    args: RpcArgs,
}

fn main() -> ExitCode {
    match serve(&parse_or_exit::<RpcCommand>().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("megapipe-rpc: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
