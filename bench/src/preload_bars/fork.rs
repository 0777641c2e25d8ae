//! What a fork costs a process on `service`, with many connections and with one: messages of
//! the parent to the daemon, and descriptors of the child.
//!
//! Read first: `fork_cost.c`. A private daemon has a link at whose other end is nothing.

use super::{
    lack_of_library,
    stage::{PreloadBarError, ProgramStage},
    system_calls, unfit,
};
use crate::{
    layout::LayoutError,
    limits,
    preload_library::{self, PreloadLibrary, run_words},
    process::{ChildProcess, find_program},
    promise::{BarResult, Promise},
    run::Bench,
    server,
    stack_link::StackLink,
};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

pub(super) const PROMISE: Promise = Promise::at_most(
    "fork",
    "fork on service, 10,000 connections: messages and descriptors more than with one",
    0.0,
)
.with_digits(0);

const SOURCE: &str = include_str!("fork_cost.c");

pub(super) fn bar(
    bench: &mut Bench,
    library: &Result<PreloadLibrary, String>,
) -> Result<BarResult, LayoutError> {
    let library = match lack_of_library(library) {
        Ok(library) => library,
        Err(why) => return Ok(PROMISE.skipped(why)),
    };
    let [Some(_), Some(perf)] = ["cc", "perf"].map(find_program) else {
        return Ok(PROMISE.skipped("cc or perf is not installed (cargo xtask setup)".to_owned()));
    };
    let scratch = bench.scratch.path().to_owned();
    let program = scratch.join("fork_cost");
    if let Err(error) = compile(&scratch, &program) {
        bench.failed = true;
        return Ok(PROMISE.result(Vec::new(), Some(error.to_string())));
    }
    let (runs, why) = bench.repeat(PROMISE.name, |bench| {
        let stage = ProgramStage { layout: bench.layout(1)?, scratch: &scratch, library };
        let of = |connections| cost(stage, [&program, &perf], connections);
        Ok(of(1).and_then(|few| Ok(of(limits::PRELOAD_FORK_CONNECTIONS)? - few)))
    })?;
    Ok(PROMISE.result(runs, why))
}

fn compile(scratch: &Path, program: &Path) -> Result<(), PreloadBarError> {
    let source = scratch.join("fork_cost.c");
    fs::write(&source, SOURCE)?;
    system_calls::write_header(scratch)?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-D_GNU_SOURCE"]).arg(&source).arg("-o").arg(program);
    printed(&mut command).map(drop)
}

/// Messages of a fork's parent, and descriptors that the child has more; a child has fewer.
fn cost(
    stage: ProgramStage<'_>,
    [program, perf]: [&Path; 2],
    connections: u32,
) -> Result<f64, PreloadBarError> {
    let ProgramStage { layout, scratch, library } = stage;
    let (address, _) = server::free_address(Some(StackLink::Memif), layout)?;
    let args = vec![address.ip().to_string(), address.port().to_string(), connections.to_string()];
    let place = &layout.server;
    // Where it is not mounted, perf mounts what the program finds the tracepoint in.
    let counting = system_calls::counting(perf);
    let run = run_words(options(stage), program, args).into_iter();
    let run = [place.program.to_string_lossy().into_owned()].into_iter().chain(run);
    let words = counting.into_iter().skip(1).chain(run);
    let mut command = place.command(perf, words);
    command.env(preload_library::VARIABLE, &library.0);
    let text = printed(&mut command);
    // The socket of the private daemon, which ends by itself.
    let _ = fs::remove_file(scratch.join("fork.sock"));
    let text = text?;
    cost_in(&text).ok_or_else(|| unfit(format!("fork_cost printed {text}")))
}

/// A private daemon's options: the link of `local`, and a socket of its own.
fn options(stage: ProgramStage<'_>) -> Vec<String> {
    let socket = stage.scratch.join("fork.sock").to_string_lossy().into_owned();
    let options = StackLink::Memif.server_args(stage.layout, stage.scratch).into_iter();
    let options = options.map(|it| match it.as_str() {
        "local" => "service".to_owned(),
        link if link.starts_with("memif:") => it + ",wait=0",
        _ => it,
    });
    options.chain(["--service".to_owned(), socket]).collect()
}

fn printed(command: &mut Command) -> Result<String, PreloadBarError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = ChildProcess::start(command)?.output_within(limits::SCENE_PATIENCE)?;
    let output = output.ok_or_else(|| unfit("it did not end"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(unfit(format!("{}: {}", output.status, said.trim())))
}

/// Pure: the sum of the two numbers that `fork_cost.c` prints.
fn cost_in(text: &str) -> Option<f64> {
    let (messages, descriptors) = text.split_once(' ')?;
    Some(messages.parse::<f64>().ok()? + descriptors.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::cost_in;

    #[test]
    fn messages_and_descriptors_are_added() {
        assert_eq!(cost_in("2 -9"), Some(-7.0));
        assert_eq!(cost_in("perf_event_open: Permission denied"), None);
    }
}
