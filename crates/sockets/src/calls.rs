//! The calls, by their BSD names, on whatever can wait for them.
//!
//! Read first: the manual page of each call, section 2; errors are told as there, by [`Error`].
//!
//! Each call is tried without waiting; where it would have to wait, [`Bsd::run`] waits and tries
//! again. So a call is written once for a context of one thread and for one that threads share.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use crate::descriptors::Fd;
use crate::epoll::{EpollEvent, EpollOp};
use crate::error::Error;
use crate::flags::{MsgFlags, OpenFlags};
use crate::gather::{Gather, Scatter};
use crate::sockets::{Attempt, Kind, Sockets};
use crate::stream::Shutdown;

/// How calls are tried, and how they wait.
pub trait Run {
    /// Tries until done. The second argument says that the time is over: the attempt must not ask
    /// to wait any more.
    ///
    /// # Errors
    /// Those of the attempt, or [`Error::NetworkDown`] while it waits.
    fn run<T>(&mut self, attempt: impl FnMut(&mut Sockets, bool) -> Attempt<T>)
    -> Result<T, Error>;

    /// What never waits.
    ///
    /// # Errors
    /// Those of the call.
    fn once<T>(&mut self, call: impl FnOnce(&mut Sockets) -> Result<T, Error>) -> Result<T, Error>;
}

/// BSD sockets and epoll. Descriptors are those of one context ([`Fd`]).
///
/// A call that waits does so in its context's way, and honours O_NONBLOCK, MSG_DONTWAIT,
/// SO_RCVTIMEO and SO_SNDTIMEO. Time-outs: `None` waits for ever, zero not at all.
pub trait Bsd: Run {
    /// socket(2), with Linux's numbers. `AF_INET` and `AF_INET6`, `SOCK_STREAM`.
    ///
    /// # Errors
    /// As socket(2).
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Error> {
        self.once(|sockets| sockets.socket(domain, kind, protocol))
    }

    /// bind(2).
    ///
    /// # Errors
    /// As bind(2).
    fn bind(&mut self, fd: Fd, address: SocketAddr) -> Result<(), Error> {
        self.once(|sockets| sockets.bind(fd, address))
    }

    /// listen(2).
    ///
    /// # Errors
    /// As listen(2).
    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<(), Error> {
        self.once(|sockets| sockets.listen(fd, backlog))
    }

    /// accept4(2); for the peer's address there is [`Bsd::getpeername`].
    ///
    /// # Errors
    /// As accept4(2).
    fn accept4(&mut self, fd: Fd, flags: OpenFlags) -> Result<Fd, Error> {
        self.run(|sockets, is_over| sockets.accept(fd, flags, is_over))
    }

    /// connect(2); `None` is AF_UNSPEC: the socket is fresh again.
    ///
    /// # Errors
    /// As connect(2).
    fn connect(&mut self, fd: Fd, address: Option<SocketAddr>) -> Result<(), Error> {
        let mut is_first = true;
        self.run(|sockets, is_over| {
            let first = std::mem::take(&mut is_first);
            sockets.connect_any(fd, address, (first, is_over))
        })
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// As shutdown(2).
    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), Error> {
        self.once(|sockets| sockets.shutdown(fd, how))
    }

    /// close(2).
    ///
    /// # Errors
    /// As close(2).
    fn close(&mut self, fd: Fd) -> Result<(), Error> {
        self.once(|sockets| sockets.close(fd))
    }

    /// read(2).
    ///
    /// # Errors
    /// As read(2).
    #[inline]
    fn read(&mut self, fd: Fd, to: &mut [u8]) -> Result<usize, Error> {
        self.recv(fd, to, MsgFlags::empty())
    }

    /// readv(2).
    ///
    /// # Errors
    /// As readv(2).
    fn readv(&mut self, fd: Fd, to: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        let mut to = Scatter::new(to);
        self.run(|sockets, is_over| sockets.recv(fd, &mut to, MsgFlags::empty(), is_over))
    }

    /// recv(2).
    ///
    /// # Errors
    /// As recv(2).
    #[inline]
    fn recv(&mut self, fd: Fd, to: &mut [u8], flags: MsgFlags) -> Result<usize, Error> {
        let mut pieces = [IoSliceMut::new(to)];
        let mut to = Scatter::new(&mut pieces);
        self.run(|sockets, is_over| sockets.recv(fd, &mut to, flags, is_over))
    }

    /// write(2). SIGPIPE is not raised here: whoever gets [`Error::BrokenPipe`] may.
    ///
    /// # Errors
    /// As write(2).
    #[inline]
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Error> {
        self.send(fd, bytes, MsgFlags::empty())
    }

    /// writev(2).
    ///
    /// # Errors
    /// As writev(2).
    fn writev(&mut self, fd: Fd, bytes: &[IoSlice<'_>]) -> Result<usize, Error> {
        let mut from = Gather::new(bytes);
        self.run(|sockets, is_over| sockets.send(fd, &mut from, MsgFlags::empty(), is_over))
    }

    /// send(2). SIGPIPE is not raised here: whoever gets [`Error::BrokenPipe`] may, if the flags
    /// do not say MSG_NOSIGNAL.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    fn send(&mut self, fd: Fd, bytes: &[u8], flags: MsgFlags) -> Result<usize, Error> {
        let pieces = [IoSlice::new(bytes)];
        let mut from = Gather::new(&pieces);
        self.run(|sockets, is_over| sockets.send(fd, &mut from, flags, is_over))
    }

    /// getsockname(2).
    ///
    /// # Errors
    /// As getsockname(2).
    fn getsockname(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        self.once(|sockets| sockets.getsockname(fd))
    }

    /// getpeername(2).
    ///
    /// # Errors
    /// As getpeername(2).
    fn getpeername(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        self.once(|sockets| sockets.getpeername(fd))
    }

    /// epoll_create1(2).
    ///
    /// # Errors
    /// As epoll_create1(2).
    fn epoll_create1(&mut self, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| sockets.epoll_create(flags))
    }

    /// epoll_ctl(2).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn epoll_ctl(&mut self, epoll: Fd, op: EpollOp, fd: Fd) -> Result<(), Error> {
        self.once(|sockets| sockets.epoll_ctl(epoll, op, fd))
    }

    /// epoll_wait(2): how many of `events` were filled.
    ///
    /// # Errors
    /// As epoll_wait(2).
    fn epoll_wait(
        &mut self,
        epoll: Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        self.run(|sockets, is_over| sockets.epoll_wait(epoll, events, (timeout, is_over)))
    }
}

impl<R: Run> Bsd for R {}

/// Which kind of thing a call is about.
impl Sockets {
    fn connect_any(
        &mut self,
        fd: Fd,
        address: Option<SocketAddr>,
        when: (bool, bool),
    ) -> Attempt<()> {
        let object = match self.socket_of(fd) {
            Ok(object) => object,
            Err(error) => return Attempt::Done(Err(error)),
        };
        let Some(address) = address else {
            self.disconnect(object);
            return Attempt::Done(Ok(()));
        };
        self.connect(object, address, when)
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), Error> {
        let object = self.socket_of(fd)?;
        self.shutdown_stream(object, how)
    }

    #[inline]
    fn recv(
        &mut self,
        fd: Fd,
        to: &mut Scatter<'_, '_>,
        flags: MsgFlags,
        is_over: bool,
    ) -> Attempt<usize> {
        match self.socket_of(fd) {
            Ok(object) => self.recv_stream(object, to, flags, is_over),
            Err(error) => Attempt::Done(Err(error)),
        }
    }

    #[inline]
    fn send(
        &mut self,
        fd: Fd,
        from: &mut Gather<'_>,
        flags: MsgFlags,
        is_over: bool,
    ) -> Attempt<usize> {
        match self.socket_of(fd) {
            Ok(object) => self.send_stream(object, from, flags, is_over),
            Err(error) => Attempt::Done(Err(error)),
        }
    }

    #[inline]
    fn socket_of(&self, fd: Fd) -> Result<u32, Error> {
        let object = self.table.object(fd)?;
        match self.object(object).map(|entry| &entry.kind) {
            Some(Kind::Epoll(_)) => Err(Error::NotASocket),
            Some(_) => Ok(object),
            None => Err(Error::BadDescriptor),
        }
    }
}
