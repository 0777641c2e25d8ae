//! Calls that close and duplicate descriptors.
//!
//! The kernel keeps the numbers: a duplicate of a placeholder is a placeholder. The child of a
//! vfork has its own descriptors and its parent's memory, so it changes only the kernel's, and a
//! view of its own (`child_views.rs`).

use std::ffi::{c_int, c_uint};

use megapipe_sockets::{Bsd, Error};

use super::answer;
use crate::foreign_children;
use crate::fork_sharing;
use crate::inherited_sets;
use crate::nested_sets;
use crate::next::interpose;
use crate::numbers::{self, NumberEntry, child_views};
use crate::raw::{c_call, set_errno, system_call};
use crate::records::{RECORDS, anchor, place_anchor};
use crate::stack;

interpose! {
    /// close(2).
    fn close(fd: c_int) -> c_int |pass| {
        match numbers::entry(fd) {
            NumberEntry::Kernel => pass(),
            NumberEntry::Own => answer(Err(Error::BadDescriptor)),
            _ if foreign_children::is_foreign() => pass(),
            _ => {
                let closed = detach(fd);
                let passed = pass();
                match closed {
                    Ok(()) => passed,
                    Err(error) => answer(Err(error)),
                }
            }
        }
    }

    /// close_range(2). The library's own descriptors stay open.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int |pass| {
        if flags != 0 || numbers::known(first, last).next().is_none() {
            return pass();
        }
        close_known(first, last)
    }

    /// closefrom(3). The library's own descriptors stay open.
    fn closefrom(first: c_int) -> c_int |pass| {
        let first = c_uint::try_from(first).unwrap_or(0);
        if numbers::known(first, c_uint::MAX).next().is_none() {
            return pass();
        }
        close_known(first, c_uint::MAX)
    }

    /// dup(2).
    fn dup(fd: c_int) -> c_int |pass| {
        duplicated(fd, pass)
    }

    /// dup2(2).
    fn dup2(old: c_int, new: c_int) -> c_int |pass| {
        duplicated_to(old, new, pass)
    }

    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int |pass| {
        duplicated_to(old, new, pass)
    }
}

/// The number is no longer of the library: the kernel has given it to another file.
#[inline]
pub(super) fn reap(fd: c_int) {
    if fd >= 0 && !numbers::is_kernel(fd) {
        reap_cold(fd);
    }
}

#[cold]
fn reap_cold(fd: c_int) {
    if !foreign_children::is_foreign() {
        // libc closed it without a call that the library sees.
        let _ = detach(fd);
    }
}

/// Releases what a number stands for, except in the kernel.
///
/// # Errors
/// As close(2).
pub(super) fn detach(fd: c_int) -> Result<(), Error> {
    if inherited_sets::has_any() {
        stack::enter(|| {
            let _records = RECORDS.lock();
            inherited_sets::forget(fd);
            Ok(())
        })?;
    }
    match numbers::entry(fd) {
        NumberEntry::Stack(inner) => {
            numbers::set(fd, NumberEntry::Kernel);
            stack::with_stack(|sockets| sockets.close(inner))
        }
        NumberEntry::Set(inner) => {
            numbers::set(fd, NumberEntry::Kernel);
            stack::with_stack(|sockets| {
                RECORDS.lock().forget_set(fd);
                sockets.close(inner)
            })
        }
        NumberEntry::PendingSet => stack::enter(|| {
            let mut records = RECORDS.lock();
            // Another thread may have started the stack meanwhile.
            let entry = numbers::set(fd, NumberEntry::Kernel);
            records.forget_set(fd);
            match (entry, stack::context()) {
                (NumberEntry::Set(inner), Some(mut context)) => context.close(inner),
                _ => Ok(()),
            }
        }),
        NumberEntry::Recorded(_) => stack::enter(|| {
            let inner = RECORDS.lock().forget(fd);
            match (inner, stack::context()) {
                (Some(inner), Some(mut context)) => context.close(inner),
                _ => Ok(()),
            }
        }),
        // The last close of a token ends an ownership.
        NumberEntry::Parent | NumberEntry::Token => {
            numbers::set(fd, NumberEntry::Kernel);
            Ok(())
        }
        NumberEntry::Inherited(place) => {
            numbers::set(fd, NumberEntry::Kernel);
            stack::enter(|| {
                fork_sharing::release(&RECORDS.lock(), place);
                Ok(())
            })
        }
        NumberEntry::Kernel | NumberEntry::Own => Ok(()),
    }
}

fn close_known(first: c_uint, last: c_uint) -> c_int {
    let is_foreign = foreign_children::is_foreign();
    let mut from = first;
    for (fd, entry) in numbers::known(first, last) {
        if entry == NumberEntry::Own {
            let own = fd.cast_unsigned();
            if own > from {
                close_in_kernel(from, own - 1);
            }
            from = own + 1;
        } else if !is_foreign {
            // close_range(2) reports no error of a descriptor.
            let _ = detach(fd);
        }
    }
    if from <= last {
        close_in_kernel(from, last);
    }
    0
}

fn close_in_kernel(first: c_uint, last: c_uint) {
    // SAFETY: takes integers; the program owns these descriptors.
    unsafe { c_call(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0, 0]) };
}

/// dup(2) and fcntl(2) with F_DUPFD: the kernel chooses the number.
pub(super) fn duplicated(fd: c_int, pass: impl FnOnce() -> c_int) -> c_int {
    if numbers::entry(fd) == NumberEntry::Own {
        return answer(Err(Error::BadDescriptor));
    }
    let new = pass();
    if new >= 0 {
        reap(new);
        return copied(fd, new);
    }
    new
}

fn duplicated_to(old: c_int, new: c_int, pass: impl FnOnce() -> c_int) -> c_int {
    let (of_old, of_new) = (numbers::entry(old), numbers::entry(new));
    let are_kernels = (of_old, of_new) == (NumberEntry::Kernel, NumberEntry::Kernel);
    let is_foreign = foreign_children::is_foreign();
    if (are_kernels && !is_foreign && !nested_sets::was_set(old)) || old == new {
        return pass();
    }
    if of_old == NumberEntry::Own || of_new == NumberEntry::Own {
        return answer(Err(Error::BadDescriptor));
    }
    let passed = pass();
    if passed < 0 {
        return passed;
    }
    if !is_foreign {
        let _ = detach(new);
    }
    copied(old, new)
}

/// `new` is a duplicate of a recorded socket, which another thread may have given to the stack
/// before or after the kernel duplicated it.
fn duplicate_recorded(old: c_int, new: c_int) -> Result<(), Error> {
    let mut records = RECORDS.lock();
    if !records.duplicate(old, new)
        && let (NumberEntry::Stack(inner), Some(mut context)) =
            (numbers::entry(old), stack::context())
    {
        place_anchor(anchor()?, new)?;
        numbers::set(new, NumberEntry::Stack(context.fcntl(inner, libc::F_DUPFD, 0)?));
    }
    Ok(())
}

/// `new` is a duplicate of `old` in the kernel: it stands for the same.
fn copied(old: c_int, new: c_int) -> c_int {
    if foreign_children::is_foreign() {
        child_views::duplicate(old, new);
        return new;
    }
    let entry = numbers::entry(old);
    if entry == NumberEntry::Kernel && !nested_sets::was_set(old) {
        return new;
    }
    let copy = || match entry {
        NumberEntry::Stack(inner) => {
            let inner = stack::with_stack(|it| it.fcntl(inner, libc::F_DUPFD, 0))?;
            numbers::set(new, NumberEntry::Stack(inner));
            Ok(())
        }
        NumberEntry::Set(inner) => {
            let inner = stack::with_stack(|it| it.fcntl(inner, libc::F_DUPFD, 0))?;
            numbers::set(new, NumberEntry::Set(inner));
            Ok(())
        }
        NumberEntry::Recorded(_) => stack::enter(|| duplicate_recorded(old, new)),
        NumberEntry::Parent | NumberEntry::Inherited(_) | NumberEntry::Token => {
            numbers::set(new, entry);
            Ok(())
        }
        NumberEntry::PendingSet | NumberEntry::Kernel => {
            // From a signal handler that interrupted the library: it stays the kernel's.
            let _ = stack::enter(|| {
                let mut records = RECORDS.lock();
                numbers::set(new, entry);
                nested_sets::note_created(new);
                records.nested.note_duplicate(old, new);
                Ok(())
            });
            Ok(())
        }
        NumberEntry::Own => Ok(()),
    };
    match copy() {
        Ok(()) => new,
        Err(error) => {
            // SAFETY: takes an integer; the duplicate was made for this call.
            unsafe { system_call(libc::SYS_close, [new as usize, 0, 0, 0, 0, 0]) };
            set_errno(error.raw_os_error());
            -1
        }
    }
}
