//! PrivateBuffers: a shard's own receive buffers, and the listeners that they count for.
//!
//! Bytes of a connection that no session owns yet lie here. A listener whose program does not
//! accept would fill all of the buffers with them, so each buffer counts for the listener whose
//! connection it is of, until it is free or its bytes have moved to a session. A channel and a user
//! have a quota of them on each shard, because each shard has buffers of its own.
//!
//! The pool of a listener's connections names its account: `PoolId` [`FIRST_ACCOUNT`] and above.
//! `PoolId` 0 is the same memory without an account.
//!
//! Read first: `memory.rs`; `policy/user_account.rs` for the quotas.
//!
//! Invariants
//! - A buffer in use has the account that it was allocated for, or none.
//! - `used` of a channel is the sum of its accounts, and that of a user the sum of its channels.
//! - An account stays until its listener is gone and its last buffer is free.
//! - What other threads see of a count differs by less than [`SHOWN_STEP`] from it: a connection
//!   whose request waits for a moment changes no shared counter.

use std::sync::Arc;

use megapipe_shm::{BufId, Pool, PoolLayout, Region};
use megapipe_stack::PoolId;

use super::RECEIVES;
use crate::error::RemoteError;
use crate::limits::SESSIONS_MAX;
use crate::policy::{SessionRights, UserAccount};

/// The pools of accounts begin above those of sessions.
const FIRST_ACCOUNT: usize = SESSIONS_MAX;
/// No account, in the list by buffer.
const NO_ACCOUNT: u16 = u16::MAX;
/// A count is published when it has changed by so much.
const SHOWN_STEP: u32 = 32;

/// The buffers of a listener's connections.
#[derive(Debug)]
struct BufferAccount {
    channel: usize,
    used: u32,
    has_listener: bool,
}

/// The buffers that count for a channel or for a user.
#[derive(Debug)]
struct BufferHolder<T> {
    /// The channel, with the place of its user; or the user.
    holder: T,
    used: u32,
    /// What other threads see of that.
    shown: u32,
    /// Accounts of a channel; channels of a user.
    members: u32,
}

type Channel = BufferHolder<(Arc<SessionRights>, usize)>;
type User = BufferHolder<Arc<UserAccount>>;

/// A shard's own buffers.
#[derive(Debug)]
pub(super) struct PrivateBuffers {
    pool: Pool,
    /// By the buffer's index.
    account_of: Box<[u16]>,
    accounts: Vec<Option<BufferAccount>>,
    channels: Vec<Option<Channel>>,
    users: Vec<Option<User>>,
    shard: u16,
}

impl PrivateBuffers {
    /// So many free buffers of so many bytes.
    ///
    /// # Errors
    /// [`RemoteError::Region`], [`RemoteError::Pool`].
    pub(super) fn new(buf_bytes: usize, count: u32) -> Result<Self, RemoteError> {
        let layout = PoolLayout { buf_bytes, count, tag: RECEIVES };
        let pool = Pool::owning(Region::heap(layout.bytes())?, layout)?;
        let account_of = vec![NO_ACCOUNT; count as usize].into_boxed_slice();
        let (accounts, channels, users) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Self { pool, account_of, accounts, channels, users, shard: 0 })
    }

    /// The buffers themselves.
    #[inline]
    pub(super) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Buffers in use.
    pub(super) fn used(&self) -> u32 {
        self.pool.layout().count - self.pool.free_count()
    }

    fn account(&self, pool: PoolId) -> Option<&BufferAccount> {
        self.accounts.get(usize::from(pool.0).checked_sub(FIRST_ACCOUNT)?)?.as_ref()
    }

    /// Opens the account of a listener. Returns the pool of its connections: 0 without an account,
    /// where there are no quotas. `None`: there is no memory for it.
    pub(super) fn open_account(
        &mut self,
        shard: u16,
        rights: Option<&Arc<SessionRights>>,
    ) -> Option<PoolId> {
        let Some(rights) = rights else { return Some(PoolId(0)) };
        self.shard = shard;
        let place = free_place(&mut self.accounts)?;
        let number = u16::try_from(FIRST_ACCOUNT + place).ok().filter(|it| *it != NO_ACCOUNT)?;
        let channel = self.join_channel(rights)?;
        self.accounts[place] = Some(BufferAccount { channel, used: 0, has_listener: true });
        Some(PoolId(number))
    }

    /// The buffers of a listener count for another channel of its user from now on. Without memory
    /// for it they count for the present one.
    pub(super) fn transfer_account(&mut self, pool: PoolId, rights: &Arc<SessionRights>) {
        let Some(account) = self.account(pool) else { return };
        let (from, used) = (account.channel, account.used);
        let Some(to) = self.join_channel(rights) else { return };
        self.change(from, |count| count - used);
        self.change(to, |count| count + used);
        if let Some(Some(account)) = self.accounts.get_mut(usize::from(pool.0) - FIRST_ACCOUNT) {
            account.channel = to;
        }
        self.leave_channel(from);
    }

    /// The listener of an account is gone.
    pub(super) fn close_account(&mut self, pool: PoolId) {
        let Some(place) = usize::from(pool.0).checked_sub(FIRST_ACCOUNT) else { return };
        if let Some(Some(account)) = self.accounts.get_mut(place) {
            account.has_listener = false;
            self.forget_unused(place);
        }
    }

    fn forget_unused(&mut self, place: usize) {
        let is_unused = |account: &mut BufferAccount| !account.has_listener && account.used == 0;
        if let Some(account) = self.accounts[place].take_if(is_unused) {
            self.leave_channel(account.channel);
        }
    }

    /// Allocates a buffer for a connection of a pool. `None`: there is none, or a quota is reached.
    #[inline]
    pub(super) fn alloc(&mut self, pool: PoolId) -> Option<BufId> {
        if pool.0 == 0 {
            return self.pool.alloc();
        }
        let place = usize::from(pool.0).checked_sub(FIRST_ACCOUNT)?;
        let channel = self.accounts.get(place)?.as_ref()?.channel;
        if !self.has_room(channel) {
            return None;
        }
        let buf = self.pool.alloc()?;
        *self.account_of.get_mut(buf.index() as usize)? = place as u16;
        if let Some(Some(account)) = self.accounts.get_mut(place) {
            account.used += 1;
        }
        self.change(channel, |count| count + 1);
        Some(buf)
    }

    /// Frees a buffer.
    #[inline]
    pub(super) fn free(&mut self, buf: BufId) {
        // One that is free already is refused and counted.
        if self.pool.free(buf).is_err() {
            return;
        }
        let Some(account) = self.account_of.get_mut(buf.index() as usize) else { return };
        let place = usize::from(std::mem::replace(account, NO_ACCOUNT));
        if let Some(Some(account)) = self.accounts.get_mut(place) {
            account.used -= 1;
            let channel = account.channel;
            self.change(channel, |count| count - 1);
            self.forget_unused(place);
        }
    }

    /// Whether the quotas of a channel and of its user let it have one more buffer.
    fn has_room(&self, channel: usize) -> bool {
        let Some(Some(channel)) = self.channels.get(channel) else { return false };
        let (rights, user) = &channel.holder;
        let Some(Some(user)) = self.users.get(*user) else { return false };
        rights.check_private_buffers((channel.used, user.used))
    }

    /// Changes the counts of a channel and of its user.
    fn change(&mut self, channel: usize, to: impl Fn(u32) -> u32) {
        let Some(Some(channel)) = self.channels.get_mut(channel) else { return };
        let shard = self.shard;
        if let Some(used) = channel.set_used(to(channel.used)) {
            channel.holder.0.show_private_buffers(shard, used);
        }
        let Some(Some(user)) = self.users.get_mut(channel.holder.1) else { return };
        if let Some(used) = user.set_used(to(user.used)) {
            user.holder.show_private_buffers(shard, used);
        }
    }

    fn join_channel(&mut self, rights: &Arc<SessionRights>) -> Option<usize> {
        if let Some(known) = join(&mut self.channels, |(its, _)| Arc::ptr_eq(its, rights)) {
            return Some(known);
        }
        let place = free_place(&mut self.channels)?;
        let account = rights.account();
        let user = match join(&mut self.users, |its| Arc::ptr_eq(its, account)) {
            Some(known) => known,
            None => {
                let place = free_place(&mut self.users)?;
                self.users[place] = Some(BufferHolder::new(Arc::clone(account)));
                place
            }
        };
        self.channels[place] = Some(BufferHolder::new((Arc::clone(rights), user)));
        Some(place)
    }

    fn leave_channel(&mut self, channel: usize) {
        if let Some(gone) = leave(&mut self.channels, channel) {
            leave(&mut self.users, gone.holder.1);
        }
    }
}

impl<T> BufferHolder<T> {
    const fn new(holder: T) -> Self {
        Self { holder, used: 0, shown: 0, members: 1 }
    }

    /// Sets the count. Returns it if it is to be published.
    fn set_used(&mut self, used: u32) -> Option<u32> {
        self.used = used;
        let is_over = used == 0 && self.shown != 0;
        let is_due = is_over || used.abs_diff(self.shown) >= SHOWN_STEP;
        is_due.then(|| {
            self.shown = used;
            used
        })
    }
}

/// The holder that `is_it` names has one more member.
fn join<T>(holders: &mut [Option<BufferHolder<T>>], is_it: impl Fn(&T) -> bool) -> Option<usize> {
    let place = holders.iter().position(|it| it.as_ref().is_some_and(|it| is_it(&it.holder)))?;
    holders[place].as_mut()?.members += 1;
    Some(place)
}

/// A holder has one member less. Returns it if that was the last.
fn leave<T>(holders: &mut [Option<BufferHolder<T>>], place: usize) -> Option<BufferHolder<T>> {
    let slot = holders.get_mut(place)?;
    slot.as_mut()?.members -= 1;
    slot.take_if(|it| it.members == 0)
}

/// A free place of a list, which grows if it has none. `None`: there is no memory.
fn free_place<T>(places: &mut Vec<Option<T>>) -> Option<usize> {
    if let Some(free) = places.iter().position(Option::is_none) {
        return Some(free);
    }
    places.try_reserve(1).ok()?;
    places.push(None);
    Some(places.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::QuotaKind;

    fn rights(account: &Arc<UserAccount>, channel: u32, user: u32) -> Arc<SessionRights> {
        let kinds = (QuotaKind::ChannelPrivateBuffers, QuotaKind::UserPrivateBuffers);
        SessionRights::limited(account, kinds, (channel, user))
    }

    fn buffers(count: u32) -> PrivateBuffers {
        PrivateBuffers::new(64, count).expect("memory")
    }

    /// As many as a pool gets.
    fn all_of(buffers: &mut PrivateBuffers, pool: PoolId) -> Vec<BufId> {
        std::iter::from_fn(|| buffers.alloc(pool)).collect()
    }

    #[test]
    fn private_buffers_are_bounded_for_channel_and_user() {
        let (account, other) = (Arc::default(), Arc::default());
        let its = [(); 2].map(|()| rights(&account, 40, 70));
        let mut buffers = buffers(200);
        let pools = its.each_ref().map(|it| buffers.open_account(3, Some(it)).expect("memory"));
        let again = buffers.open_account(3, Some(&its[0])).expect("memory");
        assert_ne!(again, pools[0], "one for each listener");
        let first = all_of(&mut buffers, pools[0]);
        assert_eq!((first.len(), all_of(&mut buffers, again).len()), (40, 0));
        assert_eq!(all_of(&mut buffers, pools[1]).len(), 30, "what the user has left");
        let stranger = rights(&other, u32::MAX, u32::MAX);
        let strangers = buffers.open_account(3, Some(&stranger)).expect("memory");
        assert_eq!(all_of(&mut buffers, strangers).len(), 130, "all that there are");
        let reached = [QuotaKind::ChannelPrivateBuffers, QuotaKind::UserPrivateBuffers];
        assert_eq!(account.take_reached().collect::<Vec<_>>(), reached);
        assert_eq!(other.take_reached().count(), 0, "the shard has no more");
        let count = its[0].refusals(QuotaKind::ChannelPrivateBuffers);
        assert_eq!((count, account.refusals(QuotaKind::UserPrivateBuffers)), (2, 1));
        // Shown to within a step.
        assert!(its[0].count(QuotaKind::ChannelPrivateBuffers).abs_diff(40) < SHOWN_STEP);
        assert!(account.count(QuotaKind::UserPrivateBuffers).abs_diff(70) < SHOWN_STEP);
        first.into_iter().for_each(|buf| buffers.free(buf));
        assert_eq!(its[0].count(QuotaKind::ChannelPrivateBuffers), 0);
        assert_eq!(all_of(&mut buffers, again).len(), 40);
    }

    #[test]
    fn account_counts_until_its_last_buffer_is_free() {
        let account = Arc::default();
        let its = rights(&account, 2, 2);
        let mut buffers = buffers(8);
        let pool = buffers.open_account(0, Some(&its)).expect("memory");
        let [one, other] = [(); 2].map(|()| buffers.alloc(pool).expect("there is room"));
        buffers.close_account(pool);
        let later = buffers.open_account(0, Some(&its)).expect("memory");
        assert!(later != pool && buffers.alloc(later).is_none());
        buffers.free(one);
        buffers.free(one);
        assert!(buffers.alloc(later).is_some() && buffers.alloc(later).is_none());
        buffers.free(other);
        assert!(buffers.account(pool).is_none() && buffers.alloc(pool).is_none());
        assert_eq!(Arc::strong_count(&its), 2, "that of its other listener");
        assert!(buffers.alloc(later).is_some());
    }

    #[test]
    fn account_goes_to_another_channel_with_its_buffers() {
        let account = Arc::default();
        let [one, other] = [(); 2].map(|()| rights(&account, 50, 80));
        let mut buffers = buffers(200);
        let pool = buffers.open_account(0, Some(&one)).expect("memory");
        let held = all_of(&mut buffers, pool);
        buffers.transfer_account(pool, &other);
        assert_eq!(Arc::strong_count(&one), 1, "nothing of it is left");
        assert!(buffers.alloc(pool).is_none());
        let second = buffers.open_account(0, Some(&one)).expect("memory");
        assert_eq!(all_of(&mut buffers, second).len(), 30, "both are of one user");
        held.into_iter().for_each(|buf| buffers.free(buf));
        assert_eq!(all_of(&mut buffers, second).len(), 20);
        assert_eq!(other.count(QuotaKind::ChannelPrivateBuffers), 0);
    }

    #[test]
    fn listener_without_quotas_has_all_buffers() {
        let mut buffers = buffers(8);
        let pool = buffers.open_account(0, None);
        assert_eq!(pool, Some(PoolId(0)));
        assert_eq!(all_of(&mut buffers, PoolId(0)).len(), 8);
        assert!(buffers.alloc(PoolId(SESSIONS_MAX as u16)).is_none(), "no account");
        buffers.close_account(PoolId(0));
    }
}
