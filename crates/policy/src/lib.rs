//! The policy file of `megapiped`: which users and groups have which ports and quotas.
//!
//! Pure: [`parse`] turns a text and a database of users into a [`ServicePolicy`], [`table()`]
//! prints one. docs/SERVICE.md describes the file.
//!
//! Read first: `megapipe_service::policy`.
//!
//! Invariant: a file with any mistake gives no policy, and the error has the line of the mistake.
//!
//! # Examples
//! ```
//! use megapipe_policy::{UserDatabase, parse, table};
//!
//! let users = UserDatabase::parse("www-data:x:33:33::/var/www:/bin/sh", "");
//! let text = "
//! [rules.web]
//! users = ['www-data']
//! ports = [80, 443]
//! ";
//! let policy = parse(text, &users)?;
//! assert_eq!(policy.rules[0].users, [33]);
//! println!("{}", table(&policy, &users));
//! assert_eq!(parse("[defualt]", &users).unwrap_err().line, 1);
//! # Ok::<(), megapipe_policy::PolicyMistake>(())
//! ```
#![forbid(unsafe_code)]

mod checks;
mod document;
mod table;
mod user_database;

use megapipe_service::policy::{DEFAULT_RULE, PolicyRule, ServicePolicy};

use document::{Section, root};

pub use table::table;
pub use user_database::UserDatabase;

/// Longest policy file in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;

/// A mistake in a policy file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {mistake}")]
pub struct PolicyMistake {
    /// Its line, from 1.
    pub line: usize,
    /// What is wrong.
    pub mistake: String,
}

/// Parses a policy file. What it leaves out is as in [`ServicePolicy::default`].
///
/// # Errors
/// [`PolicyMistake`], the first that is found.
pub fn parse(text: &str, users: &UserDatabase) -> Result<ServicePolicy, PolicyMistake> {
    if text.len() > FILE_BYTES_MAX {
        let mistake = format!("the file has {} bytes (limit {FILE_BYTES_MAX})", text.len());
        return Err(PolicyMistake { line: 1, mistake });
    }
    let document = root(text)?;
    let top = Section::top(text, document.get_ref());
    top.check_keys(&["default", "rules"])?;
    let mut policy = ServicePolicy::default();
    if let Some(section) = top.section("default")? {
        section.check_keys(&["ports", "addresses", "weight", "channel", "user"])?;
        read_common(&section, &mut policy.default_rule)?;
    }
    let mut lines = Vec::new();
    if let Some(rules) = top.section("rules")? {
        for name in rules.keys() {
            let section = rules.section(name)?.unwrap_or_else(|| rules.clone());
            policy.rules.push(read_rule(name, &section, users)?);
            lines.push(section.line());
        }
    }
    checks::check_overlaps(&policy.rules, &lines)?;
    Ok(policy)
}

fn read_rule(
    name: &str,
    section: &Section<'_, '_>,
    users: &UserDatabase,
) -> Result<PolicyRule, PolicyMistake> {
    section.check_keys(&[
        "users",
        "groups",
        "ports",
        "addresses",
        "exclusive",
        "weight",
        "channel",
        "user",
    ])?;
    if name == DEFAULT_RULE || !is_plain(name) {
        return Err(section.mistake(format!("`{name}` cannot be the name of a rule")));
    }
    let mut rule = PolicyRule { name: name.to_owned(), ..PolicyRule::default() };
    rule.users = section.ids("users", "user", |name| users.uid(name))?;
    rule.groups = section.ids("groups", "group", |name| users.gid(name))?;
    rule.is_exclusive = section.truth("exclusive")?.unwrap_or(false);
    read_common(section, &mut rule)?;
    checks::check_rule(&rule).map_err(|mistake| section.mistake(mistake))?;
    Ok(rule)
}

/// Reads what the default rule has too.
fn read_common(section: &Section<'_, '_>, rule: &mut PolicyRule) -> Result<(), PolicyMistake> {
    if let Some(ports) = section.ports("ports")? {
        rule.ports = ports;
    }
    rule.addresses = section.addresses("addresses")?;
    if let Some(weight) = section.number("weight", 1, checks::WEIGHT_MAX.into())? {
        rule.weight = u16::try_from(weight).ok();
    }
    section.quotas(&mut rule.quotas)
}

/// Whether a name can be printed in a table.
fn is_plain(name: &str) -> bool {
    let is_part = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    !name.is_empty() && name.len() <= checks::NAME_BYTES_MAX && name.chars().all(is_part)
}

#[cfg(test)]
mod tests;
