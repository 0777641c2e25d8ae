//! The HTTP server of one channel: connections on one side, the channel on the other.
//!
//! Everything that is decided is decided in `connection.rs` and below; this file carries it out.
//! A connection's cookie is its index in a table, a file's is that of its connection with
//! [`FILE_COOKIE`] added, so a completion finds its connection without a search.
//!
//! Invariants
//! - At most one read is outstanding per connection, and at most one per streamed file.
//! - All responses of one poll leave in one write, unless they share memory.
//! - A connection leaves the table in one place, [`HttpShard::close`], and its file with it.

use std::os::fd::OwnedFd;

use megapipe::{
    Accept, Accepted, Channel, Completion, Connection as AcceptedAs, Disconnect, Event, Handle,
    OpError, Payload, ReadBuf, SubmitError,
};
use rustix::time::{ClockId, clock_gettime};
use slab::Slab;

use super::connection::{HttpCloseReason, HttpConnection};
use super::date::{self, Now};
use super::files::ServedFiles;
use super::handler::InputContext;
use super::limits::{READ_BYTES, SWEEP_MS};
use super::outbox::{HttpOutbox, OutboxPiece};
use super::settings::HttpSettings;
use crate::serve::{
    FRAME_COOKIES, ServeError, ServerListeners, ServerShard, ServerTally, ShardSetup, Ticks,
    end_of_keys,
};

/// Distinguishes a file's cookie from its connection's.
const FILE_COOKIE: u64 = 1 << 62;

const _: () = assert!(FILE_COOKIE < FRAME_COOKIES);

/// One channel's part of the server.
#[derive(Debug)]
pub(super) struct HttpShard {
    peers: Slab<HttpPeer>,
    listeners: ServerListeners,
    read_len: usize,
    draining: bool,
    swept_ms: u64,
    shared: HttpShared,
}

/// State that all connections share.
#[derive(Debug)]
struct HttpShared {
    now: Now,
    settings: HttpSettings,
    files: ServedFiles,
    out: HttpOutbox,
    tally: ServerTally,
}

#[derive(Debug)]
struct HttpPeer {
    connection: HttpConnection,
    handle: Handle,
    /// The file being streamed, and whether a read of it is outstanding.
    file: Option<Handle>,
    reading: bool,
    listener: u8,
}

/// Memory of an idle connection here, in addition to the channel's.
const _: () = assert!(size_of::<HttpPeer>() <= 256);

impl HttpShard {
    pub(super) fn new(
        setup: ShardSetup<'_>,
        settings: HttpSettings,
        files: ServedFiles,
    ) -> Result<Self, ServeError> {
        let ShardSetup { index, channel, mut listeners, buffer_len, now, .. } = setup;
        let read_len = READ_BYTES.min(buffer_len);
        let accept = Accept::lwsocket(u32::MAX).first_read(read_len);
        listeners.start(channel, accept).map_err(|source| ServeError::SetUp { index, source })?;
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), index);
        let shared = HttpShared {
            now: read_clock(now),
            settings,
            files,
            out: HttpOutbox::new(seed),
            tally: ServerTally::default(),
        };
        Ok(Self {
            peers: listeners.peer_table(),
            listeners,
            read_len,
            draining: false,
            swept_ms: now.as_millis(),
            shared,
        })
    }

    fn on_accept(&mut self, channel: &mut Channel, accepted: Accepted, listener: usize) {
        self.listeners.on_accept(channel, listener);
        // The accepts ask for lwsockets; a descriptor would be closed by dropping it.
        let AcceptedAs::Lwsocket(handle) = accepted.connection else { return };
        self.shared.tally.accepted += 1;
        let mut connection = HttpConnection::new(&self.shared.now, &self.shared.settings);
        if self.draining {
            connection.answer_once();
        }
        let listener = listener as u8;
        // The first read was asked for with the accept.
        let peer = HttpPeer { connection, handle, file: None, reading: true, listener };
        let key = self.peers.insert(peer);
        if channel.set_cookie(handle, key as u64).is_err() {
            self.close(channel, key, HttpCloseReason::Reset);
        }
    }

    fn on_read(&mut self, channel: &mut Channel, key: usize, data: &ReadBuf) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.reading = false;
        }
        self.shared.tally.bytes_in += data.len() as u64;
        self.process(channel, key, |connection, context| match data.len() {
            0 => connection.on_end(context),
            _ => connection.on_bytes(data, context),
        });
    }

    fn on_written(&mut self, channel: &mut Channel, key: usize, len: usize) {
        self.shared.tally.bytes_out += len as u64;
        self.process(channel, key, |connection, context| connection.on_written(len, context));
    }

    /// Bytes of a file go on to the peer from the memory they were read into.
    fn on_file_bytes(&mut self, channel: &mut Channel, key: usize, read: Result<ReadBuf, OpError>) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let len = match read {
            Ok(data) if !data.is_empty() => {
                let len = data.len();
                if channel.write(peer.handle, data).is_err() {
                    return self.close(channel, key, HttpCloseReason::Reset);
                }
                len
            }
            // The end of the file came too soon, or it cannot be read any more.
            Ok(_) | Err(_) => 0,
        };
        self.process(channel, key, |connection, context| connection.on_file_bytes(len, context));
    }

    /// Gives a connection one input and carries out what follows from it.
    fn process(
        &mut self,
        channel: &mut Channel,
        key: usize,
        input: impl FnOnce(&mut HttpConnection, &mut InputContext<'_, ServedFiles>),
    ) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let carried_out = peer.process(channel, key, &mut self.shared, self.read_len, input);
        self.shared.out.clear();
        if let Some(reason) = carried_out.unwrap_or(Some(HttpCloseReason::Reset)) {
            self.close(channel, key, reason);
        }
    }

    fn close(&mut self, channel: &mut Channel, key: usize, reason: HttpCloseReason) {
        let Some(peer) = self.peers.try_remove(key) else { return };
        self.shared.tally.closed += 1;
        let cut_off = match reason {
            HttpCloseReason::PeerClosed | HttpCloseReason::Finished | HttpCloseReason::Idle => {
                false
            }
            HttpCloseReason::Reset => !peer.connection.is_idle(),
            HttpCloseReason::TooSlow | HttpCloseReason::FileChanged => true,
        };
        self.shared.tally.failed += u64::from(cut_off);
        if cut_off && reason != HttpCloseReason::Reset {
            // What was promised does not come: a reset says so, and frees the unsent at once.
            let _ = channel.disconnect(peer.handle, Disconnect::Reset);
        }
        // Fails only for a handle that is gone already, which is what was wanted.
        let _ = channel.unregister(peer.handle);
        if let Some(file) = peer.file {
            let _ = channel.unregister(file);
        }
        self.listeners.on_close(channel, usize::from(peer.listener));
    }

    /// Deadlines are looked at now and then, all of them: that is less work than keeping them in
    /// order with every request.
    fn sweep(&mut self, channel: &mut Channel) {
        let HttpShared { now, settings, .. } = &self.shared;
        if now.ms < self.swept_ms + SWEEP_MS {
            return;
        }
        self.swept_ms = now.ms;
        let due: Vec<(usize, bool)> = self
            .peers
            .iter()
            .filter_map(|(key, peer)| {
                let gives_way = peer.connection.may_give_way(now, settings)
                    && self.listeners.is_full(usize::from(peer.listener));
                (gives_way || peer.connection.deadline_ms() <= now.ms).then_some((key, gives_way))
            })
            .collect();
        for (key, gives_way) in due {
            self.process(channel, key, |connection, context| {
                if gives_way { connection.give_way() } else { connection.on_timeout(context) }
            });
        }
    }
}

impl HttpPeer {
    /// One input and its consequences; the outer error means that the handle is of no more use,
    /// the inner value why the connection is over, if it is.
    fn process(
        &mut self,
        channel: &mut Channel,
        key: usize,
        shared: &mut HttpShared,
        read_len: usize,
        input: impl FnOnce(&mut HttpConnection, &mut InputContext<'_, ServedFiles>),
    ) -> Result<Option<HttpCloseReason>, SubmitError> {
        let mut context = InputContext {
            now: &shared.now,
            settings: &shared.settings,
            document_root: &mut shared.files,
            out: &mut shared.out,
            tally: &mut shared.tally,
            opened: None,
        };
        input(&mut self.connection, &mut context);
        self.write_out(channel, context.out)?;
        loop {
            if let Some(fd) = context.opened.take() {
                self.take_file(channel, key, fd, &mut context);
            }
            let read = self.connection.poll_file(&mut context);
            self.write_out(channel, context.out)?;
            if let (Some(read), Some(file)) = (read, self.file) {
                channel.read_at(file, read.offset, read.len)?;
            }
            // The end of one streamed file may be the start of the next, asked for behind it.
            if context.opened.is_none() {
                break;
            }
        }
        if !self.connection.is_streaming()
            && let Some(file) = self.file.take()
        {
            channel.unregister(file)?;
        }
        if let Some(reason) = self.connection.closed() {
            return Ok(Some(reason));
        }
        if self.connection.poll_half_close() {
            channel.disconnect(self.handle, Disconnect::Write)?;
        }
        if self.connection.wants_bytes() && !self.reading {
            self.reading = true;
            channel.read(self.handle, read_len)?;
        }
        Ok(None)
    }

    /// Writes the outbox and empties it.
    fn write_out(&self, channel: &mut Channel, out: &mut HttpOutbox) -> Result<(), SubmitError> {
        if out.is_copied() {
            if out.bytes.is_empty() {
                return Ok(());
            }
            self.copy(channel, &out.bytes)?;
        } else {
            for piece in out.pieces() {
                match piece {
                    OutboxPiece::Copied(bytes) => self.copy(channel, bytes)?,
                    OutboxPiece::Shared(memory, range) => {
                        channel.write(self.handle, Payload::shared(memory, range))?;
                    }
                }
            }
        }
        out.clear();
        Ok(())
    }

    fn copy(&self, channel: &mut Channel, bytes: &[u8]) -> Result<(), SubmitError> {
        let mut buffer = channel.alloc(bytes.len());
        buffer.extend_from_slice(bytes);
        channel.write(self.handle, buffer)
    }

    fn take_file(
        &mut self,
        channel: &mut Channel,
        key: usize,
        fd: OwnedFd,
        context: &mut InputContext<'_, ServedFiles>,
    ) {
        if let Some(before) = self.file.take() {
            let _ = channel.unregister(before);
        }
        match channel.register(fd, key as u64 | FILE_COOKIE, None) {
            Ok(file) => self.file = Some(file),
            // No room for another handle, and the head is on its way: as if the file had ended.
            Err(_) => self.connection.on_file_bytes(0, context),
        }
    }
}

impl ServerShard for HttpShard {
    fn on_completion(&mut self, channel: &mut Channel, done: Completion, now: Ticks) {
        self.shared.now.ms = now.as_millis();
        let key = (done.cookie & !FILE_COOKIE) as usize;
        let of_file = done.cookie & (FILE_COOKIE | FRAME_COOKIES) == FILE_COOKIE;
        match done.event {
            Event::Read(read) if of_file => self.on_file_bytes(channel, key, read),
            Event::Read(Ok(data)) => self.on_read(channel, key, &data),
            Event::Write(Ok(len)) => self.on_written(channel, key, len),
            Event::Accept(accepted) => match (accepted, self.listeners.index_of(done.cookie)) {
                (Ok(accepted), Some(listener)) => self.on_accept(channel, accepted, listener),
                (Err(_), Some(listener)) => self.listeners.on_accept_error(listener),
                (_, None) => {}
            },
            Event::Read(Err(OpError::NoBuffers)) => {
                // All receive buffers are on their way out; the next read queues for one.
                if let Some(peer) = self.peers.get_mut(key) {
                    peer.reading = false;
                }
                self.process(channel, key, |_, _| {});
            }
            Event::Read(Err(_)) | Event::Write(Err(_)) | Event::Disconnect(Err(_)) => {
                // Mostly because the peer reset the connection.
                self.close(channel, key, HttpCloseReason::Reset);
            }
            _ => {}
        }
    }

    fn on_tick(&mut self, channel: &mut Channel, now: Ticks) {
        self.shared.now = read_clock(now);
        self.listeners.on_tick(channel);
        self.sweep(channel);
    }

    fn drain(&mut self, channel: &mut Channel) -> usize {
        self.draining = true;
        self.listeners.close(channel);
        end_of_keys(&self.peers)
    }

    fn end_if_idle(&mut self, channel: &mut Channel, key: usize, _now: Ticks) {
        self.process(channel, key, |connection, context| connection.on_stop(context));
    }

    fn drained(&self) -> bool {
        self.peers.is_empty()
    }

    fn tally(&self) -> ServerTally {
        let (status_4xx, status_5xx) = self.shared.out.errors();
        ServerTally { status_4xx, status_5xx, ..self.shared.tally }
    }
}

/// The time of day goes with the tick: a `Date` is at most one tick late.
fn read_clock(now: Ticks) -> Now {
    let unix_s = clock_gettime(ClockId::RealtimeCoarse).tv_sec;
    Now { ms: now.as_millis(), unix_s, date: date::format(unix_s) }
}
