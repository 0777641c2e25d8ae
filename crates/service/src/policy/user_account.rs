//! UserAccount: what all channels of one user have, on all shards of a daemon.
//!
//! Shards count here as their sessions' connections, listeners and endpoints come and go, each
//! change once. The counters are atomic; a limit that several shards check at one moment may be
//! exceeded by one object for each shard.
//!
//! Invariants
//! - An account counts what its user has, and nothing that is over.
//! - What a channel has on all of its shards, a listener, counts once.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use megapipe_stack::Instant;

use super::port_grants::{PortGrants, PortRefusal};
use super::quotas::{QuotaKind, QuotaReached, Quotas};
use crate::limits::LANES_MAX;
use crate::observe::QuotaUse;

/// A kind of a channel and the same of its user.
pub(crate) type QuotaPair = (QuotaKind, QuotaKind);

/// Connections.
pub(crate) const CONNECTIONS: QuotaPair =
    (QuotaKind::ChannelConnections, QuotaKind::UserConnections);
/// Connections that are not established.
pub(crate) const CONNECTING: QuotaPair = (QuotaKind::ChannelConnecting, QuotaKind::UserConnecting);
/// Listeners.
pub(crate) const LISTENERS: QuotaPair = (QuotaKind::ChannelListeners, QuotaKind::UserListeners);
/// Endpoints for datagrams.
pub(crate) const ENDPOINTS: QuotaPair = (QuotaKind::ChannelEndpoints, QuotaKind::UserEndpoints);
/// Chunks to be sent.
pub(crate) const CHUNKS: QuotaPair = (QuotaKind::ChannelChunks, QuotaKind::UserChunks);
/// Ports towards one destination.
pub(crate) const DESTINATION_PORTS: QuotaPair =
    (QuotaKind::ChannelDestinationPorts, QuotaKind::UserDestinationPorts);
/// Events that wait for sessions.
pub(crate) const WAITING_EVENTS: QuotaPair =
    (QuotaKind::ChannelWaitingEvents, QuotaKind::UserWaitingEvents);
/// Buffers of a shard's own, with bytes of connections that no session owns.
const PRIVATE_BUFFERS: QuotaPair =
    (QuotaKind::ChannelPrivateBuffers, QuotaKind::UserPrivateBuffers);

/// What a lane draws from quotas at a time: a message then changes no shared counter.
const DRAWN_AT_ONCE: u32 = 64;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A count for each shard, which that shard alone changes.
#[derive(Debug)]
struct CountsByShard(Box<[AtomicU32]>);

impl Default for CountsByShard {
    fn default() -> Self {
        Self((0..LANES_MAX).map(|_| AtomicU32::new(0)).collect())
    }
}

impl CountsByShard {
    fn set(&self, shard: u16, count: u32) {
        self.0[usize::from(shard % LANES_MAX)].store(count, Ordering::Relaxed);
    }

    fn sum(&self) -> u32 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn most(&self) -> u32 {
        self.0.iter().map(|count| count.load(Ordering::Relaxed)).max().unwrap_or(0)
    }
}

/// What a user has.
#[derive(Debug)]
pub struct UserAccount {
    counts: Quotas<AtomicU32>,
    /// Listeners on each shard: the user has as many as on the one with the most.
    listeners: Box<[AtomicU32]>,
    /// Time at which the connections that were begun are all within the rate, in nanoseconds.
    connects_until: AtomicU64,
    /// The most towards one destination: each shard has its part of the ports.
    destination_ports: CountsByShard,
    /// Each shard has buffers of its own, and each the whole quota.
    private_buffers: CountsByShard,
    /// The same of connections that wait to be accepted.
    waiting: CountsByShard,
    /// The kinds of quotas that were reached since the last look, a bit each.
    reached: AtomicU32,
    /// How often each was reached.
    refusals: Quotas<AtomicU64>,
}

const _: () = assert!(QuotaKind::ALL.len() <= 32, "a bit each");

impl Default for UserAccount {
    fn default() -> Self {
        let counts = Quotas::from_each(|_| AtomicU32::new(0));
        let listeners = (0..LANES_MAX).map(|_| AtomicU32::new(0)).collect();
        let (connects_until, reached) = (AtomicU64::new(0), AtomicU32::new(0));
        let refusals = Quotas::from_each(|_| AtomicU64::new(0));
        let [destination_ports, private_buffers, waiting] =
            [(); 3].map(|()| CountsByShard::default());
        Self {
            counts,
            listeners,
            connects_until,
            destination_ports,
            private_buffers,
            waiting,
            reached,
            refusals,
        }
    }
}

// Relaxed, in all of these: a count publishes nothing but itself.
impl UserAccount {
    /// How many of a kind the user has.
    #[must_use]
    pub fn count(&self, kind: QuotaKind) -> u32 {
        let of_shards = self.listeners.iter().map(|count| count.load(Ordering::Relaxed));
        match kind {
            QuotaKind::UserListeners => of_shards.max().unwrap_or(0),
            QuotaKind::UserDestinationPorts => self.destination_ports.sum(),
            QuotaKind::UserPrivateBuffers => self.private_buffers.most(),
            QuotaKind::UserWaiting => self.waiting.most(),
            _ => self.counts.get(kind).load(Ordering::Relaxed),
        }
    }

    /// Where a kind is counted on a shard.
    fn counter(&self, kind: QuotaKind, shard: u16) -> &AtomicU32 {
        match kind {
            QuotaKind::UserListeners => &self.listeners[usize::from(shard % LANES_MAX)],
            _ => self.counts.get(kind),
        }
    }

    /// The user has one more or less of a kind on a shard.
    fn change_on(&self, kind: QuotaKind, shard: u16, is_more: bool) {
        let counter = self.counter(kind, shard);
        let before = match is_more {
            true => counter.fetch_add(1, Ordering::Relaxed),
            false => counter.fetch_sub(1, Ordering::Relaxed),
        };
        debug_assert!(is_more || before > 0, "each is added before it is removed");
    }

    /// The user has so many more.
    pub(crate) fn add(&self, kind: QuotaKind, count: u32) {
        self.counts.get(kind).fetch_add(count, Ordering::Relaxed);
    }

    /// The user has so many less.
    pub(crate) fn remove(&self, kind: QuotaKind, count: u32) {
        let before = self.counts.get(kind).fetch_sub(count, Ordering::Relaxed);
        debug_assert!(before >= count, "each is added before it is removed");
    }

    /// The private buffers of the user on a shard.
    pub(crate) fn show_private_buffers(&self, shard: u16, count: u32) {
        self.private_buffers.set(shard, count);
    }

    /// The connections that wait at the user's listeners on a shard.
    pub(crate) fn show_waiting(&self, shard: u16, count: u32) {
        self.waiting.set(shard, count);
    }

    /// Counts a connection that begins, if the rate of so many in a second lets it: a leaky bucket
    /// that holds those of a second.
    fn begin_connect(&self, now: Instant, per_second: u32) -> bool {
        let Some(cost) = NANOS_PER_SECOND.checked_div(per_second.into()) else { return false };
        let now = now.as_nanos();
        let full = now.saturating_add(NANOS_PER_SECOND.saturating_sub(cost));
        let begin = |until: u64| {
            let until = until.max(now);
            (until <= full).then(|| until.saturating_add(cost))
        };
        let relaxed = Ordering::Relaxed;
        self.connects_until.fetch_update(relaxed, relaxed, begin).is_ok()
    }

    /// How often a quota was reached: something was refused, or had to wait.
    pub(crate) fn refusals(&self, kind: QuotaKind) -> u64 {
        self.refusals.get(kind).load(Ordering::Relaxed)
    }

    fn note_reached(&self, kind: QuotaKind) {
        self.note_refusals(kind, 1);
    }

    /// Notes that a quota was reached so often since the last time, maybe never.
    pub(crate) fn note_refusals(&self, kind: QuotaKind, count: u64) {
        if count == 0 {
            return;
        }
        self.refusals.get(kind).fetch_add(count, Ordering::Relaxed);
        let bit = 1 << kind as u8;
        if self.reached.load(Ordering::Relaxed) & bit == 0 {
            self.reached.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// The kinds of quotas that were reached since the last call.
    pub fn take_reached(&self) -> impl Iterator<Item = QuotaKind> + use<> {
        let bits = self.reached.swap(0, Ordering::Relaxed);
        QuotaKind::ALL.iter().copied().filter(move |kind| bits & (1 << *kind as u8) != 0)
    }
}

/// So many of a kind that count for a user, until this is dropped.
#[derive(Debug)]
pub(crate) struct QuotaCharge {
    account: Arc<UserAccount>,
    kind: QuotaKind,
    /// Of a kind that is counted by shard.
    shard: u16,
    count: u32,
}

impl Drop for QuotaCharge {
    fn drop(&mut self) {
        let counter = self.account.counter(self.kind, self.shard);
        let before = counter.fetch_sub(self.count, Ordering::Relaxed);
        debug_assert!(before >= self.count, "each is added before it is removed");
    }
}

/// What a session has by the policy, beside its own limits. All its lanes share it, until the last
/// of them has sent what it had to send.
#[derive(Debug)]
pub struct SessionRights {
    account: Arc<UserAccount>,
    quotas: Quotas<u32>,
    /// Replaced when the policy is.
    grants: Mutex<Arc<PortGrants>>,
    /// What its lanes have together, by the quotas of a channel.
    counts: Quotas<AtomicU32>,
    destination_ports: CountsByShard,
    private_buffers: CountsByShard,
    /// How often each quota of a channel was reached.
    refusals: Quotas<AtomicU64>,
    /// Shards of the daemon, which divide the ports towards a destination.
    shards: u16,
    /// Its shared memory, which counts for the user as long as this exists.
    memory_mib: u32,
    /// It counts as a channel that has ended and still sends.
    is_ended: AtomicBool,
}

impl SessionRights {
    /// Rights of a channel and its user with limits of one kind, and without any other.
    #[cfg(test)]
    pub(crate) fn limited(
        account: &Arc<UserAccount>,
        (own, of_user): QuotaPair,
        (channel, user): (u32, u32),
    ) -> Arc<Self> {
        let quotas = Quotas::from_each(|kind| match kind {
            kind if kind == own => channel,
            kind if kind == of_user => user,
            _ => u32::MAX,
        });
        Arc::new(Self::new(Arc::clone(account), quotas, PortGrants::All))
    }

    pub(crate) fn new(account: Arc<UserAccount>, quotas: Quotas<u32>, grants: PortGrants) -> Self {
        let (grants, is_ended) = (Mutex::new(Arc::new(grants)), AtomicBool::new(false));
        let counts = Quotas::from_each(|_| AtomicU32::new(0));
        let refusals = Quotas::from_each(|_| AtomicU64::new(0));
        let [destination_ports, private_buffers] = [(); 2].map(|()| CountsByShard::default());
        let (shards, memory_mib) = (1, 0);
        Self {
            account,
            quotas,
            grants,
            counts,
            destination_ports,
            private_buffers,
            refusals,
            shards,
            memory_mib,
            is_ended,
        }
    }

    /// At a daemon with so many shards.
    pub(crate) fn at_shards(mut self, shards: usize) -> Self {
        self.shards = u16::try_from(shards).unwrap_or(u16::MAX).max(1);
        self
    }

    /// How many of a kind the channel has on all its shards, or on the one with the most.
    pub(crate) fn count(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::ChannelDestinationPorts => self.destination_ports.sum(),
            QuotaKind::ChannelPrivateBuffers => self.private_buffers.most(),
            _ => self.counts.get(kind).load(Ordering::Relaxed),
        }
    }

    /// How often a quota of the channel was reached.
    pub(crate) fn refusals(&self, kind: QuotaKind) -> u64 {
        self.refusals.get(kind).load(Ordering::Relaxed)
    }

    /// Draws some of a kind from the quotas of the channel and of the user. Returns how many; 0: a
    /// quota is reached.
    pub(crate) fn draw(&self, (own, of_user): QuotaPair) -> u32 {
        let of_channel = self.limit(own).saturating_sub(self.count(own));
        if of_channel == 0 {
            self.note_reached(own);
        }
        let drawn = of_channel.min(self.room(of_user)).min(DRAWN_AT_ONCE);
        self.counts.get(own).fetch_add(drawn, Ordering::Relaxed);
        self.account.add(of_user, drawn);
        drawn
    }

    /// Gives what was drawn back.
    pub(crate) fn give_back(&self, (own, of_user): QuotaPair, count: u32) {
        self.counts.get(own).fetch_sub(count, Ordering::Relaxed);
        self.account.remove(of_user, count);
    }

    /// The part of one shard in a quota of ports towards a destination: it has the same part of the
    /// ports.
    fn ports_of_shard(&self, kind: QuotaKind) -> u32 {
        self.limit(kind).div_ceil(self.shards.into())
    }

    /// Whether there may be one more port towards a destination on a shard, where the channel and
    /// the user have so many. Notes nothing.
    ///
    /// # Errors
    /// [`QuotaReached`].
    pub(crate) fn check_destination(
        &self,
        (of_channel, of_user): (u32, u32),
    ) -> Result<(), QuotaReached> {
        let (own, its) = DESTINATION_PORTS;
        for (kind, held) in [(own, of_channel), (its, of_user)] {
            if held >= self.ports_of_shard(kind) {
                return Err(QuotaReached { kind, limit: self.limit(kind) });
            }
        }
        Ok(())
    }

    /// The most ports towards one destination on a shard, of the channel and of the user.
    pub(crate) fn set_destination_ports(&self, shard: u16, (of_channel, of_user): (u32, u32)) {
        self.destination_ports.set(shard, of_channel);
        self.account.destination_ports.set(shard, of_user);
    }

    /// Whether the channel and the user, which have so many private buffers on a shard, may have
    /// one more there. Noted for the administrator if not.
    #[inline]
    pub(crate) fn check_private_buffers(&self, (of_channel, of_user): (u32, u32)) -> bool {
        let (own, its) = PRIVATE_BUFFERS;
        if of_channel < self.limit(own) && of_user < self.limit(its) {
            return true;
        }
        if of_channel >= self.limit(own) {
            self.note_reached(own);
        } else {
            self.account.note_reached(its);
        }
        false
    }

    /// The private buffers of the channel on a shard.
    pub(crate) fn show_private_buffers(&self, shard: u16, count: u32) {
        self.private_buffers.set(shard, count);
    }

    /// The channel has one more or less on a shard of what both kinds count: one of a channel, one
    /// of a user.
    pub(crate) fn change_on(&self, (own, of_user): QuotaPair, shard: u16, is_more: bool) {
        let counter = self.counts.get(own);
        match is_more {
            true => counter.fetch_add(1, Ordering::Relaxed),
            false => counter.fetch_sub(1, Ordering::Relaxed),
        };
        self.account.change_on(of_user, shard, is_more);
    }

    /// With so much shared memory, which counts from now on.
    pub(crate) fn with_memory(mut self, mib: u32) -> Self {
        self.account.add(QuotaKind::UserMemory, mib);
        self.memory_mib += mib;
        self
    }

    /// The session has ended, and a lane of it has bytes to send: whether the user may have one
    /// more such channel. Its lanes count once.
    pub(crate) fn begin_draining(&self) -> bool {
        if self.is_ended.swap(true, Ordering::Relaxed) {
            return true;
        }
        let kind = QuotaKind::UserEndedChannels;
        let may = self.check(kind).is_ok();
        if may {
            self.account.add(kind, 1);
        } else {
            self.is_ended.store(false, Ordering::Relaxed);
        }
        may
    }

    pub(crate) const fn account(&self) -> &Arc<UserAccount> {
        &self.account
    }

    pub(crate) fn limit(&self, kind: QuotaKind) -> u32 {
        *self.quotas.get(kind)
    }

    /// The quotas of the user by their names in the policy file, as `explain` shows them.
    pub(crate) fn user_quotas(&self) -> Vec<(String, QuotaUse)> {
        let account = &self.account;
        self.shown("user", |kind| (account.count(kind), account.refusals(kind)))
    }

    /// The same of the channel.
    pub(crate) fn channel_quotas(&self) -> Vec<(String, QuotaUse)> {
        self.shown("channel", |kind| (self.count(kind), self.refusals(kind)))
    }

    fn shown(&self, scope: &str, of: impl Fn(QuotaKind) -> (u32, u64)) -> Vec<(String, QuotaUse)> {
        // The largest backlog is no number of things.
        let is_shown =
            |kind: &&QuotaKind| kind.key().0 == scope && **kind != QuotaKind::ChannelWaiting;
        let kinds = QuotaKind::ALL.iter().filter(is_shown);
        let shown = kinds.map(|kind| {
            let (now, reached) = of(*kind);
            (kind.key().1.to_owned(), QuotaUse { now, limit: self.limit(*kind), reached })
        });
        shown.collect()
    }

    /// The ports that new listeners and bindings may have from now on.
    pub(crate) fn set_grants(&self, grants: PortGrants) {
        // A panic cannot leave it half replaced.
        *self.grants.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(grants);
    }

    /// Whether a port is the client's. Takes a lock; not on the path of a message.
    ///
    /// # Errors
    /// [`PortRefusal`] names the rule.
    pub(crate) fn check_port(&self, local: std::net::SocketAddr) -> Result<(), PortRefusal> {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner).clone();
        grants.check(local)
    }

    /// How many more of a kind the user may have. Noted for the administrator if there are none.
    pub(crate) fn room(&self, kind: QuotaKind) -> u32 {
        let room = self.limit(kind).saturating_sub(self.account.count(kind));
        if room == 0 {
            self.account.note_reached(kind);
        }
        room
    }

    /// Whether the user may have one more of a kind on a shard.
    ///
    /// # Errors
    /// [`QuotaReached`].
    pub(crate) fn check_on(&self, kind: QuotaKind, shard: u16) -> Result<(), QuotaReached> {
        let limit = self.limit(kind);
        if self.account.counter(kind, shard).load(Ordering::Relaxed) < limit {
            return Ok(());
        }
        self.account.note_reached(kind);
        Err(QuotaReached { kind, limit })
    }

    /// Whether the user may have one more of a kind.
    ///
    /// # Errors
    /// [`QuotaReached`].
    pub(crate) fn check(&self, kind: QuotaKind) -> Result<(), QuotaReached> {
        match self.room(kind) {
            0 => Err(QuotaReached { kind, limit: self.limit(kind) }),
            _ => Ok(()),
        }
    }

    /// Counts so many more of a kind for the user.
    ///
    /// # Errors
    /// [`QuotaReached`]: there is no room.
    pub(crate) fn charge(&self, kind: QuotaKind, count: u32) -> Result<QuotaCharge, QuotaReached> {
        if self.limit(kind).saturating_sub(self.account.count(kind)) < count {
            self.account.note_reached(kind);
            return Err(QuotaReached { kind, limit: self.limit(kind) });
        }
        self.account.add(kind, count);
        Ok(QuotaCharge { account: Arc::clone(&self.account), kind, shard: 0, count })
    }

    /// Counts one more of a kind for the user on a shard.
    ///
    /// # Errors
    /// [`QuotaReached`]: there is no room.
    pub(crate) fn charge_on(
        &self,
        kind: QuotaKind,
        shard: u16,
    ) -> Result<QuotaCharge, QuotaReached> {
        self.check_on(kind, shard)?;
        self.account.change_on(kind, shard, true);
        Ok(QuotaCharge { account: Arc::clone(&self.account), kind, shard, count: 1 })
    }

    /// Whether the user may begin a connection now, which counts for its rate.
    ///
    /// # Errors
    /// [`QuotaReached`].
    pub(crate) fn begin_connect(&self, now: Instant) -> Result<(), QuotaReached> {
        self.check(QuotaKind::UserConnections)?;
        self.check(QuotaKind::UserConnecting)?;
        let kind = QuotaKind::UserConnectsPerSecond;
        let limit = self.limit(kind);
        if limit == u32::MAX || self.account.begin_connect(now, limit) {
            return Ok(());
        }
        self.account.note_reached(kind);
        Err(QuotaReached { kind, limit })
    }

    /// Notes for the administrator that a limit of a channel is reached.
    pub(crate) fn note_reached(&self, kind: QuotaKind) {
        self.refusals.get(kind).fetch_add(1, Ordering::Relaxed);
        self.account.note_reached(kind);
    }
}

impl Drop for SessionRights {
    fn drop(&mut self) {
        self.account.remove(QuotaKind::UserMemory, self.memory_mib);
        if *self.is_ended.get_mut() {
            self.account.remove(QuotaKind::UserEndedChannels, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rights(limit: u32) -> SessionRights {
        let quotas = Quotas::from_each(|_| limit);
        SessionRights::new(Arc::default(), quotas, PortGrants::All)
    }

    #[test]
    fn quota_of_a_user_is_checked_and_noted_once() {
        let rights = rights(2);
        let (kind, shard) = (QuotaKind::UserEndpoints, 0);
        for _ in 0..2 {
            assert_eq!(rights.check_on(kind, shard), Ok(()));
            rights.change_on(ENDPOINTS, shard, true);
        }
        assert_eq!(rights.account().take_reached().count(), 0);
        for _ in 0..3 {
            let reached = QuotaReached { kind, limit: 2 };
            assert_eq!(rights.check_on(kind, shard + 1), Err(reached), "on any shard");
        }
        assert_eq!(rights.account().take_reached().collect::<Vec<_>>(), [kind]);
        assert_eq!(rights.account().take_reached().count(), 0);
        rights.change_on(ENDPOINTS, shard, false);
        assert_eq!((rights.room(kind), rights.count(QuotaKind::ChannelEndpoints)), (1, 1));
    }

    #[test]
    fn listener_of_all_shards_counts_once() {
        let rights = rights(2);
        let kind = QuotaKind::UserListeners;
        for _ in 0..2 {
            for shard in 0..8 {
                assert_eq!(rights.check_on(kind, shard), Ok(()));
                rights.change_on(LISTENERS, shard, true);
            }
        }
        assert_eq!(rights.account().count(kind), 2);
        for shard in 0..8 {
            rights.check_on(kind, shard).expect_err("a third");
        }
        // One shard alone cannot be filled either.
        assert_eq!(rights.check_on(kind, 9), Ok(()));
        (0..8).for_each(|shard| rights.change_on(LISTENERS, shard, false));
        assert_eq!(rights.account().count(kind), 1);
        // As those that tokens alone own.
        let charges: Vec<_> = (0..8).map(|shard| rights.charge_on(kind, shard)).collect();
        assert!(charges.iter().all(Result::is_ok) && rights.charge_on(kind, 3).is_err());
        assert_eq!(rights.account().count(kind), 2);
        drop(charges);
        assert_eq!(rights.account().count(kind), 1);
    }

    #[test]
    fn moved_connections_are_bounded_by_a_quota() {
        let rights = rights(2);
        let kind = QuotaKind::UserMovedConnections;
        let first = rights.charge(kind, 1).expect("there is room");
        let _second = rights.charge(kind, 1).expect("there is room");
        let reached = rights.charge(kind, 1).expect_err("one too many");
        assert!(reached.to_string().contains("user.moved_connections"), "{reached}");
        assert_eq!(rights.account().take_reached().collect::<Vec<_>>(), [kind]);
        drop(first);
        rights.charge(kind, 1).expect("one has ended");
        assert_eq!(rights.account().count(kind), 1);
    }

    #[test]
    fn rate_of_connects_is_bounded_over_any_time() {
        let rights = rights(10);
        let start = Instant::from_nanos(5 * NANOS_PER_SECOND);
        let begun = |now| (0..100).filter(|_| rights.begin_connect(now).is_ok()).count();
        assert_eq!(begun(start), 10, "those of a second at once");
        assert_eq!(begun(start + Duration::from_millis(99)), 0);
        assert_eq!(begun(start + Duration::from_millis(100)), 1);
        assert_eq!(begun(start + Duration::from_millis(500)), 4);
        assert_eq!(begun(start + Duration::from_secs(60)), 10, "no more after a long pause");
        let reached: Vec<_> = rights.account().take_reached().collect();
        assert_eq!(reached, [QuotaKind::UserConnectsPerSecond]);
    }

    #[test]
    fn rate_of_zero_lets_nothing_begin() {
        let account = UserAccount::default();
        assert!(!account.begin_connect(Instant::from_nanos(1 << 40), 0));
        assert!(account.begin_connect(Instant::from_nanos(1 << 40), u32::MAX));
    }

    #[test]
    fn ended_channels_count_once_and_with_their_memory() {
        let account = Arc::<UserAccount>::default();
        let quotas = Quotas::from_each(|_| 1);
        let new = || SessionRights::new(Arc::clone(&account), quotas, PortGrants::All);
        let [one, other] = [new().with_memory(7), new().with_memory(2)];
        assert!(one.begin_draining() && one.begin_draining(), "both of its lanes");
        assert!(!other.begin_draining(), "one channel of the user may");
        let count = |kind| account.count(kind);
        assert_eq!((count(QuotaKind::UserEndedChannels), count(QuotaKind::UserMemory)), (1, 9));
        drop(one);
        assert_eq!((count(QuotaKind::UserEndedChannels), count(QuotaKind::UserMemory)), (0, 2));
        assert!(other.begin_draining());
        drop(other);
        assert!(QuotaKind::ALL.iter().all(|kind| count(*kind) == 0));
    }
}
