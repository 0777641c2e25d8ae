//! Programs of the load's side: preloaded if the server's link is a memif, and observed while they
//! run.

use super::{
    last_lines,
    stage::{PreloadBarError, ProgramStack, ProgramStage},
};
use crate::{
    cpu_time::CoreTimes,
    limits,
    load::LoadFailure,
    preload_library::{self, run_words},
    process::{ChildProcess, find_program},
};
use megapipe_apps::serve::CpuList;
use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A core at two moments of a client's run, after the warm-up and last.
#[derive(Debug)]
pub(super) struct CoreWatch<'cpus> {
    cpus: &'cpus CpuList,
    begun: Instant,
    first: Option<CoreMoment>,
    last: Option<CoreMoment>,
}

/// A core, and how long a process had run, at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreMoment {
    pub(super) at: Instant,
    pub(super) core: CoreTimes,
    pub(super) ran: Duration,
}

impl<'cpus> CoreWatch<'cpus> {
    pub(super) fn new(cpus: &'cpus CpuList) -> Self {
        Self { cpus, begun: Instant::now(), first: None, last: None }
    }

    /// Reads the core if that is due. `ran` is how long a process has run, where that is wanted;
    /// if it fails or steps back, the process ends, and the moment does not count.
    pub(super) fn look(&mut self, ran: impl FnOnce() -> io::Result<Duration>) -> io::Result<()> {
        let is_due = self.last.is_none_or(|last| last.at.elapsed() >= limits::PRELOAD_WATCH);
        if self.begun.elapsed() < limits::LOAD_WARM_UP || !is_due {
            return Ok(());
        }
        // The time of a thread that has ended is counted no more: the client is about to end.
        let is_less = |ran: Duration| self.last.is_some_and(|last| ran < last.ran);
        let Some(ran) = ran().ok().filter(|ran| !is_less(*ran)) else { return Ok(()) };
        self.last = Some(CoreMoment { at: Instant::now(), core: CoreTimes::read(self.cpus)?, ran });
        self.first = self.first.or(self.last);
        Ok(())
    }

    /// Both moments, if the client ran long enough.
    pub(super) fn window(&self) -> Option<[CoreMoment; 2]> {
        let (first, last) = self.first.zip(self.last)?;
        (last.at > first.at).then_some([first, last])
    }
}

/// The command of a program of the load's side.
pub(super) fn client(
    stage: ProgramStage<'_>,
    stack: ProgramStack,
    name: &str,
    words: Vec<String>,
) -> Command {
    let program = find_program(name).unwrap_or_else(|| PathBuf::from(name));
    let path = stage.load_path(stack);
    let mut command = match stack.link() {
        None => path.place.command(&program, words),
        Some(_) => {
            let words = run_words(path.link_args.clone(), &program, words);
            path.place.command(&path.place.program, words)
        }
    };
    command.env(preload_library::VARIABLE, &stage.library.0);
    command
}

/// Runs a client to its end, and returns what it prints. `watch` is called with its process while
/// it runs.
///
/// # Errors
/// [`LoadFailure::Failed`] also if `is_good` denies what it has printed.
pub(super) fn printed_by(
    stage: ProgramStage<'_>,
    mut command: Command,
    is_good: impl FnOnce(&str) -> bool,
    mut watch: impl FnMut(u32) -> io::Result<()>,
) -> Result<String, PreloadBarError> {
    let log = stage.scratch.join("client.log");
    let file = File::create(&log)?;
    command.stdout(Stdio::from(file.try_clone()?)).stderr(Stdio::from(file));
    let mut child = ChildProcess::start(&mut command)?;
    let deadline = Instant::now() + limits::PRELOAD_LOAD_MAX;
    let status = loop {
        if let Some(status) = child.ended()? {
            break status;
        }
        if Instant::now() > deadline {
            return Err(LoadFailure::Endless.into());
        }
        watch(child.pid())?;
        thread::sleep(limits::CHILD_POLL);
    };
    let text = fs::read_to_string(&log)?;
    match status.success() && is_good(&text) {
        true => Ok(text),
        false => Err(LoadFailure::Failed { said: last_lines(&log) }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_a_process_that_ends_do_not_count() {
        let cpus = CpuList::from(vec![0]);
        let begun = Instant::now().checked_sub(limits::LOAD_WARM_UP).expect("a later clock");
        let mut watch = CoreWatch { begun, ..CoreWatch::new(&cpus) };
        watch.look(|| Ok(Duration::from_secs(2))).unwrap();
        assert!(watch.window().is_none());
        for ran in [Ok(1), Err(io::ErrorKind::NotFound), Ok(3)] {
            thread::sleep(limits::PRELOAD_WATCH);
            watch.look(|| Ok(Duration::from_secs(ran?))).unwrap();
        }
        let [first, last] = watch.window().expect("two moments");
        assert_eq!((first.ran.as_secs(), last.ran.as_secs()), (2, 3));
        let mut early = CoreWatch::new(&cpus);
        early.look(|| Ok(Duration::ZERO)).unwrap();
        assert!(early.last.is_none(), "the warm-up is not over");
    }
}
