//! QuotaGrant: how many of a kind a session's lane may have, such as chunks in the stack, drawn
//! from the quotas of its channel and user in steps.
//!
//! Read first: `deferred.rs`. The counters of the quotas are shared by all shards; what stays
//! within what was drawn changes none of them.
//!
//! Invariants
//! - What was drawn counts for the quotas until it is given back, at the latest when this is
//!   dropped.
//! - A lane keeps at most [`SPARE`] that it does not use, and of chunks none when it rests or a
//!   quota is reached.

use std::sync::Arc;

use crate::policy::{QuotaPair, SessionRights};

/// What is drawn, not in use, and not given back at once.
const SPARE: u32 = 64;

/// What a lane has drawn.
#[derive(Debug)]
pub(super) struct QuotaGrant {
    kinds: QuotaPair,
    drawn: u32,
    /// `None`: no quotas.
    rights: Option<Arc<SessionRights>>,
}

impl QuotaGrant {
    pub(super) const fn new(kinds: QuotaPair, rights: Option<Arc<SessionRights>>) -> Self {
        Self { kinds, drawn: 0, rights }
    }

    /// Whether quotas hold for the session.
    #[inline]
    pub(super) const fn is_limited(&self) -> bool {
        self.rights.is_some()
    }

    /// Whether the session may have so many. Draws more where that is needed.
    #[inline]
    pub(super) fn has_room(&mut self, count: u32) -> bool {
        count <= self.drawn || self.draw(count)
    }

    #[cold]
    fn draw(&mut self, count: u32) -> bool {
        let Some(rights) = &self.rights else { return true };
        while self.drawn < count {
            match rights.draw(self.kinds) {
                0 => return false,
                drawn => self.drawn += drawn,
            }
        }
        true
    }

    /// Gives back what is not needed, where the session has so many.
    #[inline]
    pub(super) fn return_unused(&mut self, count: u32) {
        if self.drawn > count.saturating_add(SPARE) {
            self.give_back(self.drawn - count);
        }
    }

    /// As [`QuotaGrant::return_unused`], all that is not needed.
    pub(super) fn return_all_unused(&mut self, count: u32) {
        self.give_back(self.drawn.saturating_sub(count));
    }

    fn give_back(&mut self, count: u32) {
        self.drawn -= count;
        self.rights.iter().for_each(|rights| rights.give_back(self.kinds, count));
    }
}

impl Drop for QuotaGrant {
    fn drop(&mut self) {
        self.give_back(self.drawn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{CHUNKS, QuotaKind, UserAccount};

    fn rights(account: &Arc<UserAccount>, channel: u32, user: u32) -> Arc<SessionRights> {
        SessionRights::limited(account, CHUNKS, (channel, user))
    }

    #[test]
    fn lanes_of_a_channel_share_its_quota() {
        let account = Arc::default();
        let rights = rights(&account, 100, u32::MAX);
        let mut lanes = [(); 2].map(|()| QuotaGrant::new(CHUNKS, Some(Arc::clone(&rights))));
        assert!(lanes[0].has_room(70));
        assert_eq!(rights.count(QuotaKind::ChannelChunks), 100, "64, and the 36 that are left");
        assert!(!lanes[1].has_room(1) && lanes[0].has_room(100) && !lanes[0].has_room(101));
        assert_eq!(rights.refusals(QuotaKind::ChannelChunks), 2);
        assert_eq!(account.take_reached().collect::<Vec<_>>(), [QuotaKind::ChannelChunks]);
        drop(lanes);
        assert_eq!(rights.count(QuotaKind::ChannelChunks), 0);
        assert_eq!(account.count(QuotaKind::UserChunks), 0);
    }

    #[test]
    fn channels_of_a_user_share_its_quota_and_idle_ones_give_back() {
        let account = Arc::default();
        let [mut one, mut other] =
            [(); 2].map(|()| QuotaGrant::new(CHUNKS, Some(rights(&account, u32::MAX, 1_000))));
        assert!(one.has_room(1_000));
        assert!(!other.has_room(1));
        one.return_unused(940);
        assert!(!other.has_room(1), "it may need them soon");
        one.return_unused(800);
        assert!(other.has_room(200) && !other.has_room(201));
        one.return_unused(790);
        one.return_all_unused(790);
        assert_eq!(account.count(QuotaKind::UserChunks), 990);
        one.return_all_unused(0);
        assert_eq!(account.count(QuotaKind::UserChunks), 200);
    }

    #[test]
    fn session_without_quotas_has_no_limit() {
        let mut grant = QuotaGrant::new(CHUNKS, None);
        assert!(!grant.is_limited() && grant.has_room(u32::MAX));
        grant.return_unused(0);
    }
}
