//! The load generator alone, for machines that need nothing else; `megapipe load` is the same.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use megapipe_apps::load::{
    HttpLoadArgs, KvLoadArgs, LoadError, RpcLoadArgs, finish, prepare, run_http, run_kv, run_rpc,
};
use megapipe_apps::number::parse_or_exit;
use megapipe_apps::reason::{exit_code, reason};

/// Puts servers under load and measures how they do.
#[derive(Parser)]
#[command(version)]
struct LoadCommand {
    #[command(subcommand)]
    load: LoadProtocol,
}

#[derive(Subcommand)]
enum LoadProtocol {
    /// Requests and responses of given sizes, to a ping-pong server
    Rpc(RpcLoadArgs),
    /// GET requests, to a web server
    Http(HttpLoadArgs),
    /// Gets and sets, to a memcached server
    Kv(KvLoadArgs),
}

fn run(load: &LoadProtocol) -> Result<ExitCode, LoadError> {
    match load {
        LoadProtocol::Rpc(args) => finish(&run_rpc(args, &mut |_| {})?, &args.load),
        LoadProtocol::Http(args) if prepare(args)? => Ok(ExitCode::SUCCESS),
        LoadProtocol::Http(args) => finish(&run_http(args, &mut |_| {})?, &args.load),
        LoadProtocol::Kv(args) => finish(&run_kv(args, &mut |_| {})?, &args.load),
    }
}

fn main() -> ExitCode {
    match run(&parse_or_exit::<LoadCommand>().load) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("megapipe-load: {}", reason(&error));
            exit_code(error.is_usage())
        }
    }
}
