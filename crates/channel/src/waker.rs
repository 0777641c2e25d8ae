//! Wakes a channel's `dispatch` from another thread.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes the channel's `dispatch` return [`crate::Event::Wake`]. May be cloned and sent to any
/// thread; has no effect once the channel is gone.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Config, Event};
/// use std::sync::mpsc;
///
/// let mut channel = Channel::create(Config::default())?;
/// let (requests, queue) = mpsc::channel();
/// let waker = channel.waker();
/// let worker = std::thread::spawn(move || {
///     requests.send("work").expect("the receiver waits");
///     waker.wake();
/// });
/// let done = channel.dispatch(None)?.expect("there is no time-out");
/// assert!(matches!(done.event, Event::Wake));
/// assert_eq!(queue.try_recv(), Ok("work"));
/// worker.join().expect("it does not panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Waker {
    bell: Arc<Bell>,
}

#[derive(Debug)]
struct Bell {
    event: Arc<OwnedFd>,
    /// `Event::Wake` was requested since the last one.
    asked: AtomicBool,
}

impl Waker {
    pub(crate) fn new(event: Arc<OwnedFd>) -> Self {
        Self { bell: Arc::new(Bell { event, asked: AtomicBool::new(false) }) }
    }

    /// Wakes the channel. Does not block. Several calls may give one `Event::Wake`.
    pub fn wake(&self) {
        // Release pairs with the Acquire in `take_asked`: what this thread did before it called
        // is seen by the thread that gets the Wake.
        self.bell.asked.store(true, Ordering::Release);
        self.wake_silently();
    }

    /// Wakes the channel without an `Event::Wake`.
    pub(crate) fn wake_silently(&self) {
        // A full counter (EAGAIN) is rung already; nothing else can fail on an eventfd.
        let _ = rustix::io::write(&*self.bell.event, &1u64.to_ne_bytes());
    }

    /// Empties the eventfd, so that the next ring is heard.
    pub(crate) fn silence(&self) {
        let mut count = [0; 8];
        // Nothing to read (EAGAIN) is silence too.
        let _ = rustix::io::read(&*self.bell.event, &mut count);
    }

    pub(crate) fn take_asked(&self) -> bool {
        // Acquire: pairs with the Release in `wake`.
        self.bell.asked.swap(false, Ordering::Acquire)
    }
}
