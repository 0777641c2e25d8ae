//! Connections that begin at a constant rate, with one request each.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent},
    scene::SceneError,
};
use crate::limits;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// An answered request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivalAnswer {
    pub(super) at: Instant,
    /// From the moment at which the connection was due.
    pub(super) latency: Duration,
    /// The process that answered.
    pub(super) by: u32,
}

/// Connections at a constant rate, whether or not those before are answered.
pub(super) struct Arrivals<'client> {
    client: &'client mut LoopClient,
    /// Places without a connection.
    free: Vec<usize>,
    next: Instant,
    pub(super) answers: Vec<ArrivalAnswer>,
}

impl<'client> Arrivals<'client> {
    /// From now on.
    pub(super) fn new(client: &'client mut LoopClient, server: SocketAddr) -> Self {
        let places = limits::SLOW_PLACES as usize;
        let first = client.add(places, server, AfterAnswer::Close);
        let free = (first..first + places).collect();
        Self { client, free, next: Instant::now(), answers: Vec::new() }
    }

    /// # Errors
    /// A connection failed, or more of them wait than there are places.
    pub(super) fn run_until(&mut self, end: Instant) -> Result<(), SceneError> {
        let interval = Duration::from_secs(1) / limits::SLOW_RATE;
        while self.next < end {
            let now = Instant::now();
            while self.next <= now {
                let place = self.free.pop().ok_or_else(|| {
                    SceneError::Unfit("too many connections wait for an answer".to_owned())
                })?;
                // A late start counts from the moment at which it was due.
                self.client.start_at(place, self.next);
                self.next += interval;
            }
            let wait = self.next.saturating_duration_since(Instant::now());
            for outcome in self.client.poll(wait)? {
                match outcome.event {
                    LoopEvent::Answered { latency, by } => {
                        self.answers.push(ArrivalAnswer { at: outcome.at, latency, by });
                        self.free.push(outcome.place);
                    }
                    LoopEvent::Failed(why) => return Err(SceneError::Unfit(why)),
                }
            }
        }
        Ok(())
    }

    /// All response times, and how long the others have waited, in seconds.
    pub(super) fn finish(self) -> Vec<f64> {
        let waiting = self.client.waiting();
        let answered = self.answers.iter().map(|it| it.latency);
        answered.chain(waiting).map(|it| it.as_secs_f64()).collect()
    }
}
