//! The thread that a server has to itself.

use std::sync::mpsc;
use std::thread::JoinHandle;

use megapipe_link::LinkError;
use megapipe_shm::without_signals;

use crate::error::RemoteError;

/// Runs a server's loop on a thread of its own, pinned to `core` (`None`: wherever the kernel
/// likes), which says whether it could be pinned before it begins. Signals of the process are not
/// delivered to it: they are the application's.
///
/// # Errors
/// [`RemoteError::Thread`], [`RemoteError::Pin`]; then `run` has been dropped.
pub(crate) fn spawn(
    run: impl FnOnce() -> Result<(), LinkError> + Send + 'static,
    core: Option<usize>,
) -> Result<JoinHandle<Result<(), LinkError>>, RemoteError> {
    let (tell, told) = mpsc::channel();
    let body = move || {
        let pinned = core.map_or(Ok(()), pin);
        let may_run = pinned.is_ok();
        // The caller waits for it.
        let _ = tell.send(pinned);
        if may_run { run() } else { Ok(()) }
    };
    let builder = std::thread::Builder::new().name("mp-server".to_owned());
    let thread = without_signals(|| builder.spawn(body)).map_err(RemoteError::Thread)?;
    match (told.recv(), core) {
        (Ok(Err(source)), Some(core)) => {
            // What `run` holds is free again when the caller learns of it, such as its link.
            let _ = thread.join();
            Err(RemoteError::Pin { core, source })
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// Numbers of SIGHUP, SIGINT, SIGUSR1, SIGALRM, SIGTERM and SIGCHLD.
    const APPLICATIONS: [u32; 6] = [1, 2, 10, 14, 15, 17];
    /// Of SIGILL, SIGBUS, SIGFPE and SIGSEGV.
    const FAULTS: [u32; 4] = [4, 7, 8, 11];

    #[test]
    fn signals_are_the_applications_and_faults_its_own() {
        let (tell, told) = mpsc::channel();
        let status = move || {
            let status = std::fs::read_to_string("/proc/thread-self/status");
            tell.send(status.expect("procfs")).expect("it is asked");
            Ok(())
        };
        let thread = spawn(status, None).expect("a thread");
        let status = told.recv().expect("an answer");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t"));
        let mask = u64::from_str_radix(mask.expect("a mask"), 16).expect("a number");
        for signal in APPLICATIONS {
            assert_ne!(mask & 1 << (signal - 1), 0, "{signal} in {mask:x}");
        }
        for signal in FAULTS {
            assert_eq!(mask & 1 << (signal - 1), 0, "{signal} in {mask:x}");
        }
        assert!(status.contains("Name:\tmp-server"), "{status}");
        thread.join().expect("it only looks").expect("no link was asked");
    }

    #[test]
    fn a_failed_start_leaves_nothing_behind() {
        /// What takes its time to close, as a link may.
        struct Slow(Arc<AtomicBool>);
        impl Drop for Slow {
            fn drop(&mut self) {
                std::thread::sleep(Duration::from_millis(50));
                self.0.store(true, Ordering::Release);
            }
        }
        let closed = Arc::new(AtomicBool::new(false));
        let link = Slow(Arc::clone(&closed));
        let run = move || {
            drop(link);
            Ok(())
        };
        let failed = spawn(run, Some(rustix::thread::CpuSet::MAX_CPU)).expect_err("no such core");
        assert!(matches!(failed, RemoteError::Pin { .. }), "{failed}");
        assert!(closed.load(Ordering::Acquire), "it is closed before the caller goes on");
    }
}
