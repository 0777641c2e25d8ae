//! What a load says and what it expects to hear: the pure half of each protocol's client.
//!
//! A dialogue writes requests and reads responses, piece by piece as they arrive. It knows nothing
//! of sockets, channels and clocks, so that a test can talk to it byte by byte.

use megapipe::WriteBuf;

/// A request under construction: bytes of its own, then pieces of static memory.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The beginning, copied.
    pub(crate) head: &'a mut dyn Head,
    /// The rest, sent from where it lies.
    pub(crate) tail: &'a mut Vec<&'static [u8]>,
}

/// Memory that a request's beginning is appended to.
pub(crate) trait Head: std::fmt::Debug {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]);
}

impl Head for WriteBuf {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl Head for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What a piece of a response amounts to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The response goes on.
    More,
    /// The response is complete and right.
    Done {
        /// Whether the server lets the connection be used again.
        reusable: bool,
    },
    /// The response is not the one that was asked for; the connection is of no more use.
    Wrong,
}

/// The client's half of a protocol.
pub(crate) trait Dialogue {
    /// What has to be remembered between a request and the end of its response.
    type Exchange: Default;

    /// Writes the next request.
    fn request(&mut self, exchange: &mut Self::Exchange, request: &mut Request<'_>);

    /// Takes the next piece of the response, never empty.
    fn response(&mut self, exchange: &mut Self::Exchange, bytes: &[u8]) -> Answer;

    /// The request was lost with its connection; the next one starts afresh.
    fn abandoned(&mut self, _exchange: &mut Self::Exchange) {}

    /// Whether the next request puts something in place before measuring (fills a cache).
    fn preparing(&self) -> bool {
        false
    }

    /// Whether everything that has to be in place before measuring is.
    fn prepared(&self) -> bool {
        true
    }

    /// The server ended the connection. Whether that was the end of the response.
    fn end_of_stream(&mut self, _exchange: &mut Self::Exchange) -> Answer {
        Answer::Wrong
    }

    /// The first answer that was not the one that was asked for, and to what.
    fn unexpected(&self) -> Option<&str> {
        None
    }

    /// Protocol-specific counts for the summary, such as cache hits.
    fn details(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
