//! Sockets that other processes have too, on the back end `service`.
//!
//! Read first: decision 0068; `fork_sharing.rs`.
//!
//! Their datagrams wait at the service, and each is taken when the program reads. What the socket
//! knows of them is a hint that the service gives with each answer; it is asked again when the
//! program looks at the socket, since another process may have taken them.

use std::net::SocketAddr;

use megapipe::{Address, AdoptedDatagramSocket, Datagram, Handle, SharedEndpoint};

use super::{DatagramSide, DatagramSocket, NO_SIDE, QueuedDatagram};
use crate::dual_stack;
use crate::error_queue::ErrorQueue;
use crate::flags::{Events, MsgFlags};
use crate::options::SocketOptions;
use crate::ports::BoundPort;
use crate::readiness::Shut;
use crate::transport::DatagramTransport;

/// What is known of the datagrams that wait for all owners of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedQueue {
    /// No other process has the endpoint.
    NotShared,
    /// The service was not asked.
    Unknown,
    /// None waits, and the service reports the next one.
    Empty,
    /// Bytes of the first one that waits, unless another process has taken it.
    Holds(u32),
}

impl SharedQueue {
    /// By an answer of the service.
    const fn of(waiting: Option<u32>) -> Self {
        match waiting {
            None => Self::NotShared,
            Some(0) => Self::Empty,
            Some(waiting) => Self::Holds(waiting - 1),
        }
    }
}

/// A datagram socket, as a child process inherits it.
#[derive(Debug, Clone)]
pub struct InheritedDatagram {
    /// By side. None: our own stack knows nothing of it yet.
    names: [Option<SharedEndpoint>; 2],
    pub(crate) is_nonblocking: bool,
    pub(crate) bound: Option<SocketAddr>,
    pub(crate) options: SocketOptions,
    is_v6: bool,
    peer: Option<SocketAddr>,
    asked: Option<SocketAddr>,
    shut: Shut,
}

impl InheritedDatagram {
    /// A socket that a message or a program has passed, by its addresses in the service. What the
    /// library keeps of options begins anew.
    pub(crate) fn passed(adopted: &[AdoptedDatagramSocket], is_nonblocking: bool) -> Option<Self> {
        let first =
            adopted.iter().find(|socket| socket.local.is_ipv6()).or_else(|| adopted.first())?;
        let is_v6 = first.local.is_ipv6();
        let mut options = SocketOptions::DEFAULT;
        options.sharing.v6_only = is_v6 && adopted.len() == 1;
        let peer = adopted.iter().find_map(|socket| socket.peer);
        let peer = peer.map(|peer| dual_stack::program_address(is_v6, peer));
        let local = Some(first.local);
        let (names, shut) = ([None; 2], Shut { receive: false, send: false });
        Some(Self { names, is_nonblocking, bound: local, options, is_v6, peer, asked: local, shut })
    }

    /// Its endpoints in the service.
    pub(crate) fn names(&self) -> impl Iterator<Item = SharedEndpoint> {
        self.names.into_iter().flatten()
    }

    /// The same, by side.
    pub(crate) const fn names_by_side(&self) -> [Option<SharedEndpoint>; 2] {
        self.names
    }
}

impl DatagramSocket {
    /// Whether other processes have the socket, or had it.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.sides.iter().any(|side| side.queue != SharedQueue::NotShared)
    }

    /// The handles of both sides, or `Handle::NONE`.
    pub(crate) fn handles_by_side(&self) -> [Handle; 2] {
        self.sides.map(|side| side.handle)
    }

    /// The socket for a child process, by the names of its sides.
    pub(crate) fn for_child(
        &self,
        names: [Option<SharedEndpoint>; 2],
        is_nonblocking: bool,
    ) -> InheritedDatagram {
        let Self { is_v6, options, peer, asked, shut, .. } = *self;
        let bound = self.bound.map(|bound| bound.address);
        InheritedDatagram { names, is_nonblocking, bound, options, is_v6, peer, asked, shut }
    }

    /// In a child process: the socket, by the handles of its sides.
    pub(crate) fn inherited(
        from: &InheritedDatagram,
        handles: [Handle; 2],
        bound: Option<BoundPort>,
    ) -> Self {
        let InheritedDatagram { options, is_v6, peer, asked, shut, .. } = *from;
        let sides = handles.map(|handle| match handle {
            Handle::NONE => NO_SIDE,
            handle => DatagramSide { handle, receiving: false, queue: SharedQueue::Unknown },
        });
        Self {
            sides,
            is_v6,
            options,
            peer,
            bound,
            asked,
            error: None,
            errors: ErrorQueue::default(),
            shut,
            inbox: std::collections::VecDeque::new(),
            inbox_bytes: 0,
            unsent_bytes: 0,
            starved: false,
        }
    }

    /// Other processes have the sides of the socket from now on that are shared. Returns what its
    /// program has not read, for the service, by side.
    pub(crate) fn share(
        &mut self,
        mut is_shared: impl FnMut(Handle) -> bool,
    ) -> Vec<(Handle, Vec<Datagram>)> {
        let mut unread = Vec::new();
        for side in self.sides.iter_mut().filter(|side| side.handle != Handle::NONE) {
            if is_shared(side.handle) {
                side.queue = SharedQueue::Unknown;
                unread.push((side.handle, Vec::new()));
            }
        }
        for queued in std::mem::take(&mut self.inbox) {
            let from = dual_stack::plain_address(queued.from);
            let handle = self.towards(from);
            let Some((_, its)) = unread.iter_mut().find(|(other, _)| *other == handle) else {
                self.inbox.push_back(queued);
                continue;
            };
            let QueuedDatagram { data, arrival, control, .. } = queued;
            let from = Some(Address::Inet(from));
            self.inbox_bytes -= data.len();
            its.push(Datagram { data, from, truncated: false, arrival, control });
        }
        self.starved &= unread.is_empty();
        unread
    }

    /// The program looks at the socket: what waits is asked for, unless nothing did and none has
    /// come since.
    pub(crate) fn look<T: DatagramTransport>(&mut self, transport: &mut T) -> Events {
        for side in &mut self.sides {
            if matches!(side.queue, SharedQueue::Unknown | SharedQueue::Holds(_)) {
                side.queue = SharedQueue::of(transport.await_shared_datagram(side.handle));
            }
        }
        // No other process may have it any more.
        self.post_receives(transport);
        if self.has_shared_datagram() { Events::ARRIVED } else { Events::empty() }
    }

    /// A datagram has come to the service, which another process may have taken since.
    pub(crate) fn on_datagram_waits<T: DatagramTransport>(
        &mut self,
        handle: Handle,
        transport: &mut T,
    ) -> Events {
        let side = self.side(handle);
        match side.queue {
            SharedQueue::NotShared => return Events::empty(),
            SharedQueue::Holds(_) => {}
            SharedQueue::Unknown | SharedQueue::Empty => {
                side.queue = SharedQueue::of(transport.await_shared_datagram(handle));
            }
        }
        let holds = matches!(side.queue, SharedQueue::Holds(_));
        self.post_receives(transport);
        if holds { Events::ARRIVED } else { Events::empty() }
    }

    /// Whether a datagram may wait at the service.
    pub(super) fn has_shared_datagram(&self) -> bool {
        self.sides.iter().any(|side| matches!(side.queue, SharedQueue::Holds(_)))
    }

    /// Bytes of a datagram that may wait at the service.
    pub(super) fn shared_len(&self) -> usize {
        let mut lens = self.sides.iter().filter_map(|side| match side.queue {
            SharedQueue::Holds(bytes) => Some(bytes as usize),
            _ => None,
        });
        lens.next().unwrap_or_default()
    }

    /// Takes a datagram that waits at the service for a read. Returns whether it still waits there,
    /// so that the read takes a copy.
    pub(super) fn take_shared<T: DatagramTransport>(
        &mut self,
        flags: MsgFlags,
        transport: &mut T,
    ) -> bool {
        let keeps = flags.contains(MsgFlags::PEEK);
        for place in 0..self.sides.len() {
            let side = &mut self.sides[place];
            if matches!(side.queue, SharedQueue::NotShared | SharedQueue::Empty) {
                continue;
            }
            let taken = transport.take_shared_datagram(side.handle, keeps);
            let waiting =
                |taken: &Option<(_, u32)>| taken.as_ref().map_or(0, |(_, waiting)| *waiting);
            side.queue = SharedQueue::of(taken.as_ref().map(waiting));
            if let Some(Some((datagram, _))) = taken {
                self.keep(datagram);
                return keeps;
            }
        }
        self.post_receives(transport);
        false
    }
}
