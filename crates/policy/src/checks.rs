//! Checks of rules: each alone, and against each other.

use megapipe_service::limits::{EPHEMERAL_PORTS, SHARED_CLIENT_PORTS};
use megapipe_service::policy::{PolicyRule, PortSpan};

use crate::PolicyMistake;

/// Largest weight of a rule.
pub(crate) const WEIGHT_MAX: u16 = 1_000;
/// Longest name of a rule in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Ports that the stack chooses from for connections and sockets that ask for none.
const CHOSEN: [PortSpan; 2] = [
    PortSpan { first: EPHEMERAL_PORTS.0, last: EPHEMERAL_PORTS.1 },
    PortSpan { first: SHARED_CLIENT_PORTS.0, last: SHARED_CLIENT_PORTS.1 },
];

/// Checks a rule alone.
pub(crate) fn check_rule(rule: &PolicyRule) -> Result<(), String> {
    let PolicyRule { name, ports, .. } = rule;
    if rule.users.is_empty() && rule.groups.is_empty() {
        return Err(format!("rule `{name}` names no user and no group"));
    }
    if ports.is_empty() && (rule.is_exclusive || !rule.addresses.is_empty()) {
        return Err(format!("rule `{name}` has no ports to be exclusive or to have addresses"));
    }
    for span in ports.iter().filter(|_| rule.is_exclusive) {
        if let Some(chosen) = CHOSEN.iter().find(|chosen| chosen.overlaps(*span)) {
            return Err(format!(
                "ports {span} of rule `{name}` cannot be exclusive: connections of all clients get \
                 ports from {chosen}"
            ));
        }
    }
    Ok(())
}

/// Checks that no rule has ports of an exclusive one. `lines`: those of the rules.
pub(crate) fn check_overlaps(rules: &[PolicyRule], lines: &[usize]) -> Result<(), PolicyMistake> {
    let with_lines: Vec<_> = rules.iter().zip(lines.iter().copied()).collect();
    for (place, (rule, line)) in with_lines.iter().enumerate() {
        for (other, its_line) in &with_lines[..place] {
            if (!rule.is_exclusive && !other.is_exclusive) || !rule.overlaps(other) {
                continue;
            }
            let (first, later) = if its_line <= line { (other, rule) } else { (rule, other) };
            let mistake = format!(
                "rules `{}` (line {}) and `{}` have ports in common, and `{}` is exclusive",
                first.name,
                its_line.min(line),
                later.name,
                if rule.is_exclusive { &rule.name } else { &other.name },
            );
            return Err(PolicyMistake { line: *its_line.max(line), mistake });
        }
    }
    Ok(())
}
