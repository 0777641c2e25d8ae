//! Threads whose start fails with an error, and the processors that they may have.
//!
//! `std::thread::spawn` panics where the kernel refuses a thread, and a new thread ends the process
//! if there is no memory for its signal stack and its first allocations: std maps and allocates
//! those inside the thread, where no error can be returned. So both functions check first that this
//! memory can be had, and return when the thread has it: the next check counts on the memory that
//! is left. A check holds as long as other threads take little memory meanwhile.

use std::io;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::limits::SPARE_BYTES;
use crate::memory::require;

/// Stack of a new thread, in bytes: what std uses unless it is configured otherwise.
const STACK_BYTES: usize = 2 << 20;

fn builder(name: String) -> io::Result<Builder> {
    require(STACK_BYTES + SPARE_BYTES)?;
    Ok(Builder::new().name(name).stack_size(STACK_BYTES))
}

/// Starts a thread. Blocks until it runs, some ten microseconds.
///
/// # Errors
/// [`io::ErrorKind::OutOfMemory`] without memory for its start, else the error of the kernel.
///
/// # Examples
/// ```
/// let thread = megapipe_apps::threads::spawn("sum", || 1 + 2)?;
/// assert_eq!(thread.join().ok(), Some(3));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let (signal, started) = sync_channel(1);
    let thread = builder(name.into())?.spawn(move || {
        let _ = signal.send(());
        body()
    })?;
    // An error means that the thread has ended already, which is for its caller to find out.
    let _ = started.recv();
    Ok(thread)
}

/// Starts a thread that ends before its scope does. Blocks until it runs, as [`spawn`].
///
/// A body that waits for another thread must return when that one cannot be started: the scope
/// waits for every thread that was.
///
/// # Errors
/// As [`spawn`].
///
/// # Examples
/// ```
/// let text = String::from("scoped");
/// let len = std::thread::scope(|scope| {
///     let thread = megapipe_apps::threads::spawn_scoped(scope, "len", || text.len())?;
///     Ok::<_, std::io::Error>(thread.join().ok())
/// })?;
/// assert_eq!(len, Some(6));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: impl Into<String>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    let (signal, started) = sync_channel(1);
    let thread = builder(name.into())?.spawn_scoped(scope, move || {
        let _ = signal.send(());
        body()
    })?;
    let _ = started.recv();
    Ok(thread)
}

/// The processors that this process may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}
