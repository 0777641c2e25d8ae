//! What the clients of a daemon may use: ports and addresses, quotas, and a share of a shard.
//!
//! ```text
//!   file --(crate megapipe-policy)--> ServicePolicy --for_client(user, groups)--> ClientPolicy
//!   ClientPolicy + UserAccount (what the user has on all shards) = SessionRights of a session
//! ```
//!
//! Read first: `policy/port_grants.rs`, `policy/quotas.rs`; docs/SERVICE.md describes the file.
//!
//! Invariants
//! - The order of the rules has no effect: a client has the ports of all rules that name it, and of
//!   each quota the largest value that one of them gives.
//! - Root and the daemon's own user have all ports and no quotas.

mod port_grants;
mod quotas;
mod user_account;

use std::net::IpAddr;

pub use port_grants::{ListedPorts, PolicyRefusal, PortGrants, PortRefusal, PortSpan};
pub use quotas::{QuotaKind, QuotaReached, Quotas};
pub(crate) use user_account::{
    CHUNKS, CONNECTING, CONNECTIONS, ENDPOINTS, LISTENERS, QuotaCharge, QuotaPair, WAITING_EVENTS,
};
pub use user_account::{SessionRights, UserAccount};

/// Ports that every user has unless the policy says otherwise, first and last.
const UNPRIVILEGED_PORTS: PortSpan = PortSpan { first: 1_024, last: u16::MAX };

/// The name of the rule for all clients.
pub const DEFAULT_RULE: &str = "default";

/// One rule: the clients that it names, and what they have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyRule {
    /// Its name, for errors.
    pub name: String,
    /// The users that it names.
    pub users: Vec<u32>,
    /// The groups that it names: a process matches by its group or a supplementary one.
    pub groups: Vec<u32>,
    /// Ports for TCP and UDP.
    pub ports: Vec<PortSpan>,
    /// The addresses at which they are; empty: all.
    pub addresses: Vec<IpAddr>,
    /// No other clients have these ports there.
    pub is_exclusive: bool,
    /// Share of a shard's polls. `None`: the default rule's.
    pub weight: Option<u16>,
    /// The quotas that it gives; the others are the default rule's.
    pub quotas: Quotas<Option<u32>>,
}

impl PolicyRule {
    fn names(&self, client: &ClientName<'_>) -> bool {
        let has = |group: &u32| *group == client.gid || client.groups.contains(group);
        self.users.contains(&client.uid) || self.groups.iter().any(has)
    }

    /// Whether both rules have a port at an address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let at = |one: &[IpAddr], two: &[IpAddr]| {
            one.is_empty() || two.is_empty() || one.iter().any(|it| two.contains(it))
        };
        let spans = |span: &PortSpan| other.ports.iter().any(|its| its.overlaps(*span));
        at(&self.addresses, &other.addresses) && self.ports.iter().any(spans)
    }
}

/// A client as rules name it.
#[derive(Debug, Clone, Copy)]
pub struct ClientName<'client> {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'client [u32],
}

/// Who may use what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePolicy {
    /// What every client has.
    pub default_rule: PolicyRule,
    /// More for some.
    pub rules: Vec<PolicyRule>,
}

/// What one client has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPolicy {
    /// Its ports.
    pub grants: PortGrants,
    /// Its quotas; [`u32::MAX`]: none.
    pub quotas: Quotas<u32>,
    /// Its share of a shard's polls, beside those of the others.
    pub weight: u16,
}

/// The policy of a daemon without a policy file.
impl Default for ServicePolicy {
    fn default() -> Self {
        let default_rule = PolicyRule {
            name: DEFAULT_RULE.to_owned(),
            ports: vec![UNPRIVILEGED_PORTS],
            weight: Some(1),
            quotas: Quotas::from_each(|kind| Some(kind.default_limit())),
            ..PolicyRule::default()
        };
        Self { default_rule, rules: Vec::new() }
    }
}

impl ServicePolicy {
    /// What a client has; `own_uid`: the daemon's user.
    #[must_use]
    pub fn for_client(&self, client: &ClientName<'_>, own_uid: u32) -> ClientPolicy {
        let its: Vec<_> = self.rules.iter().filter(|rule| rule.names(client)).collect();
        let own_weight = self.default_rule.weight.unwrap_or(1);
        let weight = its.iter().filter_map(|rule| rule.weight).max().unwrap_or(own_weight);
        if client.uid == 0 || client.uid == own_uid {
            let (grants, quotas) = (PortGrants::All, Quotas::from_each(|_| u32::MAX));
            return ClientPolicy { grants, quotas, weight };
        }
        let quotas = Quotas::from_each(|kind| {
            let given = its.iter().filter_map(|rule| *rule.quotas.get(kind)).max();
            let by_default = || *self.default_rule.quotas.get(kind);
            given.or_else(by_default).unwrap_or_else(|| kind.default_limit())
        });
        let others = self.rules.iter().filter(|rule| rule.is_exclusive && !rule.names(client));
        let grants = PortGrants::listed(&its, others, &self.default_rule);
        ClientPolicy { grants, quotas, weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, users: &[u32], groups: &[u32], ports: &[(u16, u16)]) -> PolicyRule {
        PolicyRule {
            name: name.to_owned(),
            users: users.to_vec(),
            groups: groups.to_vec(),
            ports: ports
                .iter()
                .map(|(first, last)| PortSpan { first: *first, last: *last })
                .collect(),
            ..PolicyRule::default()
        }
    }

    fn policy() -> ServicePolicy {
        let mut web = rule("web", &[33], &[40], &[(80, 80), (443, 443)]);
        web.is_exclusive = true;
        web.quotas.set(QuotaKind::UserConnections, Some(50_000));
        let mut dns = rule("dns", &[53], &[], &[(53, 53)]);
        dns.addresses = vec![IpAddr::from([10, 0, 0, 2])];
        dns.quotas.set(QuotaKind::ChannelListeners, Some(2));
        dns.weight = Some(4);
        ServicePolicy { rules: vec![web, dns], ..ServicePolicy::default() }
    }

    fn of(uid: u32, groups: &[u32]) -> ClientPolicy {
        policy().for_client(&ClientName { uid, gid: uid, groups }, 7)
    }

    fn may(client: &ClientPolicy, address: &str) -> Result<(), String> {
        let checked = client.grants.check(address.parse().expect("an address"));
        checked.map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn ports_are_of_the_default_and_of_matching_rules() {
        for (uid, groups, address, refusal) in [
            (1_000, &[][..], "10.0.0.2:8080", None),
            (1_000, &[], "10.0.0.2:0", None),
            (1_000, &[], "10.0.0.2:80", Some("port 80 is reserved by rule `web`")),
            (
                1_000,
                &[],
                "10.0.0.2:22",
                Some("no rule gives port 22; rule `default` gives 1024-65535"),
            ),
            (1_000, &[4, 40], "0.0.0.0:443", None),
            (33, &[], "[::]:80", None),
            (33, &[], "10.0.0.2:53", Some("no rule gives port 53; rule `web` gives 80, 443")),
            (53, &[], "10.0.0.2:53", None),
            (53, &[], "10.0.0.3:53", Some("no rule gives port 53 at 10.0.0.3")),
            (53, &[], "0.0.0.0:53", Some("no rule gives port 53 at all addresses")),
            (0, &[], "10.0.0.2:80", None),
            (7, &[], "10.0.0.2:80", None),
        ] {
            match (may(&of(uid, groups), address), refusal) {
                (Ok(()), None) => {}
                (Err(text), Some(expected)) => assert!(text.contains(expected), "{text}"),
                (other, _) => panic!("{uid} {address}: {other:?}"),
            }
        }
    }

    #[test]
    fn quotas_and_weight_are_the_largest_that_a_rule_gives() {
        let default = |kind: QuotaKind| kind.default_limit();
        let web = of(33, &[]);
        assert_eq!(*web.quotas.get(QuotaKind::UserConnections), 50_000);
        let listeners = QuotaKind::ChannelListeners;
        assert_eq!(*web.quotas.get(listeners), default(listeners));
        assert_eq!(web.weight, 1);
        let dns = of(53, &[40]);
        assert_eq!(*dns.quotas.get(listeners), 2, "a rule may give less than the default");
        assert_eq!(*dns.quotas.get(QuotaKind::UserConnections), 50_000);
        assert_eq!(dns.weight, 4);
        assert_eq!(*of(0, &[]).quotas.get(listeners), u32::MAX);
    }
}
