//! The calls, by their BSD names, on whatever can wait for them.
//!
//! Read first: the manual page of each call, section 2; errors are returned as there, as [`Error`].
//!
//! Where our own stack loses its link, its sockets end with [`Error::NetworkDown`], and what is the
//! process's goes on.
//!
//! Each call is tried without waiting; where it would have to wait, [`CallRunner::run`] waits and
//! tries again. So a call is written once for a context of one thread and for one that threads
//! share. One attempt of each is in `calls/`.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

mod address;
mod close;
mod connect;
pub(crate) mod epoll;
mod ioctl;
mod listen;
mod options;
mod pipe;
mod poll;
mod receive;
mod send;

use connect::ConnectAttempt;
pub use poll::{FdSet, PollFd};
use poll::{PollTime, SelectCall, or_interrupted};
use receive::Receive;

use crate::attempt::{Attempt, Wait};
use crate::call_runner::CallRunner;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::{EpollEvent, EpollOp, MsgFlags, OpenFlags};
use crate::foreign_fds::{AnyFd, KernelPoll};
use crate::gather::{MessageTarget, ReceivePieces, ReceivedMessage, SendPieces};
use crate::limits::{UNDELIVERED_PAUSE_MAX, UNDELIVERED_PAUSE_MIN};
use crate::signal::SignalMask;
use crate::stream::Shutdown;

/// BSD sockets and epoll. Descriptors are those of one context ([`Fd`]).
///
/// Blocking calls block as the context does, and honour O_NONBLOCK, MSG_DONTWAIT, SO_RCVTIMEO and
/// SO_SNDTIMEO. Time-outs: `None` has no limit, zero does not block.
pub trait Bsd: CallRunner {
    /// socket(2), with Linux's numbers. `AF_INET` and `AF_INET6`, `SOCK_STREAM` and
    /// `SOCK_DGRAM`.
    ///
    /// # Errors
    /// As socket(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context};
    /// # let mut context = Context::create(Config::default())?;
    /// let tcp = context.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)?;
    /// let udp = context.socket(libc::AF_INET6, libc::SOCK_DGRAM, 0)?;
    /// assert_ne!(tcp, udp);
    /// # Ok(())
    /// # }
    /// ```
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<Fd, Error> {
        self.once(|sockets| address::socket(sockets, domain, kind, protocol))
    }

    /// bind(2).
    ///
    /// # Errors
    /// As bind(2).
    fn bind(&mut self, fd: Fd, address: SocketAddr) -> Result<(), Error> {
        self.once(|sockets| address::bind(sockets, fd, address))
    }

    /// bind(2) of a stream on our own stack, to a port that the kernel has selected for the program
    /// and keeps for it. Connections of the stack that have the port are not in its way: the kernel
    /// did not know of them.
    ///
    /// # Errors
    /// As bind(2); [`Error::InvalidArgument`] on the kernel, and for other sockets.
    fn bind_beside_connections(&mut self, fd: Fd, address: SocketAddr) -> Result<(), Error> {
        self.once(|sockets| address::bind_beside_connections(sockets, fd, address))
    }

    /// listen(2).
    ///
    /// # Errors
    /// As listen(2).
    fn listen(&mut self, fd: Fd, backlog: i32) -> Result<(), Error> {
        self.once(|sockets| listen::listen(sockets, fd, backlog))
    }

    /// accept4(2); for the peer's address there is [`Bsd::getpeername`].
    ///
    /// # Errors
    /// As accept4(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// context.bind(listener, "127.0.0.1:0".parse()?)?;
    /// context.listen(listener, 128)?;
    /// let address = context.getsockname(listener)?;
    /// let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// context.connect(client, Some(address))?;
    /// let server = context.accept4(listener, OpenFlags::NONBLOCK)?;
    /// assert_eq!(context.getpeername(server)?, context.getsockname(client)?);
    /// # Ok(())
    /// # }
    /// ```
    fn accept4(&mut self, fd: Fd, flags: OpenFlags) -> Result<Fd, Error> {
        self.run(|sockets, is_over| listen::accept(sockets, fd, flags, is_over))
    }

    /// connect(2); `None` is AF_UNSPEC: the socket is fresh again.
    ///
    /// # Errors
    /// As connect(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, Error};
    /// # let mut context = Context::create(Config::default())?;
    /// let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// context.bind(listener, "127.0.0.1:0".parse()?)?;
    /// let address = context.getsockname(listener)?;
    /// let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// // It is bound, and does not listen.
    /// assert_eq!(context.connect(client, Some(address)), Err(Error::Refused));
    /// context.listen(listener, 1)?;
    /// context.connect(client, Some(address))?;
    /// # Ok(())
    /// # }
    /// ```
    fn connect(&mut self, fd: Fd, address: Option<SocketAddr>) -> Result<(), Error> {
        let mut is_first = true;
        self.run(|sockets, is_over| {
            let is_first = std::mem::take(&mut is_first);
            connect::connect(sockets, fd, address, ConnectAttempt { is_first, is_over })
        })
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// As shutdown(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags, Shutdown};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// context.write(client, b"last words")?;
    /// context.shutdown(client, Shutdown::Write)?;
    /// let mut bytes = [0; 64];
    /// assert_eq!(context.read(server, &mut bytes)?, 10);
    /// assert_eq!(context.read(server, &mut bytes)?, 0, "the end of the stream");
    /// # Ok(())
    /// # }
    /// ```
    fn shutdown(&mut self, fd: Fd, how: Shutdown) -> Result<(), Error> {
        self.once(|sockets| close::shutdown(sockets, fd, how))
    }

    /// close(2). With SO_LINGER it blocks until the peer has acknowledged everything, for at most
    /// the linger time, also on a non-blocking socket.
    ///
    /// # Errors
    /// As close(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, Error, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// context.close(client)?;
    /// assert_eq!(context.read(server, &mut [0; 64])?, 0, "the end of the stream");
    /// assert_eq!(context.write(client, b"x"), Err(Error::BadDescriptor));
    /// # Ok(())
    /// # }
    /// ```
    fn close(&mut self, fd: Fd) -> Result<(), Error> {
        let mut lingering = None;
        self.run(|sockets, is_over| close::close(sockets, fd, &mut lingering, is_over))
    }

    /// Closes every descriptor, as the end of a process does, and blocks for at most `patience`
    /// until the bytes written on connections, also on those that were closed before, need this
    /// process no more: the kernel or a daemon has them, or the peers of our own stack have
    /// acknowledged them and the FINs.
    ///
    /// # Errors
    /// [`Error::Interrupted`], after which it may be called again.
    fn close_all(&mut self, patience: Duration) -> Result<(), Error> {
        let (mut pause, mut deadline) = (UNDELIVERED_PAUSE_MIN, None);
        loop {
            let is_done = self.run(|sockets, is_over| {
                sockets.close_all();
                let now = sockets.now();
                let deadline = *deadline.get_or_insert_with(|| now.saturating_add(patience));
                let left = deadline.saturating_sub(now);
                let waits = sockets.closing > 0 || sockets.channel.has_undelivered();
                if !waits || left.is_zero() {
                    // What was closed last leaves with this.
                    return Attempt::Done(sockets.drive(Some(Duration::ZERO)).map(|()| true));
                }
                if is_over {
                    return Attempt::Done(Ok(false));
                }
                // An acknowledgment is no event of a closed connection.
                Attempt::Wait(Wait::on_anything(Some(pause.min(left))))
            })?;
            if is_done {
                return Ok(());
            }
            pause = (pause * 2).min(UNDELIVERED_PAUSE_MAX);
        }
    }

    /// read(2).
    ///
    /// # Errors
    /// As read(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// context.write(client, b"hello")?;
    /// let mut bytes = [0; 64];
    /// let len = context.read(server, &mut bytes)?;
    /// assert_eq!(&bytes[..len], b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    fn read(&mut self, fd: Fd, to: &mut [u8]) -> Result<usize, Error> {
        let mut pieces = [IoSliceMut::new(to)];
        let mut to = ReceivePieces::new(&mut pieces);
        self.run(|sockets, is_over| receive::read(sockets, fd, &mut to, is_over))
    }

    /// readv(2).
    ///
    /// # Errors
    /// As readv(2).
    fn readv(&mut self, fd: Fd, to: &mut [IoSliceMut<'_>]) -> Result<usize, Error> {
        if to.len() > PIECES_MAX {
            return Err(Error::InvalidArgument);
        }
        let mut to = ReceivePieces::new(to);
        self.run(|sockets, is_over| receive::read(sockets, fd, &mut to, is_over))
    }

    /// recv(2).
    ///
    /// # Errors
    /// As recv(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, Error, MsgFlags, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// let mut bytes = [0; 3];
    /// assert_eq!(context.recv(server, &mut bytes, MsgFlags::DONTWAIT), Err(Error::WouldBlock));
    /// context.write(client, b"hello")?;
    /// assert_eq!(context.recv(server, &mut bytes, MsgFlags::PEEK)?, 3);
    /// assert_eq!(context.recv(server, &mut bytes, MsgFlags::WAITALL)?, 3);
    /// assert_eq!(&bytes, b"hel");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    fn recv(&mut self, fd: Fd, to: &mut [u8], flags: MsgFlags) -> Result<usize, Error> {
        self.recvfrom(fd, &mut [IoSliceMut::new(to)], flags).map(|received| received.len)
    }

    /// recvfrom(2), to several pieces.
    ///
    /// # Errors
    /// As recvfrom(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, MsgFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// use std::io::{IoSlice, IoSliceMut};
    ///
    /// let server = context.socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    /// context.bind(server, "127.0.0.1:0".parse()?)?;
    /// let address = context.getsockname(server)?;
    /// let client = context.socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    /// context.sendto(client, &[IoSlice::new(b"hello")], Some(address), MsgFlags::empty())?;
    /// let mut bytes = [0; 3];
    /// let mut room = [IoSliceMut::new(&mut bytes)];
    /// let received = context.recvfrom(server, &mut room, MsgFlags::empty())?;
    /// assert_eq!(&bytes, b"hel");
    /// assert_eq!(received.flags, MsgFlags::TRUNC, "the datagram was longer");
    /// assert!(received.from.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    fn recvfrom(
        &mut self,
        fd: Fd,
        to: &mut [IoSliceMut<'_>],
        flags: MsgFlags,
    ) -> Result<ReceivedMessage, Error> {
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
    ) -> Result<ReceivedMessage, Error> {
        if to.len() > PIECES_MAX {
            return Err(Error::MessageTooLong);
        }
        let mut to = ReceivePieces::new(to);
        self.run(|sockets, is_over| {
            receive::receive(sockets, fd, &mut to, control, Receive { flags, is_over })
        })
    }

    /// write(2). SIGPIPE is not raised here: the caller that gets [`Error::BrokenPipe`] may.
    ///
    /// # Errors
    /// As write(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// let message = [7; 1000];
    /// let mut sent = 0;
    /// while sent < message.len() {
    ///     sent += context.write(client, &message[sent..])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Result<usize, Error> {
        let pieces = [IoSlice::new(bytes)];
        let mut from = SendPieces::new(&pieces);
        self.run(|sockets, is_over| send::write(sockets, fd, &mut from, is_over))
    }

    /// writev(2).
    ///
    /// # Errors
    /// As writev(2).
    fn writev(&mut self, fd: Fd, bytes: &[IoSlice<'_>]) -> Result<usize, Error> {
        if bytes.len() > PIECES_MAX {
            return Err(Error::InvalidArgument);
        }
        let mut from = SendPieces::new(bytes);
        self.run(|sockets, is_over| send::write(sockets, fd, &mut from, is_over))
    }

    /// send(2). SIGPIPE is not raised here: the caller that gets [`Error::BrokenPipe`] may, if the
    /// flags do not say MSG_NOSIGNAL.
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
        self.sendmsg(fd, bytes, to, &[], flags)
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
        to: Option<SocketAddr>,
        control: &[u8],
        flags: MsgFlags,
    ) -> Result<usize, Error> {
        if bytes.len() > PIECES_MAX {
            return Err(Error::MessageTooLong);
        }
        let (mut from, mut how) = (SendPieces::new(bytes), MessageTarget { to, control, flags });
        self.run(|sockets, is_over| send::send(sockets, fd, &mut from, &mut how, is_over))
    }

    /// getsockopt(2), with Linux's numbers. Returns the number of bytes of `value` that were
    /// filled.
    ///
    /// # Errors
    /// As getsockopt(2); ENOPROTOOPT for options that our own stack does not implement.
    fn getsockopt(
        &mut self,
        fd: Fd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Error> {
        self.once(|sockets| options::get(sockets, fd, (level, name), value))
    }

    /// setsockopt(2), with Linux's numbers. No option is taken and ignored.
    ///
    /// # Errors
    /// As setsockopt(2); ENOPROTOOPT for what our own stack does not have.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context};
    /// # let mut context = Context::create(Config::default())?;
    /// let socket = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// let on = 1_i32.to_ne_bytes();
    /// context.setsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &on)?;
    /// let mut value = [0; 4];
    /// context.getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut value)?;
    /// assert_ne!(i32::from_ne_bytes(value), 0);
    /// # Ok(())
    /// # }
    /// ```
    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Result<(), Error> {
        self.once(|sockets| options::set(sockets, fd, (level, name), value))
    }

    /// ioctl(2): FIONBIO, FIONREAD (SIOCINQ), SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, FIOCLEX, FIONCLEX.
    /// `argument` is the value at the pointer that ioctl(2) takes; the new value is returned.
    ///
    /// # Errors
    /// As ioctl(2).
    fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Result<i32, Error> {
        self.once(|sockets| ioctl::ioctl(sockets, fd, request, argument))
    }

    /// fcntl(2): F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC.
    ///
    /// # Errors
    /// As fcntl(2).
    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Result<i32, Error> {
        self.once(|sockets| ioctl::fcntl(sockets, fd, command, argument))
    }

    /// dup3(2).
    ///
    /// # Errors
    /// As dup3(2).
    fn dup3(&mut self, old: Fd, new: Fd, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| ioctl::dup3(sockets, old, new, flags))
    }

    /// pipe2(2), in the context's memory: the end to read from, and the one to write to.
    ///
    /// # Errors
    /// As pipe2(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// let [reader, writer] = context.pipe2(OpenFlags::empty())?;
    /// context.write(writer, b"wake up")?;
    /// assert_eq!(context.read(reader, &mut [0; 64])?, 7);
    /// # Ok(())
    /// # }
    /// ```
    fn pipe2(&mut self, flags: OpenFlags) -> Result<[Fd; 2], Error> {
        self.once(|sockets| pipe::pipe(sockets, flags))
    }

    /// eventfd(2), in the context's memory.
    ///
    /// # Errors
    /// As eventfd(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// let counter = context.eventfd(2, false, OpenFlags::NONBLOCK)?;
    /// context.write(counter, &3_u64.to_ne_bytes())?;
    /// let mut value = [0; 8];
    /// context.read(counter, &mut value)?;
    /// assert_eq!(u64::from_ne_bytes(value), 5);
    /// # Ok(())
    /// # }
    /// ```
    fn eventfd(&mut self, count: u32, is_semaphore: bool, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| pipe::eventfd(sockets, count, is_semaphore, flags))
    }

    /// poll(2): how many of `fds` have something to tell. They may be the context's and the
    /// process's.
    ///
    /// # Errors
    /// As poll(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, Events, OpenFlags, PollFd};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// let mut fds = [PollFd::new(server, Events::IN), PollFd::new(client, Events::OUT)];
    /// assert_eq!(context.poll(&mut fds, None)?, 1);
    /// assert_eq!((fds[0].revents, fds[1].revents), (Events::empty(), Events::OUT));
    /// # Ok(())
    /// # }
    /// ```
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
        let (mut kernels, mut is_first) = (KernelPoll::default(), true);
        let polled = self.run(|sockets, is_over| {
            let is_first = std::mem::take(&mut is_first);
            let time = PollTime { timeout, is_first, is_over };
            poll::poll(sockets, fds, &mut kernels, time).masked(mask)
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
        let (mut asked, mut is_first) = (SelectCall::of(sets)?, true);
        let selected = self.run(|sockets, is_over| {
            let is_first = std::mem::take(&mut is_first);
            let time = PollTime { timeout, is_first, is_over };
            poll::select(sockets, &mut asked, sets, time).masked(mask)
        });
        or_interrupted(selected, mask)
    }

    /// Resets a connection and frees its descriptor (`mtcp_abort`). Does not block.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`], [`Error::NotASocket`].
    fn abort(&mut self, fd: Fd) -> Result<(), Error> {
        self.once(|sockets| close::abort(sockets, fd))
    }

    /// getsockname(2).
    ///
    /// # Errors
    /// As getsockname(2).
    fn getsockname(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        self.once(|sockets| address::local_name(sockets, fd))
    }

    /// getpeername(2).
    ///
    /// # Errors
    /// As getpeername(2).
    fn getpeername(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        self.once(|sockets| address::peer_name(sockets, fd))
    }

    /// Returns the peer of a connection that was just accepted, for accept(2). Unlike
    /// [`Bsd::getpeername`] it does not poll for a reset.
    ///
    /// # Errors
    /// As getpeername(2).
    fn accepted_peer(&mut self, fd: Fd) -> Result<SocketAddr, Error> {
        self.once(|sockets| address::peer_at_accept(sockets, fd))
    }

    /// epoll_create1(2).
    ///
    /// # Errors
    /// As epoll_create1(2).
    fn epoll_create1(&mut self, flags: OpenFlags) -> Result<Fd, Error> {
        self.once(|sockets| epoll::create(sockets, flags))
    }

    /// epoll_ctl(2). The member may be the context's or the process's ([`AnyFd`]).
    ///
    /// # Errors
    /// As epoll_ctl(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, EpollEvent, EpollOp, Events, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// let set = context.epoll_create1(OpenFlags::empty())?;
    /// let event = EpollEvent { events: Events::IN | Events::EDGE, data: 42 };
    /// context.epoll_ctl(set, EpollOp::Add(event), server)?;
    /// // A descriptor of the process, in the same set.
    /// let (reader, _writer) = std::io::pipe()?;
    /// context.epoll_ctl(set, EpollOp::Add(EpollEvent { events: Events::IN, data: 43 }), &reader)?;
    /// # Ok(())
    /// # }
    /// ```
    fn epoll_ctl<'fd>(
        &mut self,
        epoll: Fd,
        op: EpollOp,
        fd: impl Into<AnyFd<'fd>>,
    ) -> Result<(), Error> {
        let fd = fd.into();
        let number = fd.number();
        self.once(|sockets| epoll::control(sockets, epoll, op, fd, number))
    }

    /// epoll_ctl(2) where the set knows the member by `number`, the program's own for `fd`.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    ///
    /// # Examples
    /// ```
    /// # use megapipe_sockets::*;
    /// # let mut context = Context::create(Config::default())?;
    /// # let [reader, _] = context.pipe2(OpenFlags::empty())?;
    /// let set = context.epoll_create1(OpenFlags::empty())?;
    /// let add = EpollOp::Add(EpollEvent { events: Events::IN, data: 42 });
    /// context.epoll_ctl_by_number(set, add, reader, 70)?;
    /// context.epoll_ctl_by_number(set, add, reader, 71)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn epoll_ctl_by_number(
        &mut self,
        epoll: Fd,
        op: EpollOp,
        fd: Fd,
        number: RawFd,
    ) -> Result<(), Error> {
        self.once(|sockets| epoll::control(sockets, epoll, op, AnyFd::Own(fd), number))
    }

    /// epoll_wait(2): how many of `events` were filled.
    ///
    /// # Errors
    /// As epoll_wait(2).
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use megapipe_sockets::{Bsd, Config, Context, EpollEvent, EpollOp, Events, OpenFlags};
    /// # let mut context = Context::create(Config::default())?;
    /// # let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # context.listen(listener, 1)?;
    /// # let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    /// # let address = context.getsockname(listener)?;
    /// # context.connect(client, Some(address))?;
    /// # let server = context.accept4(listener, OpenFlags::empty())?;
    /// use std::time::Duration;
    ///
    /// let set = context.epoll_create1(OpenFlags::empty())?;
    /// context.epoll_ctl(set, EpollOp::Add(EpollEvent { events: Events::IN, data: 42 }), server)?;
    /// let mut events = [EpollEvent::default(); 64];
    /// assert_eq!(context.epoll_wait(set, &mut events, Some(Duration::ZERO))?, 0);
    /// context.write(client, b"hello")?;
    /// assert_eq!(context.epoll_wait(set, &mut events, None)?, 1);
    /// assert_eq!(events[0], EpollEvent { events: Events::IN, data: 42 });
    /// # Ok(())
    /// # }
    /// ```
    fn epoll_wait(
        &mut self,
        epoll: Fd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        self.run(|sockets, is_over| epoll::wait(sockets, epoll, events, timeout, is_over))
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
            epoll::wait(sockets, epoll, events, timeout, is_over).masked(mask)
        })
    }
}

impl<R: CallRunner> Bsd for R {}

/// Pieces of memory that one call takes (UIO_MAXIOV).
const PIECES_MAX: usize = 1024;
