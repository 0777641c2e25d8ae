//! A channel that changes threads between calls.
//!
//! Read first: `pool.rs` for what a thread is bound to.

use std::ops::{Deref, DerefMut};

use crate::channel::Channel;
use crate::config::Config;
use crate::error::CreateError;

/// A channel for several threads that take turns, for example under a mutex.
///
/// One thread at a time is bound to the channel's buffers: at first the one that made it. A thread
/// that is done with the channel calls [`MovableChannel::unbind_thread`], the next one
/// [`MovableChannel::bind_thread`]. On a thread that is not bound no buffer is taken and no
/// received bytes are returned; nothing worse happens. Use the epoll driver or our own stack: the
/// kernel lets no other thread than the first one use the io_uring driver.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use megapipe::{Config, DriverChoice, MovableChannel};
///
/// let config = Config::default().driver(DriverChoice::Epoll);
/// let mut channel = MovableChannel::create(config)?;
/// channel.unbind_thread();
/// let worker = std::thread::spawn(move || {
///     assert!(channel.bind_thread());
///     channel.alloc(64).len()
/// });
/// assert_eq!(worker.join().expect("it does not panic"), 0);
/// # Ok(())
/// # }
/// ```
pub struct MovableChannel(Channel<ThreadsInTurn>);

/// Parameter of a channel whose threads take turns.
pub struct ThreadsInTurn(());

const IS_SEND: fn() = || {
    const fn is_send<T: Send>() {}
    is_send::<MovableChannel>();
};
const _: fn() = IS_SEND;

impl MovableChannel {
    /// Creates a channel, to which the calling thread is bound.
    ///
    /// # Errors
    /// As [`Channel::create`].
    pub fn create(config: Config) -> Result<Self, CreateError> {
        Channel::start(config).map(Self)
    }

    /// Binds the calling thread. `false`: another thread has not ended its binding.
    #[must_use]
    pub fn bind_thread(&self) -> bool {
        let state = &self.0.state;
        state.receive_pool.bind_thread() && state.send_pool.bind_thread()
    }

    /// Ends the binding of the calling thread, if it is bound, so that another one can be.
    pub fn unbind_thread(&self) {
        let state = &self.0.state;
        state.receive_pool.unbind_thread();
        state.send_pool.unbind_thread();
    }
}

impl Drop for MovableChannel {
    fn drop(&mut self) {
        // The thread that ends the channel uses its buffers for it.
        let _ = self.bind_thread();
    }
}

impl Deref for MovableChannel {
    type Target = Channel<ThreadsInTurn>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for MovableChannel {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
