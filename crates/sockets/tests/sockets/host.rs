//! What a test program calls: BSD sockets and epoll, on any system. Errors are error numbers.

use std::net::SocketAddr;

/// A descriptor of one system.
pub(crate) type Fd = i32;
pub(crate) type Answer<T> = Result<T, i32>;

/// What `epoll_ctl` does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ctl {
    Add,
    Modify,
    Delete,
}

/// One system's calls.
pub(crate) trait Host {
    fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Answer<Fd>;
    fn bind(&mut self, fd: Fd, address: SocketAddr) -> Answer<()>;
    fn listen(&mut self, fd: Fd, backlog: i32) -> Answer<()>;
    fn accept4(&mut self, fd: Fd, flags: i32) -> Answer<Fd>;
    fn connect(&mut self, fd: Fd, address: Option<SocketAddr>) -> Answer<()>;
    fn shutdown(&mut self, fd: Fd, how: i32) -> Answer<()>;
    fn close(&mut self, fd: Fd) -> Answer<()>;
    fn recv(&mut self, fd: Fd, len: usize, flags: i32) -> Answer<Vec<u8>>;
    fn send(&mut self, fd: Fd, bytes: &[u8], flags: i32) -> Answer<usize>;
    fn read(&mut self, fd: Fd, len: usize) -> Answer<Vec<u8>>;
    fn write(&mut self, fd: Fd, bytes: &[u8]) -> Answer<usize>;
    /// The bytes, who sent them, the length that was answered, and the flags.
    fn recvfrom(
        &mut self,
        fd: Fd,
        len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Option<SocketAddr>, usize)>;
    fn sendto(&mut self, fd: Fd, bytes: &[u8], flags: i32, to: SocketAddr) -> Answer<usize>;
    /// The bytes, the control data, and the flags.
    fn recvmsg(
        &mut self,
        fd: Fd,
        len: usize,
        control_len: usize,
        flags: i32,
    ) -> Answer<(Vec<u8>, Vec<u8>, i32)>;
    fn sendmsg(&mut self, fd: Fd, bytes: &[u8], to: SocketAddr, control: &[u8]) -> Answer<usize>;
    fn setsockopt(&mut self, fd: Fd, level: i32, name: i32, value: &[u8]) -> Answer<()>;
    fn getsockopt(&mut self, fd: Fd, level: i32, name: i32, len: usize) -> Answer<Vec<u8>>;
    fn ioctl(&mut self, fd: Fd, request: u64, argument: i32) -> Answer<i32>;
    fn fcntl(&mut self, fd: Fd, command: i32, argument: i32) -> Answer<i32>;
    fn dup(&mut self, fd: Fd) -> Answer<Fd>;
    fn pipe2(&mut self, flags: i32) -> Answer<[Fd; 2]>;
    fn eventfd(&mut self, count: u32, flags: i32) -> Answer<Fd>;
    /// At once: what each descriptor has to tell.
    fn poll(&mut self, fds: &[(Fd, i16)]) -> Answer<Vec<i16>>;
    /// At once: which places of each list are ready, to read and to write.
    fn select(&mut self, read: &[Fd], write: &[Fd]) -> Answer<[Vec<usize>; 2]>;
    fn getsockname(&mut self, fd: Fd) -> Answer<SocketAddr>;
    fn getpeername(&mut self, fd: Fd) -> Answer<SocketAddr>;
    fn epoll_create1(&mut self, flags: i32) -> Answer<Fd>;
    fn epoll_ctl(&mut self, epoll: Fd, op: Ctl, fd: Fd, event: (u32, u64)) -> Answer<()>;
    /// At once; the events in the order of their data.
    fn epoll_wait(&mut self, epoll: Fd, max: usize) -> Answer<Vec<(u32, u64)>>;
    /// As `epoll_wait`, after waiting at most so long for an event, with the signals of the mask
    /// (bit 0 is signal 1) blocked meanwhile instead of the thread's.
    fn epoll_pwait(
        &mut self,
        epoll: Fd,
        max: usize,
        timeout_ms: u32,
        mask: Option<u64>,
    ) -> Answer<Vec<(u32, u64)>>;
    /// What has been asked for and has happened is done; so many times longer than usual is waited
    /// for it.
    fn settle(&mut self, patience: u32);
}

/// Events in the order of their data, because sets tell in any order.
pub(crate) fn by_data(events: impl Iterator<Item = (u32, u64)>) -> Vec<(u32, u64)> {
    let mut events: Vec<(u32, u64)> = events.collect();
    events.sort_by_key(|(_, data)| *data);
    events
}
