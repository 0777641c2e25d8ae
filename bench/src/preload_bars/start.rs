//! What the library costs a program that makes no socket: its start, and its memory.

use super::{
    lack_of_library,
    stage::{PreloadBarError, ProgramStage, preloaded},
    unfit,
};
use crate::{
    layout::LayoutError,
    limits,
    measure::median,
    point::{field, kibibytes},
    preload_library::PreloadLibrary,
    process::find_program,
    promise::{BarResult, Promise},
    run::Bench,
};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

pub(super) const NAME: &str = "start";

const fn at_most(what: &'static str, bound: f64, unit: &'static str, digits: usize) -> Promise {
    Promise::at_most(NAME, what, bound).in_unit(unit).with_digits(digits)
}

pub(super) const PROMISES: [Promise; 3] = [
    at_most(
        "megapipe run --backend local -- /bin/true, over /bin/true: added time",
        10.0,
        " ms",
        2,
    ),
    at_most("resident memory that the library adds to a program without a socket", 4.0, " MiB", 2),
    at_most("static thread-local memory of the library", 1024.0, " B", 0),
];

/// The three bars.
pub(super) fn bars(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<[BarResult; 3], LayoutError> {
    let library = match lack_of_library(library) {
        Ok(library) => library,
        Err(why) => return Ok(PROMISES.map(|promise| promise.skipped(why.clone()))),
    };
    let scratch = bench.scratch.path().to_owned();
    let (runs, why) = bench.repeat(NAME, |bench| {
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        Ok(added_ms(stage).and_then(|time| Ok((time, added_mebibytes(stage)?))))
    })?;
    let (times, memory) = runs.into_iter().unzip();
    let [time, resident, tls] = PROMISES;
    let bytes = library.static_tls_bytes().map(|bytes| vec![bytes as f64]);
    bench.failed |= bytes.is_err();
    Ok([time.result(times, why.clone()), resident.result(memory, why), tls.outcome(bytes)])
}

fn found(name: &str) -> PathBuf {
    find_program(name).unwrap_or_else(|| Path::new("/bin").join(name))
}

/// Milliseconds that a program starts and ends later: a difference of medians, measured in turn.
fn added_ms(stage: ProgramStage<'_>) -> Result<f64, PreloadBarError> {
    let (program, place) = (found("true"), &stage.layout.server);
    let (mut plain, mut with) = (Vec::new(), Vec::new());
    for _ in 0..limits::PRELOAD_STARTS {
        plain.push(milliseconds(&mut place.command(&program, Vec::<String>::new()))?);
        with.push(milliseconds(&mut preloaded(stage, &program, Vec::new()))?);
    }
    Ok(median(with) - median(plain))
}

fn milliseconds(command: &mut Command) -> Result<f64, PreloadBarError> {
    let start = Instant::now();
    printed(command)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// What cat(1) has resident when it prints that, preloaded and not.
fn added_mebibytes(stage: ProgramStage<'_>) -> Result<f64, PreloadBarError> {
    let (program, place) = (found("cat"), &stage.layout.server);
    let args = || vec!["/proc/self/status".to_owned()];
    let plain = resident(&printed(&mut place.command(&program, args()))?)?;
    let with = resident(&printed(&mut preloaded(stage, &program, args()))?)?;
    Ok((with as f64 - plain as f64) / f64::from(1 << 20))
}

fn resident(status: &str) -> Result<u64, PreloadBarError> {
    let value = field(status, "VmRSS").map(kibibytes);
    value.ok_or_else(|| unfit("/proc/self/status has no VmRSS"))
}

fn printed(command: &mut Command) -> Result<String, PreloadBarError> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(unfit(format!("{} failed: {}", command.get_program().display(), said.trim())))
}

#[cfg(test)]
mod tests {
    use super::resident;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tcat\nVmRSS:\t    1024 kB\n").unwrap(), 1 << 20);
        assert!(resident("Name:\tcat\n").is_err());
    }
}
