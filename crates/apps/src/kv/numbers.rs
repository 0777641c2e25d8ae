//! The server's own numbers for `stats`: written by each channel, read by whichever is asked.
//!
//! Read first: [`super::connection::ServerView`].
//!
//! Invariants
//! - A channel writes only its own row, which shares no cache line with another's.
//! - `curr_connections` and `total_connections` are exact; bytes are those of the last tick.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::connection::{ServerSnapshot, ServerView};
use crate::serve::ServerTally;

/// What does not change while the server runs.
#[derive(Debug)]
pub(super) struct Constants {
    pub(super) address: String,
    pub(super) connections_max: u64,
    pub(super) idle_timeout_s: u64,
    pub(super) channels: u64,
}

/// The numbers of all channels.
#[derive(Debug)]
pub(super) struct ServerNumbers {
    constants: Constants,
    started: Instant,
    rows: Vec<CounterRow>,
    /// What `stats reset` takes away from total connections, bytes read and bytes written.
    forgotten: [AtomicU64; 3],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterRow {
    accepted: AtomicU64,
    closed: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    idle_kicks: AtomicU64,
}

impl ServerNumbers {
    pub(super) fn new(constants: Constants) -> Self {
        let rows = (0..constants.channels).map(|_| CounterRow::default()).collect();
        Self { constants, started: Instant::now(), rows, forgotten: Default::default() }
    }

    /// Makes a channel's numbers visible. Only that channel calls this.
    pub(super) fn publish(&self, channel: usize, tally: &ServerTally, idle_kicks: u64) {
        let Some(row) = self.rows.get(channel) else { return };
        // Relaxed, here and below: numbers for people, and nothing is ordered by them.
        row.accepted.store(tally.accepted, Ordering::Relaxed);
        row.closed.store(tally.closed, Ordering::Relaxed);
        row.bytes_read.store(tally.bytes_in, Ordering::Relaxed);
        row.bytes_written.store(tally.bytes_out, Ordering::Relaxed);
        row.idle_kicks.store(idle_kicks, Ordering::Relaxed);
    }

    fn sum(&self, field: impl Fn(&CounterRow) -> &AtomicU64) -> u64 {
        self.rows.iter().map(|row| field(row).load(Ordering::Relaxed)).sum()
    }

    /// Total connections, bytes read, bytes written.
    fn totals(&self) -> [u64; 3] {
        [
            self.sum(|row| &row.accepted),
            self.sum(|row| &row.bytes_read),
            self.sum(|row| &row.bytes_written),
        ]
    }
}

impl ServerView for ServerNumbers {
    fn snapshot(&self) -> ServerSnapshot {
        let mut totals = self.totals();
        let open = totals[0].saturating_sub(self.sum(|row| &row.closed));
        for (total, forgotten) in totals.iter_mut().zip(&self.forgotten) {
            *total = total.saturating_sub(forgotten.load(Ordering::Relaxed));
        }
        let [connections_total, bytes_read, bytes_written] = totals;
        let (user_us, system_us) = processor_time_us();
        ServerSnapshot {
            pid: std::process::id(),
            uptime_s: u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX),
            user_us,
            system_us,
            connections_max: self.constants.connections_max,
            connections: open,
            connections_total,
            idle_kicks: self.sum(|row| &row.idle_kicks),
            bytes_read,
            bytes_written,
            channels: self.constants.channels,
            address: self.constants.address.clone(),
            idle_timeout_s: self.constants.idle_timeout_s,
        }
    }

    fn reset(&self) {
        for (forgotten, total) in self.forgotten.iter().zip(self.totals()) {
            forgotten.store(total, Ordering::Relaxed);
        }
    }
}

/// User and system time of this process in microseconds, from `/proc/self/stat`; nought where there
/// is none. It is read on a channel's thread, which is what asking for `stats` costs.
fn processor_time_us() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in brackets and may hold anything.
    let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let us_per_tick = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let mut ticks = fields.split(' ').skip(11).map(|field| field.parse::<u64>().unwrap_or(0));
    let mut next = || ticks.next().unwrap_or(0) * us_per_tick;
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_add_up_and_a_reset_begins_anew() {
        let numbers = ServerNumbers::new(Constants {
            address: "127.0.0.1:1".to_owned(),
            connections_max: 9,
            idle_timeout_s: 0,
            channels: 2,
        });
        let tally = |accepted, closed, bytes_in| ServerTally {
            accepted,
            closed,
            bytes_in,
            bytes_out: 7,
            ..ServerTally::default()
        };
        numbers.publish(0, &tally(5, 2, 100), 1);
        numbers.publish(1, &tally(4, 4, 10), 2);
        numbers.publish(2, &tally(1, 1, 1), 1);
        let seen = numbers.snapshot();
        assert_eq!((seen.connections, seen.connections_total), (3, 9));
        assert_eq!((seen.bytes_read, seen.bytes_written, seen.idle_kicks), (110, 14, 3));
        numbers.reset();
        numbers.publish(1, &tally(6, 5, 15), 2);
        let seen = numbers.snapshot();
        assert_eq!((seen.connections, seen.connections_total), (4, 2));
        assert_eq!((seen.bytes_read, seen.bytes_written), (5, 0));
    }

    #[test]
    fn processor_time_is_that_of_this_process() {
        let start = Instant::now();
        while processor_time_us().0 == 0 && start.elapsed().as_secs() < 5 {
            std::hint::black_box((0..100_000u64).sum::<u64>());
        }
        let (user_us, system_us) = processor_time_us();
        assert!(user_us > 0);
        assert!(user_us + system_us < 3_600 * 1_000_000);
    }
}
