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
pub struct ServerTally {
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
    /// Responses with a status of 400 to 499.
    pub status_4xx: u64,
    /// Responses with a status of 500 to 599.
    pub status_5xx: u64,
    /// Payload bytes received.
    pub bytes_in: u64,
    /// Payload bytes of completed writes.
    pub bytes_out: u64,
    /// Events that a stack on its own thread has sent; 0 with placement `inline`.
    pub server_events: u64,
    /// Times that they woke the channel's thread: what `server_events` is divided by.
    pub server_wakeups: u64,
}

/// How many numbers a [`ServerTally`] holds.
const FIELDS: usize = 11;

impl ServerTally {
    /// With the channel's counters of its stack's thread.
    #[must_use]
    pub(crate) const fn with_wakeups(self, counters: Counters) -> Self {
        let Counters { server_events, server_wakeups, .. } = counters;
        Self { server_events, server_wakeups, ..self }
    }

    /// Events of the stack's thread for each time that it woke the channel's [MT 3.2]; none
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
            self.status_4xx,
            self.status_5xx,
            self.bytes_in,
            self.bytes_out,
            self.server_events,
            self.server_wakeups,
        ]
    }

    const fn from_array(fields: [u64; FIELDS]) -> Self {
        let [accepted, closed, failed, requests, rejected, status_4xx, status_5xx, ..] = fields;
        let [.., bytes_in, bytes_out, server_events, server_wakeups] = fields;
        Self {
            accepted,
            closed,
            failed,
            requests,
            rejected,
            status_4xx,
            status_5xx,
            bytes_in,
            bytes_out,
            server_events,
            server_wakeups,
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
    pub(crate) fn store(&self, tally: ServerTally) {
        for (cell, value) in self.0.iter().zip(tally.to_array()) {
            // Relaxed: each number stands for itself, nothing else is read on its strength.
            cell.store(value, Ordering::Relaxed);
        }
    }

    /// The numbers as last stored.
    pub(crate) fn load(&self) -> ServerTally {
        // Relaxed: pairs with nothing, see `store`.
        ServerTally::from_array(std::array::from_fn(|field| self.0[field].load(Ordering::Relaxed)))
    }
}

/// What the live view shows besides what every server has.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Columns {
    /// 4xx and 5xx instead of refused requests: the server answers with statuses.
    pub(crate) statuses: bool,
    /// Events per wake-up: the stack has a thread of its own.
    pub(crate) wakeups: bool,
}

impl Columns {
    /// The table's first line.
    pub(crate) fn heading(self) -> String {
        let nothing = ServerTally::default();
        let cells = self.cells("chan", nothing, nothing, Duration::ZERO);
        cells.fold(String::new(), |line, (name, width, _)| format!("{line}{name:>width$}"))
    }

    /// One line: what `label` did between two tallies that lie `span` apart.
    pub(crate) fn row(
        self,
        label: &str,
        before: ServerTally,
        after: ServerTally,
        span: Duration,
    ) -> String {
        let mut line = String::new();
        for (_, width, cell) in self.cells(label, before, after, span) {
            // A number that is too long stays apart from the one before it.
            let width = width.max(cell.len() + 1);
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:>width$}");
        }
        line
    }

    /// The columns that are shown: name, width, and what stands in this row. All of them fit into
    /// 80 columns of a terminal.
    fn cells(
        self,
        label: &str,
        before: ServerTally,
        after: ServerTally,
        span: Duration,
    ) -> impl Iterator<Item = (&'static str, usize, String)> {
        let seconds = span.as_secs_f64().max(1e-3);
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let megabytes = |before, after| format!("{:.1}", rate(before, after) / 1e6);
        let events = after.events_per_wakeup();
        let events = events.map_or_else(|| "-".to_owned(), |events| format!("{events:.0}"));
        let Self { statuses, wakeups } = self;
        [
            (true, "chan", 4, label.to_owned()),
            (true, "open", 7, after.open().to_string()),
            (true, "conn/s", 7, format!("{:.0}", rate(before.accepted, after.accepted))),
            (true, "requests/s", 11, format!("{:.0}", rate(before.requests, after.requests))),
            (true, "MB/s in", 8, megabytes(before.bytes_in, after.bytes_in)),
            (true, "out", 7, megabytes(before.bytes_out, after.bytes_out)),
            (true, "requests", 10, after.requests.to_string()),
            (true, "failed", 7, after.failed.to_string()),
            (!statuses, "rejected", 9, after.rejected.to_string()),
            (statuses, "4xx", 5, after.status_4xx.to_string()),
            (statuses, "5xx", 5, after.status_5xx.to_string()),
            (wakeups, "ev/wake", 8, events),
        ]
        .into_iter()
        .filter_map(|(is_shown, name, width, cell)| is_shown.then_some((name, width, cell)))
    }

    /// The whole table: one row a channel, and their sum where there is more than one.
    pub(crate) fn table(
        self,
        before: &[ServerTally],
        after: &[ServerTally],
        span: Duration,
    ) -> Vec<String> {
        let mut lines = vec![self.heading()];
        for (index, (&before, &after)) in before.iter().zip(after).enumerate() {
            lines.push(self.row(&index.to_string(), before, after, span));
        }
        if after.len() > 1 {
            lines.push(self.row("all", sum(before), sum(after), span));
        }
        lines
    }
}

/// The sum over all shards.
pub(crate) fn sum(tallies: &[ServerTally]) -> ServerTally {
    tallies.iter().fold(ServerTally::default(), |sum, &tally| sum.plus(tally))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(base: u64) -> ServerTally {
        ServerTally::from_array(std::array::from_fn(|field| base * (field as u64 + 1)))
    }

    #[test]
    fn stored_tally_is_loaded_field_by_field() {
        let published = Published::default();
        published.store(tally(10));
        assert_eq!(published.load(), tally(10));
        assert_eq!((tally(10).bytes_out, tally(10).server_wakeups), (90, 110));
    }

    #[test]
    fn stats_count_events_per_wake_up_except_inline() {
        assert_eq!(ServerTally::default().events_per_wakeup(), None);
        let woken =
            ServerTally { server_events: 4_340, server_wakeups: 2, ..ServerTally::default() };
        assert_eq!(woken.events_per_wakeup(), Some(2_170.0));
        let second = Duration::from_secs(1);
        let columns = Columns { wakeups: true, ..Columns::default() };
        assert!(columns.row("0", ServerTally::default(), woken, second).ends_with("2170"));
        assert!(columns.row("0", woken, ServerTally::default(), second).ends_with('-'));
        assert!(
            !Columns::default().row("0", ServerTally::default(), woken, second).contains("2170")
        );
    }

    #[test]
    fn the_table_has_a_sum_only_where_there_is_something_to_add() {
        let (before, after) = ([ServerTally::default(); 2], [tally(100), tally(300)]);
        let columns = Columns::default();
        let lines = columns.table(&before, &after, Duration::from_secs(2));
        assert_eq!(lines.len(), 4);
        let cells: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(cells[0], "all");
        assert_eq!(cells[2], "200", "400 accepts in two seconds: {}", lines[3]);
        assert_eq!(cells[6], "1600", "400 requests each: {}", lines[3]);
        assert_eq!(columns.table(&before[..1], &after[..1], Duration::from_secs(1)).len(), 2);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "aligned: {lines:?}");
    }
    #[test]
    fn statuses_are_shown_where_there_are_any_and_everything_fits_a_terminal() {
        let (before, after) = (tally(0), tally(1_000));
        for (statuses, wakeups) in [(false, false), (true, false), (false, true), (true, true)] {
            let columns = Columns { statuses, wakeups };
            let heading = columns.heading();
            assert!(heading.len() < 80, "{heading}");
            assert_eq!(heading.contains("4xx") && heading.contains("5xx"), statuses);
            assert_eq!(heading.contains("rejected"), !statuses);
            let row = columns.row("0", before, after, Duration::from_secs(1));
            assert_eq!(row.contains(" 6000 7000"), statuses, "{row}");
        }
    }

    #[test]
    fn long_numbers_stay_apart_from_each_other() {
        let columns = Columns { statuses: true, wakeups: false };
        let after =
            ServerTally { status_4xx: 19_726, status_5xx: 123_456, ..ServerTally::default() };
        let row = columns.row("0", ServerTally::default(), after, Duration::from_secs(1));
        assert!(row.ends_with(" 0 19726 123456"), "{row}");
    }
}
