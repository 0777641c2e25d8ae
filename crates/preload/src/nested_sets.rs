//! Sets of the kernel that are members of other sets, or have several descriptors. When one gets
//! sockets of the stack, the sets that have it as a member and its other descriptors follow.
//!
//! Read first: `calls/sets.rs`; epoll(7) on sets that watch sets.
//!
//! Descriptors of the kernel are closed without a look at this list, so an entry may be old: the
//! kernel says whether it is.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use megapipe_sockets::{EpollEvent, EpollOp};

use crate::kernel_waits::kernel_part;
use crate::numbers::NUMBERS_MAX;
use crate::raw::{NO_EVENT, epoll_control};

/// The numbers that epoll_create(2), or dup(2) of a set, has returned, a bit each.
static SETS: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

/// Whether a number was a set's.
#[inline]
pub(crate) fn was_set(fd: c_int) -> bool {
    let word = SETS.get(fd as usize / 64);
    fd >= 0 && word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (fd % 64)) != 0)
}

/// A number is a new set's. Returns whether it was another set's before.
pub(crate) fn note_created(fd: c_int) -> bool {
    match SETS.get(fd as usize / 64) {
        Some(word) if fd >= 0 => {
            let bit = 1 << (fd % 64);
            word.fetch_or(bit, Ordering::Relaxed) & bit != 0
        }
        _ => false,
    }
}

/// A set that is a member of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NestedSet {
    outer: c_int,
    inner: c_int,
    event: EpollEvent,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct NestedSets {
    nested: Vec<NestedSet>,
    /// Descriptors of one set.
    duplicates: Vec<Vec<c_int>>,
}

impl NestedSets {
    pub(crate) const fn new() -> Self {
        Self { nested: Vec::new(), duplicates: Vec::new() }
    }

    /// `new` is a duplicate of `old`, which is a set.
    pub(crate) fn note_duplicate(&mut self, old: c_int, new: c_int) {
        self.leave_duplicates(new);
        match self.duplicates.iter_mut().find(|group| group.contains(&old)) {
            Some(group) => group.push(new),
            None => self.duplicates.push(vec![old, new]),
        }
    }

    /// The other descriptors of a set. `probe` is a descriptor that may join sets.
    pub(crate) fn duplicates_of(&self, set: c_int, probe: c_int) -> Vec<c_int> {
        let group = self.duplicates.iter().find(|group| group.contains(&set));
        let others = group.into_iter().flatten().copied();
        others.filter(|other| *other != set && is_same_set(set, *other, probe)).collect()
    }

    fn leave_duplicates(&mut self, fd: c_int) {
        for group in &mut self.duplicates {
            group.retain(|number| *number != fd);
        }
        self.duplicates.retain(|group| group.len() > 1);
    }

    /// Notes an epoll_ctl(2) that the kernel has accepted.
    pub(crate) fn note(&mut self, outer: c_int, inner: c_int, op: EpollOp) {
        self.nested.retain(|nested| (nested.outer, nested.inner) != (outer, inner));
        if let EpollOp::Add(event) | EpollOp::Modify(event) = op {
            self.nested.push(NestedSet { outer, inner, event });
        }
    }

    /// A number is a new set's.
    pub(crate) fn forget(&mut self, fd: c_int) {
        self.nested.retain(|nested| nested.outer != fd && nested.inner != fd);
        self.leave_duplicates(fd);
    }

    /// The sets that have `inner` as a member.
    pub(crate) fn outer_of(&self, inner: c_int) -> Vec<c_int> {
        self.nested
            .iter()
            .filter(|nested| nested.inner == inner)
            .map(|nested| nested.outer)
            .collect()
    }

    /// Takes `inner` out of the kernel's sets that have it. Returns them, with their events.
    pub(crate) fn take_out(&mut self, inner: c_int) -> Vec<(c_int, EpollEvent)> {
        let is_in = |nested: &mut NestedSet| nested.inner == inner;
        let taken: Vec<_> = self.nested.extract_if(.., is_in).collect();
        let outer = taken.into_iter().filter(|nested| {
            // It is refused where there is no such set or member any more.
            epoll_control(nested.outer, libc::EPOLL_CTL_DEL, inner, NO_EVENT) == 0
        });
        outer.map(|nested| (nested.outer, nested.event)).collect()
    }
}

/// Whether two numbers are descriptors of one set: what has joined it by the one is refused by the
/// other.
fn is_same_set(one: c_int, other: c_int, probe: c_int) -> bool {
    let change = |set: c_int, operation: c_int| {
        // At most one event, which the library's waits take out.
        let event = libc::epoll_event { events: libc::EPOLLET as u32, u64: kernel_part() };
        epoll_control(set, operation, probe, event)
    };
    if change(one, libc::EPOLL_CTL_ADD) != 0 {
        return false;
    }
    let refused = change(other, libc::EPOLL_CTL_ADD);
    if refused == 0 {
        change(other, libc::EPOLL_CTL_DEL);
    }
    change(one, libc::EPOLL_CTL_DEL);
    refused == -(libc::EEXIST as isize)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use megapipe_sockets::Events;
    use rustix::event::epoll;

    use super::*;

    const EVENT: EpollEvent = EpollEvent { events: Events::IN, data: 7 };

    #[test]
    fn numbers_of_sets_are_known_and_others_are_not() {
        let (first, last) = (64 * 1000, NUMBERS_MAX as c_int - 1);
        assert!(!was_set(first) && !was_set(-1) && !was_set(c_int::MAX));
        assert!(!note_created(first) && note_created(first) && was_set(first));
        assert!(!was_set(first + 1) && !was_set(first - 1));
        assert!(!note_created(last) && was_set(last));
        assert!(!note_created(c_int::MAX) && !was_set(c_int::MAX) && !note_created(-1));
    }

    #[test]
    fn members_are_taken_out_of_the_kernels_sets_where_they_still_are() {
        let sets = [(); 4].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let [inner, outer, closed, other] = sets.each_ref().map(AsRawFd::as_raw_fd);
        let data = epoll::EventData::new_u64(7);
        epoll::add(&sets[1], &sets[0], data, epoll::EventFlags::IN).unwrap();
        let mut nested = NestedSets::new();
        nested.note(outer, inner, EpollOp::Add(EVENT));
        nested.note(closed, inner, EpollOp::Add(EVENT));
        nested.note(other, inner, EpollOp::Add(EVENT));
        nested.note(other, inner, EpollOp::Delete);
        nested.note(outer, other, EpollOp::Modify(EVENT));
        assert_eq!(nested.outer_of(inner), [outer, closed]);
        assert_eq!(nested.take_out(inner), [(outer, EVENT)], "the other never had it");
        assert!(epoll::delete(&sets[1], &sets[0]).is_err(), "it is out");
        assert!(nested.take_out(inner).is_empty());
        assert_eq!(nested.outer_of(other), [outer]);
        nested.forget(outer);
        assert!(nested.outer_of(other).is_empty());
    }

    #[test]
    fn duplicates_of_a_set_are_known_and_checked() {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let copy = set.try_clone().unwrap();
        let other = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (probe, _end) = std::io::pipe().unwrap();
        let probe = probe.as_raw_fd();
        let [set, copy, other] = [&set, &copy, &other].map(AsRawFd::as_raw_fd);
        let mut nested = NestedSets::new();
        assert!(nested.duplicates_of(set, probe).is_empty());
        nested.note_duplicate(set, copy);
        // The number of a closed duplicate is another set's.
        nested.note_duplicate(set, other);
        assert_eq!(nested.duplicates_of(set, probe), [copy]);
        assert_eq!(nested.duplicates_of(copy, probe), [set]);
        assert!(nested.duplicates_of(other, probe).is_empty());
        nested.forget(copy);
        assert!(nested.duplicates_of(set, probe).is_empty());
    }
}
