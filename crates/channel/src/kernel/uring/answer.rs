//! What the kernel's answers mean.
//!
//! Invariants
//! - Whether a multishot request goes on is read from `F_MORE` alone, never from an error number.
//! - An answer to a request of a slot that was retired only counts down, gives back what it
//!   carries, and closes the slot when it was the last.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use io_uring::cqueue;

use super::{Tag, Uring};
use crate::error::OpError;
use crate::kernel::sys;
use crate::slot::{Awaited, Receiving, SlotPhase, StreamEnd};
use crate::state::State;

impl Uring {
    /// One answer.
    #[inline]
    pub(super) fn on_answer(&mut self, state: &mut State, user_data: u64, result: i32, flags: u32) {
        let Some((tag, index)) = Tag::of(user_data) else {
            state.counters.stray_answers += 1;
            return;
        };
        match tag {
            Tag::Ignore => {}
            Tag::Receive => self.on_receive(state, index, result, flags),
            Tag::Send => self.on_send(state, index, result),
            Tag::Accept => self.on_accept(state, index, result, flags),
            Tag::Request => self.on_request(state, index, result),
            Tag::Wake => self.on_wake(state, flags),
            Tag::Ask => self.asked = Some(result),
            Tag::Alarm => self.on_alarm(state, result),
            Tag::End => self.on_change(state, index, result, flags),
            Tag::CanRead => self.on_ready(state, index, true),
            Tag::CanWrite => self.on_ready(state, index, false),
            Tag::Connect | Tag::Disconnect | Tag::Install => {
                self.on_rare(state, tag, index, result);
            }
        }
    }

    /// The last answer of one of the slot's requests came. Says whether the slot is still the
    /// program's.
    #[inline]
    pub(super) fn count_down(&mut self, state: &mut State, slot: u32) -> bool {
        let entry = state.slot(slot);
        if entry.kernel_requests == 0 {
            state.counters.stray_answers += 1;
            return false;
        }
        entry.kernel_requests -= 1;
        if entry.phase == SlotPhase::Closing && entry.kernel_requests == 0 {
            self.finish_closing(state, slot);
            return false;
        }
        !matches!(entry.phase, SlotPhase::Closing | SlotPhase::Leaving)
    }

    #[inline(always)]
    fn on_receive(&mut self, state: &mut State, slot: u32, result: i32, flags: u32) {
        let buffer = cqueue::buffer_select(flags).and_then(|id| state.receive_pool.hold(id));
        let more = cqueue::more(flags);
        if !more {
            state.slot(slot).receiving = Receiving::No;
        }
        if state.slot(slot).phase == SlotPhase::Closing {
            // Not wanted any more: back to the pool.
            drop(buffer.and_then(|buffer| state.receive_pool.adopt(buffer, 0)));
        } else {
            match (result, buffer) {
                (1.., Some(buffer)) => {
                    if state.on_received_held(slot, buffer, result as u32) && more {
                        state.counters.receive_paused += 1;
                        self.stop_receive(state, slot);
                    }
                }
                (0.., buffer) => {
                    drop(buffer.and_then(|buffer| state.receive_pool.adopt(buffer, 0)));
                    state.on_receive_end(slot, StreamEnd::Eof);
                }
                (error, _) => self.on_receive_error(state, slot, -error),
            }
        }
        if !more && self.count_down(state, slot) {
            self.after_receive(state, slot);
        }
    }

    fn on_receive_error(&mut self, state: &mut State, slot: u32, errno: i32) {
        match errno {
            libc::ENOBUFS => self.note_starved(state, slot),
            // Stopped by us; or by a signal or a busy moment, and it simply starts again.
            libc::ECANCELED | libc::EINTR | libc::EAGAIN => {}
            _ => state.on_receive_end(slot, StreamEnd::Failed(OpError::from_raw_os_error(errno))),
        }
    }

    /// Receiving stopped: start again if reads wait, or go on with what waited for the stop.
    fn after_receive(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        if entry.phase == SlotPhase::Moving {
            self.moves_on(state, slot);
        } else if entry.receiving == Receiving::No && state.wants_data(slot) {
            self.arm_receive(state, slot);
        }
    }

    #[inline(always)]
    fn on_send(&mut self, state: &mut State, slot: u32, result: i32) {
        let entry = state.slot(slot);
        entry.flags.writing = false;
        // A silent send is only answered if the socket was full. The next one, which waits for
        // room, says when that is over.
        let broken = std::mem::take(&mut entry.flags.broken_silence);
        entry.flags.congested = broken || (entry.flags.congested && result < 0);
        let waits = entry.kind.is_stream() && !broken;
        if !self.count_down(state, slot) {
            return;
        }
        match result {
            // A send that waits for room is only cut short by the connection's end.
            0.. if waits => state.on_sent_waiting(slot, result as usize),
            0.. => state.on_sent(slot, result as usize),
            // EINPROGRESS: Fast Open has no cookie any more, and the bytes wait for the handshake.
            _ if result == -libc::EINPROGRESS
                || (result == -libc::EAGAIN && Self::must_poll(state, slot)) =>
            {
                return self.ask_poll(state, slot, false);
            }
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => {}
            _ => state.on_send_failed(slot, OpError::from_raw_os_error(-result)),
        }
        if !state.slot(slot).writes.is_empty() {
            self.next_write(state, slot);
        }
    }

    /// A connection whose end is awaited changed. (A poll of the ring always tells of the peer's
    /// end, asked or not, so it has to go on beyond that.)
    fn on_change(&mut self, state: &mut State, slot: u32, result: i32, flags: u32) {
        let more = cqueue::more(flags);
        if !more && (!self.count_down(state, slot) || self.moves_on(state, slot)) {
            return;
        }
        // Reading the error takes it away from a later reader of the socket.
        if !state.peek(slot).is_live() || !state.peek(slot).flags.awaited.has(Awaited::END) {
            return;
        }
        let fd = state.peek(slot).fd.as_ref();
        let failed = i32::from(libc::POLLERR);
        let broken = i32::from(libc::POLLHUP) | failed;
        let ended = match (result, fd) {
            (..0, _) => Some(Err(OpError::from_raw_os_error(-result))),
            (events, _) if events & broken == 0 => None,
            (_, Some(fd)) => match sys::end_of(fd.as_fd()) {
                // The receive ahead of the program's reads has taken the error: mostly a reset.
                Some(Ok(())) if result & broken == broken => Some(Err(OpError::Reset)),
                ended => ended,
            },
            // A direct descriptor's error cannot be read. What breaks a connection whose handshake
            // is over is a reset, or silence, which ends as one does.
            (events, None) if events & failed != 0 => Some(Err(OpError::Reset)),
            (_, None) => Some(Ok(())),
        };
        match ended {
            Some(ended) => state.on_end(slot, ended),
            None if !more => self.ask_end(state, slot),
            None => {}
        }
    }

    fn on_rare(&mut self, state: &mut State, tag: Tag, slot: u32, result: i32) {
        // Closes a descriptor that is not waited for any more.
        // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
        let installed =
            (tag == Tag::Install && result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        if tag == Tag::Disconnect && state.slot(slot).phase == SlotPhase::Closing {
            state.slot(slot).flags.writing = false;
        }
        if !self.count_down(state, slot) {
            return;
        }
        match tag {
            Tag::Connect => self.on_connect_answer(state, slot, result),
            Tag::Install => {
                let fd = installed.ok_or_else(|| OpError::from_raw_os_error(-result));
                self.moved(state, slot, fd);
            }
            _ => {
                let is_move_waiting = Self::is_move_waiting(state, slot);
                self.on_disconnected(state, slot, result);
                if is_move_waiting {
                    self.finish_move(state, slot);
                }
            }
        }
    }

    fn on_wake(&mut self, state: &mut State, flags: u32) {
        state.woken = true;
        if !cqueue::more(flags) {
            self.watch_wake(state);
        }
    }
}
