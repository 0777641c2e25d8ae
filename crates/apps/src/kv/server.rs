//! The shell: connections on a channel. All that is protocol happens in [`super::connection`].
//!
//! Read first: [`crate::serve`], which runs one [`KvShard`] per channel; [`super::connection`].
//!
//! ```text
//!   Read completion --> Connection::on_bytes(data, now, store, WriteBuf) --> write, next read
//! ```
//!
//! A value is copied once in user space: from the store, while its shard is locked, into the buffer
//! that the channel sends. The responses to all commands of one read go out as one write.
//!
//! Invariants
//! - At most one read is outstanding per connection, and none while more than
//!   [`OUTPUT_BYTES_MAX`] bytes of responses wait to be sent.
//! - What a paused connection has not taken is kept in the buffer that it was received into; there
//!   is never more than one such buffer per connection.
//! - A connection leaves the table in one place, [`KvShard::close`], which gives back what it holds
//!   in the store.

use std::sync::Arc;

use megapipe::{
    Accept, Accepted, Channel, Completion, Connection as Accepting, Disconnect, Event, Handle,
    OpError, ReadBuf, WriteBuf,
};
use rustix::time::{ClockId, clock_gettime};
use slab::Slab;

use super::connection::{KvConnection, KvContext, NextStep, ResponseBuffer};
use super::limits::{OUTPUT_BYTES_MAX, RESPONSE_BYTES, SWEEP_MS};
use super::numbers::ServerNumbers;
use super::store::KvStore;
use super::timeouts::{AwaitedInput, Stopwatch, Timeouts};
use crate::serve::{
    ServeError, ServerListeners, ServerShard, ServerTally, ShardSetup, Ticks, end_of_keys,
};

impl ResponseBuffer for WriteBuf {
    fn extend_from_slice(&mut self, bytes: &[u8]) {
        Self::extend_from_slice(self, bytes);
    }

    fn len(&self) -> usize {
        Self::len(self)
    }
}

/// What all channels of one server share.
#[derive(Clone)]
pub(super) struct KvShared {
    pub(super) store: Arc<KvStore>,
    pub(super) numbers: Arc<ServerNumbers>,
    pub(super) timeouts: Timeouts,
}

/// How far a connection is on its way to the end.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum ConnectionLife {
    /// Commands are carried out.
    Open,
    /// The peer has closed its direction; pending responses are still sent.
    PeerDone,
    /// Our side has sent its end of stream; what still arrives is thrown away until the peer's
    /// comes. Closing at once could destroy responses that the peer has not read yet.
    Lingering,
}

struct KvPeer {
    handle: Handle,
    connection: KvConnection,
    /// What a paused connection has not taken.
    untaken: Option<ReadBuf>,
    /// Bytes handed to the channel whose writes have not completed.
    unsent_bytes: usize,
    watch: Stopwatch,
    reading: bool,
    life: ConnectionLife,
    listener: u8,
}

impl KvPeer {
    /// What the connection waits for.
    fn awaited(&self) -> AwaitedInput {
        let is_full = self.untaken.is_some() || self.unsent_bytes >= OUTPUT_BYTES_MAX;
        match self.life {
            ConnectionLife::Lingering => AwaitedInput::End,
            ConnectionLife::PeerDone => AwaitedInput::Room,
            ConnectionLife::Open if is_full => AwaitedInput::Room,
            ConnectionLife::Open if self.connection.is_midway() => AwaitedInput::Rest,
            ConnectionLife::Open => AwaitedInput::Command,
        }
    }
}

/// One channel's part of the server.
pub(super) struct KvShard {
    shared: KvShared,
    index: usize,
    read_len: usize,
    listeners: ServerListeners,
    peers: Slab<KvPeer>,
    draining: bool,
    tally: ServerTally,
    idle_kicks: u64,
    clock: UnixClock,
    /// Unix seconds as of the last tick.
    now_s: u32,
    swept: Ticks,
}

impl KvShard {
    pub(super) fn new(setup: ShardSetup<'_>, shared: KvShared) -> Result<Self, ServeError> {
        let ShardSetup { index, channel, mut listeners, buffer_len, now, .. } = setup;
        let accept = Accept::lwsocket(u32::MAX).first_read(buffer_len);
        listeners.start(channel, accept).map_err(|source| ServeError::SetUp { index, source })?;
        let clock = UnixClock::new(now);
        Ok(Self {
            shared,
            index,
            read_len: buffer_len,
            peers: listeners.peer_table(),
            listeners,
            draining: false,
            tally: ServerTally::default(),
            idle_kicks: 0,
            now_s: clock.unix_s(now),
            clock,
            swept: now,
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
        let Accepting::Lwsocket(handle) = accepted.connection else { return };
        self.tally.accepted += 1;
        let key = self.peers.insert(KvPeer {
            handle,
            connection: KvConnection::new(),
            untaken: None,
            unsent_bytes: 0,
            watch: Stopwatch::new(now),
            reading: true,
            life: ConnectionLife::Open,
            listener: listener as u8,
        });
        self.publish();
        if channel.set_cookie(handle, key as u64).is_err() {
            self.close(channel, key);
        } else if self.draining {
            self.linger_if_at_rest(channel, key, now);
        }
    }

    fn on_read(&mut self, channel: &mut Channel, key: usize, data: ReadBuf, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        peer.reading = false;
        if data.is_empty() {
            if peer.unsent_bytes == 0 || peer.life == ConnectionLife::Lingering {
                return self.close(channel, key);
            }
            peer.life = ConnectionLife::PeerDone;
            return;
        }
        if peer.life == ConnectionLife::Lingering {
            return self.read_on(channel, key, now);
        }
        self.tally.bytes_in += data.len() as u64;
        if !peer.connection.is_midway() {
            peer.watch.restart_input(now);
        }
        self.answer(channel, key, data, now);
    }

    /// Carries out the commands in `data` and sends the responses.
    fn answer(&mut self, channel: &mut Channel, key: usize, mut data: ReadBuf, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let context =
            KvContext { store: &self.shared.store, now: self.now_s, server: &*self.shared.numbers };
        let mut responses = channel.alloc(RESPONSE_BYTES);
        let progress = peer.connection.on_bytes(&data, &context, &mut responses);
        if progress.command_ended {
            peer.watch.restart_input(now);
        }
        let commands = peer.connection.take_commands();
        self.tally.requests += u64::from(commands.accepted);
        self.tally.rejected += u64::from(commands.refused);
        if !responses.is_empty() {
            if peer.unsent_bytes == 0 {
                peer.watch.restart_output(now);
            }
            peer.unsent_bytes += responses.len();
            if channel.write(peer.handle, responses).is_err() {
                return self.close(channel, key);
            }
        }
        match progress.flow {
            NextStep::ReadOn => {
                self.read_on(channel, key, now);
                if self.draining {
                    self.linger_if_at_rest(channel, key, now);
                }
            }
            NextStep::Paused => {
                data.split_to(progress.consumed);
                peer.untaken = Some(data);
            }
            NextStep::Close => self.linger(channel, key, now),
        }
    }

    /// Goes on with the connection when there is room for its responses: first with what it has not
    /// taken, then with the next read, unless one is outstanding.
    fn read_on(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.life == ConnectionLife::Open {
            if peer.unsent_bytes >= OUTPUT_BYTES_MAX {
                return;
            }
            if let Some(data) = peer.untaken.take() {
                return self.answer(channel, key, data, now);
            }
        }
        if peer.reading || peer.life == ConnectionLife::PeerDone {
            return;
        }
        peer.reading = true;
        if channel.read(peer.handle, self.read_len).is_err() {
            self.close(channel, key);
        }
    }

    fn on_written(&mut self, channel: &mut Channel, key: usize, len: usize, now: Ticks) {
        self.tally.bytes_out += len as u64;
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.awaited() == AwaitedInput::Room {
            // The rest of a command has its time from when it is read.
            peer.watch.restart_input(now);
        }
        peer.unsent_bytes = peer.unsent_bytes.saturating_sub(len);
        peer.watch.restart_output(now);
        match peer.life {
            ConnectionLife::PeerDone if peer.unsent_bytes == 0 && peer.untaken.is_none() => {
                return self.close(channel, key);
            }
            ConnectionLife::Open if peer.reading && peer.untaken.is_none() => {}
            _ => self.read_on(channel, key, now),
        }
        if self.draining {
            self.linger_if_at_rest(channel, key, now);
        }
    }

    /// A read or a write failed, mostly because the peer reset the connection. That is how many
    /// clients say goodbye, so it counts as a failure only where something was left undone.
    fn on_failure(&mut self, channel: &mut Channel, key: usize) {
        let Some(peer) = self.peers.get(key) else { return };
        let owed = peer.unsent_bytes > 0 || peer.connection.is_midway();
        self.tally.failed += u64::from(owed && peer.life != ConnectionLife::Lingering);
        self.close(channel, key);
    }

    /// No receive buffer was free: they are all on their way out, or kept for paused connections.
    /// Try again; the read queues behind the writes that will free them.
    fn on_no_buffers(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.reading = false;
            self.read_on(channel, key, now);
        }
    }

    /// Ends our side of a connection after what waits to be sent.
    fn linger(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        if peer.life == ConnectionLife::PeerDone {
            peer.untaken = None;
            if peer.unsent_bytes == 0 {
                self.close(channel, key);
            }
            return;
        }
        peer.life = ConnectionLife::Lingering;
        peer.watch.restart_input(now);
        if channel.disconnect(peer.handle, Disconnect::Write).is_err() {
            return self.close(channel, key);
        }
        self.read_on(channel, key, now);
    }

    /// While draining: closes our direction of a connection without pending responses.
    fn linger_if_at_rest(&mut self, channel: &mut Channel, key: usize, now: Ticks) {
        let Some(peer) = self.peers.get(key) else { return };
        let owed = peer.unsent_bytes > 0 || peer.untaken.is_some() || peer.connection.is_midway();
        if peer.life == ConnectionLife::Open && !owed {
            self.linger(channel, key, now);
        }
    }

    /// Closes connections that have timed out, and idle ones if new connections need their slots.
    fn sweep(&mut self, channel: &mut Channel, now: Ticks) {
        let timeouts = self.shared.timeouts;
        let overdue: Vec<(usize, ConnectionLife)> = self
            .peers
            .iter()
            .filter(|(_, peer)| {
                let is_unsent = peer.unsent_bytes > 0;
                let is_full = self.listeners.is_full(usize::from(peer.listener));
                peer.watch.is_overdue(peer.awaited(), is_unsent, is_full, timeouts, now)
            })
            .map(|(key, peer)| (key, peer.life))
            .collect();
        for (key, life) in overdue {
            self.idle_kicks += u64::from(life != ConnectionLife::Lingering);
            self.close(channel, key);
        }
    }

    fn close(&mut self, channel: &mut Channel, key: usize) {
        let Some(mut peer) = self.peers.try_remove(key) else { return };
        peer.connection.abandon(&self.shared.store);
        self.tally.closed += 1;
        self.publish();
        // Fails only for a handle that is gone already, which is what was wanted.
        let _ = channel.unregister(peer.handle);
        self.listeners.on_close(channel, usize::from(peer.listener));
    }

    fn publish(&self) {
        self.shared.numbers.publish(self.index, &self.tally, self.idle_kicks);
    }
}

impl ServerShard for KvShard {
    fn on_completion(&mut self, channel: &mut Channel, done: Completion, now: Ticks) {
        let key = done.cookie as usize;
        match done.event {
            Event::Read(Ok(data)) => self.on_read(channel, key, data, now),
            Event::Write(Ok(len)) => self.on_written(channel, key, len, now),
            Event::Accept(accepted) => match (accepted, self.listeners.index_of(done.cookie)) {
                (Ok(accepted), Some(listener)) => self.on_accept(channel, accepted, listener, now),
                (Err(_), Some(listener)) => self.listeners.on_accept_error(listener),
                (_, None) => {}
            },
            Event::Read(Err(OpError::NoBuffers)) => self.on_no_buffers(channel, key, now),
            Event::Read(Err(_)) | Event::Write(Err(_)) | Event::Disconnect(Err(_)) => {
                self.on_failure(channel, key);
            }
            _ => {}
        }
    }

    fn on_tick(&mut self, channel: &mut Channel, now: Ticks) {
        self.now_s = self.clock.unix_s(now);
        self.listeners.on_tick(channel);
        self.publish();
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
        self.linger_if_at_rest(channel, key, now);
    }

    fn drained(&self) -> bool {
        self.peers.is_empty()
    }

    fn tally(&self) -> ServerTally {
        self.tally
    }
}

impl Drop for KvShard {
    /// The store outlives a channel that ends before its connections do.
    fn drop(&mut self) {
        for (_, peer) in &mut self.peers {
            peer.connection.abandon(&self.shared.store);
        }
    }
}

/// Unix seconds from coarse ticks: the real-time clock is read once, so that setting it later
/// expires nothing.
struct UnixClock {
    started: Ticks,
    started_unix_ms: u64,
}

impl UnixClock {
    fn new(now: Ticks) -> Self {
        let real = clock_gettime(ClockId::Realtime);
        let seconds = u64::try_from(real.tv_sec).unwrap_or(0);
        let milliseconds = u64::try_from(real.tv_nsec).unwrap_or(0) / 1_000_000;
        Self { started: now, started_unix_ms: seconds * 1_000 + milliseconds }
    }

    fn unix_s(&self, now: Ticks) -> u32 {
        let passed_ms = now.as_millis().saturating_sub(self.started.as_millis());
        u32::try_from((self.started_unix_ms + passed_ms) / 1_000).unwrap_or(u32::MAX)
    }
}
