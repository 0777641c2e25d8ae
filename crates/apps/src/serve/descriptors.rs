//! Number of connections that the limit on open descriptors (RLIMIT_NOFILE) allows.
//!
//! Without this bound a server accepts until no descriptor is left, and then cannot open the files
//! that its peers ask for. Connections beyond the bound wait in the listeners' backlogs.
//!
//! Pure: the limit and what is open already come in as arguments.

use megapipe::{DriverKind, DriverReport};

/// Descriptors that a channel may open for itself, besides one for each of its listeners.
const PER_CHANNEL: u64 = 16;
/// Descriptors that are kept for what the process opens besides.
const SPARE: u64 = 16;

/// The descriptors of one channel's connections and their files.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budget(u64);

impl Budget {
    /// A channel's share of `limit` descriptors, of which `open` are taken already.
    pub(crate) fn new(limit: u64, open: u64, channels: usize, listeners: usize) -> Self {
        let channels = (channels as u64).max(1);
        let fixed = open + SPARE + channels * (PER_CHANNEL + listeners as u64);
        Self(limit.saturating_sub(fixed) / channels)
    }

    /// At most `asked` connections, each of which needs up to `of_each` descriptors.
    pub(crate) fn connections(self, asked: u32, of_each: u64) -> u32 {
        match self.0.checked_div(of_each) {
            Some(room) => asked.min(u32::try_from(room).unwrap_or(u32::MAX)).max(1),
            None => asked,
        }
    }
}

/// Descriptors that a connection takes at most, with the `files` that it may have open. The table
/// of lwsockets has the same limit as the process's own table and is counted apart from it.
pub(crate) fn of_each_connection(report: &DriverReport, has_lwsockets: bool, files: u64) -> u64 {
    match (report.backend, report.driver) {
        ("local", _) => files,
        (_, DriverKind::Uring) if has_lwsockets => files.max(1),
        _ => files + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_room_for_its_files() {
        let budget = Budget::new(1_024, 10, 2, 1);
        let each = (1_024 - 10 - 16 - 2 * 17) / 2;
        assert_eq!(budget, Budget(each));
        assert_eq!(u64::from(budget.connections(65_536, 1)), each);
        assert_eq!(u64::from(budget.connections(65_536, 2)), each / 2);
        assert_eq!(budget.connections(100, 2), 100);
        assert_eq!(budget.connections(65_536, 0), 65_536, "nothing is taken");
    }

    #[test]
    fn one_connection_is_always_allowed() {
        for limit in [0, 20, 50] {
            assert_eq!(Budget::new(limit, 30, 4, 2).connections(100, 2), 1);
        }
        assert_eq!(Budget::new(u64::MAX, 3, 1, 1).connections(u32::MAX, 2), u32::MAX);
    }
}
