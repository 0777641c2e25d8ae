//! poll and epoll.
//!
//! Invariants: what is ready is looked at anew each time, and never remembered, but for the edges
//! of EPOLLET: there a bit counts once each time it appears.

use std::collections::BTreeMap;

use megapipe_stack::TcpState;

use super::host::Host;
use super::sockets::{Attempt, Entry, Role, Sockets, Stream, ended, failed};
use super::write::{send_buffer_bytes, unsent_bytes};
use crate::system::{Fd, Output, Returned};

/// What poll reports whether it was asked for or not.
const ALWAYS: u32 = (libc::POLLERR | libc::POLLHUP) as u32;
const IN: u32 = (libc::POLLIN | libc::POLLRDNORM) as u32;
const OUT: u32 = (libc::POLLOUT | libc::POLLWRNORM) as u32;

/// An epoll descriptor.
#[derive(Default)]
pub(super) struct Epoll {
    interests: BTreeMap<Fd, Interest>,
}

struct Interest {
    events: u32,
    data: u64,
    /// How often something came in, and how often into the error queue, when it was looked at last.
    arrivals: (u64, u64),
    /// Bits that an edge-triggered interest has been told of and that have not gone since.
    told: u32,
    /// A one-shot interest that has fired.
    is_spent: bool,
}

impl Epoll {
    pub(super) fn forget(&mut self, fd: Fd) {
        self.interests.remove(&fd);
    }
}

/// What is ready of a socket, as poll's bits, which are epoll's too.
fn ready(stream: &Stream, host: &Host) -> u32 {
    let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
    let mut mask = 0;
    match &stream.role {
        Role::Fresh => return OUT | libc::POLLHUP as u32,
        Role::Listening { queue, .. } => return if queue.is_empty() { 0 } else { IN },
        Role::Connecting(_) => {}
        Role::Over => {
            mask |= IN | OUT | (libc::POLLHUP | libc::POLLRDHUP) as u32;
        }
        Role::Connected(_) => {
            if let Some(info) = info {
                let has_end = stream.is_ended
                    || matches!(
                        info.state,
                        TcpState::CloseWait | TcpState::LastAck | TcpState::Closing
                    );
                let low_water = stream.number(libc::SOL_SOCKET, libc::SO_RCVLOWAT).unwrap_or(1);
                let unread = i64::from(info.unread_bytes)
                    + i64::try_from(stream.taken.len()).unwrap_or(i64::MAX);
                if unread >= low_water.max(1) || has_end {
                    mask |= IN;
                }
                if has_end || stream.is_read_shut {
                    mask |= IN | libc::POLLRDHUP as u32;
                }
                // Ready again when a third of the buffer is free, as on Linux.
                let buffer = send_buffer_bytes(&info, host.dialect);
                let is_roomy = u64::from(info.queued_bytes) * 3 <= u64::from(buffer) * 2;
                // And where what was not sent yet is less than the socket allows (tcp(7)).
                let is_low = unsent_bytes(&info) < stream.unsent_limit_bytes();
                if (is_roomy && is_low) || stream.is_write_shut {
                    mask |= OUT;
                }
                if (has_end || stream.is_read_shut) && stream.is_write_shut {
                    mask |= libc::POLLHUP as u32;
                }
            }
        }
    }
    if stream.error != 0 || !stream.error_queue.is_empty() {
        mask |= libc::POLLERR as u32;
    }
    mask
}

/// How much has come in, in bytes or connections, and in messages of the error queue: it only ever
/// grows.
fn arrivals(entry: &Entry, host: &Host) -> (u64, u64) {
    let Entry::Stream(stream) = entry else { return (0, 0) };
    let info = stream.conn().and_then(|conn| host.running()?.info(conn).ok());
    (info.map_or(stream.connections, |info| info.bytes_in), stream.error_queue.arrivals)
}

impl Sockets {
    fn ready_of(&self, fd: Fd, host: &Host) -> u32 {
        match self.open.get(&fd) {
            Some(Entry::Stream(stream)) => ready(stream, host),
            Some(Entry::Datagrams(datagrams)) => datagrams.ready(),
            Some(Entry::Epoll(_)) => 0,
            None => libc::POLLNVAL as u32,
        }
    }

    pub(super) fn poll(&mut self, fds: &[(Fd, i16)], host: &Host) -> Attempt {
        let masks: Vec<i16> = fds
            .iter()
            .map(|&(fd, events)| {
                let asked = u32::from(events.cast_unsigned()) | ALWAYS | libc::POLLNVAL as u32;
                let mask = self.ready_of(fd, host) & asked;
                i16::try_from(mask).unwrap_or(i16::MAX)
            })
            .collect();
        let count = masks.iter().filter(|&&mask| mask != 0).count();
        if count == 0 && !self.has_timed_out(host) {
            return Ok(None);
        }
        let result = i64::try_from(count).unwrap_or(i64::MAX);
        Ok(Some(Returned { output: Output::Ready(masks), ..Returned::success(result) }))
    }

    pub(super) fn epoll_control(
        &mut self,
        epoll: Fd,
        operation: i32,
        fd: Fd,
        (events, data): (u32, u64),
    ) -> Attempt {
        if !self.open.contains_key(&fd) {
            return failed(libc::EBADF);
        }
        let Some(Entry::Epoll(epoll)) = self.open.get_mut(&epoll) else {
            return failed(libc::EINVAL);
        };
        let is_known = epoll.interests.contains_key(&fd);
        let interest = Interest { events, data, arrivals: (0, 0), told: 0, is_spent: false };
        match operation {
            libc::EPOLL_CTL_ADD if is_known => return failed(libc::EEXIST),
            libc::EPOLL_CTL_ADD => {
                epoll.interests.insert(fd, interest);
            }
            libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL if !is_known => return failed(libc::ENOENT),
            libc::EPOLL_CTL_MOD => {
                epoll.interests.insert(fd, interest);
            }
            libc::EPOLL_CTL_DEL => epoll.forget(fd),
            _ => return failed(libc::EINVAL),
        }
        ended(0)
    }

    pub(super) fn epoll_wait(&mut self, epoll: Fd, count: usize, host: &Host) -> Attempt {
        let has_timed_out = self.has_timed_out(host);
        let fds = match self.open.get(&epoll) {
            Some(Entry::Epoll(epoll)) => epoll.interests.keys().copied().collect::<Vec<Fd>>(),
            Some(_) => return failed(libc::EINVAL),
            None => return failed(libc::EBADF),
        };
        let masks: Vec<u32> = fds.iter().map(|&fd| self.ready_of(fd, host)).collect();
        let Some(Entry::Epoll(epoll)) = self.open.get_mut(&epoll) else {
            return failed(libc::EBADF);
        };
        let mut events = Vec::new();
        for (fd, mask) in fds.iter().zip(masks) {
            let Some(interest) = epoll.interests.get_mut(fd) else { continue };
            let mask = mask & (interest.events | ALWAYS);
            let is_edge = interest.events & libc::EPOLLET.cast_unsigned() != 0;
            let is_news = if is_edge { mask & !interest.told != 0 } else { mask != 0 };
            if interest.is_spent || !is_news || events.len() >= count {
                continue;
            }
            interest.told |= mask;
            interest.is_spent = interest.events & libc::EPOLLONESHOT.cast_unsigned() != 0;
            events.push((mask, interest.data));
        }
        if events.is_empty() && !has_timed_out {
            return Ok(None);
        }
        let result = i64::try_from(events.len()).unwrap_or(i64::MAX);
        Ok(Some(Returned { output: Output::Events(events), ..Returned::success(result) }))
    }

    /// Forgets edges that have gone, so that they count when they come again.
    pub(super) fn look_at_edges(&mut self, host: &Host) {
        let streams: BTreeMap<Fd, (u32, (u64, u64))> = self
            .open
            .iter()
            .map(|(&fd, entry)| (fd, (self.ready_of(fd, host), arrivals(entry, host))))
            .collect();
        for entry in self.open.values_mut() {
            let Entry::Epoll(epoll) = entry else { continue };
            for (fd, interest) in &mut epoll.interests {
                let (mask, arrivals) = streams.get(fd).copied().unwrap_or_default();
                interest.told &= mask;
                // More of the same is news too (epoll(7)).
                if arrivals.0 != interest.arrivals.0 {
                    interest.told &= !IN;
                }
                if arrivals.1 != interest.arrivals.1 {
                    interest.told &= !(libc::POLLERR as u32);
                }
                interest.arrivals = arrivals;
            }
        }
    }
}
