//! The calls, by their BSD names, on whatever can wait for them.
//!
//! Read first: the manual page of each call, section 2; errors are told as there, by [`Error`].
//!
//! Each call is tried without waiting; where it would have to wait, [`Run::run`] waits and tries
//! again. So a call is written once for a context of one thread and for one that threads share.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use crate::control::check_for_stream;
use crate::datagram::Received;
use crate::descriptors::Fd;
use crate::epoll::{EpollEvent, EpollOp};
use crate::error::Error;
use crate::flags::{MsgFlags, OpenFlags};
use crate::gather::{Gather, Scatter};
use crate::kernel;
use crate::poll::{FdSet, PollFd, Selected};
use crate::process::{AnyFd, KernelPoll};
use crate::signal::SignalMask;
use crate::sockets::{Attempt, Kind, Sockets, Wait};
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
    /// socket(2), with Linux's numbers. `AF_INET` and `AF_INET6`, `SOCK_STREAM` and
    /// `SOCK_DGRAM`.
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

    /// close(2). With SO_LINGER it waits until the peer has everything, no longer than that says,
    /// also where other calls would not wait.
    ///
    /// # Errors
    /// As close(2).
    fn close(&mut self, fd: Fd) -> Result<(), Error> {
        let mut lingering = None;
        self.run(|sockets, is_over| sockets.close_and_linger(fd, &mut lingering, is_over))
    }

    /// Closes every descriptor, as the end of a process does, and waits until what was written on
    /// connections has left the channel, at most `patience`.
    ///
    /// # Errors
    /// [`Error::NetworkDown`]; [`Error::Interrupted`], after which it may be called again.
    fn close_all(&mut self, patience: Duration) -> Result<(), Error> {
        self.run(|sockets, is_over| {
            sockets.close_all();
            if sockets.closing > 0 && !is_over {
                return Attempt::Wait(Wait::on_anything(Some(patience)));
            }
            // What was closed last leaves with this.
            Attempt::Done(sockets.turn(Some(Duration::ZERO)))
        })
    }

    /// read(2).
    ///
    /// # Errors
    /// As read(2).
    #[inline]
    fn read(&mut self, fd: Fd, to: &mut [u8]) -> Result<usize, Error> {
        let mut pieces = [IoSliceMut::new(to)];
        let mut to = Scatter::new(&mut pieces);
        self.run(|sockets, is_over| sockets.read(fd, &mut to, is_over))
    }

    /// readv(2).
    ///
    /// # Errors
    /// As readv(2).
    fn readv(&mut self, fd: Fd, to: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        if to.len() > PIECES_MAX {
            return Err(Error::InvalidArgument);
        }
        let mut to = Scatter::new(to);
        self.run(|sockets, is_over| sockets.read(fd, &mut to, is_over))
    }

    /// recv(2).
    ///
    /// # Errors
    /// As recv(2).
    #[inline]
    fn recv(&mut self, fd: Fd, to: &mut [u8], flags: MsgFlags) -> Result<usize, Error> {
        self.recvfrom(fd, &mut [IoSliceMut::new(to)], flags).map(|received| received.len)
    }

    /// recvfrom(2), to several pieces.
    ///
    /// # Errors
    /// As recvfrom(2).
    #[inline]
    fn recvfrom(
        &mut self,
        fd: Fd,
        to: &mut [IoSliceMut<'_>],
        flags: MsgFlags,
    ) -> Result<Received, Error> {
        self.recvmsg(fd, to, &mut [], flags)
    }

    /// recvmsg(2). `control` is filled as cmsg(3) says, as far as there is room.
    ///
    /// # Errors
    /// As recvmsg(2).
    #[inline]
    fn recvmsg(
        &mut self,
        fd: Fd,
        to: &mut [IoSliceMut<'_>],
        control: &mut [u8],
        flags: MsgFlags,
    ) -> Result<Received, Error> {
        if to.len() > PIECES_MAX {
            return Err(Error::MessageTooLong);
        }
        let mut to = Scatter::new(to);
        self.run(|sockets, is_over| sockets.recv(fd, &mut to, control, (flags, is_over)))
    }

    /// write(2). SIGPIPE is not raised here: whoever gets [`Error::BrokenPipe`] may.
    ///
    /// # Errors
    /// As write(2).
    #[inline]
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Error> {
        let pieces = [IoSlice::new(bytes)];
        let mut from = Gather::new(&pieces);
        self.run(|sockets, is_over| sockets.write(fd, &mut from, is_over))
    }

    /// writev(2).
    ///
    /// # Errors
    /// As writev(2).
    fn writev(&mut self, fd: Fd, bytes: &[IoSlice<'_>]) -> Result<usize, Error> {
        if bytes.len() > PIECES_MAX {
            return Err(Error::InvalidArgument);
        }
        let mut from = Gather::new(bytes);
        self.run(|sockets, is_over| sockets.write(fd, &mut from, is_over))
    }

    /// send(2). SIGPIPE is not raised here: whoever gets [`Error::BrokenPipe`] may, if the flags
    /// do not say MSG_NOSIGNAL.
    ///
    /// # Errors
    /// As send(2).
    #[inline]
    fn send(&mut self, fd: Fd, bytes: &[u8], flags: MsgFlags) -> Result<usize, Error> {
        self.sendto(fd, &[IoSlice::new(bytes)], None, flags)
    }

    /// sendto(2), of several pieces.
    ///
    /// # Errors
    /// As sendto(2).
    #[inline]
    fn sendto(
        &mut self,
        fd: Fd,
        bytes: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        self.sendmsg(fd, bytes, (to, &[]), flags)
    }

    /// sendmsg(2): to an address, with control data as in cmsg(3).
    ///
    /// # Errors
    /// As sendmsg(2).
    #[inline]
    fn sendmsg(
        &mut self,
        fd: Fd,
        bytes: &[IoSlice<'_>],
        (to, control): (Option<SocketAddr>, &[u8]),
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        if bytes.len() > PIECES_MAX {
            return Err(Error::MessageTooLong);
        }
        let mut from = Gather::new(bytes);
        self.run(|sockets, is_over| sockets.send(fd, &mut from, (to, control, flags), is_over))
    }

    /// getsockopt(2), with Linux's numbers: how many bytes of `value` were filled.
    ///
    /// # Errors
    /// As getsockopt(2); ENOPROTOOPT for what our own stack does not have.
    fn getsockopt(
        &mut self,
        fd: Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Error> {
        self.once(|sockets| sockets.getsockopt(fd, (level, name), value))
    }

    /// setsockopt(2), with Linux's numbers. No option is taken and ignored.
    ///
    /// # Errors
    /// As setsockopt(2); ENOPROTOOPT for what our own stack does not have.
    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Error> {
        self.once(|sockets| sockets.setsockopt(fd, (level, name), value))
    }

    /// ioctl(2): FIONBIO, FIONREAD (SIOCINQ), SIOCOUTQ, SIOCATMARK, FIOCLEX, FIONCLEX. `argument`
    /// is what lies at the pointer that ioctl(2) takes; what has to lie there afterwards is
    /// answered.
    ///
    /// # Errors
    /// As ioctl(2).
    fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Result<i32, Error> {
        self.once(|sockets| sockets.ioctl(fd, request, argument))
    }

    /// fcntl(2): F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// As fcntl(2).
    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Result<i32, Error> {
        self.once(|sockets| sockets.fcntl(fd, command, argument))
    }

    /// dup3(2).
    ///
    /// # Errors
    /// As dup3(2).
    fn dup3(&mut self, old: Fd, new: Fd, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| sockets.dup3(old, new, flags))
    }

    /// pipe2(2), in the context's memory: the end to read from, and the one to write to.
    ///
    /// # Errors
    /// As pipe2(2).
    fn pipe2(&mut self, flags: OpenFlags) -> Result<[Fd; 2], Error> {
        self.once(|sockets| sockets.pipe(flags))
    }

    /// eventfd(2), in the context's memory.
    ///
    /// # Errors
    /// As eventfd(2).
    fn eventfd(&mut self, count: u32, is_semaphore: bool, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| sockets.eventfd(count, is_semaphore, flags))
    }

    /// poll(2): how many of `fds` have something to tell. They may be the context's and the
    /// process's.
    ///
    /// # Errors
    /// As poll(2).
    fn poll(&mut self, fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize, Error> {
        self.ppoll(fds, timeout, None)
    }

    /// ppoll(2): as [`Bsd::poll`], with the signals of `mask` blocked while it waits instead of the
    /// thread's.
    ///
    /// # Errors
    /// As ppoll(2).
    fn ppoll(
        &mut self,
        fds: &mut [PollFd<'_>],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<usize, Error> {
        let mut kernels = KernelPoll::default();
        let polled = self.run(|sockets, is_over| {
            sockets.poll(fds, &mut kernels, (timeout, is_over)).masked(mask)
        });
        or_interrupted(polled, mask)
    }

    /// select(2): the sets, for reading, writing and exceptions, hold afterwards what is ready; how
    /// many descriptors that is. Numbers are the context's, or the process's where
    /// [`crate::Config::process_below_first`] says so.
    ///
    /// # Errors
    /// As select(2).
    fn select(&mut self, sets: &mut [FdSet; 3], timeout: Option<Duration>) -> Result<usize, Error> {
        self.pselect(sets, timeout, None)
    }

    /// pselect(2): as [`Bsd::select`], with the signals of `mask` blocked while it waits instead of
    /// the thread's.
    ///
    /// # Errors
    /// As pselect(2).
    fn pselect(
        &mut self,
        sets: &mut [FdSet; 3],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<usize, Error> {
        let mut asked = Selected::of(sets);
        let selected = self.run(|sockets, is_over| {
            sockets.select(&mut asked, sets, (timeout, is_over)).masked(mask)
        });
        or_interrupted(selected, mask)
    }

    /// Ends a connection at once, with a reset, and frees its descriptor (`mtcp_abort`).
    ///
    /// # Errors
    /// [`Error::BadDescriptor`], [`Error::NotASocket`].
    fn abort(&mut self, fd: Fd) -> Result<(), Error> {
        self.once(|sockets| sockets.abort(fd))
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

    /// epoll_ctl(2). The member may be the context's or the process's ([`AnyFd`]).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    fn epoll_ctl<'fd>(
        &mut self,
        epoll: Fd,
        op: EpollOp,
        fd: impl Into<AnyFd<'fd>>,
    ) -> Result<(), Error> {
        let fd = fd.into();
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

    /// epoll_pwait(2): as [`Bsd::epoll_wait`], with the signals of `mask` blocked while it waits
    /// instead of the thread's.
    ///
    /// # Errors
    /// As epoll_pwait(2).
    fn epoll_pwait(
        &mut self,
        epoll: Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
        mask: Option<SignalMask>,
    ) -> Result<usize, Error> {
        self.run(|sockets, is_over| {
            sockets.epoll_wait(epoll, events, (timeout, is_over)).masked(mask)
        })
    }
}

/// What poll(2) and select(2) answer when there is nothing: a signal that waits comes first, also
/// where they have not waited. epoll_wait(2) does not look for one then.
fn or_interrupted(answer: Result<usize, Error>, mask: Option<SignalMask>) -> Result<usize, Error> {
    match (answer, mask) {
        (Ok(0), Some(mask)) if kernel::has_signal_for(mask) => Err(Error::Interrupted),
        (answer, _) => answer,
    }
}

impl<R: Run> Bsd for R {}

/// Pieces of memory that one call takes (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

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
        if self.is_datagram(object) {
            return Attempt::Done(self.connect_endpoint(object, address));
        }
        let Some(address) = address else {
            self.disconnect(object);
            return Attempt::Done(Ok(()));
        };
        self.connect(object, address, when)
    }

    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), Error> {
        let object = self.socket_of(fd)?;
        if self.is_datagram(object) {
            return self.shutdown_endpoint(object, how);
        }
        self.shutdown_stream(object, how)
    }

    fn abort(&mut self, fd: Fd) -> Result<(), Error> {
        let object = self.socket_of(fd)?;
        if let Some(Kind::Stream(stream)) = self.object_mut(object).map(|entry| &mut entry.kind) {
            stream.options.linger = Some(Duration::ZERO);
        }
        self.close(fd)
    }

    #[inline]
    fn read(&mut self, fd: Fd, to: &mut Scatter<'_, '_>, is_over: bool) -> Attempt<usize> {
        let object = match self.table.object(fd) {
            Ok(object) => object,
            Err(error) => return Attempt::Done(Err(error)),
        };
        if let Some(len) = self.read_at_once(object, to) {
            return Attempt::Done(Ok(len));
        }
        self.read_slowly(object, to, is_over)
    }

    #[inline(never)]
    fn read_slowly(
        &mut self,
        object: u32,
        to: &mut Scatter<'_, '_>,
        is_over: bool,
    ) -> Attempt<usize> {
        let Some(entry) = self.object(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        let waits = !entry.nonblocking && !is_over;
        match entry.kind {
            Kind::Stream(_) => self.recv_stream(object, to, MsgFlags::empty(), is_over),
            Kind::Pipe(end) => self.read_pipe(object, end, to, waits),
            Kind::Counter(_) => self.read_counter(object, to, waits),
            Kind::Epoll(_) => Attempt::Done(Err(Error::InvalidArgument)),
            Kind::Listener(_) => Attempt::Done(Err(Error::NotConnected)),
            Kind::Datagram(_) => {
                length(self.recv_datagram(object, to, &mut [], (MsgFlags::empty(), is_over)))
            }
        }
    }

    #[inline]
    fn write(&mut self, fd: Fd, from: &mut Gather<'_>, is_over: bool) -> Attempt<usize> {
        let object = match self.table.object(fd) {
            Ok(object) => object,
            Err(error) => return Attempt::Done(Err(error)),
        };
        if let Some(len) = self.write_at_once(object, from) {
            return Attempt::Done(Ok(len));
        }
        self.write_slowly(object, from, is_over)
    }

    #[inline(never)]
    fn write_slowly(
        &mut self,
        object: u32,
        from: &mut Gather<'_>,
        is_over: bool,
    ) -> Attempt<usize> {
        let Some(entry) = self.object(object) else {
            return Attempt::Done(Err(Error::BadDescriptor));
        };
        let waits = !entry.nonblocking && !is_over;
        match entry.kind {
            Kind::Stream(_) => self.send_stream(object, from, MsgFlags::empty(), is_over),
            Kind::Pipe(end) => self.write_pipe(object, end, from, waits),
            Kind::Counter(_) => self.write_counter(object, from, waits),
            Kind::Epoll(_) => Attempt::Done(Err(Error::InvalidArgument)),
            Kind::Listener(_) => Attempt::Done(Err(Error::BrokenPipe)),
            Kind::Datagram(_) => {
                self.send_datagram(object, from, (None, &[], MsgFlags::empty()), is_over)
            }
        }
    }

    #[inline]
    fn recv(
        &mut self,
        fd: Fd,
        to: &mut Scatter<'_, '_>,
        control: &mut [u8],
        (flags, is_over): (MsgFlags, bool),
    ) -> Attempt<Received> {
        let object = match self.socket_of(fd) {
            Ok(object) => object,
            Err(error) => return Attempt::Done(Err(error)),
        };
        if flags.contains(MsgFlags::ERRQUEUE) {
            return Attempt::Done(self.recv_error(object, to, control, flags));
        }
        if self.is_datagram(object) {
            return self.recv_datagram(object, to, control, (flags, is_over));
        }
        let received = |len| Received { len, ..Received::NOTHING };
        match self.recv_stream(object, to, flags, is_over) {
            Attempt::Done(done) => Attempt::Done(done.map(received)),
            Attempt::Wait(wait) => Attempt::Wait(wait),
        }
    }

    #[inline]
    fn send(
        &mut self,
        fd: Fd,
        from: &mut Gather<'_>,
        (to, control, flags): (Option<SocketAddr>, &[u8], MsgFlags),
        is_over: bool,
    ) -> Attempt<usize> {
        match self.socket_of(fd) {
            Ok(object) if self.is_datagram(object) => {
                self.send_datagram(object, from, (to, control, flags), is_over)
            }
            Ok(_) if !control.is_empty() && check_for_stream(control).is_err() => {
                Attempt::Done(Err(Error::InvalidArgument))
            }
            // A connection's address is its own: another one is passed over, as in Linux.
            Ok(object) => self.send_stream(object, from, flags, is_over),
            Err(error) => Attempt::Done(Err(error)),
        }
    }

    #[inline]
    fn is_datagram(&self, object: u32) -> bool {
        matches!(self.object(object).map(|entry| &entry.kind), Some(Kind::Datagram(_)))
    }

    #[inline]
    fn socket_of(&self, fd: Fd) -> Result<u32, Error> {
        let object = self.table.object(fd)?;
        match self.object(object) {
            Some(entry) if entry.kind.is_socket() => Ok(object),
            Some(_) => Err(Error::NotASocket),
            None => Err(Error::BadDescriptor),
        }
    }
}

fn length(attempt: Attempt<Received>) -> Attempt<usize> {
    match attempt {
        Attempt::Done(done) => Attempt::Done(done.map(|received| received.len)),
        Attempt::Wait(wait) => Attempt::Wait(wait),
    }
}
