//! `megapipe bench bars --preload`: what is promised of unmodified programs on our sockets, each
//! measured, and whether it is met.
//!
//! Read first: `crates/cli/src/run.rs`; `stack_bars.rs` for ratios that are taken run by run.
//!
//! A program runs on the kernel's TCP over veth, with the stack inside over memif (`local`), and
//! with the stack of a daemon over memif (`service`), in turn in each run. It has one core, with
//! the daemon on it, and the load has the other. CPU time is the core's on the kernel, where
//! packets are received outside of any process, and that of the processes on our own stack.
//!
//! A row of which the program or the library is missing is skipped.

mod accept;
mod c_program;
mod c_server;
mod client;
mod compare;
mod fork;
mod null_read;
mod origin;
mod programs;
mod redis_load;
mod stage;
mod start;
mod system_calls;
mod web_client;

pub use null_read::NullReadArgs;

use crate::{
    bars,
    error::BenchError,
    layout::LayoutError,
    preload_library::PreloadLibrary,
    promise::{BarResult, Promise, PromisedBound},
    run::Bench,
    run_args::RunArgs,
    trial::Effort,
};
use compare::ProgramRounds;
use programs::{TestedProgram, WebClient};
use stage::{PreloadBarError, ProgramStack};
use std::{io, process::ExitCode, time::Duration};

pub(crate) use null_read::read_null;

/// As many rounds forwards as backwards.
const EFFORT: Effort = Effort { runs: 8, window: Duration::from_secs(2) };

/// Promises about one program.
struct ProgramRow {
    program: TestedProgram,
    /// CPU time in the kernel over that on `local`.
    local: Promise,
    /// The same on `service`.
    service: Promise,
    /// CPU time on `local` over that on `service`.
    share: Promise,
}

const fn ratio(name: &'static str, what: &'static str, bound: PromisedBound) -> Promise {
    Promise { name, what, bound, unit: "", digits: 2 }
}

const fn at_least(name: &'static str, what: &'static str, bound: f64) -> Promise {
    ratio(name, what, PromisedBound::AtLeast(bound))
}

const SERVICE: &str = "service";
/// What of a factor on `local` is left on `service`.
const SERVICE_SHARE: f64 = 0.75;

const PROGRAMS: [ProgramRow; 6] = [
    ProgramRow {
        program: TestedProgram::Redis,
        local: at_least("redis", "redis, GET of 64 B: CPU in the kernel over local", 5.5),
        service: ratio("redis", "the same over service", PromisedBound::Floor),
        share: at_least(SERVICE, "redis: its factor on service over that on local", SERVICE_SHARE),
    },
    ProgramRow {
        program: TestedProgram::NginxPersistent,
        local: at_least(
            "nginx-persistent",
            "nginx, 1 KiB, kept connections: CPU in the kernel over local",
            5.0,
        ),
        service: ratio(
            "nginx-persistent",
            "the same over service, two workers",
            PromisedBound::Floor,
        ),
        share: at_least(SERVICE, "nginx, kept connections: the same", SERVICE_SHARE),
    },
    ProgramRow {
        program: TestedProgram::NginxShort,
        local: at_least(
            "nginx-short",
            "nginx, 1 KiB, a connection per request: CPU in the kernel over local",
            7.0,
        ),
        service: ratio("nginx-short", "the same over service, two workers", PromisedBound::Floor),
        share: at_least(SERVICE, "nginx, a connection per request: the same", SERVICE_SHARE),
    },
    ProgramRow {
        program: TestedProgram::Memcached,
        local: at_least(
            "memcached",
            "memcached -t 1, 90 % get of 1 KiB: CPU in the kernel over local",
            4.5,
        ),
        service: ratio("memcached", "the same over service", PromisedBound::Floor),
        share: at_least(SERVICE, "memcached: the same", SERVICE_SHARE),
    },
    ProgramRow {
        program: TestedProgram::Lighttpd,
        local: at_least(
            "lighttpd",
            "lighttpd, 1 KiB, 8 requests per connection: CPU in the kernel over local",
            4.5,
        ),
        service: ratio("lighttpd", "the same over service", PromisedBound::Floor),
        share: at_least(SERVICE, "lighttpd: the same", SERVICE_SHARE),
    },
    ProgramRow {
        program: TestedProgram::Haproxy,
        local: at_least(
            "haproxy",
            "haproxy, one thread, 1 KiB, kept connections: CPU in the kernel over local",
            2.5,
        ),
        service: ratio("haproxy", "the same over service", PromisedBound::Floor),
        share: at_least(SERVICE, "haproxy: the same", SERVICE_SHARE),
    },
];

const WRK: Promise = at_least(
    "wrk",
    "wrk against nginx, 1 KiB, kept connections: CPU of wrk in the kernel over local",
    2.5,
);

/// ab on a file of this size, a connection for each request [MT figures 10 and 11].
const AB: [(u64, Promise); 3] = [
    (64, floor("ab", "ab, 64 B, a connection per request: CPU of ab in the kernel over local")),
    (1024, floor("ab", "ab, 1 KiB: the same")),
    (8192, floor("ab", "ab, 8 KiB: the same")),
];

const fn floor(name: &'static str, what: &'static str) -> Promise {
    ratio(name, what, PromisedBound::Floor)
}

const KERNEL_RULES: Promise = Promise::at_least(
    "kernel-rules",
    "redis, all its sockets in the kernel by rules: requests per CPU second over not \
           preloaded",
    0.98,
);

/// What `--only` takes, in order.
fn names() -> impl Iterator<Item = &'static str> {
    let programs = PROGRAMS.iter().map(|row| row.local.name);
    let others = [start::NAME, null_read::PROMISE.name, KERNEL_RULES.name, WRK.name];
    let others = others.into_iter().chain([AB[0].1.name]);
    let others = others.chain([system_calls::PROMISE.name]);
    let others = others.chain(c_server::PROMISES.map(|it| it.name));
    let others = others.chain([accept::NAME, fork::PROMISE.name, SERVICE]);
    programs.chain(others)
}

/// Measures all, or those that `--only` names. Blocks for some minutes.
pub(crate) fn measure(args: &RunArgs) -> Result<ExitCode, BenchError> {
    if let Some(name) = args.only.iter().find(|only| !names().any(|name| name == only.as_str())) {
        let known = names().collect::<Vec<_>>().join(", ");
        return Err(BenchError::UnknownExperiment { name: name.clone(), known });
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let mut bench = args.bench_of(EFFORT)?;
    let library = PreloadLibrary::find(&bench.program);
    let (mut bars, mut shares) = (Vec::new(), Vec::new());
    for row in &PROGRAMS {
        let is_wanted = wanted(row.local.name);
        if !is_wanted && !wanted(SERVICE) {
            continue;
        }
        let [local, service, share] = program_bars(&mut bench, row, &library)?;
        bars.extend([local, service].into_iter().filter(|_| is_wanted));
        shares.extend(Some(share).filter(|_| wanted(SERVICE)));
    }
    if wanted(start::NAME) {
        bars.extend(start::bars(&mut bench, &library)?);
    }
    if wanted(null_read::PROMISE.name) {
        bars.push(null_read::bar(&mut bench, &library)?);
    }
    if wanted(KERNEL_RULES.name) {
        let stacks = [ProgramStack::Kernel, ProgramStack::KernelByRules];
        bars.push(pair_bar(&mut bench, (TestedProgram::Redis, KERNEL_RULES), stacks, &library)?);
    }
    if wanted(WRK.name) {
        let stacks = [ProgramStack::Kernel, ProgramStack::Local];
        let wrk = TestedProgram::Client(WebClient::Wrk);
        bars.push(pair_bar(&mut bench, (wrk, WRK), stacks, &library)?);
    }
    for (bytes, promise) in AB.into_iter().filter(|(_, promise)| wanted(promise.name)) {
        let stacks = [ProgramStack::Kernel, ProgramStack::Local];
        let ab = TestedProgram::Client(WebClient::Ab(bytes));
        bars.push(pair_bar(&mut bench, (ab, promise), stacks, &library)?);
    }
    if wanted(system_calls::PROMISE.name) {
        bars.push(system_calls::bar(&mut bench, &library)?);
    }
    if c_server::PROMISES.iter().any(|it| wanted(it.name)) {
        let both = c_server::bars(&mut bench, &library)?;
        bars.extend(both.into_iter().filter(|it| wanted(it.name)));
    }
    if wanted(accept::NAME) {
        bars.extend(accept::bars(&mut bench, &library)?);
    }
    if wanted(fork::PROMISE.name) {
        bars.push(fork::bar(&mut bench, &library)?);
    }
    bars.extend(shares);
    bars::finish(&bench, Vec::new(), &bars, args)
}

/// What a row lacks on this machine: the library, or a program.
fn lack(
    library: &Result<PreloadLibrary, String>,
    program: TestedProgram,
) -> Result<&PreloadLibrary, String> {
    let library = lack_of_library(library)?;
    match program.missing() {
        Some(why) => Err(why),
        None => Ok(library),
    }
}

fn lack_of_library(library: &Result<PreloadLibrary, String>) -> Result<&PreloadLibrary, String> {
    library.as_ref().map_err(Clone::clone)
}

fn program_bars(
    bench: &mut Bench,
    row: &ProgramRow,
    library: &Result<PreloadLibrary, String>,
) -> Result<[BarResult; 3], LayoutError> {
    let promises = [row.local, row.service, row.share];
    let library = match lack(library, row.program) {
        Ok(library) => library,
        Err(why) => return Ok(promises.map(|promise| promise.skipped(why.clone()))),
    };
    let stacks = [ProgramStack::Kernel, ProgramStack::Local, ProgramStack::Service];
    let rounds = ProgramRounds::measure(bench, (row.program, row.local.name), &stacks, library)?;
    let [kernel, local, service] = stacks;
    Ok([
        rounds.result(row.local, kernel, local),
        rounds.result(row.service, kernel, service),
        rounds.result(row.share, local, service),
    ])
}

/// A promise about the CPU time of a program on one stack over that on another.
fn pair_bar(
    bench: &mut Bench,
    (program, promise): (TestedProgram, Promise),
    stacks: [ProgramStack; 2],
    library: &Result<PreloadLibrary, String>,
) -> Result<BarResult, LayoutError> {
    let library = match lack(library, program) {
        Ok(library) => library,
        Err(why) => return Ok(promise.skipped(why)),
    };
    let rounds = ProgramRounds::measure(bench, (program, promise.name), &stacks, library)?;
    let [one, other] = stacks;
    Ok(rounds.result(promise, one, other))
}

/// The text of a child's file of output, of which only the end is of use.
fn last_lines(path: &std::path::Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines.len().saturating_sub(crate::limits::LOG_LINES_SHOWN);
    if lines.is_empty() { "it printed nothing".to_owned() } else { lines[last..].join(" | ") }
}

/// An error that names what was not as expected.
fn unfit(what: impl Into<String>) -> PreloadBarError {
    PreloadBarError::System(io::Error::other(what.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_text_each_that_fits_two_lines() {
        let rows = PROGRAMS.iter().flat_map(|row| [row.local, row.share]);
        let rows = rows.chain(start::PROMISES).chain([null_read::PROMISE, KERNEL_RULES, WRK]);
        let rows = rows.chain([system_calls::PROMISE, fork::PROMISE]).chain(c_server::PROMISES);
        let rows = rows.chain(accept::PROMISES).chain(AB.map(|(_, promise)| promise));
        let mut texts: Vec<&str> = rows.map(|promise| promise.what).collect();
        assert!(texts.iter().all(|text| text.len() <= 90));
        let all = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), all);
    }

    #[test]
    fn only_takes_each_row_once() {
        let mut all: Vec<&str> = names().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), names().count());
        assert!(PROGRAMS.iter().all(|row| row.local.name == row.service.name));
        assert!(PROGRAMS.iter().all(|row| row.share.name == SERVICE));
    }

    #[test]
    fn row_without_library_is_skipped() {
        let library = Err("there is no library".to_owned());
        let why = lack(&library, TestedProgram::Redis).err();
        assert_eq!(why.as_deref(), Some("there is no library"));
    }
}
