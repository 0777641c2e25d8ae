//! Watching real, short programs.

use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn output_and_errors_arrive_in_order() {
    let mut seen = Vec::new();
    let watched = watch(&mut shell("echo one; echo two >&2; echo three"), |line| {
        seen.extend(line.map(str::to_owned));
    });
    assert_eq!(seen, ["one", "two", "three"]);
    let watched = watched.expect("sh runs");
    assert_eq!(watched.end, ProcessEnd::Success);
    assert_eq!(watched.output, seen);
}

#[test]
fn failure_and_success_are_distinguished() {
    let watched = watch(&mut shell("exit 3"), |_| {}).expect("sh runs");
    assert_eq!(watched.end, ProcessEnd::Failure);
}

#[test]
fn a_child_that_keeps_the_pipe_does_not_hold_us() {
    let start = Instant::now();
    let watched = watch(&mut shell("sleep 20 & echo $!"), |_| {}).expect("sh runs");
    assert_eq!(watched.end, ProcessEnd::Success);
    assert!(start.elapsed() < Duration::from_secs(10));
    stop_tree(watched.output[0].parse().expect("the sleeper's number"));
}

#[test]
fn stopping_reaches_grandchildren() {
    let mut child = shell("sh -c 'sleep 20; true' & wait").spawn().expect("sh runs");
    let mut sleeper = Vec::new();
    assert!(soon(|| {
        sleeper = children_of(child.id()).into_iter().flat_map(children_of).collect();
        !sleeper.is_empty()
    }));
    stop_tree(child.id());
    assert!(!child.wait().expect("it was ours").success());
    // The process that inherits the sleeper may reap it later.
    assert!(soon(|| {
        let state = fs::read_to_string(format!("/proc/{}/stat", sleeper[0]));
        state.map_or(true, |text| text.contains(") Z "))
    }));
}

/// Waits for something that another process does, for ten seconds at most.
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn a_missing_program_is_an_error_by_name() {
    let error = output_of(&mut Command::new("no-such-program-here")).expect_err("not there");
    assert!(error.to_string().contains("no-such-program-here"), "{error}");
    assert!(!is_installed("no-such-program-here"));
    assert!(is_installed("sh"));
}

#[test]
fn the_tail_of_an_output_is_bounded() {
    let mut tail = OutputTail::default();
    let line = "x".repeat(limits::STEP_OUTPUT_BYTES_MAX / 4);
    for _ in 0..10 {
        tail.push(line.clone());
    }
    assert_eq!(tail.lines.len(), 3);
}
