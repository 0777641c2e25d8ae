//! What `explain` shows of connection managers: what each decides for the listeners of a target,
//! and for whom.

use std::net::SocketAddr;

use megapipe_service::observe::{
    ManagedAcceptor, ManagedListener, ManagerOffer, ServiceListener, ServiceManager,
};
use serde::Serialize;

use super::target::ExplainTarget;
use super::times::microseconds;
use crate::observed::ObservedService;

/// A connection manager.
#[derive(Debug, Serialize)]
pub(super) struct ManagerExplained {
    pub(super) manager: u16,
    /// The shard that it runs in. Null: it has a server of its own.
    pub(super) shard: Option<u16>,
    pub(super) listeners: Vec<ManagedExplained>,
}

/// A listener as a connection manager sees it.
#[derive(Debug, Serialize)]
pub(super) struct ManagedExplained {
    pub(super) local: Option<SocketAddr>,
    pub(super) scheme: String,
    pub(super) waiting: u32,
    /// Connections that it gave to acceptors enlisted with it, and to those of other managers.
    pub(super) assigned: u64,
    pub(super) assigned_elsewhere: u64,
    /// Offers between connection managers.
    pub(super) offers_sent: u64,
    pub(super) offers_received: u64,
    pub(super) waits: u64,
    pub(super) refused: u64,
    pub(super) dropped_acceptors: u64,
    /// Of all managers.
    pub(super) acceptor_count: u32,
    /// Those enlisted with it.
    pub(super) acceptors: Vec<ManagedAcceptorExplained>,
    /// The last offers of other managers.
    pub(super) offers: Vec<ManagerOfferExplained>,
}

#[derive(Debug, Serialize)]
pub(super) struct ManagedAcceptorExplained {
    pub(super) session: u64,
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) is_enlisted: bool,
    pub(super) credit: u32,
    pub(super) connections: u32,
    pub(super) service_time_us: Option<f64>,
    /// Connections that were assigned to it, by any manager.
    pub(super) assigned: u64,
    /// Its part of those of all acceptors enlisted here.
    pub(super) share: f64,
    pub(super) take_backs: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ManagerOfferExplained {
    pub(super) manager: u16,
    pub(super) service_time_us: f64,
    pub(super) offer_s_ago: f64,
}

/// The connection managers with those of their listeners that are concerned. One that runs in the
/// only shard has nothing that the shard does not show.
pub(super) fn managers(
    observed: &ObservedService,
    target: ExplainTarget,
    concerns: impl Fn(&ServiceListener) -> bool,
) -> Vec<ManagerExplained> {
    if let [only] = &observed.managers[..]
        && only.shard.is_some()
        && observed.shards.len() == 1
    {
        return Vec::new();
    }
    let is_its = |local: Option<SocketAddr>| {
        let mut same = observed.listeners.iter().filter(|it| it.local == local);
        target == ExplainTarget::Daemon || same.any(&concerns)
    };
    let manager = |manager: &ServiceManager| {
        let its = manager.listeners.iter().filter(|listener| is_its(listener.local));
        let listeners: Vec<_> = its.map(|it| ManagedExplained::of(observed, it)).collect();
        let (number, shard) = (manager.number, manager.shard);
        let is_shown = target == ExplainTarget::Daemon || !listeners.is_empty();
        is_shown.then_some(ManagerExplained { manager: number, shard, listeners })
    };
    observed.managers.iter().filter_map(manager).collect()
}

impl ManagedExplained {
    fn of(observed: &ObservedService, listener: &ManagedListener) -> Self {
        let all: u64 = listener.acceptors.iter().map(|it| it.assigned).sum();
        let acceptor = |it: &ManagedAcceptor| {
            let session = observed.session(it.session);
            ManagedAcceptorExplained {
                session: it.session,
                pid: session.map_or(0, |session| session.pid),
                program: session.map_or_else(String::new, |session| session.program.clone()),
                is_enlisted: it.is_enlisted,
                credit: it.credit,
                connections: it.open,
                service_time_us: it.service_time.map(microseconds),
                assigned: it.assigned,
                share: it.assigned as f64 / all.max(1) as f64,
                take_backs: it.take_backs,
            }
        };
        let offer = |it: &ManagerOffer| ManagerOfferExplained {
            manager: it.manager,
            service_time_us: microseconds(it.service_time),
            offer_s_ago: it.age.as_secs_f64(),
        };
        Self {
            local: listener.local,
            scheme: listener.scheme.clone(),
            waiting: listener.waiting,
            assigned: listener.assigned,
            assigned_elsewhere: listener.assigned_elsewhere,
            offers_sent: listener.offers_sent,
            offers_received: listener.offers_received,
            waits: listener.waits,
            refused: listener.refused,
            dropped_acceptors: listener.dropped,
            acceptor_count: listener.acceptor_count,
            acceptors: listener.acceptors.iter().map(acceptor).collect(),
            offers: listener.offers.iter().map(offer).collect(),
        }
    }
}
