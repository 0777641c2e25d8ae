//! Listeners on the stack: credit goes down, connections come up.
//!
//! Read first: `state/accepting.rs`; `megapipe_service::ConnectionManager`.
//!
//! Invariant: `outstanding` is the credit that the server holds for the listener: each connection
//! that comes uses up one. It is never more than the program asked for, nor than
//! [`CREDIT_MAX`].

use std::net::SocketAddr;

use megapipe_service::policy::PolicyRefusal;
use megapipe_service::steering::{BindingError, Takes};
use megapipe_service::{AcceptorId, Offer, PortError, Sharing};
use megapipe_stack::{ConnId, ListenError, ListenerId};

use super::migration::HAS_MOVED;
use super::{Local, NO_OWNER, NO_SLOT, SlotOwner, StackHandle};
use crate::cpu_mask::CpuMask;
use crate::error::RegisterError;
use crate::kernel::sys;
use crate::options::{AcceptAs, ListenOptions};
use crate::slot::{Extra, Handed, NewConnection, RareStreamState, Target};
use crate::state::State;

/// Credit that the server holds for a listener at most.
pub(super) const CREDIT_MAX: u32 = 1024;

/// Ports in use by other programs before a listener without a port fails.
const HOST_PORTS_TRIED: u32 = 16;

/// A listener of the stack.
#[derive(Debug, Clone)]
pub(super) struct Listening {
    pub(super) owner: SlotOwner,
    /// Credit that the server holds.
    outstanding: u32,
    /// Where it listens.
    pub(super) address: Option<SocketAddr>,
    /// How.
    pub(super) options: ListenOptions,
}

impl Listening {
    fn none() -> Self {
        let options = ListenOptions::default();
        Self { owner: NO_OWNER, outstanding: 0, address: None, options }
    }
}

/// How a listener shares its address with other shards.
pub(super) fn sharing(options: &ListenOptions) -> Sharing {
    Sharing {
        takes: options.cpu_mask.map_or(Takes::Rest, |mask| taken(&mask)),
        is_exclusive: !options.share,
        reuse: options.reuse,
        fast_open: options.fast_open,
    }
}

/// Whose connections a mask takes.
fn taken(mask: &CpuMask) -> Takes {
    Takes::Cores(mask.iter().filter_map(|core| u32::try_from(core).ok()).collect())
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// Listens on behalf of a slot; port 0 takes any port that is free.
    pub(crate) fn listen(
        &mut self,
        state: &mut State,
        slot: u32,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(), PortError<ListenError>> {
        self.now = self.clock.now();
        let now = self.now;
        let (listener, address) = match address.port() {
            0 => self.listen_anywhere(address, options)?,
            _ => (self.server.listen(now, address, options.backlog, sharing(options))?, address),
        };
        self.own_listener(state, slot, (listener, address), options);
        Ok(())
    }

    /// A slot has a listener of the stack's from now on.
    pub(super) fn own_listener(
        &mut self,
        state: &mut State,
        slot: u32,
        (listener, address): (ListenerId, SocketAddr),
        options: &ListenOptions,
    ) {
        let index = listener.index as usize;
        if self.listeners.len() <= index {
            self.listeners.resize(index + 1, Listening::none());
        }
        let owner = SlotOwner { slot, generation: listener.generation, ..NO_OWNER };
        let (address, options) = (Some(address), options.clone());
        self.listeners[index] = Listening { owner, outstanding: 0, address, options };
        state.slot(slot).target = Target::Stack(listener.index);
    }

    /// Listens on a free port, beginning somewhere in the ephemeral range.
    fn listen_anywhere(
        &mut self,
        mut address: SocketAddr,
        options: &ListenOptions,
    ) -> Result<(ListenerId, SocketAddr), PortError<ListenError>> {
        let now = self.now;
        let (first, last) = megapipe_service::limits::EPHEMERAL_PORTS;
        let count = u32::from(last - first) + 1;
        // Not to be guessed is what a connection's port has to be, not a listener's.
        let start = (now.as_micros() % u64::from(count)) as u32;
        for step in 0..count {
            address.set_port(first + ((start + step) % count) as u16);
            if self.server.is_listening(address) {
                continue;
            }
            match self.server.listen(now, address, options.backlog, sharing(options)) {
                Err(PortError::Stack(ListenError::InUse)) => {}
                // Another program's port, perhaps: a few more are tried.
                Err(PortError::Host(_)) if step < HOST_PORTS_TRIED => {}
                // The daemon's policy reserves the port for others, perhaps.
                Err(PortError::Policy(PolicyRefusal::Port(_))) if step < HOST_PORTS_TRIED => {}
                listening => return listening.map(|listener| (listener, address)),
            }
        }
        Err(PortError::Stack(ListenError::InUse))
    }

    /// Gives a listener other cores.
    ///
    /// # Errors
    /// As `set_cpu_mask`.
    pub(crate) fn set_mask(
        &mut self,
        state: &State,
        slot: u32,
        mask: CpuMask,
    ) -> Result<(), RegisterError> {
        let listener = self.listener(state, slot).ok_or(RegisterError::MaskNotPossible)?;
        self.share(listener, mask)?;
        self.listeners[listener.index as usize].options.cpu_mask = Some(mask);
        Ok(())
    }

    pub(super) fn share(
        &mut self,
        listener: ListenerId,
        mask: CpuMask,
    ) -> Result<(), RegisterError> {
        if mask.is_empty() {
            return Err(RegisterError::MaskNotPossible);
        }
        let sharing = Sharing { takes: taken(&mask), ..Sharing::default() };
        self.server.share(listener, sharing).map_err(|error| match error {
            PortError::Shared(BindingError::Overlap { core }) => {
                RegisterError::MaskOverlaps { core: core as usize }
            }
            _ => RegisterError::MaskNotPossible,
        })
    }

    /// Sets how many connections of a listener may begin with a SYN's data and not be established
    /// yet.
    pub(super) fn set_fast_open(&mut self, listener: ListenerId, pending_max: u32) {
        // A listener that is over has nothing to be set.
        let _ = self.server.set_fast_open(listener, pending_max);
        if let Some(listening) = self.listeners.get_mut(listener.index as usize) {
            listening.options.fast_open = pending_max;
        }
    }

    /// The cores whose connections a listener takes.
    pub(crate) fn mask(&self, state: &State, slot: u32) -> Option<CpuMask> {
        let listener = self.listener(state, slot)?;
        self.listeners[listener.index as usize].options.cpu_mask
    }

    /// Gives what is held to the accepts that wait, and tells the server of the rest.
    pub(super) fn accept(&mut self, state: &mut State, slot: u32) {
        while !self.is_held_back(state, slot)
            && let Some((arrived, _)) = state.next_held(slot)
        {
            self.hand_over(state, slot, arrived);
        }
        let Some(listener) = self.listener(state, slot) else { return };
        let taken = self.lwsockets_open.saturating_add(self.credit_out);
        let room = state.config.max_lwsockets.saturating_sub(taken);
        let listening = &mut self.listeners[listener.index as usize];
        let wanted = state.accept_credit(slot).min(CREDIT_MAX);
        let more = wanted.saturating_sub(listening.outstanding).min(room);
        // Credit is published in batches: an unlimited accept is renewed when half of it is used.
        if more == 0 || (more < wanted && listening.outstanding > CREDIT_MAX / 2) {
            return;
        }
        listening.outstanding += more;
        self.credit_out += more;
        let asked = self.server.accept(listener, AcceptorId(slot.into()), more);
        debug_assert!(asked.is_ok(), "the listener is there, with one acceptor");
        self.server.set_first_read(AcceptorId(slot.into()), state.accept_reads(slot));
    }

    /// Whether the table of lwsockets is full, so that connections are held until it has room.
    pub(super) fn is_held_back(&mut self, state: &mut State, slot: u32) -> bool {
        let is_full = self.lwsockets_open >= state.config.max_lwsockets
            && state.accept_wanted(slot) != Some(AcceptAs::Fd);
        self.holds_back |= is_full;
        is_full
    }

    /// The table of lwsockets has room again, perhaps: listeners without credit get some.
    pub(super) fn accept_with_room(&mut self, state: &mut State) {
        let taken = self.lwsockets_open.saturating_add(self.credit_out);
        // One below the ceiling: it was at the ceiling until now.
        let is_below = taken.saturating_add(1) == state.config.max_lwsockets;
        if !is_below && !std::mem::take(&mut self.holds_back) {
            return;
        }
        for index in 0..self.listeners.len() {
            let owner = self.listeners[index].owner.slot;
            if owner != NO_SLOT {
                self.accept(state, owner);
            }
        }
        self.accept_all_on_stack(state);
    }

    /// A connection is established, and offered to one of our listeners.
    pub(super) fn on_incoming(
        &mut self,
        state: &mut State,
        listener: ListenerId,
        conn: ConnId,
        offer: Option<Offer>,
    ) {
        let slot = offer.map_or(NO_SLOT, |offer| offer.acceptor.0 as u32);
        let listening = self.listeners.get_mut(listener.index as usize);
        match listening {
            Some(listening)
                if listening.owner.slot == slot
                    && listening.owner.generation == listener.generation =>
            {
                // With several shards more may come than there was credit for.
                let used = listening.outstanding.min(1);
                listening.outstanding -= used;
                self.credit_out = self.credit_out.saturating_sub(used);
                let has_plenty = listening.outstanding > CREDIT_MAX / 2;
                let arrived = NewConnection::Stack(conn.index, conn.generation);
                match used {
                    0 if self.is_held_back(state, slot) => state.hold(slot, arrived),
                    _ => self.hand_over(state, slot, arrived),
                }
                // Credit is published in batches: for most connections nothing is to be done.
                if !has_plenty || state.accept_wanted(slot) == Some(AcceptAs::Fd) {
                    self.accept(state, slot);
                }
            }
            _ => {
                if !self.on_incoming_for_registered(state, listener, conn, offer) {
                    // It was on its way here when its listener left.
                    self.server.hand_over_offered(self.now, conn);
                }
            }
        }
    }

    pub(super) fn hand_over(&mut self, state: &mut State, listener: u32, arrived: NewConnection) {
        let NewConnection::Stack(index, generation) = arrived else { return };
        let conn = ConnId { index, generation };
        if state.accept_wanted(listener) == Some(AcceptAs::Fd) {
            return self.hand_over_descriptor(state, listener, conn);
        }
        if !self.reserve_owner(conn) {
            return self.server.abort(self.now, conn);
        }
        let mark = self
            .listener(state, listener)
            .map_or(0, |listener| self.listeners[listener.index as usize].options.notsent_lowat);
        let rare = RareStreamState { notsent_lowat: mark, ..RareStreamState::default() };
        let Ok(extra) = (mark > 0).then(|| sys::try_box(Extra::Stream(rare))).transpose() else {
            return self.server.abort(self.now, conn);
        };
        match state.on_accepted(listener, arrived) {
            Handed::To(slot) => {
                self.lwsockets_open += 1;
                self.own(conn, slot);
                if extra.is_some() {
                    state.slot(slot).extra = extra;
                    self.heed_mark(state, conn);
                }
                if state.wants_data(slot) {
                    self.receive(state, slot);
                }
            }
            Handed::Held => {}
            Handed::Gone | Handed::Refused => self.server.abort(self.now, conn),
        }
    }

    /// The connection moves to the kernel at once, and is wanted as a descriptor.
    fn hand_over_descriptor(&mut self, state: &mut State, listener: u32, conn: ConnId) {
        match self.accepted_to_kernel(state, conn) {
            Ok(fd) => {
                let handed = state.on_accepted(listener, NewConnection::Fd(fd, Vec::new()));
                debug_assert!(matches!(handed, Handed::Gone), "a descriptor was wanted");
            }
            Err(error) => state.on_accept_lost(listener, error),
        }
    }

    /// The listener leaves: what it holds, and what the stack has for it, goes to the shards that
    /// go on listening at its address. Where none does, it is reset.
    pub(super) fn leave_listener(&mut self, state: &mut State, slot: u32) {
        let held = state.slot(slot).listener().map(|it| std::mem::take(&mut it.held));
        if let Some(listener) = self.listener(state, slot) {
            self.server.unlisten(self.now, listener);
            let left = self.listeners[listener.index as usize].outstanding;
            self.credit_out = self.credit_out.saturating_sub(left);
            self.listeners[listener.index as usize] = Listening::none();
            state.slot(slot).target = Target::None;
            self.settle_events(state);
        }
        for arrived in held.into_iter().flatten() {
            if let NewConnection::Stack(index, generation) = arrived {
                self.server.hand_over_offered(self.now, ConnId { index, generation });
            }
        }
    }

    /// A connection that was accepted, and that the program has not used, goes to whatever listens
    /// at its address, with the bytes that came for it, first those that the program has `seen`.
    /// The slot is empty then; it stays as it was if the connection is over.
    pub(crate) fn hand_back(&mut self, state: &mut State, slot: u32, seen: &[u8]) {
        let Some(conn) = self.conn(state, slot) else { return };
        self.now = self.clock.now();
        if !self.server.take_out(self.now, conn) {
            return;
        }
        self.settle_events(state);
        self.server.forget_moved(conn);
        self.disown(conn);
        self.lwsockets_open = self.lwsockets_open.saturating_sub(1);
        let handle = state.handle(slot);
        let mut unread = state.take_unseen_reads(handle);
        unread.append(&mut state.take_unread(slot));
        let unread = unread.iter().flat_map(|bytes| bytes.iter());
        let bytes: Vec<u8> = seen.iter().chain(unread).copied().collect();
        state.slot(slot).target = Target::None;
        state.slot(slot).end = HAS_MOVED;
        self.server.hand_over_taken(self.now, conn, &bytes);
    }

    /// Takes the events that lie on their way between two threads, where there are two: what a call
    /// has changed since then is seen after them.
    pub(super) fn settle_events(&mut self, state: &mut State) {
        while self.server.has_events_in_transit()
            && let Some(event) = self.server.next_event()
        {
            self.on_server_event(state, event);
        }
    }
}
