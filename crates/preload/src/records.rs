//! Recorded sockets: those whose path is not decided, listeners of both paths, and sockets of a
//! stack that has not started. And the sets that they are in.
//!
//! Read first: `rules.rs` for paths, `numbers.rs` for entries.
//!
//! A recorded socket is a socket of the kernel under its number. Options, addresses and the members
//! of sets are given to the kernel and remembered. [`RecordedSockets::activate`] replays them on
//! the stack when a call needs it. A socket of the stack then gets a placeholder in place of the
//! kernel's socket; a listener keeps it: of both as its other part, of the stack as what reserves
//! its address and passes to child processes.
//!
//! Invariant: a record has at least one number; its entries name it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, Ordering};

use megapipe::AwaitedListener;
use megapipe_sockets::{Bsd, EpollEvent, EpollOp, Error, Events, Fd, SharedContext};

use crate::foreign_children;
use crate::kernel_waits::{self, kernel_part};
use crate::nested_sets::NestedSets;
use crate::numbers::{self, NumberEntry};
use crate::raw::{NO_EVENT, epoll_control, system_call};
use crate::refusals::{self, CallRefusal};
use crate::report;
use crate::rules::SocketPath;
use crate::stack;
use crate::state_lock::StateLock;

/// The program's recorded sockets.
pub(crate) static RECORDS: StateLock<RecordedSockets> = StateLock::new(RecordedSockets::new());

/// All records.
pub(crate) struct RecordedSockets {
    sockets: BTreeMap<u32, SocketRecord>,
    next: u32,
    /// Sets of the kernel in others.
    pub(crate) nested: NestedSets,
}

/// A recorded socket.
#[derive(Debug, Clone)]
pub(crate) struct SocketRecord {
    pub(crate) numbers: Vec<c_int>,
    pub(crate) domain: c_int,
    pub(crate) kind: c_int,
    pub(crate) protocol: c_int,
    pub(crate) is_nonblocking: bool,
    pub(crate) options: Vec<SocketOption>,
    /// `None`: not decided.
    pub(crate) path: Option<SocketPath>,
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) backlog: Option<c_int>,
    /// The kernel's socket is bound, so that no other process takes the address.
    pub(crate) is_reserved: bool,
    /// The kernel has selected its port, which connections of the stack may have.
    pub(crate) has_kernels_port: bool,
    /// A parent process made it, and this one has not used it: it takes no connections.
    is_inherited: bool,
    /// The parent process that had it at the fork, and that may have it still; 0: none.
    parent: c_int,
    /// The listener of the stack, where the kernel's socket is kept beside it.
    pub(crate) inner: Option<Fd>,
    /// A listener that was shut down: the stack's part alone is in the sets.
    pub(crate) has_left_sets: bool,
    /// The kernel's turn to be asked first for a connection.
    pub(crate) is_kernels_turn: bool,
    pub(crate) members: Vec<SetMember>,
}

/// A listening socket of the kernel that another process made.
#[derive(Debug)]
pub(crate) struct FoundListener {
    /// SO_COOKIE: the same for all descriptors of a socket.
    pub(crate) cookie: u64,
    pub(crate) domain: c_int,
    pub(crate) address: SocketAddr,
    pub(crate) backlog: c_int,
    pub(crate) is_nonblocking: bool,
    pub(crate) options: Vec<SocketOption>,
}

/// An option that the program has set.
#[derive(Debug, Clone)]
pub(crate) struct SocketOption {
    pub(crate) level: c_int,
    pub(crate) name: c_int,
    pub(crate) value: Vec<u8>,
}

/// A set that has the socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetMember {
    set: c_int,
    /// The number of the socket by which it joined.
    number: c_int,
    event: EpollEvent,
}

/// What stands behind the numbers of the stack's sockets: an AF_UNIX SOCK_SEQPACKET socket without
/// a peer, which refuses to read and write (ENOTCONN).
static ANCHOR: AtomicI32 = AtomicI32::new(-1);

/// Returns the anchor, which is created by the first call.
///
/// # Errors
/// As socket(2); ECHILD: a child with its parent's memory has none of its own.
pub(crate) fn anchor() -> Result<c_int, Error> {
    let known = ANCHOR.load(Ordering::Relaxed);
    if known >= 0 {
        return Ok(known);
    }
    if foreign_children::is_foreign() {
        // The parent would use a number that it does not have.
        return Err(Error::from_raw_os_error(libc::ECHILD));
    }
    let kind = rustix::net::SocketType::SEQPACKET;
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let made = rustix::net::socket_with(rustix::net::AddressFamily::UNIX, kind, flags, None)?;
    let made = std::os::fd::IntoRawFd::into_raw_fd(made);
    ANCHOR.store(made, Ordering::Relaxed);
    Ok(made)
}

/// The anchor of a parent process was closed with its other descriptors.
pub(crate) fn forget_anchor() {
    ANCHOR.store(-1, Ordering::Relaxed);
}

/// Returns the lowest free number, from `least` on, with a placeholder behind it.
///
/// # Errors
/// EMFILE, EINVAL.
pub(crate) fn reserve(least: c_int, closes_on_exec: bool) -> Result<c_int, Error> {
    let command = if closes_on_exec { libc::F_DUPFD_CLOEXEC } else { libc::F_DUPFD };
    let arguments = [anchor()? as usize, command as usize, least as usize, 0, 0, 0];
    // SAFETY: takes integers.
    let result = unsafe { system_call(libc::SYS_fcntl, arguments) };
    number_or_error(result)
}

fn number_or_error(result: isize) -> Result<c_int, Error> {
    match result {
        0.. => Ok(result as c_int),
        _ => Err(Error::from_raw_os_error(-result as c_int)),
    }
}

/// Whether a process exists.
fn is_alive(process: c_int) -> bool {
    // SAFETY: takes integers; signal 0 is not sent.
    let result = unsafe { system_call(libc::SYS_kill, [process as usize, 0, 0, 0, 0, 0]) };
    // A process of another user is EPERM.
    result != -(libc::ESRCH as isize)
}

/// Puts a placeholder in the place of the kernel's socket under a number.
///
/// # Errors
/// As dup3(2).
pub(crate) fn place_anchor(anchor: c_int, number: c_int) -> Result<(), Error> {
    let query = [number as usize, libc::F_GETFD as usize, 0, 0, 0, 0];
    // SAFETY: takes integers.
    let flags = unsafe { system_call(libc::SYS_fcntl, query) };
    let flags = if flags > 0 { libc::O_CLOEXEC as usize } else { 0 };
    let arguments = [anchor as usize, number as usize, flags, 0, 0, 0];
    // SAFETY: takes integers; the number is the program's socket, which this replaces.
    number_or_error(unsafe { system_call(libc::SYS_dup3, arguments) }).map(drop)
}

/// Closes a number in the kernel only.
pub(crate) fn release(fd: c_int) {
    // SAFETY: takes an integer; the caller owns the number.
    unsafe { system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

impl RecordedSockets {
    const fn new() -> Self {
        Self { sockets: BTreeMap::new(), next: 0, nested: NestedSets::new() }
    }

    /// Returns the record of a number.
    pub(crate) fn of(&mut self, fd: c_int) -> Option<&mut SocketRecord> {
        match numbers::entry(fd) {
            NumberEntry::Recorded(id) => self.sockets.get_mut(&id),
            _ => None,
        }
    }

    /// Records a new socket of the kernel.
    pub(crate) fn add(&mut self, fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
        let id = self.next;
        self.next = self.next.wrapping_add(1) & ((1 << 28) - 1);
        let is_nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        self.sockets.insert(
            id,
            SocketRecord {
                numbers: vec![fd],
                domain,
                kind,
                protocol,
                is_nonblocking,
                options: Vec::new(),
                path: None,
                bound: None,
                backlog: None,
                is_reserved: false,
                has_kernels_port: false,
                is_inherited: false,
                parent: 0,
                inner: None,
                has_left_sets: false,
                is_kernels_turn: false,
                members: Vec::new(),
            },
        );
        numbers::set(fd, NumberEntry::Recorded(id));
    }

    /// Records a listener that another process made, unless its path, which `select` returns, is
    /// the kernel's. It takes no connections before this process uses it.
    pub(crate) fn adopt(
        &mut self,
        fd: c_int,
        found: FoundListener,
        select: impl FnOnce(&SocketRecord, SocketAddr) -> SocketPath,
    ) {
        if let Some(other) = self.with_cookie(found.cookie) {
            self.duplicate(other, fd);
            return;
        }
        self.add(fd, found.domain, libc::SOCK_STREAM, 0);
        let Some(record) = self.of(fd) else { return };
        record.options = found.options;
        let path = select(record, found.address);
        if path == SocketPath::Kernel {
            return self.give_to_kernel(fd);
        }
        record.is_nonblocking = found.is_nonblocking;
        record.path = Some(path);
        record.bound = Some(found.address);
        record.backlog = Some(found.backlog);
        record.is_reserved = true;
        record.is_inherited = true;
    }

    /// A number of the recorded listener whose kernel socket has this cookie.
    fn with_cookie(&self, cookie: u64) -> Option<c_int> {
        let kept = self.sockets.values().filter(|record| record.is_kept());
        kept.filter_map(|record| record.numbers.first().copied()).find(|number| {
            // SAFETY: the number is open while a record has it.
            let socket = unsafe { BorrowedFd::borrow_raw(*number) };
            rustix::net::sockopt::socket_cookie(socket) == Ok(cookie)
        })
    }

    /// `new` is a duplicate of `old`. Returns whether `old` has a record.
    pub(crate) fn duplicate(&mut self, old: c_int, new: c_int) -> bool {
        let NumberEntry::Recorded(id) = numbers::entry(old) else { return false };
        let Some(record) = self.sockets.get_mut(&id) else { return false };
        record.numbers.push(new);
        numbers::set(new, NumberEntry::Recorded(id));
        true
    }

    /// Forgets a number of a record, which the kernel keeps or closes. Returns the stack's part of
    /// the socket, if this was its last number.
    pub(crate) fn forget(&mut self, fd: c_int) -> Option<Fd> {
        let id = match numbers::set(fd, NumberEntry::Kernel) {
            NumberEntry::Recorded(id) => id,
            // Another thread has given it to the stack meanwhile.
            NumberEntry::Stack(inner) => return Some(inner),
            _ => return None,
        };
        let record = self.sockets.get_mut(&id)?;
        record.numbers.retain(|number| *number != fd);
        if !record.numbers.is_empty() {
            return None;
        }
        self.sockets.remove(&id).and_then(|record| record.inner)
    }

    /// The socket belongs to the kernel from now on.
    pub(crate) fn give_to_kernel(&mut self, fd: c_int) {
        let NumberEntry::Recorded(id) = numbers::entry(fd) else { return };
        if let Some(record) = self.sockets.remove(&id) {
            for number in record.numbers {
                numbers::set(number, NumberEntry::Kernel);
            }
        }
    }

    /// In the child of a fork: the stack's parts of sockets are those of the process `parent`. The
    /// child listens where it accepts or waits for connections, and nowhere else.
    pub(crate) fn inherit(&mut self, parent: c_int) {
        let needs_use = stack::is_shared();
        for record in self.sockets.values_mut() {
            record.inner = None;
            record.is_inherited = needs_use;
            record.parent = parent;
            // Listeners are the child's, also in sets of its parent's stack.
            for SetMember { set, .. } in &record.members {
                if numbers::entry(*set) == NumberEntry::Parent {
                    numbers::set(*set, NumberEntry::PendingSet);
                }
            }
        }
    }

    /// This process uses a socket.
    pub(crate) fn use_here(&mut self, fd: c_int) {
        if let Some(record) = self.of(fd) {
            record.is_inherited = false;
        }
    }

    /// This process waits for a set.
    pub(crate) fn use_members(&mut self, set: c_int) {
        for record in self.sockets.values_mut() {
            if record.members.iter().any(|member| member.set == set) {
                record.is_inherited = false;
            }
        }
    }

    /// A set is closed.
    pub(crate) fn forget_set(&mut self, set: c_int) {
        let others = anchor().map(|anchor| self.nested.duplicates_of(set, anchor));
        let other = others.unwrap_or_default().first().copied();
        for record in self.sockets.values_mut() {
            for member in record.members.iter_mut().filter(|member| member.set == set) {
                member.set = other.unwrap_or(set);
            }
            record.members.retain(|member| member.set != set);
        }
    }

    /// Records an epoll_ctl(2) that the kernel has accepted, or has no part of.
    pub(crate) fn watch(&mut self, set: c_int, fd: c_int, op: EpollOp) -> Result<(), Error> {
        let Some(inner) = self.of(fd).map(|record| record.inner) else { return Ok(()) };
        if let Some(inner) = inner {
            let mut context = self.start_stack()?;
            let mixed = self.mixed_set(context, set)?;
            context.epoll_ctl_by_number(mixed, op, inner, fd)?;
        }
        let Some(record) = self.of(fd) else { return Ok(()) };
        record.members.retain(|member| (member.set, member.number) != (set, fd));
        if let EpollOp::Add(event) | EpollOp::Modify(event) = op {
            record.members.push(SetMember { set, number: fd, event });
            record.is_inherited = false;
            // A socket that is only bound may yet connect, by another path.
            if stack::context().is_some() && record.is_kept() && record.waits_for_stack() {
                return self.activate(fd);
            }
        }
        if record.inner.is_none() && record.path.is_some() {
            self.mark_pending(set);
        }
        Ok(())
    }

    /// The path of a socket is decided.
    pub(crate) fn decide(&mut self, fd: c_int, path: SocketPath) {
        let Some(record) = self.of(fd) else { return };
        record.path = Some(path);
        // A set of the kernel is closed without a look at the records.
        record.members.retain(SetMember::is_in_kernels_set);
        let sets: Vec<c_int> = record.members.iter().map(|member| member.set).collect();
        for set in sets {
            self.mark_pending(set);
        }
    }

    /// A set of the kernel has a socket that waits for the stack, and so do the sets that have it.
    pub(crate) fn mark_pending(&self, set: c_int) {
        if !numbers::is_kernel(set) {
            return;
        }
        numbers::set(set, NumberEntry::PendingSet);
        if let Ok(anchor) = anchor() {
            kernel_waits::end(set, anchor);
            for other in self.nested.duplicates_of(set, anchor) {
                self.mark_pending(other);
            }
        }
        for outer in self.nested.outer_of(set) {
            self.mark_pending(outer);
        }
    }

    pub(crate) fn start_stack(&self) -> Result<&'static SharedContext, Error> {
        stack::start(|| self.sockets.values().flat_map(SocketRecord::awaited).collect())
    }

    /// Starts the stack and gives it everything that waits for it. A stack that cannot start gives
    /// everything to the kernel, if the settings allow it. Else its sockets stay silent, and what
    /// the kernel has goes on.
    ///
    /// # Errors
    /// ENETDOWN for the call that finds out that it cannot start.
    pub(crate) fn activate_all(&mut self) -> Result<(), Error> {
        let was_down = stack::is_down();
        let context = match self.start_stack() {
            Ok(context) => context,
            Err(_) if stack::falls_back() => {
                self.fall_back();
                return Ok(());
            }
            Err(_) if was_down => {
                self.silence_sets();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let waiting = self.sockets.values().filter(|record| record.waits_for_stack());
        let waiting: Vec<c_int> =
            waiting.filter_map(|record| record.numbers.first().copied()).collect();
        for fd in waiting {
            if let Err(error) = self.activate(fd) {
                let bound = self.of(fd).and_then(|record| record.bound);
                let address = bound.map_or_else(|| "?".to_owned(), |bound| bound.to_string());
                report::complain(format_args!("listening on {address} in the stack: {error}"));
                refusals::count(CallRefusal::Listener);
                if stack::falls_back() {
                    self.fall_back_one(fd);
                    continue;
                }
                // It stays what it is in the kernel: for a socket of the stack, nothing.
                if let Some(record) = self.of(fd) {
                    record.backlog = None;
                }
            }
        }
        if !numbers::has_pending_sets() {
            return Ok(());
        }
        for (set, entry) in numbers::known(0, u32::MAX) {
            if entry == NumberEntry::PendingSet {
                self.mixed_set(context, set)?;
            }
        }
        Ok(())
    }

    /// Leaves the sets that wait for the stack to the kernel, because it cannot start. A listener
    /// that only the stack would have served shows EPOLLHUP there once, and then nothing.
    fn silence_sets(&mut self) {
        for record in self.sockets.values() {
            if record.path == Some(SocketPath::Stack) && !record.is_kept() {
                record.watch_changes_alone();
            }
        }
        give_sets_to_kernel();
    }

    /// Returns a number of each record whose path is decided and that the stack has not got.
    pub(crate) fn waiting_numbers(&self) -> Vec<c_int> {
        let decided = self.sockets.values().filter(|it| it.path.is_some() && it.inner.is_none());
        decided.filter_map(|record| record.numbers.first().copied()).collect()
    }

    /// Gives a recorded socket to the stack, with its options, address and members of sets.
    ///
    /// # Errors
    /// ENETDOWN, and those of socket(2), bind(2) and listen(2).
    pub(crate) fn activate(&mut self, fd: c_int) -> Result<(), Error> {
        let Some(record) = self.of(fd).map(|record| record.clone()) else { return Ok(()) };
        let mut context = self.start_stack()?;
        if record.inner.is_some() {
            return Ok(());
        }
        let inner = context.socket(record.domain, record.kind, record.protocol)?;
        let replayed = record.replay(context, inner);
        let kept = replayed.and_then(|()| match record.is_kept() {
            true => {
                if let Some(record) = self.of(fd) {
                    record.inner = Some(inner);
                }
                self.join_sets(&record, context, &[inner])
            }
            false => self.replace(context, &record, inner),
        });
        if kept.is_err()
            && let Some(record) = self.of(fd)
            && record.inner.take_if(|known| *known == inner).is_none()
        {
            // The record stays; the stack's part of it goes.
            let _ = context.close(inner);
        }
        kept
    }

    /// Puts a placeholder in the place of the kernel's socket under each number.
    fn replace(
        &mut self,
        mut context: &'static SharedContext,
        record: &SocketRecord,
        inner: Fd,
    ) -> Result<(), Error> {
        let mut inner_numbers = vec![inner];
        for _ in record.numbers.iter().skip(1) {
            inner_numbers.push(context.fcntl(inner, libc::F_DUPFD, 0)?);
        }
        self.join_sets(record, context, &inner_numbers)?;
        record.leave_kernels_sets();
        let anchor = anchor()?;
        for (number, of_number) in record.numbers.iter().zip(inner_numbers) {
            place_anchor(anchor, *number)?;
            if let NumberEntry::Recorded(id) = numbers::set(*number, NumberEntry::Stack(of_number))
            {
                self.sockets.remove(&id);
            }
        }
        Ok(())
    }

    /// The socket joins the sets that it was in, under the stack's number for each of its numbers;
    /// the first one stands for those that have none.
    fn join_sets(
        &mut self,
        record: &SocketRecord,
        mut context: &'static SharedContext,
        inner_numbers: &[Fd],
    ) -> Result<(), Error> {
        // A set of the kernel is closed without a look at the records.
        for member in record.members.iter().filter(|member| member.is_in_kernels_set()) {
            let at = record.numbers.iter().position(|known| *known == member.number);
            let inner = at.and_then(|at| inner_numbers.get(at)).or_else(|| inner_numbers.first());
            let Some(inner) = inner else { continue };
            let mixed = self.mixed_set(context, member.set)?;
            let add = EpollOp::Add(member.event);
            context.epoll_ctl_by_number(mixed, add, *inner, member.number)?;
        }
        Ok(())
    }

    /// Returns the stack's part of a set, which is created if it has none. The kernel's part is its
    /// member, under the data [`kernel_part`]. The sets that have the set get such a part, too.
    ///
    /// # Errors
    /// EBADF and EINVAL, as epoll_ctl(2) for what is no set.
    pub(crate) fn mixed_set(
        &mut self,
        mut context: &'static SharedContext,
        set: c_int,
    ) -> Result<Fd, Error> {
        if let NumberEntry::Set(inner) = numbers::entry(set) {
            return Ok(inner);
        }
        // The kernel checks the set: its answer for a descriptor that is not a member is ENOENT.
        let anchor = anchor()?;
        match epoll_control(set, libc::EPOLL_CTL_DEL, anchor, NO_EVENT) {
            result if result == -(libc::ENOENT as isize) || result == -(libc::EPERM as isize) => {}
            result => drop(number_or_error(result)?),
        }
        let inner = context.epoll_create1(megapipe_sockets::OpenFlags::empty())?;
        let event = EpollEvent { events: Events::IN, data: kernel_part() };
        // SAFETY: the number is an open set; the stack's sockets use it only while the program's
        // set is open, and refuse a closed one.
        let kernels = unsafe { BorrowedFd::borrow_raw(set) };
        let joined = context.epoll_ctl(inner, EpollOp::Add(event), kernels);
        if let Err(error) = joined {
            let _ = context.close(inner);
            return Err(error);
        }
        let others = self.nested.duplicates_of(set, anchor);
        self.mix(context, set, inner)?;
        for other in others {
            let of_other = context.fcntl(inner, libc::F_DUPFD, 0)?;
            self.mix(context, other, of_other)?;
        }
        Ok(inner)
    }

    /// A descriptor of a set gets the set's part of the stack.
    fn mix(
        &mut self,
        mut context: &'static SharedContext,
        set: c_int,
        inner: Fd,
    ) -> Result<(), Error> {
        numbers::set(set, NumberEntry::Set(inner));
        kernel_waits::end(set, anchor()?);
        for (outer, event) in self.nested.take_out(set) {
            let mixed = self.mixed_set(context, outer)?;
            context.epoll_ctl_by_number(mixed, EpollOp::Add(event), inner, set)?;
        }
        Ok(())
    }
}

impl SocketRecord {
    pub(crate) fn is_v6_only(&self) -> bool {
        self.options.iter().any(|option| {
            (option.level, option.name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
                && option.value.iter().any(|byte| *byte != 0)
        })
    }

    /// It belongs to the stack, which has nothing of it yet.
    fn waits_for_stack(&self) -> bool {
        let is_stream = self.kind == libc::SOCK_STREAM;
        let is_ready = if is_stream { self.backlog.is_some() } else { self.bound.is_some() };
        self.inner.is_none() && is_ready && self.path.is_some() && !self.is_inherited
    }

    /// The addresses where it will listen. A parent process that lives has the socket, too, so that
    /// its next child may listen there.
    fn awaited(&self) -> impl Iterator<Item = AwaitedListener> {
        let has_successor = self.parent != 0 && is_alive(self.parent);
        let bound = self.bound.filter(|it| it.port() != 0 && self.waits_for_stack());
        let is_dual = |it: &SocketAddr| it.is_ipv6() && it.ip().is_unspecified();
        let beside = bound.filter(|it| is_dual(it) && !self.is_v6_only());
        let beside = beside.map(|it| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), it.port()));
        let is_stream = self.kind == libc::SOCK_STREAM;
        let all = bound.into_iter().chain(beside).filter(move |_| is_stream);
        all.map(move |local| AwaitedListener { local, has_successor })
    }

    /// The kernel's socket stays: it is a part of the listener, or keeps the listener's address
    /// and passes it to child processes.
    pub(crate) fn is_kept(&self) -> bool {
        match self.path {
            Some(SocketPath::Both) => true,
            Some(SocketPath::Stack) => self.is_reserved && self.backlog.is_some(),
            Some(SocketPath::Kernel) | None => false,
        }
    }

    fn replay(&self, mut context: &'static SharedContext, inner: Fd) -> Result<(), Error> {
        if self.is_nonblocking {
            context.fcntl(inner, libc::F_SETFL, libc::O_NONBLOCK)?;
        }
        for SocketOption { level, name, value } in &self.options {
            if let Err(error) = context.setsockopt(inner, *level, *name, value) {
                refusals::count(CallRefusal::Option(*level, *name));
                report::note(format_args!("option {name} of level {level} refused: {error}"));
            }
        }
        if self.backlog.is_some() && stack::is_shared() {
            // Child processes may listen there, too, each by a session of its own. That no other
            // program does is the kernel's decision, by the socket that is kept.
            let on = 1_i32.to_ne_bytes();
            context.setsockopt(inner, libc::SOL_SOCKET, libc::SO_REUSEPORT, &on)?;
        }
        match self.bound {
            Some(address) if self.has_kernels_port => {
                context.bind_beside_connections(inner, address)?;
            }
            Some(address) => context.bind(inner, address)?,
            None => {}
        }
        match self.backlog {
            Some(backlog) => context.listen(inner, backlog),
            None => Ok(()),
        }
    }

    /// The kernel's sets forget a socket only with its last descriptor, which another process may
    /// have.
    pub(crate) fn leave_kernels_sets(&self) {
        for member in &self.members {
            member.change_in_kernel(libc::EPOLL_CTL_DEL, 0);
        }
    }

    /// The opposite: what the sets report of the kernel's socket is wanted again.
    pub(crate) fn join_kernels_sets(&self) {
        for member in &self.members {
            member.change_in_kernel(libc::EPOLL_CTL_ADD, member.event.events.bits());
        }
    }

    /// A socket that never connects nor listens hangs up for ever (`tcp_poll`): the sets that wait
    /// for the stack report that when they see it first.
    fn watch_changes_alone(&self) {
        for member in &self.members {
            if numbers::entry(member.set) == NumberEntry::PendingSet {
                member.change_in_kernel(libc::EPOLL_CTL_MOD, libc::EPOLLET as u32);
            }
        }
    }
}

impl SetMember {
    /// Whether the set is still the one that the socket has joined.
    fn is_in_kernels_set(&self) -> bool {
        let added = self.change_in_kernel(libc::EPOLL_CTL_ADD, 0);
        if added == 0 {
            self.change_in_kernel(libc::EPOLL_CTL_DEL, 0);
        }
        added == -(libc::EEXIST as isize)
    }

    /// epoll_ctl(2) in the kernel, which refuses it where the set or the member is gone.
    fn change_in_kernel(&self, operation: c_int, events: u32) -> isize {
        let event = libc::epoll_event { events, u64: self.event.data };
        epoll_control(self.set, operation, self.number, event)
    }
}

/// The stack cannot start: sets that wait for it are the kernel's alone.
pub(crate) fn give_sets_to_kernel() {
    for (set, entry) in numbers::known(0, u32::MAX) {
        if entry == NumberEntry::PendingSet {
            numbers::set(set, NumberEntry::Kernel);
        }
    }
}
