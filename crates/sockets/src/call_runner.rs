//! How a context runs calls: with or without waiting, of one thread or of several.
//!
//! Read first: `attempt.rs`.

use crate::attempt::Attempt;
use crate::error::Error;
use crate::table::Sockets;

/// How calls are tried, and how they wait.
pub trait CallRunner {
    /// Tries until done. The second argument says that the time is over: the attempt must not ask
    /// to wait any more.
    ///
    /// # Errors
    /// Those of the attempt, and of the kernel while it waits.
    fn run<T>(&mut self, attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>)
    -> Result<T, Error>;

    /// What never waits.
    ///
    /// # Errors
    /// Those of the call.
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error>;
}
