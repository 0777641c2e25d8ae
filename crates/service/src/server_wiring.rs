//! Which server has which components: where a message between components goes.
//!
//! Read first: `layout.rs`; [PIKA 5.4].
//!
//! Pure: a layout in, numbers out.
//!
//! Invariant: each transport server has one connection manager: its own if its server has one, else
//! that whose number is the remainder of its own.

use std::sync::Arc;

use crate::acceptor::ManagerId;
use crate::layout::{Component, ServerLayout};

/// What one server knows of all servers. A server is named by its place in the layout, those with a
/// link server alone left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerWiring {
    own: u16,
    transport: Option<u16>,
    manager: Option<ManagerId>,
    /// By transport server: its server.
    transports: Arc<[u16]>,
    /// By connection manager: its server.
    managers: Arc<[u16]>,
}

impl ServerWiring {
    /// One server that has all components.
    pub(crate) fn single() -> Self {
        let only: Arc<[u16]> = Arc::new([0]);
        let (transports, managers) = (Arc::clone(&only), only);
        Self { own: 0, transport: Some(0), manager: Some(ManagerId(0)), transports, managers }
    }

    /// The servers of a layout, in its order, without those that have a link server alone: they
    /// exchange frames, and no messages.
    pub(crate) fn of_layout(layout: &ServerLayout) -> Vec<Self> {
        let mut servers = layout.servers();
        servers.retain(|server| !server.has_link_alone());
        let of_kind = |component| {
            let has = |(server, own): (_, u16)| -> Option<u16> {
                let roles: &crate::layout::ServerRoles = server;
                roles.instance(component).map(|_| own)
            };
            // Instances of a kind are numbered in the order of their servers.
            servers.iter().zip(0..).filter_map(has).collect::<Arc<[u16]>>()
        };
        let (transports, managers) = (of_kind(Component::Transport), of_kind(Component::Manager));
        let wiring = |(roles, own): (&crate::layout::ServerRoles, u16)| Self {
            own,
            transport: roles.instance(Component::Transport),
            manager: roles.instance(Component::Manager).map(ManagerId),
            transports: Arc::clone(&transports),
            managers: Arc::clone(&managers),
        };
        servers.iter().zip(0..).map(wiring).collect()
    }

    /// This server's transport server, if it has one.
    pub(crate) const fn transport(&self) -> Option<u16> {
        self.transport
    }

    /// This server's connection manager, if it has one.
    pub(crate) const fn manager(&self) -> Option<ManagerId> {
        self.manager
    }

    /// How many connection managers there are.
    pub(crate) fn manager_count(&self) -> usize {
        self.managers.len()
    }

    /// The transport server of a server.
    pub(crate) fn transport_of(&self, server: u16) -> Option<u16> {
        let place = self.transports.iter().position(|other| *other == server)?;
        u16::try_from(place).ok()
    }

    /// The server of a transport server; this one, if there is no such one.
    pub(crate) fn server_of_transport(&self, transport: u16) -> u16 {
        self.transports.get(usize::from(transport)).copied().unwrap_or(self.own)
    }

    /// The server of a connection manager; this one, if there is no such one.
    pub(crate) fn server_of_manager(&self, manager: ManagerId) -> u16 {
        self.managers.get(usize::from(manager.0)).copied().unwrap_or(self.own)
    }

    /// The server of the connection manager that assigns the connections of a transport server.
    pub(crate) fn manager_server_of(&self, transport: u16) -> u16 {
        let server = self.server_of_transport(transport);
        if self.managers.contains(&server) {
            return server;
        }
        let place = usize::from(transport) % self.managers.len().max(1);
        self.managers.get(place).copied().unwrap_or(self.own)
    }

    /// The servers that learn at once which acceptors this manager has: the other managers.
    pub(crate) fn other_managers(&self) -> impl Iterator<Item = u16> + use<'_> {
        self.managers.iter().copied().filter(|server| *server != self.own)
    }

    /// The transport servers' servers, other than this one, whose manager this one has.
    pub(crate) fn dependents(&self) -> impl Iterator<Item = u16> + use<'_> {
        let all = self.transports.iter().zip(0..);
        let is_its = |(server, transport): (&u16, u16)| {
            let is_its = *server != self.own && self.manager_server_of(transport) == self.own;
            is_its.then_some(*server)
        };
        all.filter_map(is_its)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wiring(layout: &str) -> Vec<ServerWiring> {
        ServerWiring::of_layout(&layout.parse().expect("a layout"))
    }

    #[test]
    fn transport_servers_have_a_manager_of_their_own_or_share_one() {
        let of = |layout: &str| {
            let all = wiring(layout);
            let count = all[0].transports.len() as u16;
            (0..count).map(|it| all[0].manager_server_of(it)).collect::<Vec<_>>()
        };
        assert_eq!(of("TS3LS3CM3"), [0, 1, 2]);
        assert_eq!(of("TS4LS4CM2"), [0, 1, 0, 1]);
        assert_eq!(of("TS3LS3+CM2"), [3, 4, 3]);
    }

    #[test]
    fn managers_forward_membership_to_servers_without_one() {
        let dependents = |layout: &str| {
            let all = wiring(layout);
            all.iter().map(|it| it.dependents().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        assert_eq!(dependents("TS2LS2CM2"), [vec![], vec![]]);
        assert_eq!(dependents("TS3LS3CM1"), [vec![1, 2], vec![], vec![]]);
        assert_eq!(dependents("TS2LS2+CM1"), [vec![], vec![], vec![0, 1]]);
        let all = wiring("TS2LS2+CM2");
        assert_eq!(all[2].other_managers().collect::<Vec<_>>(), [3]);
        assert_eq!((all[0].manager(), all[2].transport()), (None, None));
        assert_eq!((all[3].manager(), all[3].transport_of(1)), (Some(ManagerId(1)), Some(1)));
        assert_eq!(ServerWiring::single(), wiring("TS1LS1CM1")[0]);
        assert_eq!(wiring("LS2+TS2+CM1"), wiring("TS2LS2+CM1"));
    }
}
