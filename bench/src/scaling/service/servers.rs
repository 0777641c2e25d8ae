//! Link servers, transport servers and connection managers of the simulated service.
//!
//! Components of one server call each other; those of others exchange messages.
//!
//! Pure.

use super::{
    super::clock::{Time, picoseconds},
    ConnectionDistribution,
    engine::{ClientSegment, CoreJob, Mail, ServiceRun},
};
use megapipe_service::{
    AcceptorId, AcceptorName,
    balancer::OfferRule,
    hand_over::{
        AcceptorReport, Assignment, ClaimOutcome, ConnectionName, ManagerMessage, ManagerOutput,
        TransportReport,
    },
    limits::OFFER_INTERVAL_DEFAULT,
};
use megapipe_stack::Instant as VirtualInstant;

impl ServiceRun<'_> {
    /// Every web server is an acceptor before the first connection.
    pub(super) fn enlist_all(&mut self) {
        let mut out = Vec::new();
        for index in 0..self.applications.len() {
            let (id, home) = (AcceptorId(index as u64), self.applications[index].home);
            let now = VirtualInstant::from_nanos(0);
            let queue = &mut self.managers[home].queue;
            queue.enlist(now, id, u32::MAX, 0, &mut out).expect("few acceptors");
            for output in out.drain(..) {
                let ManagerOutput::Publish(message) = output else { continue };
                for other in (0..self.managers.len()).filter(|&other| other != home) {
                    let queue = &mut self.managers[other].queue;
                    queue.on_message(now, message, 0, &mut Vec::new());
                }
            }
        }
    }

    /// A server's work on one piece of mail.
    pub(super) fn on_server_mail(&mut self, mail: Mail, job: &mut CoreJob) {
        match mail {
            Mail::Frames(conn, segment) => self.on_frames(conn, segment, job),
            Mail::Steered(conn, segment) => self.on_segment(conn, segment, job),
            Mail::FramesOut(conn) => {
                job.spend(self.costs.frame_ns);
                self.reach_client(conn, job.at);
            }
            Mail::Transport { report, since } => self.on_transport_report(report, since, job),
            Mail::Acceptor(report) => self.on_acceptor_report(report, job),
            Mail::Manager(message) => self.on_manager_message(message, job),
            Mail::EnlistAgain(lost) => self.on_enlist_again(lost, job),
            Mail::Assigned { assignment, since } => self.on_assigned(assignment, since, job),
            Mail::Claim(conn, claimant) => self.on_claim(conn, claimant, job),
            Mail::Respond(conn) => self.on_respond(conn, job),
            Mail::Available(_) | Mail::Confirmed(_) | Mail::Late(_) | Mail::Requested(_) => {}
        }
    }

    fn transport_of(&self, conn: u32) -> usize {
        usize::from(self.open[conn as usize].name.transport)
    }

    /// Frames at the link server: they stay on its core, or go to the transport server's.
    fn on_frames(&mut self, conn: u32, segment: ClientSegment, job: &mut CoreJob) {
        let core = self.transports[self.transport_of(conn)].core;
        if core == job.core {
            self.on_segment(conn, segment, job);
        } else {
            job.spend(self.costs.frame_ns);
            self.post(job, core, Mail::Steered(conn, segment));
        }
    }

    /// The stack's part is without the link's, where that has a core of its own.
    fn without_link(&self, conn: u32, ns: f64) -> f64 {
        let is_apart = self.link_of(conn) != self.transports[self.transport_of(conn)].core;
        if is_apart { (ns - self.costs.frame_ns).max(0.0) } else { ns }
    }

    fn on_segment(&mut self, conn: u32, segment: ClientSegment, job: &mut CoreJob) {
        let kind = match segment {
            ClientSegment::Syn => self.costs.handshake_ns,
            ClientSegment::Request => self.costs.accept_ns,
            ClientSegment::Next => self.costs.kept_in_ns,
        };
        let ns = self.without_link(conn, kind);
        self.spend_in_stack(job, ns);
        match segment {
            ClientSegment::Syn => self.send_frames(conn, job),
            ClientSegment::Request => self.on_established(conn, job),
            ClientSegment::Next => {
                let to = self.applications[self.open[conn as usize].application].core;
                self.post(job, to, Mail::Requested(conn));
            }
        }
    }

    fn send_frames(&mut self, conn: u32, job: &mut CoreJob) {
        let link = self.link_of(conn);
        if link == job.core {
            self.reach_client(conn, job.at);
        } else {
            self.post(job, link, Mail::FramesOut(conn));
        }
    }

    /// Frames of a connection reach its client: the SYN-ACK, or a response.
    fn reach_client(&mut self, conn: u32, at: Time) {
        let flow = &mut self.open[conn as usize];
        if std::mem::replace(&mut flow.is_answered, true) {
            self.on_response(conn, at);
        } else {
            self.on_handshake(conn, at);
        }
    }

    fn on_established(&mut self, conn: u32, job: &mut CoreJob) {
        let (name, since) = (self.open[conn as usize].name, job.at);
        if self.world.distribution == ConnectionDistribution::SharedQueue {
            job.spend(self.costs.send_ns);
            self.open[conn as usize].offered = job.at;
            self.shared.push_back(conn);
            self.wake_an_application(job.at);
            return;
        }
        job.spend(self.costs.table_ns);
        let report = self.transports[usize::from(name.transport)].table.on_established(name);
        self.report_to_manager(usize::from(name.transport), report, since, job);
    }

    /// A transport server's own manager is the one of its index, or shares one.
    fn report_to_manager(
        &mut self,
        transport: usize,
        report: TransportReport,
        since: Time,
        job: &mut CoreJob,
    ) {
        let core = self.managers[transport % self.managers.len()].core;
        if core == job.core {
            self.on_transport_report(report, since, job);
        } else {
            self.post(job, core, Mail::Transport { report, since });
        }
    }

    fn manager_here(&self, job: &CoreJob) -> usize {
        self.manager_at(job.core).expect("the mail is for a manager")
    }

    fn on_transport_report(&mut self, report: TransportReport, since: Time, job: &mut CoreJob) {
        job.spend(self.costs.pick_ns);
        let (manager, random, mut out) = (self.manager_here(job), self.chance.u64(..), Vec::new());
        self.managers[manager].queue.on_transport(job.now(), report, random, &mut out);
        self.send_outputs(manager, out, since, job);
    }

    fn on_acceptor_report(&mut self, report: AcceptorReport, job: &mut CoreJob) {
        job.spend(self.costs.report_ns);
        let (manager, random, mut out) = (self.manager_here(job), self.chance.u64(..), Vec::new());
        self.managers[manager].queue.on_acceptor(job.now(), report, random, &mut out);
        self.send_outputs(manager, out, job.at, job);
    }

    fn on_manager_message(&mut self, message: ManagerMessage, job: &mut CoreJob) {
        let before = job.at;
        if matches!(message, ManagerMessage::Offer(_)) {
            job.spend(self.costs.offer_take_ns);
            if self.tally.counts(job.at) {
                self.tally.offers_received += 1;
                self.tally.offer_time += job.at - before;
            }
        } else {
            job.spend(self.costs.report_ns);
        }
        let (manager, random, mut out) = (self.manager_here(job), self.chance.u64(..), Vec::new());
        self.managers[manager].queue.on_message(job.now(), message, random, &mut out);
        self.send_outputs(manager, out, job.at, job);
    }

    fn on_enlist_again(&mut self, lost: AcceptorName, job: &mut CoreJob) {
        job.spend(self.costs.report_ns);
        let (manager, random, mut out) = (self.manager_here(job), self.chance.u64(..), Vec::new());
        let queue = &mut self.managers[manager].queue;
        queue.enlist_again(job.now(), lost, u32::MAX, random, &mut out).expect("few acceptors");
        self.send_outputs(manager, out, job.at, job);
    }

    /// `since` is when the connection of an assignment was established, as far as is known.
    fn send_outputs(
        &mut self,
        manager: usize,
        out: Vec<ManagerOutput>,
        since: Time,
        job: &mut CoreJob,
    ) {
        for output in out {
            match output {
                ManagerOutput::Assign(assignment) => {
                    let to = self.transports[usize::from(assignment.conn.transport)].core;
                    if to == job.core {
                        self.on_assigned(assignment, since, job);
                    } else {
                        self.post(job, to, Mail::Assigned { assignment, since });
                    }
                }
                ManagerOutput::Refuse(conn) => {
                    let transport = usize::from(conn.transport);
                    self.transports[transport].table.on_refused(conn);
                    self.on_refused(conn.id as u32, job.at);
                }
                ManagerOutput::Send(message) => {
                    let to = match message {
                        ManagerMessage::Assigned { acceptor, .. }
                        | ManagerMessage::TimedOut(acceptor) => acceptor.manager,
                        ManagerMessage::Returned { lent, .. } => lent.acceptor.manager,
                        ManagerMessage::Request { lender, .. } => lender,
                        _ => continue,
                    };
                    let to = self.managers[usize::from(to.0)].core;
                    self.post(job, to, Mail::Manager(message));
                }
                ManagerOutput::Lend(other, offer) | ManagerOutput::Grant(other, offer) => {
                    let to = self.managers[usize::from(other.0)].core;
                    self.post(job, to, Mail::Manager(ManagerMessage::Offer(offer)));
                }
                ManagerOutput::Publish(message) => {
                    for other in (0..self.managers.len()).filter(|&other| other != manager) {
                        let to = self.managers[other].core;
                        self.post(job, to, Mail::Manager(message));
                    }
                }
            }
        }
    }

    fn on_assigned(&mut self, assignment: Assignment, since: Time, job: &mut CoreJob) {
        job.spend(self.costs.table_ns);
        let Assignment { conn, acceptor, .. } = assignment;
        let transport = usize::from(conn.transport);
        let own = transport % self.managers.len();
        let application = acceptor.id.0 as usize;
        let is_local = usize::from(acceptor.manager.0) == own;
        self.tally.on_assigned(job.at, job.at - since, is_local.then_some(application));
        let flow = &mut self.open[conn.id as usize];
        (flow.offered, flow.application) = (job.at, application);
        let table = &mut self.transports[transport].table;
        if let Ok(available) = table.assign(job.now(), assignment) {
            let to = self.applications[application].core;
            self.post(job, to, Mail::Available(available));
            self.time_claims(transport);
        }
    }

    /// Keeps one event for the next overdue claim.
    fn time_claims(&mut self, transport: usize) {
        let seat = &mut self.transports[transport];
        if seat.is_timed {
            return;
        }
        if let Some(deadline) = seat.table.next_deadline() {
            seat.is_timed = true;
            let at = (deadline.as_nanos() + 1) * 1_000;
            self.schedule_claims(transport, at.max(self.now()));
        }
    }

    pub(super) fn on_claims_due(&mut self, transport: usize) {
        self.transports[transport].is_timed = false;
        let core = self.transports[transport].core;
        self.occupy(core, |run, job| {
            while let Some(report) = run.transports[transport].table.on_time(job.now()) {
                job.spend(run.costs.table_ns);
                run.report_to_manager(transport, report, job.at, job);
            }
        });
        self.time_claims(transport);
    }

    fn on_claim(&mut self, conn: ConnectionName, claimant: AcceptorName, job: &mut CoreJob) {
        job.spend(self.costs.table_ns);
        let table = &mut self.transports[usize::from(conn.transport)].table;
        let to = self.applications[claimant.id.0 as usize].core;
        match table.claim(conn, claimant) {
            ClaimOutcome::Confirmed => self.post(job, to, Mail::Confirmed(conn.id as u32)),
            ClaimOutcome::Late => self.post(job, to, Mail::Late(claimant)),
            ClaimOutcome::Repeated => {}
        }
    }

    /// The web server has answered.
    fn on_respond(&mut self, conn: u32, job: &mut CoreJob) {
        let is_last = self.is_last(conn);
        let kind = if is_last { self.costs.respond_ns } else { self.costs.kept_out_ns };
        let ns = self.without_link(conn, kind);
        self.spend_in_stack(job, ns);
        let flow = self.open[conn as usize];
        self.tally.on_served(job.at, flow.application, job.at.saturating_sub(flow.offered));
        self.send_frames(conn, job);
        if !is_last || self.world.distribution == ConnectionDistribution::SharedQueue {
            return;
        }
        job.spend(self.costs.table_ns);
        let transport = usize::from(flow.name.transport);
        let report = self.transports[transport].table.on_closed(job.now(), flow.name.id);
        if let Some(report) = report {
            let home = usize::from(report.acceptor().manager.0);
            let core = self.managers[home].core;
            if core == job.core {
                self.on_acceptor_report(report, job);
            } else {
                self.post(job, core, Mail::Acceptor(report));
            }
        }
    }

    /// A manager that is awake sends its offer if one is due.
    pub(super) fn publish_offers(&mut self, job: &mut CoreJob) {
        let is_balanced = matches!(self.world.distribution, ConnectionDistribution::Balanced(_));
        if !is_balanced || self.managers.len() < 2 {
            return;
        }
        let Some(manager) = self.manager_at(job.core) else { return };
        let (before, mut out) = (job.at, Vec::new());
        let managers = self.managers.len() as u16;
        self.managers[manager].queue.publish_offer(job.now(), managers, &mut out);
        if out.is_empty() {
            return;
        }
        job.spend(self.costs.offer_ns);
        if self.tally.counts(job.at) {
            self.tally.offers_sent += 1;
            self.tally.offer_time += job.at - before;
        }
        self.send_outputs(manager, out, job.at, job);
    }

    /// The next offer of a manager that sends them unconditionally.
    pub(super) fn on_offers_due(&mut self, manager: usize) {
        if self.world.offer_rule != OfferRule::Always {
            return;
        }
        let core = self.managers[manager].core;
        self.occupy(core, |run, job| run.publish_offers(job));
        let interval = picoseconds(OFFER_INTERVAL_DEFAULT.as_nanos() as f64);
        self.schedule_offers(manager, self.now() + interval);
    }

    pub(super) fn sample_estimates(&mut self) {
        for (index, application) in self.applications.iter().enumerate() {
            let balancer = self.managers[application.home].queue.balancer();
            self.tally.on_estimate(index, balancer.service_time(AcceptorId(index as u64)));
        }
    }
}
