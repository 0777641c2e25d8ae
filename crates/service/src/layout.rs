//! Server layouts in the notation of PIKA: which components run together on one core.
//!
//! Read first: [PIKA 5.4]. `TS8LS8CM8` is eight servers with all three components (combined);
//! `TS8+LS4+CM1` is thirteen servers with one component each (split); in `TS8LS8CM2`, two of eight
//! servers have a connection manager (subset). Groups are separated by `+`; within a group the
//! first count is the number of its servers, and the others are at most as large.
//!
//! Pure: text in, a layout out, and back.
//!
//! Invariant: each component is in exactly one group, with 1 to [`SHARDS_MAX`] instances.

use std::fmt;
use std::str::FromStr;

use crate::limits::{LANES_MAX, SHARDS_MAX};

/// A component of the service [PIKA 3.1].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Transport server: owns flows.
    Transport,
    /// Link server: owns link queues.
    Link,
    /// Connection manager: owns listeners.
    Manager,
}

impl Component {
    const ALL: [Self; 3] = [Self::Transport, Self::Link, Self::Manager];

    /// Returns the two letters of the notation.
    #[must_use]
    pub const fn letters(self) -> &'static str {
        match self {
            Self::Transport => "TS",
            Self::Link => "LS",
            Self::Manager => "CM",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Transport => 0,
            Self::Link => 1,
            Self::Manager => 2,
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letters())
    }
}

/// The components of one server, each with its index among those of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerRoles {
    instances: [Option<u16>; 3],
}

impl ServerRoles {
    /// Returns the index of the server's instance of `component`, if it has one.
    #[must_use]
    pub const fn instance(&self, component: Component) -> Option<u16> {
        self.instances[component.index()]
    }

    /// Returns whether the server has a link server and nothing else.
    #[must_use]
    pub const fn has_link_alone(&self) -> bool {
        matches!(self.instances, [None, Some(_), None])
    }
}

/// How many servers there are, and which components each of them has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerLayout {
    /// Each group: its components with their counts, the number of its servers first.
    groups: Vec<Vec<(Component, u16)>>,
}

/// Why a daemon does not run a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerLayoutError {
    /// Some transport servers with a link server and some without, or a link server together with a
    /// connection manager alone.
    #[error(
        "layout {layout}: either each TS has its own LS, as in TS{transports}LS{transports}+CM1, \
         or each LS is alone, as in TS{transports}+LS1+CM1"
    )]
    MixedLinks {
        /// The layout.
        layout: String,
        /// Its transport servers.
        transports: u16,
    },
    /// More shards than a channel may have lanes.
    #[error(
        "layout {layout}: TS{transports} is not in TS1 to TS{LANES_MAX}: a channel has a lane to \
         each"
    )]
    Lanes {
        /// The layout.
        layout: String,
        /// Its transport servers.
        transports: u16,
    },
}

/// Why a text is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotationError {
    /// Neither `TS` nor `LS` nor `CM` where a component is due.
    #[error("layout '{text}': '{rest}' does not begin with a component: TS, LS or CM")]
    Component {
        /// The layout.
        text: String,
        /// What is left of it.
        rest: String,
    },
    /// A component without a count, or with one out of range.
    #[error(
        "layout '{text}': {component}{count} is not in {component}1 to {component}{SHARDS_MAX}"
    )]
    Count {
        /// The layout.
        text: String,
        /// The component.
        component: Component,
        /// The digits after it.
        count: String,
    },
    /// More instances than the group has servers.
    #[error("layout '{text}': {component}{count} exceeds the {servers} servers of its group")]
    Group {
        /// The layout.
        text: String,
        /// The component.
        component: Component,
        /// Its instances.
        count: u16,
        /// The first count of the group.
        servers: u16,
    },
    /// A component twice.
    #[error("layout '{text}': {component} is given twice")]
    Repeated {
        /// The layout.
        text: String,
        /// The component.
        component: Component,
    },
    /// A component that is not there.
    #[error("layout '{text}': {component} is missing; each of TS, LS and CM is needed once")]
    Missing {
        /// The layout.
        text: String,
        /// The component.
        component: Component,
    },
}

impl ServerLayout {
    /// Returns `count` servers with all three components.
    ///
    /// # Errors
    /// [`NotationError::Count`] if `count` is not in 1 to [`SHARDS_MAX`].
    pub fn combined(count: u16) -> Result<Self, NotationError> {
        format!("TS{count}LS{count}CM{count}").parse()
    }

    /// Whether each transport server has a connection manager on its own server.
    #[must_use]
    pub fn has_manager_everywhere(&self) -> bool {
        let has_manager = |server: &ServerRoles| server.instance(Component::Manager).is_some();
        let is_transport = |server: &&ServerRoles| server.instance(Component::Transport).is_some();
        self.servers().iter().filter(is_transport).all(has_manager)
    }

    /// Returns the number of link servers, if each of them is alone on its server; else 0.
    #[must_use]
    pub fn separate_links(&self) -> u16 {
        let of_links = |server: &ServerRoles| server.instance(Component::Link).is_some();
        let is_alone = |server: &ServerRoles| server.has_link_alone();
        let all_alone = self.servers().iter().filter(|server| of_links(server)).all(is_alone);
        if all_alone { self.count(Component::Link) } else { 0 }
    }

    /// Checks that a daemon can run the layout.
    ///
    /// # Errors
    /// [`ServerLayoutError`] names the part and what is allowed.
    pub fn check(&self) -> Result<(), ServerLayoutError> {
        let (layout, transports) = (self.to_string(), self.count(Component::Transport));
        let has_both = |server: &ServerRoles| {
            let of_kind = |component| server.instance(component).is_some();
            of_kind(Component::Transport) == of_kind(Component::Link)
        };
        if self.separate_links() == 0 && !self.servers().iter().all(has_both) {
            return Err(ServerLayoutError::MixedLinks { layout, transports });
        }
        if transports > LANES_MAX {
            return Err(ServerLayoutError::Lanes { layout, transports });
        }
        Ok(())
    }

    /// Returns the number of instances of a component.
    #[must_use]
    pub fn count(&self, component: Component) -> u16 {
        let of_kind = |&&(kind, _): &&(Component, u16)| kind == component;
        self.groups.iter().flatten().find(of_kind).map_or(0, |&(_, count)| count)
    }

    /// Returns the servers in the order of the notation, one for each core.
    #[must_use]
    pub fn servers(&self) -> Vec<ServerRoles> {
        let mut servers = Vec::new();
        for group in &self.groups {
            let size = group.first().map_or(0, |&(_, count)| count);
            for index in 0..size {
                let mut roles = ServerRoles::default();
                for &(component, count) in group {
                    roles.instances[component.index()] = (index < count).then_some(index);
                }
                servers.push(roles);
            }
        }
        servers
    }
}

impl fmt::Display for ServerLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in self.groups.iter().enumerate() {
            if index > 0 {
                f.write_str("+")?;
            }
            for (component, count) in group {
                write!(f, "{component}{count}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for ServerLayout {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        let mut layout = Self { groups: Vec::new() };
        for group in text.split('+') {
            let mut rest = group;
            layout.groups.push(Vec::new());
            while !rest.is_empty() || layout.groups.last().is_some_and(Vec::is_empty) {
                let (component, count, left) = parse_instances(text, rest)?;
                layout.add(text, component, count)?;
                rest = left;
            }
        }
        let missing = Component::ALL.into_iter().find(|&component| layout.count(component) == 0);
        match missing {
            Some(component) => Err(NotationError::Missing { text: text.to_owned(), component }),
            None => Ok(layout),
        }
    }
}

impl ServerLayout {
    /// Adds a component to the last group.
    fn add(&mut self, text: &str, component: Component, count: u16) -> Result<(), NotationError> {
        if self.count(component) > 0 {
            return Err(NotationError::Repeated { text: text.to_owned(), component });
        }
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        let servers = group.first().map_or(count, |&(_, servers)| servers);
        if count > servers {
            return Err(NotationError::Group { text: text.to_owned(), component, count, servers });
        }
        group.push((component, count));
        Ok(())
    }
}

/// Parses a component and its count at the start of `rest`. Returns what follows as well.
fn parse_instances<'a>(
    text: &str,
    rest: &'a str,
) -> Result<(Component, u16, &'a str), NotationError> {
    let starts = |component: &Component| rest.starts_with(component.letters());
    let Some(component) = Component::ALL.into_iter().find(starts) else {
        return Err(NotationError::Component { text: text.to_owned(), rest: rest.to_owned() });
    };
    let after = &rest[component.letters().len()..];
    let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (count, left) = after.split_at(digits);
    match count.parse() {
        Ok(number @ 1..=SHARDS_MAX) => Ok((component, number, left)),
        _ => {
            Err(NotationError::Count { text: text.to_owned(), component, count: count.to_owned() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(text: &str) -> ServerLayout {
        text.parse().unwrap()
    }

    /// Servers as text: the components of each with their indices.
    fn roles(text: &str) -> Vec<String> {
        let names = |server: &ServerRoles| {
            let name = |component: Component| {
                server.instance(component).map(|index| format!("{component}{index}"))
            };
            Component::ALL.into_iter().filter_map(name).collect::<Vec<_>>().join(" ")
        };
        layout(text).servers().iter().map(names).collect()
    }

    #[test]
    fn combined_layout_has_all_components_on_each_server() {
        assert_eq!(roles("TS2LS2CM2"), ["TS0 LS0 CM0", "TS1 LS1 CM1"]);
        assert_eq!(ServerLayout::combined(2).unwrap(), layout("TS2LS2CM2"));
        assert!(ServerLayout::combined(0).is_err());
    }

    #[test]
    fn split_layout_has_one_component_on_each_server() {
        assert_eq!(roles("TS2+LS1+CM1"), ["TS0", "TS1", "LS0", "CM0"]);
        assert_eq!(roles("TS2LS2+CM1"), ["TS0 LS0", "TS1 LS1", "CM0"]);
    }

    #[test]
    fn subset_layout_has_managers_on_the_first_servers() {
        assert_eq!(roles("TS3LS3CM1"), ["TS0 LS0 CM0", "TS1 LS1", "TS2 LS2"]);
        assert_eq!(layout("TS8LS8CM2").count(Component::Manager), 2);
        assert_eq!(layout("TS8LS8CM2").count(Component::Link), 8);
    }

    #[test]
    fn layout_that_is_not_built_is_refused_by_name() {
        for (built, links) in [
            ("TS1LS1CM1", 0),
            ("TS128LS128CM2", 0),
            ("TS2LS2+CM1", 0),
            ("CM2+LS3TS3", 0),
            ("TS2+LS1+CM1", 1),
            ("TS2CM2+LS4", 4),
        ] {
            assert_eq!(layout(built).check(), Ok(()), "{built}");
            assert_eq!(layout(built).separate_links(), links, "{built}");
        }
        for (text, everywhere) in
            [("TS2LS2CM2", true), ("TS2CM2+LS1", true), ("TS2LS2CM1", false), ("TS2LS2+CM2", false)]
        {
            assert_eq!(layout(text).has_manager_everywhere(), everywhere, "{text}");
        }
        for (text, message) in [
            (
                "TS2+LS2CM1",
                "layout TS2+LS2CM1: either each TS has its own LS, as in TS2LS2+CM1, or each LS is \
                 alone, as in TS2+LS1+CM1",
            ),
            (
                "TS4LS2CM4",
                "layout TS4LS2CM4: either each TS has its own LS, as in TS4LS4+CM1, or each LS is \
                 alone, as in TS4+LS1+CM1",
            ),
            (
                "TS129LS129CM1",
                "layout TS129LS129CM1: TS129 is not in TS1 to TS128: a channel has a lane to each",
            ),
        ] {
            assert_eq!(layout(text).check().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn invalid_notation_error_names_value_and_range() {
        let error = |text: &str| text.parse::<ServerLayout>().unwrap_err().to_string();
        for (text, message) in [
            ("", "layout '': '' does not begin with a component: TS, LS or CM"),
            ("TS2LS2+", "layout 'TS2LS2+': '' does not begin with a component: TS, LS or CM"),
            ("TS1 LS1", "layout 'TS1 LS1': ' LS1' does not begin with a component: TS, LS or CM"),
            ("ts1", "layout 'ts1': 'ts1' does not begin with a component: TS, LS or CM"),
            ("TSLS1CM1", "layout 'TSLS1CM1': TS is not in TS1 to TS256"),
            ("TS0LS1CM1", "layout 'TS0LS1CM1': TS0 is not in TS1 to TS256"),
            ("TS257+LS1+CM1", "layout 'TS257+LS1+CM1': TS257 is not in TS1 to TS256"),
            ("TS99999LS1CM1", "layout 'TS99999LS1CM1': TS99999 is not in TS1 to TS256"),
            ("TS2LS4CM2", "layout 'TS2LS4CM2': LS4 exceeds the 2 servers of its group"),
            ("TS2LS2+TS1", "layout 'TS2LS2+TS1': TS is given twice"),
            ("TS2LS2", "layout 'TS2LS2': CM is missing; each of TS, LS and CM is needed once"),
        ] {
            assert_eq!(error(text), message);
        }
    }

    proptest! {
        #[test]
        fn layout_survives_text_form(
            transports in 1..=SHARDS_MAX,
            links in 1..=SHARDS_MAX,
            managers in 1..=SHARDS_MAX,
            form in 0..3,
        ) {
            let (fewer_links, fewer_managers) = (links.min(transports), managers.min(transports));
            let text = match form {
                0 => format!("TS{transports}+LS{links}+CM{managers}"),
                1 => format!("TS{transports}LS{fewer_links}CM{fewer_managers}"),
                _ => format!("TS{transports}LS{fewer_links}+CM{managers}"),
            };
            let layout = layout(&text);
            prop_assert_eq!(layout.to_string(), text);
            let servers = layout.servers();
            for component in Component::ALL {
                let mut found: Vec<u16> =
                    servers.iter().filter_map(|server| server.instance(component)).collect();
                found.sort_unstable();
                let all: Vec<u16> = (0..layout.count(component)).collect();
                prop_assert_eq!(found, all);
            }
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "[TSLCM+0-9é ]{0,16}") {
            if let Ok(layout) = text.parse::<ServerLayout>() {
                prop_assert!(!layout.servers().is_empty());
            }
        }
    }
}
