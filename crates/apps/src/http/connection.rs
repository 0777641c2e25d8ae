//! One HTTP/1 connection as a function of (bytes, now): no socket, no clock, no file.
//!
//! Read first: RFC 9112 §9 (connections; §9.3.2 pipelining, §9.6 closing); RFC 9110 §10.1.1.
//!
//! Inputs are [`on_bytes`](Connection::on_bytes), [`on_end`](Connection::on_end),
//! [`on_written`](Connection::on_written), [`on_file_bytes`](Connection::on_file_bytes),
//! [`on_timeout`](Connection::on_timeout) and [`on_stop`](Connection::on_stop). Each leaves what is
//! to be sent in the turn's outbox. After each the shell
//!  1. writes the outbox, in order, empties it, and reports every write with `on_written`;
//!  2. takes an opened file out of the turn if there is one, and keeps it until
//!     [`is_streaming`](Connection::is_streaming) turns false;
//!  3. asks [`poll_file`](Connection::poll_file) and writes the outbox again, then
//!     [`closed`](Connection::closed), [`poll_half_close`](Connection::poll_half_close) and
//!     [`wants_bytes`](Connection::wants_bytes), in this order.
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

use super::content::{Content, Progress};
use super::date::DATE_BYTES;
use super::exchange;
use super::limits::{CROWDED_IDLE_MS, LINGER_BYTES_MAX, READ_BYTES, UNWRITTEN_BYTES_HIGH};
use super::outbox::Outbox;
use super::request::{self, FieldStorage, Persistence, Refusal, Request};
use super::response::Status;
use super::settings::Settings;
use super::site::Site;
use super::stream::{FileRead, Stream};
use crate::serve::Tally;

/// The time, as the shell's clock tells it.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Now {
    /// Milliseconds of a clock that never goes back.
    pub(crate) ms: u64,
    /// Seconds since 1970.
    pub(crate) unix_s: i64,
    /// `unix_s` as a `Date` field writes it.
    pub(crate) date: [u8; DATE_BYTES],
}

/// What an input may use and leave behind.
#[derive(Debug)]
pub(crate) struct Turn<'t, S: Site> {
    pub(crate) now: &'t Now,
    pub(crate) settings: &'t Settings,
    pub(crate) site: &'t mut S,
    pub(crate) out: &'t mut Outbox,
    pub(crate) tally: &'t mut Tally,
    /// The file that the connection has begun to stream.
    pub(crate) opened: Option<S::File>,
}

/// Why a connection is over.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum CloseReason {
    /// The peer closed, and every answer was written.
    PeerClosed,
    /// The server closed, and the peer followed or had its time.
    Finished,
    /// Nothing was asked for too long.
    Idle,
    /// A head, content or the reading of answers took too long.
    TooSlow,
    /// The peer reset the connection, or a write failed.
    Reset,
    /// A file could not be read, or was shorter than its head had said.
    FileChanged,
}

/// One peer's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    phase: Phase,
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
enum Phase {
    /// Between requests, or in the head of one.
    Head,
    /// In the content of a request that was answered.
    Content(Content),
    /// A file is on its way; then comes what `after` says.
    Stream(Box<Stream>, After),
    /// The last answer is being written.
    Flush,
    /// Half-closed: bytes are thrown away until the peer closes (RFC 9112 §9.6).
    Linger {
        left_bytes: usize,
    },
    Closed(CloseReason),
}

/// What follows an answer.
#[derive(Debug)]
pub(crate) enum After {
    NextRequest,
    Content(Content),
    Close,
}

const NEVER: u64 = u64::MAX;

impl Connection {
    /// A connection that was just accepted.
    pub(crate) fn new(now: &Now, settings: &Settings) -> Self {
        Self {
            phase: Phase::Head,
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
    pub(crate) fn on_bytes<S: Site>(&mut self, bytes: &[u8], turn: &mut Turn<'_, S>) {
        if self.inbox.is_empty() {
            let consumed = self.advance(bytes, turn);
            self.inbox.extend_from_slice(&bytes[consumed..]);
        } else {
            self.inbox.extend_from_slice(bytes);
            self.advance_inbox(turn);
        }
        self.settle(turn);
    }

    /// The peer will send nothing more.
    pub(crate) fn on_end<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        self.peer_ended = true;
        self.settle(turn);
    }

    /// A write was completed, of so many bytes.
    pub(crate) fn on_written<S: Site>(&mut self, len: usize, turn: &mut Turn<'_, S>) {
        self.unwritten_bytes -= len.min(self.unwritten_bytes);
        self.output_deadline_ms = if self.unwritten_bytes == 0 {
            NEVER
        } else {
            turn.now.ms + turn.settings.write_timeout_ms
        };
        if self.held && self.unwritten_bytes < UNWRITTEN_BYTES_HIGH {
            self.advance_inbox(turn);
        } else if self.unwritten_bytes == 0 && self.inbox.is_empty() {
            // The wait for the next request begins when the peer has the answer, not before.
            if let Phase::Head = self.phase {
                self.input_deadline_ms = turn.now.ms + turn.settings.idle_timeout_ms;
            }
        }
        self.settle(turn);
    }

    /// The bytes that [`Self::poll_file`] asked for were read and handed to a write; `len` of them,
    /// 0 at the end of the file.
    pub(crate) fn on_file_bytes<S: Site>(&mut self, len: usize, turn: &mut Turn<'_, S>) {
        let Phase::Stream(stream, _) = &mut self.phase else { return };
        if !stream.on_file_bytes(len) {
            self.phase = Phase::Closed(CloseReason::FileChanged);
            return;
        }
        self.note_unwritten(len, turn);
        self.leave_stream_if_done(turn);
        self.settle(turn);
    }

    /// The time of [`Self::deadline_ms`] has come.
    pub(crate) fn on_timeout<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        if turn.now.ms >= self.output_deadline_ms {
            self.phase = Phase::Closed(CloseReason::TooSlow);
        }
        if turn.now.ms < self.input_deadline_ms {
            return;
        }
        match self.phase {
            // Answers are still being written: their own deadline counts.
            Phase::Head if self.unwritten_bytes > 0 && self.inbox.is_empty() => {
                self.input_deadline_ms = NEVER;
            }
            Phase::Head if self.inbox.is_empty() => self.phase = Phase::Closed(CloseReason::Idle),
            Phase::Head if self.held => self.input_deadline_ms = NEVER,
            Phase::Head => {
                self.refuse(Status::RequestTimeout, turn);
            }
            Phase::Content(_) => {
                turn.tally.rejected += 1;
                self.phase = Phase::Closed(CloseReason::TooSlow);
            }
            Phase::Linger { .. } => self.phase = Phase::Closed(CloseReason::Finished),
            Phase::Stream(..) | Phase::Flush | Phase::Closed(_) => self.input_deadline_ms = NEVER,
        }
        self.settle(turn);
    }

    /// The server stops: what was asked is answered, nothing more is.
    pub(crate) fn on_stop<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        self.stopping = true;
        match &mut self.phase {
            // Requests that came are answered; the first answer says that it is the last.
            Phase::Head if self.held => {}
            Phase::Head | Phase::Content(_) => self.phase = Phase::Flush,
            Phase::Stream(_, after) => *after = After::Close,
            Phase::Flush | Phase::Linger { .. } | Phase::Closed(_) => {}
        }
        self.settle(turn);
    }

    // -- outputs

    /// The next read of the streamed file, if one is due. What comes before it goes to the outbox.
    pub(crate) fn poll_file<S: Site>(&mut self, turn: &mut Turn<'_, S>) -> Option<FileRead> {
        let Phase::Stream(stream, _) = &mut self.phase else { return None };
        let read = stream.poll_read(self.unwritten_bytes, turn.out);
        if read.is_none() {
            self.leave_stream_if_done(turn);
        }
        self.settle(turn);
        read
    }

    /// Whether the shell must still hold the file that it took from a turn.
    pub(crate) fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Stream(..))
    }

    /// Whether to close the sending side, behind everything written. True once.
    pub(crate) fn poll_half_close(&mut self) -> bool {
        std::mem::take(&mut self.half_close)
    }

    /// Why the connection is over, if it is.
    pub(crate) fn closed(&self) -> Option<CloseReason> {
        match self.phase {
            Phase::Closed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether nothing is owed: no answer is unwritten and no request has begun.
    pub(crate) fn is_idle(&self) -> bool {
        let between = matches!(self.phase, Phase::Head | Phase::Linger { .. } | Phase::Closed(_));
        between && self.unwritten_bytes == 0 && self.inbox.is_empty()
    }

    /// Whether to read from the peer.
    pub(crate) fn wants_bytes(&self) -> bool {
        let open = matches!(self.phase, Phase::Head | Phase::Content(_) | Phase::Linger { .. });
        open && !self.peer_ended && !self.held && self.unwritten_bytes < UNWRITTEN_BYTES_HIGH
    }

    /// When [`Self::on_timeout`] is due.
    pub(crate) fn deadline_ms(&self) -> u64 {
        self.input_deadline_ms.min(self.output_deadline_ms)
    }

    /// Whether it waits for a request long enough to give way to one that waits to be accepted.
    pub(crate) fn may_give_way(&self, now: &Now, settings: &Settings) -> bool {
        let waiting = matches!(self.phase, Phase::Head) && self.inbox.is_empty();
        if !waiting || self.unwritten_bytes > 0 || self.input_deadline_ms == NEVER {
            return false;
        }
        let is_silent = self.requests == 0;
        let limit_ms = if is_silent { settings.head_timeout_ms } else { settings.idle_timeout_ms };
        now.ms >= self.input_deadline_ms.saturating_sub(limit_ms) + CROWDED_IDLE_MS
    }

    /// Closes it, as idle.
    pub(crate) fn give_way(&mut self) {
        self.phase = Phase::Closed(CloseReason::Idle);
    }

    // -- inside

    fn advance_inbox<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        let consumed = self.advance(&inbox, turn);
        if consumed < inbox.len() {
            inbox.drain(..consumed);
            self.inbox = inbox;
        }
    }

    /// Consumes what can be consumed of `bytes`, which begin with what the inbox held.
    fn advance<S: Site>(&mut self, bytes: &[u8], turn: &mut Turn<'_, S>) -> usize {
        let mut consumed = 0;
        self.held = false;
        loop {
            let rest = &bytes[consumed..];
            match &mut self.phase {
                Phase::Head if rest.is_empty() => break,
                // §2.2: empty lines before a request are left over from the content of another.
                // They have no deadline of their own, so they cannot hold a connection open.
                Phase::Head if rest.starts_with(b"\r\n") => {
                    consumed += 2;
                    self.searched = 0;
                }
                Phase::Head if self.unwritten_bytes + turn.out.len() >= UNWRITTEN_BYTES_HIGH => {
                    self.held = true;
                    break;
                }
                Phase::Head => match self.on_head(rest, turn) {
                    Some(len) => consumed += len,
                    None => break,
                },
                Phase::Content(content) => match content.on_bytes(rest) {
                    Progress::Incomplete => return bytes.len(),
                    Progress::Complete(len) => {
                        consumed += len;
                        self.await_request(turn);
                    }
                    // The answer is on its way; what follows cannot be told apart any more.
                    Progress::TooLarge | Progress::Malformed => self.phase = Phase::Flush,
                },
                Phase::Linger { left_bytes } => {
                    *left_bytes = left_bytes.saturating_sub(rest.len());
                    if *left_bytes == 0 {
                        self.phase = Phase::Closed(CloseReason::Finished);
                    }
                    return bytes.len();
                }
                Phase::Stream(..) => break,
                Phase::Flush | Phase::Closed(_) => return bytes.len(),
            }
        }
        consumed
    }

    /// A head at the start of `rest`: `None` if it is not complete, else what was consumed.
    fn on_head<S: Site>(&mut self, rest: &[u8], turn: &mut Turn<'_, S>) -> Option<usize> {
        let searched = std::mem::replace(&mut self.searched, 0);
        let mut refusal = None;
        // A head in small pieces is not parsed again for every piece.
        if searched == 0 || request::may_be_complete(rest, searched) {
            let mut storage: FieldStorage<'_> = [const { std::mem::MaybeUninit::uninit() }; _];
            match request::parse(rest, &mut storage) {
                Ok(Some(request)) if request.head_len <= turn.settings.head_bytes_max => {
                    return Some(self.on_request(&request, rest, turn));
                }
                Ok(Some(_)) => refusal = Some(Refusal::HeadTooLarge),
                Ok(None) => {}
                Err(fault) => refusal = Some(fault),
            }
        }
        let refusal = match refusal {
            None if rest.len() < turn.settings.head_bytes_max => {
                // The first head has had its time since the accept.
                if searched == 0 && self.requests > 0 {
                    self.input_deadline_ms = turn.now.ms + turn.settings.head_timeout_ms;
                }
                self.searched = rest.len();
                return None;
            }
            None => request::too_large(rest),
            Some(fault) => fault,
        };
        self.refuse(refusal.status(), turn);
        Some(rest.len())
    }

    /// Answers a request whose head begins `rest`; returns what of `rest` belongs to it.
    fn on_request<S: Site>(
        &mut self,
        request: &Request<'_, '_>,
        rest: &[u8],
        turn: &mut Turn<'_, S>,
    ) -> usize {
        let behind = &rest[request.head_len..];
        let mut content = Content::new(request.framing, turn.settings.content_bytes_max);
        let (content_len, complete) = match content.on_bytes(behind) {
            Progress::Complete(len) => (len, true),
            Progress::Incomplete => (behind.len(), false),
            Progress::TooLarge => {
                self.refuse(Status::ContentTooLarge, turn);
                return rest.len();
            }
            Progress::Malformed => {
                self.refuse(Status::BadRequest, turn);
                return rest.len();
            }
        };
        self.requests += 1;
        // A peer that waits for 100 gets the final answer at once, and then may or may not send the
        // content: only closing tells its next request from that (RFC 9110 §10.1.1).
        let unsure = request.expects_continue && !complete && behind.is_empty();
        let last = turn.settings.requests_max.is_some_and(|max| self.requests >= max);
        let persistence = match request.persistence {
            _ if unsure || last || self.stopping => Persistence::Close,
            asked => asked,
        };
        let after = match persistence {
            Persistence::Close => After::Close,
            _ if !complete => After::Content(content),
            _ => After::NextRequest,
        };
        match exchange::answer(request, persistence, turn) {
            Some(stream) => self.phase = Phase::Stream(Box::new(stream), after),
            None => self.enter(after, turn),
        }
        request.head_len + content_len
    }

    /// Answers with an error and closes.
    fn refuse<S: Site>(&mut self, status: Status, turn: &mut Turn<'_, S>) {
        turn.tally.rejected += 1;
        exchange::refuse(status, turn);
        self.phase = Phase::Flush;
    }

    fn enter<S: Site>(&mut self, after: After, turn: &Turn<'_, S>) {
        match after {
            After::NextRequest => self.await_request(turn),
            After::Content(content) => {
                self.phase = Phase::Content(content);
                self.input_deadline_ms = turn.now.ms + turn.settings.content_timeout_ms;
            }
            After::Close => self.phase = Phase::Flush,
        }
    }

    fn await_request<S: Site>(&mut self, turn: &Turn<'_, S>) {
        self.phase = Phase::Head;
        self.searched = 0;
        self.input_deadline_ms = turn.now.ms + turn.settings.idle_timeout_ms;
    }

    fn leave_stream_if_done<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        let Phase::Stream(stream, after) = &mut self.phase else { return };
        if stream.is_done() {
            let after = std::mem::replace(after, After::Close);
            self.enter(after, turn);
            self.advance_inbox(turn);
        }
    }

    fn note_unwritten<S: Site>(&mut self, len: usize, turn: &Turn<'_, S>) {
        if self.unwritten_bytes == 0 && len > 0 {
            self.output_deadline_ms = turn.now.ms + turn.settings.write_timeout_ms;
        }
        self.unwritten_bytes += len;
    }

    /// Counts what the turn says, and moves on where nothing is left to wait for.
    fn settle<S: Site>(&mut self, turn: &mut Turn<'_, S>) {
        self.note_unwritten(turn.out.len(), turn);
        match self.phase {
            Phase::Head if self.peer_ended && !self.held => self.phase = Phase::Flush,
            Phase::Content(_) if self.peer_ended => self.phase = Phase::Flush,
            Phase::Linger { .. } if self.peer_ended => {
                self.phase = Phase::Closed(CloseReason::Finished);
            }
            _ => {}
        }
        if let Phase::Flush = self.phase
            && self.unwritten_bytes == 0
        {
            self.inbox = Vec::new();
            if self.peer_ended {
                self.phase = Phase::Closed(CloseReason::PeerClosed);
            } else {
                self.phase = Phase::Linger { left_bytes: LINGER_BYTES_MAX };
                self.half_close = true;
                self.input_deadline_ms = turn.now.ms + turn.settings.linger_timeout_ms;
            }
        }
        debug_assert!(self.inbox.len() <= turn.settings.head_bytes_max + 2 * READ_BYTES);
    }
}

#[cfg(test)]
mod tests;
