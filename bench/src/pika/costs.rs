//! Measured costs by number of connection managers, each measured once a run.

use crate::scaling::{
    service::ServiceCosts,
    service_costs::{ManagerCosts, MeasuredService},
};
use std::collections::BTreeMap;

/// The costs of this run.
pub(super) struct CostCache {
    measured: MeasuredService,
    /// Measures the work of one of this many managers.
    measure: fn(u16) -> ManagerCosts,
    by_managers: BTreeMap<u16, ServiceCosts>,
}

impl CostCache {
    pub(super) const fn new(measured: MeasuredService, measure: fn(u16) -> ManagerCosts) -> Self {
        Self { measured, measure, by_managers: BTreeMap::new() }
    }

    pub(super) const fn measured(&self) -> &MeasuredService {
        &self.measured
    }

    /// The costs with this many connection managers.
    pub(super) fn of(&mut self, managers: u16) -> ServiceCosts {
        let Self { measured, measure, by_managers } = self;
        *by_managers.entry(managers).or_insert_with(|| measured.costs(&measure(managers)))
    }

    /// The costs in words.
    pub(super) fn note(&self) -> String {
        let MeasuredService { short, kept, messages, wake_us, .. } = &self.measured;
        let picks: Vec<String> = self
            .by_managers
            .iter()
            .map(|(managers, costs)| format!("{:.0} ns at {managers}", costs.pick_ns))
            .collect();
        format!(
            "costs measured in this run: a short connection {:.2} µs at stack and program, a \
             request on a kept one {:.2} µs; a message {:.0} ns at the sender, {:.0} ns at the \
             receiver, {:.0} ns on the way; a wake-up {:.1} µs; a pick {}",
            short.server_ns / 1e3,
            kept.server_ns / 1e3,
            messages.send_ns,
            messages.take_ns,
            messages.delay_ns(),
            wake_us / 2.0,
            if picks.is_empty() { "not needed".to_owned() } else { picks.join(", ") }
        )
    }
}
