//! The program under test: a thread that makes the script's calls, one at a time.

mod calls;

use std::fs;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{clock_us, sys};
use crate::linux::program::calls::{ProgramFiles, make};
use crate::system::{Call, Returned, SystemError};

/// How long a call that blocks gets to reach its wait.
const BLOCKING_US: i64 = 20_000;
/// How often the end of a call is looked for while the device is emptied meanwhile.
const LOOK_MS: u64 = 1;
/// How long the thread gets to end when its sockets are shut down.
const END_MS: u64 = 500;

/// The messages of the thread.
enum ThreadMessage {
    /// The next call begins right now.
    Begun,
    /// It returned, at this time in microseconds since 1970.
    Ended(Returned, i64),
}

/// The thread and what it has open.
pub(super) struct LinuxProgram {
    calls: Option<Sender<Call>>,
    said: Receiver<ThreadMessage>,
    files: Arc<Mutex<ProgramFiles>>,
    thread_id: i32,
    thread: Option<JoinHandle<()>>,
    finished: Option<(Returned, i64)>,
}

impl LinuxProgram {
    /// Starts the thread, in the namespace of the caller.
    pub(super) fn start() -> Result<Self, SystemError> {
        let (calls, asked) = channel();
        let (say, said) = channel();
        let (say_id, id) = channel();
        let files = Arc::new(Mutex::new(ProgramFiles::default()));
        let shared = Arc::clone(&files);
        let body = move || {
            let _ = sys::take_real_time_priority();
            let _ = say_id.send(rustix::thread::gettid().as_raw_nonzero().get());
            serve(&asked, &say, &shared);
        };
        let thread = thread::Builder::new().name("script".to_owned()).spawn(body);
        let broken = |why: String| SystemError::Failed { what: "no thread for calls", why };
        let thread = thread.map_err(|error| broken(error.to_string()))?;
        let thread_id = id.recv().map_err(|error| broken(error.to_string()))?;
        Ok(Self {
            calls: Some(calls),
            said,
            files,
            thread_id,
            thread: Some(thread),
            finished: None,
        })
    }

    /// Sockets opened from now on use this congestion control.
    pub(super) fn use_congestion_control(&self, name: &str) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).congestion_control =
            name.to_owned();
    }

    /// Begins a call, and comes back when it has returned or waits in the kernel.
    pub(super) fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        let gone = || SystemError::Failed { what: "calls", why: "the thread is gone".to_owned() };
        self.finished = None;
        self.calls.as_ref().and_then(|calls| calls.send(call).ok()).ok_or_else(gone)?;
        let mut has_begun = false;
        let give_up_us = clock_us() + BLOCKING_US;
        while clock_us() < give_up_us {
            match self.said.try_recv() {
                Ok(ThreadMessage::Begun) => has_begun = true,
                Ok(ThreadMessage::Ended(returned, at_us)) => {
                    self.finished = Some((returned, at_us));
                    return Ok(());
                }
                Err(TryRecvError::Empty) if has_begun && self.is_asleep() => return Ok(()),
                Err(TryRecvError::Empty) => thread::yield_now(),
                Err(TryRecvError::Disconnected) => return Err(gone()),
            }
        }
        Ok(())
    }

    /// Waits for the call's end; `meanwhile` is done now and then.
    pub(super) fn await_call(
        &mut self,
        until_us: i64,
        mut meanwhile: impl FnMut(),
    ) -> Result<Option<(Returned, i64)>, SystemError> {
        loop {
            if let Some(finished) = self.finished.take() {
                return Ok(Some(finished));
            }
            if let Ok(ThreadMessage::Ended(returned, at_us)) =
                self.said.recv_timeout(Duration::from_millis(LOOK_MS))
            {
                return Ok(Some((returned, at_us)));
            }
            meanwhile();
            if clock_us() > until_us {
                return Ok(None);
            }
        }
    }

    /// Whether the thread sleeps, by the third field of its stat file (proc(5)).
    fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.thread_id));
        let state = stat.ok().and_then(|stat| {
            let (_, after_name) = stat.rsplit_once(')')?;
            after_name.trim_start().chars().next()
        });
        state == Some('S')
    }
}

impl Drop for LinuxProgram {
    /// A call that still blocks is woken by the end of its socket. If it is not, its thread is left
    /// behind with its namespace.
    fn drop(&mut self) {
        self.calls = None;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).shut_down();
        let Some(thread) = self.thread.take() else { return };
        for _ in 0..END_MS {
            if thread.is_finished() {
                let _ = thread.join();
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Body of the thread: makes calls until the sender is dropped.
fn serve(asked: &Receiver<Call>, say: &Sender<ThreadMessage>, files: &Mutex<ProgramFiles>) {
    while let Ok(call) = asked.recv() {
        if say.send(ThreadMessage::Begun).is_err() {
            return;
        }
        let returned = make(call, files);
        if say.send(ThreadMessage::Ended(returned, clock_us())).is_err() {
            return;
        }
    }
}
