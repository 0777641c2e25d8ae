//! One HTTP/1 connection as a function of (bytes, now): no socket, no clock, no file.
//!
//! Read first: RFC 9112 §9 (connections; §9.3.2 pipelining, §9.6 closing); RFC 9110 §10.1.1.
//!
//! Inputs are [`on_bytes`](HttpConnection::on_bytes), [`on_end`](HttpConnection::on_end),
//! [`on_written`](HttpConnection::on_written), [`on_file_bytes`](HttpConnection::on_file_bytes),
//! [`on_timeout`](HttpConnection::on_timeout) and [`on_stop`](HttpConnection::on_stop). Each leaves
//! what is to be sent in the outbox of the [`InputContext`]. After each the shell
//!  1. writes the outbox, in order, empties it, and reports every write with `on_written`;
//!  2. takes an opened file out of the context if there is one, and keeps it until
//!     [`is_streaming`](HttpConnection::is_streaming) turns false;
//!  3. asks [`poll_file`](HttpConnection::poll_file) and writes the outbox again, then
//!     [`closed`](HttpConnection::closed), [`poll_half_close`](HttpConnection::poll_half_close) and
//!     [`wants_bytes`](HttpConnection::wants_bytes), in this order.
//!
//! ```text
//!            request read       content read          peer's end, bytes or time
//!   Head ──────────────▶ Content ──▶ Head       Linger ─────────────────────▶ Closed
//!    │ ▲                    │                     ▲
//!    │ └── file sent ─ Stream                     │ half-close
//!    └── refused, or "close" ──▶ Flush ── all written
//! ```
//!
//! Pure: bytes and `now` in, bytes and wishes out.
//!
//! Invariants
//! - Answers leave in the order of their requests: nothing is read from the inbox while a file is
//!   being streamed.
//! - With [`UNWRITTEN_BYTES_HIGH`] bytes unwritten no request is taken and no byte is asked for, so
//!   that a peer that does not read cannot make the server hold more.
//! - While anything is expected of the peer there is a deadline, and no byte of a request head
//!   moves it.

use super::content::{ContentProgress, DiscardedContent};
use super::date::Now;
use super::document_root::DocumentRoot;
use super::handler::{self, InputContext};
use super::limits::{CROWDED_IDLE_MS, LINGER_BYTES_MAX, READ_BYTES, UNWRITTEN_BYTES_HIGH};
use super::request::{self, FieldStorage, HeadRefusal, HttpRequest, Persistence};
use super::settings::HttpSettings;
use super::status::HttpStatus;
use super::stream::{BodyStream, FileRead};

/// Why a connection is over.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum HttpCloseReason {
    /// The peer closed, and every answer was written.
    PeerClosed,
    /// The server closed, and the peer followed or had its time.
    Finished,
    /// No request arrived for too long.
    Idle,
    /// A head, content or the reading of answers took too long.
    TooSlow,
    /// The peer reset the connection, or a write failed.
    Reset,
    /// A file could not be read, or was shorter than its header stated.
    FileChanged,
}

/// One peer's connection.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    phase: ConnectionPhase,
    /// Bytes that came and are not consumed: the start of a head, or requests that wait.
    inbox: Vec<u8>,
    /// How much of `inbox` was searched for the end of a head.
    searched: usize,
    /// The inbox may hold a request, and was left because too much is unwritten.
    held: bool,
    unwritten_bytes: usize,
    input_deadline_ms: u64,
    output_deadline_ms: u64,
    requests: u64,
    peer_ended: bool,
    stopping: bool,
    half_close: bool,
}

#[derive(Debug)]
enum ConnectionPhase {
    /// Between requests, or in the head of one.
    Head,
    /// In the content of a request that was answered.
    Content(DiscardedContent),
    /// A file is being sent; `after` is the next phase.
    Stream(Box<BodyStream>, After),
    /// The last answer is being written.
    Flush,
    /// Half-closed: bytes are thrown away until the peer closes (RFC 9112 §9.6).
    Linger {
        left_bytes: usize,
    },
    Closed(HttpCloseReason),
}

/// What follows an answer.
#[derive(Debug)]
pub(crate) enum After {
    NextRequest,
    Content(DiscardedContent),
    Close,
}

const NEVER: u64 = u64::MAX;

impl HttpConnection {
    /// A connection that was just accepted.
    pub(crate) fn new(now: &Now, settings: &HttpSettings) -> Self {
        Self {
            phase: ConnectionPhase::Head,
            inbox: Vec::new(),
            searched: 0,
            held: false,
            unwritten_bytes: 0,
            input_deadline_ms: now.ms + settings.head_timeout_ms,
            output_deadline_ms: NEVER,
            requests: 0,
            peer_ended: false,
            stopping: false,
            half_close: false,
        }
    }

    /// The next answer is the last: the server is stopping.
    pub(crate) fn answer_once(&mut self) {
        self.stopping = true;
    }

    // -- inputs

    /// Bytes came; they are not empty.
    pub(crate) fn on_bytes<S: DocumentRoot>(
        &mut self,
        bytes: &[u8],
        context: &mut InputContext<'_, S>,
    ) {
        if self.inbox.is_empty() {
            let consumed = self.advance(bytes, context);
            self.inbox.extend_from_slice(&bytes[consumed..]);
        } else {
            self.inbox.extend_from_slice(bytes);
            self.advance_inbox(context);
        }
        self.finish_input(context);
    }

    /// The peer will send nothing more.
    pub(crate) fn on_end<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        self.peer_ended = true;
        self.finish_input(context);
    }

    /// A write has completed; `len` is its bytes.
    pub(crate) fn on_written<S: DocumentRoot>(
        &mut self,
        len: usize,
        context: &mut InputContext<'_, S>,
    ) {
        self.unwritten_bytes -= len.min(self.unwritten_bytes);
        self.output_deadline_ms = if self.unwritten_bytes == 0 {
            NEVER
        } else {
            context.now.ms + context.settings.write_timeout_ms
        };
        if self.held && self.unwritten_bytes < UNWRITTEN_BYTES_HIGH {
            self.advance_inbox(context);
        } else if self.unwritten_bytes == 0 && self.inbox.is_empty() {
            // The wait for the next request begins when the peer has the answer, not before.
            if let ConnectionPhase::Head = self.phase {
                self.input_deadline_ms = context.now.ms + context.settings.idle_timeout_ms;
            }
        }
        self.finish_input(context);
    }

    /// The bytes that [`Self::poll_file`] asked for were read and handed to a write; `len` of them,
    /// 0 at the end of the file.
    pub(crate) fn on_file_bytes<S: DocumentRoot>(
        &mut self,
        len: usize,
        context: &mut InputContext<'_, S>,
    ) {
        let ConnectionPhase::Stream(stream, _) = &mut self.phase else { return };
        if !stream.on_file_bytes(len) {
            self.phase = ConnectionPhase::Closed(HttpCloseReason::FileChanged);
            return;
        }
        self.note_unwritten(len, context);
        self.leave_stream_if_done(context);
        self.finish_input(context);
    }

    /// The time of [`Self::deadline_ms`] has come.
    pub(crate) fn on_timeout<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        if context.now.ms >= self.output_deadline_ms {
            self.phase = ConnectionPhase::Closed(HttpCloseReason::TooSlow);
        }
        if context.now.ms < self.input_deadline_ms {
            return;
        }
        match self.phase {
            // Answers are still being written: their own deadline counts.
            ConnectionPhase::Head if self.unwritten_bytes > 0 && self.inbox.is_empty() => {
                self.input_deadline_ms = NEVER;
            }
            ConnectionPhase::Head if self.inbox.is_empty() => {
                self.phase = ConnectionPhase::Closed(HttpCloseReason::Idle)
            }
            ConnectionPhase::Head if self.held => self.input_deadline_ms = NEVER,
            ConnectionPhase::Head => {
                self.refuse(HttpStatus::RequestTimeout, context);
            }
            ConnectionPhase::Content(_) => {
                context.tally.rejected += 1;
                self.phase = ConnectionPhase::Closed(HttpCloseReason::TooSlow);
            }
            ConnectionPhase::Linger { .. } => {
                self.phase = ConnectionPhase::Closed(HttpCloseReason::Finished)
            }
            ConnectionPhase::Stream(..) | ConnectionPhase::Flush | ConnectionPhase::Closed(_) => {
                self.input_deadline_ms = NEVER
            }
        }
        self.finish_input(context);
    }

    /// The server stops: pending requests are answered, later ones are not read.
    pub(crate) fn on_stop<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        self.stopping = true;
        match &mut self.phase {
            // Requests that came are answered; the first answer says that it is the last.
            ConnectionPhase::Head if self.held => {}
            ConnectionPhase::Head | ConnectionPhase::Content(_) => {
                self.phase = ConnectionPhase::Flush
            }
            ConnectionPhase::Stream(_, after) => *after = After::Close,
            ConnectionPhase::Flush
            | ConnectionPhase::Linger { .. }
            | ConnectionPhase::Closed(_) => {}
        }
        self.finish_input(context);
    }

    // -- outputs

    /// The next read of the streamed file, if one is due. What comes before it goes to the outbox.
    pub(crate) fn poll_file<S: DocumentRoot>(
        &mut self,
        context: &mut InputContext<'_, S>,
    ) -> Option<FileRead> {
        let ConnectionPhase::Stream(stream, _) = &mut self.phase else { return None };
        let read = stream.poll_read(self.unwritten_bytes, context.out);
        if read.is_none() {
            self.leave_stream_if_done(context);
        }
        self.finish_input(context);
        read
    }

    /// Whether the shell must still hold the file that it took from an [`InputContext`].
    pub(crate) fn is_streaming(&self) -> bool {
        matches!(self.phase, ConnectionPhase::Stream(..))
    }

    /// Whether to close the sending side, behind everything written. True once.
    pub(crate) fn poll_half_close(&mut self) -> bool {
        std::mem::take(&mut self.half_close)
    }

    /// Why the connection is over, if it is.
    pub(crate) fn closed(&self) -> Option<HttpCloseReason> {
        match self.phase {
            ConnectionPhase::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Returns whether no response is unwritten and no request has begun.
    pub(crate) fn is_idle(&self) -> bool {
        let between = matches!(
            self.phase,
            ConnectionPhase::Head | ConnectionPhase::Linger { .. } | ConnectionPhase::Closed(_)
        );
        between && self.unwritten_bytes == 0 && self.inbox.is_empty()
    }

    /// Whether to read from the peer.
    pub(crate) fn wants_bytes(&self) -> bool {
        let open = matches!(
            self.phase,
            ConnectionPhase::Head | ConnectionPhase::Content(_) | ConnectionPhase::Linger { .. }
        );
        open && !self.peer_ended && !self.held && self.unwritten_bytes < UNWRITTEN_BYTES_HIGH
    }

    /// When [`Self::on_timeout`] is due.
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.input_deadline_ms.min(self.output_deadline_ms)
    }

    /// Whether it has waited for a request long enough to be closed for a new connection.
    pub(crate) fn may_give_way(&self, now: &Now, settings: &HttpSettings) -> bool {
        let waiting = matches!(self.phase, ConnectionPhase::Head) && self.inbox.is_empty();
        if !waiting || self.unwritten_bytes > 0 || self.input_deadline_ms == NEVER {
            return false;
        }
        let is_silent = self.requests == 0;
        let limit_ms = if is_silent { settings.head_timeout_ms } else { settings.idle_timeout_ms };
        now.ms >= self.input_deadline_ms.saturating_sub(limit_ms) + CROWDED_IDLE_MS
    }

    /// Closes it, as idle.
    pub(crate) fn give_way(&mut self) {
        self.phase = ConnectionPhase::Closed(HttpCloseReason::Idle);
    }

    // -- inside

    fn advance_inbox<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let consumed = self.advance(&inbox, context);
        if consumed < inbox.len() {
            inbox.drain(..consumed);
            self.inbox = inbox;
        }
    }

    /// Consumes what can be consumed of `bytes`, which begin with what the inbox held.
    fn advance<S: DocumentRoot>(
        &mut self,
        bytes: &[u8],
        context: &mut InputContext<'_, S>,
    ) -> usize {
        let mut consumed = 0;
        self.held = false;
        loop {
            let rest = &bytes[consumed..];
            match &mut self.phase {
                ConnectionPhase::Head if rest.is_empty() => break,
                // §2.2: empty lines before a request are left over from the content of another.
                // They have no deadline of their own, so they cannot hold a connection open.
                ConnectionPhase::Head if rest.starts_with(b"\r\n") => {
                    consumed += 2;
                    self.searched = 0;
                }
                ConnectionPhase::Head
                    if self.unwritten_bytes + context.out.len() >= UNWRITTEN_BYTES_HIGH =>
                {
                    self.held = true;
                    break;
                }
                ConnectionPhase::Head => match self.on_head(rest, context) {
                    Some(len) => consumed += len,
                    None => break,
                },
                ConnectionPhase::Content(content) => match content.on_bytes(rest) {
                    ContentProgress::Incomplete => return bytes.len(),
                    ContentProgress::Complete(len) => {
                        consumed += len;
                        self.await_request(context);
                    }
                    // The answer is on its way; what follows cannot be told apart any more.
                    ContentProgress::TooLarge | ContentProgress::Malformed => {
                        self.phase = ConnectionPhase::Flush
                    }
                },
                ConnectionPhase::Linger { left_bytes } => {
                    *left_bytes = left_bytes.saturating_sub(rest.len());
                    if *left_bytes == 0 {
                        self.phase = ConnectionPhase::Closed(HttpCloseReason::Finished);
                    }
                    return bytes.len();
                }
                ConnectionPhase::Stream(..) => break,
                ConnectionPhase::Flush | ConnectionPhase::Closed(_) => return bytes.len(),
            }
        }
        consumed
    }

    /// A head at the start of `rest`: `None` if it is not complete, else what was consumed.
    fn on_head<S: DocumentRoot>(
        &mut self,
        rest: &[u8],
        context: &mut InputContext<'_, S>,
    ) -> Option<usize> {
        let searched = std::mem::replace(&mut self.searched, 0);
        let mut refusal = None;
        // A head in small pieces is not parsed again for every piece.
        if searched == 0 || request::may_be_complete(rest, searched) {
            let mut storage: FieldStorage<'_> = [const { std::mem::MaybeUninit::uninit() }; _];
            match request::parse(rest, &mut storage) {
                Ok(Some(request)) if request.head_len <= context.settings.head_bytes_max => {
                    return Some(self.on_request(&request, rest, context));
                }
                Ok(Some(_)) => refusal = Some(HeadRefusal::HeadTooLarge),
                Ok(None) => {}
                Err(fault) => refusal = Some(fault),
            }
        }
        let refusal = match refusal {
            None if rest.len() < context.settings.head_bytes_max => {
                // The first head has had its time since the accept.
                if searched == 0 && self.requests > 0 {
                    self.input_deadline_ms = context.now.ms + context.settings.head_timeout_ms;
                }
                self.searched = rest.len();
                return None;
            }
            None => request::too_large(rest),
            Some(fault) => fault,
        };
        self.refuse(refusal.status(), context);
        Some(rest.len())
    }

    /// Answers a request whose head begins `rest`; returns what of `rest` belongs to it.
    fn on_request<S: DocumentRoot>(
        &mut self,
        request: &HttpRequest<'_, '_>,
        rest: &[u8],
        context: &mut InputContext<'_, S>,
    ) -> usize {
        let behind = &rest[request.head_len..];
        let mut content =
            DiscardedContent::new(request.framing, context.settings.content_bytes_max);
        let (content_len, complete) = match content.on_bytes(behind) {
            ContentProgress::Complete(len) => (len, true),
            ContentProgress::Incomplete => (behind.len(), false),
            ContentProgress::TooLarge => {
                self.refuse(HttpStatus::ContentTooLarge, context);
                return rest.len();
            }
            ContentProgress::Malformed => {
                self.refuse(HttpStatus::BadRequest, context);
                return rest.len();
            }
        };
        self.requests += 1;
        // A peer that waits for 100 gets the final answer at once, and then may or may not send the
        // content: only closing tells its next request from that (RFC 9110 §10.1.1).
        let unsure = request.expects_continue && !complete && behind.is_empty();
        let last = context.settings.requests_max.is_some_and(|max| self.requests >= max);
        let persistence = match request.persistence {
            _ if unsure || last || self.stopping => Persistence::Close,
            asked => asked,
        };
        let after = match persistence {
            Persistence::Close => After::Close,
            _ if !complete => After::Content(content),
            _ => After::NextRequest,
        };
        match handler::answer(request, persistence, context) {
            Some(stream) => self.phase = ConnectionPhase::Stream(Box::new(stream), after),
            None => self.enter(after, context),
        }
        request.head_len + content_len
    }

    /// Answers with an error and closes.
    fn refuse<S: DocumentRoot>(&mut self, status: HttpStatus, context: &mut InputContext<'_, S>) {
        context.tally.rejected += 1;
        handler::refuse(status, context);
        self.phase = ConnectionPhase::Flush;
    }

    fn enter<S: DocumentRoot>(&mut self, after: After, context: &InputContext<'_, S>) {
        match after {
            After::NextRequest => self.await_request(context),
            After::Content(content) => {
                self.phase = ConnectionPhase::Content(content);
                self.input_deadline_ms = context.now.ms + context.settings.content_timeout_ms;
            }
            After::Close => self.phase = ConnectionPhase::Flush,
        }
    }

    fn await_request<S: DocumentRoot>(&mut self, context: &InputContext<'_, S>) {
        self.phase = ConnectionPhase::Head;
        self.searched = 0;
        self.input_deadline_ms = context.now.ms + context.settings.idle_timeout_ms;
    }

    fn leave_stream_if_done<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        let ConnectionPhase::Stream(stream, after) = &mut self.phase else { return };
        if stream.is_done() {
            let after = std::mem::replace(after, After::Close);
            self.enter(after, context);
            self.advance_inbox(context);
        }
    }

    fn note_unwritten<S: DocumentRoot>(&mut self, len: usize, context: &InputContext<'_, S>) {
        if self.unwritten_bytes == 0 && len > 0 {
            self.output_deadline_ms = context.now.ms + context.settings.write_timeout_ms;
        }
        self.unwritten_bytes += len;
    }

    /// Counts the bytes that the input produced, and enters the next phase if nothing is awaited.
    fn finish_input<S: DocumentRoot>(&mut self, context: &mut InputContext<'_, S>) {
        self.note_unwritten(context.out.len(), context);
        match self.phase {
            ConnectionPhase::Head if self.peer_ended && !self.held => {
                self.phase = ConnectionPhase::Flush
            }
            ConnectionPhase::Content(_) if self.peer_ended => self.phase = ConnectionPhase::Flush,
            ConnectionPhase::Linger { .. } if self.peer_ended => {
                self.phase = ConnectionPhase::Closed(HttpCloseReason::Finished);
            }
            _ => {}
        }
        if let ConnectionPhase::Flush = self.phase
            && self.unwritten_bytes == 0
        {
            self.inbox = Vec::new();
            if self.peer_ended {
                self.phase = ConnectionPhase::Closed(HttpCloseReason::PeerClosed);
            } else {
                self.phase = ConnectionPhase::Linger { left_bytes: LINGER_BYTES_MAX };
                self.half_close = true;
                self.input_deadline_ms = context.now.ms + context.settings.linger_timeout_ms;
            }
        }
        debug_assert!(self.inbox.len() <= context.settings.head_bytes_max + 2 * READ_BYTES);
    }
}

#[cfg(test)]
mod tests;
