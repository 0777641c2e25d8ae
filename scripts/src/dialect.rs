//! Which system a script was written for: the two families of scripts expect different defaults.
//!
//! In: a script. Out: its dialect. FreeBSD's is known by the names of its sysctls, or by the layout
//! of options in the SYNs that it expects; everything else is taken for Linux's.
//!
//! Read first: `Dialect::of`. What follows from it is in `stack/personality.rs` (what the stack is
//! made with) and `difference.rs` (in which order options may come).

use crate::script::{PacketBody, SYN, Script, ScriptAction, TcpOption};

/// The family of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// google/packetdrill's and the kernel's own tests.
    #[default]
    Linux,
    /// The FreeBSD suite's.
    FreeBsd,
}

/// How the names of FreeBSD's sysctls for networking begin.
const FREEBSD_SYSCTLS: [&str; 3] = ["net.inet.", "net.inet6.", "kern.ipc."];

impl Dialect {
    /// The dialect of a script.
    pub(crate) fn of(script: &Script) -> Self {
        let is_freebsd = script.events.iter().any(|event| match &event.action {
            ScriptAction::Command(command) => {
                FREEBSD_SYSCTLS.iter().any(|name| command.contains(name))
            }
            ScriptAction::Packet(packet) => match &packet.body {
                PacketBody::Tcp(segment)
                    if packet.is_outbound() && segment.flags.bits & SYN != 0 =>
                {
                    segment.options.as_deref().is_some_and(is_freebsd_layout)
                }
                _ => false,
            },
            ScriptAction::Call(_) | ScriptAction::Code(_) => false,
        });
        if is_freebsd { Self::FreeBsd } else { Self::Linux }
    }
}

/// FreeBSD has the window scale before SACK-permitted, and fills up with zeros at the end. Linux
/// has SACK-permitted before it, and no-operations in front of each option.
fn is_freebsd_layout(options: &[TcpOption]) -> bool {
    let position = |wanted: fn(&TcpOption) -> bool| options.iter().position(wanted);
    let scale = position(|it| matches!(it, TcpOption::WindowScale(_)));
    let sack = position(|it| matches!(it, TcpOption::SackPermitted));
    let padding = position(|it| matches!(it, TcpOption::Eol));
    matches!((scale, sack), (Some(scale), Some(sack)) if scale < sack) || padding.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Definitions, parse};

    fn dialect(text: &str) -> Dialect {
        let script = parse(text.as_bytes(), &mut Definitions::default());
        script.map_or_else(|error| panic!("{error}"), |script| Dialect::of(&script))
    }

    #[test]
    fn sysctls_tell() {
        assert_eq!(dialect("0 `sysctl net.ipv4.tcp_ecn=1`"), Dialect::Linux);
        assert_eq!(dialect("0 `sysctl -w net.inet.tcp.ecn.enable=1`"), Dialect::FreeBsd);
        assert_eq!(dialect("0 `sysctl kern.ipc.maxsockbuf=2097152`"), Dialect::FreeBsd);
    }

    #[test]
    fn syn_layout_selects_the_dialect() {
        let linux = "0 > S 0:0(0) <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7>";
        assert_eq!(dialect(linux), Dialect::Linux);
        let freebsd = "0 > S 0:0(0) <mss 1460,nop,wscale 6,sackOK,TS val 1 ecr 0>";
        assert_eq!(dialect(freebsd), Dialect::FreeBsd);
        assert_eq!(dialect("0 > S. 0:0(0) ack 1 <mss 1460,sackOK,eol,eol>"), Dialect::FreeBsd);
        let inbound = "0 < S 0:0(0) win 1000 <mss 1460,nop,wscale 6,sackOK,eol,eol>";
        assert_eq!(dialect(inbound), Dialect::Linux);
    }
}
