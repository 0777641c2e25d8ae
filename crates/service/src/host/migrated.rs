//! Whether the connections that moved are still there: an exception to what is ours lasts no longer
//! than its connection, or the next one between the same ends would go to the wrong side.
//!
//! Read first: `migration.rs`.
//!
//! Invariant: where the kernel does not tell what it has, exceptions stay.

use std::net::SocketAddr;

use megapipe_link::FlowTuple;
use megapipe_link::netlink::SocketDiag;
use megapipe_stack::{Instant, Stack};

use super::Host;
use crate::limits::{MOVED_LOOK_PERIOD, MOVED_LOOKS};
use crate::link_server::LinkServer;
use crate::policy::QuotaCharge;

/// When they were looked at, and how far that got.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Opened when it is needed first; `None` after that: the kernel does not tell.
    sockets: Option<SocketDiag>,
    was_opened: bool,
    looked_at: Option<Instant>,
    /// Where the next look begins among the released flows.
    next: usize,
    /// Flows that moved and count for a user.
    charges: Vec<(FlowTuple, QuotaCharge)>,
}

impl Moved {
    /// The kernel has no such connection any more.
    fn is_gone_from_kernel(&mut self, flow: &FlowTuple) -> bool {
        if !self.was_opened {
            self.was_opened = true;
            self.sockets = SocketDiag::open().ok();
        }
        let Some(sockets) = &mut self.sockets else { return false };
        sockets.has(flow).is_ok_and(|has| !has)
    }
}

impl Host {
    /// A flow that moved counts for a user, as long as it is an exception.
    pub(crate) fn charge_moved(&mut self, flow: FlowTuple, charge: QuotaCharge) {
        self.moved.charges.push((flow, charge));
        self.forget_charges();
    }

    fn forget_charges(&mut self) {
        let (released, taken) = (self.ownership.released(), self.ownership.taken());
        let is_exception = |flow: &FlowTuple| released.contains(flow) || taken.contains(flow);
        self.moved.charges.retain(|(flow, _)| is_exception(flow));
    }

    /// When the connections that moved are looked after next; `None`: there is none.
    pub(crate) fn next_look_after_moved(&self) -> Option<Instant> {
        let is_any = !self.ownership.taken().is_empty() || !self.ownership.released().is_empty();
        is_any.then(|| self.moved.looked_at.map_or(Instant::ZERO, |at| at + MOVED_LOOK_PERIOD))
    }

    /// Forgets those that have ended, if it is time to look.
    pub(crate) fn look_after_moved(&mut self, now: Instant, link: &mut LinkServer, stack: &Stack) {
        if self.next_look_after_moved().is_none_or(|at| now < at) {
            return;
        }
        self.moved.looked_at = Some(now);
        let Self { ownership, moved, .. } = self;
        let ended_here = ownership.taken().iter().filter(|flow| {
            let local = SocketAddr::new(flow.local, flow.local_port);
            !stack.knows(local, SocketAddr::new(flow.remote, flow.remote_port))
        });
        let mut ended: Vec<FlowTuple> = ended_here.copied().collect();
        let released = ownership.released();
        let from = if moved.next < released.len() { moved.next } else { 0 };
        let looked_at = &released[from..released.len().min(from + MOVED_LOOKS)];
        moved.next = from + looked_at.len();
        ended.extend(looked_at.iter().filter(|flow| moved.is_gone_from_kernel(flow)));
        if ended.is_empty() {
            return;
        }
        // If the link refuses, the next look tries again.
        let _ = self.change(link, |ownership| {
            ended.iter().for_each(|flow| ownership.forget(flow));
            Ok(())
        });
        self.forget_charges();
    }
}
