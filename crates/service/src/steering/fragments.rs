//! Fragments: only the first has ports, and all of a datagram go to one shard.
//!
//! Read first: RFC 791 §3.2, RFC 8200 §4.5; the stack's `ip/reassembly.rs`, which puts together
//! what arrives at one shard.
//!
//! The first fragment says whose the datagram is; those that come before it are held, those that
//! come after it follow.
//!
//! Invariants
//! - At most [`FRAGMENTED_MAX`] datagrams are known and [`FRAGMENTS_HELD_MAX`] frames held: the
//!   oldest datagram goes first, with what is held of it.
//! - Nothing allocates but the first time that a frame of a greater length is held.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use megapipe_stack::{Instant, Received};

use super::classify::FragmentedDatagram;
use crate::limits::{FRAGMENTED_MAX, FRAGMENTS_HELD_MAX};

/// How long a datagram is remembered after its first fragment was seen: as long as reassembly
/// waits for the rest.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Decision about a fragment without ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Later {
    /// To the shard that got the first one.
    Shard(u16),
    /// It waits for the first one.
    Held,
    /// Too many wait.
    Dropped,
}

#[derive(Debug)]
struct HeldFragment {
    datagram: FragmentedDatagram,
    bytes: Vec<u8>,
    received: Received,
}

#[derive(Debug, Clone, Copy)]
struct KnownFragments {
    /// `None`: the first fragment has not come.
    shard: Option<u16>,
    since: Instant,
}

/// The datagrams whose fragments are under way.
#[derive(Debug, Default)]
pub struct Fragments {
    known: HashMap<FragmentedDatagram, KnownFragments>,
    /// Those known, the oldest first.
    order: VecDeque<FragmentedDatagram>,
    held: Vec<HeldFragment>,
    /// Memory of frames that are not held any more.
    spare: Vec<Vec<u8>>,
}

impl Fragments {
    /// None under way.
    #[must_use]
    pub fn new() -> Self {
        Self {
            known: HashMap::with_capacity(FRAGMENTED_MAX),
            order: VecDeque::with_capacity(FRAGMENTED_MAX),
            held: Vec::with_capacity(FRAGMENTS_HELD_MAX),
            spare: Vec::with_capacity(FRAGMENTS_HELD_MAX),
        }
    }

    /// The first fragment came, and goes to `shard`. Lends what was held of its datagram to
    /// `each`, in the order in which it came.
    pub fn on_first(
        &mut self,
        now: Instant,
        (datagram, shard): (FragmentedDatagram, u16),
        mut each: impl FnMut(&[u8], Received),
    ) {
        self.forget_old(now);
        self.know(now, datagram).shard = Some(shard);
        let mut index = 0;
        while index < self.held.len() {
            if self.held[index].datagram != datagram {
                index += 1;
                continue;
            }
            let held = self.held.remove(index);
            each(&held.bytes, held.received);
            self.spare.push(held.bytes);
        }
    }

    /// Another one came.
    pub fn on_later(
        &mut self,
        now: Instant,
        datagram: FragmentedDatagram,
        (frame, received): (&[u8], Received),
    ) -> Later {
        self.forget_old(now);
        if let Some(shard) = self.know(now, datagram).shard {
            return Later::Shard(shard);
        }
        if self.held.len() == FRAGMENTS_HELD_MAX {
            return Later::Dropped;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        self.held.push(HeldFragment { datagram, bytes, received });
        Later::Held
    }

    fn know(&mut self, now: Instant, datagram: FragmentedDatagram) -> &mut KnownFragments {
        if !self.known.contains_key(&datagram) {
            if self.order.len() == FRAGMENTED_MAX {
                self.forget_oldest();
            }
            self.order.push_back(datagram);
        }
        self.known.entry(datagram).or_insert(KnownFragments { shard: None, since: now })
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some(oldest) = self.order.front()
            && self.known.get(oldest).is_none_or(|known| now.since(known.since) > REMEMBERED)
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        self.known.remove(&oldest);
        let Self { held, spare, .. } = self;
        held.retain_mut(|it| {
            let goes = it.datagram == oldest;
            if goes {
                spare.push(std::mem::take(&mut it.bytes));
            }
            !goes
        });
    }
}
