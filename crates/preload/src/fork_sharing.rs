//! Connections and UDP sockets of the stack that the child of a fork inherits, on the back end
//! `service`.
//!
//! Read first: `fork_sharing.rs` of `megapipe_sockets`; decision 0055.
//!
//! The thread that forks makes one token for all of them. The parent closes its copy after the
//! fork. The child keeps it: its numbers stand for sockets that it adopts when it uses them
//! first, in a stack of its own, which attaches by the token. A child that only closes and exits
//! starts no stack.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use megapipe_sockets::{Bsd, EpollOp, Error, SharedContext};

use crate::inheritance::{FORKING, ForkShare, INHERITED};
use crate::inherited_sets;
use crate::numbers::{self, NumberEntry};
use crate::received_tokens;
use crate::records::{RECORDS, RecordedSockets};
use crate::report;
use crate::stack;

/// Before a fork.
pub(crate) fn prepare() {
    if !stack::is_shared() {
        return;
    }
    let shared = catch_unwind(AssertUnwindSafe(share));
    match shared.unwrap_or(Err(Error::from_raw_os_error(libc::ENOTRECOVERABLE))) {
        Ok(shared) => *FORKING.lock() = shared,
        Err(error) => {
            report::note(format_args!("a child cannot use this process's sockets: {error}"));
        }
    }
    if let Some(context) = stack::context() {
        // A child has no members then.
        let _ = catch_unwind(AssertUnwindSafe(|| inherited_sets::prepare(context)));
    }
}

fn share() -> Result<Option<ForkShare>, Error> {
    let inherited = INHERITED.lock();
    let known = inherited.as_ref().map(|it| it.sockets.clone()).unwrap_or_default();
    let shared = stack::context().map(SharedContext::share_for_fork).transpose()?.flatten();
    if let Some(shared) = shared {
        let (first, mut sockets) = (known.len(), known);
        sockets.extend(shared.sockets);
        let places = shared.places.into_iter().map(|(fd, place)| (fd, first + place));
        return Ok(Some(ForkShare { token: shared.token, sockets, places: places.collect() }));
    }
    let Some(inherited) = inherited.as_ref() else { return Ok(None) };
    let has_unused =
        numbers::known(0, u32::MAX).any(|(_, entry)| matches!(entry, NumberEntry::Inherited(_)));
    let Some(token) = inherited.token().filter(|_| has_unused) else { return Ok(None) };
    let token = megapipe::copy_token(token);
    let token = token
        .map_err(|error| Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(Some(ForkShare { token, sockets: known, places: BTreeMap::new() }))
}

/// After a fork, in the parent.
pub(crate) fn resume() {
    inherited_sets::resume();
    if let Some(shared) = FORKING.lock().take() {
        drop(shared);
        if let Some(context) = stack::context() {
            context.resume_after_fork();
        }
    }
}

/// What a number stands for, after the socket behind it was adopted.
///
/// # Errors
/// ECONNRESET: what a token stands for has ended; ENETDOWN; as accept(2).
#[inline]
pub(crate) fn resolved(fd: c_int) -> Result<NumberEntry, Error> {
    match numbers::entry(fd) {
        NumberEntry::Inherited(place) => {
            stack::enter(|| {
                let records = RECORDS.lock();
                match numbers::entry(fd) {
                    NumberEntry::Inherited(now) if now == place => adopt(&records, place),
                    // Another thread was faster.
                    _ => Ok(()),
                }
            })?;
            Ok(numbers::entry(fd))
        }
        NumberEntry::Token => {
            stack::enter(|| {
                let records = RECORDS.lock();
                match numbers::entry(fd) {
                    NumberEntry::Token => received_tokens::adopt(&records, fd),
                    _ => Ok(()),
                }
            })?;
            Ok(numbers::entry(fd))
        }
        entry => Ok(entry),
    }
}

/// Adopts a socket: all its numbers stand for it in this process's stack.
fn adopt(records: &RecordedSockets, place: u32) -> Result<(), Error> {
    let socket = INHERITED.lock().as_ref().and_then(|it| it.sockets.get(place as usize).cloned());
    let socket = socket.ok_or(Error::BadDescriptor)?;
    let mut context = records.start_stack()?;
    let inner = context.adopt_inherited(&socket)?;
    let mut is_used = false;
    for (fd, entry) in numbers::known(0, u32::MAX) {
        if entry == NumberEntry::Inherited(place) {
            let of_number = match std::mem::replace(&mut is_used, true) {
                false => inner,
                true => context.fcntl(inner, libc::F_DUPFD, 0)?,
            };
            numbers::set(fd, NumberEntry::Stack(of_number));
        }
    }
    match is_used {
        true => Ok(()),
        // Another thread has closed its last number.
        false => context.close(inner),
    }
}

/// The noted members of a set that this process uses join it, and those of its members that are
/// sets. One that this process cannot have is left out.
///
/// # Errors
/// ENETDOWN: the stack cannot start.
pub(crate) fn join_members(records: &mut RecordedSockets, set: c_int) -> Result<(), Error> {
    if !inherited_sets::has_members(set) {
        return Ok(());
    }
    records.use_members(set);
    records.activate_all()?;
    let mut context = records.start_stack()?;
    let mixed = records.mixed_set(context, set)?;
    let mut joined = Ok(());
    for (number, event) in inherited_sets::take_members(set) {
        match numbers::entry(number) {
            NumberEntry::Inherited(place) => {
                let _ = adopt(records, place);
            }
            NumberEntry::Set(_) | NumberEntry::PendingSet => {
                let inner =
                    join_members(records, number).and_then(|()| records.mixed_set(context, number));
                if let Err(error) = inner {
                    // The program may wait again.
                    inherited_sets::put_back(set, (number, event));
                    joined = Err(error);
                    continue;
                }
            }
            _ => {}
        }
        if let NumberEntry::Stack(inner) | NumberEntry::Set(inner) = numbers::entry(number) {
            // One that the child has added itself stays as it is.
            let _ = context.epoll_ctl_by_number(mixed, EpollOp::Add(event), inner, number);
        }
    }
    joined
}

/// A number of an inherited socket is closed that was not used. The last one ends the ownership
/// of this process, for which it needs no stack.
pub(crate) fn release(_: &RecordedSockets, place: u32) {
    let is_last =
        numbers::known(0, u32::MAX).all(|(_, entry)| entry != NumberEntry::Inherited(place));
    let inherited = INHERITED.lock();
    if let Some(inherited) = inherited.as_ref().filter(|_| is_last)
        && let (Some(token), Some(socket)) =
            (inherited.token(), inherited.sockets.get(place as usize))
    {
        // If the service does not read, the ownership ends with the process.
        let _ = socket.release(token);
    }
}
