//! PortGrants: the ports that a client may listen at, bind to, or connect from.
//!
//! Invariant: a port that a rule gives to some clients alone is refused to all others, also at the
//! unspecified address.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::PolicyRule;
use super::quotas::QuotaReached;

/// Ports from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortSpan {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl PortSpan {
    const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Whether both have a port.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for PortSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// The ports of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RulePorts {
    rule: String,
    ports: Vec<PortSpan>,
    addresses: Vec<IpAddr>,
}

impl RulePorts {
    fn of(rule: &PolicyRule) -> Self {
        let PolicyRule { name, ports, addresses, .. } = rule;
        Self { rule: name.clone(), ports: ports.clone(), addresses: addresses.clone() }
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.iter().any(|span| span.contains(port))
    }

    /// Whether it gives the whole of an address, which may be the unspecified one.
    fn covers(&self, local: SocketAddr) -> bool {
        let is_at = self.addresses.is_empty() || self.addresses.contains(&local.ip());
        is_at && self.has_port(local.port())
    }

    /// Whether it gives a part of an address.
    fn touches(&self, local: SocketAddr) -> bool {
        let is_any = local.ip().is_unspecified() || self.addresses.is_empty();
        (is_any || self.addresses.contains(&local.ip())) && self.has_port(local.port())
    }
}

/// Which ports a client has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortGrants {
    /// All of them.
    All,
    /// Those of rules.
    Listed(Box<ListedPorts>),
}

/// Ports that rules give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPorts {
    /// Those of the client.
    own: Vec<RulePorts>,
    /// Those of other clients alone.
    reserved: Vec<RulePorts>,
    /// Those of every client.
    by_default: RulePorts,
}

/// Why a port is not a client's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy of the service: {0}")]
pub struct PortRefusal(String);

impl PortGrants {
    pub(super) fn listed<'rules>(
        own: &[&PolicyRule],
        reserved: impl Iterator<Item = &'rules PolicyRule>,
        by_default: &PolicyRule,
    ) -> Self {
        let own = own.iter().map(|rule| RulePorts::of(rule)).collect();
        let reserved = reserved.map(RulePorts::of).collect();
        let by_default = RulePorts::of(by_default);
        Self::Listed(Box::new(ListedPorts { own, reserved, by_default }))
    }

    /// Checks an address to listen at, bind to, or connect from. Port 0 is every client's.
    ///
    /// # Errors
    /// [`PortRefusal`] names the rule.
    pub fn check(&self, local: SocketAddr) -> Result<(), PortRefusal> {
        match self {
            Self::All => Ok(()),
            Self::Listed(_) if local.port() == 0 => Ok(()),
            Self::Listed(listed) => listed.check(local),
        }
    }
}

impl ListedPorts {
    fn check(&self, local: SocketAddr) -> Result<(), PortRefusal> {
        if self.own.iter().any(|rule| rule.covers(local)) {
            return Ok(());
        }
        let port = local.port();
        if let Some(rule) = self.reserved.iter().find(|rule| rule.touches(local)) {
            return Err(PortRefusal(format!("port {port} is reserved by rule `{}`", rule.rule)));
        }
        if self.by_default.covers(local) {
            return Ok(());
        }
        let mut all = self.own.iter().chain([&self.by_default]);
        let at = match all.any(|rule| rule.has_port(port)) {
            false => String::new(),
            true if local.ip().is_unspecified() => " at all addresses".to_owned(),
            true => format!(" at {}", local.ip()),
        };
        let mut text = format!("no rule gives port {port}{at}");
        for RulePorts { rule, ports, .. } in self.own.iter().chain([&self.by_default]) {
            let ports: Vec<_> = ports.iter().map(ToString::to_string).collect();
            let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(", ") };
            text.push_str(&format!("; rule `{rule}` gives {ports}"));
        }
        Err(PortRefusal(text))
    }
}

/// What the policy refuses to a client, in words for its program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyRefusal {
    /// A port.
    #[error("{0}")]
    Port(String),
    /// More than a quota.
    #[error("{0}")]
    Quota(String),
}

impl From<PortRefusal> for PolicyRefusal {
    fn from(refusal: PortRefusal) -> Self {
        Self::Port(refusal.to_string())
    }
}

impl From<QuotaReached> for PolicyRefusal {
    fn from(reached: QuotaReached) -> Self {
        Self::Quota(reached.to_string())
    }
}
