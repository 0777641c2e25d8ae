//! The operations that a socket object submits to the channel, and the facts that it queries there.
//!
//! Each kind of object has a trait, which the channel implements (`polled_channel.rs`). A unit test
//! builds an object alone with `transport/fake.rs`, which records operations. A handle that the
//! channel no longer knows has ended; its owner learns of that by a completion, so most of these
//! calls do not fail.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe::{
    ConnOption, ConnectOptions, Datagram, DatagramSharing, Departure, Disconnect, Handle,
    ListenOptions,
};

use crate::error::Error;
use crate::gather::SendPieces;
use crate::options::SocketOptions;
use crate::ports::Beneath;

#[cfg(test)]
pub(crate) mod fake;

/// The cookie of a connection that no descriptor stands for any more, and that has bytes to send.
pub(crate) const CLOSED: u64 = u64::MAX;

/// What all objects need.
pub(crate) trait ObjectTransport {
    /// Whether our own stack serves the object, and not the kernel's.
    fn is_local(&self) -> bool;

    /// Sets the cookie of a handle's completions. Returns whether the channel knows the handle.
    fn set_cookie(&mut self, handle: Handle, cookie: u64) -> bool;

    /// Takes a handle out of the channel. A descriptor that comes back is closed.
    fn unregister(&mut self, handle: Handle);

    /// Gives the channel a socket of the kernel's.
    ///
    /// # Errors
    /// As epoll_ctl(2), or the channel has no handle left.
    fn register(&mut self, socket: OwnedFd, cookie: u64) -> Result<Handle, Error>;

    /// The kernel's socket behind a handle; `None` on our own stack.
    fn kernel_socket(&self, handle: Handle) -> Option<BorrowedFd<'_>>;

    /// The local address of a handle.
    fn local_address(&mut self, handle: Handle) -> Option<SocketAddr>;

    /// Bytes that the channel has not sent.
    ///
    /// # Errors
    /// The channel does not know the handle.
    fn unsent_bytes(&self, handle: Handle) -> Result<usize, Error>;
}

/// What a stream needs.
pub(crate) trait StreamTransport: ObjectTransport + Beneath {
    /// Connects a new handle over our own stack.
    ///
    /// # Errors
    /// As connect(2).
    fn connect(
        &mut self,
        to: SocketAddr,
        options: &ConnectOptions,
        cookie: u64,
    ) -> Result<Handle, Error>;

    /// Connects a socket of the kernel's, which stays where it is if that fails.
    ///
    /// # Errors
    /// As connect(2).
    fn connect_socket(
        &mut self,
        socket: &mut Option<OwnedFd>,
        to: SocketAddr,
        cookie: u64,
    ) -> Result<Handle, Error>;

    /// Gives a connection that no program has accepted to another listener at its address, with
    /// the bytes that were `seen` of it. Returns `false` for a connection of the kernel.
    fn hand_back(&mut self, handle: Handle, seen: &[u8]) -> bool;

    /// The address of the peer.
    ///
    /// # Errors
    /// There is no peer any more.
    fn peer_address(&mut self, handle: Handle) -> Result<Option<SocketAddr>, Error>;

    /// Posts a read.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the channel does not know the handle.
    fn read(&mut self, handle: Handle) -> Result<(), Error>;

    /// Submits the read again that was withheld for a fork.
    fn resume(&mut self, _handle: Handle) {}

    /// Asks for a completion when the connection ends.
    fn await_end(&mut self, handle: Handle);

    /// Asks for a completion when the peer has acknowledged everything. Returns whether it follows.
    fn await_delivery(&mut self, handle: Handle) -> bool;

    /// Asks for a completion when less than `bytes` are unsent. Returns whether it follows.
    fn await_unsent_below(&mut self, handle: Handle, bytes: u32) -> bool;

    /// Writes the next `len` bytes of the caller's memory.
    ///
    /// # Errors
    /// The channel does not know the handle, or has no memory left.
    fn write(&mut self, handle: Handle, from: &mut SendPieces<'_>, len: usize)
    -> Result<(), Error>;

    /// Writes bytes, and returns how many are unsent; `None`: nothing was written.
    fn write_copied(&mut self, handle: Handle, bytes: &[u8]) -> Option<usize>;

    /// Asks for a completion of the last write that waits. Returns whether one follows.
    ///
    /// # Errors
    /// The channel does not know the handle.
    fn report_last_write(&mut self, handle: Handle) -> Result<bool, Error>;

    /// Ends one direction of a connection, or both.
    ///
    /// # Errors
    /// The channel does not know the handle.
    fn disconnect(&mut self, handle: Handle, how: Disconnect) -> Result<(), Error>;

    /// Sets an option of a connection on our own stack. Returns whether there is such a connection.
    fn set_option(&mut self, handle: Handle, option: ConnOption) -> bool;

    /// Sets whether a connection on our own stack is reset when its program ends (SO_LINGER with
    /// time 0).
    fn set_reset_on_close(&mut self, handle: Handle, on: bool);

    /// Bytes that have arrived in the channel.
    fn unread_in_channel(&self, handle: Handle) -> usize;

    /// Bytes that have arrived in our own stack or in the kernel, and not in the channel.
    fn unread_in_stack(&mut self, handle: Handle) -> usize;

    /// Bytes that our own stack or the kernel has queued, and the peer has not acknowledged.
    fn queued_in_stack(&mut self, handle: Handle) -> usize;

    /// Bytes that our own stack or the kernel has queued, and not sent.
    fn unsent_in_stack(&mut self, handle: Handle) -> usize;

    /// Bytes that a SYN has room for that waits for data (Fast Open).
    fn syn_room(&mut self, handle: Handle) -> Option<usize>;

    /// Bytes that a write may begin with while less than `mark` are unsent (TCP_NOTSENT_LOWAT);
    /// `None`: the connection is over.
    fn room_below(&mut self, handle: Handle, mark: u32) -> Option<usize>;

    /// Whether our own stack has `mark` unsent bytes or more.
    fn is_unsent_at(&mut self, handle: Handle, mark: u32) -> bool;

    /// Sets the options that were set before there was a connection. On the kernel the socket has
    /// them already.
    fn apply_options(&mut self, handle: Handle, options: &SocketOptions) {
        if !options.has_any() {
            return;
        }
        if options.resets_on_close() {
            self.set_reset_on_close(handle, true);
        }
        for option in options.for_connection() {
            if !self.set_option(handle, option) {
                return;
            }
        }
    }
}

/// How datagrams leave our own stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramRoute {
    pub(crate) to: SocketAddr,
    pub(crate) departure: Departure,
    /// Bytes of each datagram, where there are several; the last may be shorter.
    pub(crate) segment_len: Option<usize>,
}

/// What a datagram socket needs.
pub(crate) trait DatagramTransport: ObjectTransport {
    /// Binds a new handle on our own stack.
    ///
    /// # Errors
    /// As bind(2).
    fn bind_datagram(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
        cookie: u64,
    ) -> Result<Handle, Error>;

    /// Restricts a handle on our own stack to one peer, or to none. Returns its address.
    ///
    /// # Errors
    /// As connect(2).
    fn connect_datagram(
        &mut self,
        handle: Handle,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, Error>;

    /// Posts a receive.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the channel does not know the handle.
    fn receive_datagram(&mut self, handle: Handle) -> Result<(), Error>;

    /// Takes the first datagram that waits for the owners of a shared handle, or a copy of it; and
    /// 1 more than the bytes of the first one that waits then, or 0. The inner `None`: none waits.
    /// The outer: the handle is not shared any more, and receives complete.
    fn take_shared_datagram(
        &mut self,
        _handle: Handle,
        _keeps: bool,
    ) -> Option<Option<(Datagram, u32)>> {
        None
    }

    /// Returns 1 more than the bytes of the first datagram that waits for the owners of a shared
    /// handle, or 0. `None`: it is not shared any more, and receives complete.
    fn await_shared_datagram(&mut self, _handle: Handle) -> Option<u32> {
        None
    }

    /// Sends the rest of the caller's memory by the kernel.
    ///
    /// # Errors
    /// The channel does not know the handle, or has no memory left.
    fn send_by_kernel(
        &mut self,
        handle: Handle,
        from: &mut SendPieces<'_>,
        to: SocketAddr,
    ) -> Result<(), Error>;

    /// Sends the rest of the caller's memory by our own stack.
    ///
    /// # Errors
    /// As sendto(2).
    fn send_by_stack(
        &mut self,
        handle: Handle,
        from: &mut SendPieces<'_>,
        route: &DatagramRoute,
    ) -> Result<(), Error>;

    /// Asks our own stack to quote a datagram with the error that it met, or not any more.
    fn quote_errors(&mut self, handle: Handle, on: bool);

    /// Bytes of the longest packet of our own stack to an address, as far as it knows.
    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16>;
}

/// What a listener needs.
pub(crate) trait ListenerTransport: ObjectTransport {
    /// Listens with a new handle on our own stack.
    ///
    /// # Errors
    /// As listen(2).
    fn listen(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
        cookie: u64,
    ) -> Result<Handle, Error>;

    /// Asks for so many connections, by completions with `cookie`.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; the channel does not know the handle.
    fn accept(&mut self, listener: Handle, count: u32, cookie: u64) -> Result<(), Error>;

    /// Connections that a listener was asked for and that have not come.
    fn accepts_left(&mut self, listener: Handle) -> usize;

    /// Sets how many connections may begin with the data of a SYN (TCP_FASTOPEN).
    fn set_fast_open(&mut self, listener: Handle, pending_max: u32);

    /// The addresses of a connection, ours and the peer's.
    fn addresses(&mut self, connection: Handle) -> (Option<SocketAddr>, Option<SocketAddr>);
}
