//! Connections of a daemon that other processes own too.
//!
//! Read first: `sharing.rs` of the channel; `megapipe_service`'s `lanes/share.rs`.
//!
//! Invariant: of a connection whose read is withheld ([`Receiving::Withheld`]) nothing is asked of
//! the service, until [`Local::receive`] or the program's next read.

use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe_service::{AdoptedConn, LaneSet, MoveRefusal, SharedConn};
use megapipe_stack::ConnId;

use super::stream::not_connected_because;
use super::{Local, StackHandle};
use crate::buffer::ReadBuf;
use crate::channel::Channel;
use crate::error::{Limit, Misuse, OpError, ShareError};
use crate::handle::Handle;
use crate::slot::{Kind, Receiving, SlotPhase, StreamEnd, Target};
use crate::state::State;

impl<T> Channel<T> {
    pub(crate) fn share_on_service(
        &mut self,
        index: u32,
        keeps_reading: bool,
    ) -> Result<OwnedFd, ShareError> {
        let Self { driver, state, .. } = self;
        let kind = state.peek(index).kind;
        if kind == Kind::Listener {
            return self.share_listener_on_service(index);
        }
        if kind != Kind::Tcp {
            return Err(Misuse::WrongKind { call: "share", kind: kind.name() }.into());
        }
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        local.share_conn(state, index, keeps_reading)
    }

    pub(crate) fn share_all_on_service(&mut self) -> Result<OwnedFd, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let shared = local.server.polling_lanes().and_then(|lanes| lanes.share_conns(None));
        local.withholds = true;
        local.settle_events(state);
        local.withholds = shared.is_ok();
        for place in 0..local.conns.len() {
            let slot = local.conns[place].slot;
            if slot == super::NO_SLOT {
                continue;
            }
            withhold(state, slot);
            if shared.is_err() {
                // A lane may have taken it back before another one refused.
                local.resume(state, slot);
            }
        }
        shared.map_err(ShareError::Service)
    }

    pub(crate) fn names_on_service(&mut self) -> Vec<SharedConn> {
        let Some(local) = self.driver.local() else { return Vec::new() };
        let owned =
            local.conns.iter().enumerate().filter(|(_, owner)| owner.slot != super::NO_SLOT);
        let owned: Vec<ConnId> = owned
            .map(|(index, owner)| ConnId { index: index as u32, generation: owner.generation })
            .collect();
        let Ok(lanes) = local.server.lanes() else { return Vec::new() };
        owned.into_iter().filter_map(|conn| lanes.shared_name(conn)).collect()
    }

    pub(crate) fn set_withholding(&mut self, on: bool) {
        if let Some(local) = self.driver.local() {
            local.withholds = on;
        }
    }

    pub(crate) fn resume_on_service(&mut self, index: u32) {
        let Self { driver, state, .. } = self;
        if let Some(local) = driver.local() {
            local.resume(state, index);
        }
    }

    pub(crate) fn withhold_on_service(&mut self, index: u32) -> Result<(), ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let conn = local.conn(state, index).ok_or(ShareError::NotEstablished)?;
        let lanes = local.server.lanes().map_err(ShareError::Service)?;
        let withheld = lanes.give_bytes_back(conn, &[]);
        withheld.map_err(|(_, refusal)| ShareError::Service(refusal))?;
        local.settle_events(state);
        withhold(state, index);
        Ok(())
    }

    pub(crate) fn give_back_to_service(
        &mut self,
        index: u32,
        seen: &[u8],
    ) -> Result<(), ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        local.give_back(state, index, seen)
    }

    pub(crate) fn name_on_service(&mut self, index: u32) -> Option<SharedConn> {
        let Self { driver, state, .. } = self;
        let local = driver.local()?;
        let conn = local.conn(state, index)?;
        let lanes = local.server.lanes().ok()?;
        if is_connecting(state, index) && !lanes.shares_connecting() {
            return None;
        }
        lanes.shared_name(conn)
    }

    pub(crate) fn connecting_is_shared_on_service(&mut self) -> bool {
        let lanes = self.driver.local().map(|local| local.server.lanes());
        lanes.is_some_and(|lanes| lanes.is_ok_and(|lanes| lanes.shares_connecting()))
    }

    /// Adopts what a token stands for: a connection, or else a listener.
    pub(crate) fn adopt_token_on_service(
        &mut self,
        token: BorrowedFd<'_>,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        match self.adopt_on_service(cookie, |lanes| lanes.adopt_token(token)) {
            Err(ShareError::Service(refusal)) if refusal.raw_os_error() == libc::ESTALE => {
                // An older daemon has no tokens of listeners.
                let is_old = |error: &ShareError| error.raw_os_error() == libc::EOPNOTSUPP;
                let adopted = self.adopt_listener_on_service(token, cookie);
                adopted.map_err(|e| if is_old(&e) { ShareError::Service(refusal) } else { e })
            }
            adopted => adopted,
        }
    }

    pub(crate) fn adopt_on_service(
        &mut self,
        cookie: u64,
        adopt: impl FnOnce(&mut LaneSet) -> Result<AdoptedConn, MoveRefusal>,
    ) -> Result<Handle, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        if local.lwsockets_open >= state.config.max_lwsockets {
            return Err(Limit::Handles.into());
        }
        let index = state.allocate(Kind::Tcp, cookie)?;
        let adopted = local.server.polling_lanes().and_then(adopt).map_err(ShareError::Service);
        let owned = adopted.and_then(|adopted| local.own_adopted(state, index, adopted));
        if owned.is_err() {
            state.retire(index);
            state.release(index);
        }
        owned.map(|()| state.handle(index))
    }
}

/// Whether the attempt to connect goes on.
pub(crate) fn is_connecting(state: &State, slot: u32) -> bool {
    state.peek(slot).phase == SlotPhase::Starting
}

/// A read that waits is asked of the service again when it is resumed.
fn withhold(state: &mut State, slot: u32) {
    let entry = state.slot(slot);
    if entry.receiving == Receiving::Yes {
        entry.receiving = Receiving::Withheld;
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    fn share_conn(
        &mut self,
        state: &mut State,
        slot: u32,
        keeps_reading: bool,
    ) -> Result<OwnedFd, ShareError> {
        let conn = self.conn(state, slot).ok_or(ShareError::NotEstablished)?;
        if !matches!(state.peek(slot).phase, SlotPhase::Starting | SlotPhase::Open) {
            return Err(ShareError::NotEstablished);
        }
        let token = self.server.polling_lanes().and_then(|lanes| lanes.share_conns(Some(conn)));
        let token = token.map_err(ShareError::Service)?;
        self.settle_events(state);
        if !keeps_reading {
            withhold(state, slot);
        } else if self.conn(state, slot) == Some(conn) {
            let given = self.give_back(state, slot, &[]);
            withhold(state, slot);
            if state.wants_data(slot) {
                self.receive(state, slot);
                self.ask(state);
            }
            given?;
        }
        Ok(token)
    }

    /// Asks for the next bytes again where that was withheld.
    fn resume(&mut self, state: &mut State, slot: u32) {
        if state.peek(slot).receiving == Receiving::Withheld {
            self.receive(state, slot);
            self.ask(state);
        }
    }

    fn give_back(&mut self, state: &mut State, slot: u32, seen: &[u8]) -> Result<(), ShareError> {
        let conn = self.conn(state, slot).ok_or(ShareError::NotEstablished)?;
        let unread = state.take_unread(slot);
        // The end of the peer's stream comes again behind what is given back.
        if state.peek(slot).end == StreamEnd::Eof {
            state.slot(slot).end = StreamEnd::Not;
        }
        if seen.is_empty() && unread.is_empty() {
            return Ok(());
        }
        let bytes = seen.iter().chain(unread.iter().flat_map(|bytes| bytes.iter()));
        let bytes: Vec<u8> = bytes.copied().collect();
        let lanes = self.server.lanes().map_err(|refusal| (bytes.len(), refusal));
        let (left, refusal) = match lanes.and_then(|it| it.give_bytes_back(conn, &bytes)) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        match bytes.get(seen.len()..left) {
            // What was taken comes from the service again, behind these.
            Some(kept) if !kept.is_empty() => {
                state.on_received(slot, ReadBuf::from_vec(kept.to_vec()));
            }
            Some(_) => {}
            // The caller has bytes which the service has as well.
            None => {
                self.abort(state, slot);
                state.on_receive_end(slot, StreamEnd::Failed(OpError::Cancelled));
            }
        }
        Err(ShareError::Service(refusal))
    }

    /// A slot has an adopted connection from now on.
    ///
    /// # Errors
    /// [`ShareError::Known`], [`ShareError::NotConnected`], [`Limit::Memory`].
    fn own_adopted(
        &mut self,
        state: &mut State,
        slot: u32,
        adopted: AdoptedConn,
    ) -> Result<(), ShareError> {
        let (conn, phase) = match adopted {
            AdoptedConn::Established(conn) => (conn, SlotPhase::Open),
            AdoptedConn::Connecting(conn) => (conn, SlotPhase::Starting),
            AdoptedConn::Failed(reason) => {
                return Err(ShareError::NotConnected(not_connected_because(reason)));
            }
        };
        if let Some(known) = self.slot_of(conn) {
            return Err(ShareError::Known { handle: state.handle(known) });
        }
        if !self.reserve_owner(conn) {
            self.server.close(self.now, conn);
            return Err(Limit::Memory.into());
        }
        self.lwsockets_open += 1;
        self.own(conn, slot);
        let entry = state.slot(slot);
        entry.target = Target::Stack(conn.index);
        entry.phase = phase;
        self.ask(state);
        Ok(())
    }
}
