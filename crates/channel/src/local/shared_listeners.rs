//! Listeners of a daemon that other processes own too.
//!
//! Read first: `sharing.rs` of the channel; `megapipe_service`'s `lanes/share.rs`.
//!
//! An adopted listener is one of the channel's from then on: it takes part in the daemon's
//! balancing as those do that the channel has begun, and when a daemon is back after its end, the
//! channel listens there with its own rights.

use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe_service::{AdoptedListener, ListenerOptions};

use super::{Local, NO_SLOT, StackHandle};
use crate::channel::Channel;
use crate::error::{Limit, Misuse, ShareError};
use crate::handle::Handle;
use crate::kernel::sys;
use crate::options::ListenOptions;
use crate::slot::{Extra, Kind, Listener};
use crate::state::State;

impl<T> Channel<T> {
    pub(crate) fn share_listener_on_service(&mut self, index: u32) -> Result<OwnedFd, ShareError> {
        let Self { driver, state, .. } = self;
        let kernels = Misuse::WrongKind { call: "share", kind: "listener of the kernel's" };
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        let listener = local.listener(state, index).ok_or(kernels)?;
        let lanes = local.server.polling_lanes().map_err(ShareError::Service)?;
        lanes.share_listener(listener).map_err(ShareError::Service)
    }

    pub(crate) fn adopt_listener_on_service(
        &mut self,
        token: BorrowedFd<'_>,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        let Self { driver, state, .. } = self;
        let local = driver.local().ok_or(ShareError::NotEstablished)?;
        if !local.reserve_listener() {
            return Err(Limit::Memory.into());
        }
        let lanes = local.server.polling_lanes().map_err(ShareError::Service)?;
        let adopted = lanes.adopt_token_listener(token).map_err(ShareError::Service)?;
        if adopted.is_known {
            let listening = local.listeners.get(adopted.listener.index as usize);
            let slot = listening.map(|listening| listening.owner.slot);
            let slot = slot.filter(|slot| *slot != NO_SLOT).ok_or(ShareError::NotEstablished)?;
            return Err(ShareError::Known { handle: state.handle(slot) });
        }
        let listener = adopted.listener;
        let slot = local.adopt_listener(state, adopted, cookie);
        if slot.is_err() {
            local.server.unlisten(local.now, listener);
        }
        slot.map(|slot| state.handle(slot))
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// A slot has a listener that was adopted.
    fn adopt_listener(
        &mut self,
        state: &mut State,
        adopted: AdoptedListener,
        cookie: u64,
    ) -> Result<u32, ShareError> {
        let AdoptedListener { listener, options, .. } = adopted;
        let ListenerOptions { address, backlog, sharing } = options;
        let extra = Extra::Listener(Listener::new(Kind::Tcp, backlog, None));
        let extra = sys::try_box(extra)?;
        let slot = state.allocate(Kind::Listener, cookie)?;
        state.slot(slot).extra = Some(extra);
        let options = ListenOptions {
            backlog,
            share: !sharing.is_exclusive,
            only_v6: sharing.reuse.v6_only,
            reuse: sharing.reuse,
            fast_open: sharing.fast_open,
            ..ListenOptions::default()
        };
        self.own_listener(state, slot, (listener, address), &options);
        Ok(slot)
    }
}
