//! Requests to a shard's thread: attach a session, detach one, report, stop.
//!
//! They come over a queue with a doorbell of its own (an eventfd), which the thread looks at before
//! it sleeps and once in [`LOOK_POLLS`] polls. Nothing of this is on the path of a message.
//!
//! [`LOOK_POLLS`]: crate::limits::LOOK_POLLS

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use megapipe_link::LinkError;
use megapipe_stack::{ConnId, DatagramId};
use rustix::event::{EventfdFlags, eventfd};

use crate::descriptors::{ShareToken, TokenRequest};
use crate::error::ShardAttachError;
use crate::observe::{AnswerPage, ServiceQuery, Viewer};
use crate::remote::session_region::ServerHalf;
use crate::remote::shard::{SessionId, SessionLimits, ShardReport};

/// Takes a page, on the shard's thread.
pub(crate) type OnPage = Box<dyn FnOnce(AnswerPage) + Send>;

pub(super) enum ShardRequest {
    Attach {
        half: Box<ServerHalf>,
        limits: SessionLimits,
        answer: Sender<Result<SessionId, ShardAttachError>>,
    },
    Detach(SessionId),
    Report(Sender<ShardReport>),
    /// A page for a process that asks.
    Page {
        query: ServiceQuery,
        viewer: Viewer,
        answer: OnPage,
    },
    Token(TokenChange),
    Recount,
    Stop,
}

/// What happens to a token outside of its shards.
pub(crate) enum TokenChange {
    /// Another token owns from now on what this one owns.
    Copy(Arc<TokenRequest>, Arc<ShareToken>),
    /// The token owns these connections no more.
    Release(Arc<TokenRequest>, Vec<ConnId>),
    /// The token owns these endpoints no more.
    ReleaseEndpoints(Arc<TokenRequest>, Vec<DatagramId>),
    /// No process holds the token of this number any more.
    End(u64),
}

/// The thread's end of the queue.
pub(super) struct RequestQueue {
    queue: Receiver<ShardRequest>,
    bell: Arc<OwnedFd>,
}

impl RequestQueue {
    /// Both ends of a queue of requests.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub(super) fn new() -> Result<(RequestSender, Self), LinkError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags)
            .map_err(|errno| LinkError::Io { what: "eventfd", source: errno.into() })?;
        let (bell, (sender, queue)) = (Arc::new(bell), channel());
        Ok((RequestSender { queue: sender, bell: Arc::clone(&bell) }, Self { queue, bell }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next request. `None`: there is none now.
    pub(super) fn next(&self) -> Option<ShardRequest> {
        self.queue.try_recv().ok()
    }

    /// Rings the bell again: requests are left.
    pub(super) fn ring_again(&self) {
        // A counter that is full rings as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Clears the bell. Take the requests afterwards.
    pub(super) fn clear(&self) {
        // Without a ring there is nothing to clear.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }
}

/// The other end.
pub(super) struct RequestSender {
    queue: Sender<ShardRequest>,
    bell: Arc<OwnedFd>,
}

impl RequestSender {
    /// Sends a request. If the thread has ended it is dropped, and with it where its answer would
    /// go.
    pub(super) fn send(&self, request: ShardRequest) {
        let _ = self.queue.send(request);
        // A counter that is full rings as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

/// A shard on a thread of its own, which any number of sessions share. Dropping it ends the
/// sessions, and the thread.
pub struct ShardHandle {
    requests: RequestSender,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
}

impl ShardHandle {
    pub(super) const fn new(
        requests: RequestSender,
        thread: JoinHandle<Result<(), LinkError>>,
    ) -> Self {
        Self { requests, thread: Some(thread) }
    }

    /// Adds a session. The other half of its region is the application's.
    ///
    /// # Errors
    /// [`ShardAttachError`]: the shard has as many sessions as it can, or has ended.
    pub fn attach(
        &self,
        half: ServerHalf,
        limits: SessionLimits,
    ) -> Result<SessionId, ShardAttachError> {
        let (answer, answered) = channel();
        self.requests.send(ShardRequest::Attach { half: Box::new(half), limits, answer });
        answered.recv().unwrap_or(Err(ShardAttachError::Ended))
    }

    /// Ends a session whose application is gone, or is to go: what it has handed over is sent, then
    /// FIN, or RST if it has not read all that was received. Does not wait for it.
    pub fn detach(&self, session: SessionId) {
        self.requests.send(ShardRequest::Detach(session));
    }

    /// What the shard counts. `None`: it has ended.
    #[must_use]
    pub fn report(&self) -> Option<ShardReport> {
        let (answer, answered) = channel();
        self.requests.send(ShardRequest::Report(answer));
        answered.recv().ok()
    }

    /// Asks for a page of what the shard shows. `answer` gets it, on the shard's thread; it is
    /// dropped if the shard has ended.
    pub(crate) fn ask(&self, query: ServiceQuery, viewer: Viewer, answer: OnPage) {
        self.requests.send(ShardRequest::Page { query, viewer, answer });
    }

    /// Something has happened to a token. Requests are carried out in order, so a session that is
    /// attached later finds what it may adopt.
    pub(crate) fn change_token(&self, change: TokenChange) {
        self.requests.send(ShardRequest::Token(change));
    }

    /// Looks which connections of the sessions are over, and grants credit that quotas withheld.
    pub fn recount(&self) {
        self.requests.send(ShardRequest::Recount);
    }

    /// Whether the shard's thread runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Ends the sessions and the thread, and waits for it.
    ///
    /// # Errors
    /// Why the thread has ended before.
    pub fn stop(mut self) -> Result<(), LinkError> {
        self.requests.send(ShardRequest::Stop);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            // A panic was printed.
            Some(Err(_)) | None => Err(LinkError::Gone { driver: "the server" }),
        }
    }
}

impl Drop for ShardHandle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.requests.send(ShardRequest::Stop);
            // A panic of the thread was printed; nothing else is left to do.
            let _ = thread.join();
        }
    }
}
