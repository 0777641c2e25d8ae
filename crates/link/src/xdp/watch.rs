//! What happens to an interface while somebody sleeps on it.
//!
//! A deleted interface leaves its AF_XDP socket with an error, but poll(2) does not show it. So
//! sleepers wait for rtnetlink's news of links too, and look at the socket when some come.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// `RTMGRP_LINK`: links that come, go and change.
const GROUP_LINKS: u32 = 1;

/// One descriptor to sleep on: the socket's, and the news about links.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    news: OwnedFd,
    wants_room: bool,
}

impl Watch {
    /// Watches `socket`, in the network namespace of the calling thread.
    pub(super) fn new(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol is protocol 0: NETLINK_ROUTE.
        let news = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&news, &SocketAddrNetlink::new(0, GROUP_LINKS))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for fd in [socket, news.as_fd()] {
            epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { epoll, news, wants_room: false })
    }

    /// Whether to be woken when the kernel has sent, too.
    pub(super) fn want_room(&mut self, socket: BorrowedFd<'_>, wants_room: bool) -> io::Result<()> {
        if self.wants_room != wants_room {
            let room = if wants_room { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, socket, EventData::new_u64(0), EventFlags::IN | room)?;
            self.wants_room = wants_room;
        }
        Ok(())
    }

    /// Takes the news, if there are any; what they say is found out by looking.
    pub(super) fn take_news(&self) {
        let mut message = [0u8; 64];
        // News that were lost for want of room (ENOBUFS) are an error once, then come the rest.
        while rustix::net::recv(&self.news, &mut message, RecvFlags::TRUNC).is_ok() {}
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
