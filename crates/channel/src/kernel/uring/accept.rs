//! Accepting: one multishot request for the life of a listener, as long as there is room.
//!
//! A multishot request brings all that come, and cannot be told how many are wanted. An accept that
//! asks for no more than its count has a request for each connection instead, some at a time.
//!
//! Invariants
//! - A multishot accept is with the kernel only while the table of direct descriptors has more
//!   room than the accept queue can hold: when the table is full the kernel closes what it has
//!   accepted, and the peer's connection is lost. With less room, connections are accepted one
//!   by one.
//! - At most `ACCEPT_AHEAD_MAX` connections, and what one answer run brings, wait for credit; none
//!   where the accepts say `exactly`.

use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::squeue::Flags;
use io_uring::types::DestinationSlot;
use io_uring::{cqueue, opcode, types};

use super::request::UringRequest;
use super::{Tag, Uring, on_target};
use crate::error::OpError;
use crate::limits;
use crate::options::AcceptAs;
use crate::slot::{Armed, Handed, NewConnection, SlotPhase};
use crate::state::State;

impl Uring {
    /// Gives what is held to the accepts that wait, and asks for more if they still do.
    pub(super) fn arm_accept(&mut self, state: &mut State, slot: u32) {
        if !state.slot(slot).is_live() {
            return;
        }
        self.serve_held(state, slot);
        let Some(asked) = state.accept_asked(slot) else { return };
        let direct = asked.kind == AcceptAs::Lwsocket && self.uses_direct(state);
        let free = self.direct_max.saturating_sub(self.direct_open + self.direct_asked);
        let Some(listener) = state.slot(slot).listener() else { return };
        let roomy = !direct || free > listener.backlog.saturating_add(64);
        let most = match (asked.exactly, roomy) {
            (true, _) => asked.count.min(limits::ACCEPTS_AT_ONCE),
            (false, _) => 1,
        };
        let wanted = match listener.armed {
            Armed::Multi { direct: armed } if armed == direct && !asked.exactly => return,
            Armed::Singly { direct: armed } if armed == direct => {
                most.saturating_sub(listener.accepts)
            }
            Armed::Not => most,
            _ => return self.disarm_accept(state, slot),
        };
        if wanted == 0 || listener.stopping || listener.exhausted {
            return;
        }
        if direct && free == 0 {
            // Those that are with the kernel go on when they are answered.
            if listener.accepts == 0 {
                state.note_exhausted(slot);
            }
            return;
        }
        if roomy && !asked.exactly {
            listener.armed = Armed::Multi { direct };
            return self.ask_accept(state, slot, direct);
        }
        listener.armed = Armed::Singly { direct };
        for _ in 0..if direct { wanted.min(free) } else { wanted } {
            self.direct_asked += u32::from(direct);
            self.ask_accept(state, slot, direct);
        }
    }

    /// Asks for one connection, or for every one that comes.
    fn ask_accept(&mut self, state: &mut State, slot: u32, direct: bool) {
        let target = state.slot(slot).target;
        let Some(listener) = state.slot(slot).listener() else { return };
        let entry = if matches!(listener.armed, Armed::Multi { .. }) {
            on_target!(target, fd => {
                let accept = opcode::AcceptMulti::new(fd).allocate_file_index(direct);
                accept.flags(cloexec(direct)).build()
            })
        } else {
            let (nowhere, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
            on_target!(target, fd => {
                opcode::Accept::new(fd, nowhere, no_len)
                    .file_index(direct.then(DestinationSlot::auto_target))
                    .flags(cloexec(direct))
                    .build()
            })
        };
        let Some(entry) = entry else { return };
        listener.accepts += 1;
        self.ask(state, slot, entry.user_data(Tag::Accept.on(slot)));
    }

    fn disarm_accept(&mut self, state: &mut State, slot: u32) {
        let Some(listener) = state.slot(slot).listener() else { return };
        if listener.accepts == 0 || listener.stopping {
            return;
        }
        listener.stopping = true;
        let them = types::CancelBuilder::user_data(Tag::Accept.on(slot)).all();
        let cancel = opcode::AsyncCancel2::new(them)
            .build()
            .flags(Flags::SKIP_SUCCESS)
            .user_data(Tag::Ignore.on(0));
        self.push(state, cancel);
    }

    /// Gives connections that were accepted ahead to the accepts that wait now.
    fn serve_held(&mut self, state: &mut State, slot: u32) {
        while let Some((arrived, kind)) = state.next_held(slot) {
            match (arrived, kind) {
                (NewConnection::Direct(direct), AcceptAs::Fd) => self.convert(state, slot, direct),
                (arrived, _) => self.hand_over(state, slot, arrived),
            }
        }
    }

    fn hand_over(&mut self, state: &mut State, listener: u32, arrived: NewConnection) {
        let direct = match &arrived {
            NewConnection::Direct(direct) => Some(*direct),
            NewConnection::Fd(..) | NewConnection::Stack(..) => None,
        };
        // The multishot request goes on while the accepts behind it ask for descriptors.
        if let Some(direct) = direct
            && state.accept_wanted(listener) == Some(AcceptAs::Fd)
        {
            return self.convert(state, listener, direct);
        }
        match state.on_accepted(listener, arrived) {
            Handed::To(slot) if state.wants_data(slot) => self.arm_receive(state, slot),
            Handed::To(_) | Handed::Gone | Handed::Held => {}
            Handed::Refused => {
                if let Some(direct) = direct {
                    self.close_direct(state, direct);
                }
            }
        }
    }

    /// A direct descriptor becomes a file descriptor, for an accept that asks for those or for a
    /// sibling channel.
    fn convert(&mut self, state: &mut State, listener: u32, direct: u32) {
        let what = UringRequest::Convert { direct };
        let install = opcode::FixedFdInstall::new(types::Fixed(direct), 0).build();
        if !self.ask_request(state, listener, what, |_| Some(install)) {
            self.on_converted(state, listener, direct, -libc::ENOMEM);
        }
    }

    pub(super) fn on_converted(
        &mut self,
        state: &mut State,
        listener: u32,
        direct: u32,
        result: i32,
    ) {
        self.close_direct(state, direct);
        if result < 0 {
            state.counters.connections_dropped += 1;
        } else {
            // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(result) };
            let arrived = NewConnection::Fd(fd, Vec::new());
            match state.slot(listener).phase {
                SlotPhase::Closing => state.pass_arrived(listener, arrived),
                SlotPhase::Leaving => state.hold(listener, arrived),
                _ => self.hand_over(state, listener, arrived),
            }
        }
    }

    pub(super) fn on_accept(&mut self, state: &mut State, slot: u32, result: i32, flags: u32) {
        let more = cqueue::more(flags);
        let mut arrived = None;
        if let Some(listener) = state.slot(slot).listener() {
            let armed = listener.armed;
            if result >= 0 {
                arrived = Some(match armed {
                    Armed::Multi { direct: true } | Armed::Singly { direct: true } => {
                        NewConnection::Direct(result as u32)
                    }
                    // SAFETY: the kernel has just made this descriptor for us; it has no
                    // other owner.
                    _ => NewConnection::Fd(unsafe { OwnedFd::from_raw_fd(result) }, Vec::new()),
                });
            }
            if armed == (Armed::Singly { direct: true }) {
                self.direct_asked = self.direct_asked.saturating_sub(1);
            }
            if !more {
                listener.accepts = listener.accepts.saturating_sub(1);
                if listener.accepts == 0 {
                    listener.armed = Armed::Not;
                    listener.stopping = false;
                }
            }
        }
        if let Some(NewConnection::Direct(_)) = arrived {
            self.direct_open += 1;
        }
        if !state.slot(slot).is_live() {
            if let Some(arrived) = arrived {
                state.hold(slot, arrived);
            }
            if more && state.slot(slot).phase == SlotPhase::Closing {
                self.finish_closing(state, slot);
            }
            if !more {
                self.count_down(state, slot);
            }
            return;
        }
        if let Some(arrived) = arrived {
            self.hand_over(state, slot, arrived);
        }
        if more {
            let crowded = state.held_count(slot) >= limits::ACCEPT_AHEAD_MAX;
            if crowded {
                self.disarm_accept(state, slot);
            }
            return;
        }
        self.count_down(state, slot);
        if result < 0 {
            self.on_accept_error(state, slot, -result);
        }
        self.arm_accept(state, slot);
    }

    fn on_accept_error(&mut self, state: &mut State, slot: u32, errno: i32) {
        match errno {
            // Stopped by us, or a connection that died in the queue.
            libc::ECANCELED | libc::ECONNABORTED | libc::EINTR | libc::EAGAIN | libc::EPROTO => {}
            _ => {
                // Of many requests that fail alike, the program hears once.
                let is_told = state
                    .slot(slot)
                    .listener()
                    .is_none_or(|it| it.exhausted || it.credits.is_empty());
                if !is_told {
                    state.on_accept_failed(slot, OpError::from_raw_os_error(errno));
                }
            }
        }
    }

    /// A descriptor became free: listeners that waited for one go on.
    pub(super) fn accept_again(&mut self, state: &mut State) {
        if state.exhausted_listeners == 0 {
            return;
        }
        for slot in state.take_exhausted_listeners() {
            self.arm_accept(state, slot);
        }
    }

    /// A listener that leaves gives away what it holds; `true` when nothing is left of it here.
    pub(super) fn empty_listener(&mut self, state: &mut State, slot: u32) -> bool {
        let has_sibling = state.has_sibling(slot);
        while let Some(arrived) = state.slot(slot).listener().and_then(|it| it.held.pop_front()) {
            match arrived {
                arrived @ (NewConnection::Fd(..) | NewConnection::Stack(..)) => {
                    state.pass_arrived(slot, arrived)
                }
                NewConnection::Direct(direct) if has_sibling => self.convert(state, slot, direct),
                NewConnection::Direct(direct) => {
                    state.counters.connections_dropped += 1;
                    self.close_direct(state, direct);
                }
            }
        }
        if state.slot(slot).kernel_requests > 0 {
            return false;
        }
        state.pass_listener(slot);
        true
    }
}

/// Direct descriptors know no close-on-exec: they are not inherited at all.
const fn cloexec(direct: bool) -> i32 {
    if direct { 0 } else { libc::SOCK_CLOEXEC }
}
