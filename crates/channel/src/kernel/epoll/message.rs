//! Message sockets: one message for one read, one for one write, with addresses.
//!
//! Read first: udp(7), unix(7), recvmsg(2) for MSG_TRUNC.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SocketAddrAny, SocketAddrUnix, recvfrom, sendmsg, sendmsg_addr,
};

use super::Epoll;
use super::stream::{SEND_FLAGS, SendOutcome, fill, gather, no_parts};
use crate::address::{Address, UnixAddress};
use crate::completion::Datagram;
use crate::kernel::sys;
use crate::limits::POLL_BYTES_MAX;
use crate::slot::{Kind, Slot, SlotPhase, WriteOp};
use crate::state::State;

/// Bytes that a message counts for at least in the share of a poll.
const MESSAGE_BYTES_MIN: usize = 512;

impl Epoll {
    /// Receives for the reads that wait, a message each.
    pub(super) fn read_messages(&mut self, state: &mut State, slot: u32) {
        let mut budget = POLL_BYTES_MAX;
        loop {
            let entry = state.peek(slot);
            let Some(read) = entry.first_read else { break };
            let (want, with_sender) = (read.len as usize, read.with_sender);
            if entry.phase != SlotPhase::Open {
                // The handle moves away; its reads end with it.
                break;
            }
            if budget == 0 {
                return self.enqueue(state, slot);
            }
            if !entry.flags.readable {
                match self.watch(state, slot, false) {
                    Ok(()) => return,
                    Err(error) => state.answer_message(slot, with_sender, Err(error)),
                }
                continue;
            }
            state.counters.system_calls += 1;
            state.counters.kernel_requests += 1;
            match receive_message(state, slot, want) {
                Ok(message) => {
                    budget = budget.saturating_sub(message.data.len().max(MESSAGE_BYTES_MIN));
                    state.answer_message(slot, with_sender, Ok(message));
                }
                Err(Errno::AGAIN) => state.slot(slot).flags.readable = false,
                Err(Errno::INTR) => {}
                Err(errno) => state.answer_message(slot, with_sender, Err(errno.into())),
            }
        }
        state.slot(slot).flags.reading = false;
    }

    /// Sends the message at the head of the slot's writes.
    pub(super) fn send_message(&mut self, state: &mut State, slot: u32) -> SendOutcome {
        let entry = state.peek(slot);
        let Some(write) = state.writes.front(entry.writes) else { return SendOutcome::Bytes(0) };
        if !write.is_data() {
            return SendOutcome::Bytes(0);
        }
        let to_anybody = write.to.is_some() && entry.kind == Kind::UnixDatagram;
        let (len, sent) = (write.len, send_whole(entry, write));
        state.counters.system_calls += 1;
        state.counters.kernel_requests += 1;
        match sent {
            Ok(()) => {
                state.on_sent(slot, len);
                SendOutcome::Bytes(len.max(MESSAGE_BYTES_MIN))
            }
            Err(Errno::INTR) => SendOutcome::Bytes(0),
            // The receiver's queue is full. Events tell of the connected peer's only.
            Err(Errno::AGAIN) if to_anybody => {
                state.slot(slot).flags.writable = false;
                SendOutcome::Later
            }
            Err(Errno::AGAIN) => {
                state.slot(slot).flags.writable = false;
                SendOutcome::NoRoom
            }
            Err(errno) => {
                state.on_send_failed(slot, errno.into());
                SendOutcome::Bytes(0)
            }
        }
    }
}

fn receive_message(state: &mut State, slot: u32, want: usize) -> Result<Datagram, Errno> {
    let (mut from, mut len, mut control) = (None, 0, Box::default());
    let data = fill(state, want, |state, room| {
        let entry = state.peek(slot);
        let fd = entry.fd.as_ref().ok_or(Errno::BADF)?;
        if entry.kind == Kind::Udp {
            let received = sys::receive_datagram(fd.as_fd(), room)?;
            (from, len, control) = (received.from.to_address(), received.len, received.control);
            return Ok(len.min(room.len()));
        }
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (count, whole, sender) = recvfrom(fd, &mut *room, flags)?;
        (from, len) = (sender.and_then(address_of), whole);
        Ok(count)
    })?;
    // With MSG_TRUNC, the kernel says how long the message was.
    let truncated = len > data.len();
    Ok(Datagram { data, from, truncated, arrival: None, control })
}

fn send_whole(slot: &Slot, write: &WriteOp) -> Result<(), Errno> {
    let fd = slot.fd.as_ref().ok_or(Errno::BADF)?;
    let mut parts = no_parts();
    let (mut part_count, bytes) = gather(std::iter::once(write), &mut parts);
    let joined: Vec<u8>;
    if bytes < write.len {
        // More parts than fit: a message goes out whole or not at all.
        joined = write.parts().iter().flat_map(|part| part.as_slice()).copied().collect();
        (parts[0], part_count) = (IoSlice::new(&joined), 1);
    }
    let (parts, mut nothing) = (&parts[..part_count], SendAncillaryBuffer::default());
    match write.receiver() {
        None => sendmsg(fd, parts, &mut nothing, SEND_FLAGS),
        Some(Address::Inet(to)) => sendmsg_addr(fd, to, parts, &mut nothing, SEND_FLAGS),
        Some(Address::Unix(UnixAddress::Path(path))) => {
            let to = SocketAddrUnix::new(path)?;
            sendmsg_addr(fd, &to, parts, &mut nothing, SEND_FLAGS)
        }
        Some(Address::Unix(UnixAddress::Abstract(name))) => {
            let to = SocketAddrUnix::new_abstract_name(name)?;
            sendmsg_addr(fd, &to, parts, &mut nothing, SEND_FLAGS)
        }
        Some(Address::Unix(UnixAddress::Unnamed)) => Err(Errno::INVAL),
    }
    .map(drop)
}

/// A sender's address; `None` if it has none.
fn address_of(any: SocketAddrAny) -> Option<Address> {
    if let Ok(inet) = SocketAddr::try_from(any.clone()) {
        return Some(Address::Inet(inet));
    }
    let unix = SocketAddrUnix::try_from(any).ok()?;
    Some(Address::Unix(match (unix.path_bytes(), unix.abstract_name()) {
        (_, Some(name)) => UnixAddress::Abstract(name.to_vec()),
        (Some(path), _) => {
            use std::os::unix::ffi::OsStrExt;
            UnixAddress::Path(std::ffi::OsStr::from_bytes(path).into())
        }
        (None, None) => UnixAddress::Unnamed,
    }))
}
