//! The pure half of each protocol's client: writes requests, checks responses.
//!
//! An implementation writes requests and reads responses piece by piece as they arrive. It uses no
//! socket, channel or clock, so that a test can run it byte by byte.

use megapipe::WriteBuf;

/// A request under construction: bytes of its own, then pieces of static memory.
#[derive(Debug)]
pub(crate) struct RequestBuilder<'a> {
    /// The beginning, copied.
    pub(crate) head: &'a mut dyn RequestHead,
    /// The rest, sent from where it lies.
    pub(crate) tail: &'a mut Vec<&'static [u8]>,
}

/// Memory that a request's beginning is appended to.
pub(crate) trait RequestHead: std::fmt::Debug {
    /// Appends bytes.
    fn append(&mut self, bytes: &[u8]);
}

impl RequestHead for WriteBuf {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl RequestHead for Vec<u8> {
    fn append(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What a piece of a response amounts to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResponseProgress {
    /// The response is incomplete.
    More,
    /// The response is complete and right.
    Done {
        /// The server keeps the connection open for another request.
        reusable: bool,
    },
    /// The response is wrong; the connection cannot be used any more.
    Wrong,
}

/// The client side of a protocol.
pub(crate) trait ClientProtocol {
    /// State of a connection between a request and the end of its response.
    type Exchange: Default;

    /// Writes the next request.
    fn request(&mut self, exchange: &mut Self::Exchange, request: &mut RequestBuilder<'_>);

    /// Reads the next piece of the response, never empty.
    fn response(&mut self, exchange: &mut Self::Exchange, bytes: &[u8]) -> ResponseProgress;

    /// Called if the connection of a request was lost.
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
    fn end_of_stream(&mut self, _exchange: &mut Self::Exchange) -> ResponseProgress {
        ResponseProgress::Wrong
    }

    /// The first wrong response, and its request.
    fn unexpected(&self) -> Option<&str> {
        None
    }

    /// Protocol-specific counts for the summary, such as cache hits.
    fn details(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}
