//! `megapipe bench`, for a baseline that starts further processes: a test has no other program that
//! it could be told to start.

use clap::Parser;
use megapipe_bench::{BenchArgs, bench};
use std::process::ExitCode;

#[derive(Parser)]
enum Command {
    Bench(BenchArgs),
}

fn main() -> ExitCode {
    let Command::Bench(args) = Command::parse();
    bench(&args).unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
