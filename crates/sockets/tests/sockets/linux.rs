//! Linux's own sockets.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, bind,
    connect, connect_unspec, getpeername, getsockname, listen, recv, recvfrom, send, sendto,
    shutdown, socket_with,
};

use crate::host::{Answer, Ctl, Fd, Host, by_data};

/// The kernel, with the descriptors that a program has open.
#[derive(Default)]
pub(crate) struct Linux {
    open: BTreeMap<Fd, OwnedFd>,
    /// Numbers that it has closed, of which others may have made use since.
    closed: BTreeSet<Fd>,
}

thread_local! {
    /// What the hosts of this thread, which are one program, have open.
    static OPEN: RefCell<BTreeSet<Fd>> = const { RefCell::new(BTreeSet::new()) };
}

/// A number that no process has.
const NOT_OPEN: Fd = i32::MAX;

impl Drop for Linux {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.retain(|fd| !self.open.contains_key(fd)));
    }
}

impl Linux {
    fn fd(&self, fd: Fd) -> Answer<BorrowedFd<'_>> {
        self.open.get(&fd).map(AsFd::as_fd).ok_or(libc::EBADF)
    }

    /// Takes a descriptor, by which it is known from then on.
    pub(crate) fn keep(&mut self, fd: OwnedFd) -> Fd {
        let number = fd.as_raw_fd();
        self.open.insert(number, fd);
        OPEN.with_borrow_mut(|open| open.insert(number));
        number
    }

    /// What the kernel is to be asked about, where it is asked by number. The tests of a process
    /// are many programs, and what one has closed another one may have opened under the same
    /// number: to this program it is not open.
    fn number(&self, fd: Fd) -> Fd {
        let is_others = self.closed.contains(&fd) && !OPEN.with_borrow(|open| open.contains(&fd));
        if is_others { NOT_OPEN } else { fd }
    }
}

/// A signal set with the signals of `bits`: bit 0 is signal 1.
pub(crate) fn signal_set(bits: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was filled just now.
    let mut set = unsafe { set.assume_init() };
    for signal in (1..=64).filter(|signal| bits & 1 << (signal - 1) != 0) {
        // SAFETY: the set is one. The C library's own signals are refused.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

fn checked(answer: libc::c_int) -> Answer<i32> {
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    if answer < 0 { Err(error()) } else { Ok(answer) }
}

fn told<T>(result: Result<T, Errno>) -> Answer<T> {
    result.map_err(Errno::raw_os_error)
}

impl Host for Linux {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Answer<Fd> {
        const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let protocol = u32::try_from(protocol).ok().and_then(std::num::NonZeroU32::new);
        let fd = told(socket_with(
            AddressFamily::from_raw(domain as u16),
            SocketType::from_raw((kind & !FLAGS) as u32),
            SocketFlags::from_bits_retain((kind & FLAGS) as u32),
            protocol.map(rustix::net::Protocol::from_raw),
        ))?;
        Ok(self.keep(fd))
    }

    fn bind(&mut self, fd: Fd, address: SocketAddr) -> Answer<()> {
        told(bind(self.fd(fd)?, &address))
    }

    fn listen(&mut self, fd: Fd, backlog: i32) -> Answer<()> {
        told(listen(self.fd(fd)?, backlog))
    }

    fn accept4(&mut self, fd: Fd, flags: i32) -> Answer<Fd> {
        let flags = SocketFlags::from_bits_retain(flags as u32);
        let accepted = told(accept_with(self.fd(fd)?, flags))?;
        Ok(self.keep(accepted))
    }

    fn connect(&mut self, fd: Fd, address: Option<SocketAddr>) -> Answer<()> {
        told(match address {
            Some(address) => connect(self.fd(fd)?, &address),
            None => connect_unspec(self.fd(fd)?),
        })
    }

    fn shutdown(&mut self, fd: Fd, how: i32) -> Answer<()> {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            _ => Shutdown::Both,
        };
        told(shutdown(self.fd(fd)?, how))
    }

    fn close(&mut self, fd: Fd) -> Answer<()> {
        let closed = self.open.remove(&fd).ok_or(libc::EBADF)?;
        OPEN.with_borrow_mut(|open| open.remove(&fd));
        self.closed.insert(fd);
        drop(closed);
        Ok(())
    }

    fn recv(&mut self, fd: Fd, len: usize, flags: i32) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; len];
        let flags = RecvFlags::from_bits_retain(flags as u32);
        let (_, count) = told(recv(self.fd(fd)?, &mut bytes[..], flags))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Answer<usize> {
        let flags = SendFlags::from_bits_retain((flags | libc::MSG_NOSIGNAL) as u32);
        told(send(self.fd(fd)?, bytes, flags))
    }

    fn read(&mut self, fd: Fd, len: usize) -> Answer<Vec<u8>> {
        let mut bytes = vec![0; len];
        let count = told(rustix::io::read(self.fd(fd)?, &mut bytes[..]))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Answer<usize> {
        told(rustix::io::write(self.fd(fd)?, bytes))
    }

    fn recvfrom(
        &mut self,
        fd: Fd,
        len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Option<SocketAddr>, usize)> {
        let mut bytes = vec![0; len];
        let flags = RecvFlags::from_bits_retain(flags as u32);
        let (_, answered, from) = told(recvfrom(self.fd(fd)?, &mut bytes[..], flags))?;
        bytes.truncate(answered);
        Ok((bytes, from.and_then(|from| SocketAddr::try_from(from).ok()), answered))
    }

    fn sendto(&mut self, fd: Fd, bytes: &[u8], flags: i32, to: SocketAddr) -> Answer<usize> {
        let flags = SendFlags::from_bits_retain((flags | libc::MSG_NOSIGNAL) as u32);
        told(sendto(self.fd(fd)?, bytes, flags, &to))
    }

    fn recvmsg(
        &mut self,
        fd: Fd,
        len: usize,
        control_len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Vec<u8>, i32)> {
        let (mut bytes, mut control) = (vec![0_u8; len], vec![0_u64; control_len.div_ceil(8)]);
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: msghdr is plain data for which all zeros are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control_len;
        let fd = self.fd(fd)?.as_raw_fd();
        // SAFETY: the header points to `bytes` and `control`, which are as long as it says.
        let count = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
        bytes.truncate(checked(count as libc::c_int)? as usize);
        let control = control.iter().flat_map(|word| word.to_ne_bytes());
        Ok((bytes, control.take(header.msg_controllen).collect(), header.msg_flags))
    }

    fn sendmsg(&mut self, fd: Fd, bytes: &[u8], to: SocketAddr, control: &[u8]) -> Answer<usize> {
        let fd = self.fd(fd)?.as_raw_fd();
        let mut name = [0_u8; 28];
        let name_len = match to {
            SocketAddr::V4(to) => {
                name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                name[4..8].copy_from_slice(&to.ip().octets());
                16
            }
            SocketAddr::V6(to) => {
                name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                name[8..24].copy_from_slice(&to.ip().octets());
                28
            }
        };
        name[2..4].copy_from_slice(&to.port().to_be_bytes());
        let (mut bytes, mut control) = (bytes.to_vec(), control.to_vec());
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        // SAFETY: msghdr is plain data for which all zeros are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name_len;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control.len();
        // SAFETY: the header points to memory that is as long as it says and outlives the call; no
        // test gives control data that holds pointers.
        let sent = unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) };
        checked(sent as libc::c_int).map(|count| count as usize)
    }

    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Answer<()> {
        let (pointer, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
        // SAFETY: pointer and length describe `value`, which outlives the call; no test sets an
        // option whose value holds pointers.
        let set = unsafe { libc::setsockopt(self.fd(fd)?.as_raw_fd(), level, name, pointer, len) };
        checked(set).map(drop)
    }

    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, len: usize) -> Answer<Vec<u8>> {
        let fd = self.fd(fd)?.as_raw_fd();
        let mut value = vec![0_u8; len];
        let mut filled = len as libc::socklen_t;
        let pointer = value.as_mut_ptr().cast();
        // SAFETY: pointer and length describe `value`, which outlives the call.
        checked(unsafe { libc::getsockopt(fd, level, name, pointer, &raw mut filled) })?;
        value.truncate(filled as usize);
        Ok(value)
    }

    fn ioctl(&mut self, fd: Fd, request: u64, mut argument: i32) -> Answer<i32> {
        let fd = self.fd(fd)?.as_raw_fd();
        // SAFETY: the requests that tests make read or write one `int`, which `argument` is.
        checked(unsafe { libc::ioctl(fd, request as libc::Ioctl, &raw mut argument) })?;
        Ok(argument)
    }

    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Answer<i32> {
        // SAFETY: the commands that tests give take an `int` or nothing.
        checked(unsafe { libc::fcntl(self.fd(fd)?.as_raw_fd(), command, argument) })
    }

    fn dup(&mut self, fd: Fd) -> Answer<Fd> {
        let copy = told(rustix::io::dup(self.fd(fd)?))?;
        Ok(self.keep(copy))
    }

    fn pipe2(&mut self, flags: i32) -> Answer<[Fd; 2]> {
        let flags = rustix::pipe::PipeFlags::from_bits_retain(flags as u32);
        let (reader, writer) = told(rustix::pipe::pipe_with(flags))?;
        Ok([self.keep(reader), self.keep(writer)])
    }

    fn eventfd(&mut self, count: u32, flags: i32) -> Answer<Fd> {
        let flags = rustix::event::EventfdFlags::from_bits_retain(flags as u32);
        let fd = told(rustix::event::eventfd(count, flags))?;
        Ok(self.keep(fd))
    }

    fn poll(&mut self, fds: &[(Fd, i16)]) -> Answer<Vec<i16>> {
        let mut polled: Vec<libc::pollfd> = fds
            .iter()
            .map(|(fd, events)| libc::pollfd { fd: self.number(*fd), events: *events, revents: 0 })
            .collect();
        // SAFETY: pointer and length describe `polled`, which outlives the call.
        checked(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) })?;
        Ok(polled.iter().map(|entry| entry.revents).collect())
    }

    fn select(&mut self, read: &[Fd], write: &[Fd]) -> Answer<[Vec<usize>; 2]> {
        let set = |fds: &[Fd]| {
            let mut set = [0_u64; 16];
            fds.iter().for_each(|fd| set[*fd as usize / 64] |= 1 << (fd % 64));
            set
        };
        const { assert!(size_of::<libc::fd_set>() == size_of::<[u64; 16]>()) };
        let mut sets = [set(read), set(write)];
        let highest = read.iter().chain(write).max().map_or(0, |fd| fd + 1);
        let mut at_once = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let [reads, writes] = &mut sets;
        let (reads, writes) = (reads.as_mut_ptr().cast(), writes.as_mut_ptr().cast());
        let none = std::ptr::null_mut();
        // SAFETY: both sets are as long as the C library's, which is longer than `highest` bits
        // (asserted above and by the indexing), and outlive the call, as does the time.
        checked(unsafe { libc::select(highest, reads, writes, none, &raw mut at_once) })?;
        let is_in = |set: &[u64; 16], fd: Fd| set[fd as usize / 64] & (1 << (fd % 64)) != 0;
        let ready = |set: &[u64; 16], fds: &[Fd]| {
            (0..fds.len()).filter(|place| is_in(set, fds[*place])).collect()
        };
        Ok([ready(&sets[0], read), ready(&sets[1], write)])
    }

    fn getsockname(&mut self, fd: Fd) -> Answer<SocketAddr> {
        told(getsockname(self.fd(fd)?).and_then(SocketAddr::try_from))
    }

    fn getpeername(&mut self, fd: Fd) -> Answer<SocketAddr> {
        told(getpeername(self.fd(fd)?))?
            .ok_or(libc::ENOTCONN)
            .and_then(|address| told(SocketAddr::try_from(address)))
    }

    fn epoll_create1(&mut self, flags: i32) -> Answer<Fd> {
        let fd = told(epoll::create(CreateFlags::from_bits_retain(flags as u32)))?;
        Ok(self.keep(fd))
    }

    /// By plain numbers: the member may be the process's, of which this host knows nothing.
    fn epoll_ctl(&mut self, epoll: Fd, op: Ctl, fd: Fd, (events, data): (u32, u64)) -> Answer<()> {
        let op = match op {
            Ctl::Add => libc::EPOLL_CTL_ADD,
            Ctl::Modify => libc::EPOLL_CTL_MOD,
            Ctl::Delete => libc::EPOLL_CTL_DEL,
        };
        let (epoll, fd) = (self.number(epoll), self.number(fd));
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the record outlives the call; numbers that stand for nothing are refused.
        checked(unsafe { libc::epoll_ctl(epoll, op, fd, &raw mut event) }).map(drop)
    }

    fn epoll_wait(&mut self, epoll: Fd, max: usize) -> Answer<Vec<(u32, u64)>> {
        let none = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = vec![none; max];
        let count =
            told(epoll::wait(self.fd(epoll)?, &mut events[..], Some(&Timespec::default())))?;
        let events = events[..count].iter();
        Ok(by_data(events.map(|it| ({ it.flags }.bits(), { it.data }.u64()))))
    }

    fn epoll_pwait(
        &mut self,
        epoll: Fd,
        max: usize,
        timeout_ms: u32,
        mask: Option<u64>,
    ) -> Answer<Vec<(u32, u64)>> {
        let epoll = self.fd(epoll)?.as_raw_fd();
        let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max];
        let mask = mask.map(signal_set);
        let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let (pointer, max, timeout_ms) = (events.as_mut_ptr(), max as i32, timeout_ms as i32);
        // SAFETY: there is room for `max` events, and the mask is null or a signal set; both
        // outlive the call.
        let count =
            checked(unsafe { libc::epoll_pwait(epoll, pointer, max, timeout_ms, mask) })? as usize;
        Ok(by_data(events[..count].iter().map(|it| (it.events, it.u64))))
    }

    fn settle(&mut self, patience: u32) {
        // Loopback delivers while the sender sends; the rest is the kernel's own work.
        std::thread::sleep(Duration::from_micros(200) * patience);
    }
}
