//! Routing table: longest prefix match (RFC 1122 §3.3.1, RFC 4861 §5.2).
//!
//! Invariants
//! - The prefixes of our own addresses are routes to the link itself.
//! - At most [`ROUTES_MAX`], longest prefix first; the first that fits is the longest.
//! - A router is on the link: a route by way of a host that is not is no route.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::address::{Addresses, bits, is_link_local, is_unicast, shared_bits};
use crate::config::Route;
use crate::error::ConfigError;
use crate::limits::ROUTES_MAX;

/// The routes beyond our own prefixes.
#[derive(Debug)]
pub(crate) struct Routes {
    routes: Vec<Route>,
}

impl Routes {
    /// Those of `given`.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them.
    pub(crate) fn new(given: &[Route]) -> Result<Self, ConfigError> {
        let refuse = |why| Err(ConfigError { setting: "routes", why });
        if given.len() > ROUTES_MAX {
            return refuse("too many");
        }
        let mut routes = Vec::with_capacity(ROUTES_MAX);
        for route in given {
            if route.prefix_bits > bits(route.prefix) {
                return refuse("a prefix longer than its address");
            }
            if route.via.is_some_and(|via| via.is_ipv4() != route.prefix.is_ipv4()) {
                return refuse("a router of the other family");
            }
            if route.via.is_some_and(|via| !is_unicast(via)) {
                return refuse("a router that is not one host");
            }
            routes.push(*route);
        }
        // Stable: of two routes with the same prefix the first given counts.
        routes.sort_by_key(|route| core::cmp::Reverse(route.prefix_bits));
        Ok(Self { routes })
    }

    /// The neighbour that packets to `dst` go to. `None`: no route.
    pub(crate) fn via(&self, dst: IpAddr, addresses: &Addresses) -> Option<IpAddr> {
        // What means something on this link only is on this link (RFC 4861 §5.2).
        if is_link_local(dst) {
            return addresses.iter().any(is_link_local).then_some(dst);
        }
        let fits = |route: &&Route| {
            shared_bits(route.prefix, dst).is_some_and(|shared| shared >= route.prefix_bits)
        };
        let route = self.routes.iter().find(fits);
        match (addresses.on_link_bits(dst), route) {
            (Some(own), Some(route)) if route.prefix_bits > own => Some(route.via.unwrap_or(dst)),
            (Some(_), _) => Some(dst),
            (None, route) => route.map(|route| route.via.unwrap_or(dst)),
        }
    }
}

#[cfg(test)]
mod tests;
