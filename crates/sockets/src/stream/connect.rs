//! Connecting a stream: connect(2), and TCP Fast Open by TCP_FASTOPEN_CONNECT and MSG_FASTOPEN.
//!
//! Read first: connect(2); tcp(7) and send(2) on Fast Open; RFC 7413; Linux's
//! `tcp_sendmsg_fastopen`.
//!
//! With a cookie of the peer, `connect` returns at once, and the SYN leaves with the first write.
//! On our own stack that write takes what the SYN has room for, and a blocking one waits for the
//! handshake before it goes on, as on Linux. On the kernel the channel does the first write, so
//! what follows does not wait for the handshake.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use megapipe::{Address, ConnOption, ConnectOptions, Disconnect, Handle, Reuse, TcpState};

use super::{Blank, StreamSocket};
use crate::dual_stack;
use crate::error::Error;
use crate::gather::SendPieces;
use crate::kernel;
use crate::readiness::{ConnectProgress, Shut};
use crate::transport::StreamTransport;

const FASTOPEN_CONNECT: (i32, i32) = (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT);

/// How far `connect` is, as calls are answered by it: an attempt that has ended is reported once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connecting {
    Not,
    Begun,
    Done,
}

/// How far the data of a SYN is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SynData {
    /// There is none, or the handshake is complete.
    None,
    /// The SYN waits for the first write.
    Awaited,
    /// A write made the SYN leave, and nothing has answered it.
    Sent,
}

/// Asks the kernel's socket for Fast Open: with MSG_FASTOPEN, for this attempt to connect.
fn set_on_kernel(socket: BorrowedFd<'_>) -> Result<(), Error> {
    let (level, name) = FASTOPEN_CONNECT;
    kernel::set_option(socket, level, name, &1_i32.to_ne_bytes())
}

/// Whether a socket of the kernel's is in SYN-SENT: the first byte of `struct tcp_info`.
fn is_syn_sent(socket: BorrowedFd<'_>) -> bool {
    let mut state = [0];
    let filled = kernel::option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state);
    filled == Ok(1) && state[0] == TcpState::SynSent.linux_number()
}

impl StreamSocket {
    /// Begins to connect; completions carry `cookie`. `is_fast`: by Fast Open, after which
    /// [`StreamSocket::holds_syn`] finds out whether the SYN waits for data.
    ///
    /// # Errors
    /// As connect(2).
    pub(crate) fn begin_connect<T: StreamTransport>(
        &mut self,
        to: SocketAddr,
        is_fast: bool,
        cookie: u64,
        transport: &mut T,
    ) -> Result<(), Error> {
        let bound = self.bound.map(|bound| bound.address).or(self.asked);
        let v6_only = self.options.sharing.v6_only;
        let plain = dual_stack::to_connect(self.is_v6, v6_only, bound, to)?;
        // The kernel takes IPv4 from IPv6 sockets as they have it.
        let to = if transport.is_local() { plain } else { to };
        let handle = self.connect_below(to, is_fast, cookie, transport)?;
        self.options.forget_quick_ack();
        // Nagle's algorithm was part of the request to connect, or is the kernel's.
        let mut options = self.options;
        options.no_delay = false;
        transport.apply_options(handle, &options);
        let reuse = self.options.sharing.reuse();
        if transport.is_local() && reuse != Reuse::default() {
            transport.set_option(handle, ConnOption::Reuse(reuse));
        }
        self.handle = handle;
        // An error of the connection before is gone (`tcp_connect_init`).
        self.error = None;
        self.progress = ConnectProgress::Connecting;
        self.connecting = Connecting::Begun;
        self.shut = Shut::default();
        Ok(())
    }

    /// Where that fails the socket is as it was, and can be connected again.
    fn connect_below<T: StreamTransport>(
        &mut self,
        to: SocketAddr,
        is_fast: bool,
        cookie: u64,
        transport: &mut T,
    ) -> Result<Handle, Error> {
        match std::mem::replace(&mut self.blank, Blank::Used) {
            Blank::Kernel(fd) => {
                let is_set = match is_fast && !self.options.fast_open_connect {
                    true => set_on_kernel(fd.as_fd()),
                    false => Ok(()),
                };
                let mut socket = Some(fd);
                let connected =
                    is_set.and_then(|()| transport.connect_socket(&mut socket, to, cookie));
                if let Some(fd) = socket {
                    self.blank = Blank::Kernel(fd);
                }
                connected
            }
            Blank::Local | Blank::Used if transport.is_local() => {
                let options =
                    ConnectOptions::default().nodelay(self.options.no_delay).fast_open(is_fast);
                let options = match self.bound {
                    Some(bound) => {
                        let towards = dual_stack::bound_towards(bound.address, to);
                        options.bind(Address::Inet(towards))
                    }
                    None => options,
                };
                let connected = transport.connect(to, &options, cookie);
                if connected.is_err() {
                    self.blank = Blank::Local;
                }
                connected
            }
            Blank::Local | Blank::Used => Err(Error::InvalidArgument),
        }
    }

    /// An attempt to connect by Fast Open has begun. Returns whether the SYN waits for data.
    pub(crate) fn holds_syn<T: StreamTransport>(&mut self, transport: &mut T) -> bool {
        let waits = match transport.is_local() {
            true => transport.syn_room(self.handle).is_some(),
            false if matches!(self.progress, ConnectProgress::Connected) => {
                transport.kernel_socket(self.handle).is_some_and(is_syn_sent)
            }
            false => false,
        };
        if waits {
            // The kernel's answer was that the SYN waits, and no other follows.
            (self.syn_data, self.progress) = (SynData::Awaited, ConnectProgress::Connecting);
        }
        waits
    }

    /// Whether a SYN waits for the first write.
    pub(crate) fn has_syn_waiting(&self) -> bool {
        self.syn_data == SynData::Awaited
    }

    /// The answer of a call that connects; `None`: the handshake goes on.
    pub(crate) fn connect_result<T: StreamTransport>(
        &mut self,
        transport: &mut T,
    ) -> Option<Result<(), Error>> {
        match self.progress {
            ConnectProgress::Connecting => None,
            ConnectProgress::Connected => {
                self.connecting = Connecting::Done;
                Some(Ok(()))
            }
            ConnectProgress::Closed => {
                let error = self.error.take().unwrap_or(Error::Aborted);
                self.disconnect(transport);
                Some(Err(error))
            }
        }
    }

    /// Back to a fresh socket, after a connection attempt that failed or by `connect` to nowhere
    /// (AF_UNSPEC). What was received is gone.
    pub(crate) fn disconnect<T: StreamTransport>(&mut self, transport: &mut T) {
        // A program that cut a connection off itself gets a reset; an earlier error stays.
        let error = if self.is_over(transport) { self.error } else { Some(Error::Reset) };
        let mut unconnected = None;
        if self.handle != Handle::NONE {
            // The kernel's socket goes on with its options. Where a step fails, what is left is a
            // socket that cannot be connected again.
            let socket = transport.kernel_socket(self.handle);
            unconnected = socket.and_then(|fd| fd.try_clone_to_owned().ok());
            let undone = unconnected.as_ref().map(rustix::net::connect_unspec);
            if undone.is_none() && !matches!(self.progress, ConnectProgress::Closed) {
                // It may be over already, which is what is wanted.
                let _ = transport.disconnect(self.handle, Disconnect::Reset);
            }
            transport.unregister(self.handle);
        }
        let Self { options, is_v6, mut bound, asked, .. } = *self;
        if let Some(bound) = bound.as_mut().filter(|_| self.handle != Handle::NONE) {
            bound.give_up_if_chosen();
        }
        let blank = match unconnected {
            Some(fd) => Blank::Kernel(fd),
            None if transport.is_local() => Blank::Local,
            None => std::mem::replace(&mut self.blank, Blank::Used),
        };
        if let Blank::Kernel(fd) = &blank {
            // It is reported once, and not by the kernel.
            let _ = rustix::net::sockopt::socket_error(fd);
        }
        *self = Self { options, bound, asked, error, ..Self::new(blank, is_v6) };
    }

    /// Lets a SYN that waits for data leave with what fits of it.
    #[cold]
    pub(super) fn release_syn<T: StreamTransport>(
        &mut self,
        transport: &mut T,
        from: &mut SendPieces<'_>,
    ) {
        if !transport.is_local() {
            // The write is the channel's, and the kernel's socket is in order for the rest.
            (self.syn_data, self.progress) = (SynData::None, ConnectProgress::Connected);
            return;
        }
        self.syn_data = SynData::Sent;
        let room = transport.syn_room(self.handle);
        let len = from.left().min(room.unwrap_or_default());
        // A connection that is over reports that itself.
        if len == 0 {
            transport.set_option(self.handle, ConnOption::FastOpen);
        } else {
            let _ = transport.write(self.handle, from, len);
        }
    }
}
