//! The sessions of a shard by their number, and which of them are polled.
//!
//! Invariants
//! - Number 0 is no session: it names the shard's own memory.
//! - A number is free only when nothing of its session is left; its generation then is another.
//! - A session in `active` is running.

use megapipe_stack::PoolId;

use super::session_limits::SessionCounters;
use super::shard_session::ShardSession;
use crate::limits::SESSIONS_MAX;

/// A session of a shard. A number is used again; its generation never is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// Its number, which its connections name it by.
    pub number: u16,
    /// Which of the sessions of that number.
    pub generation: u32,
}

#[derive(Default)]
struct SessionSlot {
    generation: u32,
    session: Option<Box<ShardSession>>,
}

/// The sessions of a shard.
pub(super) struct Sessions {
    slots: Vec<SessionSlot>,
    free: Vec<u16>,
    /// Those whose rings are read at each poll.
    pub(super) active: Vec<PoolId>,
    /// Those that have ended and still have bytes to send.
    pub(super) draining: Vec<PoolId>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        let slots = vec![SessionSlot::default()];
        let (free, active, draining) = (Vec::new(), Vec::new(), Vec::new());
        Self { slots, free, active, draining }
    }

    /// Numbers that sessions have, or had.
    pub(super) const fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// Makes room for one more session. Returns whether there is memory for it.
    pub(super) fn reserve_one(&mut self) -> bool {
        let Self { slots, free, active, draining } = self;
        let most = slots.len() + 1;
        let fits = |list: &mut Vec<PoolId>| list.try_reserve(most - list.len().min(most)).is_ok();
        slots.try_reserve(1).is_ok()
            && free.try_reserve(most - free.len().min(most)).is_ok()
            && [active, draining].into_iter().all(fits)
    }

    /// Adds a session, which is polled from now on. `None`: there are as many as can be.
    pub(super) fn insert(&mut self, session: ShardSession) -> Option<SessionId> {
        let number = match self.free.pop() {
            Some(number) => number,
            None if self.slots.len() >= SESSIONS_MAX => return None,
            None => {
                self.slots.push(SessionSlot::default());
                (self.slots.len() - 1) as u16
            }
        };
        let slot = &mut self.slots[usize::from(number)];
        slot.session = Some(Box::new(session));
        self.active.push(PoolId(number));
        Some(SessionId { number, generation: slot.generation })
    }

    /// Removes a session of which nothing is left.
    pub(super) fn remove(&mut self, id: PoolId) {
        let slot = &mut self.slots[usize::from(id.0)];
        if slot.session.take().is_some() {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.0);
        }
    }

    /// The full name of a session.
    pub(super) fn id(&self, id: PoolId) -> SessionId {
        SessionId { number: id.0, generation: self.slots[usize::from(id.0)].generation }
    }

    /// The number of a session. `None`: it is no more.
    pub(super) fn number(&self, id: SessionId) -> Option<PoolId> {
        let slot = self.slots.get(usize::from(id.number))?;
        let is_same = slot.generation == id.generation && slot.session.is_some();
        is_same.then_some(PoolId(id.number))
    }

    /// A session, also one that has ended.
    #[inline]
    pub(super) fn get_mut(&mut self, id: PoolId) -> Option<&mut ShardSession> {
        self.slots.get_mut(usize::from(id.0))?.session.as_deref_mut()
    }

    /// The same to look at.
    pub(super) fn get(&self, id: PoolId) -> Option<&ShardSession> {
        self.slots.get(usize::from(id.0))?.session.as_deref()
    }

    /// A session that has not ended.
    #[inline]
    pub(super) fn running(&mut self, id: PoolId) -> Option<&mut ShardSession> {
        self.get_mut(id).filter(|session| session.is_running())
    }

    /// All sessions, those that have ended included.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut ShardSession> {
        self.slots.iter_mut().filter_map(|slot| slot.session.as_deref_mut())
    }

    /// How many there are, those that have ended included.
    pub(super) fn count(&self) -> usize {
        // Number 0 is none.
        self.slots.len() - 1 - self.free.len()
    }

    /// All sessions from a number on, those that have ended included.
    pub(super) fn all_from(&self, number: u64) -> impl Iterator<Item = (SessionId, &ShardSession)> {
        let first = usize::try_from(number).unwrap_or(usize::MAX).min(self.slots.len());
        let with_number = self.slots[first..].iter().zip(first..);
        with_number.filter_map(|(slot, number)| {
            let id = SessionId { number: number as u16, generation: slot.generation };
            Some((id, slot.session.as_deref()?))
        })
    }

    /// What was counted of each, those that have ended included.
    pub(super) fn counters(&self) -> impl Iterator<Item = (SessionId, SessionCounters)> {
        let with_number = self.slots.iter().zip(0..);
        with_number.filter_map(|(slot, number)| {
            let session = slot.session.as_ref()?;
            Some((SessionId { number, generation: slot.generation }, session.counters))
        })
    }
}
