//! What the library adds to a call on a descriptor that is not its own: read(2) of /dev/null.

use super::{
    lack_of_library,
    stage::{PreloadBarError, ProgramStage, preloaded},
    unfit,
};
use crate::{
    layout::LayoutError,
    limits,
    preload_library::PreloadLibrary,
    promise::{BarResult, Promise},
    run::Bench,
};
use std::{
    fs::File,
    io::{self, Read},
    process::{Command, Stdio},
    time::Instant,
};

pub(super) const PROMISE: Promise = Promise::at_most(
    "null-read",
    "read of /dev/null, preloaded over not: time added to a call",
    10.0,
)
.in_unit(" ns")
.with_digits(1);

/// Options of `megapipe bench null-read`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct NullReadArgs {
    /// Calls of a round
    count: u32,
    /// Rounds, of which the fastest is printed
    rounds: u32,
}

/// Reads from /dev/null by libc's read(3), which a preloaded library interposes. Returns the
/// nanoseconds of a call, in the fastest round. Blocks.
pub(crate) fn read_null(args: NullReadArgs) -> io::Result<f64> {
    let mut null = File::open("/dev/null")?;
    let mut byte = [0];
    let mut least = f64::INFINITY;
    for _ in 0..args.rounds.max(1) {
        let start = Instant::now();
        for _ in 0..args.count.max(1) {
            if null.read(&mut byte)? != 0 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let each = start.elapsed().as_secs_f64() * 1e9 / f64::from(args.count.max(1));
        least = least.min(each);
    }
    Ok(least)
}

pub(super) fn bar(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<BarResult, LayoutError> {
    let library = match lack_of_library(library) {
        Ok(library) => library,
        Err(why) => return Ok(PROMISE.skipped(why)),
    };
    let scratch = bench.scratch.path().to_owned();
    let (runs, why) = bench.repeat(PROMISE.name, |bench| {
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        Ok(added_ns(stage))
    })?;
    Ok(PROMISE.result(runs, why))
}

fn added_ns(stage: ProgramStage<'_>) -> Result<f64, PreloadBarError> {
    let place = &stage.layout.server;
    let (count, rounds) = (limits::NULL_READS.to_string(), limits::NULL_READ_ROUNDS.to_string());
    let words = || ["bench", "null-read", &count, &rounds].map(str::to_owned);
    let plain = printed_ns(&mut place.command(&place.program, words()))?;
    let with = printed_ns(&mut preloaded(stage, &place.program, words().to_vec()))?;
    Ok(with - plain)
}

fn printed_ns(command: &mut Command) -> Result<f64, PreloadBarError> {
    let output = command.stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.trim().parse::<f64>() {
        Ok(ns) if output.status.success() => Ok(ns),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(unfit(format!(
                "reading /dev/null failed: {}",
                said.lines().next().unwrap_or_default()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_of_the_null_device_takes_time() {
        let ns = read_null(NullReadArgs { count: 1_000, rounds: 2 }).unwrap();
        assert!(ns > 0.0 && ns.is_finite());
    }
}
