//! Connections and answers that wait for their next hop, or for a route.
//!
//! Read first: `output.rs`; RFC 1122 §2.3.2.2 (packets are saved while a neighbour is asked for).
//!
//! Invariant: what is parked is on the list `PARKED`, or among the parked answers of the control
//! queue, until its next hop is decided or the routes change.

use super::*;
use crate::tcp::PARKED;
use crate::tcp::control_queue::Parked;
use crate::tcp::dirty_list::mark_dirty;

/// R2 of data at least (SHLD-11).
const R2_MIN: Duration = Duration::from_secs(100);

impl Tcp {
    /// Parks a connection whose next hop is unresolved, or that has no route.
    pub(super) fn park<M: Memory>(&mut self, context: &mut Context<'_, M>, index: u32) {
        self.connections[index as usize].flags.set(ConnFlags::PARKED);
        self.schedule(context, index);
    }

    /// Routes changed: all that wait for a next hop try again.
    #[inline(never)]
    pub(super) fn unpark<M>(&mut self, context: &mut Context<'_, M>) {
        self.unpark_replies(context, |_| Parked::Goes);
        while let Some(entry) = self.shard.transmit.pop(PARKED) {
            if entry < self.half_open_from {
                let conn = &mut self.connections[entry as usize];
                conn.flags.clear(ConnFlags::PARKED);
                mark_dirty(conn, &mut self.shard, entry);
            } else {
                self.shard.transmit.put(CONTROL, entry);
            }
        }
    }

    fn unpark_replies<M>(
        &mut self,
        context: &mut Context<'_, M>,
        becomes: impl FnMut(&Reply) -> Parked,
    ) {
        let lost = self.shard.control_queue.unpark(becomes);
        (0..lost).for_each(|_| context.base.counters.drop(Drop::NextHopUnresolved));
    }

    /// Retries all parked connections after a next hop was resolved or failed; those that wait for
    /// another next hop are parked again.
    pub(crate) fn on_neighbour<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        neighbour: IpAddr,
        resolved: bool,
    ) {
        let ip = &context.base.ip;
        let lost = self.shard.control_queue.unpark(|reply| {
            match (ip.via(reply.flow.remote.ip()) == Some(neighbour), resolved) {
                (true, true) => Parked::Goes,
                (true, false) => Parked::Lost,
                (false, _) => Parked::Waits,
            }
        });
        (0..lost).for_each(|_| context.base.counters.drop(Drop::NextHopUnresolved));
        while let Some(entry) = self.shard.transmit.pop(PARKED) {
            let lost = |dst| !resolved && context.base.ip.via(dst) == Some(neighbour);
            if let Some(half_open) = entry.checked_sub(self.half_open_from) {
                if lost(self.half_open.get(half_open).flow.remote.ip()) {
                    self.forget_half_open(half_open);
                } else {
                    self.shard.transmit.put(CONTROL, entry);
                }
                continue;
            }
            let conn = &mut self.connections[entry as usize];
            conn.flags.clear(ConnFlags::PARKED);
            // Who spoke to us a while ago may come back (SHLD-11); who never did is not there.
            let silent = conn.cold.timers.silence(context.now) > R2_MIN;
            if lost(conn.ends.remote()) && (silent || !conn.state.is_synchronized()) {
                self.end(context, entry, Input::GiveUp(CloseReason::HostUnreachable));
            } else {
                self.schedule(context, entry);
            }
        }
    }
}
