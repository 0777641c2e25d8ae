//! What the child of a fork inherits of the stack, and what this process has inherited.
//!
//! Read first: `fork_sharing.rs`, which fills and uses it.
//!
//! Invariants
//! - One process holds a token, but between the fork and the parent's close.
//! - What is here is used under the lock of the records, which the thread that forks has. So no
//!   other thread is inside when a child begins.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use megapipe_sockets::{Fd, InheritedSocket};

use crate::inherited_sets;
use crate::numbers::{self, NumberEntry};
use crate::raw;
use crate::state_lock::StateLock;

/// What a child is to inherit.
pub(crate) struct ForkShare {
    pub(crate) token: OwnedFd,
    pub(crate) sockets: Vec<InheritedSocket>,
    /// By descriptor of the parent's stack.
    pub(crate) places: BTreeMap<Fd, usize>,
}

/// What this process has inherited.
pub(crate) struct InheritedSockets {
    /// The token's number, which is the library's.
    token: c_int,
    pub(crate) sockets: Vec<InheritedSocket>,
}

impl InheritedSockets {
    /// The token. `None`: a stack that could not start has closed it.
    pub(crate) fn token(&self) -> Option<BorrowedFd<'_>> {
        let is_open = numbers::entry(self.token) == NumberEntry::Own;
        // SAFETY: it is open, and the program cannot close it.
        is_open.then(|| unsafe { BorrowedFd::borrow_raw(self.token) })
    }
}

/// Set by the thread that forks.
pub(crate) static FORKING: StateLock<Option<ForkShare>> = StateLock::new(None);
pub(crate) static INHERITED: StateLock<Option<InheritedSockets>> = StateLock::new(None);

/// The token by which this process attaches to the service.
pub(crate) fn token() -> Option<c_int> {
    INHERITED.lock().as_ref().map(|inherited| inherited.token)
}

/// The place of a socket in what the child inherits, by its descriptor in the parent's stack.
pub(crate) fn place_of(inner: Fd) -> Option<u32> {
    FORKING.lock().as_ref()?.places.get(&inner).map(|place| *place as u32)
}

/// Whether a number of the library is what the child inherits by.
pub(crate) fn is_childs(fd: c_int) -> bool {
    FORKING.lock().as_ref().is_some_and(|shared| shared.token.as_raw_fd() == fd)
}

/// After a fork, in the child, where the numbers of the parent's stack were looked at.
pub(crate) fn inherit() {
    inherited_sets::inherit();
    let shared = FORKING.lock().take();
    let inherited = shared.map(|ForkShare { token, sockets, .. }| InheritedSockets {
        token: token.into_raw_fd(),
        sockets,
    });
    let former = std::mem::replace(&mut *INHERITED.lock(), inherited);
    if let Some(former) = former
        && numbers::entry(former.token) == NumberEntry::Own
    {
        // SAFETY: takes an integer; the parent has its own.
        unsafe { raw::system_call(libc::SYS_close, [former.token as usize, 0, 0, 0, 0, 0]) };
        numbers::set(former.token, NumberEntry::Kernel);
    }
    if INHERITED.lock().is_some() {
        return;
    }
    for (fd, entry) in numbers::known(0, u32::MAX) {
        if let NumberEntry::Inherited(_) = entry {
            numbers::set(fd, NumberEntry::Parent);
        }
    }
}
