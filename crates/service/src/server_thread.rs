//! The thread that a server has to itself.

use std::sync::mpsc;
use std::thread::JoinHandle;

use megapipe_link::LinkError;

use crate::apart::ApartError;

/// Runs a server's loop on a thread of its own, pinned to `core` (`None`: wherever the kernel
/// likes), which says whether it could be pinned before it begins.
///
/// # Errors
/// [`ApartError::Thread`], [`ApartError::Pin`].
pub(crate) fn spawn(
    run: impl FnOnce() -> Result<(), LinkError> + Send + 'static,
    core: Option<usize>,
) -> Result<JoinHandle<Result<(), LinkError>>, ApartError> {
    let (tell, told) = mpsc::channel();
    let body = move || {
        let pinned = core.map_or(Ok(()), pin);
        let may_run = pinned.is_ok();
        // Whoever asked is waiting for it.
        let _ = tell.send(pinned);
        if may_run { run() } else { Ok(()) }
    };
    let builder = std::thread::Builder::new().name("mp-server".to_owned());
    let thread = builder.spawn(body).map_err(ApartError::Thread)?;
    match (told.recv(), core) {
        (Ok(Err(source)), Some(core)) => Err(ApartError::Pin { core, source }),
        _ => Ok(thread),
    }
}

/// The server has ended, or is about to.
///
/// # Errors
/// Why.
#[cold]
pub(crate) fn join(
    thread: &mut Option<JoinHandle<Result<(), LinkError>>>,
) -> Result<(), LinkError> {
    match thread.take().map(JoinHandle::join) {
        Some(Ok(Err(error))) => Err(error),
        // A panic was printed.
        Some(Ok(Ok(())) | Err(_)) | None => Err(LinkError::Gone { driver: "the server" }),
    }
}

fn pin(core: usize) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    if core < rustix::thread::CpuSet::MAX_CPU {
        set.set(core);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(Into::into)
}
