//! What a received segment costs the stack does not creep up.
//!
//! This program runs itself under callgrind. Only an optimised build is worth counting:
//! `cargo test --release -p megapipe-tests --test stack_instructions`.

use megapipe_bench::{InstructionsError, SegmentKind, carry_segments, per_segment_of};
use std::process::Command;

/// Instructions from the frame to its event: slightly above the current value
/// (`docs/PERFORMANCE.md`). Improvements lower these.
const TEXT_MAX: f64 = 315.0;
const REQUEST_MAX: f64 = 400.0;
const ANSWER_MAX: f64 = 820.0;

/// Set for the run that callgrind watches.
const WATCHED: &str = "MEGAPIPE_TEST_SEGMENTS";

#[test]
fn a_received_segment_costs_no_more_than_before() {
    costs_at_most(SegmentKind::Text, TEXT_MAX, "a_received_segment_costs_no_more_than_before");
}

#[test]
fn a_received_request_costs_no_more_than_before() {
    costs_at_most(
        SegmentKind::Request,
        REQUEST_MAX,
        "a_received_request_costs_no_more_than_before",
    );
}

#[test]
fn an_answer_costs_no_more_than_before() {
    costs_at_most(SegmentKind::Answer, ANSWER_MAX, "an_answer_costs_no_more_than_before");
}

/// The test `name` in a process of its own, where it carries the segments.
fn costs_at_most(kind: SegmentKind, most: f64, name: &str) {
    if std::env::var_os(WATCHED).is_some() {
        carry_segments(kind).expect("each segment has its event");
        return;
    }
    if cfg!(debug_assertions) {
        println!("skipped: instructions of a build without optimisation say nothing");
        return;
    }
    let own = std::env::current_exe().expect("this program");
    let mut carrier = Command::new(own);
    carrier.args(["--exact", name]).env(WATCHED, "1");
    match per_segment_of(&carrier) {
        Ok(count) => {
            println!("{count:.0} instructions");
            assert!(count > 100.0 && count <= most, "{count:.0} instructions");
        }
        Err(error @ InstructionsError::NoValgrind) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
