//! Which of the threads that wait leads, and who looks after the channel while none does.
//!
//! Read first: `shared_context.rs`; decision 0062. Pure: times are given.
//!
//! A thread that leads and has what it waited for is likely to wait again soon: a server's worker,
//! between two batches. It keeps the lead meanwhile, and its calls drive the channel. One of the
//! threads that wait, the *deputy*, sleeps in short pieces then, and leads if no call has polled
//! the channel for long. A thread that works long between its waits gives the lead to the next one
//! at once.
//!
//! The lead follows the load: a thread that made many calls while another led asks for the lead
//! when it waits.
//!
//! Invariants
//! - At most one thread leads, and at most one is the deputy; the leader is never the deputy.
//! - A thread asks for the lead only after [`CALLS_PER_MOVE`] calls that were not the leader's, so
//!   the lead moves at most once in so many calls.

use std::time::Duration;

use crate::limits::{CALLS_PER_MOVE, NIL, SHORT_WORK_MAX, VACANCY_MAX};

/// A thread, by a number that no other thread has.
pub(crate) type ThreadMark = usize;

/// The leader in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The sleeper; of a thread that drives from outside, no sleeper.
    pub(crate) sleeper: u32,
    pub(crate) thread: ThreadMark,
    /// Until when it sleeps, if nothing happens; `None`: for ever.
    pub(crate) until: Option<Duration>,
}

/// What a thread that waits does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeadPart {
    /// It sleeps in the kernel, for all.
    Leads,
    /// It sleeps until it is woken, or for so long.
    Follows(Option<Duration>),
}

/// What a call that is done has to see to, where no thread leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Succession {
    /// Nothing: the calls drive the channel, and a deputy looks after it.
    Kept,
    /// A sleeper becomes the deputy.
    Deputy,
    /// A sleeper leads, this one if it still sleeps.
    Leads(Option<u32>),
}

/// Who leads. Sleepers are named by their places in the context's table.
#[derive(Debug, Default)]
pub(crate) struct Lead {
    leader: Option<Leader>,
    /// Calls that ended while the same thread led.
    calls_beside: u32,
    /// Number of sleeps in the kernel so far.
    leads: u32,
    /// Asked for the lead.
    successor: Option<u32>,
    deputy: Option<Deputy>,
    /// The thread whose wait ended last, and when.
    returned: Option<(ThreadMark, Duration)>,
    /// A thread worked long before it waited again.
    works_long: bool,
}

#[derive(Debug, Clone, Copy)]
struct Deputy {
    sleeper: u32,
    /// The sleeps in the kernel when it last looked.
    leads: u32,
}

impl Lead {
    pub(crate) const fn leader(&self) -> Option<Leader> {
        self.leader
    }

    /// A sleeper is about to sleep in the kernel. Returns whom it replaces: a sleep of the same
    /// thread, beneath the signal handler that makes this call.
    pub(crate) fn begin(&mut self, leader: Leader) -> Option<Leader> {
        let beneath = self.leader.replace(leader);
        if self.deputy.is_some_and(|it| it.sleeper == leader.sleeper) {
            self.deputy = None;
        }
        if self.successor == Some(leader.sleeper) {
            self.successor = None;
        }
        self.leads = self.leads.wrapping_add(1);
        beneath
    }

    /// The leader is back; `beneath` leads again, if there is one.
    pub(crate) const fn end(&mut self, beneath: Option<Leader>) {
        self.leader = beneath;
    }

    /// Shortens the leader's sleep.
    pub(crate) const fn shorten(&mut self, until: Duration) {
        if let Some(leader) = &mut self.leader {
            leader.until = Some(until);
        }
    }

    /// A call of a thread has ended.
    pub(crate) const fn note_call(&mut self) {
        if self.leader.is_some() {
            self.calls_beside = self.calls_beside.saturating_add(1);
        }
    }

    /// A thread begins to wait.
    pub(crate) fn note_wait(&mut self, thread: ThreadMark, now: Duration) {
        if let Some((returned, at)) = self.returned
            && returned == thread
        {
            self.works_long = now.saturating_sub(at) > SHORT_WORK_MAX;
        }
    }

    /// A sleeper's call has what it waited for, in a poll at `polled_at`.
    pub(crate) fn note_return(&mut self, sleeper: u32, thread: ThreadMark, polled_at: Duration) {
        self.returned = Some((thread, polled_at));
        if self.deputy.is_some_and(|it| it.sleeper == sleeper) {
            self.deputy = None;
        }
        if self.successor == Some(sleeper) {
            self.successor = None;
        }
        if self.leader.is_some_and(|it| it.sleeper == sleeper) {
            self.leader = None;
        }
        if self.leader.is_none() {
            self.calls_beside = 0;
        }
    }

    /// What a sleeper does that has nothing yet; `age` is that of the channel's last poll.
    pub(crate) fn part_of(
        &self,
        sleeper: u32,
        thread: ThreadMark,
        age: impl FnOnce() -> Duration,
    ) -> LeadPart {
        let is_deputy = self.deputy.is_some_and(|it| it.sleeper == sleeper);
        let tick = is_deputy.then_some(VACANCY_MAX);
        if let Some(leader) = self.leader {
            // A leader of this thread is beneath the signal handler that makes the call, and sleeps
            // on when that has returned.
            let is_led = leader.sleeper != sleeper && leader.thread != thread;
            return if is_led { LeadPart::Follows(tick) } else { LeadPart::Leads };
        }
        let is_asked = self.successor.is_some_and(|successor| successor != sleeper);
        let is_minded = is_deputy && age() < VACANCY_MAX;
        if is_asked || is_minded { LeadPart::Follows(tick) } else { LeadPart::Leads }
    }

    /// A sleeper follows, and asks for the lead if its thread makes the calls. Returns whether the
    /// leader has to be told.
    pub(crate) fn asks(&mut self, sleeper: u32) -> bool {
        let asks = self.leader.is_some_and(|it| it.sleeper != NIL)
            && self.successor.is_none()
            && !self.works_long
            && self.calls_beside >= CALLS_PER_MOVE;
        if asks {
            self.successor = Some(sleeper);
            self.calls_beside = 0;
        }
        asks
    }

    /// No thread leads, and a sleeper has nothing: it gives the lead to the sleeper that asked for
    /// it, and is the deputy.
    pub(crate) fn give_up(&mut self, sleeper: u32) -> Option<u32> {
        if self.leader.is_some() {
            return None;
        }
        let successor = self.successor.filter(|successor| *successor != sleeper)?;
        self.appoint(sleeper);
        Some(successor)
    }

    /// A sleeper is the deputy from now on.
    pub(crate) const fn appoint(&mut self, sleeper: u32) {
        self.deputy = Some(Deputy { sleeper, leads: self.leads });
    }

    /// The deputy has slept for a while. It is no longer needed where the same sleep in the kernel
    /// lasts that it saw before: the next call that returns from its wait appoints one.
    pub(crate) fn look(&mut self, sleeper: u32) {
        let Some(deputy) = &mut self.deputy else { return };
        if deputy.sleeper != sleeper {
            return;
        }
        if self.leader.is_some() && deputy.leads == self.leads {
            self.deputy = None;
        } else {
            deputy.leads = self.leads;
        }
    }

    /// What follows from the end of a call, where no thread leads and some sleep.
    pub(crate) const fn succession(&self) -> Succession {
        if self.successor.is_some() || self.works_long {
            return Succession::Leads(self.successor);
        }
        if self.deputy.is_some() { Succession::Kept } else { Succession::Deputy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread that accepts, and waits for most of the time.
    const IDLE: u32 = 0;
    /// The thread that makes most calls.
    const BUSY: u32 = 1;
    const MILLISECOND: Duration = Duration::from_millis(1);

    fn thread_of(sleeper: u32) -> ThreadMark {
        100 + sleeper as usize
    }

    fn leader(sleeper: u32) -> Leader {
        Leader { sleeper, thread: thread_of(sleeper), until: None }
    }

    fn part(lead: &Lead, sleeper: u32, age: Duration) -> LeadPart {
        lead.part_of(sleeper, thread_of(sleeper), || age)
    }

    /// A sleeper leads, and its call returns with what the poll at `at` brought.
    fn leads_and_returns(lead: &mut Lead, sleeper: u32, at: Duration) {
        assert_eq!(lead.begin(leader(sleeper)), None);
        lead.end(None);
        lead.note_return(sleeper, thread_of(sleeper), at);
    }

    #[test]
    fn thread_that_works_shortly_keeps_the_lead() {
        let mut lead = Lead::default();
        for batch in 1..10 {
            let now = MILLISECOND * batch;
            lead.note_wait(thread_of(BUSY), now);
            assert_eq!(part(&lead, BUSY, Duration::ZERO), LeadPart::Leads);
            leads_and_returns(&mut lead, BUSY, now + MILLISECOND - SHORT_WORK_MAX);
            if batch == 1 {
                assert_eq!(lead.succession(), Succession::Deputy);
                lead.appoint(IDLE);
            }
            assert_eq!(lead.succession(), Succession::Kept);
            assert_eq!(part(&lead, IDLE, Duration::ZERO), LeadPart::Follows(Some(VACANCY_MAX)));
            lead.look(IDLE);
        }
    }

    #[test]
    fn deputy_leads_where_no_call_has_polled() {
        let mut lead = Lead::default();
        leads_and_returns(&mut lead, BUSY, MILLISECOND);
        lead.appoint(IDLE);
        assert_eq!(part(&lead, IDLE, VACANCY_MAX), LeadPart::Leads);
        assert_eq!(lead.begin(leader(IDLE)), None);
        assert_eq!(part(&lead, BUSY, Duration::ZERO), LeadPart::Follows(None));
    }

    #[test]
    fn thread_that_works_long_gives_the_lead_to_the_next() {
        let mut lead = Lead::default();
        leads_and_returns(&mut lead, BUSY, MILLISECOND);
        lead.note_wait(thread_of(BUSY), MILLISECOND + SHORT_WORK_MAX * 2);
        leads_and_returns(&mut lead, BUSY, MILLISECOND * 3);
        assert_eq!(lead.succession(), Succession::Leads(None));
        lead.note_wait(thread_of(BUSY), MILLISECOND * 3);
        assert_eq!(lead.succession(), Succession::Deputy);
    }

    #[test]
    fn lead_moves_to_the_thread_that_makes_the_calls() {
        let mut lead = Lead::default();
        assert_eq!(lead.begin(leader(IDLE)), None);
        for _ in 0..CALLS_PER_MOVE {
            assert!(!lead.asks(BUSY));
            lead.note_call();
        }
        assert!(lead.asks(BUSY) && !lead.asks(BUSY), "one request is enough");
        // The leader comes back, and gives up.
        lead.end(None);
        assert_eq!(lead.give_up(IDLE), Some(BUSY));
        assert_eq!(part(&lead, IDLE, VACANCY_MAX), LeadPart::Follows(Some(VACANCY_MAX)));
        assert_eq!(part(&lead, BUSY, Duration::ZERO), LeadPart::Leads);
        assert_eq!(lead.begin(leader(BUSY)), None);
        assert_eq!((lead.give_up(BUSY), lead.give_up(IDLE)), (None, None), "it leads");
    }

    #[test]
    fn thread_that_asked_and_has_what_it_wanted_asks_no_more() {
        let mut lead = Lead::default();
        assert_eq!(lead.begin(leader(IDLE)), None);
        (0..CALLS_PER_MOVE).for_each(|_| lead.note_call());
        assert!(lead.asks(BUSY));
        lead.note_return(BUSY, thread_of(BUSY), MILLISECOND);
        lead.end(None);
        assert_eq!(lead.give_up(IDLE), None);
        assert_eq!(part(&lead, IDLE, Duration::ZERO), LeadPart::Leads);
    }

    #[test]
    fn deputy_rests_while_a_sleep_in_the_kernel_lasts() {
        let mut lead = Lead::default();
        leads_and_returns(&mut lead, BUSY, MILLISECOND);
        lead.appoint(IDLE);
        assert_eq!(lead.begin(leader(BUSY)), None);
        lead.look(IDLE);
        assert_eq!(part(&lead, IDLE, Duration::ZERO), LeadPart::Follows(Some(VACANCY_MAX)));
        lead.look(IDLE);
        assert_eq!(part(&lead, IDLE, Duration::ZERO), LeadPart::Follows(None));
        lead.end(None);
        lead.note_return(BUSY, thread_of(BUSY), MILLISECOND);
        assert_eq!(lead.succession(), Succession::Deputy);
    }

    #[test]
    fn call_of_a_handler_leads_in_place_of_the_sleep_beneath_it() {
        let mut lead = Lead::default();
        assert_eq!(lead.begin(leader(IDLE)), None);
        // The handler's call sleeps in the same thread.
        let above = Leader { sleeper: 7, ..leader(IDLE) };
        assert_eq!(lead.part_of(7, thread_of(IDLE), || Duration::ZERO), LeadPart::Leads);
        let beneath = lead.begin(above);
        assert_eq!(beneath, Some(leader(IDLE)));
        lead.end(beneath);
        lead.note_return(7, thread_of(IDLE), MILLISECOND);
        assert_eq!(lead.leader(), Some(leader(IDLE)));
    }
}
