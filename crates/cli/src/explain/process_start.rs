//! When a process began, as time since the machine's start: from `/proc`.
//!
//! Read first: proc_pid_stat(5), field 22. Wall time would be less exact: `btime` of `/proc/stat`
//! has whole seconds.

use std::time::Duration;

/// Ticks of a second in `/proc`: the same on all of Linux's machines (USER_HZ).
const TICKS_PER_SECOND: u64 = 100;

/// `None`: it is gone, or cannot be read.
pub(super) fn read(pid: u32) -> Option<Duration> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(process: &str) -> Option<Duration> {
    // The name is in parentheses, and may have any in itself.
    let (_, fields) = process.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    Some(Duration::from_millis(ticks.saturating_mul(1_000 / TICKS_PER_SECOND)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_is_read_behind_any_name() {
        let fields = "S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 1234 5 6";
        for name in ["serve", "a) S (b", ""] {
            let start = parse(&format!("7 ({name}) {fields}"));
            assert_eq!(start, Some(Duration::from_millis(12_340)), "{name}");
        }
        assert_eq!(parse("7 (serve) S 1"), None);
        assert_eq!(parse("7 serve"), None);
    }

    #[test]
    fn own_start_is_after_that_of_the_parent() {
        let own = read(std::process::id()).expect("it runs");
        let parent = read(std::os::unix::process::parent_id()).expect("it waits for us");
        assert!(own >= parent);
        assert_eq!(read(u32::MAX), None);
    }
}
