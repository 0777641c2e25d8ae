//! Answers to segments that no connection stands behind: RSTs, the ACKs of TIME-WAIT, SYN cookies.
//!
//! Read first: RFC 9293 §3.5.2 (reset generation), §3.10.7.1.
//!
//! Invariant: there is room for [`REPLIES_MAX`] of them; what does not fit is not answered. A peer
//! who sends faster than we can answer gets fewer answers, not more memory.

use alloc::collections::VecDeque;

use super::segment::Segment;
use crate::flow_table::Flow;
use crate::limits::REPLIES_MAX;
use crate::seq::SeqNum;
use crate::wire::tcp::{Flags, Options};

/// A segment without payload, ready to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reply {
    pub(crate) flow: Flow,
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) options: Options,
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
        Some(Self { flow: segment.flow, seq, ack, flags, window: 0, options })
    }

    /// An ACK. `window` is not scaled any more.
    pub(crate) const fn ack(
        flow: Flow,
        (seq, ack): (SeqNum, SeqNum),
        window: u16,
        options: Options,
    ) -> Self {
        Self { flow, seq, ack, flags: Flags::ACK, window, options }
    }
}

/// Those that wait to be sent.
#[derive(Debug)]
pub(crate) struct Replies {
    queue: VecDeque<Reply>,
}

impl Replies {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::with_capacity(REPLIES_MAX) }
    }

    /// Queues `reply`; `false`: there is no room.
    pub(crate) fn push(&mut self, reply: Reply) -> bool {
        let fits = self.queue.len() < REPLIES_MAX;
        if fits {
            self.queue.push_back(reply);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Reply> {
        self.queue.pop_front()
    }
}
