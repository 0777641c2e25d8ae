//! What a simulation of the service counts.
//!
//! Pure.

use super::{
    super::clock::{PS_PER_SECOND, Time},
    ServiceWorld,
};

/// Counts of a running simulation.
#[derive(Debug)]
pub(super) struct ServiceTally {
    warm_up: Time,
    bin: Time,
    /// By web server, then by bin: requests done, their service times together.
    done: Vec<Vec<u64>>,
    spent: Vec<Vec<Time>>,
    /// By web server, then by bin: connections that its own manager assigned to it.
    local: Vec<Vec<u64>>,
    /// By web server, then by bin: the estimate at the bin's end, in nanoseconds.
    estimates: Vec<Vec<f64>>,
    service_times: Vec<Time>,
    latency: Time,
    latencies: u64,
    assigned: u64,
    manager_time: Time,
    pub(super) stack_time: Time,
    pub(super) message_time: Time,
    pub(super) offer_time: Time,
    pub(super) offers_sent: u64,
    pub(super) offers_received: u64,
    pub(super) take_backs: u64,
    pub(super) remote: u64,
}

impl ServiceTally {
    pub(super) fn new(world: &ServiceWorld) -> Self {
        let bins = (world.duration / world.bin.max(1)) as usize + 1;
        let applications = usize::from(world.applications);
        Self {
            warm_up: world.warm_up,
            bin: world.bin.max(1),
            done: vec![vec![0; bins]; applications],
            spent: vec![vec![0; bins]; applications],
            local: vec![vec![0; bins]; applications],
            estimates: vec![Vec::new(); applications],
            service_times: Vec::new(),
            latency: 0,
            latencies: 0,
            assigned: 0,
            manager_time: 0,
            stack_time: 0,
            message_time: 0,
            offer_time: 0,
            offers_sent: 0,
            offers_received: 0,
            take_backs: 0,
            remote: 0,
        }
    }

    fn bin(&self, at: Time) -> usize {
        ((at / self.bin) as usize).min(self.done.first().map_or(1, Vec::len) - 1)
    }

    pub(super) const fn counts(&self, at: Time) -> bool {
        at >= self.warm_up
    }

    /// A request was answered.
    pub(super) fn on_served(&mut self, at: Time, application: usize, service_time: Time) {
        let bin = self.bin(at);
        self.done[application][bin] += 1;
        self.spent[application][bin] += service_time;
        if self.counts(at) {
            self.service_times.push(service_time);
        }
    }

    /// A client has its response.
    pub(super) const fn on_response(&mut self, at: Time, latency: Time) {
        if self.counts(at) {
            self.latency += latency;
            self.latencies += 1;
        }
    }

    /// A transport server has an assignment.
    pub(super) fn on_assigned(&mut self, at: Time, waited: Time, local: Option<usize>) {
        if let Some(application) = local {
            let bin = self.bin(at);
            self.local[application][bin] += 1;
        }
        if self.counts(at) {
            self.assigned += 1;
            self.manager_time += waited;
            self.remote += u64::from(local.is_none());
        }
    }

    pub(super) fn on_estimate(&mut self, application: usize, nanos: Option<u64>) {
        self.estimates[application].push(nanos.map_or(0.0, |nanos| nanos as f64));
    }

    pub(super) fn outcome(mut self, world: &ServiceWorld) -> ServiceOutcome {
        let seconds = (world.duration - world.warm_up) as f64 / PS_PER_SECOND;
        let bin_seconds = self.bin as f64 / PS_PER_SECOND;
        let us = |time: Time, count: u64| time as f64 / 1e6 / count.max(1) as f64;
        let served = self.service_times.len() as u64;
        self.service_times.sort_unstable();
        let complete = (world.duration / self.bin) as usize;
        let rate = |bins: &Vec<u64>| {
            bins.iter().take(complete).map(|&count| count as f64 / bin_seconds).collect()
        };
        let mean_us = |(done, spent): (&Vec<u64>, &Vec<Time>)| {
            let each = done.iter().zip(spent).take(complete);
            each.map(|(&count, &time)| us(time, count)).collect()
        };
        let totals = self.done.iter().map(|bins| bins.iter().sum::<u64>() as f64).collect();
        let managers = world.layout.count(megapipe_service::layout::Component::Manager);
        ServiceOutcome {
            per_s: served as f64 / seconds,
            service_us: self.service_times.iter().map(|&time| time as f64 / 1e6).collect(),
            latency_us: us(self.latency, self.latencies),
            manager_us: us(self.manager_time, self.assigned),
            stack_us: us(self.stack_time, served),
            message_us: us(self.message_time, served),
            done_per_s: self.done.iter().map(rate).collect(),
            local_per_s: self.local.iter().map(rate).collect(),
            true_us: self.done.iter().zip(&self.spent).map(mean_us).collect(),
            estimated_us: {
                let scaled = |all: &Vec<f64>| all.iter().map(|nanos| nanos / 1e3).collect();
                self.estimates.iter().map(scaled).collect()
            },
            totals,
            offers_sent_per_s: self.offers_sent as f64 / seconds / f64::from(managers),
            offers_received_per_s: self.offers_received as f64 / seconds / f64::from(managers),
            offer_share: self.offer_time as f64 / PS_PER_SECOND / seconds / f64::from(managers),
            take_backs: self.take_backs,
            remote_share: self.remote as f64 / self.assigned.max(1) as f64,
        }
    }
}

/// What came of a simulation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServiceOutcome {
    /// Requests answered a second.
    pub(crate) per_s: f64,
    /// Service times from offer to close, ascending.
    pub(crate) service_us: Vec<f64>,
    /// Mean time from a client's SYN, or its next request, to its response.
    pub(crate) latency_us: f64,
    /// T_CM: mean time from establishment to the assignment at the transport server.
    pub(crate) manager_us: f64,
    /// T_busy and T_msg: work of all transport servers for a request.
    pub(crate) stack_us: f64,
    pub(crate) message_us: f64,
    /// By web server, then by bin.
    pub(crate) done_per_s: Vec<Vec<f64>>,
    pub(crate) local_per_s: Vec<Vec<f64>>,
    pub(crate) true_us: Vec<Vec<f64>>,
    pub(crate) estimated_us: Vec<Vec<f64>>,
    /// Requests of each web server.
    pub(crate) totals: Vec<f64>,
    /// Of one connection manager.
    pub(crate) offers_sent_per_s: f64,
    pub(crate) offers_received_per_s: f64,
    /// Share of its time for offers.
    pub(crate) offer_share: f64,
    pub(crate) take_backs: u64,
    /// Share of the connections that went to another manager's acceptor.
    pub(crate) remote_share: f64,
}

impl ServiceOutcome {
    /// A percentile of the service times, 0 to 100.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        let last = self.service_us.len().saturating_sub(1);
        let index = (last as f64 * percent / 100.0).round() as usize;
        self.service_us.get(index).copied().unwrap_or(0.0)
    }
}
