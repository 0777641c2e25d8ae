//! The effective policy as aligned text.

use std::fmt::Display;

use megapipe_service::policy::{DEFAULT_RULE, PolicyRule, QuotaKind, ServicePolicy};

use crate::UserDatabase;

/// Two tables: the rules with their ports, and the quotas of each rule. A quota that a rule does
/// not give is that of the default rule.
#[must_use]
pub fn table(policy: &ServicePolicy, users: &UserDatabase) -> String {
    let all = || [&policy.default_rule].into_iter().chain(&policy.rules);
    let heads = ["rule", "users", "groups", "ports", "addresses", "exclusive", "weight"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(all().map(|rule| row(rule, users)));
    let mut quotas = vec![["quota".to_owned()].into_iter().chain(names(all())).collect::<Vec<_>>()];
    for kind in QuotaKind::ALL {
        let limit = |rule: &PolicyRule| match rule.quotas.get(*kind) {
            None if rule.name == DEFAULT_RULE => kind.default_limit().to_string(),
            None => "-".to_owned(),
            Some(u32::MAX) => "none".to_owned(),
            Some(limit) => limit.to_string(),
        };
        quotas.push([kind.to_string()].into_iter().chain(all().map(limit)).collect());
    }
    let rest = "Root and the daemon's own user have all ports and no quotas.\n";
    format!("{}\n{}\n{rest}", aligned(&rows), aligned(&quotas))
}

fn names<'all>(rules: impl Iterator<Item = &'all PolicyRule>) -> impl Iterator<Item = String> {
    rules.map(|rule| rule.name.clone())
}

fn row(rule: &PolicyRule, users: &UserDatabase) -> Vec<String> {
    let is_default = rule.name == DEFAULT_RULE;
    let none = if is_default { "all" } else { "-" };
    vec![
        rule.name.clone(),
        list(rule.users.iter().map(|uid| users.user_name(*uid)), none),
        list(rule.groups.iter().map(|gid| users.group_name(*gid)), none),
        list(rule.ports.iter(), "-"),
        list(rule.addresses.iter(), "all"),
        if rule.is_exclusive { "yes" } else { "no" }.to_owned(),
        rule.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string()),
    ]
}

fn list(values: impl Iterator<Item = impl Display>, none: &str) -> String {
    let values: Vec<_> = values.map(|value| value.to_string()).collect();
    if values.is_empty() { none.to_owned() } else { values.join(",") }
}

/// Columns of the same width, two spaces apart, without spaces at the ends of lines.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width_of).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
