//! The ping-pong server of one channel [MegaPipe listing 3.1].
//!
//! A connection's cookie is its index in a table, so a completion finds its connection without a
//! search. The next read is asked for together with the write of the response, and both go to the
//! kernel in one batch with those of other connections.
//!
//! Invariants
//! - An echo that arrived whole is sent from the memory it was received into: no copy. A longer
//!   response copies up to [`COPY_LEN_MAX`] bytes; the rest is sent from static memory.
//! - No allocation per request. A connection keeps one request's prefix, whatever its length, and
//!   that only while a part of the request has come: an idle connection costs 24 bytes.
//! - Responses are written quietly: nothing is to be done when one has gone out. Only a peer that
//!   leaves more than [`UNSENT_BYTES_MAX`] bytes unsent is written to with a completion, and is not
//!   read from again before that.
//! - At most one read is outstanding per connection.
//! - Every wait for a peer that others may have to wait for is bounded (`timeouts.rs`).
//! - A connection leaves the table in one place, [`RpcShard::close`].

use std::num::NonZeroU32;

use megapipe::{
    Accept, Accepted, Channel, Completion, Connection, Disconnect, Event, Handle, OpError, Payload,
    ReadBuf, SubmitError, WriteBuf,
};
use slab::Slab;

use super::protocol::{Framer, Lengths, RpcReply, echoes};
use super::timeouts::{AwaitedStep, Overdue, WaitClock};
use crate::limits::rpc::{COPY_LEN_MAX, GATHER_LEN, SWEEP_MS, UNSENT_BYTES_MAX};
use crate::serve::{
    ServeError, ServerListeners, ServerShard, ServerTally, ShardSetup, Ticks, end_of_keys,
};

/// How far a connection is on its way to the end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Life {
    /// Requests are answered.
    Open,
    /// The peer has closed its direction; pending responses are still sent.
    PeerDone,
    /// Our side has sent its end of stream; what still arrives is thrown away until the peer's
    /// comes. Closing at once would reset the connection if a request were on its way, and the
    /// reset could destroy responses that the peer has not read yet.
    Lingering,
}

#[derive(Debug)]
struct RpcPeer {
    handle: Handle,
    wait: WaitClock,
    /// The beginning of an incomplete request.
    begun: Option<NonZeroU32>,
    /// The peer does not read its responses: the last write has a completion.
    blocked: bool,
    reading: bool,
    life: Life,
    listener: u8,
}

const _: () = assert!(size_of::<RpcPeer>() == 24);

impl RpcPeer {
    /// No request is half read.
    const fn at_boundary(&self) -> bool {
        self.begun.is_none()
    }

    /// Nothing but the next request is expected.
    #[inline]
    fn is_at_ease(&self) -> bool {
        self.life == Life::Open && self.at_boundary() && !self.blocked
    }

    /// What the server waits for, with `unsent_bytes` of responses in the channel.
    const fn awaited(&self, unsent_bytes: usize) -> AwaitedStep {
        match self.life {
            Life::Lingering if unsent_bytes == 0 => AwaitedStep::End,
            Life::PeerDone | Life::Lingering => AwaitedStep::Room,
            Life::Open if self.blocked => AwaitedStep::Room,
            Life::Open if self.at_boundary() => AwaitedStep::Request,
            Life::Open => AwaitedStep::Rest,
        }
    }

    /// Sends a short response: quietly, unless the peer leaves too many unsent.
    fn write(
        &mut self,
        channel: &mut Channel,
        data: impl Into<Payload>,
    ) -> Result<(), SubmitError> {
        let unsent_bytes = channel.write_quiet(self.handle, data)?;
        if unsent_bytes > UNSENT_BYTES_MAX {
            self.blocked = channel.report_last_write(self.handle)?;
        }
        Ok(())
    }

    /// Asks for the next read after a quiet write that waits behind `unsent_bytes`, unless these
    /// are too many.
    #[inline(never)]
    fn read_behind(
        &mut self,
        channel: &mut Channel,
        read_len: usize,
        unsent_bytes: usize,
    ) -> Result<(), SubmitError> {
        if unsent_bytes > UNSENT_BYTES_MAX {
            self.blocked = channel.report_last_write(self.handle)?;
        }
        self.reading = !self.blocked;
        if self.blocked { Ok(()) } else { channel.read(self.handle, read_len) }
    }
}

/// One channel's part of the server.
#[derive(Debug)]
pub(super) struct RpcShard {
    lengths: Lengths,
    stall_ms: u32,
    read_len: usize,
    listeners: ServerListeners,
    peers: Slab<RpcPeer>,
    /// The beginnings of requests that came in parts.
    begun: Slab<Framer>,
    draining: bool,
    swept: Ticks,
    tally: ServerTally,
}

impl RpcShard {
    pub(super) fn new(
        setup: ShardSetup<'_>,
        lengths: Lengths,
        stall_ms: u32,
    ) -> Result<Self, ServeError> {
        let ShardSetup { index, channel, mut listeners, buffer_len, now, .. } = setup;
        let accept = Accept::lwsocket(u32::MAX).first_read(buffer_len);
        listeners.start(channel, accept).map_err(|source| ServeError::SetUp { index, source })?;
        Ok(Self {
            lengths,
            stall_ms,
            read_len: buffer_len,
            peers: listeners.peer_table(),
            listeners,
            begun: Slab::new(),
            draining: false,
            swept: now,
            tally: ServerTally::default(),
        })
    }

    fn on_accept(
        &mut self,
        channel: &mut Channel,
        accepted: Accepted,
        listener: usize,
        now: Ticks,
    ) {
        self.listeners.on_accept(channel, listener);
        // The accepts ask for lwsockets; a descriptor would be closed by dropping it.
        let Connection::Lwsocket(handle) = accepted.connection else { return };
        self.tally.accepted += 1;
        let key = self.peers.insert(RpcPeer {
            handle,
            wait: WaitClock::new(now),
            begun: None,
            blocked: false,
            reading: true,
            life: Life::Open,
            listener: listener as u8,
        });
        if channel.set_cookie(handle, key as u64).is_err() {
            self.close(channel, key);
        } else if self.draining {
            self.linger_if_idle(channel, key, now);
        }
    }

    /// By far the most frequent case: whole requests whose responses are their echoes, from a peer
    /// that takes them. Anything else is given back.
    #[inline(always)]
    fn echo(
        &mut self,
        channel: &mut Channel,
        key: usize,
        data: ReadBuf,
        now: Ticks,
    ) -> Option<ReadBuf> {
        let Some(peer) = self.peers.get_mut(key) else { return Some(data) };
        if !peer.is_at_ease() || self.draining {
            return Some(data);
        }
        let whole = echoes(&data, self.lengths);
        if whole.count == 0 || whole.len != data.len() {
            return Some(data);
        }
        peer.wait.restart(now);
        self.tally.requests += whole.count;
        self.tally.bytes_in += whole.len as u64;
        self.tally.bytes_out += whole.len as u64;
        let went_on = match channel.write_quiet(peer.handle, data) {
            Ok(0) => channel.read(peer.handle, self.read_len),
            Ok(unsent_bytes) => peer.read_behind(channel, self.read_len, unsent_bytes),
            Err(misuse) => Err(misuse),
        };
        if went_on.is_err() {
            self.close(channel, key);
        }
        None
    }

    #[inline(never)]
    fn on_bytes(&mut self, channel: &mut Channel, key: usize, data: ReadBuf, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.reading = false;
        if data.is_empty() {
            return self.on_end_of_stream(channel, key, now);
        }
        if peer.life == Life::Open {
            self.tally.bytes_in += data.len() as u64;
            if !self.answer(channel, key, data, now) {
                return self.close(channel, key);
            }
        }
        self.read_on(channel, key);
        if self.draining {
            self.linger_if_idle(channel, key, now);
        }
    }

    /// Answers the requests in `data`. False if the connection is of no more use.
    fn answer(&mut self, channel: &mut Channel, key: usize, mut data: ReadBuf, now: Ticks) -> bool {
        let Some(peer) = self.peers.get_mut(key) else { return false };
        if peer.at_boundary() {
            peer.wait.restart(now);
            let whole = echoes(&data, self.lengths);
            self.tally.requests += whole.count;
            self.tally.bytes_out += whole.len as u64;
            if whole.len == data.len() {
                return peer.write(channel, data).is_ok();
            }
            if whole.len > 0 {
                let echo = data.split_to(whole.len);
                if peer.write(channel, echo).is_err() {
                    return false;
                }
            }
        }
        let begun = peer.begun.take().map(place_of);
        let mut framer = begun.and_then(|at| self.begun.try_remove(at)).unwrap_or_default();
        let mut rest = &*data;
        let mut outbox = ReplyOutbox { gathered: None, submitted: 0 };
        while !rest.is_empty() {
            let sent = match framer.next(&mut rest, self.lengths) {
                Ok(None) => break,
                Ok(Some(reply)) => {
                    peer.wait.restart(now);
                    self.tally.requests += 1;
                    outbox.reply(channel, peer, &reply)
                }
                Err(_) => {
                    self.tally.rejected += 1;
                    return false;
                }
            };
            if sent.is_err() {
                return false;
            }
        }
        if !framer.at_boundary() {
            peer.begun = NonZeroU32::new(self.begun.insert(framer) as u32 + 1);
        }
        let flushed = outbox.flush(channel, peer);
        self.tally.bytes_out += outbox.submitted as u64;
        flushed.is_ok()
    }

    /// Asks for the next read, unless one is outstanding or the peer does not take its responses.
    #[inline]
    fn read_on(&mut self, channel: &mut Channel, key: usize) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let wanted = match peer.life {
            Life::Open => !peer.blocked,
            Life::Lingering => true,
            Life::PeerDone => false,
        };
        if peer.reading || !wanted {
            return;
        }
        peer.reading = true;
        if channel.read(peer.handle, self.read_len).is_err() {
            self.close(channel, key);
        }
    }

    fn on_end_of_stream(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let owed = channel.unsent_bytes(peer.handle).is_ok_and(|bytes| bytes > 0);
        if !owed || peer.life == Life::Lingering {
            return self.close(channel, key);
        }
        peer.life = Life::PeerDone;
        peer.wait.restart(now);
        // Completes behind the responses.
        if channel.disconnect(peer.handle, Disconnect::Write).is_err() {
            self.close(channel, key);
        }
    }

    /// A write with a completion is done: the peer may have caught up.
    fn on_written(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let unsent_bytes = channel.unsent_bytes(peer.handle).unwrap_or(0);
        if !peer.blocked || unsent_bytes > UNSENT_BYTES_MAX {
            return;
        }
        peer.blocked = false;
        peer.wait.restart(now);
        self.read_on(channel, key);
        if self.draining {
            self.linger_if_idle(channel, key, now);
        }
    }

    /// Our sending side is closed: with the peer's closed before it, the connection is over.
    fn on_disconnected(&mut self, channel: &mut Channel, key: usize) {
        if self.peers.get(key).is_some_and(|peer| peer.life == Life::PeerDone) {
            self.close(channel, key);
        }
    }

    /// A read or a write failed, mostly because the peer reset the connection. That is how many
    /// clients say goodbye, so it counts as a failure only where something was left undone.
    fn on_failure(&mut self, channel: &mut Channel, key: usize, unsent: bool) {
        let Some(peer) = self.peers.get(key) else { return };
        let unsent = unsent || channel.unsent_bytes(peer.handle).is_ok_and(|bytes| bytes > 0);
        let owed = unsent || !peer.at_boundary();
        self.tally.failed += u64::from(owed && peer.life != Life::Lingering);
        self.close(channel, key);
    }

    /// While draining: ends our side of a connection, behind its last response, if no request is
    /// half read.
    fn linger_if_idle(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.life != Life::Open || !peer.at_boundary() {
            return;
        }
        peer.life = Life::Lingering;
        peer.wait.restart(now);
        if channel.disconnect(peer.handle, Disconnect::Write).is_err() {
            return self.close(channel, key);
        }
        self.read_on(channel, key);
    }

    /// Closes connections that have timed out, and idle ones if new connections need their slots.
    fn sweep(&mut self, channel: &mut Channel, now: Ticks) {
        let Self { peers, listeners, stall_ms, .. } = self;
        let overdue = |(key, peer): (usize, &mut RpcPeer)| {
            let is_request = peer.life == Life::Open && !peer.blocked;
            let unsent_bytes =
                if is_request { 0 } else { channel.unsent_bytes(peer.handle).unwrap_or(0) };
            peer.wait.note_unsent(unsent_bytes, now);
            let is_full = listeners.is_full(usize::from(peer.listener));
            let awaited = peer.awaited(unsent_bytes);
            peer.wait.overdue(awaited, *stall_ms, is_full, now).map(|overdue| (key, overdue))
        };
        let overdue: Vec<(usize, Overdue)> = peers.iter_mut().filter_map(overdue).collect();
        for (key, overdue) in overdue {
            match overdue {
                Overdue::TooSlow => self.cut_off(channel, key),
                Overdue::GivesWay | Overdue::Lingers => self.close(channel, key),
            }
        }
    }

    /// Resets a connection in the middle of a request or of a response.
    fn cut_off(&mut self, channel: &mut Channel, key: usize) {
        let Some(peer) = self.peers.get(key) else { return };
        self.tally.failed += u64::from(peer.life != Life::Lingering);
        // Fails only for a connection that is over.
        let _ = channel.disconnect(peer.handle, Disconnect::Reset);
        self.close(channel, key);
    }

    fn close(&mut self, channel: &mut Channel, key: usize) {
        let Some(peer) = self.peers.try_remove(key) else { return };
        if let Some(begun) = peer.begun {
            self.begun.try_remove(place_of(begun));
        }
        self.tally.closed += 1;
        // Fails only for a handle that is gone already, which is what was wanted.
        let _ = channel.unregister(peer.handle);
        self.listeners.on_close(channel, usize::from(peer.listener));
    }
}

impl ServerShard for RpcShard {
    #[inline(always)]
    fn on_read(
        &mut self,
        channel: &mut Channel,
        (_, cookie): (Handle, u64),
        data: ReadBuf,
        now: Ticks,
    ) {
        let key = cookie as usize;
        if let Some(data) = self.echo(channel, key, data, now) {
            self.on_bytes(channel, key, data, now);
        }
    }

    #[inline]
    fn on_completion(&mut self, channel: &mut Channel, done: Completion, now: Ticks) {
        let key = done.cookie as usize;
        match done.event {
            Event::Read(Ok(data)) => self.on_bytes(channel, key, data, now),
            Event::Write(Ok(_)) => self.on_written(channel, key, now),
            Event::Accept(accepted) => match (accepted, self.listeners.index_of(done.cookie)) {
                (Ok(accepted), Some(listener)) => self.on_accept(channel, accepted, listener, now),
                (Err(_), Some(listener)) => self.listeners.on_accept_error(listener),
                (_, None) => {}
            },
            Event::Read(Err(OpError::NoBuffers)) => self.on_no_buffers(channel, key),
            Event::Write(Err(_)) => self.on_failure(channel, key, true),
            Event::Read(Err(_)) | Event::Disconnect(Err(_)) => {
                self.on_failure(channel, key, false);
            }
            Event::Disconnect(Ok(())) => self.on_disconnected(channel, key),
            _ => {}
        }
    }

    fn on_tick(&mut self, channel: &mut Channel, now: Ticks) {
        self.listeners.on_tick(channel);
        if now.since(self.swept).as_millis() >= u128::from(SWEEP_MS) {
            self.swept = now;
            self.sweep(channel, now);
        }
    }

    fn drain(&mut self, channel: &mut Channel) -> usize {
        self.draining = true;
        self.listeners.close(channel);
        end_of_keys(&self.peers)
    }

    fn end_if_idle(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        self.linger_if_idle(channel, key, now);
    }

    fn drained(&self) -> bool {
        self.peers.is_empty()
    }

    fn tally(&self) -> ServerTally {
        self.tally
    }
}

impl RpcShard {
    /// No receive buffer was free: they are all on their way out. Try again; the read queues
    /// behind the writes that will free them.
    fn on_no_buffers(&mut self, channel: &mut Channel, key: usize) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.reading = false;
            self.read_on(channel, key);
        }
    }
}

/// The place of a request that has begun.
const fn place_of(begun: NonZeroU32) -> usize {
    begun.get() as usize - 1
}

/// The responses to what came in one read: short ones gathered into one write.
struct ReplyOutbox {
    gathered: Option<WriteBuf>,
    submitted: usize,
}

impl ReplyOutbox {
    fn reply(
        &mut self,
        channel: &mut Channel,
        peer: &mut RpcPeer,
        reply: &RpcReply,
    ) -> Result<(), SubmitError> {
        let len = reply.response_len as usize;
        let buffer = self.gathered.get_or_insert_with(|| channel.alloc(GATHER_LEN));
        if len <= COPY_LEN_MAX {
            buffer.extend_from_slice(reply.prefix());
            reply.rest().for_each(|piece| buffer.extend_from_slice(piece));
            if buffer.len() + COPY_LEN_MAX > GATHER_LEN {
                return self.flush(channel, peer);
            }
            return Ok(());
        }
        buffer.extend_from_slice(reply.prefix());
        let rest_len = len - reply.prefix().len();
        self.submitted += buffer.len() + rest_len;
        let front = self.gathered.take().map(Payload::from);
        channel.writev(peer.handle, front.into_iter().chain(reply.rest().map(Payload::from)))?;
        peer.blocked |= channel.unsent_bytes(peer.handle)? > UNSENT_BYTES_MAX;
        Ok(())
    }

    fn flush(&mut self, channel: &mut Channel, peer: &mut RpcPeer) -> Result<(), SubmitError> {
        let Some(buffer) = self.gathered.take() else { return Ok(()) };
        self.submitted += buffer.len();
        peer.write(channel, buffer)
    }
}
