//! Each call of a script as a call of `megapipe-sockets`.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use megapipe_sockets::{
    Bsd, EpollEvent, EpollOp, Error, Events, Fd, MsgFlags, OpenFlags, PollFd, SharedContext,
    Shutdown,
};

use crate::system::{CONTROL_BYTES, Call, CallOutput, ControlMessage, Form, Returned};

type Made = Result<Returned, Error>;

/// Makes a call. Blocks as the call does.
pub(super) fn make(sockets: &mut SharedContext, call: Call) -> Returned {
    made(sockets, call).unwrap_or_else(|error| Returned::failure(error.raw_os_error()))
}

fn done((): ()) -> Returned {
    Returned::success(0)
}

fn number(value: Fd) -> Returned {
    Returned::success(value.into())
}

fn len(len: usize) -> Returned {
    Returned::success(i64::try_from(len).unwrap_or(i64::MAX))
}

fn made(sockets: &mut SharedContext, call: Call) -> Made {
    match call {
        Call::Socket { domain, kind, protocol } => {
            sockets.socket(domain, kind, protocol).map(number)
        }
        Call::Bind { fd, address } => sockets.bind(fd, address).map(done),
        Call::Listen { fd, backlog } => sockets.listen(fd, backlog).map(done),
        Call::Accept { fd, flags } => {
            sockets.accept4(fd, OpenFlags::from_bits_retain(flags)).map(number)
        }
        Call::Connect { fd, address } => sockets.connect(fd, address).map(done),
        Call::Receive { fd, sizes, flags, form, takes_control } => {
            receive(sockets, fd, &sizes, (flags, form, takes_control))
        }
        Call::Send { fd, parts, flags, to, form } => {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let flags = MsgFlags::from_bits_retain(flags);
            let sent = match (form, &parts[..]) {
                (Form::File, [part]) => sockets.write(fd, part),
                (Form::Socket, [part]) if to.is_none() => sockets.send(fd, part, flags),
                (Form::Socket, _) => sockets.sendto(fd, &slices, to, flags),
                (Form::Message, _) => sockets.sendmsg(fd, &slices, to, &[], flags),
                (Form::File | Form::Vector, _) => sockets.writev(fd, &slices),
            };
            sent.map(len)
        }
        Call::Nowhere { fd } => {
            sockets.fcntl(fd, libc::F_GETFL, 0)?;
            Err(Error::Os(libc::EFAULT))
        }
        Call::Shutdown { fd, how } => {
            let how = Shutdown::from_raw(how).ok_or(Error::InvalidArgument)?;
            sockets.shutdown(fd, how).map(done)
        }
        Call::Close { fd } => sockets.close(fd).map(done),
        other => option_or_wait(sockets, other),
    }
}

fn option_or_wait(sockets: &mut SharedContext, call: Call) -> Made {
    match call {
        Call::SetOption { fd, level, name, value } => {
            sockets.setsockopt(fd, level, name, &value).map(done)
        }
        Call::GetOption { fd, level, name, bytes } => {
            let mut value = vec![0; bytes];
            let len = sockets.getsockopt(fd, level, name, &mut value)?;
            value.truncate(len);
            Ok(Returned { output: CallOutput::Bytes(value), ..Returned::success(0) })
        }
        Call::Fcntl { fd, command, argument } => sockets.fcntl(fd, command, argument).map(number),
        Call::Ioctl { fd, request, argument } => {
            let value = sockets.ioctl(fd, request.cast_unsigned(), argument)?;
            Ok(Returned { output: CallOutput::Integer(value.into()), ..Returned::success(0) })
        }
        Call::Poll { fds, timeout_ms } => poll(sockets, &fds, timeout_ms),
        Call::EpollCreate { flags } => {
            sockets.epoll_create1(OpenFlags::from_bits_retain(flags)).map(number)
        }
        Call::EpollControl { epoll, operation, fd, events, data } => {
            let event = EpollEvent { events: Events::from_bits_truncate(events), data };
            let operation = match operation {
                libc::EPOLL_CTL_ADD => EpollOp::Add(event),
                libc::EPOLL_CTL_MOD => EpollOp::Modify(event),
                libc::EPOLL_CTL_DEL => EpollOp::Delete,
                _ => return Err(Error::InvalidArgument),
            };
            sockets.epoll_ctl(epoll, operation, fd).map(done)
        }
        Call::EpollWait { epoll, count, timeout_ms } => {
            let mut events = vec![EpollEvent::default(); count];
            let count = sockets.epoll_wait(epoll, &mut events, milliseconds(timeout_ms))?;
            let ready = events[..count].iter().map(|it| (it.events.bits(), it.data)).collect();
            Ok(Returned { output: CallOutput::Events(ready), ..len(count) })
        }
        Call::Pipe { flags } => {
            let [read, write] = sockets.pipe2(OpenFlags::from_bits_retain(flags))?;
            Ok(Returned { output: CallOutput::Pair(read, write), ..Returned::success(0) })
        }
        // What is left is refused by name before it gets here.
        _ => Err(Error::Os(libc::ENOSYS)),
    }
}

fn receive(
    sockets: &mut SharedContext,
    fd: Fd,
    sizes: &[usize],
    (flags, form, takes_control): (i32, Form, bool),
) -> Made {
    let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
    let flags = MsgFlags::from_bits_retain(flags);
    let mut message = None;
    let count = match (form, &mut buffers[..]) {
        (Form::File, [buffer]) => sockets.read(fd, buffer)?,
        (Form::Socket, [buffer]) => sockets.recv(fd, buffer, flags)?,
        (form, buffers) => {
            let mut parts: Vec<_> = buffers.iter_mut().map(|it| IoSliceMut::new(it)).collect();
            if form == Form::Message {
                let mut control = vec![0; if takes_control { CONTROL_BYTES } else { 0 }];
                let received = sockets.recvmsg(fd, &mut parts, &mut control, flags)?;
                control.truncate(received.control_len);
                message = Some((received.flags.bits(), ControlMessage::parse(&control)));
                received.len
            } else {
                sockets.readv(fd, &mut parts)?
            }
        }
    };
    let mut received = buffers.concat();
    received.truncate(count);
    let output = match message {
        Some((flags, control)) => CallOutput::Message { bytes: received, flags, control },
        None => CallOutput::Bytes(received),
    };
    Ok(Returned { output, ..len(count) })
}

fn poll(sockets: &mut SharedContext, fds: &[(Fd, i16)], timeout_ms: i32) -> Made {
    let ask = |&(fd, events): &(Fd, i16)| {
        PollFd::new(fd, Events::from_bits_retain(u32::from(events.cast_unsigned())))
    };
    let mut asked: Vec<PollFd<'_>> = fds.iter().map(ask).collect();
    let count = sockets.poll(&mut asked, milliseconds(timeout_ms))?;
    let ready = asked.iter().map(|asked| asked.revents.bits() as i16).collect();
    Ok(Returned { output: CallOutput::Ready(ready), ..len(count) })
}

/// A timeout in milliseconds; negative: none.
fn milliseconds(timeout_ms: i32) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}
