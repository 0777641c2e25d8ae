//! Admission: which clients get a session of a daemon, and what each may have.
//!
//! Read first: `policy.rs`.
//!
//! Invariant: an account exists as long as its user has a session, or connections of one that has
//! ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::attach::{ClientIdentity, RefusalCode, Refused};
use crate::policy::{
    ClientName, ClientPolicy, PortGrants, QuotaKind, Quotas, ServicePolicy, SessionRights,
    UserAccount,
};

/// How often reached quotas are looked for.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// The same quota of the same user is reported this often.
const NOTICE_PERIOD: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

/// The policy of a daemon, and the accounts of its users.
pub(super) struct ClientAdmission {
    policy: ServicePolicy,
    /// The daemon's user.
    own_uid: u32,
    users: HashMap<u32, User>,
    looked_at: Instant,
}

/// A user with sessions.
#[derive(Default)]
struct User {
    account: Arc<UserAccount>,
    /// Times of the last reports.
    noticed_at: Quotas<Option<Instant>>,
}

/// A quota that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReachedQuota {
    pub(super) uid: u32,
    pub(super) kind: QuotaKind,
    /// It is to be reported.
    pub(super) is_news: bool,
}

/// A channel that counts for its user, until this is dropped.
pub(super) struct ChannelCharge {
    account: Arc<UserAccount>,
}

/// What a client gets.
pub(super) struct Admitted {
    pub(super) policy: ClientPolicy,
    /// `None`: all ports, and no quotas.
    pub(super) rights: Option<Arc<SessionRights>>,
    pub(super) charge: Option<ChannelCharge>,
}

impl ChannelCharge {
    fn new(account: Arc<UserAccount>) -> Self {
        account.add(QuotaKind::UserChannels, 1);
        Self { account }
    }
}

impl Drop for ChannelCharge {
    fn drop(&mut self) {
        self.account.remove(QuotaKind::UserChannels, 1);
    }
}

fn name_of(client: &ClientIdentity) -> ClientName<'_> {
    ClientName { uid: client.uid, gid: client.gid, groups: &client.groups }
}

impl ClientAdmission {
    pub(super) fn new(policy: ServicePolicy) -> Self {
        let own_uid = rustix::process::geteuid().as_raw();
        Self { policy, own_uid, users: HashMap::new(), looked_at: Instant::now() }
    }

    pub(super) const fn own_uid(&self) -> u32 {
        self.own_uid
    }

    /// Whether a user has all ports, no quotas, and sees what others have.
    pub(super) const fn has_all(&self, uid: u32) -> bool {
        uid == 0 || uid == self.own_uid
    }

    /// Admits a client whose session has a region of so many bytes, to a daemon of so many shards.
    ///
    /// # Errors
    /// A refusal that names the quota.
    pub(super) fn admit(
        &mut self,
        client: &ClientIdentity,
        (bytes, shards): (usize, usize),
    ) -> Result<Admitted, Refused> {
        let policy = self.policy.for_client(&name_of(client), self.own_uid);
        if policy.grants == PortGrants::All {
            return Ok(Admitted { policy, rights: None, charge: None });
        }
        let account = Arc::clone(&self.users.entry(client.uid).or_default().account);
        let grants = policy.grants.clone();
        let rights = SessionRights::new(Arc::clone(&account), policy.quotas, grants);
        let rights = rights.at_shards(shards);
        let memory = u32::try_from(bytes.div_ceil(MIB)).unwrap_or(u32::MAX);
        for (kind, wanted) in [(QuotaKind::UserChannels, 1), (QuotaKind::UserMemory, memory)] {
            if rights.room(kind) < wanted {
                let limit = rights.limit(kind);
                let has = account.count(kind);
                let sentence = format!(
                    "user {} has {has} of quota {kind} and wants {wanted} more (limit {limit})",
                    client.uid
                );
                let code = if limit == 0 { RefusalCode::Policy } else { RefusalCode::Sessions };
                return Err(Refused::new(code, &sentence));
            }
        }
        let charge = Some(ChannelCharge::new(account));
        Ok(Admitted { policy, rights: Some(Arc::new(rights.with_memory(memory))), charge })
    }

    /// Replaces the policy. What sessions have stays; the ports that they get from now on follow
    /// the new one.
    pub(super) fn replace<'all>(
        &mut self,
        policy: ServicePolicy,
        sessions: impl Iterator<Item = (&'all ClientIdentity, &'all SessionRights)>,
    ) {
        self.policy = policy;
        for (client, rights) in sessions {
            rights.set_grants(self.policy.for_client(&name_of(client), self.own_uid).grants);
        }
    }

    /// The quotas that were reached since the last call, at most once in [`LOOK_PERIOD`].
    pub(super) fn reached(&mut self, now: Instant) -> Vec<ReachedQuota> {
        if now.saturating_duration_since(self.looked_at) < LOOK_PERIOD {
            return Vec::new();
        }
        self.looked_at = now;
        let mut reached = Vec::new();
        self.users.retain(|uid, User { account, noticed_at }| {
            reached.extend(account.take_reached().map(|kind| {
                let before = *noticed_at.get(kind);
                let is_old = |it: Instant| now.saturating_duration_since(it) >= NOTICE_PERIOD;
                let is_news = before.is_none_or(is_old);
                noticed_at.set(kind, if is_news { Some(now) } else { before });
                ReachedQuota { uid: *uid, kind, is_news }
            }));
            // Sessions, and shards that have connections of theirs, hold it too.
            Arc::strong_count(account) > 1
        });
        reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyRule;

    fn client(uid: u32, groups: &[u32]) -> ClientIdentity {
        let groups = groups.to_vec();
        ClientIdentity { pid: 1, uid, gid: uid, groups, name: "test".to_owned() }
    }

    fn admission() -> ClientAdmission {
        let mut policy = ServicePolicy::default();
        policy.default_rule.quotas.set(QuotaKind::UserChannels, Some(2));
        policy.default_rule.quotas.set(QuotaKind::UserMemory, Some(10));
        ClientAdmission { own_uid: 1, ..ClientAdmission::new(policy) }
    }

    #[test]
    fn channels_and_memory_of_a_user_are_bounded() {
        let mut admission = admission();
        let first = admission.admit(&client(1_000, &[]), (4 * MIB, 1)).expect("the first");
        let refused = admission.admit(&client(1_000, &[]), (7 * MIB, 1)).err().expect("too large");
        assert_eq!(refused.code, RefusalCode::Sessions);
        assert!(
            refused.sentence.contains("has 4 of quota user.memory_mib"),
            "{}",
            refused.sentence
        );
        let second = admission.admit(&client(1_000, &[]), (6 * MIB, 1)).expect("the second");
        let refused = admission.admit(&client(1_000, &[]), (0, 1)).err().expect("the third");
        assert!(refused.sentence.contains("user.channels"), "{}", refused.sentence);
        assert!(admission.admit(&client(1_001, &[]), (MIB, 1)).is_ok(), "another user");
        for _ in 0..9 {
            assert!(admission.admit(&client(0, &[]), (900 * MIB, 1)).is_ok(), "root");
            assert!(admission.admit(&client(1, &[]), (900 * MIB, 1)).is_ok(), "the daemon's user");
        }
        // The memory of a channel that has ended counts while a shard has its rights.
        let Admitted { rights, charge, .. } = first;
        drop(charge);
        let refused = admission.admit(&client(1_000, &[]), (MIB, 1)).err().expect("no memory");
        assert!(refused.sentence.contains("user.memory_mib"), "{}", refused.sentence);
        drop(rights);
        assert!(admission.admit(&client(1_000, &[]), (MIB, 1)).is_ok(), "there is room again");
        drop(second);
    }

    #[test]
    fn new_policy_applies_to_later_ports_of_a_session() {
        let mut admission = admission();
        let identity = client(1_000, &[40]);
        let its = admission.admit(&identity, (MIB, 1)).expect("a session").rights.expect("a user");
        let http = "10.0.0.2:80".parse().expect("an address");
        its.check_port(http).expect_err("no rule");
        let mut rule = PolicyRule { groups: vec![40], ..PolicyRule::default() };
        rule.ports = vec![crate::policy::PortSpan { first: 80, last: 80 }];
        let policy = ServicePolicy { rules: vec![rule], ..ServicePolicy::default() };
        admission.replace(policy, [(&identity, &*its)].into_iter());
        its.check_port(http).expect("the new rule");
    }

    #[test]
    fn reached_quotas_are_reported_and_accounts_end() {
        let mut admission = admission();
        let its = admission.admit(&client(1_000, &[]), (MIB, 1)).expect("a session");
        let rights = its.rights.as_ref().expect("a user");
        let kind = QuotaKind::UserListeners;
        let (mut now, uid) = (Instant::now(), 1_000);
        rights.note_reached(kind);
        assert_eq!(admission.reached(admission.looked_at), [], "it is not time");
        for is_news in [true, false] {
            now += LOOK_PERIOD;
            assert_eq!(admission.reached(now), [ReachedQuota { uid, kind, is_news }]);
            rights.note_reached(kind);
        }
        now += NOTICE_PERIOD;
        assert_eq!(admission.reached(now), [ReachedQuota { uid, kind, is_news: true }]);
        assert_eq!(admission.users.len(), 1);
        drop(its);
        assert_eq!(admission.reached(now + LOOK_PERIOD), []);
        assert_eq!(admission.users.len(), 0);
    }
}
