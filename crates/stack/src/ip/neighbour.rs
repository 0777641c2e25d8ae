//! Neighbour cache: link addresses of hosts, for ARP and neighbour discovery.
//!
//! Read first: RFC 4861 §7.2 and §7.3 (the states, followed for IPv4 as well, which RFC 1122
//! §2.3.2.1 allows), RFC 826, RFC 6583 (what a flood does to such a cache).
//!
//! ```text
//!             asked            answered                 30 s, next use
//!   (absent) -----> INCOMPLETE ------> REACHABLE <--------------------> STALE
//!                    |  3 questions       ^   confirmed by an answer      | used
//!                    v                    |   or by a transport           v
//!                  FAILED <------------ PROBE <------------------------ DELAY
//!                         3 questions            5 s without a word
//! ```
//!
//! Invariants
//! - Unsolicited messages change existing entries and create none, so floods of answers do not fill
//!   the cache.
//! - At most [`NEIGHBOURS_MAX`] entries, of which [`UNANSWERED_MAX`] may be unresolved; the oldest
//!   unresolved one is evicted first. If the table is full, failed entries are evicted first, then
//!   the least recently used one, never a permanent one.
//! - A neighbour is asked at most once a second (RFC 1122 §2.3.2.1), and all of them together at
//!   most [`SOLICITATIONS_PER_S`] times.
//! - The result of a resolution is reported once: [`Neighbours::poll_decided`].

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use core::num::NonZeroU16;
use core::time::Duration;

use crate::limits::{DECISIONS_MAX, NEIGHBOURS_MAX, SOLICITATIONS_PER_S, UNANSWERED_MAX};
use crate::rate::TokenBucket;
use crate::time::Instant;
use crate::wire::ethernet::AddressWords;

/// How long an answer is believed without asking: REACHABLE_TIME (RFC 4861 §10).
const REACHABLE: Duration = Duration::from_secs(30);
/// How long a transport has to confirm a stale neighbour: DELAY_FIRST_PROBE_TIME.
const DELAY: Duration = Duration::from_secs(5);
/// Time between questions: RETRANS_TIMER.
const RETRANSMIT: Duration = Duration::from_secs(1);
/// Questions before giving up: MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
const QUESTIONS: u8 = 3;
/// A neighbour's address does not change twice in this time: the first answer wins.
const LOCKED: Duration = Duration::from_secs(1);

/// What is known about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NeighbourState {
    /// Asked for the first time, and not answered.
    Incomplete,
    /// Answered, or confirmed, until `at`.
    Reachable,
    /// Once known; used as it is, and then checked.
    Stale,
    /// Used when stale; checked from `at` on.
    Delay,
    /// Being checked.
    Probe,
    /// Did not answer.
    Failed,
    /// Set by the caller.
    Permanent,
}

#[derive(Debug, Clone, Copy)]
struct NeighbourEntry {
    ip: IpAddr,
    /// The neighbour's link address and ours, as each frame to it begins.
    link: AddressWords,
    generation: NonZeroU16,
    state: NeighbourState,
    /// Questions asked since the last answer.
    asked: u8,
    /// It is in the list of questions to send.
    to_ask: bool,
    /// When its state's time is over.
    at: Instant,
    /// When it was last asked.
    asked_at: Option<Instant>,
    /// When it last answered.
    answered_at: Option<Instant>,
    /// Time of the last use.
    used_at: Instant,
}

/// Slot of the entry for media without link addresses.
const WITHOUT_ADDRESS: u16 = 0;
/// The place of our own addresses. It has no entry, so it is looked at only where a lookup of the
/// entry fails: other places cost no comparison.
const LOCAL: u16 = u16::MAX;

const _: () = assert!(NEIGHBOURS_MAX < LOCAL as usize, "no entry has its slot");

impl NeighbourEntry {
    const fn new(now: Instant, ip: IpAddr) -> Self {
        Self {
            ip,
            link: AddressWords::new([0; 6], [0; 6]),
            generation: NonZeroU16::MIN,
            state: NeighbourState::Failed,
            asked: 0,
            to_ask: false,
            at: now,
            asked_at: None,
            answered_at: None,
            used_at: now,
        }
    }
}

/// The generation after `generation`. After 65,535 of them a place may seem fresh again that was
/// kept all the while; a packet sent there is lost, and the next retransmission resolves it again.
const fn next(generation: NonZeroU16) -> NonZeroU16 {
    match generation.checked_add(1) {
        Some(next) => next,
        None => NonZeroU16::MIN,
    }
}

/// A question that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Question {
    /// Address to resolve.
    pub ip: IpAddr,
    /// Last known link address; `None`: the request is broadcast.
    pub mac: Option<[u8; 6]>,
}

/// A claim about an address on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The claimed address.
    pub ip: IpAddr,
    /// The link address; `None`: the same as ever.
    pub mac: Option<[u8; 6]>,
    /// It is an answer to a question of ours.
    pub solicited: bool,
    /// It replaces what is known (ARP always does).
    pub replaces: bool,
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It told us something.
    Used,
    /// It concerns no existing entry, or contradicts a recent claim.
    Ignored,
}

/// A place in the table, and which of its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NeighbourPlace {
    /// Which entry.
    slot: u16,
    /// Which of those that ever were there, under which routes.
    generation: NonZeroU16,
}

impl NeighbourPlace {
    /// It is that of our own addresses.
    #[inline]
    pub(crate) const fn is_local(self) -> bool {
        self.slot == LOCAL
    }
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Neighbours {
    entries: Vec<NeighbourEntry>,
    /// Our own link address.
    mac: [u8; 6],
    /// Slots of `entries`, by address.
    order: Vec<u16>,
    /// Slots whose entry was removed.
    free: Vec<u16>,
    /// Slots that are incomplete, the oldest first.
    unanswered: VecDeque<u16>,
    /// Slots whose question is to be sent.
    questions: VecDeque<u16>,
    /// What was decided: who, and whether it answered.
    decided: VecDeque<(IpAddr, bool)>,
    bucket: TokenBucket,
    /// No entry's time is over before this.
    next: Option<Instant>,
    /// Of the place of our own addresses.
    local_generation: NonZeroU16,
}

impl Neighbours {
    pub(crate) fn new(now: Instant, mac: [u8; 6]) -> Self {
        let mut entries = Vec::with_capacity(NEIGHBOURS_MAX + 1);
        let unspecified = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        entries.push(NeighbourEntry {
            state: NeighbourState::Permanent,
            ..NeighbourEntry::new(now, unspecified)
        });
        Self {
            entries,
            mac,
            order: Vec::with_capacity(NEIGHBOURS_MAX),
            free: Vec::with_capacity(NEIGHBOURS_MAX),
            unanswered: VecDeque::with_capacity(UNANSWERED_MAX),
            questions: VecDeque::with_capacity(NEIGHBOURS_MAX),
            decided: VecDeque::with_capacity(DECISIONS_MAX),
            bucket: TokenBucket::new(SOLICITATIONS_PER_S, SOLICITATIONS_PER_S, now),
            next: None,
            local_generation: NonZeroU16::MIN,
        }
    }

    /// Returns the place of our own addresses.
    pub(crate) const fn local(&self) -> NeighbourPlace {
        NeighbourPlace { slot: LOCAL, generation: self.local_generation }
    }

    /// Returns the entry for media without link addresses.
    pub(crate) fn without_address(&self) -> NeighbourPlace {
        NeighbourPlace {
            slot: WITHOUT_ADDRESS,
            generation: self.entries[usize::from(WITHOUT_ADDRESS)].generation,
        }
    }

    /// Other routes lead to other neighbours: no place that was given out is fresh any more.
    pub(crate) fn outdate(&mut self) {
        for entry in &mut self.entries {
            entry.generation = next(entry.generation);
        }
        self.local_generation = next(self.local_generation);
    }

    /// Where `ip` is, if a frame can be sent there. Otherwise, with `ask`, asks for it; `None`: it
    /// is not known.
    pub(crate) fn find(&mut self, now: Instant, ip: IpAddr, ask: bool) -> Option<NeighbourPlace> {
        if let Some(slot) = self.slot_of(ip) {
            let place =
                NeighbourPlace { slot, generation: self.entries[usize::from(slot)].generation };
            if self.is_fresh(now, place) {
                return Some(place);
            }
            if ask && self.entries[usize::from(slot)].state == NeighbourState::Failed {
                self.begin(now, slot);
            }
        } else if ask && let Some(slot) = self.make(now, ip) {
            self.begin(now, slot);
        }
        None
    }

    /// `place` was given out for the neighbour that is there, under the routes of now. Never of our
    /// own addresses: what the link brings does not come from there.
    #[inline]
    pub(crate) fn is_current(&self, place: NeighbourPlace) -> bool {
        let entry = self.entries.get(usize::from(place.slot));
        entry.is_some_and(|entry| entry.generation == place.generation)
    }

    /// A frame can be sent to `place`, and is about to be.
    #[inline]
    pub(crate) fn is_fresh(&mut self, now: Instant, place: NeighbourPlace) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(place.slot)) else {
            return place == self.local();
        };
        if entry.generation != place.generation {
            return false;
        }
        entry.used_at = now;
        match entry.state {
            NeighbourState::Reachable if now < entry.at => true,
            NeighbourState::Reachable | NeighbourState::Stale => {
                // The first packet to a stale neighbour begins the delay (RFC 4861 §7.3.3).
                entry.state = NeighbourState::Delay;
                entry.at = now + DELAY;
                let at = entry.at;
                self.arm(at);
                true
            }
            NeighbourState::Delay | NeighbourState::Probe | NeighbourState::Permanent => true,
            NeighbourState::Incomplete | NeighbourState::Failed => false,
        }
    }

    /// A transport heard from beyond `place` (RFC 4861 §7.3.1).
    #[inline]
    pub(crate) fn confirm(&mut self, now: Instant, place: NeighbourPlace) {
        let Some(entry) = self.entries.get_mut(usize::from(place.slot)) else { return };
        if entry.generation != place.generation {
            return;
        }
        if let NeighbourState::Reachable
        | NeighbourState::Stale
        | NeighbourState::Delay
        | NeighbourState::Probe = entry.state
        {
            if entry.to_ask {
                entry.to_ask = false;
                self.questions.retain(|other| *other != place.slot);
            }
            entry.state = NeighbourState::Reachable;
            entry.asked = 0;
            entry.at = now + REACHABLE;
        }
    }

    /// The link address of `place`, which is fresh, and ours. `None`: it is the place of our own
    /// addresses.
    #[inline]
    pub(crate) fn link(&self, place: NeighbourPlace) -> Option<AddressWords> {
        self.entries.get(usize::from(place.slot)).map(|entry| entry.link)
    }

    /// Processes a claim of a link address (RFC 4861 §7.2.5; RFC 826).
    pub(crate) fn on_claim(&mut self, now: Instant, claim: Claim) -> Heard {
        let Some(slot) = self.slot_of(claim.ip) else { return Heard::Ignored };
        let entry = &mut self.entries[usize::from(slot)];
        let ip = entry.ip;
        match (entry.state, claim.mac) {
            (NeighbourState::Permanent | NeighbourState::Failed, _)
            | (NeighbourState::Incomplete, None) => Heard::Ignored,
            (NeighbourState::Incomplete, Some(mac)) => {
                entry.link = AddressWords::new(mac, self.mac);
                self.answer(now, slot, claim.solicited);
                self.decide(ip, true);
                Heard::Used
            }
            (_, mac) => {
                let differs = mac.is_some_and(|mac| mac != entry.link.dst());
                if differs && !claim.replaces {
                    // "If the Override flag is clear and the address differs": believed no more,
                    // but not replaced.
                    if entry.state == NeighbourState::Reachable {
                        entry.state = NeighbourState::Stale;
                    }
                    return Heard::Ignored;
                }
                if differs && entry.answered_at.is_some_and(|at| now.since(at) < LOCKED) {
                    return Heard::Ignored;
                }
                if let (true, Some(mac)) = (differs, mac) {
                    entry.link = AddressWords::new(mac, self.mac);
                    self.answer(now, slot, claim.solicited);
                } else if claim.solicited && entry.asked > 0 {
                    self.answer(now, slot, true);
                }
                Heard::Used
            }
        }
    }

    /// The caller knows where `ip` is. False: the table is full.
    pub(crate) fn set(&mut self, now: Instant, ip: IpAddr, mac: [u8; 6]) -> bool {
        let slot = self.slot_of(ip).or_else(|| self.make(now, ip));
        let Some(slot) = slot else { return false };
        self.schedule(slot);
        let entry = &mut self.entries[usize::from(slot)];
        entry.link = AddressWords::new(mac, self.mac);
        entry.state = NeighbourState::Permanent;
        self.decide(ip, true);
        true
    }

    /// Forgets `ip`.
    pub(crate) fn remove(&mut self, ip: IpAddr) {
        if let Some(slot) = self.slot_of(ip) {
            self.release(slot);
        }
    }

    /// Looks after entries whose time is over.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        self.next = None;
        for at in 0..self.order.len() {
            let slot = self.order[at];
            let entry = &mut self.entries[usize::from(slot)];
            // A question that waits for its turn is armed when it has got it.
            if !matches!(
                entry.state,
                NeighbourState::Incomplete | NeighbourState::Delay | NeighbourState::Probe
            ) || entry.to_ask
            {
                continue;
            }
            if now < entry.at {
                let at = entry.at;
                self.arm(at);
                continue;
            }
            self.expire(now, slot);
        }
    }

    /// When [`Neighbours::on_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// There is no question to send.
    #[inline]
    pub(crate) fn has_no_request(&self) -> bool {
        self.questions.is_empty()
    }

    /// The next question to send.
    pub(crate) fn poll_question(&mut self, now: Instant) -> Option<Question> {
        let slot = *self.questions.front()?;
        if !self.bucket.take(now) {
            // The timer brings us back here.
            self.arm(now + RETRANSMIT / SOLICITATIONS_PER_S);
            return None;
        }
        self.questions.pop_front();
        let entry = &mut self.entries[usize::from(slot)];
        entry.to_ask = false;
        entry.asked += 1;
        entry.asked_at = Some(now);
        entry.at = now + RETRANSMIT;
        let (ip, at) = (entry.ip, entry.at);
        let mac = (entry.state == NeighbourState::Probe).then_some(entry.link.dst());
        self.arm(at);
        Some(Question { ip, mac })
    }

    /// A neighbour was found or given up, and not reported.
    #[inline(always)]
    pub(crate) fn has_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Who was found, or given up.
    #[inline(always)]
    pub(crate) fn poll_decided(&mut self) -> Option<(IpAddr, bool)> {
        self.decided.pop_front()
    }

    /// An entry's time is over.
    fn expire(&mut self, now: Instant, slot: u16) {
        let entry = &mut self.entries[usize::from(slot)];
        match entry.state {
            NeighbourState::Delay => {
                entry.state = NeighbourState::Probe;
                entry.asked = 0;
                self.ask(now, slot);
            }
            _ if entry.asked < QUESTIONS => self.ask(now, slot),
            NeighbourState::Incomplete => {
                let ip = entry.ip;
                self.schedule(slot);
                self.decide(ip, false);
            }
            // Later users find it failed, and broadcast a new request.
            _ => entry.state = NeighbourState::Failed,
        }
    }

    /// Starts the resolution of the neighbour in `slot` by broadcast.
    fn begin(&mut self, now: Instant, slot: u16) {
        if self.unanswered.len() == UNANSWERED_MAX
            && let Some(oldest) = self.unanswered.front().copied()
        {
            self.release(oldest);
        }
        self.unanswered.push_back(slot);
        let entry = &mut self.entries[usize::from(slot)];
        entry.state = NeighbourState::Incomplete;
        entry.asked = 0;
        entry.used_at = now;
        // One that failed a moment ago is asked again when its second is over.
        match entry.asked_at.map(|asked_at| asked_at + RETRANSMIT) {
            Some(again) if now < again => {
                entry.at = again;
                self.arm(again);
            }
            _ => self.ask(now, slot),
        }
    }

    fn ask(&mut self, now: Instant, slot: u16) {
        let entry = &mut self.entries[usize::from(slot)];
        if !entry.to_ask {
            entry.to_ask = true;
            entry.at = now;
            self.questions.push_back(slot);
        }
    }

    fn decide(&mut self, ip: IpAddr, resolved: bool) {
        if self.decided.len() < DECISIONS_MAX {
            self.decided.push_back((ip, resolved));
        }
    }

    fn arm(&mut self, at: Instant) {
        if self.next.is_none_or(|next| at < next) {
            self.next = Some(at);
        }
    }

    fn slot_of(&self, ip: IpAddr) -> Option<u16> {
        let entries = &self.entries;
        let at = self.order.binary_search_by_key(&ip, |slot| entries[usize::from(*slot)].ip);
        at.ok().map(|at| self.order[at])
    }

    /// A new entry for `ip`, which has none. `None`: the table is full of permanent ones.
    fn make(&mut self, now: Instant, ip: IpAddr) -> Option<u16> {
        if self.order.len() == NEIGHBOURS_MAX {
            let victim = self.victim()?;
            self.release(victim);
        }
        let mut entry = NeighbourEntry::new(now, ip);
        let slot = match self.free.pop() {
            Some(slot) => {
                entry.generation = self.entries[usize::from(slot)].generation;
                self.entries[usize::from(slot)] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u16
            }
        };
        let entries = &self.entries;
        let at = self.order.partition_point(|slot| entries[usize::from(*slot)].ip < ip);
        self.order.insert(at, slot);
        Some(slot)
    }

    /// Whom to forget: one that failed, or else the one that was used the longest ago.
    fn victim(&self) -> Option<u16> {
        let rank = |entry: &NeighbourEntry| (entry.state != NeighbourState::Failed, entry.used_at);
        self.order
            .iter()
            .filter(|slot| self.entries[usize::from(**slot)].state != NeighbourState::Permanent)
            .min_by_key(|slot| rank(&self.entries[usize::from(**slot)]))
            .copied()
    }

    /// Removes the entry in `slot` from the table, and reports this to waiting connections.
    fn release(&mut self, slot: u16) {
        let (ip, state) = {
            let entry = &self.entries[usize::from(slot)];
            (entry.ip, entry.state)
        };
        let entries = &self.entries;
        let found = self.order.binary_search_by_key(&ip, |slot| entries[usize::from(*slot)].ip);
        if let Ok(at) = found {
            self.order.remove(at);
        }
        self.schedule(slot);
        let entry = &mut self.entries[usize::from(slot)];
        entry.generation = next(entry.generation);
        self.free.push(slot);
        if state == NeighbourState::Incomplete {
            self.decide(ip, false);
        }
    }

    /// Ends the resolution of the entry in `slot`, as failed unless it was answered.
    fn schedule(&mut self, slot: u16) {
        let entry = &mut self.entries[usize::from(slot)];
        if entry.state == NeighbourState::Incomplete {
            self.unanswered.retain(|other| *other != slot);
        }
        entry.state = NeighbourState::Failed;
        if entry.to_ask {
            entry.to_ask = false;
            self.questions.retain(|other| *other != slot);
        }
    }

    /// The neighbour in `slot` answered a question, or said where it is without being asked.
    fn answer(&mut self, now: Instant, slot: u16, solicited: bool) {
        self.schedule(slot);
        let entry = &mut self.entries[usize::from(slot)];
        entry.state = if solicited && entry.asked > 0 {
            NeighbourState::Reachable
        } else {
            NeighbourState::Stale
        };
        entry.asked = 0;
        entry.answered_at = Some(now);
        entry.at = now + REACHABLE;
    }
}

#[cfg(test)]
mod tests;
