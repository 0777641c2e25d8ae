//! A channel in somebody else's loop: asked whether there is work, and slept on from outside.
//!
//! `dispatch` waits by itself. Where something else has to be waited for as well, or where whoever
//! waits must not hold the channel meanwhile, there is the other way: [`Channel::rest`], then sleep
//! on [`Channel::descriptors`], then `dispatch` without waiting.
//!
//! Invariant: between a `rest` that said [`Rest::Until`] and the next call on the channel, whatever
//! happens to it makes one of the descriptors readable, or the time passes.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::error::DispatchError;
use crate::kernel::{Driver, Rest};

impl Channel {
    /// Hands over what is queued, does what is due, and says whether there is something to
    /// dispatch; if not, gets ready for sleep on [`Channel::descriptors`]. Does not wait.
    ///
    /// # Errors
    /// [`DispatchError`] as for [`Channel::dispatch`].
    pub fn rest(&mut self) -> Result<Rest, DispatchError> {
        self.check_fork().map_err(|_| DispatchError::Forked)?;
        if self.state.woken || self.state.has_ready() {
            return Ok(Rest::Work);
        }
        let rest = self.driver.rest(&mut self.state)?;
        let (Rest::Until(own), false) = (rest, self.state.has_ready() || self.state.woken) else {
            return Ok(Rest::Work);
        };
        let timer = match self.state.timers.is_empty() {
            true => None,
            false => self.state.timers.until_next(Instant::now()),
        };
        match [own, timer].into_iter().flatten().min() {
            Some(Duration::ZERO) => Ok(Rest::Work),
            until => Ok(Rest::Until(until)),
        }
    }

    /// What becomes readable when there is something to dispatch, after a [`Channel::rest`]. The
    /// same ones for the whole life of the channel; a [`crate::Waker`] makes one readable, too.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.driver.descriptors()
    }
}
