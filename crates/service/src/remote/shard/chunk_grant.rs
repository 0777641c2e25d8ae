//! ChunkGrant: how many chunks a session's lane may have in the stack, drawn from the quotas of its
//! channel and user in steps.
//!
//! Read first: `deferred.rs`. The counters of the quotas are shared by all shards; a message that
//! stays within what was drawn changes none of them.
//!
//! Invariants
//! - What was drawn counts for the quotas until it is given back, at the latest when this is
//!   dropped.
//! - A lane keeps at most [`SPARE_CHUNKS`] that it does not use, and none when it rests or a quota
//!   is reached.

use std::sync::Arc;

use crate::policy::SessionRights;

/// Drawn chunks that are not in use and are not given back at once.
const SPARE_CHUNKS: u32 = 64;

/// What a lane has drawn.
#[derive(Debug, Default)]
pub(super) struct ChunkGrant {
    drawn: u32,
    /// `None`: no quotas.
    rights: Option<Arc<SessionRights>>,
}

impl ChunkGrant {
    pub(super) const fn new(rights: Option<Arc<SessionRights>>) -> Self {
        Self { drawn: 0, rights }
    }

    /// Whether quotas hold for the session.
    #[inline]
    pub(super) const fn is_limited(&self) -> bool {
        self.rights.is_some()
    }

    /// Whether the stack may have so many chunks of the session. Draws more where that is needed.
    #[inline]
    pub(super) fn has_room(&mut self, chunks: u32) -> bool {
        chunks <= self.drawn || self.draw(chunks)
    }

    #[cold]
    fn draw(&mut self, chunks: u32) -> bool {
        let Some(rights) = &self.rights else { return true };
        while self.drawn < chunks {
            match rights.draw_chunks() {
                0 => return false,
                drawn => self.drawn += drawn,
            }
        }
        true
    }

    /// Gives back what is not needed, where the stack has so many chunks.
    #[inline]
    pub(super) fn return_unused(&mut self, chunks: u32) {
        if self.drawn > chunks.saturating_add(SPARE_CHUNKS) {
            self.give_back(self.drawn - chunks);
        }
    }

    /// As [`ChunkGrant::return_unused`], all that is not needed.
    pub(super) fn return_all_unused(&mut self, chunks: u32) {
        self.give_back(self.drawn.saturating_sub(chunks));
    }

    fn give_back(&mut self, count: u32) {
        self.drawn -= count;
        self.rights.iter().for_each(|rights| rights.return_chunks(count));
    }
}

impl Drop for ChunkGrant {
    fn drop(&mut self) {
        self.give_back(self.drawn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PortGrants, QuotaKind, Quotas, UserAccount};

    fn rights(account: &Arc<UserAccount>, channel: u32, user: u32) -> Arc<SessionRights> {
        let quotas = Quotas::from_each(|kind| match kind {
            QuotaKind::ChannelChunks => channel,
            QuotaKind::UserChunks => user,
            _ => u32::MAX,
        });
        Arc::new(SessionRights::new(Arc::clone(account), quotas, PortGrants::All))
    }

    #[test]
    fn lanes_of_a_channel_share_its_quota() {
        let account = Arc::default();
        let rights = rights(&account, 100, u32::MAX);
        let mut lanes = [(); 2].map(|()| ChunkGrant::new(Some(Arc::clone(&rights))));
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
            [(); 2].map(|()| ChunkGrant::new(Some(rights(&account, u32::MAX, 1_000))));
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
        let mut grant = ChunkGrant::new(None);
        assert!(!grant.is_limited() && grant.has_room(u32::MAX));
        grant.return_unused(0);
    }
}
