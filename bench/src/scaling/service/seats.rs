//! Places of the simulated service: what a transport server, a manager and a web server keep.
//!
//! Pure.

use megapipe_service::{
    AcceptorName, ManagerId,
    balancer::BalancerConfig,
    hand_over::{AcceptQueue, HandOverConfig, OfferTable},
};
use std::collections::VecDeque;

/// A transport server.
pub(super) struct TransportSeat {
    pub(super) core: usize,
    pub(super) table: OfferTable,
    /// Whether an event is scheduled for overdue claims.
    pub(super) is_timed: bool,
}

impl TransportSeat {
    pub(super) fn new(core: usize, config: &HandOverConfig) -> Self {
        let table = OfferTable::new(config).expect("default settings");
        Self { core, table, is_timed: false }
    }
}

/// A connection manager.
pub(super) struct ManagerSeat {
    pub(super) core: usize,
    pub(super) queue: AcceptQueue,
}

impl ManagerSeat {
    pub(super) fn new(
        index: usize,
        core: usize,
        hand_over: &HandOverConfig,
        balancer: &BalancerConfig,
    ) -> Self {
        let name = ManagerId(index as u16);
        let queue = AcceptQueue::new(name, hand_over, balancer.clone()).expect("valid settings");
        Self { core, queue }
    }
}

/// A web server.
#[derive(Debug)]
pub(super) struct ApplicationSeat {
    pub(super) core: usize,
    /// Its connection manager.
    pub(super) home: usize,
    /// Connections with a request.
    pub(super) ready: VecDeque<u32>,
    /// The enlistment that ended with a late claim.
    pub(super) lost: Option<AcceptorName>,
}

impl ApplicationSeat {
    pub(super) const fn new(core: usize, home: usize) -> Self {
        Self { core, home, ready: VecDeque::new(), lost: None }
    }
}
