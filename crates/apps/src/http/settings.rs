//! What the options of the server come down to, as the connections use it.

/// Limits and time-outs of every connection.
#[derive(Clone, Debug)]
pub(crate) struct HttpSettings {
    /// Bytes of a request head.
    pub(crate) head_bytes_max: usize,
    /// Bytes of request content that are read and thrown away.
    pub(crate) content_bytes_max: u64,
    /// Requests of one connection.
    pub(crate) requests_max: Option<u64>,
    /// From a head's first byte to its last.
    pub(crate) head_timeout_ms: u64,
    /// For the whole content of a request.
    pub(crate) content_timeout_ms: u64,
    /// Between an answer and the next request.
    pub(crate) idle_timeout_ms: u64,
    /// For each write.
    pub(crate) write_timeout_ms: u64,
    /// From our end of the connection to the peer's.
    pub(crate) linger_timeout_ms: u64,
}
