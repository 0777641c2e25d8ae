//! The HTTP server as a program of its own; the same as `megapipe serve http`.

use std::process::ExitCode;

use clap::Parser;
use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::number::parse_or_exit;
use megapipe_apps::reason::{exit_code, reason};

/// Serve static files over HTTP/1.1 on megapipe channels
#[derive(Debug, Parser)]
#[command(name = "megapipe-http", version)]
struct HttpCommand {
    #[command(flatten)]
    http: HttpArgs,
}

fn main() -> ExitCode {
    match http::serve(&parse_or_exit::<HttpCommand>().http) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("megapipe-http: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
