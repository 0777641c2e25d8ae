//! Partitioned listeners: one accept queue per channel on one address [MP 3.4.1].
//!
//! Each channel has a listening socket of its own in a SO_REUSEPORT group; a classic BPF program
//! (`kernel/steering.rs`) sends a new connection to the socket whose channel's mask has the core
//! on which its packets are processed. The groups of this process are kept here, because the
//! program names sockets by their index in the kernel's array.
//!
//! Invariants
//! - `members` is in the kernel's order: a socket is appended when it starts to listen, and when
//!   one stops, the last one moves into its place. Both happen under the group's lock.
//! - The program is attached again after every change, before the lock is released.
//! - While a socket is removed, the program names no index that the removal changes: an index
//!   beyond the last makes the kernel choose by its hash, which may hit a socket that is drained.
//! - Sockets of other processes, or made behind our back, must not join a group that has masks:
//!   their indices are unknown here.
//!
//! A channel that leaves loses nothing: new connections are steered away from its socket first;
//! then what was accepted, and the socket itself with whatever is still in its queue, go to a
//! sibling channel of the group through its [`ConnectionInbox`]. The sibling accepts from that
//! socket until `LEAVE_GRACE_MS` after the leave, so that handshakes under way complete, and closes
//! it. A sibling that leaves meanwhile passes the socket on. Gifts go to the member that joined
//! last, which in a rolling restart is the last to leave.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};

use crate::address::Address;
use crate::cpu_mask::CpuMask;
use crate::error::{Limit, ListenError, RegisterError};
use crate::kernel::steering::{self, GroupShare};
use crate::kernel::sys;
use crate::limits::LEAVE_GRACE_MS;
use crate::options::ListenOptions;
use crate::waker::Waker;

/// What names a group: the network namespace and the bound address.
type GroupKey = (u64, Address);

/// The groups of this process. Locked on control paths only: listen, leave, change of a mask.
static GROUPS: LazyLock<Mutex<HashMap<GroupKey, Vec<GroupMember>>>> = LazyLock::new(Mutex::default);

struct GroupMember {
    id: u64,
    socket: OwnedFd,
    takes: GroupShare,
    /// The program's own socket, which was listening before the group was made.
    original: bool,
    /// The original could block before it was drained here.
    was_blocking: bool,
    /// Where gifts for the channel go; `None` for a socket that no channel accepts from.
    inbox: Option<Arc<ConnectionInbox>>,
    /// Drained to the end: to be removed.
    is_over: bool,
}

/// A channel's place in a group.
#[derive(Debug)]
pub(crate) struct GroupMembership {
    key: GroupKey,
    id: u64,
}

/// What one channel of a group gives another.
#[derive(Debug)]
pub(crate) struct Gift {
    group: GroupKey,
    /// The member that it is for.
    pub(crate) member: u64,
    pub(crate) content: Given,
}

#[derive(Debug)]
pub(crate) enum Given {
    /// An accepted connection, with bytes that were received already.
    Connection(OwnedFd, Vec<u8>),
    /// A listening socket, to be drained until then.
    Listener(OwnedFd, Instant),
}

/// Where a channel finds what others give it.
#[derive(Debug)]
pub(crate) struct ConnectionInbox {
    gifts: Mutex<Vec<Gift>>,
    waker: Waker,
}

impl ConnectionInbox {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { gifts: Mutex::default(), waker })
    }

    pub(crate) fn take(&self) -> Vec<Gift> {
        std::mem::take(&mut *lock(&self.gifts))
    }

    fn put(&self, gift: Gift) {
        lock(&self.gifts).push(gift);
        self.waker.wake_silently();
    }
}

/// A poisoned lock is taken all the same: every change under these locks is complete before the
/// next step that could panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GroupMembership {
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// Which cores' connections the member takes; `None`: those that no mask names.
    pub(crate) fn mask(&self) -> Option<CpuMask> {
        match lock(&GROUPS).get(&self.key)?.iter().find(|entry| entry.id == self.id)?.takes {
            GroupShare::Cores(mask) => Some(mask),
            GroupShare::Rest | GroupShare::Idle => None,
        }
    }

    /// Gives the member other cores.
    ///
    /// # Errors
    /// `MaskOverlaps` if another member has one of them; `Kernel` if the program was refused.
    pub(crate) fn set_mask(&self, mask: CpuMask) -> Result<(), RegisterError> {
        let mut groups = lock(&GROUPS);
        let members = groups.get_mut(&self.key).ok_or(RegisterError::MaskNotPossible)?;
        check_mask(members, Some(&mask), self.id)?;
        let entry = members.iter_mut().find(|entry| entry.id == self.id);
        let entry = entry.ok_or(RegisterError::MaskNotPossible)?;
        let before = std::mem::replace(&mut entry.takes, GroupShare::Cores(mask));
        if let Err(source) = attach(members) {
            if let Some(entry) = members.iter_mut().find(|entry| entry.id == self.id) {
                entry.takes = before;
            }
            return Err(RegisterError::Kernel { what: "cannot steer connections", source });
        }
        Ok(())
    }

    /// Steers new connections away, for a channel that leaves.
    pub(crate) fn retreat(&self) {
        let mut groups = lock(&GROUPS);
        let Some(members) = groups.get_mut(&self.key) else { return };
        if let Some(entry) = members.iter_mut().find(|entry| entry.id == self.id) {
            entry.takes = GroupShare::Idle;
            entry.inbox = None;
        }
        // A refusal leaves the old program: connections still arrive, and are still drained.
        let _ = attach(members);
    }
}

/// The member that gifts go to: the one that joined last.
fn taker(members: &[GroupMember]) -> Option<(u64, Arc<ConnectionInbox>)> {
    let ready = members.iter().filter(|entry| entry.takes != GroupShare::Idle);
    let ready = ready.filter_map(|entry| Some((entry.id, entry.inbox.as_ref()?)));
    ready.max_by_key(|(id, _)| *id).map(|(id, inbox)| (id, Arc::clone(inbox)))
}

/// Whether some channel of the socket's group takes connections.
pub(crate) fn has_taker(socket: BorrowedFd<'_>) -> bool {
    let Ok(key) = key_of(socket) else { return false };
    lock(&GROUPS).get(&key).is_some_and(|members| taker(members).is_some())
}

/// Gives something to a channel of the socket's group.
///
/// # Errors
/// What was to be given, if no channel of the group takes connections.
pub(crate) fn give(socket: BorrowedFd<'_>, content: Given) -> Result<(), Given> {
    match key_of(socket) {
        Ok(group) => pass(Gift { group, member: 0, content }),
        Err(_) => Err(content),
    }
}

/// Gives something to another channel of its group, because its member has left.
///
/// # Errors
/// As [`give`].
pub(crate) fn pass(gift: Gift) -> Result<(), Given> {
    let groups = lock(&GROUPS);
    let found = groups.get(&gift.group).and_then(|members| taker(members));
    let Some((member, inbox)) = found else { return Err(gift.content) };
    // Still under the lock, so that the taker cannot leave before the gift is in its inbox.
    inbox.put(Gift { member, ..gift });
    Ok(())
}

/// Stops a member's socket and forgets its place in its group.
pub(crate) fn close(socket: &OwnedFd) {
    let (Ok(key), Ok(wanted)) = (key_of(socket.as_fd()), inode(socket.as_fd())) else { return };
    let mut groups = lock(&GROUPS);
    let Some(members) = groups.get_mut(&key) else { return };
    let is_it =
        |entry: &GroupMember| inode(entry.socket.as_fd()).is_ok_and(|other| other == wanted);
    if let Some(index) = members.iter().position(is_it) {
        if members[index].original {
            // The program's own socket was only drained: it goes on listening.
            return;
        }
        members[index].is_over = true;
        members[index].takes = GroupShare::Idle;
        members[index].inbox = None;
        remove_those_over(members);
        drain_original(members);
    }
    if members.iter().all(|entry| entry.original) {
        // What is left is the program's: a group that is made again starts with it, as this one.
        for entry in members.iter().filter(|entry| entry.was_blocking) {
            // It is the program's again, as it was. (A failure leaves it non-blocking.)
            let _ = sys::set_nonblocking(entry.socket.as_fd(), false);
        }
        groups.remove(&key);
    }
}

/// Removes the members that were drained to the end, as far as no connection goes astray by it:
/// the kernel moves the last member into the hole, so meanwhile the program must be able to name
/// another. Those for which it cannot stay, idle, until another member joins.
fn remove_those_over(members: &mut Vec<GroupMember>) {
    if !members.iter().any(|entry| entry.is_over) {
        return;
    }
    while let Some(index) = members.iter().rposition(|entry| entry.is_over) {
        let last = members.len() - 1;
        let takes_any = |entry: &GroupMember| entry.takes != GroupShare::Idle;
        let needs_last = takes_any(&members[last]) && !members[..last].iter().any(takes_any);
        if index != last && needs_last {
            break;
        }
        let takes = std::mem::replace(&mut members[last].takes, GroupShare::Idle);
        let named = attach(members);
        members[last].takes = takes;
        if named.is_err() {
            break;
        }
        rescue(&members[index].socket, members);
        // shutdown(2) takes a listening socket out of its group at once, whatever else has it open.
        let _ = rustix::net::shutdown(&members[index].socket, rustix::net::Shutdown::Both);
        members.swap_remove(index);
    }
    // A refusal leaves a program that names members that are there.
    let _ = attach(members);
}

/// A listening socket for a channel, a member of its address's group.
///
/// # Errors
/// [`ListenError`] says which step the kernel refused, or that masks overlap.
pub(crate) fn listen(
    address: &Address,
    options: &ListenOptions,
    inbox: &Arc<ConnectionInbox>,
    nonblocking: bool,
) -> Result<(OwnedFd, GroupMembership), ListenError> {
    let kernel = |what| move |source: io::Error| ListenError::Kernel { what, source };
    let socket = sys::stream_socket(address, nonblocking).map_err(kernel("make a socket"))?;
    let mut groups = lock(&GROUPS);
    let wanted = (netns_of(socket.as_fd()), address.clone());
    let claims = options.only_this_process && groups.get(&wanted).is_none_or(Vec::is_empty);
    prepare(socket.as_fd(), options, !claims).map_err(kernel("set the socket's options"))?;
    sys::bind(socket.as_fd(), address).map_err(kernel("bind"))?;
    let key = key_of(socket.as_fd()).map_err(kernel("read the socket's address"))?;
    let members = members_of(&mut groups, &key)?;
    check_mask(members, options.cpu_mask.as_ref(), 0)?;
    let takes = options.cpu_mask.map_or(GroupShare::Rest, GroupShare::Cores);
    let joined = join(members, &socket, takes, Some(inbox), (options.backlog, claims));
    let id = joined.map_err(|source| ListenError::Kernel { what: "listen", source })?;
    Ok((socket, GroupMembership { key, id }))
}

/// The members of a group, which is made if it is not there, with room for the program's own
/// socket and for a channel's.
fn members_of<'a>(
    groups: &'a mut HashMap<GroupKey, Vec<GroupMember>>,
    key: &GroupKey,
) -> Result<&'a mut Vec<GroupMember>, Limit> {
    groups.try_reserve(1).map_err(|_| Limit::Memory)?;
    let members = groups.entry(key.clone()).or_default();
    members.try_reserve(2).map_err(|_| Limit::Memory)?;
    Ok(members)
}

/// A second listening socket beside one that the program made, for one channel's cores.
///
/// # Errors
/// [`RegisterError`] says which step the kernel refused, or that masks overlap.
pub(crate) fn split(
    original: BorrowedFd<'_>,
    mask: CpuMask,
    inbox: &Arc<ConnectionInbox>,
    nonblocking: bool,
) -> Result<(OwnedFd, GroupMembership), RegisterError> {
    let kernel = |what| move |source: io::Error| RegisterError::Kernel { what, source };
    let key = key_of(original).map_err(kernel("cannot read the socket's address"))?;
    if key.1.as_inet().is_none() {
        return Err(RegisterError::MaskNotPossible);
    }
    sockopt::set_socket_reuseport(original, true)
        .map_err(|errno| kernel("cannot share the address")(errno.into()))?;
    let mut groups = lock(&GROUPS);
    let members = members_of(&mut groups, &key)?;
    check_mask(members, Some(&mask), 0)?;
    if members.is_empty() {
        // The original listens already: it is the first of the group.
        let socket = sys::duplicate(original).map_err(kernel("cannot duplicate the socket"))?;
        // Members drain it, one after another: none may be held up in accept(2) by another.
        let was_blocking = sys::set_nonblocking(original, true)
            .map_err(kernel("cannot set the socket's flags"))?;
        members.push(GroupMember {
            id: next_id(),
            socket,
            takes: GroupShare::Idle,
            original: true,
            was_blocking,
            inbox: None,
            is_over: false,
        });
    }
    let socket = sys::stream_socket(&key.1, nonblocking).map_err(kernel("cannot make a socket"))?;
    let options = ListenOptions::default();
    prepare(socket.as_fd(), &options, true).map_err(kernel("cannot set the socket's options"))?;
    sys::bind(socket.as_fd(), &key.1).map_err(kernel("cannot bind"))?;
    let takes = GroupShare::Cores(mask);
    let id = join(members, &socket, takes, Some(inbox), (options.backlog, false))
        .map_err(kernel("cannot listen"))?;
    drain_original(members);
    Ok((socket, GroupMembership { key, id }))
}

/// Gives away what is still in the queue of a socket that ends. It was drained, but between the
/// end of another member and the program that follows, the kernel may have sent it one more.
fn rescue(socket: &OwnedFd, members: &[GroupMember]) {
    let Some((member, inbox)) = taker(members) else { return };
    let Ok(group) = key_of(socket.as_fd()) else { return };
    if sys::set_nonblocking(socket.as_fd(), true).is_err() {
        return;
    }
    while let Ok(connection) = rustix::net::accept_with(socket, SocketFlags::CLOEXEC) {
        let content = Given::Connection(connection, Vec::new());
        inbox.put(Gift { group: group.clone(), member, content });
    }
}

/// The program's own socket is given nothing, but it may hold connections: from before the group
/// was made, or from the moment between a member's end and the new program. A member drains it,
/// as it does for a sibling that leaves.
fn drain_original(members: &[GroupMember]) {
    for entry in members.iter().filter(|entry| entry.original) {
        let (Some((member, inbox)), Ok(socket)) = (taker(members), sys::duplicate(&entry.socket))
        else {
            continue;
        };
        let Ok(group) = key_of(socket.as_fd()) else { continue };
        let content = Given::Listener(socket, grace_end());
        inbox.put(Gift { group, member, content });
    }
}

/// When a socket that is given away now was drained for long enough.
pub(crate) fn grace_end() -> Instant {
    Instant::now() + Duration::from_millis(LEAVE_GRACE_MS)
}

fn prepare(socket: BorrowedFd<'_>, options: &ListenOptions, joins_a_group: bool) -> io::Result<()> {
    sockopt::set_socket_reuseaddr(socket, true)?;
    sockopt::set_socket_reuseport(socket, joins_a_group)?;
    sys::set_listening_options(socket, options)
}

fn join(
    members: &mut Vec<GroupMember>,
    socket: &OwnedFd,
    takes: GroupShare,
    inbox: Option<&Arc<ConnectionInbox>>,
    (backlog, claims): (u32, bool),
) -> io::Result<u64> {
    let id = next_id();
    let entry = GroupMember {
        id,
        socket: sys::duplicate(socket)?,
        takes,
        original: false,
        was_blocking: false,
        inbox: inbox.cloned(),
        is_over: false,
    };
    rustix::net::listen(socket, backlog.min(i32::MAX as u32) as i32)?;
    if claims {
        // Without SO_REUSEPORT listen(2) succeeded for one socket only, whatever else is bound to
        // the address. From now on siblings may join.
        sockopt::set_socket_reuseport(socket, true)?;
    }
    members.push(entry);
    if let Err(error) = attach(members) {
        let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        members.pop();
        return Err(error);
    }
    remove_those_over(members);
    Ok(id)
}

/// Attaches the program that follows from the members; the group shares one.
fn attach(members: &[GroupMember]) -> io::Result<()> {
    let Some(first) = members.first() else { return Ok(()) };
    let no_memory = |_| io::Error::from(Errno::NOMEM);
    let mut takes = Vec::new();
    takes.try_reserve_exact(members.len()).map_err(no_memory)?;
    takes.extend(members.iter().map(|entry| entry.takes));
    match steering::program(&takes).map_err(no_memory)? {
        Some(mut program) => {
            match sys::attach_reuseport_cbpf(first.socket.as_fd(), &mut program) {
                // The kernel makes the group of a socket that claimed its address when a sibling
                // joins. Until then all connections are its own.
                Err(error) if members.len() == 1 && error.raw_os_error() == Some(libc::EINVAL) => {
                    Ok(())
                }
                other => other,
            }
        }
        None => match sys::detach_reuseport_bpf(first.socket.as_fd()) {
            // There was none.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other,
        },
    }
}

fn check_mask(
    members: &[GroupMember],
    mask: Option<&CpuMask>,
    except: u64,
) -> Result<(), RegisterError> {
    let Some(mask) = mask else { return Ok(()) };
    if mask.is_empty() {
        return Err(RegisterError::MaskNotPossible);
    }
    for entry in members {
        if entry.id != except
            && let GroupShare::Cores(other) = &entry.takes
            && let Some(core) = mask.first_common(other)
        {
            return Err(RegisterError::MaskOverlaps { core });
        }
    }
    Ok(())
}

fn next_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // Relaxed: the counter orders nothing but itself.
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn key_of(socket: BorrowedFd<'_>) -> io::Result<GroupKey> {
    let address = sys::local_address(socket)?.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((netns_of(socket), address))
}

/// Kernels before 5.14 have no cookie: all sockets then count as one namespace's.
fn netns_of(socket: BorrowedFd<'_>) -> u64 {
    sys::netns_cookie(socket).unwrap_or(0)
}

fn inode(socket: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(fstat(socket)?.st_ino)
}
