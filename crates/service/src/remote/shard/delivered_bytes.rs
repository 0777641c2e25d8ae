//! DeliveredBytes: what each session that owns a connection was given of it and has not given back.
//!
//! Of the sessions that own a connection one alone, its user, is given bytes. So it is enough to
//! look at the sum when the user changes or gives something back; what each session had before is
//! counted then. Giving bytes to a session costs nothing here.
//!
//! Invariant: `counted` is the sum of `by_session` and of what sessions had that own it no more.

use std::collections::HashMap;

use megapipe_stack::PoolId;

/// Bytes that the sessions of one connection were given.
#[derive(Debug, Default)]
pub(super) struct DeliveredBytes {
    by_session: HashMap<PoolId, u64>,
    counted: u64,
}

impl DeliveredBytes {
    /// The user was given what came since the last count. `total`: what all sessions were given and
    /// have not given back.
    pub(super) fn count(&mut self, user: Option<PoolId>, total: u64) {
        let since = total.saturating_sub(self.counted);
        if let Some(user) = user.filter(|_| since > 0) {
            *self.by_session.entry(user).or_default() += since;
        }
        self.counted = total;
    }

    /// A session owns the connection no more. Another one may get its number.
    pub(super) fn forget(&mut self, session: PoolId) {
        self.by_session.remove(&session);
    }

    /// A session gives bytes back. Returns whether it was given so many; nothing changes if not.
    pub(super) fn give_back(&mut self, session: PoolId, bytes: u64) -> bool {
        let Some(its) = self.by_session.get_mut(&session) else { return bytes == 0 };
        let Some(left) = its.checked_sub(bytes) else { return false };
        *its = left;
        if left == 0 {
            self.by_session.remove(&session);
        }
        self.counted -= bytes.min(self.counted);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_give_back_what_they_were_given_and_no_more() {
        let (one, two) = (PoolId(1), PoolId(2));
        let mut delivered = DeliveredBytes::default();
        delivered.count(Some(one), 100);
        assert!(!delivered.give_back(two, 1) && delivered.give_back(two, 0));
        assert!(!delivered.give_back(one, 101), "it has got 100");
        assert!(delivered.give_back(one, 30));
        // The other one becomes the user, and is given those again, and more.
        delivered.count(Some(one), 70);
        delivered.count(Some(two), 120);
        assert!(!delivered.give_back(two, 51) && delivered.give_back(two, 50));
        assert!(!delivered.give_back(two, 1), "it has given back all");
        assert!(!delivered.give_back(one, 71) && delivered.give_back(one, 70));
        delivered.count(Some(two), 5);
        delivered.forget(two);
        assert!(!delivered.give_back(two, 1), "the next one with its number was given nothing");
        assert!(delivered.by_session.is_empty(), "{delivered:?}");
    }
}
