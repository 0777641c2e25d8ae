//! Random programs of socket calls (`preload/tests/random.c`), with the output that they have on
//! Linux: issue 16, "Known traps".
//!
//! `MEGAPIPE_SEED=N`, or `NxTHREADS`, runs one program, instead of the fixed ones and a new one;
//! `N+COUNT` so many. About one new program in 300 still differs from Linux, so that few run each
//! time.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::service::ServiceHosts;
use super::{C11, Hosts, compile, library, prefix, preloaded, run, sources, without_notes};

/// Programs of one process, which run one after another.
const PROGRAMS: u64 = 12;
/// The first seeds of the processes that run each time.
const FIXED: [u64; 3] = [1, 13, 25];
/// Programs of 2, 3 and 4 threads that run each time.
const FIXED_OF_THREADS: [&str; 3] = ["1+5x2", "6+5x3", "11+5x4"];
/// Calls of a program.
const STEPS: &str = "40";
/// Processes whose threads start the stack, and the calls of each thread.
const STARTS: u64 = 12;
const STARTING_STEPS: &str = "4";
/// Milliseconds in which what was sent arrives: first, and where the outputs differ, since another
/// process may have had the processor.
const PAUSES: [&str; 2] = ["2", "20"];

/// Where programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Linux,
    Kernel,
    Local,
    Service,
}

struct Programs {
    program: PathBuf,
    library: PathBuf,
    daemons: ServiceHosts,
}

impl Programs {
    /// The output of the programs of some seeds, and how the process ended if not well.
    fn output(&self, place: Place, seeds: &str, pause: &str) -> String {
        self.output_of([seeds, STEPS, pause], place)
    }

    fn output_of(&self, arguments: [&str; 3], place: Place) -> String {
        let hosts = Hosts::new(self.library.clone());
        let (mut command, address) = match place {
            Place::Linux => (Command::new(&self.program), "127.0.0.1"),
            Place::Kernel => (preloaded(&self.program, &self.library, "kernel"), "127.0.0.1"),
            Place::Local => (alone(&hosts, &self.program), "10.9.8.1"),
            Place::Service => (self.daemons.program(0, &self.program), "10.9.7.1"),
        };
        let (status, text) = run(command.arg(address).args(arguments));
        let ending = if status.success() { String::new() } else { format!("{status}\n") };
        without_notes(&text) + &ending
    }

    fn compare(&self, place: Place, seeds: &str, expected: &str) {
        let output = self.output(place, seeds, PAUSES[0]);
        if output == expected {
            return;
        }
        // What does not end is no matter of time.
        assert!(output.ends_with("end\n"), "{place:?}: {}", difference(expected, &output));
        let first = difference(expected, &output);
        let expected = self.output(Place::Linux, seeds, PAUSES[1]);
        let output = self.output(place, seeds, PAUSES[1]);
        assert!(
            output == expected,
            "{place:?} and Linux differ:\n{}\nAt first they differed here:\n{first}",
            difference(&expected, &output)
        );
    }
}

/// A program at 10.9.8.1 whose link has no other end.
fn alone(hosts: &Hosts, program: &Path) -> Command {
    let mut command = hosts.server(program);
    let link = format!("memif:{},role=server,wait=0", hosts.socket.display());
    command.env("MEGAPIPE_LINK", link);
    command
}

/// The first line that differs, behind the lines of its program up to there.
fn difference(expected: &str, output: &str) -> String {
    let pairs = expected.lines().zip(output.lines());
    let same = pairs.take_while(|(one, other)| one == other).count();
    let lines: Vec<&str> = expected.lines().take(same).collect();
    let start = lines.iter().rposition(|line| line.starts_with("seed ")).unwrap_or(0);
    let [linux, ours] = [expected, output].map(|text| text.lines().nth(same).unwrap_or("the end"));
    format!("{}\nLinux: {linux}\nours:  {ours}", lines[start..].join("\n"))
}

/// The seeds of each process.
fn seeds(or: impl FnOnce(u32) -> Vec<String>) -> Vec<String> {
    match std::env::var("MEGAPIPE_SEED") {
        Ok(seed) => vec![seed],
        Err(_) => or(fastrand::u32(..)),
    }
}

fn programs(test: &str) -> Option<Programs> {
    let (library, prefix) = (library(test, &[])?, prefix(test)?);
    let source = sources().join("../preload/tests/random.c");
    let program = compile(prefix, &source, "preload-random", C11);
    let daemons = ServiceHosts::new(library.clone(), test);
    Some(Programs { program, library, daemons })
}

fn compare_all(programs: &Programs, seeds: &[String]) {
    let expected: Vec<String> = std::thread::scope(|scope| {
        let output = |seeds| programs.output(Place::Linux, seeds, PAUSES[0]);
        let runs: Vec<_> = seeds.iter().map(|it| scope.spawn(move || output(it))).collect();
        runs.into_iter().map(|run| run.join().expect("it ends")).collect()
    });
    std::thread::scope(|scope| {
        for place in [Place::Kernel, Place::Local, Place::Service] {
            let expected = &expected;
            scope.spawn(move || {
                for (seeds, expected) in seeds.iter().zip(expected) {
                    assert!(expected.ends_with("end\n"), "{expected}");
                    programs.compare(place, seeds, expected);
                }
            });
        }
    });
}

#[test]
fn random_programs_run_as_on_linux() {
    let Some(programs) = programs("random_programs_run_as_on_linux") else { return };
    let seeds = seeds(|new| {
        let fixed = FIXED.into_iter().map(|first| format!("{first}+{PROGRAMS}"));
        fixed.chain([new.to_string()]).collect()
    });
    compare_all(&programs, &seeds);
}

#[test]
fn random_programs_of_threads_run_as_on_linux() {
    let Some(programs) = programs("random_programs_of_threads_run_as_on_linux") else { return };
    let seeds = seeds(|_| FIXED_OF_THREADS.map(str::to_owned).to_vec());
    compare_all(&programs, &seeds);
}

/// Each thread has sockets that wait for the stack when another one starts it.
#[test]
fn threads_that_start_the_stack_run_as_on_linux() {
    let Some(programs) = programs("threads_that_start_the_stack_run_as_on_linux") else { return };
    for seed in 1..=STARTS {
        let seed = format!("{seed}x4");
        let output = |place| programs.output_of([&seed, STARTING_STEPS, PAUSES[1]], place);
        let expected = output(Place::Linux);
        for place in [Place::Kernel, Place::Local, Place::Service] {
            let output = output(place);
            assert!(output == expected, "{place:?}: {}", difference(&expected, &output));
        }
    }
}
