//! Our sockets.

use std::net::SocketAddr;
use std::time::Duration;

use megapipe_sockets::{
    Bsd, Context, EpollEvent, EpollOp, Error, Events, MsgFlags, OpenFlags, Shutdown,
};

use crate::host::{Answer, Ctl, Fd, Host};

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
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            _ => Shutdown::Both,
        };
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
        let mut told: Vec<(u32, u64)> =
            events[..count].iter().map(|it| (it.events.bits(), it.data)).collect();
        told.sort_by_key(|(_, data)| *data);
        Ok(told)
    }

    fn settle(&mut self) {
        self.turn(Some(Duration::from_micros(200))).expect("the link is there");
    }
}

fn told<T>(result: Result<T, Error>) -> Answer<T> {
    result.map_err(Error::raw_os_error)
}
