//! `cargo xtask sim`: runs worlds by their seeds.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use clap::Parser;
use megapipe_sim::{RunOutcome, Scenario, SimWorld, Violation};

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
        let world = SimWorld::new(scenario);
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

fn run(seed: u64) -> Result<RunOutcome, Violation> {
    let _named = NamedInPanic(seed);
    SimWorld::new(Scenario::of(seed)).run()
}

/// Says whose world it was, when an assertion in the stack ends it.
struct NamedInPanic(u64);

impl Drop for NamedInPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("FAILED seed {} by a panic\n  cargo xtask sim --seed {0}", self.0);
        }
    }
}

/// Runs many worlds, each on one thread, as many at once as there are cores: no world knows of
/// another.
fn many(args: &Args) -> ExitCode {
    let started = Instant::now();
    let mut fresh = fastrand::Rng::new();
    let fresh = (0..args.fresh).map(move |_| fresh.u64(1 << 32..));
    let seeds = Mutex::new((0..args.fixed).chain(fresh));
    let (mut total, mut failed, mut done) = (RunOutcome::default(), 0_u64, 0_u64);
    let count = args.fixed + args.fresh;
    let (results, ended) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            let (seeds, results) = (&seeds, results.clone());
            scope.spawn(move || {
                while let Some(seed) = next(seeds) {
                    let Ok(()) = results.send((seed, run(seed))) else { return };
                }
            });
        }
        drop(results);
        for (seed, result) in ended {
            done += 1;
            match result {
                Ok(outcome) => add(&mut total, &outcome),
                Err(violation) => {
                    failed += 1;
                    let kind = Scenario::of(seed).kind.name();
                    println!(
                        "FAILED seed {seed} ({kind}): {violation}\n  cargo xtask sim --seed {seed}"
                    );
                }
            }
            progress(done, count);
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "sim: {} seeds passed, {failed} failed; {} connections, {} frames ({} harmed, {} too \
         large, {} steered from shard to shard, {} passed on, {} forged), {} waits for a port, \
         {} exchanges of datagrams, {} datagrams in fragments, {} foreign hosts stopped, {} events \
         in {seconds:.1} s ({:.1} million a minute), {:.0} s of the worlds' time",
        done - failed,
        total.connections,
        total.frames,
        total.frames_harmed,
        total.packets_too_large,
        total.frames_steered,
        total.frames_passed_on,
        total.forgeries,
        total.waits_for_port,
        total.datagrams,
        total.cut_datagrams,
        total.peers_stopped,
        total.events,
        total.events as f64 / seconds * 60.0 / 1e6,
        total.elapsed.as_secs_f64(),
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The next seed to run. A world that panicked on another thread leaves the rest to run.
fn next(seeds: &Mutex<impl Iterator<Item = u64>>) -> Option<u64> {
    seeds.lock().unwrap_or_else(PoisonError::into_inner).next()
}

fn add(total: &mut RunOutcome, outcome: &RunOutcome) {
    total.events += outcome.events;
    total.frames += outcome.frames;
    total.frames_harmed += outcome.frames_harmed;
    total.packets_too_large += outcome.packets_too_large;
    total.frames_steered += outcome.frames_steered;
    total.frames_passed_on += outcome.frames_passed_on;
    total.connections += outcome.connections;
    total.forgeries += outcome.forgeries;
    total.waits_for_port += outcome.waits_for_port;
    total.datagrams += outcome.datagrams;
    total.cut_datagrams += outcome.cut_datagrams;
    total.peers_stopped += outcome.peers_stopped;
    total.elapsed += outcome.elapsed;
}

/// Seeds from one line of progress to the next where the errors go to no terminal.
const LINE_EVERY: u64 = 25;

fn progress(done: u64, count: u64) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{done}/{count} seeds ");
        if done == count {
            eprintln!();
        }
        let _ = std::io::stderr().flush();
    } else if done.is_multiple_of(LINE_EVERY) {
        println!("{done} of {count} seeds");
    }
}
