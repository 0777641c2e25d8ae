//! One descriptor to wait for a socket's frames and for rtnetlink link events.
//!
//! The deletion of an interface does not always wake poll(2) on a socket of it. An AF_XDP socket
//! never shows it. A packet socket reports once that its interface went down, and nothing when
//! that interface is deleted afterwards. So `xdp` and `packet` also wait for link events, and look
//! at their socket when some arrive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// `RTMGRP_LINK`: links that come, go and change.
const GROUP_LINKS: u32 = 1;

/// One descriptor to sleep on: the socket's, and the news about links.
#[derive(Debug)]
pub(crate) struct Watch {
    epoll: OwnedFd,
    news: OwnedFd,
    wants_room: bool,
    wants_news: bool,
}

impl Watch {
    /// Watches `socket`, and with `wants_news` link events, in the network namespace of the
    /// calling thread.
    pub(crate) fn new(socket: BorrowedFd<'_>, wants_news: bool) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol is protocol 0: NETLINK_ROUTE.
        let news = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&news, &SocketAddrNetlink::new(0, GROUP_LINKS))?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let of_news = if wants_news { EventFlags::IN } else { EventFlags::empty() };
        for (fd, events) in [(socket, EventFlags::IN), (news.as_fd(), of_news)] {
            epoll::add(&epoll, fd, EventData::new_u64(0), events)?;
        }
        Ok(Self { epoll, news, wants_room: false, wants_news })
    }

    /// Whether to be woken by link events.
    pub(crate) fn want_news(&mut self, wants_news: bool) -> io::Result<()> {
        if self.wants_news != wants_news {
            let events = if wants_news { EventFlags::IN } else { EventFlags::empty() };
            epoll::modify(&self.epoll, &self.news, EventData::new_u64(0), events)?;
            self.wants_news = wants_news;
        }
        Ok(())
    }

    /// Whether to be woken when the kernel has sent, too.
    pub(crate) fn want_room(&mut self, socket: BorrowedFd<'_>, wants_room: bool) -> io::Result<()> {
        if self.wants_room != wants_room {
            let room = if wants_room { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, socket, EventData::new_u64(0), EventFlags::IN | room)?;
            self.wants_room = wants_room;
        }
        Ok(())
    }

    /// Takes the news, if there are any; what they say is found out by looking.
    pub(crate) fn take_news(&self) {
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
