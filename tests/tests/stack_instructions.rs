//! What a received segment costs the stack does not creep up.
//!
//! This program runs itself under callgrind. Only an optimised build is worth counting:
//! `cargo test --release -p megapipe-tests --test stack_instructions`.

use megapipe_bench::{InstructionsError, carry_segments, per_segment_of};
use std::process::Command;

/// Instructions from the frame to its event: a little above what is reached. The promise is lower
/// (`docs/BENCHMARKING.md`); whoever comes nearer to it lowers this.
const INSTRUCTIONS_MAX: f64 = 1_150.0;

/// Set for the run that callgrind watches.
const WATCHED: &str = "MEGAPIPE_TEST_SEGMENTS";

#[test]
fn a_received_segment_costs_no_more_than_before() {
    if std::env::var_os(WATCHED).is_some() {
        carry_segments().expect("each segment has its event");
        return;
    }
    if cfg!(debug_assertions) {
        println!("skipped: instructions of a build without optimisation say nothing");
        return;
    }
    let own = std::env::current_exe().expect("this program");
    let mut carrier = Command::new(own);
    carrier.args(["--exact", "a_received_segment_costs_no_more_than_before"]).env(WATCHED, "1");
    match per_segment_of(&carrier) {
        Ok(count) => {
            println!("{count:.0} instructions");
            assert!(count > 100.0 && count <= INSTRUCTIONS_MAX, "{count:.0} instructions");
        }
        Err(error @ InstructionsError::NoValgrind) => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}
