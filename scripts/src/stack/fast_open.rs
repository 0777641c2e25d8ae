//! Whether a script needs what the stack has not of TCP Fast Open: the experimental option, which
//! has given way to that of RFC 7413.
//!
//! Such a script is rejected by name before it runs: its differences would be meaningless.

use crate::script::{PacketBody, Script, ScriptAction, TcpOption};

/// The line of the first packet with the experimental option.
pub(super) fn needed_in_line(script: &Script) -> Option<u32> {
    let needs = |action: &ScriptAction| match action {
        ScriptAction::Packet(packet) => match &packet.body {
            PacketBody::Tcp(segment) => segment.options.iter().flatten().any(is_experimental),
            PacketBody::Udp(_) | PacketBody::Icmp(_) => false,
        },
        ScriptAction::Call(_) | ScriptAction::Command(_) | ScriptAction::Code(_) => false,
    };
    script.events.iter().find(|event| needs(&event.action)).map(|event| event.line)
}

const fn is_experimental(option: &TcpOption) -> bool {
    matches!(option, TcpOption::FastOpenExperiment(_))
}
