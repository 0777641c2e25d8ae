//! Filters of ss(8): states, and expressions of ports and addresses.
//!
//! ```text
//!  FILTER     := [ state STATE | exclude STATE ]... [ EXPRESSION ]
//!  EXPRESSION := and ( or and )...        and := not ( [and] not )...
//!  not        := ( not | ! ) not | '(' EXPRESSION ')' | CONDITION
//!  CONDITION  := ( sport | dport ) [ OP ] PORT | ( src | dst ) [ = | != ] HOST
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use megapipe::TcpState;
use megapipe_service::observe::{ServiceSocket, SocketState};

use super::SocketKinds;

/// Deepest nesting of an expression.
const DEPTH_MAX: usize = 64;

/// What is wrong with a filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterError {
    #[error("filter: `{0}` is no state; states are those of ss(8), such as established")]
    State(String),
    #[error("filter: `{0}` is no port; expected a number such as :80")]
    Port(String),
    #[error("filter: `{0}` is no address; expected ADDRESS, ADDRESS/BITS or ADDRESS:PORT")]
    Host(String),
    #[error("filter: `{0}` is not expected here; expected sport, dport, src, dst, not or (")]
    Word(String),
    #[error("filter: it ends early; expected {0}")]
    End(&'static str),
    #[error("filter: more than {DEPTH_MAX} parentheses or negations in one another")]
    Depth,
}

/// A set of states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StateSet(u16);

impl StateSet {
    const ALL: Self = Self(u16::MAX);

    const fn of(states: &[SocketState]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < states.len() {
            bits |= Self::bit(states[index]);
            index += 1;
        }
        Self(bits)
    }

    const fn bit(state: SocketState) -> u16 {
        match state {
            SocketState::Unconnected => 1,
            SocketState::Listen => 1 << 1,
            SocketState::TimeWait => 1 << 2,
            SocketState::Connection(state) => 1 << (3 + state as u16),
        }
    }

    const fn has(self, state: SocketState) -> bool {
        self.0 & Self::bit(state) != 0
    }

    /// Connections in a state.
    const fn of_connections(state: TcpState) -> Self {
        Self::of(&[SocketState::Connection(state)])
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// As ss(8) has it, also for datagrams: one without a peer is `UNCONN` and shown as a listener.
const LISTENING: StateSet = StateSet::of(&[SocketState::Listen, SocketState::Unconnected, CLOSED]);
const CONNECTED: StateSet = StateSet::ALL.without(LISTENING);
const BUCKET: StateSet =
    StateSet::of(&[SocketState::Connection(TcpState::SynReceived), SocketState::TimeWait]);
const CLOSED: SocketState = SocketState::Connection(TcpState::Closed);

/// The set of a name of ss(8).
fn states(name: &str) -> Option<StateSet> {
    Some(match name {
        "all" => StateSet::ALL,
        "connected" => CONNECTED,
        "synchronized" => CONNECTED.without(StateSet::of_connections(TcpState::SynSent)),
        "bucket" => BUCKET,
        "big" => StateSet::ALL.without(BUCKET),
        "listening" | "listen" => StateSet::of(&[SocketState::Listen]),
        "established" => StateSet::of_connections(TcpState::Established),
        "syn-sent" => StateSet::of_connections(TcpState::SynSent),
        "syn-recv" => StateSet::of_connections(TcpState::SynReceived),
        "fin-wait-1" => StateSet::of_connections(TcpState::FinWait1),
        "fin-wait-2" => StateSet::of_connections(TcpState::FinWait2),
        "time-wait" => StateSet::of(&[SocketState::TimeWait]),
        "close-wait" => StateSet::of_connections(TcpState::CloseWait),
        "last-ack" => StateSet::of_connections(TcpState::LastAck),
        "closing" => StateSet::of_connections(TcpState::Closing),
        "closed" | "close" | "unconnected" => StateSet::of(&[CLOSED, SocketState::Unconnected]),
        _ => return None,
    })
}

/// How two ports compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl PortComparison {
    fn of(word: &str) -> Option<Self> {
        Some(match word {
            "=" | "==" | "eq" => Self::Equal,
            "!=" | "ne" | "neq" => Self::NotEqual,
            "<" | "lt" => Self::Less,
            "<=" | "le" | "leq" => Self::LessOrEqual,
            ">" | "gt" => Self::Greater,
            ">=" | "ge" | "geq" => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    const fn holds(self, port: u16, than: u16) -> bool {
        match self {
            Self::Equal => port == than,
            Self::NotEqual => port != than,
            Self::Less => port < than,
            Self::LessOrEqual => port <= than,
            Self::Greater => port > than,
            Self::GreaterOrEqual => port >= than,
        }
    }
}

/// A condition on one end of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EndCondition {
    Port(PortComparison, u16),
    /// Address and bits of its prefix, and a port; `None`: any.
    Host(Option<(IpAddr, u8)>, Option<u16>),
}

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum FilterExpression {
    And(Vec<Self>),
    Or(Vec<Self>),
    Not(Box<Self>),
    Local(EndCondition),
    Peer(EndCondition),
}

/// Whether the first bits of two addresses are the same.
fn has_prefix(ip: IpAddr, (prefix, bits): (IpAddr, u8)) -> bool {
    let same = |one: u128, other: u128, width: u8| {
        let shift = u32::from(width.saturating_sub(bits));
        (one ^ other).checked_shr(shift).unwrap_or(0) == 0
    };
    match (ip, prefix) {
        (IpAddr::V4(ip), IpAddr::V4(prefix)) => {
            same(ip.to_bits().into(), prefix.to_bits().into(), 32)
        }
        (IpAddr::V6(ip), IpAddr::V6(prefix)) => same(ip.to_bits(), prefix.to_bits(), 128),
        _ => false,
    }
}

impl EndCondition {
    fn holds(&self, end: Option<SocketAddr>) -> bool {
        // A peer that may be any has port 0, as in ss(8).
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let end = end.unwrap_or(any);
        match self {
            Self::Port(comparison, port) => comparison.holds(end.port(), *port),
            Self::Host(prefix, port) => {
                prefix.is_none_or(|prefix| has_prefix(end.ip(), prefix))
                    && port.is_none_or(|port| port == end.port())
            }
        }
    }
}

impl FilterExpression {
    fn holds(&self, socket: &ServiceSocket) -> bool {
        match self {
            Self::And(all) => all.iter().all(|it| it.holds(socket)),
            Self::Or(any) => any.iter().any(|it| it.holds(socket)),
            Self::Not(not) => !not.holds(socket),
            Self::Local(condition) => condition.holds(socket.local),
            Self::Peer(condition) => condition.holds(socket.peer),
        }
    }
}

/// Which sockets are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SocketFilter {
    states: StateSet,
    streams: bool,
    datagrams: bool,
    /// IPv4 and IPv6.
    families: (bool, bool),
    expression: Option<FilterExpression>,
}

impl SocketFilter {
    /// Parses the words of a filter. Without a state the kinds decide, as in ss(8): all that is
    /// connected, without handshakes and TIME-WAIT.
    pub(crate) fn parse(words: &[String], kinds: SocketKinds) -> Result<Self, FilterError> {
        let mut parser = FilterParser { words: split(words), next: 0, depth: 0 };
        let by_state = parser.states()?;
        let expression = match parser.peek() {
            None => None,
            Some(_) => Some(parser.expression()?),
        };
        if let Some(word) = parser.peek() {
            return Err(FilterError::Word(word.to_owned()));
        }
        let by_kind = match (kinds.all, kinds.listening) {
            (true, _) => StateSet::ALL,
            (false, true) => LISTENING,
            (false, false) => CONNECTED.without(BUCKET),
        };
        Ok(Self {
            states: by_state.unwrap_or(by_kind),
            streams: kinds.tcp || !kinds.udp,
            datagrams: kinds.udp || !kinds.tcp,
            families: (kinds.ipv4 || !kinds.ipv6, kinds.ipv6 || !kinds.ipv4),
            expression,
        })
    }

    /// Whether a socket is shown.
    pub(crate) fn takes(&self, socket: &ServiceSocket) -> bool {
        let is_v6 = socket.local.is_some_and(|local| local.is_ipv6());
        let (v4, v6) = self.families;
        self.states.has(socket.state)
            && (if socket.is_datagram { self.datagrams } else { self.streams })
            && (if is_v6 { v6 } else { v4 })
            && self.expression.as_ref().is_none_or(|it| it.holds(socket))
    }
}

/// The words of a filter: those of the arguments, with operators and parentheses apart.
fn split(arguments: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    for argument in arguments {
        let mut word = String::new();
        let mut rest = argument.chars().peekable();
        while let Some(next) = rest.next() {
            let is_operator = "()=!<>&|".contains(next);
            if next.is_whitespace() || is_operator {
                words.extend((!word.is_empty()).then(|| std::mem::take(&mut word)));
            }
            if is_operator {
                let mut operator = next.to_string();
                let doubles = match next {
                    '=' | '!' | '<' | '>' => "=",
                    '&' => "&",
                    '|' => "|",
                    _ => "",
                };
                operator.extend(rest.next_if(|it| doubles.contains(*it)));
                words.push(operator);
            } else if !next.is_whitespace() {
                word.push(next);
            }
        }
        words.extend((!word.is_empty()).then_some(word));
    }
    words
}

struct FilterParser {
    words: Vec<String>,
    next: usize,
    depth: usize,
}

impl FilterParser {
    fn peek(&self) -> Option<&str> {
        self.words.get(self.next).map(String::as_str)
    }

    fn take(&mut self, expected: &'static str) -> Result<String, FilterError> {
        let word = self.words.get(self.next).cloned().ok_or(FilterError::End(expected))?;
        self.next += 1;
        Ok(word)
    }

    fn take_if(&mut self, words: &[&str]) -> bool {
        let is_one = self.peek().is_some_and(|word| words.contains(&word));
        self.next += usize::from(is_one);
        is_one
    }

    /// The states that are named. `None`: there are none.
    fn states(&mut self) -> Result<Option<StateSet>, FilterError> {
        let mut named: Option<StateSet> = None;
        loop {
            let excludes = match self.peek() {
                Some("state") => false,
                Some("exclude" | "excl") => true,
                _ => return Ok(named),
            };
            self.next += 1;
            let name = self.take("a state")?;
            let set = states(&name.to_lowercase()).ok_or(FilterError::State(name))?;
            named = Some(match (named, excludes) {
                (None, true) => StateSet::ALL.without(set),
                (None, false) => set,
                (Some(before), true) => before.without(set),
                (Some(StateSet(before)), false) => StateSet(before | set.0),
            });
        }
    }

    fn expression(&mut self) -> Result<FilterExpression, FilterError> {
        let mut any = vec![self.conjunction()?];
        while self.take_if(&["or", "|", "||"]) {
            any.push(self.conjunction()?);
        }
        Ok(if any.len() == 1 { any.remove(0) } else { FilterExpression::Or(any) })
    }

    fn conjunction(&mut self) -> Result<FilterExpression, FilterError> {
        let mut all = vec![self.negation()?];
        loop {
            let is_joined = self.take_if(&["and", "&", "&&"]);
            let goes_on = !matches!(self.peek(), None | Some(")" | "or" | "|" | "||"));
            if !is_joined && !goes_on {
                return Ok(if all.len() == 1 { all.remove(0) } else { FilterExpression::And(all) });
            }
            all.push(self.negation()?);
        }
    }

    fn negation(&mut self) -> Result<FilterExpression, FilterError> {
        if self.depth >= DEPTH_MAX {
            return Err(FilterError::Depth);
        }
        self.depth += 1;
        let expression = self.term();
        self.depth -= 1;
        expression
    }

    fn term(&mut self) -> Result<FilterExpression, FilterError> {
        let word = self.take("an expression")?;
        Ok(match &*word {
            "not" | "!" => FilterExpression::Not(Box::new(self.negation()?)),
            "(" => {
                let inner = self.expression()?;
                match self.take(")")? {
                    end if end == ")" => inner,
                    other => return Err(FilterError::Word(other)),
                }
            }
            "sport" => FilterExpression::Local(self.port()?),
            "dport" => FilterExpression::Peer(self.port()?),
            "src" => self.host(FilterExpression::Local)?,
            "dst" => self.host(FilterExpression::Peer)?,
            _ => return Err(FilterError::Word(word)),
        })
    }

    fn port(&mut self) -> Result<EndCondition, FilterError> {
        let comparison = self.peek().and_then(PortComparison::of);
        self.next += usize::from(comparison.is_some());
        let word = self.take("a port")?;
        let number = word.strip_prefix(':').unwrap_or(&word).parse();
        let port = number.map_err(|_| FilterError::Port(word))?;
        Ok(EndCondition::Port(comparison.unwrap_or(PortComparison::Equal), port))
    }

    fn host(
        &mut self,
        end: fn(EndCondition) -> FilterExpression,
    ) -> Result<FilterExpression, FilterError> {
        let is_negated = self.take_if(&["!=", "ne", "neq"]);
        if !is_negated {
            self.take_if(&["=", "==", "eq"]);
        }
        let word = self.take("an address")?;
        let condition = host(&word).ok_or(FilterError::Host(word))?;
        let expression = end(condition);
        Ok(if is_negated { FilterExpression::Not(Box::new(expression)) } else { expression })
    }
}

/// ADDRESS, ADDRESS/BITS, ADDRESS:PORT, \[ADDRESS\]:PORT, \*:PORT or :PORT.
fn host(word: &str) -> Option<EndCondition> {
    let port = word.strip_prefix("*:").or_else(|| word.strip_prefix(':'));
    if let Some(Ok(port)) = port.map(str::parse) {
        return Some(EndCondition::Host(None, Some(port)));
    }
    if let Ok(end) = word.parse::<SocketAddr>() {
        let bits = if end.is_ipv4() { 32 } else { 128 };
        return Some(EndCondition::Host(Some((end.ip(), bits)), Some(end.port())));
    }
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse().ok()?)),
        None => (word, None),
    };
    let ip: IpAddr = address.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    let most = if ip.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some(EndCondition::Host(Some((ip, bits)), None))
}

#[cfg(test)]
mod tests {
    use super::super::words::state_name;
    use super::*;

    fn kinds(letters: &str) -> SocketKinds {
        let has = |letter| letters.contains(letter);
        SocketKinds {
            tcp: has('t'),
            udp: has('u'),
            listening: has('l'),
            all: has('a'),
            ipv4: has('4'),
            ipv6: has('6'),
        }
    }

    fn parse(text: &str, letters: &str) -> Result<SocketFilter, FilterError> {
        let words: Vec<String> = text.split_whitespace().map(ToOwned::to_owned).collect();
        SocketFilter::parse(&words, kinds(letters))
    }

    fn socket(state: SocketState, local: &str, peer: &str) -> ServiceSocket {
        ServiceSocket {
            state,
            local: local.parse().ok(),
            peer: peer.parse().ok(),
            ..ServiceSocket::default()
        }
    }

    fn takes(text: &str, local: &str, peer: &str) -> bool {
        let filter = parse(text, "").expect(text);
        filter.takes(&socket(SocketState::Connection(TcpState::Established), local, peer))
    }

    #[test]
    fn kinds_select_states_as_in_ss() {
        let shown = |text: &str, letters: &str| {
            let filter = parse(text, letters).expect(text);
            let all = SocketState::ALL.into_iter();
            let all = all.map(|state| socket(state, "10.0.0.1:1", "10.0.0.2:2"));
            let names = all.filter(|it| filter.takes(it)).map(|it| state_name(it.state));
            names.collect::<Vec<_>>().join(" ")
        };
        let open = "SYN-SENT ESTAB FIN-WAIT-1 FIN-WAIT-2 CLOSE-WAIT LAST-ACK CLOSING";
        assert_eq!(shown("", ""), open);
        assert_eq!(shown("", "l"), "UNCONN LISTEN CLOSED");
        assert_eq!(shown("", "a").split(' ').count(), SocketState::ALL.len());
        assert_eq!(shown("state established", "l"), "ESTAB");
        assert_eq!(shown("state syn-recv state TIME-WAIT", ""), "SYN-RECV TIME-WAIT");
        assert_eq!(
            shown("state connected exclude established", ""),
            format!("SYN-RECV {} TIME-WAIT", open.replace("ESTAB ", ""))
        );
        assert_eq!(shown("exclude big", ""), "SYN-RECV TIME-WAIT");
    }

    #[test]
    fn protocols_and_families_are_selected() {
        let datagram =
            ServiceSocket { is_datagram: true, ..socket(SocketState::Unconnected, "[::1]:53", "") };
        for (letters, is_shown) in
            [("a", true), ("au", true), ("at", false), ("a4", false), ("a6u", true), ("u", false)]
        {
            assert_eq!(parse("", letters).expect("valid").takes(&datagram), is_shown, "{letters}");
        }
    }

    #[test]
    fn expressions_select_by_port_and_address() {
        let (local, peer) = ("10.0.0.2:80", "10.1.2.3:40000");
        for (text, is_shown) in [
            ("sport = :80", true),
            ("sport = 81", false),
            ("sport :80", true),
            ("dport = :40000", true),
            ("dport >= :40001", false),
            ("dport gt 39999", true),
            ("sport != :80", false),
            ("not sport = :81", true),
            ("! ( sport = :80 )", false),
            ("( sport = :443 or dport = :40000 )", true),
            ("(sport=:443||sport=:80)&&dst 10.1.0.0/16", true),
            ("sport = :80 dport = :1", false),
            ("sport = :81 or sport = :80 and dport = :40000", true),
            ("dst 10.1.2.3", true),
            ("dst 10.1.2.4", false),
            ("dst != 10.1.2.4", true),
            ("dst 10.0.0.0/8", true),
            ("dst 10.0.0.0/16", false),
            ("src 0.0.0.0/0", true),
            ("src 10.0.0.2:80", true),
            ("src 10.0.0.2:81", false),
            ("src :80", true),
            ("src *:81", false),
            ("dst ::/0", false),
        ] {
            assert_eq!(takes(text, local, peer), is_shown, "{text}");
        }
        assert!(takes("dst [2001:db8::1]:5", "[2001:db8::2]:80", "[2001:db8::1]:5"));
        assert!(takes("dst 2001:db8::/32", "[2001:db8::2]:80", "[2001:db8::1]:5"));
        let listener = socket(SocketState::Listen, local, "");
        assert!(parse("dport = :0", "l").expect("valid").takes(&listener));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("state asleep", "asleep"),
            ("state", "a state"),
            ("sport = :http", ":http"),
            ("sport = :70000", ":70000"),
            ("sport =", "a port"),
            ("dst nowhere", "nowhere"),
            ("dst 10.0.0.0/33", "10.0.0.0/33"),
            ("( sport = :80", ")"),
            ("sport = :80 )", ")"),
            ("port = :80", "port"),
            ("sport = :80 or", "an expression"),
        ] {
            let error = parse(text, "").expect_err(text).to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let deep = "( ".repeat(10_000);
        assert_eq!(parse(&deep, ""), Err(FilterError::Depth));
    }
}
