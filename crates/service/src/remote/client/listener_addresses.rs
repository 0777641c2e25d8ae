//! Both ends of accepted connections, where the session knows them without a call.
//!
//! A server asks for its end of each connection that it accepts, as `accept` and `getsockname` do,
//! and a call takes two switches between processes that share a core.
//!
//! Invariant: what is said here is what the server would answer. Where several addresses are
//! possible the server is asked.

use std::net::{IpAddr, SocketAddr};

use megapipe_stack::ListenerId;

use crate::remote::encoding::Description;

/// Where the listeners of a session listen, in the order of their names. A session has few, and
/// each accepted connection looks its listener up.
#[derive(Debug, Default)]
pub(super) struct ListenerAddresses(Vec<(ListenerId, SocketAddr)>);

impl ListenerAddresses {
    /// Where the address of a listener is, or would be.
    fn place(&self, listener: ListenerId) -> Result<usize, usize> {
        let name = |of: ListenerId| (of.index, of.generation);
        self.0.binary_search_by_key(&name(listener), |(known, _)| name(*known))
    }

    /// Returns whether the listener is new.
    pub(super) fn insert(&mut self, listener: ListenerId, local: SocketAddr) -> bool {
        match self.place(listener) {
            Ok(place) => self.0[place].1 = local,
            Err(place) => {
                self.0.insert(place, (listener, local));
                return true;
            }
        }
        false
    }

    pub(super) fn remove(&mut self, listener: ListenerId) {
        if let Ok(place) = self.place(listener) {
            self.0.remove(place);
        }
    }

    /// Our end of a connection that came to a listener from `remote`. `None`: it has to be asked
    /// for.
    pub(super) fn of_incoming(
        &self,
        listener: ListenerId,
        remote: SocketAddr,
        description: &Description,
    ) -> Option<SocketAddr> {
        let local = self.0[self.place(listener).ok()?].1;
        if local.port() == 0 || has_scope(remote.ip()) {
            return None;
        }
        if !local.ip().is_unspecified() {
            return (!has_scope(local.ip())).then_some(local);
        }
        // The addresses of a host may change; each end of IPv6 has an address of the link beside
        // others; and the stack itself may connect to any of its addresses.
        if description.caps.shares_host_address
            || remote.is_ipv6()
            || remote.ip().is_loopback()
            || description.addresses.contains(&remote.ip())
        {
            return None;
        }
        let is_possible = |ip: &&IpAddr| ip.is_ipv4() && !ip.is_loopback();
        let mut possible = description.addresses.iter().filter(is_possible);
        let ip = *possible.next()?;
        possible.next().is_none().then_some(SocketAddr::new(ip, local.port()))
    }
}

/// Records have no scope.
const fn has_scope(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use megapipe_link::{PairConfig, pair};
    use megapipe_stack::ListenerId;

    use super::*;
    use crate::config::ServerConfig;
    use crate::link_server::Frames;
    use crate::remote::SharedMemory;
    use crate::server::Server;

    fn description(addresses: &[&str]) -> Description {
        let (link, _other) = pair(&PairConfig::default()).expect("a pair");
        let addresses = addresses.iter().map(|ip| (ip.parse().expect("an address"), 24)).collect();
        let config = ServerConfig { addresses, connections: 4, ..ServerConfig::default() };
        let memory = SharedMemory::new(2_048, 16).expect("memory");
        let frames = Frames::Queue(Box::new(link));
        let server = Server::new(frames, &config, memory, config.clock.now()).expect("a server");
        Description::new(&server, &config)
    }

    #[test]
    fn our_end_is_known_where_only_one_address_is_possible() {
        let one = description(&["10.0.0.1"]);
        let two = description(&["10.0.0.1", "10.0.0.2"]);
        let both = description(&["10.0.0.1", "fd00::1"]);
        let mut host = one.clone();
        host.caps.shares_host_address = true;
        for (listens, remote, description, is) in [
            ("10.0.0.1:80", "10.0.0.9:5000", &two, Some("10.0.0.1:80")),
            ("0.0.0.0:80", "10.0.0.9:5000", &one, Some("10.0.0.1:80")),
            ("0.0.0.0:80", "10.0.0.9:5000", &two, None),
            ("0.0.0.0:80", "10.0.0.9:5000", &host, None),
            ("0.0.0.0:80", "127.0.0.1:5000", &one, None),
            ("[::]:80", "10.0.0.9:5000", &both, Some("10.0.0.1:80")),
            ("0.0.0.0:80", "10.0.0.1:5000", &one, None),
            ("[::]:80", "[fd00::9]:5000", &both, None),
            ("[fd00::1]:80", "[fd00::9]:5000", &both, Some("[fd00::1]:80")),
            ("[::]:80", "[fe80::9]:5000", &both, None),
            ("[fd00::1]:80", "[fe80::9]:5000", &both, None),
            ("10.0.0.1:0", "10.0.0.9:5000", &one, None),
        ] {
            let mut addresses = ListenerAddresses::default();
            let listener = ListenerId { index: 3, generation: 7 };
            let address = |it: &str| it.parse().expect("an address and a port");
            addresses.insert(listener, address(listens));
            let local = addresses.of_incoming(listener, address(remote), description);
            assert_eq!(local, is.map(address), "{listens} from {remote}");
            addresses.remove(listener);
            assert_eq!(addresses.of_incoming(listener, address(remote), description), None);
        }
    }
}
