//! The loop of the simulated service: takes events in their order and calls what they are for.
//!
//! Pure.

use super::{
    super::clock::{PS_PER_SECOND, Time, picoseconds},
    Clients, ConnectionDistribution, ServiceCosts, ServiceOutcome, ServiceWorld,
    engine::{CoreJob, Mail, ServiceEvent, ServiceRun},
};
use megapipe_service::balancer::OfferRule;

/// Runs a simulation to its end.
pub(super) fn run(costs: &ServiceCosts, world: &ServiceWorld) -> ServiceOutcome {
    let mut run = ServiceRun::new(costs, world);
    run.begin();
    run.finish()
}

impl ServiceRun<'_> {
    /// Web servers enlist, and the first connections are scheduled.
    fn begin(&mut self) {
        if matches!(self.world.distribution, ConnectionDistribution::Balanced(_)) {
            self.enlist_all();
        }
        match self.world.clients {
            Clients::Closed(count) => {
                for client in 0..count {
                    let at = self.chance.u64(0..=self.client_time());
                    self.clock.schedule(at, ServiceEvent::Begin { client });
                }
            }
            Clients::Open(_) => self.clock.schedule(0, ServiceEvent::Arrival),
        }
        if self.world.offer_rule == OfferRule::Always {
            for manager in 0..self.managers.len() {
                let at = picoseconds(1_000.0 * manager as f64);
                self.clock.schedule(at, ServiceEvent::Offers { manager });
            }
        }
        self.clock.schedule(self.world.bin, ServiceEvent::Bin);
    }

    fn finish(mut self) -> ServiceOutcome {
        while let Some(event) = self.clock.next() {
            if self.clock.now() >= self.world.duration {
                break;
            }
            self.on_event(event);
        }
        self.tally.take_backs =
            self.transports.iter().map(|seat| seat.table.counters().take_backs).sum();
        self.tally.outcome(self.world)
    }

    fn on_event(&mut self, event: ServiceEvent) {
        let now = self.clock.now();
        match event {
            ServiceEvent::Delivered { core, mail } => self.deliver(core, mail),
            ServiceEvent::Work { core } => self.work(core),
            ServiceEvent::Sent { conn, segment } => {
                let link = self.link_of(conn);
                self.deliver(link, Mail::Frames(conn, segment));
            }
            ServiceEvent::Begin { client } => self.connect(Some(client)),
            ServiceEvent::Arrival => {
                self.connect(None);
                if let Clients::Open(per_s) = self.world.clients {
                    let gap = PS_PER_SECOND / f64::from(per_s.max(1));
                    self.clock.schedule(now + gap as Time, ServiceEvent::Arrival);
                }
            }
            ServiceEvent::Claims { transport } => self.on_claims_due(transport),
            ServiceEvent::Offers { manager } => self.on_offers_due(manager),
            ServiceEvent::Bin => {
                self.sample_estimates();
                self.clock.schedule(now + self.world.bin, ServiceEvent::Bin);
            }
        }
    }

    fn work(&mut self, core: usize) {
        let at = self.clock.now().max(self.cores[core].busy_until);
        let mut job = CoreJob { core, at };
        self.cores[core].is_scheduled = false;
        let has_more = match core.checked_sub(self.roles.len()) {
            Some(application) => {
                while let Some(mail) = self.cores[core].inbox.pop_front() {
                    job.spend(self.costs.take_ns);
                    self.on_application_mail(application, mail, &mut job);
                }
                self.run_application(application, &mut job)
            }
            None => {
                if let Some(mail) = self.cores[core].inbox.pop_front() {
                    if mail.is_message() {
                        self.take_message(&mail, &mut job);
                    }
                    self.on_server_mail(mail, &mut job);
                }
                self.publish_offers(&mut job);
                !self.cores[core].inbox.is_empty()
            }
        };
        self.cores[core].busy_until = job.at;
        if has_more {
            self.schedule_work(core, job.at);
        }
    }
}
