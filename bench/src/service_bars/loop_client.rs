//! Client of the daemon's bars: many connections in one channel of this process, each of which
//! sends a request, waits for the answer, and goes on as its place names.
//!
//! The servers are `answer_server.rs`, whose answers carry the number of their process.
//!
//! Invariant: a place has at most one connection, and each start of it leads to one answer or one
//! failure. A connection that ends while it is idle is a failure, too.

use crate::{answer_server::MESSAGE_BYTES, peer_channel::PeerError};
use megapipe::{Address, Channel, Completion, Config, ConnectOptions, Event, Handle, OpError};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Completions taken from the channel at a time.
const COMPLETIONS_PER_TURN: usize = 256;

/// What follows an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterAnswer {
    /// Nothing: the connection stays open and idle.
    Wait,
    /// The next request.
    Ask,
    /// The connection is reset, and another one is made.
    Reconnect,
    /// The connection is reset.
    Close,
    /// There is no request: the answer is the server's reset, and another connection is made.
    AwaitReset,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoopEvent {
    Answered {
        /// From the request, or from the start of the connection if it is the first one.
        latency: Duration,
        /// The process that answered.
        by: u32,
    },
    /// The connection ended or was not made; why.
    Failed(String),
}

/// What came of the request of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopOutcome {
    pub(super) place: usize,
    pub(super) at: Instant,
    pub(super) event: LoopEvent,
}

/// A connection, or room for one.
#[derive(Debug)]
struct LoopPlace {
    server: Address,
    after: AfterAnswer,
    handle: Option<Handle>,
    /// Of the request that is waited for.
    began: Instant,
    /// Bytes of the answer that are missing; 0: none is waited for.
    missing: usize,
    /// The process that the answer names.
    by: [u8; 4],
}

/// The client.
pub(super) struct LoopClient {
    channel: Channel,
    places: Vec<LoopPlace>,
    completions: Vec<Completion>,
    outcomes: Vec<LoopOutcome>,
}

impl LoopClient {
    /// A client with room for so many connections at once.
    pub(super) fn open(config: Config, connections: u32) -> Result<Self, PeerError> {
        let channel = Channel::create(config.max_lwsockets(connections))?;
        let completions = Vec::with_capacity(COMPLETIONS_PER_TURN);
        Ok(Self { channel, places: Vec::new(), completions, outcomes: Vec::new() })
    }

    /// Adds places without a connection. Returns the number of the first.
    pub(super) fn add(&mut self, count: usize, server: SocketAddr, after: AfterAnswer) -> usize {
        let first = self.places.len();
        self.places.extend((0..count).map(|_| LoopPlace {
            server: Address::from(server),
            after,
            handle: None,
            began: Instant::now(),
            missing: 0,
            by: [0; 4],
        }));
        first
    }

    /// Number of places whose request is not answered.
    pub(super) fn unanswered(&self) -> usize {
        self.places.iter().filter(|place| place.missing > 0).count()
    }

    /// Whether a place has a connection.
    pub(super) fn is_open(&self, place: usize) -> bool {
        self.places[place].handle.is_some()
    }

    /// How long each request that is not answered has waited.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Duration> {
        let waits = self.places.iter().filter(|place| place.missing > 0);
        waits.map(|place| place.began.elapsed())
    }

    /// Connects at a place and sends a request. A connection that is there is reset. Where the
    /// attempt fails at once, the next poll returns that.
    pub(super) fn start(&mut self, place: usize) {
        self.start_at(place, Instant::now());
    }

    /// As [`Self::start`], where the latency counts from `due`.
    pub(super) fn start_at(&mut self, place: usize, due: Instant) {
        self.release(place);
        let options = ConnectOptions::default().reset_on_close(true);
        let at = &mut self.places[place];
        at.began = due;
        at.missing = MESSAGE_BYTES;
        match self.channel.connect(&at.server, &options, place as u64) {
            Ok(handle) => at.handle = Some(handle),
            Err(error) => self.fail(place, error.to_string()),
        }
    }

    /// Connects at all these places, at most `at_once` at a time, and waits for an answer at each.
    ///
    /// # Errors
    /// [`PeerError::Exchange`] if one fails or `patience` ends.
    pub(super) fn open_all(
        &mut self,
        places: std::ops::Range<usize>,
        at_once: usize,
        patience: Duration,
    ) -> Result<Vec<LoopOutcome>, PeerError> {
        let deadline = Instant::now() + patience;
        let mut all = Vec::with_capacity(places.len());
        let mut next = places.clone();
        let mut started = 0;
        while all.len() < places.len() {
            while started - all.len() < at_once
                && let Some(place) = next.next()
            {
                self.start(place);
                started += 1;
            }
            if Instant::now() > deadline {
                return Err(PeerError::Exchange("not all connections were answered in time"));
            }
            for outcome in self.poll(Duration::from_millis(10))? {
                if matches!(outcome.event, LoopEvent::Failed(_)) {
                    return Err(PeerError::Exchange("a connection failed while all were opened"));
                }
                all.extend(places.contains(&outcome.place).then_some(outcome));
            }
        }
        Ok(all)
    }

    /// Goes on until `end`, and gives each outcome to `each`.
    pub(super) fn run_until(
        &mut self,
        end: Instant,
        mut each: impl FnMut(&mut Self, LoopOutcome),
    ) -> Result<(), PeerError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            for outcome in self.poll(left)? {
                each(self, outcome);
            }
        }
    }

    /// Takes what has come, or waits for it so long.
    ///
    /// # Errors
    /// That of the channel. What concerns one connection is an outcome.
    pub(super) fn poll(&mut self, wait: Duration) -> Result<Vec<LoopOutcome>, PeerError> {
        let wait = if self.outcomes.is_empty() { wait } else { Duration::ZERO };
        let mut completions = std::mem::take(&mut self.completions);
        self.channel.dispatch_many(&mut completions, COMPLETIONS_PER_TURN, Some(wait))?;
        for completion in completions.drain(..) {
            self.on_completion(completion);
        }
        self.completions = completions;
        Ok(std::mem::take(&mut self.outcomes))
    }

    fn on_completion(&mut self, Completion { handle, cookie, event }: Completion) {
        let place = cookie as usize;
        // A completion of a connection before the one that is there now.
        if self.places[place].handle != Some(handle) {
            return;
        }
        match event {
            Event::Connect(Ok(())) if self.awaits_reset(place) => self.read(place, handle),
            Event::Connect(Ok(())) => self.request(place, handle),
            Event::Connect(Err(OpError::Reset)) | Event::Read(Err(OpError::Reset))
                if self.awaits_reset(place) =>
            {
                self.on_answer(place, handle);
            }
            Event::Connect(Err(error)) | Event::Read(Err(error)) => {
                self.fail(place, error.to_string());
            }
            Event::Read(Ok(bytes)) if bytes.is_empty() => {
                self.fail(place, "the server closed the connection".to_owned());
            }
            Event::Read(Ok(bytes)) => {
                let at = &mut self.places[place];
                let received = MESSAGE_BYTES - at.missing;
                for (to, from) in at.by.iter_mut().skip(received).zip(bytes.iter()) {
                    *to = *from;
                }
                at.missing = at.missing.saturating_sub(bytes.len());
                let is_whole = at.missing == 0;
                drop(bytes);
                if is_whole {
                    self.on_answer(place, handle);
                } else {
                    self.read(place, handle);
                }
            }
            _ => {}
        }
    }

    fn awaits_reset(&self, place: usize) -> bool {
        self.places[place].after == AfterAnswer::AwaitReset
    }

    fn on_answer(&mut self, place: usize, handle: Handle) {
        let at = &self.places[place];
        let (now, by) = (Instant::now(), u32::from_le_bytes(at.by));
        let event = LoopEvent::Answered { latency: now - at.began, by };
        self.outcomes.push(LoopOutcome { place, at: now, event });
        match at.after {
            AfterAnswer::Wait => self.read(place, handle),
            AfterAnswer::Ask => {
                let at = &mut self.places[place];
                (at.began, at.missing) = (now, MESSAGE_BYTES);
                self.request(place, handle);
            }
            AfterAnswer::Reconnect | AfterAnswer::AwaitReset => self.start(place),
            AfterAnswer::Close => self.release(place),
        }
    }

    fn request(&mut self, place: usize, handle: Handle) {
        match self.channel.write_quiet(handle, vec![0; MESSAGE_BYTES]) {
            Ok(_) => self.read(place, handle),
            Err(error) => self.fail(place, error.to_string()),
        }
    }

    fn read(&mut self, place: usize, handle: Handle) {
        if let Err(error) = self.channel.read(handle, MESSAGE_BYTES) {
            self.fail(place, error.to_string());
        }
    }

    fn fail(&mut self, place: usize, why: String) {
        self.release(place);
        let event = LoopEvent::Failed(why);
        self.outcomes.push(LoopOutcome { place, at: Instant::now(), event });
    }

    /// Resets the connection of a place, if it has one.
    pub(super) fn release(&mut self, place: usize) {
        let at = &mut self.places[place];
        at.missing = 0;
        if let Some(handle) = at.handle.take() {
            // What it returns was not asked for.
            let _ = self.channel.unregister(handle);
        }
    }
}
