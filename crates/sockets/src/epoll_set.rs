//! epoll sets: which descriptors a set watches, and which of them have events.
//!
//! Read first: epoll(7), epoll_ctl(2), epoll_wait(2); `readiness.rs` for the bits themselves.
//!
//! An *item* is one descriptor in one set, under the number by which it joined. The items that
//! watch an object form a list, of which the table has the head with the object. What happens to an
//! object reaches its items by the table, and those that asked for it join their set's ready queue
//! ([`EpollSets::queue`]); `epoll_wait` takes them from there and computes what each object is
//! ready for *now*. An item that is level triggered stays at the end of the queue after it was
//! reported, so that the next call looks at it again; an edge-triggered one does not. A read that
//! leaves an object not ready for what an item asks settles the item where it is
//! ([`EpollSets::settle`]): the next call passes over it. Members that are the process's are the
//! kernel's part of the set (`foreign_fds.rs`).
//!
//! Invariants
//! - An item is in its set's queue exactly while `queued` is set. One that is not `due` has been
//!   looked at since something last happened to its object, and has nothing to report.
//! - An item that was taken out of its set while queued stays, without an object, until the queue
//!   gives it back.
//! - A set's queue has room for each member and for each item that was taken out and is still
//!   queued, so that an event needs no memory.

use std::os::fd::RawFd;

use crate::error::Error;
use crate::flags::{EpollEvent, Events};
use crate::foreign_fds::KernelSet;
use crate::index_table::IndexTable;
use crate::limits::{NIL, SET_DEPTH_MAX};

/// The bits that select how an item is reported, and not which events.
const HOW: Events =
    Events::EXCLUSIVE.union(Events::WAKEUP).union(Events::ONE_SHOT).union(Events::EDGE);

/// Flags of items that are reported once for each change.
const ONCE: Events = Events::ONE_SHOT.union(Events::EDGE);

/// What may stand beside EPOLLEXCLUSIVE.
const EXCLUSIVE_MAY: Events = Events::IN
    .union(Events::OUT)
    .union(Events::ALWAYS)
    .union(Events::WAKEUP)
    .union(Events::EDGE)
    .union(Events::EXCLUSIVE);

/// The sets of a context.
#[derive(Default)]
pub(crate) struct EpollSets {
    sets: IndexTable<EpollSet>,
    items: IndexTable<EpollItem>,
}

struct EpollSet {
    /// The set's own object.
    object: u32,
    /// Its part with descriptors of the process, once it has some.
    kernels: Option<KernelSet>,
    /// Items that may have something to report, oldest first; and such as are settled.
    ready: Vec<u32>,
    members: Vec<u32>,
    /// Items in the queue that were taken out of the set.
    removed: u32,
    /// Nothing is read ahead of its members since a fork, until the program waits for it.
    is_withheld: bool,
}

struct EpollItem {
    set: u32,
    /// The object that it watches; `NIL`: none any more.
    object: u32,
    /// The set that the object is; `NIL`: it is none.
    inner_set: u32,
    /// The number by which it joined.
    number: RawFd,
    /// What it asks for; without any event, only `HOW`: it is switched off.
    events: Events,
    data: u64,
    /// The next item that watches the object.
    next: u32,
    /// Where it is among the set's members.
    place: u32,
    queued: bool,
    due: bool,
}

/// The object that an item is to watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedFd {
    pub(crate) object: u32,
    /// The set that the object is, if it is one.
    pub(crate) set: Option<u32>,
    /// The number by which it joins.
    pub(crate) number: RawFd,
}

/// Checks the events of an item that is to be added, of a set or of another object.
///
/// # Errors
/// [`Error::InvalidArgument`] for what may not stand beside EPOLLEXCLUSIVE.
pub(crate) fn check_exclusive(events: Events, is_set: bool) -> Result<(), Error> {
    let is_allowed = !is_set && EXCLUSIVE_MAY.contains(events);
    if events.contains(Events::EXCLUSIVE) && !is_allowed {
        return Err(Error::InvalidArgument);
    }
    Ok(())
}

impl EpollSets {
    /// The index of the set that is created next.
    pub(crate) const fn next(&self) -> u32 {
        self.sets.next()
    }

    /// Makes room for one more set.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn reserve_one(&mut self) -> Result<(), Error> {
        self.sets.reserve(1)
    }

    /// An empty set, whose own object is `object`; there is room for it.
    pub(crate) fn create(&mut self, object: u32) {
        let (ready, members) = (Vec::new(), Vec::new());
        let (kernels, removed, is_withheld) = (None, 0, false);
        self.sets.insert(EpollSet { object, kernels, ready, members, removed, is_withheld });
    }

    /// The kernel's part of a set.
    pub(crate) fn kernels(&mut self, set: u32) -> &mut Option<KernelSet> {
        &mut self.sets[set].kernels
    }

    /// The set's own object, if there is such a set.
    pub(crate) fn object_of(&self, set: u32) -> Option<u32> {
        self.sets.get(set).map(|set| set.object)
    }

    /// The members of a set that are descriptors of the context: the number by which each joined,
    /// its object, and what was asked for it.
    pub(crate) fn members_of(&self, set: u32) -> Vec<(RawFd, u32, EpollEvent)> {
        let items = self.sets[set].members.iter().map(|item| &self.items[*item]);
        let event = |item: &EpollItem| EpollEvent { events: item.events, data: item.data };
        items.map(|item| (item.number, item.object, event(item))).collect()
    }

    /// The objects that a set watches.
    pub(crate) fn objects_of(&self, set: u32) -> Vec<u32> {
        self.sets[set].members.iter().map(|item| self.items[*item].object).collect()
    }

    /// Nothing is read ahead of the members of any set.
    pub(crate) fn withhold_all(&mut self) {
        self.sets.iter_mut().for_each(|(_, set)| set.is_withheld = true);
    }

    /// Whether nothing is read ahead of a set's members.
    #[inline]
    pub(crate) fn is_withheld(&self, set: u32) -> bool {
        self.sets[set].is_withheld
    }

    /// The program waits for a set.
    pub(crate) fn end_withholding(&mut self, set: u32) {
        self.sets[set].is_withheld = false;
    }

    // -- membership

    /// The item in a set that joined by `number`, among those from `first` on, which watch one
    /// object.
    pub(crate) fn find(&self, set: u32, number: RawFd, first: u32) -> Option<u32> {
        let mut at = first;
        while let Some(item) = self.items.get(at) {
            if item.set == set && item.number == number {
                return Some(at);
            }
            at = item.next;
        }
        None
    }

    /// A set that joins another must not contain it, nor make the nest too deep. `first` is the
    /// first item that watches an object.
    ///
    /// # Errors
    /// [`Error::Loop`].
    pub(crate) fn check_depth(
        &self,
        outer: u32,
        inner: u32,
        first: &impl Fn(u32) -> u32,
    ) -> Result<(), Error> {
        let below = self.depth_below(inner, outer, 0)?;
        let above = self.depth_above(outer, 0, first);
        if below + above > SET_DEPTH_MAX { Err(Error::Loop) } else { Ok(()) }
    }

    /// Levels of sets below a set, itself included.
    fn depth_below(&self, set: u32, forbidden: u32, level: usize) -> Result<usize, Error> {
        if set == forbidden || level > SET_DEPTH_MAX {
            return Err(Error::Loop);
        }
        let mut deepest = 0;
        for item in &self.sets[set].members {
            let depth = match self.items[*item].inner_set {
                NIL if level >= SET_DEPTH_MAX => return Err(Error::Loop),
                NIL => 0,
                inner => self.depth_below(inner, forbidden, level + 1)?,
            };
            deepest = deepest.max(depth);
        }
        Ok(deepest + 1)
    }

    /// Levels of sets that a set lies in.
    fn depth_above(&self, set: u32, level: usize, first: &impl Fn(u32) -> u32) -> usize {
        if level > SET_DEPTH_MAX {
            return level;
        }
        let mut highest = 0;
        let mut item = first(self.sets[set].object);
        while let Some(watcher) = self.items.get(item) {
            highest = highest.max(self.depth_above(watcher.set, level + 1, first) + 1);
            item = watcher.next;
        }
        highest
    }

    /// Adds an item to a set, and to the list from `first` on of those that watch its object:
    /// exclusive ones last, so that all others are notified before one of them is chosen.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn add(
        &mut self,
        set: u32,
        watched: WatchedFd,
        event: EpollEvent,
        first: &mut u32,
    ) -> Result<u32, Error> {
        self.reserve_item(set)?;
        let place = self.sets[set].members.len() as u32;
        let EpollEvent { events, data } = event;
        let item = self.items.insert(EpollItem {
            set,
            object: watched.object,
            inner_set: watched.set.unwrap_or(NIL),
            number: watched.number,
            events: events | Events::ALWAYS,
            data,
            next: NIL,
            place,
            queued: false,
            due: false,
        });
        self.sets[set].members.push(item);
        self.link(item, first);
        Ok(item)
    }

    /// Makes room for one more item of a set.
    fn reserve_item(&mut self, set: u32) -> Result<(), Error> {
        self.items.reserve(1)?;
        if self.sets[set].removed as usize > self.sets[set].members.len() {
            // Members come and go, and no call of epoll_wait empties the queue.
            self.purge(set);
        }
        let EpollSet { ready, members, removed, .. } = &mut self.sets[set];
        let most = members.len() + 1 + *removed as usize;
        members.try_reserve(1).map_err(|_| Error::NoMemory)?;
        let missing = most.saturating_sub(ready.len());
        ready.try_reserve(missing).map_err(|_| Error::NoMemory)
    }

    /// Takes the items that were taken out of a set out of its queue.
    fn purge(&mut self, set: u32) {
        let Self { sets, items } = self;
        sets[set].removed = 0;
        sets[set].ready.retain(|item| {
            let stays = items[*item].object != NIL;
            if !stays {
                items.remove(*item);
            }
            stays
        });
    }

    fn link(&mut self, item: u32, first: &mut u32) {
        let items = &mut self.items;
        let is_exclusive = items[item].events.contains(Events::EXCLUSIVE);
        if !is_exclusive || *first == NIL {
            items[item].next = *first;
            *first = item;
            return;
        }
        let mut last = *first;
        // The list is short: the sets that watch one object.
        while items[last].next != NIL {
            last = items[last].next;
        }
        items[last].next = item;
    }

    fn unlink(&mut self, item: u32, first: &mut u32) {
        let next = self.items[item].next;
        if *first == item {
            *first = next;
            return;
        }
        let mut at = *first;
        while let Some(other) = self.items.get_mut(at) {
            if other.next == item {
                other.next = next;
                return;
            }
            at = other.next;
        }
    }

    /// Changes what an item asks for.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: an exclusive item stays as it was added.
    pub(crate) fn change(&mut self, item: u32, event: EpollEvent) -> Result<(), Error> {
        let entry = &mut self.items[item];
        if entry.events.contains(Events::EXCLUSIVE) {
            return Err(Error::InvalidArgument);
        }
        entry.events = event.events | Events::ALWAYS;
        entry.data = event.data;
        Ok(())
    }

    /// An item is in its set's queue, to be looked at by the next wait.
    pub(crate) fn is_due(&self, item: u32) -> bool {
        self.items[item].due
    }

    /// Takes an item out of its set, and out of the list from `first` on.
    pub(crate) fn remove(&mut self, item: u32, first: &mut u32) {
        self.unlink(item, first);
        self.retire(item);
    }

    /// The item, which no object knows any more, leaves its set.
    fn retire(&mut self, item: u32) {
        let Self { sets, items } = self;
        let EpollItem { set, place, queued, .. } = items[item];
        let members = &mut sets[set].members;
        members.swap_remove(place as usize);
        if let Some(moved) = members.get(place as usize) {
            items[*moved].place = place;
        }
        if queued {
            sets[set].removed += 1;
            let item = &mut items[item];
            (item.object, item.due) = (NIL, false);
        } else {
            items.remove(item);
        }
    }

    /// An object is gone, and with it the items from `first` on (epoll(7), question 6).
    pub(crate) fn forget(&mut self, first: u32) {
        let mut item = first;
        while item != NIL {
            let next = self.items[item].next;
            self.retire(item);
            item = next;
        }
    }

    /// A member of a set: the item, and the object that it watches.
    pub(crate) fn last_member(&self, set: u32) -> Option<(u32, u32)> {
        let item = *self.sets[set].members.last()?;
        Some((item, self.items[item].object))
    }

    /// The set, which has no members any more, is gone.
    pub(crate) fn close(&mut self, set: u32) {
        let Some(closed) = self.sets.remove(set) else { return };
        for item in closed.ready {
            self.items.remove(item);
        }
    }

    // -- events

    /// What an item asks for, and the next one that watches the same object.
    #[inline]
    pub(crate) fn watcher(&self, item: u32) -> (Events, u32) {
        let EpollItem { events, next, .. } = self.items[item];
        (events, next)
    }

    /// Whether an item asks for one of these events.
    pub(crate) fn asks_for(&self, item: u32, events: Events) -> bool {
        self.items[item].events.difference(HOW).intersects(events)
    }

    /// Puts an item into its set's queue. Returns the set's object.
    #[inline]
    pub(crate) fn queue(&mut self, item: u32) -> u32 {
        let entry = &mut self.items[item];
        let set = &mut self.sets[entry.set];
        entry.due = true;
        if !entry.queued {
            entry.queued = true;
            set.ready.push(item);
        }
        set.object
    }

    /// A call has looked at an object, which is ready for `ready` now: the items from `first` on,
    /// which watch it, have nothing to report but that.
    #[inline]
    pub(crate) fn settle(&mut self, first: u32, ready: Events) {
        let mut at = first;
        while let Some(item) = self.items.get_mut(at) {
            if !item.events.intersects(ready) {
                item.due = false;
            }
            at = item.next;
        }
    }

    /// Whether one of a set's items has something to report; `ready` is what an object is ready
    /// for.
    pub(crate) fn is_readable(&self, set: u32, ready: &impl Fn(&Self, u32) -> Events) -> bool {
        let has_events = |item: &u32| {
            let item = &self.items[*item];
            let asked = item.events.difference(HOW);
            item.due && ready(self, item.object).intersects(asked)
        };
        let EpollSet { ready: queue, kernels, .. } = &self.sets[set];
        queue.iter().any(has_events) || kernels.as_ref().is_some_and(KernelSet::is_readable)
    }

    /// Whether a set has items in its queue, or events of the kernel's.
    pub(crate) fn has_queue(&self, set: u32) -> bool {
        let EpollSet { ready, kernels, .. } = &self.sets[set];
        !ready.is_empty() || kernels.as_ref().is_some_and(KernelSet::is_readable)
    }

    // -- epoll_wait

    /// Collects the events of a set, as far as there is room for them: the kernel's part first,
    /// then ours. `ready` is what an object is ready for now.
    #[inline]
    pub(crate) fn collect(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        ready: &impl Fn(&Self, u32) -> Events,
    ) -> Result<usize, Error> {
        let EpollSet { ready: queue, kernels, .. } = &self.sets[set];
        let own = queue.len();
        if kernels.is_some() {
            return self.collect_both(set, out, own, ready);
        }
        match queue[..] {
            [] => Ok(0),
            // Of one connection: it stays where it is, until it is due again.
            [only] if !self.items[only].due => Ok(0),
            _ => Ok(self.collect_own(set, out, ready)),
        }
    }

    #[inline(never)]
    fn collect_both(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        own: usize,
        ready: &impl Fn(&Self, u32) -> Events,
    ) -> Result<usize, Error> {
        let kernels = self.collect_kernels(set, out, own)?;
        let count = kernels + self.collect_own(set, &mut out[kernels..], ready);
        // Ours had the only place and did not need it.
        if count == 0 && own > 0 { self.collect_kernels(set, out, 0) } else { Ok(count) }
    }

    /// Lets the kernel fill its share of `out`, where `own` items of ours may have events.
    fn collect_kernels(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        own: usize,
    ) -> Result<usize, Error> {
        match self.kernels(set) {
            Some(kernels) => kernels.take_share(out, own),
            None => Ok(0),
        }
    }

    /// Collects the events of the items in the queue. Each is looked at once; those that are
    /// reported again, because they are level triggered, stay, behind those that were not looked
    /// at.
    fn collect_own(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        ready: &impl Fn(&Self, u32) -> Events,
    ) -> usize {
        let mut queue = std::mem::take(&mut self.sets[set].ready);
        let (mut count, mut looked, mut kept) = (0, 0, 0);
        while let Some(index) = queue.get(looked).copied()
            && let Some(place) = out.get_mut(count)
        {
            looked += 1;
            let Some((event, stays)) = self.report(index, ready) else { continue };
            *place = event;
            count += 1;
            if stays {
                queue[kept] = index;
                kept += 1;
            }
        }
        if looked == queue.len() {
            queue.truncate(kept);
        } else {
            queue.drain(kept..looked);
            queue.rotate_left(kept);
        }
        self.sets[set].ready = queue;
        count
    }

    /// The event that an item of a queue reports, and whether the item stays there. One that has
    /// nothing to report leaves it.
    #[inline]
    fn report(
        &mut self,
        index: u32,
        ready: &impl Fn(&Self, u32) -> Events,
    ) -> Option<(EpollEvent, bool)> {
        let EpollItem { set, object, due, .. } = self.items[index];
        if !due {
            self.items[index].queued = false;
            if object == NIL {
                self.sets[set].removed -= 1;
                self.items.remove(index);
            }
            return None;
        }
        let ready = ready(self, object);
        let item = &mut self.items[index];
        // What an object is ready for has none of the bits of `HOW`.
        let events = item.events & ready;
        let stays = !events.is_empty() && !item.events.intersects(ONCE);
        (item.queued, item.due) = (stays, stays);
        if events.is_empty() {
            return None;
        }
        if item.events.contains(Events::ONE_SHOT) {
            item.events &= HOW;
        }
        Some((EpollEvent { events, data: item.data }, stays))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One set, with one item for object 7, which is watched from `first` on.
    struct Watching {
        sets: EpollSets,
        item: u32,
        first: u32,
    }

    impl Watching {
        fn new(events: Events) -> Self {
            let (mut sets, mut first) = (EpollSets::default(), NIL);
            sets.reserve_one().unwrap();
            sets.create(1);
            let watched = WatchedFd { object: 7, set: None, number: 3 };
            let item = sets.add(0, watched, EpollEvent { events, data: 42 }, &mut first).unwrap();
            Self { sets, item, first }
        }

        /// One call of epoll_wait(2), while the object is ready for `ready`.
        fn wait(&mut self, ready: Events) -> Vec<(Events, u64)> {
            let mut out = [EpollEvent::default(); 4];
            let count = self.sets.collect(0, &mut out, &|_: &EpollSets, _| ready).unwrap();
            out[..count].iter().map(|event| (event.events, event.data)).collect()
        }
    }

    #[test]
    fn level_triggered_item_is_reported_until_it_is_not_ready() {
        let mut watching = Watching::new(Events::IN);
        assert_eq!(watching.wait(Events::IN), [], "nothing has happened");
        assert_eq!(watching.sets.queue(watching.item), 1);
        for _ in 0..3 {
            assert_eq!(watching.wait(Events::IN | Events::OUT), [(Events::IN, 42)]);
        }
        assert_eq!(watching.wait(Events::OUT), []);
        assert_eq!(watching.wait(Events::IN), [], "it has left the queue");
    }

    #[test]
    fn edge_triggered_item_is_reported_once_for_each_event() {
        let mut watching = Watching::new(Events::IN | Events::EDGE);
        for _ in 0..2 {
            watching.sets.queue(watching.item);
            assert_eq!(watching.wait(Events::IN), [(Events::IN, 42)]);
            assert_eq!(watching.wait(Events::IN), []);
        }
    }

    #[test]
    fn one_shot_item_is_silent_until_it_is_changed() {
        let mut watching = Watching::new(Events::IN | Events::ONE_SHOT);
        watching.sets.queue(watching.item);
        assert_eq!(watching.wait(Events::IN), [(Events::IN, 42)]);
        watching.sets.queue(watching.item);
        assert_eq!(watching.wait(Events::IN), []);
        let event = EpollEvent { events: Events::IN, data: 43 };
        assert_eq!(watching.sets.change(watching.item, event), Ok(()));
        watching.sets.queue(watching.item);
        assert_eq!(watching.wait(Events::IN), [(Events::IN, 43)]);
    }

    #[test]
    fn settled_item_is_not_looked_at() {
        let mut watching = Watching::new(Events::IN);
        watching.sets.queue(watching.item);
        watching.sets.settle(watching.first, Events::OUT);
        assert_eq!(watching.wait(Events::IN), [], "a call has read everything");
        watching.sets.queue(watching.item);
        watching.sets.settle(watching.first, Events::IN);
        assert_eq!(watching.wait(Events::IN), [(Events::IN, 42)], "a call has left something");
    }

    #[test]
    fn members_are_those_that_were_added_and_not_removed() {
        let mut watching = Watching::new(Events::IN | Events::EDGE);
        let event = EpollEvent { events: Events::IN | Events::EDGE | Events::ALWAYS, data: 42 };
        assert_eq!(watching.sets.members_of(0), [(3, 7, event)]);
        assert_eq!(watching.sets.objects_of(0), [7]);
        watching.sets.withhold_all();
        assert!(watching.sets.is_withheld(0));
        watching.sets.end_withholding(0);
        assert!(!watching.sets.is_withheld(0));
        watching.sets.queue(watching.item);
        watching.sets.remove(watching.item, &mut watching.first);
        assert!(watching.sets.members_of(0).is_empty() && watching.sets.objects_of(0).is_empty());
    }

    #[test]
    fn removed_item_reports_nothing_and_its_set_closes() {
        let mut watching = Watching::new(Events::IN);
        watching.sets.queue(watching.item);
        watching.sets.remove(watching.item, &mut watching.first);
        assert_eq!((watching.first, watching.sets.last_member(0)), (NIL, None));
        watching.sets.close(0);
        assert_eq!((watching.sets.items.len(), watching.sets.sets.len()), (0, 0));
    }

    #[test]
    fn queue_stays_short_while_members_come_and_go() {
        let mut watching = Watching::new(Events::IN);
        for _ in 0..1000 {
            watching.sets.queue(watching.item);
            watching.sets.remove(watching.item, &mut watching.first);
            let watched = WatchedFd { object: 7, set: None, number: 3 };
            let event = EpollEvent { events: Events::IN, data: 42 };
            watching.item = watching.sets.add(0, watched, event, &mut watching.first).unwrap();
            let EpollSet { ready, members, .. } = &watching.sets.sets[0];
            assert!(ready.len() <= 2 && ready.capacity() > ready.len() && members.len() == 1);
        }
        watching.sets.queue(watching.item);
        assert_eq!(watching.wait(Events::IN), [(Events::IN, 42)]);
        assert_eq!((watching.sets.sets[0].removed, watching.sets.items.len()), (0, 1));
    }

    #[test]
    fn exclusive_items_stand_behind_the_others() {
        let mut watching = Watching::new(Events::IN | Events::EXCLUSIVE);
        let exclusive = watching.item;
        watching.sets.reserve_one().unwrap();
        watching.sets.create(2);
        let watched = WatchedFd { object: 7, set: None, number: 3 };
        let event = EpollEvent { events: Events::IN, data: 1 };
        let plain = watching.sets.add(1, watched, event, &mut watching.first).unwrap();
        assert_eq!(watching.first, plain);
        assert_eq!(watching.sets.watcher(plain).1, exclusive);
        assert_eq!(watching.sets.change(exclusive, event), Err(Error::InvalidArgument));
        assert_eq!(watching.sets.find(0, 3, watching.first), Some(exclusive));
    }

    #[test]
    fn sets_in_a_circle_are_refused() {
        let mut sets = EpollSets::default();
        // The objects of sets 0 and 1 are 0 and 1; `firsts` are the lists of their watchers.
        let mut firsts = [NIL; 2];
        for object in [0, 1] {
            sets.reserve_one().unwrap();
            sets.create(object);
        }
        assert_eq!(sets.check_depth(0, 1, &|object| firsts[object as usize]), Ok(()));
        let watched = WatchedFd { object: 1, set: Some(1), number: 3 };
        let _ = sets.add(0, watched, EpollEvent::default(), &mut firsts[1]).unwrap();
        let first = |object: u32| firsts[object as usize];
        assert_eq!(sets.check_depth(1, 0, &first), Err(Error::Loop));
    }
}
