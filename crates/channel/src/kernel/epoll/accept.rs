//! Accepting: as many connections as there is credit for, and what a listener that leaves does.
//!
//! Read first: accept(2), listen(2); `listener_handover.rs` for gifts between channels; decision
//! 0006.
//!
//! Invariants
//! - Nothing is accepted ahead of the credit: connections wait in the kernel's queue, where a
//!   sibling process can take them. Only gifts of siblings are held.
//! - A listening socket is non-blocking while it is here. Between a poll that shows a connection
//!   and the accept, another process that shares the socket may take it, and accept4(2) has no
//!   flag like MSG_DONTWAIT: it would block this thread, and all of the channel with it. A sibling
//!   that sees EAGAIN meanwhile is the lesser harm; the flag is set back when the descriptor goes
//!   back.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::Epoll;
use crate::limits::POLL_ACCEPTS_MAX;
use crate::options::AcceptAs;
use crate::slot::{Handed, NewConnection, Receiving};
use crate::state::State;

impl Epoll {
    pub(super) fn attach_listener(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        let entry = state.slot(slot);
        entry.flags.readable = true;
        let Some(fd) = entry.fd.as_ref() else { return Ok(()) };
        let flags = fcntl_getfl(fd)?;
        let was_blocking = !flags.contains(OFlags::NONBLOCK);
        if was_blocking {
            fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
        }
        let Some(listener) = entry.listener() else { return Ok(()) };
        listener.was_blocking = was_blocking;
        if listener.heir.is_some() {
            self.adopted.push(slot);
        }
        Ok(())
    }

    /// The credit of `heir` is for the sockets that it drains for siblings, too.
    pub(super) fn ask_adopted(&mut self, state: &mut State, heir: u32) {
        for index in 0..self.adopted.len() {
            let slot = self.adopted[index];
            if state.slot(slot).listener().and_then(|it| it.heir) == Some(heir) {
                self.enqueue(state, slot);
            }
        }
    }

    /// Gives what is held to the accepts that wait, and accepts for the rest of them.
    pub(super) fn try_accept(&mut self, state: &mut State, slot: u32) {
        while let Some((arrived, _)) = state.next_held(slot) {
            self.hand_over(state, slot, arrived);
        }
        let mut budget = POLL_ACCEPTS_MAX;
        while let Some(kind) = state.accept_wanted(slot) {
            if state.slot(slot).listener().is_none_or(|it| it.exhausted) {
                return;
            }
            if kind == AcceptAs::Lwsocket && self.lwsockets_open >= state.config.max_lwsockets {
                return state.note_exhausted(slot);
            }
            if budget == 0 {
                return self.enqueue(state, slot);
            }
            if !state.peek(slot).flags.readable {
                if let Err(error) = self.watch(state, slot, false) {
                    state.on_accept_failed(slot, error);
                }
                return;
            }
            budget -= 1;
            match accept_one(state, slot) {
                Ok(fd) => self.hand_over(state, slot, NewConnection::Fd(fd, Vec::new())),
                Err(Errno::AGAIN) => state.slot(slot).flags.readable = false,
                // A connection that died in the queue, or a signal.
                Err(Errno::CONNABORTED | Errno::PROTO | Errno::INTR) => {}
                Err(errno) => return state.on_accept_failed(slot, errno.into()),
            }
        }
    }

    fn hand_over(&mut self, state: &mut State, listener: u32, arrived: NewConnection) {
        let Handed::To(slot) = state.on_accepted(listener, arrived) else { return };
        self.attach_socket(state, slot);
        // A first read is tried in the next poll: by then the request is often there, and the
        // connection needs no watching for it.
        let entry = state.slot(slot);
        if !entry.kind.is_stream() {
            entry.flags.reading = entry.first_read.is_some();
        } else if state.wants_data(slot) {
            state.slot(slot).receiving = Receiving::Yes;
        }
        let entry = state.slot(slot);
        if entry.flags.reading || entry.receiving == Receiving::Yes {
            self.enqueue(state, slot);
        }
    }

    /// A descriptor became free: listeners that waited for one go on.
    pub(super) fn accept_again(&mut self, state: &mut State) {
        if state.exhausted_listeners == 0 {
            return;
        }
        for slot in state.take_exhausted_listeners() {
            self.enqueue(state, slot);
        }
    }

    /// The channel accepts from the listener no more; the program's own socket is as blocking
    /// again as it was.
    pub(super) fn close_listener(&mut self, state: &mut State, slot: u32) {
        self.adopted.retain(|&adopted| adopted != slot);
        // Others have the socket too: its group, and soon the program or a sibling channel.
        self.unwatch(state, slot);
        let entry = state.slot(slot);
        let was_blocking = entry.listener().is_some_and(|it| it.was_blocking);
        if let (true, Some(fd)) = (was_blocking, entry.fd.as_ref()) {
            let restored = fcntl_getfl(fd).map(|flags| flags.difference(OFlags::NONBLOCK));
            let _ = restored.and_then(|flags| fcntl_setfl(fd, flags));
        }
    }

    /// A listener that leaves gives away what it holds, and its socket with the connections that
    /// wait in its queue.
    pub(super) fn empty_listener(&mut self, state: &mut State, slot: u32) {
        self.close_listener(state, slot);
        while let Some(arrived) = state.slot(slot).listener().and_then(|it| it.held.pop_front()) {
            state.pass_arrived(slot, arrived);
        }
        state.pass_listener(slot);
    }
}

fn accept_one(state: &mut State, slot: u32) -> Result<OwnedFd, Errno> {
    state.counters.system_calls += 1;
    state.counters.kernel_requests += 1;
    let fd = state.peek(slot).fd.as_ref().ok_or(Errno::BADF)?;
    accept_with(fd.as_fd(), SocketFlags::CLOEXEC)
}
