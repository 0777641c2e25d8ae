//! Completions: each goes to the object that its cookie names, and its effects to watchers and
//! waiters.
//!
//! Read first: `table.rs`.

use megapipe::{Accepted, Completion, Connection, Disconnect, Event, Handle, OpError, ReadBuf};

use super::{ObjectKind, Sockets};
use crate::datagram::DatagramSocket;
use crate::error::Error;
use crate::flags::Events;
use crate::listener::Listener;
use crate::polled_channel::PolledChannel;
use crate::reuseport_group::QueueLevel;
use crate::stream::StreamSocket;
use crate::transport::{CLOSED, ObjectTransport, StreamTransport};

impl Sockets {
    /// By far the most frequent completion, bytes for a connection, is dealt with where it is taken
    /// from the channel, and not copied before.
    #[inline(always)]
    pub(crate) fn on_completion(&mut self, completion: Completion) {
        self.happened = true;
        match completion.event {
            Event::Read(Ok(bytes)) if !bytes.is_empty() => {
                self.on_bytes(completion.cookie as u32, bytes);
            }
            _ => self.on_other(completion),
        }
    }

    /// Bytes came; not none. (Waiters and watchers are found in the record at hand, as by
    /// `notify`.)
    #[inline]
    fn on_bytes(&mut self, object: u32, bytes: ReadBuf) {
        let Self { objects, channel, .. } = self;
        let Some(entry) = objects.get_mut(object) else { return };
        let ObjectKind::Stream(stream) = &mut entry.kind else { return };
        let events = stream.on_bytes(bytes, channel);
        let watchers = entry.watchers;
        if entry.sleepers > 0 && !events.is_empty() {
            entry.wake_sleepers(object, &mut self.wakes);
        }
        self.notify_watchers(watchers, events);
    }

    /// Gives a completion to a stream, and applies its effects.
    pub(crate) fn on_stream(
        &mut self,
        object: u32,
        handle: impl FnOnce(&mut StreamSocket, &mut PolledChannel) -> Events,
    ) {
        let Some((stream, channel)) = self.stream_mut(object) else { return };
        let events = handle(stream, channel);
        self.notify_any(object, events);
    }

    /// Gives a completion to a datagram socket, and applies its effects.
    pub(crate) fn on_socket(
        &mut self,
        object: u32,
        handle: impl FnOnce(&mut DatagramSocket, &mut PolledChannel) -> Events,
    ) {
        let Some((socket, channel)) = self.datagram_mut(object) else { return };
        let events = handle(socket, channel);
        self.notify_any(object, events);
    }

    /// A connection came to a group, or an error.
    fn on_accepted(&mut self, group: u32, result: Result<Accepted, OpError>) {
        match result {
            Ok(Accepted { connection: Connection::Lwsocket(handle), .. }) => {
                self.on_connection(group, handle);
            }
            // Descriptors were not asked for.
            Ok(_) => {}
            Err(error) => self.on_accept_error(group, error.into()),
        }
    }

    fn on_accept_error(&mut self, group: u32, error: Error) {
        self.groups.recount(group, &mut self.channel);
        let mut place = 0;
        while let Some(object) = self.groups.members(group).get(place).copied() {
            place += 1;
            let Some(listener) = self.listener_mut(object) else { continue };
            let events = listener.on_error(error);
            self.notify(object, events);
        }
    }

    /// A connection came to a group: one of its listeners gets it.
    fn on_connection(&mut self, group: u32, handle: Handle) {
        let Self { objects, groups, channel, .. } = self;
        let level = |member: u32| match objects.get(member).map(|entry| &entry.kind) {
            Some(ObjectKind::Listener(it)) => {
                QueueLevel { queued: it.queued(), is_full: it.room() == 0 }
            }
            _ => QueueLevel { queued: usize::MAX, is_full: true },
        };
        let Some(object) = groups.choose(group, handle, level, channel) else { return };
        let Some(listener) = self.listener(object) else { return };
        let (options, is_v6) = (listener.options, listener.is_v6);
        // There is room for what was asked for; a listener that inherits more may have none.
        let has_room = self.objects.reserve(1).is_ok()
            && self.listener_mut(object).is_some_and(Listener::reserve_one);
        if !has_room {
            let _ = StreamTransport::disconnect(&mut self.channel, handle, Disconnect::Reset);
            ObjectTransport::unregister(&mut self.channel, handle);
            return self.on_accept_error(group, Error::NoMemory);
        }
        let stream = StreamSocket::accepted(handle, is_v6, options, &mut self.channel);
        let connection = self.insert(ObjectKind::Stream(stream), false);
        // The handle is known: it was accepted just now.
        let _ = ObjectTransport::set_cookie(&mut self.channel, handle, connection.into());
        let Some(listener) = self.listener_mut(object) else { return };
        let events = listener.on_connection(connection);
        self.notify(object, events);
    }

    /// Nothing is left to send on a connection that was closed, or nothing more can be sent.
    pub(super) fn on_closed(&mut self, handle: Handle) {
        self.closing -= 1;
        ObjectTransport::unregister(&mut self.channel, handle);
    }

    #[inline(never)]
    fn on_other(&mut self, completion: Completion) {
        let Completion { handle, cookie, event } = completion;
        let object = cookie as u32;
        match event {
            Event::Read(result) => {
                self.on_stream(object, |stream, channel| stream.on_read_end(result.err(), channel));
            }
            Event::Write(result) => {
                self.on_stream(object, |stream, channel| stream.on_written(result, channel));
            }
            Event::Accept(result) => self.on_accepted(object, result),
            Event::RecvFrom(result) => {
                self.on_socket(object, |socket, channel| {
                    socket.on_datagram(handle, result, channel)
                });
            }
            Event::SendTo(result) => {
                self.on_socket(object, |socket, channel| socket.on_sent(result, channel));
            }
            Event::Connect(result) => {
                self.on_stream(object, |stream, channel| stream.on_connected(result, channel));
            }
            Event::End(result) => {
                self.on_stream(object, |stream, channel| stream.on_end(result, channel));
            }
            Event::Delivered(_) => self.on_stream(object, |stream, _| stream.on_delivered()),
            Event::UnsentBelow => self.on_stream(object, StreamSocket::on_unsent_below),
            Event::Disconnect(_) if cookie == CLOSED => self.on_closed(handle),
            Event::Urgent { bytes } => self.on_stream(object, |stream, _| stream.on_urgent(bytes)),
            Event::DatagramWaits { .. } => {
                self.on_socket(object, |socket, channel| socket.on_datagram_waits(handle, channel));
            }
            Event::Undelivered(undelivered) => {
                self.on_socket(object, |socket, _| socket.on_undelivered(*undelivered));
            }

            // Asked for where there is nothing more to be told.
            _ => {}
        }
    }
}
