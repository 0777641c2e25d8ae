//! Watching: the items of sets that watch an object, and the notifications that they get.
//!
//! Read first: `epoll_set.rs`.

use std::os::fd::AsRawFd;

use super::{NamedFd, ObjectKind, Sockets, readiness};
use crate::effects::Effects;
use crate::epoll_set::{EpollSets, WatchedFd};
use crate::error::Error;
use crate::flags::{EpollEvent, Events};
use crate::foreign_fds::AnyFd;
use crate::limits::NIL;

impl Sockets {
    /// The set that an object is, if it is one.
    pub(crate) fn set_of_object(&self, object: u32) -> Option<u32> {
        match self.object(object)?.kind {
            ObjectKind::Epoll(set) => Some(set),
            _ => None,
        }
    }

    /// Checks that set `inner` may join set `outer`.
    ///
    /// # Errors
    /// [`Error::Loop`].
    pub(crate) fn check_depth(&self, outer: u32, inner: u32) -> Result<(), Error> {
        let first = |object: u32| self.object(object).map_or(NIL, |entry| entry.watchers);
        self.sets.check_depth(outer, inner, &first)
    }

    /// Adds an object to a set.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn watch(
        &mut self,
        set: u32,
        watched: WatchedFd,
        event: EpollEvent,
    ) -> Result<(), Error> {
        let object = watched.object;
        let Some(entry) = self.objects.get_mut(object) else { return Ok(()) };
        let item = self.sets.add(set, watched, event, &mut entry.watchers)?;
        self.queue_if_ready(item, object);
        Ok(())
    }

    /// Takes an item, which watches an object, out of its set.
    pub(crate) fn unwatch(&mut self, item: u32, object: u32) {
        if let Some(entry) = self.objects.get_mut(object) {
            self.sets.remove(item, &mut entry.watchers);
        }
    }

    /// Queues an item if its object is ready for what it asks for.
    pub(crate) fn queue_if_ready(&mut self, item: u32, object: u32) {
        if self.sets.asks_for(item, self.readiness(object)) {
            self.queue(item);
        }
    }

    /// An object is gone, and with it the items that watch it.
    pub(crate) fn forget_watchers(&mut self, object: u32) {
        if let Some(entry) = self.objects.get_mut(object) {
            let first = std::mem::replace(&mut entry.watchers, NIL);
            self.sets.forget(first);
        }
    }

    pub(super) fn close_set(&mut self, set: u32) {
        while let Some((item, object)) = self.sets.last_member(set) {
            self.unwatch(item, object);
        }
        self.sets.close(set);
    }

    /// Collects the events of a set, as far as there is room for them.
    ///
    /// # Errors
    /// As epoll_wait(2), of the kernel's part.
    #[inline]
    pub(crate) fn collect(&mut self, set: u32, out: &mut [EpollEvent]) -> Result<usize, Error> {
        let Self { objects, pipes, sets, .. } = self;
        sets.collect(set, out, &|sets: &EpollSets, object| readiness(objects, pipes, sets, object))
    }

    /// A thread took what it had room for: if something is left, it is for the next one.
    pub(crate) fn pass_on(&mut self, set: u32, object: u32) {
        let Self { objects, sets, wakes, .. } = self;
        let Some(entry) = objects.get_mut(object) else { return };
        if entry.sleepers > 0 && sets.has_queue(set) {
            entry.wake_sleepers(object, wakes);
        }
    }

    /// What a descriptor that is to be watched stands for.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    pub(crate) fn named(&self, fd: AnyFd<'_>) -> Result<NamedFd, Error> {
        match fd {
            AnyFd::Process(fd) => Ok(NamedFd::Process(fd.as_raw_fd())),
            AnyFd::Own(fd) if self.process_below_first && self.descriptors.is_below(fd) => {
                Ok(NamedFd::Process(fd))
            }
            AnyFd::Own(fd) => self.descriptors.object(fd).map(NamedFd::Object),
        }
    }

    // -- effects and notifications

    /// Applies the effects of a call on an object, and returns the call's result.
    pub(crate) fn apply<T>(&mut self, object: u32, effects: Effects<T>) -> Result<T, Error> {
        self.notify_any(object, effects.events);
        effects.result
    }

    /// Notifies the watchers and waiters of an object's events, if there are any.
    #[inline]
    pub(crate) fn notify_any(&mut self, object: u32, events: Events) {
        if !events.is_empty() {
            self.notify(object, events);
        }
    }

    /// Notifies the watchers and waiters of an object's events.
    #[inline]
    pub(crate) fn notify(&mut self, object: u32, happened: Events) {
        let Some(entry) = self.objects.get_mut(object) else { return };
        let watchers = entry.watchers;
        if entry.sleepers > 0 {
            entry.wake_sleepers(object, &mut self.wakes);
        }
        // A call of another thread may have caused it, without a completion.
        self.happened = true;
        self.notify_watchers(watchers, happened);
    }

    /// Notifies the sets that watch an object that its program made room again itself. No thread
    /// waits for that: the call was not refused.
    #[inline]
    pub(crate) fn notify_sets_of_room(&mut self, object: u32) {
        let watchers = self.objects.get(object).map_or(NIL, |entry| entry.watchers);
        self.notify_watchers(watchers, Events::HAS_ROOM);
    }

    /// As `notify`, for the items from `first` on.
    #[inline]
    pub(super) fn notify_watchers(&mut self, first: u32, happened: Events) {
        let mut item = first;
        while item != NIL {
            let (events, next) = self.sets.watcher(item);
            if events.intersects(happened) {
                let woke = self.queue(item);
                // Of exclusive items, one that wakes a thread is enough.
                if woke && events.contains(Events::EXCLUSIVE) {
                    return;
                }
            }
            item = next;
        }
    }

    /// Puts an item into its set's queue. Returns whether a thread waits for the set.
    #[inline]
    fn queue(&mut self, item: u32) -> bool {
        let object = self.sets.queue(item);
        let Some(own) = self.objects.get(object) else { return false };
        let is_awaited = own.sleepers > 0;
        if is_awaited || own.watchers != NIL {
            self.notify_outwards(object);
        }
        is_awaited
    }

    /// Notifies the watchers and waiters of a set that has events.
    #[inline(never)]
    fn notify_outwards(&mut self, set: u32) {
        self.notify(set, Events::READABLE);
    }
}
