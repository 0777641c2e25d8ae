//! Listening sockets, pinning and stopping: what the baseline loops have in common.

use super::Baseline;
use crate::limits;
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{
        AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, ipproto,
        sockopt::{
            set_socket_incoming_cpu, set_socket_linger, set_socket_reuseaddr, set_socket_reuseport,
            set_tcp_nodelay,
        },
    },
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// Stops a running baseline: an eventfd that every loop watches and none reads.
#[derive(Debug)]
pub struct Stop(OwnedFd);

impl Stop {
    /// A stop that has not been triggered.
    ///
    /// # Errors
    /// If the kernel gives no eventfd.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes every loop return after its current turn. Does not block.
    ///
    /// # Errors
    /// If the eventfd cannot be written.
    pub fn trigger(&self) -> io::Result<()> {
        rustix::io::write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One listener per thread: clones of one socket for the shared baseline, else a `SO_REUSEPORT`
/// group, each preferring connections that arrive on its thread's core.
pub(super) fn listeners(
    address: SocketAddr,
    threads: usize,
    baseline: Baseline,
    cpus: &[usize],
) -> io::Result<Vec<OwnedFd>> {
    let shared = baseline == Baseline::EpollShared;
    let first = listener(address, !shared)?;
    // Port 0 means any: the group's others must join the port that the first was given.
    let bound = local_address(&first)?;
    let mut all = vec![first];
    while all.len() < threads {
        all.push(if shared { all[0].try_clone()? } else { listener(bound, true)? });
    }
    if !shared {
        for (socket, &cpu) in all.iter().zip(cpus) {
            set_socket_incoming_cpu(socket, u32::try_from(cpu).unwrap_or(u32::MAX))?;
        }
    }
    Ok(all)
}

fn listener(address: SocketAddr, reuseport: bool) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    set_socket_reuseaddr(&socket, true)?;
    if reuseport {
        set_socket_reuseport(&socket, true)?;
    }
    // Accepted sockets inherit it, so that no connection pays a system call for it.
    set_tcp_nodelay(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, limits::LISTEN_BACKLOG)?;
    Ok(socket)
}

/// Connections that the listener accepts end with a reset when they are closed: they inherit it.
pub(super) fn reset_on_close(listener: &OwnedFd) -> io::Result<()> {
    Ok(set_socket_linger(listener, Some(Duration::ZERO))?)
}

pub(super) fn local_address(socket: &OwnedFd) -> io::Result<SocketAddr> {
    let any: SocketAddrAny = rustix::net::getsockname(socket)?;
    Ok(SocketAddr::try_from(any)?)
}

/// Pins the calling thread to one core.
pub(super) fn pin_this_thread(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)?;
    Ok(())
}

/// Receives without blocking; `Ok(None)` when nothing is there.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((_, received_bytes)) => Ok(Some(received_bytes)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
