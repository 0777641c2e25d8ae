//! epoll: sets of descriptors, and who of them is ready.
//!
//! Read first: epoll(7), epoll_ctl(2), epoll_wait(2); `readiness.rs` for the bits themselves.
//!
//! An *item* is one descriptor in one set. What happens to an object reaches its items
//! ([`Sockets::notify`]), and those that asked for it join their set's ready queue; `epoll_wait`
//! takes them from there and asks each object what it is ready for *now*. An item that is level
//! triggered stays at the end of the queue after it was told, so that the next call looks at it
//! again; an edge-triggered one does not. A read that leaves an object not ready for what an item
//! asks settles the item where it is ([`Epolls::settle`]): the next call passes over it. Members
//! that are the process's are the kernel's part of the set (`process.rs`).
//!
//! Invariants
//! - An item is in its set's queue exactly while `queued` is set. One that is not `due` has been
//!   looked at since something last happened to its object, and has nothing to tell.
//! - An item that was taken out of its set while queued stays, without an object, until the queue
//!   gives it back.

use std::time::Duration;

use slab::Slab;

use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{Events, OpenFlags};
use crate::limits::{EVENTS_MAX, SET_DEPTH_MAX};
use crate::process::{AnyFd, KernelSet, Named};
use crate::sockets::{Attempt, Kind, NIL, Sockets, Wait};

/// What `epoll_ctl` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpollOp {
    /// EPOLL_CTL_ADD.
    Add(EpollEvent),
    /// EPOLL_CTL_MOD.
    Modify(EpollEvent),
    /// EPOLL_CTL_DEL.
    Delete,
}

/// What is watched for, or happened; and the program's own 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpollEvent {
    /// Which events.
    pub events: Events,
    /// Handed back as it is.
    pub data: u64,
}

/// The bits that say how, not what.
const HOW: Events =
    Events::EXCLUSIVE.union(Events::WAKEUP).union(Events::ONE_SHOT).union(Events::EDGE);

/// What is told once for each change.
const ONCE: Events = Events::ONE_SHOT.union(Events::EDGE);

/// What may stand beside EPOLLEXCLUSIVE.
const EXCLUSIVE_MAY: Events = Events::IN
    .union(Events::OUT)
    .union(Events::ALWAYS)
    .union(Events::WAKEUP)
    .union(Events::EDGE)
    .union(Events::EXCLUSIVE);

#[derive(Default)]
pub(crate) struct Epolls {
    sets: Slab<Set>,
    items: Slab<Item>,
}

struct Set {
    /// The set's own object.
    object: u32,
    /// Its part with descriptors of the process, once it has some.
    kernels: Option<KernelSet>,
    /// Items that may have something to tell, oldest first; and such as are settled.
    ready: Vec<u32>,
    members: Vec<u32>,
}

struct Item {
    set: u32,
    /// What it watches; `NIL`: nothing any more.
    object: u32,
    fd: Fd,
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

impl Epolls {
    /// The kernel's part of a set.
    pub(crate) fn kernels(&mut self, set: u32) -> &mut Option<KernelSet> {
        &mut self.sets[set as usize].kernels
    }

    /// A call has looked at an object, which is ready for `ready` now: the items from `first` on,
    /// which watch it, have nothing to tell but that.
    #[inline]
    pub(crate) fn settle(&mut self, first: u32, ready: Events) {
        let mut at = first;
        while let Some(item) = self.items.get_mut(at as usize) {
            if !item.events.intersects(ready) {
                item.due = false;
            }
            at = item.next;
        }
    }

    /// The set's own object, if there is such a set.
    pub(crate) fn object_of(&self, set: u32) -> Option<u32> {
        self.sets.get(set as usize).map(|set| set.object)
    }
}

impl Sockets {
    pub(crate) fn epoll_create(&mut self, flags: OpenFlags) -> Result<Fd, Error> {
        if !OpenFlags::CLOEXEC.contains(flags) {
            return Err(Error::InvalidArgument);
        }
        let fd = self.table.lowest_free(0)?;
        let set = Set { object: NIL, kernels: None, ready: Vec::new(), members: Vec::new() };
        let set = self.epolls.sets.insert(set);
        let object = self.insert(Kind::Epoll(set as u32), false);
        self.epolls.sets[set].object = object;
        self.name(fd, object, flags)?;
        Ok(fd)
    }

    /// The set behind a descriptor, and its object.
    pub(crate) fn set(&self, fd: Fd) -> Result<(u32, u32), Error> {
        let object = self.table.object(fd)?;
        match self.object(object).map(|entry| &entry.kind) {
            Some(Kind::Epoll(set)) => Ok((*set, object)),
            _ => Err(Error::InvalidArgument),
        }
    }

    pub(crate) fn epoll_ctl(
        &mut self,
        epoll: Fd,
        op: EpollOp,
        member: AnyFd<'_>,
    ) -> Result<(), Error> {
        // In the kernel's order: both descriptors, then what they are.
        self.table.object(epoll)?;
        let (object, fd) = match (self.named(member)?, member) {
            (Named::Object(object), AnyFd::Own(fd)) => (object, fd),
            (Named::Object(_), AnyFd::Process(_)) => return Err(Error::BadDescriptor),
            (Named::Process(fd), _) => return self.control_kernels(epoll, op, fd),
        };
        let (set, own) = self.set(epoll)?;
        if own == object {
            return Err(Error::InvalidArgument);
        }
        let found = self.item_of(set, object, fd);
        match op {
            EpollOp::Add(event) => {
                self.check_exclusive(event.events, object)?;
                self.check_depth(own, object)?;
                match found {
                    Some(_) => Err(Error::Exists),
                    None => self.add_item(set, object, (fd, event)),
                }
            }
            EpollOp::Modify(event) => {
                if event.events.contains(Events::EXCLUSIVE) {
                    return Err(Error::InvalidArgument);
                }
                let item = found.ok_or(Error::NotFound)?;
                // What was added as exclusive stays so.
                if self.epolls.items[item as usize].events.contains(Events::EXCLUSIVE) {
                    return Err(Error::InvalidArgument);
                }
                self.change_item(item, event);
                Ok(())
            }
            EpollOp::Delete => {
                self.remove_item(found.ok_or(Error::NotFound)?);
                Ok(())
            }
        }
    }

    fn check_exclusive(&self, events: Events, object: u32) -> Result<(), Error> {
        if !events.contains(Events::EXCLUSIVE) {
            return Ok(());
        }
        let is_set = matches!(self.object(object).map(|it| &it.kind), Some(Kind::Epoll(_)));
        if is_set || !EXCLUSIVE_MAY.contains(events) {
            return Err(Error::InvalidArgument);
        }
        Ok(())
    }

    /// A set that joins another must not contain it, nor make the nest too deep.
    fn check_depth(&self, outer: u32, inner: u32) -> Result<(), Error> {
        let Some(Kind::Epoll(_)) = self.object(inner).map(|entry| &entry.kind) else {
            return Ok(());
        };
        let below = self.depth_below(inner, outer, 0)?;
        let above = self.depth_above(outer, 0);
        if below + above > SET_DEPTH_MAX { Err(Error::Loop) } else { Ok(()) }
    }

    /// Levels of sets beneath a set, itself included.
    fn depth_below(&self, object: u32, forbidden: u32, level: usize) -> Result<usize, Error> {
        if object == forbidden || level > SET_DEPTH_MAX {
            return Err(Error::Loop);
        }
        let Some(Kind::Epoll(set)) = self.object(object).map(|entry| &entry.kind) else {
            return Ok(0);
        };
        let mut deepest = 0;
        for item in &self.epolls.sets[*set as usize].members {
            let member = self.epolls.items[*item as usize].object;
            deepest = deepest.max(self.depth_below(member, forbidden, level + 1)?);
        }
        Ok(deepest + 1)
    }

    /// Levels of sets that a set lies in.
    fn depth_above(&self, object: u32, level: usize) -> usize {
        if level > SET_DEPTH_MAX {
            return level;
        }
        let mut highest = 0;
        let mut item = self.object(object).map_or(NIL, |entry| entry.watchers);
        while let Some(watcher) = self.epolls.items.get(item as usize) {
            let outer = self.epolls.sets[watcher.set as usize].object;
            highest = highest.max(self.depth_above(outer, level + 1) + 1);
            item = watcher.next;
        }
        highest
    }

    fn item_of(&self, set: u32, object: u32, fd: Fd) -> Option<u32> {
        let mut at = self.object(object)?.watchers;
        while let Some(item) = self.epolls.items.get(at as usize) {
            if item.set == set && item.fd == fd {
                return Some(at);
            }
            at = item.next;
        }
        None
    }

    fn add_item(
        &mut self,
        set: u32,
        object: u32,
        (fd, event): (Fd, EpollEvent),
    ) -> Result<(), Error> {
        let members = &mut self.epolls.sets[set as usize].members;
        let place = members.len() as u32;
        let EpollEvent { events, data } = event;
        let events = events | Events::ALWAYS;
        let (next, queued, due) = (NIL, false, false);
        let item = Item { set, object, fd, events, data, next, place, queued, due };
        let item = self.epolls.items.insert(item) as u32;
        self.epolls.sets[set as usize].members.push(item);
        self.link(object, item);
        self.queue_if_ready(item);
        Ok(())
    }

    /// Puts an item among the watchers of its object: exclusive ones last, so that everybody else
    /// hears before one of them is chosen.
    fn link(&mut self, object: u32, item: u32) {
        let Some(entry) = self.objects.get_mut(object as usize) else { return };
        let items = &mut self.epolls.items;
        if !items[item as usize].events.contains(Events::EXCLUSIVE) {
            items[item as usize].next = entry.watchers;
            entry.watchers = item;
            return;
        }
        let mut last = entry.watchers;
        if last == NIL {
            entry.watchers = item;
            return;
        }
        // The list is short: the sets that watch one object.
        while items[last as usize].next != NIL {
            last = items[last as usize].next;
        }
        items[last as usize].next = item;
    }

    fn unlink(&mut self, object: u32, item: u32) {
        let next = self.epolls.items[item as usize].next;
        let Some(entry) = self.objects.get_mut(object as usize) else { return };
        if entry.watchers == item {
            entry.watchers = next;
            return;
        }
        let mut at = entry.watchers;
        while let Some(other) = self.epolls.items.get_mut(at as usize) {
            if other.next == item {
                other.next = next;
                return;
            }
            at = other.next;
        }
    }

    fn change_item(&mut self, item: u32, event: EpollEvent) {
        let entry = &mut self.epolls.items[item as usize];
        entry.events = event.events | Events::ALWAYS;
        entry.data = event.data;
        self.queue_if_ready(item);
    }

    fn queue_if_ready(&mut self, item: u32) {
        let Item { object, events, .. } = self.epolls.items[item as usize];
        if self.readiness(object).intersects(events.difference(HOW)) {
            self.queue(item);
        }
    }

    /// Takes an item out of its set.
    fn remove_item(&mut self, item: u32) {
        let object = self.epolls.items[item as usize].object;
        self.unlink(object, item);
        self.retire_item(item);
    }

    /// The item, which no object knows any more, leaves its set.
    fn retire_item(&mut self, item: u32) {
        let Epolls { sets, items } = &mut self.epolls;
        let Item { set, place, queued, .. } = items[item as usize];
        let members = &mut sets[set as usize].members;
        members.swap_remove(place as usize);
        if let Some(moved) = members.get(place as usize) {
            items[*moved as usize].place = place;
        }
        if queued {
            let item = &mut items[item as usize];
            (item.object, item.due) = (NIL, false);
        } else {
            items.remove(item as usize);
        }
    }

    /// An object is gone, and with it its items (epoll(7), question 6).
    pub(crate) fn forget_watchers(&mut self, object: u32) {
        let Some(entry) = self.object_mut(object) else { return };
        let mut item = std::mem::replace(&mut entry.watchers, NIL);
        while item != NIL {
            let next = self.epolls.items[item as usize].next;
            self.retire_item(item);
            item = next;
        }
    }

    pub(crate) fn close_set(&mut self, set: u32) {
        while let Some(item) = self.epolls.sets[set as usize].members.last().copied() {
            self.remove_item(item);
        }
        let closed = self.epolls.sets.remove(set as usize);
        for item in closed.ready {
            self.epolls.items.remove(item as usize);
        }
    }

    // -- events

    /// Something happened to an object: whoever watches it for that, or waits for it, hears.
    #[inline]
    pub(crate) fn notify(&mut self, object: u32, happened: Events) {
        let Some(entry) = self.objects.get(object as usize) else { return };
        let watchers = entry.watchers;
        if entry.sleepers > 0 {
            self.wakes.push(object);
        }
        self.notify_watchers(watchers, happened);
    }

    /// As `notify`, for the items from `first` on.
    #[inline]
    pub(crate) fn notify_watchers(&mut self, first: u32, happened: Events) {
        let mut item = first;
        while item != NIL {
            let Item { events, next, .. } = self.epolls.items[item as usize];
            if events.intersects(happened) {
                let woke = self.queue(item);
                // Of those that want to hear alone, one that wakes a thread is enough.
                if woke && events.contains(Events::EXCLUSIVE) {
                    return;
                }
            }
            item = next;
        }
    }

    /// Puts an item into its set's queue. Whether a thread waits for the set.
    #[inline]
    fn queue(&mut self, item: u32) -> bool {
        let Epolls { sets, items } = &mut self.epolls;
        let entry = &mut items[item as usize];
        let set = &mut sets[entry.set as usize];
        entry.due = true;
        if !entry.queued {
            entry.queued = true;
            set.ready.push(item);
        }
        let object = set.object;
        let Some(own) = self.objects.get(object as usize) else { return false };
        let is_awaited = own.sleepers > 0;
        if is_awaited || own.watchers != NIL {
            self.notify_outwards(object);
        }
        is_awaited
    }

    /// A set has something to tell: whoever waits for it, or watches it, hears.
    #[inline(never)]
    fn notify_outwards(&mut self, set: u32) {
        self.notify(set, Events::READABLE);
    }

    /// A set is readable when one of its items has something to tell.
    pub(crate) fn readiness_of_set(&self, set: u32) -> Events {
        let Epolls { sets, items } = &self.epolls;
        let tells = |item: &u32| {
            let item = &items[*item as usize];
            let asked = item.events.difference(HOW);
            item.due && self.readiness(item.object).intersects(asked)
        };
        let Set { ready, kernels, .. } = &sets[set as usize];
        if ready.iter().any(tells) || kernels.as_ref().is_some_and(KernelSet::is_readable) {
            return Events::READABLE;
        }
        Events::empty()
    }

    // -- epoll_wait

    /// `timeout`: `None` waits for ever, zero not at all.
    pub(crate) fn epoll_wait(
        &mut self,
        epoll: Fd,
        out: &mut [EpollEvent],
        (timeout, is_over): (Option<Duration>, bool),
    ) -> Attempt<usize> {
        if out.is_empty() || out.len() > EVENTS_MAX {
            return Attempt::Done(Err(Error::InvalidArgument));
        }
        let (set, object) = match self.set(epoll) {
            Ok(set) => set,
            Err(error) => return Attempt::Done(Err(error)),
        };
        self.table.wake_resting();
        let count = match self.collect(set, out) {
            Ok(count) => count,
            Err(error) => return Attempt::Done(Err(error)),
        };
        if count > 0 {
            self.pass_on(set, object);
            // What a program answers leaves with its next call, also if it is never idle.
            let driven = self.turn(Some(Duration::ZERO));
            return Attempt::Done(driven.map(|()| count));
        }
        if is_over {
            return Attempt::Done(Ok(0));
        }
        if timeout == Some(Duration::ZERO) {
            let driven = self.turn_and_look_out();
            return Attempt::Done(driven.and_then(|()| self.collect(set, out)));
        }
        Attempt::Wait(Wait::on_set(object, timeout))
    }

    /// A thread took what it had room for: if something is left, it is for the next one.
    fn pass_on(&mut self, set: u32, object: u32) {
        if self.object(object).is_none_or(|entry| entry.sleepers == 0) {
            return;
        }
        let Set { ready, kernels, .. } = &self.epolls.sets[set as usize];
        if !ready.is_empty() || kernels.as_ref().is_some_and(KernelSet::is_readable) {
            self.wakes.push(object);
        }
    }

    /// What a set has to tell now, as far as there is room for it: the kernel's part first, then
    /// ours.
    #[inline]
    fn collect(&mut self, set: u32, out: &mut [EpollEvent]) -> Result<usize, Error> {
        let Set { ready, kernels, .. } = &self.epolls.sets[set as usize];
        let own = ready.len();
        if kernels.is_some() {
            return self.collect_both(set, out, own);
        }
        match ready[..] {
            [] => Ok(0),
            // Of one connection: it stays where it is, until it is due again.
            [only] if !self.epolls.items[only as usize].due => Ok(0),
            _ => Ok(self.collect_own(set, out)),
        }
    }

    #[inline(never)]
    fn collect_both(
        &mut self,
        set: u32,
        out: &mut [EpollEvent],
        own: usize,
    ) -> Result<usize, Error> {
        let kernels = self.collect_kernels(set, out, own)?;
        let count = kernels + self.collect_own(set, &mut out[kernels..]);
        // Ours had the only place and did not need it.
        if count == 0 && own > 0 { self.collect_kernels(set, out, 0) } else { Ok(count) }
    }

    /// What the items that are in the queue now have to tell. Each is looked at once; those that
    /// are told again, because they are level triggered, stay, behind those that were not looked
    /// at.
    fn collect_own(&mut self, set: u32, out: &mut [EpollEvent]) -> usize {
        let mut ready = std::mem::take(&mut self.epolls.sets[set as usize].ready);
        let (mut count, mut looked, mut kept) = (0, 0, 0);
        while let Some(index) = ready.get(looked).copied()
            && let Some(place) = out.get_mut(count)
        {
            looked += 1;
            let Some((event, stays)) = self.ask_item(index) else { continue };
            *place = event;
            count += 1;
            if stays {
                ready[kept] = index;
                kept += 1;
            }
        }
        if looked == ready.len() {
            ready.truncate(kept);
        } else {
            ready.drain(kept..looked);
            ready.rotate_left(kept);
        }
        self.epolls.sets[set as usize].ready = ready;
        count
    }

    /// What an item of a queue has to tell, and whether it stays there. One that has nothing to
    /// tell leaves it.
    #[inline]
    fn ask_item(&mut self, index: u32) -> Option<(EpollEvent, bool)> {
        let Self { objects, epolls: Epolls { items, .. }, .. } = self;
        let mut item = &mut items[index as usize];
        if !item.due {
            item.queued = false;
            if item.object == NIL {
                items.remove(index as usize);
            }
            return None;
        }
        let ready = match objects.get(item.object as usize).map(|entry| &entry.kind) {
            Some(Kind::Stream(stream)) => stream.readiness(),
            _ => {
                let object = item.object;
                let ready = self.readiness(object);
                item = &mut self.epolls.items[index as usize];
                ready
            }
        };
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
