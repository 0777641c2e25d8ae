//! Web servers of the simulated service.
//!
//! A web server dispatches like a program on a channel: it takes all its mail, claims what is
//! offered, and serves one request. Then it dispatches again.
//!
//! Pure.

use super::{
    super::clock::{Time, picoseconds},
    ConnectionDistribution,
    engine::{CoreJob, Mail, ServiceRun},
};
use megapipe_service::hand_over::Availability;

impl ServiceRun<'_> {
    pub(super) fn on_application_mail(&mut self, index: usize, mail: Mail, job: &mut CoreJob) {
        match mail {
            Mail::Available(Availability { conn, acceptor, is_final }) => {
                if is_final {
                    self.applications[index].ready.push_back(conn.id as u32);
                } else {
                    let to = self.transports[usize::from(conn.transport)].core;
                    self.post(job, to, Mail::Claim(conn, acceptor));
                }
            }
            Mail::Confirmed(conn) | Mail::Requested(conn) => {
                self.applications[index].ready.push_back(conn);
            }
            Mail::Late(name) if self.applications[index].lost != Some(name) => {
                self.applications[index].lost = Some(name);
                let to = self.managers[self.applications[index].home].core;
                self.post(job, to, Mail::EnlistAgain(name));
            }
            _ => {}
        }
    }

    /// Serves one request. Returns whether there is more to do.
    pub(super) fn run_application(&mut self, index: usize, job: &mut CoreJob) -> bool {
        let mut next = self.applications[index].ready.pop_front();
        if next.is_none() && self.world.distribution == ConnectionDistribution::SharedQueue {
            next = self.shared.pop_front();
            if let Some(conn) = next {
                job.spend(self.costs.take_ns);
                self.open[conn as usize].application = index;
            }
        }
        let Some(conn) = next else { return false };
        let is_kept = self.world.requests.is_none();
        let program = if is_kept { self.costs.kept_program_ns } else { self.costs.program_ns };
        job.at += picoseconds(program) + self.world.work + self.added_work(index, job.at);
        let to = self.transports[usize::from(self.open[conn as usize].name.transport)].core;
        self.post(job, to, Mail::Respond(conn));
        !self.applications[index].ready.is_empty() || !self.shared.is_empty()
    }

    fn added_work(&self, index: usize, at: Time) -> Time {
        let slow = self.world.slowness.iter();
        let now = slow.filter(|it| it.application == index && (it.from..it.until).contains(&at));
        now.map(|it| it.added).sum()
    }
}
