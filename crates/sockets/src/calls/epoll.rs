//! epoll_create1(2), epoll_ctl(2) and epoll_wait(2): one attempt.
//!
//! Read first: epoll(7); `epoll_set.rs`, and `foreign_fds.rs` for members of the process.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::attempt::{Attempt, Wait};
use crate::descriptors::Fd;
use crate::epoll_set::{WatchedFd, check_exclusive};
use crate::error::Error;
use crate::flags::{EpollEvent, EpollOp, Events, OpenFlags};
use crate::foreign_fds::AnyFd;
use crate::kernel;
use crate::limits::EVENTS_MAX;
use crate::table::{NamedFd, ObjectKind, Sockets};

/// epoll_create1(2).
pub(super) fn create(sockets: &mut Sockets, flags: OpenFlags) -> Result<Fd, Error> {
    if !OpenFlags::CLOEXEC.contains(flags) {
        return Err(Error::InvalidArgument);
    }
    let fd = sockets.reserve_one()?;
    sockets.sets.reserve_one()?;
    let set = sockets.sets.next();
    let object = sockets.insert(ObjectKind::Epoll(set), false);
    sockets.sets.create(object);
    sockets.name(fd, object, flags)?;
    Ok(fd)
}

/// The set behind a descriptor, and its object.
fn set_of(sockets: &Sockets, fd: Fd) -> Result<(u32, u32), Error> {
    let object = sockets.descriptors.object(fd)?;
    match sockets.object(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Epoll(set)) => Ok((*set, object)),
        _ => Err(Error::InvalidArgument),
    }
}

/// The members of a set that are descriptors of the context, by the numbers by which they joined. A
/// number of which `fd_of` returns no descriptor of the member is left out.
pub(crate) fn members(
    sockets: &Sockets,
    set: Fd,
    fd_of: impl Fn(RawFd) -> Option<Fd>,
) -> Result<Vec<(RawFd, EpollEvent)>, Error> {
    let (set, _) = set_of(sockets, set)?;
    let is_open = |number: RawFd, object: u32| {
        fd_of(number).is_some_and(|fd| sockets.descriptors.object(fd) == Ok(object))
    };
    let members = sockets.sets.members_of(set).into_iter();
    let open = members.filter(|(number, object, _)| is_open(*number, *object));
    Ok(open.map(|(number, _, event)| (number, event)).collect())
}

/// epoll_ctl(2). `number` is the one by which the member joined, or joins.
pub(super) fn control(
    sockets: &mut Sockets,
    epoll: Fd,
    op: EpollOp,
    member: AnyFd<'_>,
    number: RawFd,
) -> Result<(), Error> {
    // In the kernel's order: both descriptors, then what they are.
    sockets.descriptors.object(epoll)?;
    let object = match (sockets.named(member)?, member) {
        (NamedFd::Object(object), AnyFd::Own(_)) => object,
        (NamedFd::Object(_), AnyFd::Process(_)) => return Err(Error::BadDescriptor),
        (NamedFd::Process(fd), _) => return control_kernels(sockets, epoll, op, fd),
    };
    let (set, own) = set_of(sockets, epoll)?;
    if own == object {
        return Err(Error::InvalidArgument);
    }
    let first = sockets.object(object).ok_or(Error::BadDescriptor)?.watchers;
    let found = sockets.sets.find(set, number, first);
    match op {
        EpollOp::Add(event) => {
            let inner = sockets.set_of_object(object);
            check_exclusive(event.events, inner.is_some())?;
            if let Some(inner) = inner {
                sockets.check_depth(set, inner)?;
            }
            if found.is_some() {
                return Err(Error::Exists);
            }
            sockets.resume_if_withheld(object);
            sockets.watch(set, WatchedFd { object, set: inner, number }, event)
        }
        EpollOp::Modify(event) => {
            if event.events.contains(Events::EXCLUSIVE) {
                return Err(Error::InvalidArgument);
            }
            let item = found.ok_or(Error::NotFound)?;
            sockets.sets.change(item, event)?;
            // As Linux: an item in the queue is not queued again, and makes no edge of its set.
            if !sockets.sets.is_due(item) {
                sockets.queue_if_ready(item, object);
            }
            Ok(())
        }
        EpollOp::Delete => {
            sockets.unwatch(found.ok_or(Error::NotFound)?, object);
            Ok(())
        }
    }
}

/// epoll_ctl(2) where the member is the process's.
fn control_kernels(sockets: &mut Sockets, epoll: Fd, op: EpollOp, fd: RawFd) -> Result<(), Error> {
    let set = match set_of(sockets, epoll) {
        Ok((set, _)) => set,
        Err(error) => {
            // In the kernel's order: first what is wrong with the member.
            kernel::check_pollable(fd)?;
            return Err(error);
        }
    };
    let Sockets { sets, lookout, channel, .. } = sockets;
    let kernels = match sets.kernels(set) {
        Some(kernels) => kernels,
        none => none.insert(lookout.open_set(channel, set)?),
    };
    kernels.control(op, fd)
}

/// epoll_wait(2). `timeout`: `None` waits for ever, zero not at all.
pub(super) fn wait(
    sockets: &mut Sockets,
    epoll: Fd,
    out: &mut [EpollEvent],
    timeout: Option<Duration>,
    is_over: bool,
) -> Attempt<usize> {
    if out.is_empty() || out.len() > EVENTS_MAX {
        return Attempt::Done(Err(Error::InvalidArgument));
    }
    let (set, object) = match set_of(sockets, epoll) {
        Ok(set) => set,
        Err(error) => return Attempt::Done(Err(error)),
    };
    if sockets.sets.is_withheld(set) {
        sockets.resume(object);
    }
    sockets.descriptors.wake_resting();
    let count = match sockets.collect(set, out) {
        Ok(count) => count,
        Err(error) => return Attempt::Done(Err(error)),
    };
    if count > 0 {
        sockets.pass_on(set, object);
        // What a program answers leaves with its next call, also if it is never idle.
        return Attempt::Done(sockets.drive_behind(count));
    }
    if is_over {
        return Attempt::Done(Ok(0));
    }
    if timeout == Some(Duration::ZERO) {
        let driven = sockets.drive_and_look_out();
        return Attempt::Done(driven.and_then(|()| sockets.collect(set, out)));
    }
    Attempt::Wait(Wait::on_set(object, timeout))
}
