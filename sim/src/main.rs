//! `cargo xtask sim`: runs worlds by their seeds.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use megapipe_sim::{Outcome, Scenario, Violation, World};

/// Hosts with the real stack, on one virtual clock.
#[derive(Debug, Parser)]
struct Args {
    /// Run this seed alone, and say what it decides.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every segment that is sent; with --seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run so many seeds from 0 on, the same each time.
    #[arg(long, default_value_t = 200)]
    fixed: u64,
    /// Run so many seeds that were never run before.
    #[arg(long, default_value_t = 50)]
    fresh: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let scenario = Scenario::of(seed);
        println!("{scenario:#?}");
        let world = World::new(scenario);
        let world = if args.trace { world.traced() } else { world };
        return match world.run() {
            Ok(outcome) => {
                println!("{outcome:#?}");
                ExitCode::SUCCESS
            }
            Err(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
        };
    }
    many(&args)
}

fn run(seed: u64) -> Result<Outcome, Violation> {
    World::new(Scenario::of(seed)).run()
}

fn many(args: &Args) -> ExitCode {
    let started = Instant::now();
    let mut fresh = fastrand::Rng::new();
    let seeds = (0..args.fixed).chain((0..args.fresh).map(|_| fresh.u64(1 << 32..)));
    let (mut total, mut failed, mut done) = (Outcome::default(), 0_u64, 0_u64);
    let count = args.fixed + args.fresh;
    for seed in seeds {
        done += 1;
        match run(seed) {
            Ok(outcome) => {
                total.events += outcome.events;
                total.frames += outcome.frames;
                total.frames_harmed += outcome.frames_harmed;
                total.frames_steered += outcome.frames_steered;
                total.frames_passed_on += outcome.frames_passed_on;
                total.connections += outcome.connections;
                total.elapsed += outcome.elapsed;
            }
            Err(violation) => {
                failed += 1;
                let kind = Scenario::of(seed).kind.name();
                println!("FAILED ({kind}): {violation}\n  cargo xtask sim --seed {seed}");
            }
        }
        progress(done, count);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "sim: {} seeds passed, {failed} failed; {} connections, {} frames ({} harmed, {} steered \
         from shard to shard, {} passed on), {} events \
         in {seconds:.1} s ({:.1} million a minute), {:.0} s of the worlds' time",
        done - failed,
        total.connections,
        total.frames,
        total.frames_harmed,
        total.frames_steered,
        total.frames_passed_on,
        total.events,
        total.events as f64 / seconds * 60.0 / 1e6,
        total.elapsed.as_secs_f64(),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn progress(done: u64, count: u64) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{done}/{count} seeds ");
        if done == count {
            eprintln!();
        }
        let _ = std::io::stderr().flush();
    }
}
