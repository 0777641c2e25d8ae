//! What is to be explained.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// A port, an end of connections, a process, or the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExplainTarget {
    Port(u16),
    /// Ours or the peer's.
    End(SocketAddr),
    Process(u32),
    Daemon,
}

/// It is none of these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a port such as :80, an end such as 10.0.0.1:43210, or the number of a process")]
pub(crate) struct TargetError;

impl FromStr for ExplainTarget {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Some(port) = text.strip_prefix(':') {
            return port.parse().map(Self::Port).map_err(|_| TargetError);
        }
        let process = || text.parse().ok().filter(|pid| *pid > 0).map(Self::Process);
        text.parse().ok().map(Self::End).or_else(process).ok_or(TargetError)
    }
}

/// As the end of "has nothing …".
impl fmt::Display for ExplainTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "at port {port}"),
            Self::End(end) => write!(f, "from or to {end}"),
            Self::Process(pid) => write!(f, "of process {pid} (a port is written :{pid})"),
            Self::Daemon => f.write_str("at all"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart_by_their_form() {
        let parse = |text: &str| text.parse::<ExplainTarget>();
        assert_eq!(parse(":80"), Ok(ExplainTarget::Port(80)));
        assert_eq!(parse("80"), Ok(ExplainTarget::Process(80)));
        let end = "[::1]:80".parse().expect("an end");
        assert_eq!(parse("[::1]:80"), Ok(ExplainTarget::End(end)));
        for text in ["", ":", ":http", ":65536", "0", "-1", "10.0.0.1", "nginx"] {
            assert_eq!(parse(text), Err(TargetError), "{text}");
        }
    }
}
