//! The key-value server alone, for machines that need nothing else; `megapipe serve kv` is the
//! same.

use std::process::ExitCode;

use clap::Parser;
use megapipe_apps::kv::{KvArgs, serve};
use megapipe_apps::number::parse_or_exit;
use megapipe_apps::reason::{exit_code, reason};

/// A cache with memcached's protocols and Redis's.
#[derive(Parser)]
#[command(version)]
struct KvCommand {
    #[command(flatten)]
    args: KvArgs,
}

fn main() -> ExitCode {
    match serve(&parse_or_exit::<KvCommand>().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("megapipe-kv: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
