//! Names of users and groups, from texts as in `/etc/passwd` and `/etc/group`.
//!
//! Read first: passwd(5), group(5). Users of other databases (LDAP) are named by number.

use std::collections::BTreeMap;

/// Users and groups by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserDatabase {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
}

/// Names and numbers of the lines `NAME:PASSWORD:NUMBER:...`; the first line of a name counts.
fn names(text: &str) -> BTreeMap<String, u32> {
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(number)) = (fields.next(), fields.next(), fields.next())
            && let Ok(number) = number.parse()
        {
            names.entry(name.to_owned()).or_insert(number);
        }
    }
    names
}

impl UserDatabase {
    /// The users and groups of two texts. Lines that are no entries are left out.
    #[must_use]
    pub fn parse(passwd: &str, group: &str) -> Self {
        Self { users: names(passwd), groups: names(group) }
    }

    /// The number of a user.
    #[must_use]
    pub fn uid(&self, name: &str) -> Option<u32> {
        self.users.get(name).copied()
    }

    /// The number of a group.
    #[must_use]
    pub fn gid(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// The name of a user, or the number.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        name_of(&self.users, uid)
    }

    /// The name of a group, or the number.
    pub(crate) fn group_name(&self, gid: u32) -> String {
        name_of(&self.groups, gid)
    }
}

fn name_of(names: &BTreeMap<String, u32>, id: u32) -> String {
    let name = names.iter().find(|(_, its)| **its == id).map(|(name, _)| name.clone());
    name.unwrap_or_else(|| id.to_string())
}
