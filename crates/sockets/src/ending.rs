//! How connections end: shutdown(2), close(2) and what a linger time makes of it.
//!
//! Read first: shutdown(2), close(2), socket(7) on SO_LINGER; RFC 9293 §3.6, RFC 2525 §2.17.
//!
//! Invariant: a stream that `lingers` has no descriptor and is shut in both directions.

use std::time::Duration;

use megapipe::{Disconnect, Handle};

use crate::error::Error;
use crate::flags::Events;
use crate::readiness::{Progress, Shut};
use crate::sockets::{CLOSED, Kind, Sockets};
use crate::stream::{Shutdown, Stream};

impl Sockets {
    pub(crate) fn shutdown_stream(&mut self, object: u32, how: Shutdown) -> Result<(), Error> {
        let is_local = self.is_local;
        let Some((stream, channel)) = self.stream_mut(object) else {
            return Err(Error::NotConnected);
        };
        let receive = how != Shutdown::Write;
        let send = how != Shutdown::Read;
        match stream.progress {
            Progress::Connecting => {
                // An attempt to connect that is shut down is given up.
                self.disconnect(object);
                self.notify(object, Events::WRITABLE | Events::HUP);
                return Ok(());
            }
            Progress::Closed => {
                stream.shut.receive |= receive;
                stream.shut.send |= send;
            }
            Progress::Connected => {
                let before = stream.shut;
                stream.shut.receive |= receive;
                stream.shut.send |= send;
                // Of both directions the kernel hears together, because what still arrives then is
                // answered with a reset; of the receiving one alone it need not.
                match stream.shut {
                    Shut::BOTH if before == Shut::BOTH => {}
                    Shut::BOTH if !is_local => {
                        channel.disconnect(stream.handle, Disconnect::Both)?;
                    }
                    Shut { send: true, .. } if !before.send => {
                        channel.disconnect(stream.handle, Disconnect::Write)?;
                    }
                    _ => {}
                }
            }
        }
        let is_closed = matches!(stream.progress, Progress::Closed);
        let happened = Events::READABLE | Events::WRITABLE | Events::RDHUP | Events::HUP;
        self.notify(object, happened);
        if is_closed { Err(Error::NotConnected) } else { Ok(()) }
    }

    /// The last descriptor of a connection on our own stack is closed, and it has a linger time:
    /// ends the stream, and says how long to wait for the peer to have it. `None`: there is nothing
    /// to wait for. (On the kernel the socket's last close is the kernel's.)
    pub(crate) fn begin_to_linger(&mut self, object: u32) -> Option<Duration> {
        let entry = self.object(object)?;
        let Kind::Stream(Stream { options, progress, inbox, .. }) = &entry.kind else {
            return None;
        };
        let time = options.linger.filter(|time| !time.is_zero())?;
        let waits = self.is_local
            && entry.descriptors == 1
            && matches!(progress, Progress::Connected)
            && inbox.is_empty();
        if !waits {
            return None;
        }
        self.forget_watchers(object);
        let (stream, channel) = self.stream_mut(object)?;
        if !stream.shut.send {
            channel.disconnect(stream.handle, Disconnect::Write).ok()?;
        }
        // What comes now is for nobody, and answered by a reset.
        stream.shut = Shut::BOTH;
        stream.lingers = true;
        // It may be delivered already, which a completion says, too.
        channel.await_delivery(stream.handle).ok()?;
        Some(time)
    }

    /// How long a close waits for a stream that was begun to linger on; `None`: no longer.
    pub(crate) fn is_lingering(&self, object: u32) -> Option<Duration> {
        match &self.object(object)?.kind {
            Kind::Stream(it) if it.lingers && matches!(it.progress, Progress::Connected) => {
                it.options.linger
            }
            _ => None,
        }
    }

    /// The peer has everything.
    #[cold]
    pub(crate) fn on_delivered(&mut self, object: u32) {
        let Some((stream, _)) = self.stream_mut(object) else { return };
        stream.lingers = false;
        self.notify(object, Events::HUP);
    }

    /// The last descriptor is gone: what was written still goes out, then the FIN. Bytes that the
    /// program never took mean a RST (RFC 2525 §2.17), as does a linger time of zero.
    pub(crate) fn close_stream(&mut self, stream: Stream) {
        if let Some(bound) = stream.bound {
            self.ports.release(bound);
        }
        if stream.handle == Handle::NONE {
            return;
        }
        let resets = !stream.inbox.is_empty() || stream.options.linger == Some(Duration::ZERO);
        drop(stream.inbox);
        if resets && !matches!(stream.progress, Progress::Closed) {
            // What has ended meanwhile needs no reset.
            let _ = self.channel.disconnect(stream.handle, Disconnect::Reset);
        } else if self.close_behind_writes(stream.handle) {
            return;
        }
        let _ = self.channel.unregister(stream.handle);
    }

    /// What the channel has not sent yet would be cancelled with the handle: the handle stays until
    /// all is out. Whether there is such.
    fn close_behind_writes(&mut self, handle: Handle) -> bool {
        let channel = &mut self.channel;
        let waits = channel.unsent_bytes(handle).is_ok_and(|bytes| bytes > 0)
            && channel.set_cookie(handle, CLOSED).is_ok()
            && channel.disconnect(handle, Disconnect::Both).is_ok();
        self.closing += usize::from(waits);
        waits
    }

    /// Nothing is left to send on a connection that was closed, or nothing more can be sent.
    pub(crate) fn on_closed(&mut self, handle: Handle) {
        self.closing -= 1;
        let _ = self.channel.unregister(handle);
    }
}
