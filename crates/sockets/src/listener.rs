//! Listening sockets: a queue of connections for the program.
//!
//! Read first: listen(2), accept(2).
//!
//! A [`Listener`] is a value that knows no other object; connections in its queue are numbers of
//! the table. Its connections come by one or two groups (`reuseport_group.rs`), which several
//! listeners may share.
//!
//! A backlog of `n` lets `n + 1` connections wait, as in Linux. They wait in two places: a few were
//! taken from the channel already and are in `queue`, the rest is the kernel's or our stack's.
//!
//! A socket at all of IPv6 that is not IPV6_V6ONLY listens on our own stack at all of IPv4 as well:
//! two groups, each with the backlog's second place.

use std::collections::VecDeque;
use std::net::SocketAddr;

use megapipe::{Handle, ListenOptions};

use crate::dual_stack;
use crate::error::Error;
use crate::flags::Events;
use crate::limits::{ACCEPT_AHEAD, BACKLOG_MAX, NIL};
use crate::options::SocketOptions;
use crate::ports::BoundPort;
use crate::readiness;
use crate::stream::{Blank, StreamSocket};
use crate::transport::ListenerTransport;

/// A listening socket.
pub(crate) struct Listener {
    /// Where its connections come from. The second is IPv4's, of a socket for both families, or
    /// `NIL`.
    groups: [u32; 2],
    /// The first group's.
    handle: Handle,
    /// Connections for the program, oldest first: objects without a descriptor.
    queue: VecDeque<u32>,
    /// How many are taken from the channel ahead of the program.
    ahead: usize,
    pub(crate) error: Option<Error>,
    pub(crate) is_v6: bool,
    pub(crate) options: SocketOptions,
    pub(crate) bound: Option<BoundPort>,
}

/// How the connections of a backlog are divided between the queue here and the one below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BacklogShare {
    /// Connections that are taken ahead of the program.
    pub(crate) ahead: usize,
    /// Connections that may wait behind them.
    behind: usize,
}

impl BacklogShare {
    /// Divides `backlog + 1` connections. The kernel needs room for those that come between two
    /// polls, so a quarter is all that is taken out of its queue; our own stack hands on at once
    /// what was asked for before.
    pub(crate) fn of(backlog: i32, is_local: bool) -> Self {
        // A negative backlog is a very large one: it is unsigned in the kernel.
        let backlog = usize::try_from(backlog).unwrap_or(BACKLOG_MAX).min(BACKLOG_MAX);
        let ahead = if is_local { backlog } else { backlog / 4 }.clamp(1, ACCEPT_AHEAD);
        Self { ahead, behind: (backlog + 1 - ahead).max(1) }
    }

    /// The backlog below: the kernel and our own stack queue one connection more than that.
    pub(crate) const fn backlog_below(self) -> u32 {
        self.behind as u32 - 1
    }
}

impl Listener {
    /// A queue for the connections that are taken ahead.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn queue_of(share: BacklogShare) -> Result<VecDeque<u32>, Error> {
        let mut queue = VecDeque::new();
        queue.try_reserve(share.ahead).map_err(|_| Error::NoMemory)?;
        Ok(queue)
    }

    /// The listener that a stream turns into.
    pub(crate) fn of(
        stream: &StreamSocket,
        groups: [u32; 2],
        handle: Handle,
        (queue, ahead): (VecDeque<u32>, usize),
    ) -> Self {
        let mut options = stream.options;
        options.forget_quick_ack();
        Self {
            groups,
            handle,
            queue,
            ahead,
            error: None,
            is_v6: stream.is_v6,
            options,
            bound: stream.bound,
        }
    }

    /// The stream that a listener turns into when it is shut down: fresh, and bound where it was.
    pub(crate) fn as_stream(&self, blank: Blank) -> StreamSocket {
        let mut stream = StreamSocket::new(blank, self.is_v6);
        stream.options = self.options;
        stream.bound = self.bound;
        stream
    }

    pub(crate) const fn handle(&self) -> Handle {
        self.handle
    }

    pub(crate) fn readiness(&self) -> Events {
        let events = readiness::of_listener(!self.queue.is_empty());
        if self.error.is_some() { events | Events::ERR } else { events }
    }

    /// The groups that its connections come by.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> + use<> {
        self.groups.into_iter().filter(|group| *group != NIL)
    }

    /// Connections that may still be taken ahead of the program.
    pub(crate) fn room(&self) -> usize {
        self.ahead.saturating_sub(self.queue.len())
    }

    /// Connections that wait for the program.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether connections have to be asked for, where `asked` are on their way.
    pub(crate) fn needs_more(&self, asked: usize) -> bool {
        self.queue.len() + asked <= self.ahead / 2
    }

    /// listen(2) on a socket that listens: another backlog.
    ///
    /// # Errors
    /// As listen(2); [`Error::NoMemory`].
    pub(crate) fn set_backlog<T: ListenerTransport>(
        &mut self,
        share: BacklogShare,
        transport: &T,
    ) -> Result<(), Error> {
        let missing = share.ahead.saturating_sub(self.queue.len());
        self.queue.try_reserve(missing).map_err(|_| Error::NoMemory)?;
        self.ahead = share.ahead;
        // Our own stack's part of the backlog stays as it was first asked for.
        if let Some(socket) = transport.kernel_socket(self.handle) {
            rustix::net::listen(socket, share.backlog_below() as i32)?;
        }
        Ok(())
    }

    /// Makes room for one more connection; there is some for those that are taken ahead. Returns
    /// whether there is memory for it.
    pub(crate) fn reserve_one(&mut self) -> bool {
        self.queue.try_reserve(1).is_ok()
    }

    /// A connection came, for which there is room.
    pub(crate) fn on_connection(&mut self, connection: u32) -> Events {
        self.queue.push_back(connection);
        Events::ARRIVED
    }

    /// Accepting failed.
    pub(crate) fn on_error(&mut self, error: Error) -> Events {
        self.error = Some(error);
        Events::READABLE | Events::ERR
    }

    /// accept(2): the oldest connection; `None`: the call has to wait.
    pub(crate) fn accept(&mut self) -> Option<Result<u32, Error>> {
        match self.queue.pop_front() {
            Some(connection) => Some(Ok(connection)),
            None => self.error.take().map(Err),
        }
    }

    /// Takes the connections that no program has accepted.
    pub(crate) fn take_queue(&mut self) -> VecDeque<u32> {
        std::mem::take(&mut self.queue)
    }

    /// getsockname(2).
    pub(crate) fn local_name<T: ListenerTransport>(&self, transport: &mut T) -> SocketAddr {
        let known = transport.local_address(self.handle);
        let name = known.or_else(|| self.bound.map(|bound| bound.address));
        dual_stack::program_address(
            self.is_v6,
            name.unwrap_or_else(|| dual_stack::unbound(self.is_v6)),
        )
    }
}

/// How a stream is to listen on our own stack. With SO_REUSEPORT, contexts of the process's other
/// shards may listen there too, and other sockets of this one.
pub(crate) fn options_of(stream: &StreamSocket, share: BacklogShare) -> ListenOptions {
    let sharing = stream.options.sharing;
    ListenOptions::default()
        .backlog(share.backlog_below())
        .share(sharing.port)
        .reuse(sharing.reuse())
        .fast_open(stream.options.fast_open())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::fake::FakeTransport;

    fn listener(ahead: usize) -> Listener {
        let stream = StreamSocket::new(Blank::Local, false);
        Listener::of(&stream, [0, NIL], Handle::from_bits(1), (VecDeque::new(), ahead))
    }

    #[test]
    fn backlog_is_divided_between_both_queues() {
        for (backlog, kernels, ours) in [
            (0, (1, 1), (1, 1)),
            (1, (1, 1), (1, 1)),
            (64, (16, 49), (64, 1)),
            (65, (16, 50), (64, 2)),
            (128, (32, 97), (64, 65)),
            (256, (64, 193), (64, 193)),
            (i32::MAX, (64, BACKLOG_MAX + 1 - 64), (64, BACKLOG_MAX + 1 - 64)),
            (-1, (64, BACKLOG_MAX + 1 - 64), (64, BACKLOG_MAX + 1 - 64)),
        ] {
            let share = |is_local| {
                let share = BacklogShare::of(backlog, is_local);
                (share.ahead, share.behind)
            };
            assert_eq!((share(false), share(true)), (kernels, ours), "{backlog}");
        }
    }

    #[test]
    fn listener_hands_out_connections_in_order() {
        let mut listener = listener(4);
        assert_eq!((listener.readiness(), listener.accept()), (Events::empty(), None));
        assert_eq!(listener.on_connection(11), Events::ARRIVED);
        assert_eq!(listener.on_connection(12), Events::ARRIVED);
        assert_eq!((listener.readiness(), listener.room()), (Events::READABLE, 2));
        assert_eq!((listener.accept(), listener.accept()), (Some(Ok(11)), Some(Ok(12))));
        assert_eq!((listener.readiness(), listener.accept()), (Events::empty(), None));
    }

    #[test]
    fn listener_reports_an_error_once_behind_its_connections() {
        let mut listener = listener(4);
        let _ = listener.on_connection(11);
        assert_eq!(listener.on_error(Error::TableFull), Events::READABLE | Events::ERR);
        assert_eq!(listener.readiness(), Events::READABLE | Events::ERR);
        assert_eq!(listener.accept(), Some(Ok(11)));
        assert_eq!(listener.accept(), Some(Err(Error::TableFull)));
        assert_eq!((listener.readiness(), listener.accept()), (Events::empty(), None));
    }

    #[test]
    fn listener_asks_again_when_half_of_its_queue_is_accepted() {
        let mut listener = listener(4);
        for connection in 0..4 {
            let _ = listener.on_connection(connection);
        }
        assert_eq!((listener.room(), listener.needs_more(0)), (0, false));
        let _ = (listener.accept(), listener.accept());
        assert!(listener.needs_more(0));
        assert!(!listener.needs_more(1), "those that were asked for count");
    }

    #[test]
    fn smaller_backlog_leaves_what_waits() {
        let (mut listener, transport) = (listener(4), FakeTransport::local());
        let _ = (listener.on_connection(11), listener.on_connection(12));
        listener.set_backlog(BacklogShare::of(1, true), &transport).unwrap();
        assert_eq!((listener.room(), listener.queued()), (0, 2));
        assert_eq!(listener.take_queue(), [11, 12]);
    }
}
