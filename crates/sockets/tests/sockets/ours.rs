//! Our sockets.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use megapipe_sockets::{
    Bsd, Context, EpollEvent, EpollOp, Error, Events, FdSet, MsgFlags, OpenFlags, PollFd, Shutdown,
    SignalMask,
};

use crate::host::{Answer, Ctl, Fd, Host, by_data};

impl Host for Context {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Answer<Fd> {
        told(Bsd::socket(self, domain, kind, protocol))
    }

    fn bind(&mut self, fd: Fd, address: SocketAddr) -> Answer<()> {
        told(Bsd::bind(self, fd, address))
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> Answer<()> {
        told(Bsd::listen(self, fd, backlog))
    }

    fn accept4(&mut self, fd: Fd, flags: i32) -> Answer<Fd> {
        told(Bsd::accept4(self, fd, OpenFlags::from_bits_retain(flags)))
    }

    fn connect(&mut self, fd: Fd, address: Option<SocketAddr>) -> Answer<()> {
        told(Bsd::connect(self, fd, address))
    }

    fn shutdown(&mut self, fd: Fd, how: i32) -> Answer<()> {
        let how = Shutdown::from_raw(how).expect("programs name a direction");
        told(Bsd::shutdown(self, fd, how))
    }

    fn close(&mut self, fd: Fd) -> Answer<()> {
        told(Bsd::close(self, fd))
    }

    fn recv(&mut self, fd: Fd, len: usize, flags: i32) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; len];
        let count = told(Bsd::recv(self, fd, &mut bytes, MsgFlags::from_bits_retain(flags)))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Answer<usize> {
        told(Bsd::send(self, fd, bytes, MsgFlags::from_bits_retain(flags)))
    }

    fn read(&mut self, fd: Fd, len: usize) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; len];
        let count = told(Bsd::read(self, fd, &mut bytes))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Answer<usize> {
        told(Bsd::write(self, fd, bytes))
    }

    fn recvfrom(
        &mut self,
        fd: Fd,
        len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Option<SocketAddr>, usize)> {
        let mut bytes = vec![0; len];
        let flags = MsgFlags::from_bits_retain(flags);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = told(Bsd::recvfrom(self, fd, &mut pieces, flags))?;
        bytes.truncate(received.len);
        Ok((bytes, received.from, received.len))
    }

    fn sendto(&mut self, fd: Fd, bytes: &[u8], flags: i32, to: SocketAddr) -> Answer<usize> {
        let flags = MsgFlags::from_bits_retain(flags);
        told(Bsd::sendto(self, fd, &[IoSlice::new(bytes)], Some(to), flags))
    }

    fn recvmsg(
        &mut self,
        fd: Fd,
        len: usize,
        control_len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Vec<u8>, i32)> {
        let (mut bytes, mut control) = (vec![0; len], vec![0; control_len]);
        let flags = MsgFlags::from_bits_retain(flags);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = told(Bsd::recvmsg(self, fd, &mut pieces, &mut control, flags))?;
        bytes.truncate(received.len);
        control.truncate(received.control_len);
        Ok((bytes, control, received.flags.bits()))
    }

    fn sendmsg(&mut self, fd: Fd, bytes: &[u8], to: SocketAddr, control: &[u8]) -> Answer<usize> {
        let pieces = [IoSlice::new(bytes)];
        told(Bsd::sendmsg(self, fd, &pieces, Some(to), control, MsgFlags::empty()))
    }

    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Answer<()> {
        told(Bsd::setsockopt(self, fd, level, name, value))
    }

    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, len: usize) -> Answer<Vec<u8>> {
        let mut value = vec![0; len];
        let filled = told(Bsd::getsockopt(self, fd, level, name, &mut value))?;
        value.truncate(filled);
        Ok(value)
    }

    fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Answer<i32> {
        told(Bsd::ioctl(self, fd, request, argument))
    }

    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Answer<i32> {
        told(Bsd::fcntl(self, fd, command, argument))
    }

    fn dup(&mut self, fd: Fd) -> Answer<Fd> {
        told(Bsd::fcntl(self, fd, libc::F_DUPFD, 0))
    }

    fn pipe2(&mut self, flags: i32) -> Answer<[Fd; 2]> {
        told(Bsd::pipe2(self, OpenFlags::from_bits_retain(flags)))
    }

    fn eventfd(&mut self, count: u32, flags: i32) -> Answer<Fd> {
        let semaphore = flags & libc::EFD_SEMAPHORE != 0;
        let flags = OpenFlags::from_bits_truncate(flags);
        told(Bsd::eventfd(self, count, semaphore, flags))
    }

    fn poll(&mut self, fds: &[(Fd, i16)]) -> Answer<Vec<i16>> {
        let asked = |(fd, events): &(Fd, i16)| {
            PollFd::new(*fd, Events::from_bits_retain(*events as u16 as u32))
        };
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(asked).collect();
        let count = told(Bsd::poll(self, &mut polled, Some(Duration::ZERO)))?;
        let told: Vec<i16> = polled.iter().map(|entry| entry.revents.bits() as i16).collect();
        assert_eq!(count, told.iter().filter(|events| **events != 0).count());
        Ok(told)
    }

    fn select(&mut self, read: &[Fd], write: &[Fd]) -> Answer<[Vec<usize>; 2]> {
        let set = |fds: &[Fd]| {
            let mut set = FdSet::new();
            for fd in fds {
                let word = *fd as usize / 64;
                set.resize(set.len().max(word + 1), 0);
                set[word] |= 1 << (fd % 64);
            }
            set
        };
        let mut sets = [set(read), set(write), FdSet::new()];
        let count = told(Bsd::select(self, &mut sets, Some(Duration::ZERO)))?;
        assert_eq!(count, sets.iter().flatten().map(|word| word.count_ones() as usize).sum());
        let is_in = |set: &FdSet, fd: Fd| set[fd as usize / 64] & (1 << (fd % 64)) != 0;
        let ready = |set: &FdSet, fds: &[Fd]| {
            (0..fds.len()).filter(|place| is_in(set, fds[*place])).collect()
        };
        Ok([ready(&sets[0], read), ready(&sets[1], write)])
    }

    fn getsockname(&mut self, fd: Fd) -> Answer<SocketAddr> {
        told(Bsd::getsockname(self, fd))
    }

    fn getpeername(&mut self, fd: Fd) -> Answer<SocketAddr> {
        told(Bsd::getpeername(self, fd))
    }

    fn epoll_create1(&mut self, flags: i32) -> Answer<Fd> {
        told(Bsd::epoll_create1(self, OpenFlags::from_bits_retain(flags)))
    }

    fn epoll_ctl(&mut self, epoll: Fd, op: Ctl, fd: Fd, event: (u32, u64)) -> Answer<()> {
        let event = EpollEvent { events: Events::from_bits_retain(event.0), data: event.1 };
        let op = match op {
            Ctl::Add => EpollOp::Add(event),
            Ctl::Modify => EpollOp::Modify(event),
            Ctl::Delete => EpollOp::Delete,
        };
        told(Bsd::epoll_ctl(self, epoll, op, fd))
    }

    fn epoll_wait(&mut self, epoll: Fd, max: usize) -> Answer<Vec<(u32, u64)>> {
        let mut events = vec![EpollEvent::default(); max];
        let count = told(Bsd::epoll_wait(self, epoll, &mut events, Some(Duration::ZERO)))?;
        Ok(by_data(events[..count].iter().map(|it| (it.events.bits(), it.data))))
    }

    fn epoll_pwait(
        &mut self,
        epoll: Fd,
        max: usize,
        timeout_ms: u32,
        mask: Option<u64>,
    ) -> Answer<Vec<(u32, u64)>> {
        let mut events = vec![EpollEvent::default(); max];
        let (timeout, mask) =
            (Duration::from_millis(timeout_ms.into()), mask.map(SignalMask::from_bits));
        let count = told(Bsd::epoll_pwait(self, epoll, &mut events, Some(timeout), mask))?;
        Ok(by_data(events[..count].iter().map(|it| (it.events.bits(), it.data))))
    }

    fn settle(&mut self, patience: u32) {
        self.drive(Some(Duration::from_micros(200) * patience)).expect("the link is there");
    }
}

fn told<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(Error::raw_os_error)
}
