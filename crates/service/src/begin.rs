//! Beginning to connect: what holds of a connection from its first segment on.

use std::net::SocketAddr;

use megapipe_stack::{ConnId, ConnOption, ConnectError, Instant, Memory};

use crate::error::PortError;
use crate::server::Server;

/// What holds of a connection from its first segment on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectStart {
    /// Whether small segments go at once, if not as the configuration has it.
    pub nodelay: Option<bool>,
    /// The SYN may carry data ([`ConnOption::FastOpen`]).
    pub fast_open: bool,
    /// It is reset instead of closed in order if its session ends. A server that
    /// belongs to one program ends with it, and keeps nothing of this.
    pub resets_on_close: bool,
}

impl<M: Memory> Server<M> {
    /// As [`Server::connect`], with the options that hold from the first segment on.
    ///
    /// # Errors
    /// As [`Server::connect`].
    pub fn connect_as(
        &mut self,
        now: Instant,
        (remote, local): (SocketAddr, Option<SocketAddr>),
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        let conn = self.connect(now, remote, local)?;
        let options = [
            begin.nodelay.map(ConnOption::NoDelay),
            begin.fast_open.then_some(ConnOption::FastOpen),
        ];
        for option in options.into_iter().flatten() {
            let (stack, memory) = self.parts();
            let set = stack.set_option(now, conn, option, memory);
            debug_assert!(set.is_ok(), "the connection was made just now");
        }
        Ok(conn)
    }
}
