//! What a server counts, and how the live view of `--stats` prints it.
//!
//! A shard counts in plain integers of its own. Its loop copies them a few times a second into
//! [`Published`], where the supervising thread reads them; so counting costs the hot path an
//! addition and no atomic operation.
//!
//! Invariants
//! - One thread stores to a `Published`, any may load. Each number is exact as of the shard's
//!   last tick, and final once the shard's thread has ended; two numbers may be of two ticks.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use megapipe::Counters;
use serde::Serialize;

/// What one shard, or all of them, have done since the start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections ended, by whichever side.
    pub closed: u64,
    /// Connections that ended by a reset or another failure: a part of `closed`.
    pub failed: u64,
    /// Requests answered.
    pub requests: u64,
    /// Requests refused as malformed or too large, with or without an answer.
    pub rejected: u64,
    /// Payload bytes received.
    pub bytes_in: u64,
    /// Payload bytes of completed writes.
    pub bytes_out: u64,
    /// Events that a stack on a thread of its own has told; 0 with placement `inline`.
    pub server_events: u64,
    /// Times that they woke the channel's thread: what `server_events` is divided by.
    pub server_wakeups: u64,
}

/// How many numbers a [`Tally`] holds.
const FIELDS: usize = 9;

impl Tally {
    /// With what the channel beneath counted about its stack's thread.
    #[must_use]
    pub(crate) const fn with_wakeups(self, counters: Counters) -> Self {
        let Counters { server_events, server_wakeups, .. } = counters;
        Self { server_events, server_wakeups, ..self }
    }

    /// Events that the stack's thread told for each time that it woke the channel's [MT 3.2]; none
    /// where it has no thread of its own.
    #[must_use]
    pub fn events_per_wakeup(&self) -> Option<f64> {
        (self.server_wakeups > 0).then(|| self.server_events as f64 / self.server_wakeups as f64)
    }

    /// Connections that are open now.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.accepted.saturating_sub(self.closed)
    }

    const fn to_array(self) -> [u64; FIELDS] {
        [
            self.accepted,
            self.closed,
            self.failed,
            self.requests,
            self.rejected,
            self.bytes_in,
            self.bytes_out,
            self.server_events,
            self.server_wakeups,
        ]
    }

    const fn from_array(fields: [u64; FIELDS]) -> Self {
        let [accepted, closed, failed, requests, rejected, bytes_in, bytes_out, events, wakeups] =
            fields;
        Self {
            accepted,
            closed,
            failed,
            requests,
            rejected,
            bytes_in,
            bytes_out,
            server_events: events,
            server_wakeups: wakeups,
        }
    }

    /// The sum of two tallies.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let mut sum = self.to_array();
        sum.iter_mut().zip(other.to_array()).for_each(|(sum, more)| *sum += more);
        Self::from_array(sum)
    }
}

/// One shard's tally where other threads can read it.
#[derive(Debug, Default)]
pub(crate) struct Published([AtomicU64; FIELDS]);

impl Published {
    /// Makes `tally` visible. Only the shard's own thread calls this.
    pub(crate) fn store(&self, tally: Tally) {
        for (cell, value) in self.0.iter().zip(tally.to_array()) {
            // Relaxed: each number stands for itself, nothing else is read on its strength.
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// The numbers as last stored.
    pub(crate) fn load(&self) -> Tally {
        // Relaxed: pairs with nothing, see `store`.
        Tally::from_array(std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed)))
    }
}

/// The columns of the live view, with their widths.
const COLUMNS: [(&str, usize); 10] = [
    ("channel", 8),
    ("open", 8),
    ("accepts/s", 10),
    ("requests/s", 11),
    ("in MB/s", 9),
    ("out MB/s", 9),
    ("requests", 14),
    ("failed", 8),
    ("rejected", 9),
    ("events/wake", 12),
];

/// The table's first line.
pub(crate) fn heading() -> String {
    COLUMNS.iter().fold(String::new(), |line, (name, width)| format!("{line}{name:>width$}"))
}

/// One line: what `label` did between two tallies that lie `span` apart.
pub(crate) fn row(label: &str, before: Tally, after: Tally, span: Duration) -> String {
    let seconds = span.as_secs_f64().max(1e-3);
    let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
    let megabytes = |before, after| format!("{:.1}", rate(before, after) / 1e6);
    let cells = [
        label.to_owned(),
        after.open().to_string(),
        format!("{:.0}", rate(before.accepted, after.accepted)),
        format!("{:.0}", rate(before.requests, after.requests)),
        megabytes(before.bytes_in, after.bytes_in),
        megabytes(before.bytes_out, after.bytes_out),
        after.requests.to_string(),
        after.failed.to_string(),
        after.rejected.to_string(),
        after.events_per_wakeup().map_or_else(|| "-".to_owned(), |events| format!("{events:.0}")),
    ];
    let mut line = String::new();
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        // Writing to a String cannot fail.
        let _ = write!(line, "{cell:>width$}");
    }
    line
}

/// The whole table: one row a channel, and their sum where there is more than one.
pub(crate) fn table(before: &[Tally], after: &[Tally], span: Duration) -> Vec<String> {
    let mut lines = vec![heading()];
    for (index, (&before, &after)) in before.iter().zip(after).enumerate() {
        lines.push(row(&index.to_string(), before, after, span));
    }
    if after.len() > 1 {
        lines.push(row("all", sum(before), sum(after), span));
    }
    lines
}

/// The sum over all shards.
pub(crate) fn sum(tallies: &[Tally]) -> Tally {
    tallies.iter().fold(Tally::default(), |sum, &tally| sum.plus(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(base: u64) -> Tally {
        Tally::from_array(std::array::from_fn(|field| base * (field as u64 + 1)))
    }

    #[test]
    fn what_is_stored_is_loaded_field_by_field() {
        let published = Published::default();
        published.store(tally(10));
        assert_eq!(published.load(), tally(10));
        assert_eq!((tally(10).bytes_out, tally(10).server_wakeups), (70, 90));
    }

    #[test]
    fn events_are_counted_per_wake_up_where_there_is_somebody_to_wake() {
        assert_eq!(Tally::default().events_per_wakeup(), None);
        let woken = Tally { server_events: 4_340, server_wakeups: 2, ..Tally::default() };
        assert_eq!(woken.events_per_wakeup(), Some(2_170.0));
        let second = Duration::from_secs(1);
        assert!(row("0", Tally::default(), woken, second).ends_with("2170"));
        assert!(row("0", woken, Tally::default(), second).ends_with('-'));
    }

    #[test]
    fn the_table_has_a_sum_only_where_there_is_something_to_add() {
        let (before, after) = ([Tally::default(); 2], [tally(100), tally(300)]);
        let lines = table(&before, &after, Duration::from_secs(2));
        assert_eq!(lines.len(), 4);
        let cells: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(cells[0], "all");
        assert_eq!(cells[2], "200", "400 accepts in two seconds: {}", lines[3]);
        assert_eq!(cells[6], "1600", "400 requests each: {}", lines[3]);
        assert_eq!(table(&before[..1], &after[..1], Duration::from_secs(1)).len(), 2);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "aligned: {lines:?}");
    }
}
