//! Answers that are ready to go: to segments that no connection stands behind (RSTs, the ACKs of
//! TIME-WAIT, SYN cookies), and ACKs that say how things were before the next segment came.
//!
//! Read first: RFC 9293 §3.5.2 (reset generation), §3.10.7.1; RFC 1122 §2.3.2.2 for those whose
//! next hop is still being asked for.
//!
//! Invariants
//! - There is room for [`REPLIES_MAX`] answers, and for [`REPLIES_PARKED_MAX`] that wait for a next
//!   hop; what does not fit is not answered. A peer who sends faster than we can answer gets fewer
//!   answers, not more memory.
//! - The RST of a connection that we abort is no answer: it may have to wait as long as the link
//!   takes nothing, and is kept until it has left. A peer that never saw it would refuse the next
//!   connection of this flow. There is room for one of each connection that there may be.

use alloc::collections::VecDeque;

use super::segment::Segment;
use crate::flow_table::Flow;
use crate::ip::Service;
use crate::limits::{ACKS_AHEAD_MAX, REPLIES_MAX, REPLIES_PARKED_MAX};
use crate::seq::SeqNum;
use crate::wire::tcp::{Flags, Options, Timestamps};

/// A segment without payload, ready to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) flow: Flow,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Options,
    pub(crate) service: Service,
}

/// The RST of a connection that we ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reset {
    pub(crate) flow: Flow,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) times: Option<Timestamps>,
    pub(crate) service: Service,
}

impl Reset {
    /// The same as one of the answers.
    pub(crate) fn reply(&self) -> Reply {
        let Self { flow, seq, ack, times, service } = *self;
        let options = Options { timestamps: times, ..Options::default() };
        Reply { flow, seq, ack, flags: Flags::RST | Flags::ACK, window: 0, options, service }
    }
}

/// Result for a parked reply when a next hop is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parked {
    /// The way is known, or may be: it is tried again.
    Goes,
    /// It waits for another next hop.
    Waits,
    /// Its next hop could not be resolved.
    Lost,
}

impl Reply {
    /// The RST that answers `segment` (RFC 9293 §3.10.7.1). `None`: nothing answers a RST.
    pub(crate) fn reset(segment: &Segment<'_>) -> Option<Self> {
        if segment.has(Flags::RST) {
            return None;
        }
        let (seq, ack, flags) = if segment.has(Flags::ACK) {
            (segment.ack, SeqNum(0), Flags::RST)
        } else {
            (SeqNum(0), segment.end(), Flags::RST | Flags::ACK)
        };
        let options = Options::default();
        let service = Service::default();
        Some(Self { flow: segment.flow, seq, ack, flags, window: 0, options, service })
    }

    /// An ACK. `window` is not scaled any more.
    pub(crate) fn ack(
        flow: Flow,
        (seq, ack): (SeqNum, SeqNum),
        window: u16,
        options: Options,
    ) -> Self {
        let service = Service::default();
        Self { flow, seq, ack, flags: Flags::ACK, window, options, service }
    }
}

/// Those that wait to be sent.
#[derive(Debug)]
pub(crate) struct ControlQueue {
    /// RSTs of connections that we ended.
    resets: VecDeque<Reset>,
    queue: VecDeque<Reply>,
    /// Those whose next hop is being asked for, the oldest first.
    parked: VecDeque<Reply>,
}

impl ControlQueue {
    /// `connections`: how many there may be.
    pub(crate) fn new(connections: u32) -> Self {
        Self {
            resets: VecDeque::with_capacity(connections as usize),
            queue: VecDeque::with_capacity(REPLIES_MAX),
            parked: VecDeque::with_capacity(REPLIES_PARKED_MAX),
        }
    }

    /// One more ACK of a connection may be queued ahead of everything that waits on lists.
    pub(crate) fn takes_acks(&self) -> bool {
        self.queue.len() < ACKS_AHEAD_MAX
    }

    /// Queues the RST of a connection that we ended; `false`: there is no room.
    #[inline]
    pub(crate) fn push_reset(&mut self, reset: Reset) -> bool {
        let fits = self.resets.len() < self.resets.capacity();
        if fits {
            self.resets.push_back(reset);
        }
        fits
    }

    /// Queues `reply`; `false`: there is no room.
    pub(crate) fn push(&mut self, reply: Reply) -> bool {
        let fits = self.queue.len() < REPLIES_MAX;
        if fits {
            self.queue.push_back(reply);
        }
        fits
    }

    /// Whether nothing waits to leave, but for what is parked.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.resets.is_empty()
    }

    /// The next answer.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Reply> {
        take(&mut self.queue)
    }

    /// The next RST of a connection that we ended: to be asked for when there are no answers.
    #[inline]
    pub(crate) fn pop_reset(&mut self) -> Option<Reset> {
        take(&mut self.resets)
    }

    /// Keeps `reply` until its next hop is known. `true`: the oldest had to make room, so that a
    /// flood from hosts that do not exist cannot keep out one that does.
    pub(crate) fn park(&mut self, reply: Reply) -> bool {
        let full = self.parked.len() == REPLIES_PARKED_MAX;
        if full {
            self.parked.pop_front();
        }
        self.parked.push_back(reply);
        full
    }

    /// Re-evaluates each parked reply. Returns the number of dropped ones.
    pub(crate) fn unpark(&mut self, mut becomes: impl FnMut(&Reply) -> Parked) -> usize {
        let mut lost = 0;
        for _ in 0..self.parked.len() {
            let Some(reply) = self.parked.pop_front() else { break };
            match becomes(&reply) {
                Parked::Goes => lost += usize::from(!self.push(reply)),
                Parked::Waits => self.parked.push_back(reply),
                Parked::Lost => lost += 1,
            }
        }
        lost
    }
}

/// Takes the first of a queue. One that is empty then begins at its first place again: only as much
/// of its memory is ever touched as was needed at once.
#[inline]
fn take<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front()?;
    if queue.is_empty() {
        queue.clear();
    }
    Some(first)
}
