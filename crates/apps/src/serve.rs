//! Framework of all servers: threads and channels, pinning, listeners, shutdown, live counters.
//!
//! In: [`ServeArgs`] (the options that every server has), a [`ServerProperties`] (its name and
//! where it listens unless told otherwise), and a factory that makes one [`ServerShard`] for each
//! channel, on that channel's own thread. Out: a server that runs until SIGINT or SIGTERM
//! ([`serve`]), or one that a test starts and stops in its own process ([`start`]).
//!
//! Read first: [`ServerShard`], the whole contract between a server and this frame; then
//! `serve/shard_loop.rs`, which calls it.
//!
//! Invariants
//! - Shards share nothing through the frame. Each lives and dies on one thread.
//! - `start` returns when every channel listens, or with the first error and nothing left running.
//! - The first signal drains: no new connections, answers that are owed are sent. The second one,
//!   or the end of `--drain`, stops.

mod admission;
mod args;
mod descriptors;
mod error;
mod layout;
mod listening;
mod plan;
mod pulse;
mod running;
mod shard_loop;
mod signals;
mod stats;
mod supervise;
mod ticks;

use megapipe::{Channel, Completion, Event, Handle, ReadBuf};

pub use args::{DriverName, ServeArgs};
pub use error::ServeError;
pub use layout::{CpuList, CpuListError};
pub use listening::{FRAME_COOKIES, ServerListeners};
pub(crate) use listening::{ServerEndpoint, end_of_keys};
pub use plan::{ChannelPlan, Reasoned, ServerPlan, plan_server};
pub use running::{Running, start};
pub(crate) use running::{raise_descriptor_limit, start_threads};
pub(crate) use shard_loop::{
    ChannelReady, ReadySender, ServerControl, ServerPhase, ShardPlan, driver_of,
};
pub(crate) use signals::{Notices, SupervisorNotice};
pub use stats::ServerTally;
pub use supervise::serve;
pub(crate) use supervise::supervise;
pub use ticks::Ticks;

/// Properties of a server that are known before it runs.
#[derive(Copy, Clone, Debug)]
pub struct ServerProperties {
    /// Its name, as in `megapipe serve NAME`.
    pub name: &'static str,
    /// Where it listens if no `--listen` is given: an address as [`megapipe::Address`] reads it.
    pub listen_default: &'static str,
    /// Files that one connection may have open.
    pub files_per_connection: u32,
    /// Whether it answers with statuses as HTTP has them, which `--stats` counts.
    pub has_statuses: bool,
}

/// The part of a server that lives on one channel. Everything is called on the channel's own
/// thread, so a shard needs no lock and need not be `Send`.
///
/// Order of calls: the factory, then any number of `on_completion` and `on_tick`, then `drain`
/// once, then `end_if_idle` for each connection among more of both, until `drained` returns
/// true or the drain time-out has passed.
pub trait ServerShard {
    /// An operation has completed: one that the shard asked for, or an accept of one of its
    /// [`ServerListeners`] (then [`ServerListeners::index_of`] knows the cookie). Must not block.
    fn on_completion(&mut self, channel: &mut Channel, done: Completion, now: Ticks);

    /// Bytes were read: the most frequent completion, in parts, so that it need not be put
    /// together only to be taken apart. `of` is its handle and cookie. A shard that has no use for
    /// that leaves it to `on_completion`.
    #[inline]
    fn on_read(&mut self, channel: &mut Channel, of: (Handle, u64), data: ReadBuf, now: Ticks) {
        let (handle, cookie) = of;
        let event = Event::Read(Ok(data));
        self.on_completion(channel, Completion { handle, cookie, event }, now);
    }

    /// About [`TICK`](crate::limits::TICK) has passed, or [`REST_TICK`](crate::limits::REST_TICK)
    /// while nothing happens: time for timeouts and other rounds.
    fn on_tick(&mut self, _channel: &mut Channel, _now: Ticks) {}

    /// The server is to end: call [`ServerListeners::close`], and end connections from now on when
    /// nothing is owed to their peers. Returns a number above the keys of all connections, which
    /// are ended a few at a time: with a million of them, so many completions take memory.
    fn drain(&mut self, channel: &mut Channel) -> usize;

    /// While draining: ends the connection with this key, if there is one to which nothing is owed.
    fn end_if_idle(&mut self, channel: &mut Channel, key: usize, now: Ticks);

    /// Whether nothing is owed any more, so that the channel may be dropped. Asked after each
    /// completion while draining.
    fn drained(&self) -> bool;

    /// What the shard has done so far. Asked once per tick and at the end.
    fn tally(&self) -> ServerTally;
}

/// What a factory gets to make a shard from.
pub struct ShardSetup<'a> {
    /// Which of the server's channels this is, from 0.
    pub index: usize,
    /// How many channels the server has.
    pub count: usize,
    /// The channel, which listens but does not accept yet.
    pub channel: &'a mut Channel,
    /// Its listeners, to be kept by the shard. [`ServerListeners::start`] begins accepting.
    pub listeners: ServerListeners,
    /// Bytes of one receive buffer: the longest read that completes in one piece.
    pub buffer_len: usize,
    /// The time.
    pub now: Ticks,
}
