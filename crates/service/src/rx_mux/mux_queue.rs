//! One queue of a link, and the shards that it feeds: reads a burst and steers each frame.

use std::sync::{Arc, Mutex};

use megapipe_link::{Link, LinkError};
use megapipe_shm::Ringer;
use megapipe_stack as stack;
use stack::Received;

use super::{FrameSink, MuxShared, SteeringCounters, lock};
use crate::clock::Clock;
use crate::frame_ring::FrameSender;
use crate::limits::SHARDS_MAX;
use crate::steering::{
    self, BindingTable, Classified, Destination, Fragments, Later, NOTHING, Note, PAST, REFUSED,
    RETURNED, Steering, SteeringKey, Transport,
};

/// The reader is no shard, but a link server apart: no frame is its own.
pub(super) const NO_SHARD: u16 = u16::MAX;
/// Receives from such a reader what each shard can answer. Always the same one, so that the others
/// sleep on.
const ANY_SHARD: u16 = 0;

const _: () = assert!(SHARDS_MAX < NO_SHARD);

/// The way from one queue to one shard.
#[derive(Debug)]
pub(super) struct Feed {
    pub(super) frames: FrameSender,
    pub(super) bell: Ringer,
}

/// A queue, and whom it feeds. Under its lock.
pub(super) struct MuxQueue {
    pub(super) link: Box<dyn Link>,
    pub(super) feeds: Box<[Feed]>,
    /// Shared by the queues over which the fragments of a datagram may come.
    pub(super) fragments: Arc<Mutex<Fragments>>,
    pub(super) table: Arc<BindingTable>,
    /// By the table's rows: a connection has begun by it.
    pub(super) used: Vec<bool>,
    /// By shard: it sleeps.
    pub(super) asleep: Box<[bool]>,
    /// A shard sleeps that the link has to wake.
    pub(super) is_armed: bool,
    pub(super) counters: SteeringCounters,
}

impl MuxQueue {
    /// Reads a burst: frames for `shard` go to `taker`, the others to their shards. How many frames
    /// were read, and how many were the taker's.
    pub(super) fn run(
        &mut self,
        shared: &MuxShared,
        shard: u16,
        max: usize,
        taker: &mut dyn FrameSink,
    ) -> Result<(usize, usize), LinkError> {
        let mut mine = 0;
        let (link, mut burst) = self.burst((shared, shard), &mut mine);
        let read = link.rx_burst(max, &mut |frame, received| {
            let received = stack_received(received);
            burst.steer(frame, received, taker);
        });
        self.deliver();
        Ok((read?, mine))
    }

    /// The link, and what steers its frames.
    pub(super) fn burst<'a>(
        &'a mut self,
        (shared, shard): (&'a MuxShared, u16),
        mine: &'a mut usize,
    ) -> (&'a mut dyn Link, Burst<'a>) {
        let Self { link, feeds, fragments, table, used, counters, .. } = self;
        (&mut **link, Burst { shared, shard, feeds, fragments, table, used, counters, mine })
    }

    /// Rows of the table by which connections have begun.
    pub(super) fn used_rows(&self) -> impl Iterator<Item = usize> {
        self.used.iter().enumerate().filter_map(|(row, used)| used.then_some(row))
    }

    /// Goes by another table from now on.
    pub(super) fn go_by(&mut self, table: &Arc<BindingTable>) {
        self.used.clear();
        self.used.resize(table.rows(), false);
        self.table = Arc::clone(table);
    }

    /// Arms the link for the sleeping shards, after another shard has read it.
    pub(super) fn arm_again(&mut self) -> Result<(), LinkError> {
        if !self.link.arm()? {
            // Frames have come: sleeping shards are woken as the link would have done it.
            for feed in &self.feeds {
                // An eventfd that cannot be written to is closed: no shard sleeps on it.
                let _ = feed.bell.ring();
            }
        }
        Ok(())
    }

    /// The shard that is asked next for a flow that `shard` does not know, by the note of the
    /// frame: one that had it before, or after the last of them the one that has it now.
    pub(super) fn next_to_ask(
        &mut self,
        steering: &Steering,
        shard: u16,
        note: Note,
        ends: &SteeringKey,
    ) -> (u16, Note) {
        let back = usize::from(note.saturating_sub(PAST));
        let former = steering.former(&self.table, (Transport::Tcp, ends), shard, back);
        if former.is_none()
            && let Some(row) = self.table.row_of(Transport::Tcp, ends)
        {
            // With a SYN cookie it may begin a connection.
            self.used[row] = true;
        }
        let now = || (steering.shard_of(&self.table, Transport::Tcp, ends), RETURNED);
        former.unwrap_or_else(now)
    }

    /// Puts a frame into a shard's ring.
    pub(super) fn send(&mut self, to: u16, frame: (&[u8], Received, Note)) {
        send(&mut self.feeds, &mut self.counters, to, frame);
    }

    /// Shows every shard what was put into its ring.
    pub(super) fn deliver(&mut self) {
        for feed in &mut self.feeds {
            if feed.frames.commit() {
                // An eventfd that cannot be written to is closed: no shard sleeps on it.
                let _ = feed.bell.ring();
            }
        }
    }
}

/// A burst that is being steered.
pub(super) struct Burst<'a> {
    shared: &'a MuxShared,
    shard: u16,
    feeds: &'a mut [Feed],
    fragments: &'a Mutex<Fragments>,
    table: &'a BindingTable,
    used: &'a mut [bool],
    counters: &'a mut SteeringCounters,
    mine: &'a mut usize,
}

impl Burst<'_> {
    #[inline]
    pub(super) fn steer(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        let parsed = steering::fast_parse(self.shared.medium, frame);
        match parsed.and_then(|it| self.shared.steering.default_shard_of(self.table, it)) {
            Some(to) if to == self.shard => self.keep(frame, received, taker),
            Some(to) => send(self.feeds, self.counters, to, (frame, received, NOTHING)),
            None => self.steer_further(frame, received, taker),
        }
    }

    /// What has more to be looked at than a home. It is read once more: what all others would have
    /// to keep for that costs them more.
    #[inline(never)]
    fn steer_further(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        let reading = steering::fast_parse(self.shared.medium, frame).map_or_else(
            || steering::classify(self.shared.medium, frame),
            |parsed| parsed.classified(),
        );
        self.steer_by_reading(&reading, (frame, received), taker);
    }

    fn steer_by_reading(
        &mut self,
        reading: &Classified,
        (frame, received): (&[u8], Received),
        taker: &mut dyn FrameSink,
    ) {
        if matches!(reading, Classified::First(..) | Classified::Later(_)) {
            return self.steer_fragment(reading, (frame, received), taker);
        }
        match self.shared.steering.destination(self.table, self.used, reading) {
            (Destination::Shard(to), note) => {
                if to != self.shard {
                    return self.send(to, frame, received, note);
                }
                if note == REFUSED {
                    self.counters.kept += 1;
                    return taker.refuse(frame, received);
                }
                if note == PAST
                    && let Classified::Flow { transport, ends, .. } = reading
                    && !self.shared.knows(self.shard, ends, taker)
                {
                    let flow = (*transport, ends);
                    match self.shared.steering.former(self.table, flow, to, 0) {
                        Some((to, note)) => {
                            self.counters.passed_on += 1;
                            return self.send(to, frame, received, note);
                        }
                        None => {
                            self.counters.kept += 1;
                            *self.mine += 1;
                            return self.shared.take_unknown(frame, received, taker);
                        }
                    }
                }
                self.keep(frame, received, taker);
            }
            (Destination::Anyone, _) if self.shard == NO_SHARD => {
                self.send(ANY_SHARD, frame, received, NOTHING);
            }
            (Destination::Anyone, _) => self.keep(frame, received, taker),
            (Destination::Everyone, _) => {
                self.counters.to_everyone += 1;
                for to in 0..self.shared.steering.shards() {
                    if to != self.shard {
                        self.send(to, frame, received, NOTHING);
                    }
                }
                if self.shard != NO_SHARD {
                    self.keep(frame, received, taker);
                }
            }
        }
    }

    #[cold]
    fn steer_fragment(
        &mut self,
        reading: &Classified,
        (frame, received): (&[u8], Received),
        taker: &mut dyn FrameSink,
    ) {
        let now = Clock::new().now();
        let mut fragments = lock(self.fragments);
        match reading {
            Classified::First(datagram, transport, ends) => {
                let to = self.shared.steering.shard_of(self.table, *transport, ends);
                self.hand(to, frame, received, taker);
                fragments.on_first(now, (*datagram, to), |frame, received| {
                    self.hand(to, frame, received, taker);
                });
            }
            Classified::Later(datagram) => {
                match fragments.on_later(now, *datagram, (frame, received)) {
                    Later::Shard(to) => self.hand(to, frame, received, taker),
                    Later::Held => {}
                    Later::Dropped => self.counters.dropped_fragments += 1,
                }
            }
            _ => {}
        }
    }

    fn hand(&mut self, to: u16, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        if to == self.shard {
            self.keep(frame, received, taker);
        } else {
            self.send(to, frame, received, NOTHING);
        }
    }

    #[inline]
    fn keep(&mut self, frame: &[u8], received: Received, taker: &mut dyn FrameSink) {
        self.counters.kept += 1;
        *self.mine += 1;
        taker.on_frame(frame, received);
    }

    /// Not for what goes to its home: there the same stands in line.
    #[inline(never)]
    fn send(&mut self, to: u16, frame: &[u8], received: Received, note: Note) {
        send(self.feeds, self.counters, to, (frame, received, note));
    }
}

/// Puts a frame into a shard's ring, or drops and counts it.
#[inline(always)]
fn send(
    feeds: &mut [Feed],
    counters: &mut SteeringCounters,
    to: u16,
    (frame, received, note): (&[u8], Received, Note),
) {
    let Some(feed) = feeds.get_mut(usize::from(to)) else { return };
    match feed.frames.push(frame, received, note) {
        Ok(true) => counters.steered += 1,
        Ok(false) | Err(_) => counters.dropped_full += 1,
    }
}

fn stack_received(received: megapipe_link::RxMetadata) -> Received {
    Received {
        checksums: match received.checksums {
            megapipe_link::RxChecksum::Unverified => stack::Checksums::Unverified,
            megapipe_link::RxChecksum::Verified => stack::Checksums::Verified,
        },
        segment_bytes: received.segment_bytes,
    }
}
