//! Frames that others have read for a shard; those of other shards are given away.

use std::os::fd::BorrowedFd;

use megapipe_link::{FrameCounters, LinkError};
use megapipe_shm::Sleeper;
use megapipe_stack::{Handover, Received};

use super::{FrameSink, MuxShared};
use crate::frame_ring::FrameReceiver;
use crate::steering::{
    self, Classified, NOTHING, Note, PAST, REFUSED, RETURNED, SteeringKey, Transport,
};

const DRIVER: &str = "switch";

/// What comes over one queue for a shard.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) frames: FrameReceiver,
    pub(super) bell: Sleeper,
}

/// What comes over all queues for a shard.
#[derive(Debug)]
pub(super) struct Inboxes {
    by_queue: Vec<Inbox>,
    /// By queue: so many frames of its ring may have been steered here before this shard stopped to
    /// listen somewhere.
    stale: Box<[usize]>,
    /// The queue whose frames are taken first.
    first: usize,
}

/// How a shard gives frames away that are not its own.
pub(super) trait GivesAway {
    /// Passes a frame of a flow that the shard does not know on to one that had it before, or after
    /// the last of them back to the one that has it now. `index`: the queue over which it came.
    /// `false`: the one that has it now is this shard.
    fn pass_on(&mut self, index: usize, frame: (&[u8], Received, Note), ends: &SteeringKey)
    -> bool;

    /// Steers a frame by the listeners of now: to another shard, or to `taker`.
    fn steer_again(&mut self, index: usize, frame: (&[u8], Received), taker: &mut dyn FrameSink);
}

impl Inboxes {
    pub(super) fn new(by_queue: Vec<Inbox>) -> Self {
        Self { stale: vec![0; by_queue.len()].into(), by_queue, first: 0 }
    }

    /// What is readable when a doorbell was rung, by queue.
    pub(super) fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.by_queue.iter().map(|inbox| inbox.bell.fd())
    }

    /// The shard has stopped to listen somewhere. What was steered by the table of before is in the
    /// rings by now.
    pub(super) fn steer_again(&mut self) {
        for (inbox, stale) in self.by_queue.iter_mut().zip(&mut self.stale) {
            // A ring that is broken is found by the next look.
            *stale = inbox.frames.waiting().unwrap_or(0);
        }
    }

    /// Asks to be woken. Look for frames afterwards.
    pub(super) fn arm(&self) {
        self.by_queue.iter().for_each(|inbox| inbox.bell.arm());
    }

    /// Takes the wish back, and clears rings that came.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub(super) fn disarm(&self) -> Result<(), LinkError> {
        for inbox in &self.by_queue {
            inbox.bell.disarm();
            inbox.bell.clear().map_err(|_| broken())?;
        }
        Ok(())
    }

    /// Frames wait.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub(super) fn has_frames(&mut self) -> Result<bool, LinkError> {
        for inbox in &mut self.by_queue {
            if inbox.frames.has_frames().map_err(|_| broken())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes at most `max` of the frames that wait, each time from another queue first. How many.
    ///
    /// # Errors
    /// [`LinkError::Gone`].
    pub(super) fn take_in(
        &mut self,
        at: (&MuxShared, u16),
        max: usize,
        away: &mut dyn GivesAway,
        taker: &mut Counted<'_>,
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        let queues = self.by_queue.len();
        self.first = (self.first + 1) % queues.max(1);
        for index in (self.first..queues).chain(0..self.first) {
            let stale = &mut self.stale[index];
            let frames = &mut self.by_queue[index].frames;
            let taken = frames.receive(max - count, |frame, received, note| {
                let is_stale = *stale > 0;
                *stale = stale.saturating_sub(1);
                match note {
                    NOTHING if !is_stale => taker.on_frame(frame, received),
                    REFUSED => taker.refuse(frame, received),
                    _ => UnsureFrame { index, frame, received, note, is_stale }
                        .take_or_give_away(at, away, taker),
                }
            });
            count += taken.map_err(|_| broken())?;
        }
        Ok(count)
    }
}

/// A frame that may be another shard's.
struct UnsureFrame<'a> {
    /// The queue over which it came.
    index: usize,
    frame: &'a [u8],
    received: Received,
    note: Note,
    /// It was steered here before the shard stopped to listen somewhere.
    is_stale: bool,
}

impl UnsureFrame<'_> {
    #[cold]
    fn take_or_give_away(
        &self,
        (shared, shard): (&MuxShared, u16),
        away: &mut dyn GivesAway,
        taker: &mut Counted<'_>,
    ) {
        let &UnsureFrame { index, frame, received, note, is_stale } = self;
        let Classified::Flow { transport: Transport::Tcp, ends, begins } =
            steering::classify(shared.medium, frame)
        else {
            return taker.on_frame(frame, received);
        };
        if !shared.knows(shard, &ends, taker) {
            if begins && is_stale {
                return away.steer_again(index, (frame, received), taker);
            }
            let note = if is_stale && matches!(note, NOTHING | RETURNED) { PAST } else { note };
            if !begins {
                if note == RETURNED || !away.pass_on(index, (frame, received, note), &ends) {
                    shared.take_unknown(frame, received, taker);
                }
                return;
            }
        }
        taker.on_frame(frame, received);
    }
}

/// The other end of a ring or doorbell is broken.
pub(super) fn broken() -> LinkError {
    LinkError::Gone { driver: DRIVER }
}

/// Counts what a taker takes.
pub(super) struct Counted<'a> {
    pub(super) taker: &'a mut dyn FrameSink,
    pub(super) counters: &'a mut FrameCounters,
}

impl FrameSink for Counted<'_> {
    fn knows(&self, ends: &SteeringKey) -> bool {
        self.taker.knows(ends)
    }

    #[inline]
    fn on_frame(&mut self, frame: &[u8], received: Received) {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        self.taker.on_frame(frame, received);
    }

    #[cold]
    fn on_stray(&mut self, frame: &[u8], received: Received) {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        self.taker.on_stray(frame, received);
    }

    #[cold]
    fn refuse(&mut self, frame: &[u8], received: Received) {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += frame.len() as u64;
        self.taker.refuse(frame, received);
    }

    fn on_handover(&mut self, handover: Handover) {
        self.taker.on_handover(handover);
    }
}
