//! A daemon of the back end `service` for one script: its shard runs on the script's clock.
//!
//! The shard has a thread of its own, which sleeps by the machine's time. The world does not wait
//! for that: it asks for a poll, rings the wire's bell, and waits until the thread sleeps again
//! ([`Clock::ask_poll`], [`Clock::asleep`]).
//!
//! Invariant: the daemon ends with its value, and its socket goes with it.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use megapipe::{Clock, Daemon, LocalNetwork, ServiceAddress};

use super::WorldError;
use super::wire::Far;
use crate::limits::{LOOK_TIME, LOOKS_WITHOUT_SLEEP, RETURN_TIME, ROUNDS_MAX};

/// The daemon, on a thread.
pub(super) struct ScriptDaemon {
    address: ServiceAddress,
    clock: Clock,
    far: Far,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ScriptDaemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl ScriptDaemon {
    /// Starts it. The network has `clock`, and is the other end of `far`.
    pub(super) fn start(network: LocalNetwork, far: Far, clock: Clock) -> Result<Self, WorldError> {
        let path = unused_path();
        let address = ServiceAddress::new(&path);
        let (stop, stopped) = UnixStream::pair()?;
        let (ready, is_ready) = mpsc::channel();
        let body = move || {
            let daemon = Daemon::start(&network, &path, &[], |line| eprintln!("daemon: {line}"));
            let (mut daemon, outcome) = match daemon {
                Ok(daemon) => (Some(daemon), Ok(())),
                Err(error) => (None, Err(io::Error::other(format!("{error:?}")))),
            };
            if ready.send(outcome).is_ok()
                && let Some(daemon) = &mut daemon
            {
                // Whatever ends it, the script learns of it by its sockets.
                let _ = daemon.run(stopped.as_fd());
            }
        };
        let thread = thread::Builder::new().name("script-daemon".to_owned()).spawn(body)?;
        let daemon = Self { address, clock, far, stop: Some(stop), thread: Some(thread) };
        is_ready.recv().map_err(io::Error::other)??;
        Ok(daemon)
    }

    /// Where it is.
    pub(super) fn address(&self) -> ServiceAddress {
        self.address.clone()
    }

    /// The shard does everything that it can do now, and the application what follows from it.
    /// Returns the time until either has something due.
    pub(super) fn settle<E>(
        &self,
        mut application: impl FnMut() -> Result<Option<Duration>, E>,
    ) -> Result<Option<Duration>, E> {
        let mut worked_before = None;
        let mut until = application()?;
        for _ in 0..ROUNDS_MAX {
            let Some((due, worked)) = self.poll() else { break };
            until = [application()?, due].into_iter().flatten().min();
            // Both have had nothing to do.
            if worked_before.replace(worked) == Some(worked) {
                break;
            }
        }
        Ok(until)
    }

    /// A poll of the shard after all that was done before, and those that follow from it. `None`:
    /// its thread did not run for long.
    fn poll(&self) -> Option<(Option<Duration>, u64)> {
        self.clock.ask_poll();
        self.far.ring();
        let (began, mut looks) = (Instant::now(), 0);
        loop {
            if let Some(asleep) = self.clock.asleep() {
                return Some((asleep.due, asleep.worked));
            }
            if began.elapsed() >= RETURN_TIME {
                return None;
            }
            // On an idle machine the thread is asleep again before a sleep of this one would end.
            match looks < LOOKS_WITHOUT_SLEEP {
                true => thread::yield_now(),
                false => thread::sleep(LOOK_TIME),
            }
            looks += 1;
        }
    }
}

fn unused_path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the counter orders nothing but itself.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("mp-script-{}-{count}", std::process::id()))
}
