//! Whole streams between our stack and smoltcp's, in virtual time over a link with faults: two
//! implementations of one protocol, made by different people, have to agree on every byte.
//!
//! ```text
//!  ours: stack, Fault, pair end  <-- loss, duplication, reordering, damage -->  pair end, smoltcp
//! ```
//!
//! Read first: `scenario.rs` for what a seed decides, `world.rs` for how time passes.
//!
//! What is checked: each byte arrives once and in order, in both directions; each end of stream
//! comes after the last byte and before nothing; no connection is stuck or breaks off; afterwards
//! our stack holds nothing. A failure prints the line that runs it again.

mod ours;
mod scenario;
mod theirs;
mod world;

use std::time::{SystemTime, UNIX_EPOCH};

use scenario::Scenario;

/// Seeds that are run each time.
const FIXED: std::ops::Range<u64> = 0..150;
/// Seeds that were never run before.
const FRESH: u64 = 25;
/// Runs one seed alone and tells about it, or those from the first to before the last: `0..9000`.
const SEED: &str = "MEGAPIPE_SEED";

/// Runs worlds and says which of them failed.
fn run(seeds: impl Iterator<Item = u64>) {
    let (mut failed, mut total) = (Vec::new(), world::Outcome::default());
    for seed in seeds {
        match world::run(&Scenario::of(seed)) {
            Ok(outcome) => total.add(&outcome),
            Err(failure) => failed.push(format!(
                "{failure}\n  {SEED}={seed} cargo test -p megapipe-tests --test streams"
            )),
        }
    }
    assert!(failed.is_empty(), "{} worlds failed:\n{}", failed.len(), failed.join("\n"));
    println!("{total:?}");
    // A link that harms nothing, or streams without bytes, would show nothing.
    assert!(total.bytes > 0 && total.harmed > 0, "{total:?}");
    // Two of some thousands; more would be a fault of ours.
    assert!(total.peer_stopped <= 1 + total.worlds / 100, "{total:?}");
}

#[test]
fn smoltcp_and_we_agree_on_every_byte() {
    match std::env::var(SEED) {
        Ok(seeds) => {
            let number = |text: &str| text.parse::<u64>().expect("a number");
            match seeds.split_once("..") {
                Some((first, end)) => run(number(first)..number(end)),
                None => {
                    println!("{:#?}", Scenario::of(number(&seeds)));
                    run(std::iter::once(number(&seeds)));
                }
            }
        }
        Err(_) => run(FIXED),
    }
}

#[test]
fn smoltcp_and_we_agree_in_worlds_never_seen_before() {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let first = since.as_nanos() as u64 >> 8;
    run((0..FRESH).map(|number| first.wrapping_add(number)));
}
