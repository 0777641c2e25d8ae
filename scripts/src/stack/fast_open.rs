//! Whether a script needs more of TCP Fast Open (RFC 7413) than the sockets offer: listeners have
//! it, by TCP_FASTOPEN, with the option's own number.
//!
//! Such a script is refused by name before it runs: what differs would tell nothing.

use crate::script::{Action, Body, Expression, Script, TcpOption};

/// The line of the first event that names Fast Open: an option of a packet, of a socket or of a
/// call.
pub(super) fn needed_in_line(script: &Script) -> Option<u32> {
    let needs = |action: &Action| match action {
        Action::Packet(packet) => match &packet.body {
            Body::Tcp(segment) => segment.options.iter().flatten().any(is_cookie),
            Body::Udp(_) | Body::Icmp(_) => false,
        },
        Action::Call(line) => line.arguments.iter().any(names_it),
        Action::Command(_) | Action::Code(_) => false,
    };
    script.events.iter().find(|event| needs(&event.action)).map(|event| event.line)
}

fn is_cookie(option: &TcpOption) -> bool {
    matches!(option, TcpOption::FastOpenExperiment(_))
}

fn names_it(expression: &Expression) -> bool {
    match expression {
        Expression::Word(word) => word.contains("FASTOPEN") && word != "TCP_FASTOPEN",
        Expression::List(all) | Expression::Structure(all) | Expression::Function(_, all) => {
            all.iter().any(names_it)
        }
        Expression::Field(_, value) => names_it(value),
        Expression::Or(one, other) => names_it(one) || names_it(other),
        Expression::Ellipsis | Expression::Integer(_) | Expression::Text(_) => false,
    }
}
