//! What the two rpc programs, on channels and on sockets with epoll, cost beside each other, and
//! where our own stack runs: the cost of readiness over completions, and of a hand-over between
//! threads. Pure.
//!
//! Read first: [MT 3.2], where a stack on a thread of its own wakes the application once for a
//! batch of events.

use super::server_label;
use crate::{point::Point, table::TextTable};

/// What the table shows, in a sentence.
pub(super) const CAPTION: &str = "CPU time per transaction of the server on sockets and epoll \
     over the one on channels, and of a stack on a thread of its own over one inside the server's \
     calls, everything else being equal; and how many events the stack's thread told for each time \
     that it woke the server's (mTCP: about 2,170). Where a server polls, what its cores were busy \
     is more than what it cost.";

/// A row for each point that has one to be compared with; none if there is no such point.
pub(crate) fn programs_table(points: &[&Point]) -> Option<TextTable> {
    let mut table = TextTable::new(&[
        "server",
        "per conn",
        "bytes",
        "conns",
        "CPU µs",
        "over channel",
        "over inline",
        "events/wake",
    ]);
    let mut is_empty = true;
    for point in points {
        let over_channel = over(points, point, |other| {
            point.server == "sockets"
                && other.server == "channel"
                && other.placement == point.placement
        });
        let over_inline = over(points, point, |other| {
            ["thread", "core"].contains(&point.placement.as_str())
                && other.server == point.server
                && other.placement == "inline"
        });
        if over_channel.is_none() && over_inline.is_none() {
            continue;
        }
        is_empty = false;
        let ratio = |ratio: Option<f64>| ratio.map_or_else(dash, |ratio| format!("{ratio:.2}"));
        let length = point.transactions_per_connection;
        let events = point.events_per_wakeup;
        table.row([
            server_label(point),
            length.map_or_else(dash, |length| length.to_string()),
            point.message_bytes.to_string(),
            point.connections.to_string(),
            format!("{:.2}", point.server_cpu_us_per_transaction),
            ratio(over_channel),
            ratio(over_inline),
            events.map_or_else(dash, |events| format!("{events:.1}")),
        ]);
    }
    (!is_empty).then_some(table)
}

fn dash() -> String {
    "-".to_owned()
}

/// Ratio of a point's CPU time to that of the reference point.
fn over(points: &[&Point], point: &Point, is_reference: impl Fn(&Point) -> bool) -> Option<f64> {
    let beside = |other: &&&Point| {
        let what = |it: &Point| {
            (it.transactions_per_connection, it.message_bytes, it.connections, it.shards)
        };
        let carrier = |it: &Point| (it.backend.clone(), it.driver.clone(), it.link);
        what(other) == what(point)
            && carrier(other) == carrier(point)
            && (&other.variant, &other.workload) == (&point.variant, &point.workload)
            && other.simulated.is_none() == point.simulated.is_none()
            && is_reference(other)
    };
    let reference = points.iter().find(beside)?.server_cpu_us_per_transaction;
    (reference > 0.0).then(|| point.server_cpu_us_per_transaction / reference)
}

#[cfg(test)]
mod tests {
    use super::programs_table;
    use crate::{layout::MeasuredLink, point::Point, report::tests::point};

    fn on_stack(server: &str, placement: &str, cpu_us: f64) -> Point {
        Point {
            backend: "local".to_owned(),
            driver: "stack".to_owned(),
            link: MeasuredLink::Memif,
            placement: placement.to_owned(),
            events_per_wakeup: (placement != "inline").then_some(12.5),
            ..point(server, Some(8), cpu_us)
        }
    }

    #[test]
    fn readiness_is_compared_with_completions_and_each_placement_with_inline() {
        let points = [
            on_stack("channel", "inline", 1.0),
            on_stack("channel", "thread", 1.1),
            on_stack("sockets", "inline", 1.2),
            on_stack("sockets", "thread", 1.65),
            // On another back end and with another number of requests: no counterpart.
            point("sockets", Some(8), 3.0),
            Point { transactions_per_connection: None, ..on_stack("sockets", "inline", 2.0) },
        ];
        let points: Vec<&Point> = points.iter().collect();
        let lines = programs_table(&points).expect("a table").lines();
        let ratios = |line: &str| -> Vec<String> {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words[words.len() - 3..].iter().map(|&word| word.to_owned()).collect()
        };
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(ratios(&lines[1]), ["-", "1.10", "12.5"]);
        assert_eq!(ratios(&lines[2]), ["1.20", "-", "-"]);
        assert_eq!(ratios(&lines[3]), ["1.50", "1.38", "12.5"]);
        assert!(lines[3].starts_with("sockets (memif), thread"), "{lines:?}");
    }

    #[test]
    fn without_either_there_is_no_table() {
        let points = [point("channel", Some(1), 8.0), point("io_uring", Some(1), 8.0)];
        assert!(programs_table(&points.iter().collect::<Vec<_>>()).is_none());
    }
}
