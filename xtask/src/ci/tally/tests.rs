//! Outputs as libtest prints them, and what they come to.

use super::*;

fn tally(output: &str) -> (TestCounts, Vec<String>) {
    let mut tally = TestTally::default();
    output.lines().for_each(|line| tally.line(line));
    let failures = tally.output();
    (tally.finish(), failures)
}

const PASSING: &str = "
     Running unittests src/lib.rs (target/debug/deps/megapipe-1)

running 2 tests
test a::one ... ok
test a::two ... ok

successes:

---- a::one stdout ----
some text

successes:
    a::one
    a::two

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

#[test]
fn passes_of_several_binaries_add_up() {
    let (counts, failures) = tally(&PASSING.repeat(3));
    assert_eq!(counts, TestCounts { passed: 6, failures: vec![], skips: vec![] });
    assert!(failures.is_empty());
}

#[test]
fn ignored_tests_are_skips_with_their_reason() {
    let (counts, _) = tally(
        "test slow ... ignored, takes an hour\n\
         test src/lib.rs - f (line 3) ... ignored\n\
         test result: ok. 0 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out",
    );
    assert_eq!(counts.passed, 0);
    let expected = ["slow: takes an hour", "src/lib.rs - f (line 3): marked as ignored"];
    assert_eq!(counts.skips, expected);
}

#[test]
fn a_test_that_skips_itself_is_no_pass() {
    let (counts, _) = tally(
        "---- http::with_wrk stdout ----\n\
         skipped: with_wrk: wrk is not installed\n\
         ---- http::with_ab stdout ----\n\
         skipped: http::with_ab: ab is not installed\n\
         ---- netns stdout ----\n\
         skipped: needs root\n\
         test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
    );
    assert_eq!(counts.passed, 2);
    let expected = [
        "http::with_wrk: wrk is not installed",
        "http::with_ab: ab is not installed",
        "netns: needs root",
    ];
    assert_eq!(counts.skips, expected);
}

#[test]
fn a_skipped_case_leaves_its_test_passed_and_counts_once() {
    let (counts, _) = tally(
        "---- each_driver stdout ----\n\
         skipped: uring: io_uring is disabled here\n\
         skipped: uring: io_uring is disabled here\n\
         skipped: each_driver on epoll: epoll is disabled here\n\
         test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
    );
    assert_eq!(counts.passed, 1);
    let expected =
        ["uring: io_uring is disabled here", "each_driver on epoll: epoll is disabled here"];
    assert_eq!(counts.skips, expected);
}

#[test]
fn failures_are_counted_and_shown_with_their_binary() {
    let (counts, failures) = tally(
        "     Running tests/echo.rs (target/debug/deps/echo-2)\n\
         test echo ... FAILED\n\
         failures:\n\
         \n\
         ---- echo stdout ----\n\
         thread 'echo' (12) panicked at tests/echo.rs:9:5:\n\
         left != right\n\
         \n\
         failures:\n    echo\n\n\
         test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n\
         test later ... ok\n",
    );
    assert_eq!(counts.passed, 1);
    let place = "tests/echo.rs:9:5: left != right";
    let named = "tests/echo.rs (target/debug/deps/echo-2)";
    assert_eq!(counts.failures, [format!("{named}: echo: {place}")]);
    let text = failures.join("\n");
    assert!(text.contains("left != right"), "{text}");
    assert!(text.contains("^ tests/echo.rs"), "{text}");
    assert!(!text.contains("later"), "{text}");
}

#[test]
fn text_that_only_looks_similar_counts_nothing() {
    let (counts, _) = tally("we skipped: lunch\ntest results: 3 passed\n");
    assert_eq!(counts, TestCounts::default());
}

#[test]
fn a_failure_without_a_name_is_counted_too() {
    let (counts, _) = tally("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured");
    assert_eq!((counts.passed, counts.failures.len()), (1, 2));
}

#[test]
fn stopped_program_lists_unfinished_tests() {
    let output = "test one ... ok\n\
                  test two has been running for over 60 seconds\n\
                  test a::three has been running for over 60 seconds\n\
                  test two ... ok\n";
    let stopped = |output: &str| {
        let mut tally = TestTally::of("link tests/pair.rs");
        output.lines().for_each(|line| tally.line(line));
        tally.break_off("silent for 180 s")
    };
    let counts = stopped(output);
    assert_eq!(counts.passed, 2);
    assert_eq!(counts.failures, ["link tests/pair.rs: a::three: not ended: silent for 180 s"]);
    let counts = stopped("test one ... ok\n");
    assert_eq!((counts.passed, counts.failures.len()), (1, 1), "the program itself has failed");
}
