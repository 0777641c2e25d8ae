//! Additional cost of `mp_read` and its completion from C over the same calls from Rust.
//!
//! A small C program (`c_overhead/read_loop.c`) is linked with the `libmegapipe.a` that cargo puts
//! beside the `megapipe` executable; [`read_loop`] is the same program in Rust. They run in turn,
//! on the same cores, and each reports the least of its batches, because whatever else the machine
//! does only ever adds.

use crate::{limits, process, scratch::Scratch};
use megapipe::{Channel, Config, CreateError, DispatchError, Event, RegisterError, SubmitError};
use std::{
    fs,
    io::{self, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

const SOURCE: &str = include_str!("c_overhead/read_loop.c");
const HEADER: &str = include_str!("c_overhead/megapipe.h");

const BATCHES: usize = 20;
const BLOCKS: usize = 500;
const BLOCK_BYTES: usize = 4096;
const PIECE_BYTES: usize = 64;

/// The comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum COverheadError {
    #[error(
        "libmegapipe.a is not built: `cargo build --release -p megapipe-capi` puts it beside \
        megapipe"
    )]
    NotBuilt,
    #[error("there is no C compiler (cc)")]
    NoCompiler,
    #[error("{step}: {said}")]
    C { step: &'static str, said: String },
    #[error("reading through a channel: {0}")]
    Rust(#[from] ReadLoopError),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The Rust half failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadLoopError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    #[error("the socket gave something else than bytes")]
    Unexpected,
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Nanoseconds that C needs more for each read, once for each run. Blocks for about a second each.
pub(crate) fn nanoseconds(scratch: &Scratch, runs: usize) -> Result<Vec<f64>, COverheadError> {
    let program = compile(scratch.path())?;
    let difference = |_| Ok(c_read_loop(&program)? - read_loop(BATCHES, BLOCKS)?);
    (0..runs).map(difference).collect()
}

fn library() -> Result<PathBuf, COverheadError> {
    let executable = std::env::current_exe()?;
    let library = executable.with_file_name("libmegapipe.a");
    if library.is_file() { Ok(library) } else { Err(COverheadError::NotBuilt) }
}

fn compile(directory: &Path) -> Result<PathBuf, COverheadError> {
    let library = library()?;
    let compiler = process::find_program("cc").ok_or(COverheadError::NoCompiler)?;
    let (source, program) = (directory.join("read_loop.c"), directory.join("read_loop"));
    fs::write(&source, SOURCE)?;
    fs::write(directory.join("megapipe.h"), HEADER)?;
    let mut command = Command::new(compiler);
    command.args(["-std=gnu11", "-O2", "-I"]).arg(directory).arg(&source).arg("-o").arg(&program);
    // What Rust's standard library needs of the system.
    command.arg(&library).args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    said("compiling the C half", &mut command)?;
    Ok(program)
}

fn c_read_loop(program: &Path) -> Result<f64, COverheadError> {
    let step = "the C half";
    let text = said(step, &mut Command::new(program))?;
    let number = text.trim().parse();
    number.map_err(|_| COverheadError::C { step, said: format!("it printed '{}'", text.trim()) })
}

/// What a command printed, if it succeeded.
fn said(step: &'static str, command: &mut Command) -> Result<String, COverheadError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = process::ChildProcess::start(command)?;
    let output = running.output_within(limits::C_HALF_MAX)?;
    let failed = |said| COverheadError::C { step, said };
    let output = output.ok_or_else(|| failed("it did not end".to_owned()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// The same as `main` in `c_overhead/read_loop.c`: change both or none.
fn read_loop(batches: usize, blocks: usize) -> Result<f64, ReadLoopError> {
    let (block, mut piece) = ([0; BLOCK_BYTES], [0; PIECE_BYTES]);
    let mut channel = Channel::create(Config::default())?;
    let (reader, mut writer) = UnixStream::pair()?;
    let handle = channel.register(reader.into(), 0, None)?;
    let mut least_ns = f64::MAX;
    for _ in 0..batches {
        let started = Instant::now();
        let mut reads = 0u32;
        for _ in 0..blocks {
            let mut left = BLOCK_BYTES;
            writer.write_all(&block)?;
            while left > 0 {
                channel.read(handle, PIECE_BYTES)?;
                let done = channel.dispatch(None)?;
                let Some(Event::Read(Ok(data))) = done.map(|done| done.event) else {
                    return Err(ReadLoopError::Unexpected);
                };
                // As C has it: in memory of the program's own.
                piece[..data.len()].copy_from_slice(&data);
                left -= data.len();
                reads += 1;
            }
        }
        least_ns = least_ns.min(started.elapsed().as_nanos() as f64 / f64::from(reads));
        std::hint::black_box(&piece);
    }
    Ok(least_ns)
}

#[cfg(test)]
mod tests {
    use super::{BATCHES, BLOCK_BYTES, BLOCKS, PIECE_BYTES, SOURCE, read_loop};

    #[test]
    fn both_halves_read_alike() {
        let numbers = format!(
            "BATCHES = {BATCHES}, BLOCKS = {BLOCKS}, BLOCK_SIZE = {BLOCK_BYTES}, \
             PIECE_SIZE = {PIECE_BYTES}"
        );
        assert!(SOURCE.contains(&numbers), "{numbers}");
    }

    #[test]
    fn a_read_takes_some_time() {
        let each_ns = read_loop(2, 3).unwrap();
        assert!(each_ns > 1.0 && each_ns < 1e6, "{each_ns}");
    }
}
