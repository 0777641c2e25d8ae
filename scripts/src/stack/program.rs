//! The program under test: a thread that makes the script's calls, one at a time.
//!
//! Invariant: a call's result is noted before its [`CallGuard`] is dropped, so the world's time
//! stands still until then.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use megapipe::Clock;
use megapipe_sockets::SharedContext;

use super::calls::make;
use crate::system::{Call, Returned, SystemError};
use crate::world::{CallGuard, ScriptWorld};

/// What a call returned, and when.
type Ended = (Returned, Duration);

/// The thread, and what its last call returned.
pub(super) struct StackProgram {
    calls: Option<Sender<(Call, CallGuard)>>,
    ended: Arc<Mutex<Option<Ended>>>,
    thread: Option<JoinHandle<()>>,
}

fn lock(ended: &Mutex<Option<Ended>>) -> MutexGuard<'_, Option<Ended>> {
    // A result is whole or not there, so a panic elsewhere leaves it whole.
    ended.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StackProgram {
    /// Starts the thread.
    pub(super) fn start(world: &ScriptWorld) -> Result<Self, SystemError> {
        let (calls, asked) = channel();
        let ended = Arc::new(Mutex::new(None));
        let (sockets, clock, noted) = (world.sockets(), world.clock(), Arc::clone(&ended));
        let body = move || serve(&asked, sockets, &clock, &noted);
        let thread = thread::Builder::new().name("script".to_owned()).spawn(body);
        let thread = thread.map_err(|error| SystemError::Failed {
            what: "no thread for calls",
            why: error.to_string(),
        })?;
        Ok(Self { calls: Some(calls), ended, thread: Some(thread) })
    }

    /// Begins a call. The next step of the host waits until it has returned or blocks.
    pub(super) fn start_call(&self, world: &ScriptWorld, call: Call) -> Result<(), SystemError> {
        *lock(&self.ended) = None;
        let sent = self.calls.as_ref().and_then(|calls| calls.send((call, world.enter())).ok());
        sent.ok_or_else(|| SystemError::Failed {
            what: "calls",
            why: "the thread is gone".to_owned(),
        })
    }

    /// What the call returned, if it is over.
    pub(super) fn ended(&self) -> Option<Ended> {
        lock(&self.ended).take()
    }

    /// Ends the thread. A thread whose call still blocks is leaked, with its host.
    pub(super) fn end(&mut self, world: &ScriptWorld) {
        self.calls = None;
        world.end();
        let finished = self.thread.take().filter(|_| !world.is_inside());
        if let Some(thread) = finished {
            // A panic in it was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The thread's loop: serves calls until the channel of requests is closed.
fn serve(
    asked: &Receiver<(Call, CallGuard)>,
    mut sockets: SharedContext,
    clock: &Clock,
    ended: &Mutex<Option<Ended>>,
) {
    while let Ok((call, inside)) = asked.recv() {
        let returned = make(&mut sockets, call);
        *lock(ended) = Some((returned, clock.elapsed()));
        drop(inside);
    }
}
