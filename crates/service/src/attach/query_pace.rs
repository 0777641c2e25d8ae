//! Bounds of the processes that ask: in number, in time, and in pages.
//!
//! Pure: what the daemon does at its socket is in `control_server/queries.rs`.
//!
//! Root and the daemon's own user have bounds of their own, so that no other user keeps them from
//! looking. A page costs its shard a few tens of microseconds; at one in [`PAGE_PERIOD`] for each
//! of the two groups, queries without end take a few percent of a shard.
//!
//! Invariants
//! - A process has at most one query in progress. Those that wait are answered in order.
//! - None is there for longer than [`QUERY_TIME`], or [`QUERY_TIME_OF_OWNER`].
//! - Each group gets at most [`PAGES_AT_ONCE`] pages more than its time has periods.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::limits::{
    PAGE_PERIOD, PAGES_AT_ONCE, QUERIERS_MAX, QUERIERS_OF_OWNER_MAX, QUERIERS_OF_USER_MAX,
    QUERY_TIME, QUERY_TIME_OF_OWNER,
};

/// A limit of queries that is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum QueryLimit {
    #[error("{QUERIERS_MAX} processes ask, which is the limit")]
    Total,
    #[error("{QUERIERS_OF_USER_MAX} processes of this user ask, which is the limit")]
    User,
    #[error("{QUERIERS_OF_OWNER_MAX} processes of root and the daemon's user ask, the limit")]
    Owner,
}

/// A process that asks.
#[derive(Debug)]
struct Querier {
    key: u64,
    uid: u32,
    deadline: Instant,
}

/// Processes that share their bounds.
#[derive(Debug)]
struct QuerierGroup {
    /// Oldest first.
    queriers: Vec<Querier>,
    /// Keys of those whose query waits for its page.
    waiting: VecDeque<u64>,
    /// When the bucket of pages has been full, if no more is taken; a page moves it by a period.
    full_at: Instant,
}

impl QuerierGroup {
    const fn new(now: Instant) -> Self {
        Self { queriers: Vec::new(), waiting: VecDeque::new(), full_at: now }
    }

    /// When the next page may be made.
    fn next_at(&self) -> Instant {
        self.full_at.checked_sub(PAGE_PERIOD * (PAGES_AT_ONCE - 1)).unwrap_or(self.full_at)
    }

    fn next_due(&mut self, now: Instant) -> Option<u64> {
        if now < self.next_at() {
            return None;
        }
        let key = self.waiting.pop_front()?;
        self.full_at = self.full_at.max(now) + PAGE_PERIOD;
        Some(key)
    }
}

/// All processes that ask.
#[derive(Debug)]
pub(super) struct QueryPace {
    /// Root and the daemon's own user, and all others.
    groups: [QuerierGroup; 2],
}

impl QueryPace {
    pub(super) const fn new(now: Instant) -> Self {
        Self { groups: [QuerierGroup::new(now), QuerierGroup::new(now)] }
    }

    /// A process begins to ask.
    ///
    /// # Errors
    /// [`QueryLimit`].
    pub(super) fn begin(
        &mut self,
        key: u64,
        (uid, sees_all): (u32, bool),
        now: Instant,
    ) -> Result<(), QueryLimit> {
        let queriers = &mut self.groups[usize::from(!sees_all)].queriers;
        if sees_all {
            if queriers.len() >= QUERIERS_OF_OWNER_MAX {
                return Err(QueryLimit::Owner);
            }
        } else if queriers.len() >= QUERIERS_MAX {
            return Err(QueryLimit::Total);
        } else if queriers.iter().filter(|it| it.uid == uid).count() >= QUERIERS_OF_USER_MAX {
            return Err(QueryLimit::User);
        }
        let time = if sees_all { QUERY_TIME_OF_OWNER } else { QUERY_TIME };
        queriers.push(Querier { key, uid, deadline: now + time });
        Ok(())
    }

    /// A process asks no more.
    pub(super) fn end(&mut self, key: u64) {
        for group in &mut self.groups {
            group.queriers.retain(|it| it.key != key);
            group.waiting.retain(|it| *it != key);
        }
    }

    /// The query of a process waits for its page. `false`: another one of it does.
    pub(super) fn wait(&mut self, key: u64) -> bool {
        let its = |group: &&mut QuerierGroup| group.queriers.iter().any(|it| it.key == key);
        let Some(group) = self.groups.iter_mut().find(its) else { return false };
        if group.waiting.contains(&key) {
            return false;
        }
        group.waiting.push_back(key);
        true
    }

    /// A process whose page may be made now.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<u64> {
        self.groups.iter_mut().find_map(|group| group.next_due(now))
    }

    /// Removes a process whose time is over.
    pub(super) fn next_expired(&mut self, now: Instant) -> Option<u64> {
        let oldest = self.groups.iter().filter_map(|group| group.queriers.first());
        let key = oldest.filter(|it| it.deadline <= now).map(|it| it.key).next()?;
        self.end(key);
        Some(key)
    }

    /// Time until the next page may be made or the next process expires. `None`: there is none.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let pages = self.groups.iter().filter(|group| !group.waiting.is_empty());
        let pages = pages.map(QuerierGroup::next_at);
        let ends = self.groups.iter().filter_map(|group| Some(group.queriers.first()?.deadline));
        pages.chain(ends).min().map(|at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: (u32, bool) = (1_000, false);
    const ROOT: (u32, bool) = (0, true);

    /// Pages that a process gets which asks again at once, in so much time.
    fn pages_in(pace: &mut QueryPace, key: u64, start: Instant, time: Duration) -> u32 {
        let (mut now, mut pages) = (start, 0);
        while now < start + time {
            pace.wait(key);
            while let Some(due) = pace.next_due(now) {
                assert_eq!(due, key);
                pages += 1;
                pace.wait(key);
            }
            let patience = pace.patience(now).expect("it waits");
            now += patience.max(Duration::from_micros(1));
        }
        pages
    }

    #[test]
    fn queries_without_end_get_a_bounded_number_of_pages() {
        let start = Instant::now();
        let mut pace = QueryPace::new(start);
        pace.begin(7, USER, start).expect("there is room");
        let time = PAGE_PERIOD * 1_000;
        let pages = pages_in(&mut pace, 7, start, time);
        assert!((1_000..=1_000 + PAGES_AT_ONCE).contains(&pages), "{pages}");
        // The other group has its own.
        pace.end(7);
        pace.begin(8, ROOT, start).expect("there is room");
        let pages = pages_in(&mut pace, 8, start, Duration::from_micros(1));
        assert_eq!(pages, PAGES_AT_ONCE);
    }

    #[test]
    fn processes_are_bounded_in_number_and_time() {
        let start = Instant::now();
        let mut pace = QueryPace::new(start);
        for key in 0..QUERIERS_OF_USER_MAX as u64 {
            assert_eq!(pace.begin(key, USER, start), Ok(()));
        }
        assert_eq!(pace.begin(99, USER, start), Err(QueryLimit::User));
        let later = start + QUERY_TIME / 2;
        for key in QUERIERS_OF_USER_MAX as u64..QUERIERS_MAX as u64 {
            assert_eq!(pace.begin(key, (key as u32, false), later), Ok(()));
        }
        assert_eq!(pace.begin(99, (5, false), later), Err(QueryLimit::Total));
        for key in 100..100 + QUERIERS_OF_OWNER_MAX as u64 {
            assert_eq!(pace.begin(key, ROOT, later), Ok(()), "others do not keep root from it");
        }
        assert_eq!(pace.begin(99, ROOT, later), Err(QueryLimit::Owner));
        assert_eq!(pace.next_expired(later), None);
        let expired = std::iter::from_fn(|| pace.next_expired(start + QUERY_TIME)).count();
        assert_eq!(expired, QUERIERS_OF_USER_MAX);
        let rest = std::iter::from_fn(|| pace.next_expired(later + QUERY_TIME)).count();
        assert_eq!(rest, QUERIERS_MAX - QUERIERS_OF_USER_MAX);
        let rest = std::iter::from_fn(|| pace.next_expired(later + QUERY_TIME_OF_OWNER)).count();
        assert_eq!(rest, QUERIERS_OF_OWNER_MAX);
        assert_eq!(pace.patience(later), None);
    }

    #[test]
    fn process_has_one_query_and_none_after_its_end() {
        let start = Instant::now();
        let mut pace = QueryPace::new(start);
        assert!(!pace.wait(1), "it does not ask");
        pace.begin(1, USER, start).expect("there is room");
        pace.begin(2, USER, start).expect("there is room");
        assert!(pace.wait(1) && pace.wait(2));
        assert!(!pace.wait(1));
        pace.end(1);
        assert_eq!(pace.next_due(start), Some(2));
        assert_eq!(pace.next_due(start), None);
    }
}
