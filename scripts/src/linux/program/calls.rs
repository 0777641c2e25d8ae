//! Each call of a script as a call of the kernel.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags,
    SocketType,
};
use rustix::pipe::{PipeFlags, SpliceFlags};
use rustix::time::Timespec;

use crate::linux::sys;
use crate::system::{Call, CallOutput, Fd, Form, Returned};

/// SOCK_NONBLOCK and SOCK_CLOEXEC.
const SOCKET_FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// The default of scripts: the default of the kernel may be one that paces.
const CONGESTION_CONTROL: &str = "cubic";

/// What the program has open.
pub(super) struct ProgramFiles {
    /// By the kernel's number.
    open: BTreeMap<Fd, Arc<OwnedFd>>,
    /// Of TCP sockets that are opened from now on.
    pub(super) congestion_control: String,
}

impl Default for ProgramFiles {
    fn default() -> Self {
        Self { open: BTreeMap::new(), congestion_control: CONGESTION_CONTROL.to_owned() }
    }
}

impl ProgramFiles {
    fn keep(&mut self, file: OwnedFd) -> i64 {
        let fd = file.as_raw_fd();
        self.open.insert(fd, Arc::new(file));
        i64::from(fd)
    }

    fn get(&self, fd: Fd) -> Result<Arc<OwnedFd>, Errno> {
        self.open.get(&fd).cloned().ok_or(Errno::BADF)
    }

    /// Ends all connections, so that blocked calls return.
    pub(super) fn shut_down(&mut self) {
        for file in self.open.values() {
            // A descriptor that is not a connected socket has no blocked call.
            let _ = rustix::net::shutdown(file, Shutdown::Both);
        }
    }
}

type Made = Result<Returned, Errno>;

/// Makes a call. Blocks as the call does.
pub(super) fn make(call: Call, files: &Mutex<ProgramFiles>) -> Returned {
    made(call, files).unwrap_or_else(|error| Returned::failure(error.raw_os_error()))
}

fn lock(files: &Mutex<ProgramFiles>) -> MutexGuard<'_, ProgramFiles> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

fn made(call: Call, files: &Mutex<ProgramFiles>) -> Made {
    // Taken out first: the lock is never held across a call that may block.
    let file = |fd: Fd| lock(files).get(fd);
    let done = |()| Returned::success(0);
    match call {
        Call::Socket { domain, kind, protocol } => socket(domain, kind, protocol, files),
        Call::Bind { fd, address } => rustix::net::bind(file(fd)?, &address).map(done),
        Call::Listen { fd, backlog } => rustix::net::listen(file(fd)?, backlog).map(done),
        Call::Accept { fd, flags } => {
            let flags = SocketFlags::from_bits_retain(flags.cast_unsigned());
            let accepted = rustix::net::accept_with(file(fd)?, flags)?;
            Ok(Returned::success(lock(files).keep(accepted)))
        }
        Call::Connect { fd, address: Some(address) } => {
            rustix::net::connect(file(fd)?, &address).map(done)
        }
        Call::Connect { fd, address: None } => rustix::net::connect_unspec(file(fd)?).map(done),
        Call::Receive { fd, sizes, flags, form, .. } => receive(&*file(fd)?, &sizes, flags, form),
        Call::Send { fd, parts, flags, to, form } => send(&*file(fd)?, &parts, flags, to, form),
        Call::Shutdown { fd, how } => {
            let how = match how {
                libc::SHUT_RD => Shutdown::Read,
                libc::SHUT_WR => Shutdown::Write,
                libc::SHUT_RDWR => Shutdown::Both,
                _ => return Err(Errno::INVAL),
            };
            rustix::net::shutdown(file(fd)?, how).map(done)
        }
        Call::Close { fd } => {
            let file = lock(files).open.remove(&fd).ok_or(Errno::BADF)?;
            drop(file);
            Ok(Returned::success(0))
        }
        Call::SetOption { fd, level, name, value } => {
            sys::set_option(file(fd)?, level, name, &value).map(done).map_err(errno)
        }
        Call::GetOption { fd, level, name, bytes } => {
            let mut value = vec![0; bytes];
            let len = sys::get_option(file(fd)?, level, name, &mut value).map_err(errno)?;
            value.truncate(len);
            Ok(Returned { output: CallOutput::Bytes(value), ..Returned::success(0) })
        }
        Call::Fcntl { fd, command, argument } => fcntl(&*file(fd)?, command, argument),
        Call::Ioctl { fd, request, argument } => {
            let value = sys::ioctl_int(file(fd)?, request, argument).map_err(errno)?;
            let output = CallOutput::Integer(i64::from(value));
            Ok(Returned { output, ..Returned::success(0) })
        }
        other => wait_or_pipe(other, files),
    }
}

fn wait_or_pipe(call: Call, files: &Mutex<ProgramFiles>) -> Made {
    let file = |fd: Fd| lock(files).get(fd);
    match call {
        Call::Poll { fds, timeout_ms } => poll_all(&fds, timeout_ms, files),
        Call::EpollCreate { flags } => {
            let flags = epoll::CreateFlags::from_bits_retain(flags.cast_unsigned());
            Ok(Returned::success(lock(files).keep(epoll::create(flags)?)))
        }
        Call::EpollControl { epoll: epoll_fd, operation, fd, events, data } => {
            let (epoll_file, file) = (file(epoll_fd)?, file(fd)?);
            let events = epoll::EventFlags::from_bits_retain(events);
            let data = epoll::EventData::new_u64(data);
            match operation {
                libc::EPOLL_CTL_ADD => epoll::add(epoll_file, file, data, events),
                libc::EPOLL_CTL_MOD => epoll::modify(epoll_file, file, data, events),
                libc::EPOLL_CTL_DEL => epoll::delete(epoll_file, file),
                _ => Err(Errno::INVAL),
            }
            .map(|()| Returned::success(0))
        }
        Call::EpollWait { epoll: fd, count, timeout_ms } => {
            let empty = epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            };
            let mut events = vec![empty; count.max(1)];
            let count = epoll::wait(file(fd)?, &mut events[..], timespec(timeout_ms).as_ref())?;
            let ready = events[..count].iter().map(|it| event(*it)).collect();
            let result = i64::try_from(count).unwrap_or(i64::MAX);
            Ok(Returned { output: CallOutput::Events(ready), ..Returned::success(result) })
        }
        Call::Pipe { flags } => {
            let flags = PipeFlags::from_bits_retain(flags.cast_unsigned());
            let (read, write) = rustix::pipe::pipe_with(flags)?;
            let output = CallOutput::Pair(read.as_raw_fd(), write.as_raw_fd());
            let mut files = lock(files);
            files.keep(read);
            files.keep(write);
            Ok(Returned { output, ..Returned::success(0) })
        }
        Call::Splice { from, to, len, flags } => {
            let flags = SpliceFlags::from_bits_retain(flags);
            bytes(rustix::pipe::splice(file(from)?, None, file(to)?, None, len, flags)?)
        }
        _ => Err(Errno::NOSYS),
    }
}

fn socket(domain: i32, kind: i32, protocol: i32, files: &Mutex<ProgramFiles>) -> Made {
    let family = u16::try_from(domain).map_err(|_| Errno::AFNOSUPPORT)?;
    let flags = SocketFlags::from_bits_retain((kind & SOCKET_FLAGS).cast_unsigned());
    let kind = SocketType::from_raw((kind & !SOCKET_FLAGS).cast_unsigned());
    let protocol = NonZeroU32::new(protocol.cast_unsigned()).map(Protocol::from_raw);
    let opened = rustix::net::socket_with(AddressFamily::from_raw(family), kind, flags, protocol)?;
    Ok(Returned::success(lock(files).keep(opened)))
}

fn receive(file: &OwnedFd, sizes: &[usize], flags: i32, form: Form) -> Made {
    let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
    let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
    let mut message = None;
    let len = match (form, &mut buffers[..]) {
        (Form::File, [buffer]) => rustix::io::read(file, &mut buffer[..])?,
        (Form::Socket, [buffer]) => rustix::net::recv(file, &mut buffer[..], flags)?.1,
        (Form::Message, buffers) => {
            let flags = flags.bits().cast_signed();
            let received = sys::receive_message(file, buffers, flags);
            let (len, flags, control) = received.map_err(errno)?;
            message = Some((flags, control));
            len
        }
        (_, buffers) => {
            let mut parts: Vec<_> = buffers.iter_mut().map(|it| IoSliceMut::new(it)).collect();
            rustix::io::readv(file, &mut parts)?
        }
    };
    let mut received = buffers.concat();
    received.truncate(len);
    let output = match message {
        Some((flags, control)) => CallOutput::Message { bytes: received, flags, control },
        None => CallOutput::Bytes(received),
    };
    Ok(Returned { output, ..Returned::success(i64::try_from(len).unwrap_or(i64::MAX)) })
}

fn send(file: &OwnedFd, parts: &[Vec<u8>], flags: i32, to: Option<SocketAddr>, form: Form) -> Made {
    let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let len = match (form, parts) {
        (Form::File, [part]) => rustix::io::write(file, part)?,
        (Form::Socket, [part]) => match to {
            Some(to) => rustix::net::sendto(file, part, flags, &to)?,
            None => rustix::net::send(file, part, flags)?,
        },
        (Form::Message, _) => {
            let mut control = SendAncillaryBuffer::default();
            rustix::net::sendmsg(file, &slices, &mut control, flags)?
        }
        _ => rustix::io::writev(file, &slices)?,
    };
    bytes(len)
}

fn bytes(len: usize) -> Made {
    Ok(Returned::success(i64::try_from(len).unwrap_or(i64::MAX)))
}

fn fcntl(file: &OwnedFd, command: i32, argument: i32) -> Made {
    let argument = argument.cast_unsigned();
    let result = match command {
        libc::F_GETFL => rustix::fs::fcntl_getfl(file)?.bits(),
        libc::F_SETFL => {
            rustix::fs::fcntl_setfl(file, OFlags::from_bits_retain(argument))?;
            0
        }
        libc::F_GETFD => rustix::io::fcntl_getfd(file)?.bits(),
        libc::F_SETFD => {
            rustix::io::fcntl_setfd(file, FdFlags::from_bits_retain(argument))?;
            0
        }
        _ => return Err(Errno::INVAL),
    };
    Ok(Returned::success(i64::from(result)))
}

fn poll_all(fds: &[(Fd, i16)], timeout_ms: i32, files: &Mutex<ProgramFiles>) -> Made {
    let open: Vec<Arc<OwnedFd>> =
        fds.iter().map(|&(fd, _)| lock(files).get(fd)).collect::<Result<_, _>>()?;
    let mut entries: Vec<PollFd<'_>> = open
        .iter()
        .zip(fds)
        .map(|(file, &(_, events))| {
            PollFd::new(file, PollFlags::from_bits_retain(events.cast_unsigned()))
        })
        .collect();
    let count = poll(&mut entries, timespec(timeout_ms).as_ref())?;
    let ready = entries.iter().map(|entry| entry.revents().bits().cast_signed()).collect();
    let result = i64::try_from(count).unwrap_or(i64::MAX);
    Ok(Returned { output: CallOutput::Ready(ready), ..Returned::success(result) })
}

/// `None`, which is no limit, for a negative timeout.
fn timespec(timeout_ms: i32) -> Option<Timespec> {
    let ms = i64::from(timeout_ms);
    (ms >= 0).then(|| Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 })
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Mask and data. By value, since the kernel's structure is packed.
fn event(event: epoll::Event) -> (u32, u64) {
    let flags = event.flags;
    (flags.bits(), event.data.u64())
}
