//! Path selection: which sockets belong to the stack, which to the kernel, and which to both.
//!
//! Pure: rules and addresses in, a path and its reason out.
//!
//! Read first: `megapipe run --help`; decision 0017 for `both`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where a socket lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketPath {
    /// In the stack.
    Stack,
    /// In the kernel.
    Kernel,
    /// A listener of both: connections that reach the host otherwise are accepted, too.
    Both,
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stack => "stack",
            Self::Kernel => "kernel",
            Self::Both => "both",
        })
    }
}

/// The call that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathCall {
    /// bind(2) or listen(2) of a TCP socket.
    Listen,
    /// connect(2) of a TCP socket.
    Connect,
    /// bind(2), connect(2) or sendto(2) of a UDP socket.
    Udp,
}

impl fmt::Display for PathCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
            Self::Udp => "udp",
        })
    }
}

/// One rule: `stack|kernel|both listen|connect|udp ADDRESS[/BITS]|*:PORT[-PORT]|*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathRule {
    text: String,
    path: SocketPath,
    call: PathCall,
    /// `None`: any address.
    network: Option<(IpAddr, u8)>,
    ports: (u16, u16),
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule {rule:?}: {word:?} must be {expected}")]
pub struct RuleError {
    rule: String,
    word: String,
    expected: &'static str,
}

impl FromStr for PathRule {
    type Err = RuleError;

    fn from_str(rule: &str) -> Result<Self, RuleError> {
        let wrong = |word: &str, expected| RuleError {
            rule: rule.trim().to_owned(),
            word: word.to_owned(),
            expected,
        };
        let mut words = rule.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let path = match word() {
            "stack" => SocketPath::Stack,
            "kernel" => SocketPath::Kernel,
            "both" => SocketPath::Both,
            other => return Err(wrong(other, "stack, kernel or both")),
        };
        let call = match word() {
            "listen" => PathCall::Listen,
            "connect" => PathCall::Connect,
            "udp" => PathCall::Udp,
            other => return Err(wrong(other, "listen, connect or udp")),
        };
        if path == SocketPath::Both && call != PathCall::Listen {
            return Err(wrong("both", "stack or kernel, because only a listener has both paths"));
        }
        let target = word();
        let at = target.rsplit_once(':').ok_or_else(|| {
            wrong(target, "ADDRESS[/BITS]:PORTS or *:PORTS, for example *:80 or [fd00::]/64:*")
        })?;
        let network = network(at.0).ok_or_else(|| wrong(at.0, "an address, ADDRESS/BITS or *"))?;
        let ports = ports(at.1).ok_or_else(|| wrong(at.1, "a port, PORT-PORT or *"))?;
        match words.next() {
            Some(more) => Err(wrong(more, "the end of the rule")),
            None => Ok(Self { text: rule.trim().to_owned(), path, call, network, ports }),
        }
    }
}

/// An address with its bits; the outer `None`: it is none.
fn network(text: &str) -> Option<Option<(IpAddr, u8)>> {
    if text == "*" {
        return Some(None);
    }
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some(Some((address, bits)))
}

fn ports(text: &str) -> Option<(u16, u16)> {
    if text == "*" {
        return Some((0, u16::MAX));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

/// Whether an address is in a network.
fn is_in(address: IpAddr, (network, bits): (IpAddr, u8)) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let shift = 32 - u32::from(bits);
            u32::from(address).checked_shr(shift) == u32::from(network).checked_shr(shift)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let shift = 128 - u32::from(bits);
            u128::from(address).checked_shr(shift) == u128::from(network).checked_shr(shift)
        }
        _ => false,
    }
}

impl fmt::Display for PathRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a socket has its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathReason<'a> {
    /// A rule that matches.
    Rule(&'a PathRule),
    /// Without a rule: what the stack can reach.
    Reach(&'static str),
}

impl fmt::Display for PathReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => write!(f, "rule \"{rule}\""),
            Self::Reach(text) => f.write_str(text),
        }
    }
}

/// Selects paths, by rules and by what the stack can reach.
#[derive(Debug, Clone, Default)]
pub struct PathSelector {
    /// In order: the first that matches decides.
    pub rules: Vec<PathRule>,
    /// The stack's addresses.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The stack's gateways.
    pub gateways: Vec<IpAddr>,
    /// 127.0.0.0/8 and ::1 are the stack's.
    pub has_loopback: bool,
    /// The stack is Linux's, by the library's sockets: it reaches everything.
    pub is_linux: bool,
}

/// Port of the domain name system: libc resolves names through the kernel.
const DOMAIN: u16 = 53;

impl PathSelector {
    /// Returns the path of a socket and the reason.
    #[must_use]
    pub fn select(&self, call: PathCall, address: SocketAddr) -> (SocketPath, PathReason<'_>) {
        let ip = address.ip().to_canonical();
        let matches = |rule: &&PathRule| {
            rule.call == call
                && rule.network.is_none_or(|network| is_in(ip, network))
                && (rule.ports.0..=rule.ports.1).contains(&address.port())
        };
        let (path, why) = match self.rules.iter().find(matches) {
            Some(rule) => (rule.path, PathReason::Rule(rule)),
            None => {
                let (path, why) = self.select_by_default(call, ip, address.port());
                (path, PathReason::Reach(why))
            }
        };
        match path {
            SocketPath::Both if self.is_linux => (SocketPath::Stack, why),
            path => (path, why),
        }
    }

    fn select_by_default(
        &self,
        call: PathCall,
        ip: IpAddr,
        port: u16,
    ) -> (SocketPath, &'static str) {
        if call == PathCall::Udp && port == DOMAIN {
            return (SocketPath::Kernel, "port of the domain name system");
        }
        if self.is_linux {
            return (SocketPath::Stack, "the back end is the kernel");
        }
        if self.addresses.iter().any(|(address, _)| *address == ip) {
            return (SocketPath::Stack, "address of the stack");
        }
        if ip.is_loopback() && self.has_loopback {
            return (SocketPath::Stack, "loopback is the stack's");
        }
        if ip.is_unspecified() {
            return match call {
                PathCall::Listen => (SocketPath::Both, "any address"),
                PathCall::Connect | PathCall::Udp => (SocketPath::Kernel, "any address"),
            };
        }
        if call == PathCall::Listen {
            return (SocketPath::Kernel, "not an address of the stack");
        }
        if ip.is_loopback() || ip.is_multicast() {
            return (SocketPath::Kernel, "loopback or multicast");
        }
        if self.addresses.iter().any(|network| is_in(ip, *network)) {
            return (SocketPath::Stack, "on the stack's link");
        }
        match self.gateways.iter().any(|gateway| gateway.is_ipv4() == ip.is_ipv4()) {
            true => (SocketPath::Stack, "behind the stack's gateway"),
            false => (SocketPath::Kernel, "the stack has no route"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(selector: &PathSelector, call: PathCall, address: &str) -> SocketPath {
        selector.select(call, address.parse().unwrap()).0
    }

    fn selector(rules: &[&str]) -> PathSelector {
        PathSelector {
            rules: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
            addresses: vec![("10.9.0.1".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 64)],
            ..PathSelector::default()
        }
    }

    #[test]
    fn defaults_follow_the_addresses_of_the_stack() {
        use PathCall::{Connect, Listen, Udp};
        use SocketPath::{Both, Kernel, Stack};
        let plain = selector(&[]);
        for (call, address, expected) in [
            (Listen, "0.0.0.0:80", Both),
            (Listen, "[::]:80", Both),
            (Listen, "10.9.0.1:80", Stack),
            (Listen, "10.9.0.2:80", Kernel),
            (Listen, "127.0.0.1:80", Kernel),
            (Connect, "10.9.0.7:80", Stack),
            (Connect, "[::ffff:10.9.0.7]:80", Stack),
            (Connect, "[fd00::7]:80", Stack),
            (Connect, "10.8.0.7:80", Kernel),
            (Connect, "127.0.0.1:80", Kernel),
            (Udp, "10.9.0.7:53", Kernel),
            (Udp, "10.9.0.7:54", Stack),
            (Udp, "0.0.0.0:54", Kernel),
            (Udp, "224.0.0.1:54", Kernel),
        ] {
            assert_eq!(select(&plain, call, address), expected, "{call} {address}");
        }
        let routed =
            PathSelector { gateways: vec!["10.9.0.254".parse().unwrap()], ..plain.clone() };
        assert_eq!(select(&routed, Connect, "10.8.0.7:80"), Stack);
        assert_eq!(select(&routed, Connect, "[fd01::7]:80"), Kernel);
        let looped = PathSelector { has_loopback: true, ..plain.clone() };
        for address in ["127.0.0.1:80", "127.9.0.1:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
            for call in [Listen, Connect, Udp] {
                assert_eq!(select(&looped, call, address), Stack, "{call} {address}");
            }
        }
        assert_eq!(select(&looped, Udp, "127.0.0.53:53"), Kernel);
        let linux = PathSelector { is_linux: true, ..plain };
        assert_eq!(select(&linux, Listen, "0.0.0.0:80"), Stack);
    }

    #[test]
    fn first_matching_rule_decides() {
        use PathCall::{Connect, Listen};
        use SocketPath::{Kernel, Stack};
        let rules = ["stack listen *:80", "kernel listen *:1-100", "kernel connect 10.9.0.0/16:*"];
        let ruled = selector(&rules);
        assert_eq!(select(&ruled, Listen, "0.0.0.0:80"), Stack);
        assert_eq!(select(&ruled, Listen, "10.9.0.1:81"), Kernel);
        assert_eq!(select(&ruled, Listen, "10.9.0.1:101"), Stack);
        assert_eq!(select(&ruled, Connect, "10.9.0.7:80"), Kernel);
        let reason = |address: &str| ruled.select(Listen, address.parse().unwrap()).1.to_string();
        assert_eq!(reason("10.9.0.1:81"), "rule \"kernel listen *:1-100\"");
        assert_eq!(reason("10.9.0.1:101"), "address of the stack");
    }

    #[test]
    fn invalid_rule_is_rejected_with_its_word() {
        for (rule, word) in [
            ("", "\"\" must be stack, kernel or both"),
            ("stak listen *:80", "\"stak\" must be stack, kernel or both"),
            ("stack accept *:80", "\"accept\" must be listen, connect or udp"),
            ("both udp *:80", "only a listener has both paths"),
            ("stack listen 80", "\"80\" must be ADDRESS[/BITS]:PORTS"),
            ("stack listen *:http", "\"http\" must be a port"),
            ("stack listen *:90-80", "\"90-80\" must be a port"),
            ("stack listen 10.0.0.0/33:80", "\"10.0.0.0/33\" must be an address"),
            ("stack listen *:80 now", "\"now\" must be the end of the rule"),
        ] {
            let error = rule.parse::<PathRule>().expect_err(rule).to_string();
            assert!(error.contains(word), "{rule}: {error}");
        }
    }
}
