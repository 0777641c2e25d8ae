//! The link of the process on the back end `local`: it is opened before the program drops its
//! rights, and one process of a family at a time has it.
//!
//! Read first: `stack.rs`; fcntl(2) on record locks, which belong to a process.
//!
//! A master binds its listeners with the rights that a link needs; the worker that it forks, and
//! that starts the stack, has them no longer. So the first listener of the stack opens the link,
//! and the worker inherits it. When the master replaces the worker, the new one waits for the old
//! one's end: both have one file in memory, on which the process with the stack has a lock.
//!
//! Invariants
//! - A memif starts without its peer, as a network without carrier: opening a link never blocks a
//!   program.
//! - exec(3) keeps the file, because a master may become a new program (haproxy's reload).
//! - A link that cannot be opened early is tried again when the stack starts.

use std::borrow::Cow;
use std::ffi::c_int;
use std::os::fd::IntoRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use megapipe::{AwaitedListener, ErrorChain, LocalNetwork, ServerConfig};

use crate::numbers::{self, NumberEntry};
use crate::raw::{process, system_call};
use crate::report;
use crate::settings::{PreloadBackend, PreloadSettings};

/// Time that a process waits for the end of another one's stack.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that the link of a process that exits may stay in use after its lock.
const EXIT_TIME_MAX: Duration = Duration::from_secs(10);
/// Time between two attempts.
const INTERVAL: Duration = Duration::from_millis(10);

/// A link that was opened early; null: none.
static OPENED: AtomicPtr<LocalNetwork> = AtomicPtr::new(ptr::null_mut());

/// The file that the processes of a family have in common; -1: none.
static TURN: AtomicI32 = AtomicI32::new(-1);

/// The process that made the file or took it over.
static HOLDER: AtomicI32 = AtomicI32::new(0);

/// Variable with the number of the family's file, for a program that exec(3) starts.
pub(crate) const TURN_VARIABLE: &str = "MEGAPIPE_TURN";
/// What the file is called in /proc.
const TURN_NAME: &str = "/memfd:megapipe-turn";

/// Takes over the family's file from the program that was in this process before.
pub(crate) fn inherit_turn(variable: Option<String>) {
    let Some(turn) = variable.and_then(|number| number.parse::<c_int>().ok()) else { return };
    let target = std::fs::read_link(format!("/proc/self/fd/{turn}"));
    if !target.is_ok_and(|target| target.to_string_lossy().starts_with(TURN_NAME)) {
        // The program has closed it, or has another file there.
        return;
    }
    set_closing(turn, true);
    numbers::set(turn, NumberEntry::Own);
    HOLDER.store(process(), Ordering::Relaxed);
    TURN.store(turn, Ordering::Relaxed);
}

/// Keeps the family's file open for the program that this process becomes. Returns its number, if
/// there is one.
pub(crate) fn pass_turn_on() -> Option<c_int> {
    let turn = TURN.load(Ordering::Relaxed);
    if turn < 0 || HOLDER.load(Ordering::Relaxed) != process() {
        // Children of a master start other programs.
        return None;
    }
    set_closing(turn, false);
    Some(turn)
}

fn set_closing(turn: c_int, closes_on_exec: bool) {
    let flags = if closes_on_exec { libc::FD_CLOEXEC } else { 0 };
    let arguments = [turn, libc::F_SETFD, flags, 0, 0, 0].map(|it| it as usize);
    // SAFETY: takes integers; the file is the library's.
    unsafe { system_call(libc::SYS_fcntl, arguments) };
}

/// Opens the link for the process or the child that will start the stack.
pub(crate) fn prepare(settings: &PreloadSettings) {
    let PreloadBackend::Local { link, server } = &settings.backend else { return };
    if TURN.load(Ordering::Relaxed) >= 0 {
        return;
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let Ok(turn) = rustix::fs::memfd_create("megapipe-turn", flags) else { return };
    HOLDER.store(process(), Ordering::Relaxed);
    TURN.store(turn.into_raw_fd(), Ordering::Relaxed);
    // An XDP socket's memory does not survive a fork.
    if (link.starts_with("tap:") || link.starts_with("packet:"))
        && let Ok(network) = LocalNetwork::open(link, sized(server))
    {
        OPENED.store(Box::into_raw(Box::new(network)), Ordering::Relaxed);
    }
}

/// The settings of the stack: beside connections there are listeners' queues and closing
/// connections.
fn sized(server: &ServerConfig) -> ServerConfig {
    let connections = megapipe::Config::default().max_lwsockets.saturating_add(1024);
    ServerConfig { connections, ..server.clone() }
}

/// Returns the link for the stack of this process, which awaits listeners.
///
/// # Errors
/// A line for a person: another process has the link, or it cannot be opened.
pub(crate) fn open(
    link: &str,
    server: &ServerConfig,
    awaited: Vec<AwaitedListener>,
) -> Result<LocalNetwork, String> {
    let is_first = take_turn().ok_or_else(|| {
        format!(
            "{link}: another process of this program has the stack, and did not end within {} s; \
             on the back end local one process has it, on the back end service all have",
            PATIENCE.as_secs()
        )
    })?;
    let opened = OPENED.swap(ptr::null_mut(), Ordering::Relaxed);
    if !opened.is_null() {
        // SAFETY: `prepare` has leaked it, and the exchange gave it to this caller alone.
        let mut network = *unsafe { Box::from_raw(opened) };
        network.change_tcp(|tcp| tcp.awaited_listeners.clone_from(&awaited));
        // The frames in a packet ring are where the process before has left them.
        if is_first || link.starts_with("tap:") {
            return Ok(network);
        }
    }
    let mut settings = sized(server);
    settings.tcp.awaited_listeners = awaited;
    let mut notice = |text: &str| report::complain(format_args!("{text}"));
    let deadline = Instant::now() + EXIT_TIME_MAX;
    let described = without_waiting(link);
    loop {
        match LocalNetwork::open_noting(&described, settings.clone(), &mut notice) {
            Ok(network) => return Ok(network),
            // The kernel releases the lock of a process that exits before its last descriptor.
            Err(_) if !is_first && Instant::now() < deadline => std::thread::sleep(INTERVAL),
            Err(error) => {
                let why = ErrorChain(&error);
                return Err(format!("{link}: {why}; one process has a link on the back end local"));
            }
        }
    }
}

/// The description of a memif that starts without its peer, unless it says how long to wait.
fn without_waiting(link: &str) -> Cow<'_, str> {
    match link.starts_with("memif:") && !link.contains(",wait=") {
        true => format!("{link},wait=0").into(),
        false => link.into(),
    }
}

/// Waits until no other process of the family has the stack. Returns whether none has had it;
/// `None`: one still has it.
fn take_turn() -> Option<bool> {
    let turn = TURN.load(Ordering::Relaxed);
    if turn < 0 {
        return Some(true);
    }
    let deadline = Instant::now() + PATIENCE;
    while !lock(turn) {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(INTERVAL);
    }
    // The file has a byte for each process that had the stack.
    // SAFETY: takes integers.
    let size = unsafe { system_call(libc::SYS_lseek, [turn as usize, 0, 2, 0, 0, 0]) };
    let byte = [1_u8];
    let arguments = [turn as usize, byte.as_ptr() as usize, 1, 0, 0, 0];
    // SAFETY: the byte is a local.
    unsafe { system_call(libc::SYS_write, arguments) };
    Some(size == 0)
}

fn lock(turn: c_int) -> bool {
    let wanted = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    let place = (&raw const wanted) as usize;
    let arguments = [turn as usize, libc::F_SETLK as usize, place, 0, 0, 0];
    // SAFETY: the record is a local. The lock ends with this process.
    unsafe { system_call(libc::SYS_fcntl, arguments) == 0 }
}

/// In the child of a process with a stack: its descriptors are closed there.
pub(crate) fn forget() {
    TURN.store(-1, Ordering::Relaxed);
    OPENED.store(ptr::null_mut(), Ordering::Relaxed);
}
