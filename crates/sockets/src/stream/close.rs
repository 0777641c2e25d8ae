//! The end of a stream: shutdown(2), close(2) and what a linger time makes of it.
//!
//! Read first: shutdown(2), close(2), socket(7) on SO_LINGER; RFC 9293 §3.6, RFC 2525 §2.17.
//!
//! Invariant: a stream that `lingers` has no descriptor and is shut in both directions.

use std::time::Duration;

use megapipe::{Disconnect, Handle};

use super::{Connecting, Shutdown, StreamSocket};
use crate::effects::{Effects, Released};
use crate::error::Error;
use crate::flags::Events;
use crate::readiness::{ConnectProgress, Shut};
use crate::transport::{CLOSED, StreamTransport};

impl StreamSocket {
    /// shutdown(2).
    pub(crate) fn shutdown<T: StreamTransport>(
        &mut self,
        how: Shutdown,
        transport: &mut T,
    ) -> Effects<()> {
        if matches!(self.progress, ConnectProgress::Connecting) {
            // An attempt to connect that is shut down is given up.
            self.disconnect(transport);
            return Effects { result: Ok(()), events: Events::WRITABLE | Events::HUP };
        }
        let shut = Shut {
            receive: self.shut.receive || how != Shutdown::Write,
            send: self.shut.send || how != Shutdown::Read,
        };
        let is_closed = self.is_over(transport);
        if self.connecting == Connecting::Begun && !is_closed {
            // The attempt is reported (`inet_shutdown`): the next connect(2) is EISCONN.
            self.connecting = Connecting::Done;
        }
        // A direction that the channel could not end stays open, so that the call can be repeated.
        if !is_closed && let Err(error) = self.end_directions(shut, transport) {
            return Effects::quiet(Err(error));
        }
        self.shut = shut;
        Effects {
            result: if is_closed { Err(Error::NotConnected) } else { Ok(()) },
            events: Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::HUP,
        }
    }

    /// Whether there is no connection, or both ends have closed it.
    pub(super) fn is_over<T: StreamTransport>(&self, transport: &mut T) -> bool {
        let has_peer =
            |transport: &mut T| matches!(transport.peer_address(self.handle), Ok(Some(_)));
        matches!(self.progress, ConnectProgress::Closed)
            || (self.shut == Shut::BOTH && !has_peer(transport))
    }

    /// Ends below what `shut` adds to the directions that are shut. The kernel has to end both
    /// directions in one call, because what still arrives then is answered with a reset; of the
    /// receiving one alone it need not know.
    fn end_directions<T: StreamTransport>(
        &self,
        shut: Shut,
        transport: &mut T,
    ) -> Result<(), Error> {
        let before = self.shut;
        match shut {
            Shut::BOTH if before == Shut::BOTH => Ok(()),
            Shut::BOTH if !transport.is_local() => {
                transport.disconnect(self.handle, Disconnect::Both)
            }
            Shut { send: true, .. } if !before.send => {
                transport.disconnect(self.handle, Disconnect::Write)
            }
            _ => Ok(()),
        }
    }

    /// How long the close of the last descriptor waits for the peer to have everything; `None`: it
    /// does not. (On the kernel the socket's last close is the kernel's.)
    pub(crate) fn linger_time<T: StreamTransport>(&self, transport: &T) -> Option<Duration> {
        let time = self.options.linger.filter(|time| !time.is_zero())?;
        let waits = transport.is_local()
            && matches!(self.progress, ConnectProgress::Connected)
            && self.inbox.is_empty();
        waits.then_some(time)
    }

    /// Ends the stream of which the last descriptor was closed, and asks for a completion when the
    /// peer has everything. Returns whether one follows.
    pub(crate) fn begin_to_linger<T: StreamTransport>(&mut self, transport: &mut T) -> bool {
        if !self.shut.send && transport.disconnect(self.handle, Disconnect::Write).is_err() {
            return false;
        }
        // What comes now has no reader, and is answered by a reset.
        self.shut = Shut::BOTH;
        self.lingers = true;
        // It may be delivered already, which a completion reports, too.
        transport.await_delivery(self.handle)
    }

    /// How long a close goes on to wait for the peer; `None`: no longer.
    pub(crate) fn is_lingering(&self) -> Option<Duration> {
        let waits = self.lingers && matches!(self.progress, ConnectProgress::Connected);
        self.options.linger.filter(|_| waits)
    }

    /// The peer has everything.
    #[cold]
    pub(crate) fn on_delivered(&mut self) -> Events {
        self.lingers = false;
        Events::HUP
    }

    /// The next close resets the connection.
    pub(crate) const fn abort(&mut self) {
        self.options.linger = Some(Duration::ZERO);
    }

    /// The last descriptor is gone: what was written still goes out, then the FIN. Bytes that the
    /// program never took mean a RST (RFC 2525 §2.17), as does a linger time of zero.
    pub(crate) fn close<T: StreamTransport>(self, transport: &mut T) -> Released {
        let released = Released { bound: self.bound, is_sending: false };
        if self.handle == Handle::NONE {
            return released;
        }
        let resets = !self.inbox.is_empty() || self.options.resets_on_close();
        drop(self.inbox);
        if resets && !matches!(self.progress, ConnectProgress::Closed) {
            // What has ended meanwhile needs no reset.
            let _ = transport.disconnect(self.handle, Disconnect::Reset);
        } else if close_behind_writes(self.handle, transport) {
            return Released { is_sending: true, ..released };
        }
        transport.unregister(self.handle);
        released
    }

    /// Gives a connection that no program has accepted to another listener at its address. One
    /// that has ended, or has urgent data, is reset.
    pub(crate) fn hand_back<T: StreamTransport>(mut self, transport: &mut T) -> Released {
        let is_whole = self.error.is_none() && self.mark.is_none();
        let mut seen = Vec::with_capacity(self.inbox.unread());
        self.inbox.take(usize::MAX, &mut |part| seen.extend_from_slice(part));
        if is_whole && transport.hand_back(self.handle, &seen) {
            return Released { bound: self.bound, is_sending: false };
        }
        self.reset(transport)
    }

    /// Resets a connection that no program has accepted.
    pub(crate) fn reset<T: StreamTransport>(self, transport: &mut T) -> Released {
        let _ = transport.disconnect(self.handle, Disconnect::Reset);
        self.close(transport)
    }
}

/// What the channel has not sent yet would be cancelled with the handle: the handle stays until all
/// is out. Returns whether there is such.
fn close_behind_writes<T: StreamTransport>(handle: Handle, transport: &mut T) -> bool {
    transport.unsent_bytes(handle).is_ok_and(|bytes| bytes > 0)
        && transport.set_cookie(handle, CLOSED)
        && transport.disconnect(handle, Disconnect::Both).is_ok()
}
