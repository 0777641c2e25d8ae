//! Sockets of the stack that are members of sets which the child of a fork inherits.
//!
//! Read first: `fork_sharing.rs`; `calls/sets.rs`.
//!
//! The kernel's part of a set is one for both processes, as on Linux. Of the stack's part the child
//! gets a copy: the thread that forks notes the members, and the child's own set gets them when the
//! child first waits for it. Until then epoll_ctl(2) changes what is noted. So a child that only
//! takes its parent's sockets out of a set, or closes it, adopts none of them.
//!
//! Invariants
//! - What is here is used under the lock of the records.
//! - [`COUNT`] is the number of members that are noted.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use megapipe_sockets::{EpollEvent, EpollOp, Error, SharedContext};

use crate::numbers::{self, NumberEntry};
use crate::state_lock::StateLock;

/// A member of a set that the child of a fork inherits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InheritedMember {
    set: c_int,
    /// The number by which it joined.
    number: c_int,
    event: EpollEvent,
}

/// Members that wait until this process uses their sets. Behind them, while a thread forks, those
/// of the sets that this process has.
static MEMBERS: StateLock<Vec<InheritedMember>> = StateLock::new(Vec::new());
/// How many of them are this process's.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether members wait until their sets are used.
#[inline]
pub(crate) fn has_any() -> bool {
    // Relaxed: changed under the lock of the records, and first of all by the fork itself.
    COUNT.load(Ordering::Relaxed) > 0
}

/// Before a fork: notes the members of the sets that the stack has.
pub(crate) fn prepare(context: &SharedContext) {
    let inner_of = |number| match numbers::entry(number) {
        NumberEntry::Stack(inner) | NumberEntry::Set(inner) => Some(inner),
        // A recorded listener knows its sets itself.
        _ => None,
    };
    let mut members = MEMBERS.lock();
    for (set, entry) in numbers::known(0, u32::MAX) {
        if let NumberEntry::Set(inner) = entry {
            let its = context.set_members(inner, inner_of).into_iter();
            members.extend(its.map(|(number, event)| InheritedMember { set, number, event }));
        }
    }
}

/// After a fork, in the parent.
pub(crate) fn resume() {
    MEMBERS.lock().truncate(COUNT.load(Ordering::Relaxed));
}

/// After a fork, in the child: the noted members are its own.
pub(crate) fn inherit() {
    COUNT.store(MEMBERS.lock().len(), Ordering::Relaxed);
}

/// epoll_ctl(2) on a member that is noted. `None`: it is not.
pub(crate) fn control((set, number): (c_int, c_int), op: EpollOp) -> Option<Result<(), Error>> {
    let mut members = MEMBERS.lock();
    let place = members.iter().position(|it| (it.set, it.number) == (set, number))?;
    match op {
        EpollOp::Add(_) => return Some(Err(Error::from_raw_os_error(libc::EEXIST))),
        EpollOp::Modify(event) => members[place].event = event,
        EpollOp::Delete => {
            members.remove(place);
            COUNT.store(members.len(), Ordering::Relaxed);
        }
    }
    Some(Ok(()))
}

/// Takes the noted members of a set: the number of each, and what was asked for it.
pub(crate) fn take_members(set: c_int) -> Vec<(c_int, EpollEvent)> {
    let taken = take(|member| member.set == set).into_iter();
    taken.map(|member| (member.number, member.event)).collect()
}

/// Whether a set has noted members.
pub(crate) fn has_members(set: c_int) -> bool {
    has_any() && MEMBERS.lock().iter().any(|member| member.set == set)
}

/// A member that was taken stays noted.
pub(crate) fn put_back(set: c_int, (number, event): (c_int, EpollEvent)) {
    let mut members = MEMBERS.lock();
    members.push(InheritedMember { set, number, event });
    COUNT.store(members.len(), Ordering::Relaxed);
}

/// A number is closed: it is no member any more, and the set behind it has none.
pub(crate) fn forget(number: c_int) {
    let other = match numbers::entry(number) {
        // Its duplicate stays a member.
        entry @ NumberEntry::Inherited(_) => {
            numbers::known(0, u32::MAX).find(|it| it.1 == entry && it.0 != number)
        }
        _ => None,
    };
    if let Some((other, _)) = other {
        for member in MEMBERS.lock().iter_mut().filter(|member| member.number == number) {
            member.number = other;
        }
    }
    take(|member| member.set == number || member.number == number);
}

fn take(is_taken: impl Fn(&InheritedMember) -> bool) -> Vec<InheritedMember> {
    let mut members = MEMBERS.lock();
    let taken: Vec<_> = members.extract_if(.., |member| is_taken(member)).collect();
    COUNT.store(members.len(), Ordering::Relaxed);
    taken
}

#[cfg(test)]
mod tests {
    use megapipe_sockets::Events;

    use super::*;

    const EVENT: EpollEvent = EpollEvent { events: Events::IN, data: 7 };

    fn noted() -> Vec<(c_int, c_int, u64)> {
        MEMBERS.lock().iter().map(|it| (it.set, it.number, it.event.data)).collect()
    }

    /// One test, because the list is the process's.
    #[test]
    fn noted_members_follow_the_calls_of_a_child() {
        let numbers = [910_001, 910_002, 910_003, 910_004];
        let [one, copy, other, third] = numbers;
        let (set, set_of_others) = (910_010, 910_011);
        let member = |set, number| InheritedMember { set, number, event: EVENT };
        MEMBERS.lock().extend([member(set, one), member(set, other), member(set_of_others, third)]);
        resume();
        assert!(noted().is_empty() && !has_any(), "they were the child's");
        MEMBERS.lock().extend([member(set, one), member(set, other), member(set_of_others, third)]);
        inherit();
        assert!(has_any());
        let control = |at, op| control(at, op).map(|done| done.map_err(errno));
        assert_eq!(control((set, third), EpollOp::Delete), None);
        assert_eq!(control((set, one), EpollOp::Add(EVENT)), Some(Err(libc::EEXIST)));
        let changed = EpollEvent { data: 8, ..EVENT };
        assert_eq!(control((set, one), EpollOp::Modify(changed)), Some(Ok(())));
        assert_eq!(control((set, other), EpollOp::Delete), Some(Ok(())));
        assert_eq!(control((set, other), EpollOp::Delete), None);
        assert_eq!(noted(), [(set, one, 8), (set_of_others, third, 7)]);
        // A number is closed that has a duplicate.
        for number in [one, copy] {
            numbers::set(number, NumberEntry::Inherited(3));
        }
        forget(one);
        assert_eq!(noted(), [(set, copy, 8), (set_of_others, third, 7)]);
        numbers::set(one, NumberEntry::Kernel);
        forget(copy);
        assert_eq!(noted(), [(set_of_others, third, 7)]);
        numbers::set(copy, NumberEntry::Kernel);
        // And a set.
        forget(set_of_others);
        assert!(!has_any());
    }

    fn errno(error: Error) -> c_int {
        error.raw_os_error()
    }
}
