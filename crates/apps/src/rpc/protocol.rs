//! The microbenchmark's messages: a request of a given length, a response of a given length.
//!
//! MegaPipe's microbenchmark exchanges fixed-size messages, 64 B unless a sweep varies them
//! [MegaPipe 2.2, 5.1]. Here a request may say in its first 16 bytes how long it is and how long
//! the response shall be, so that one server serves a whole sweep. All numbers are little-endian.
//!
//! ```text
//!  byte  0        4              8               12       16                request_len
//!        +--------+--------------+---------------+--------+-- - - - - - - - - --+
//!        | "mpRQ" | request_len  | response_len  | tag    | anything            |
//!        +--------+--------------+---------------+--------+-- - - - - - - - - --+
//! ```
//!
//! `request_len` counts the header too. `response_len` 0 asks for the server's default. The tag is
//! the client's. A request that does not begin with the magic is a *plain* one: its length and the
//! response's are the server's defaults (64 B both, an echo).
//!
//! The response is the request's first [`PREFIX_LEN`] bytes (fewer if either message is shorter),
//! continued by [`PATTERN`], whose byte `i` stands at offset `i` of the response; the pattern
//! repeats after its length. So a response as long as a request of up to 64 B is its echo, and a
//! client can check every byte without keeping more than the request's prefix.
//!
//! Read first: MegaPipe report 2.2. Pure: no sockets, channels or clocks.
//!
//! Invariants
//! - A [`Framer`] keeps at most [`PREFIX_LEN`] bytes of a request, however long the request is.
//! - However a stream is cut into pieces, the replies are the same.

/// The first four bytes of a request that describes itself.
pub const MAGIC: [u8; 4] = *b"mpRQ";
/// Bytes of a request's header, and of the shortest request.
pub const HEADER_LEN: usize = 16;
/// Bytes of a request that come back at the beginning of its response.
pub const PREFIX_LEN: usize = 64;
/// The default length of both messages [MegaPipe 2.2].
pub const MESSAGE_LEN_DEFAULT: u32 = 64;
/// The longest request and the longest response, in bytes.
pub const MESSAGE_LEN_MAX: u32 = 1 << 20;
/// Bytes after which the pattern repeats.
pub const PATTERN_LEN: usize = 1 << 16;

/// The bytes of a response after its prefix: bytes that differ from their neighbours and
/// from those a power of two away, so that a shifted or repeated piece is noticed.
pub static PATTERN: [u8; PATTERN_LEN] = pattern();

const fn pattern() -> [u8; PATTERN_LEN] {
    let mut bytes = [0; PATTERN_LEN];
    let mut index = 0;
    while index < PATTERN_LEN {
        bytes[index] = ((index as u32).wrapping_mul(0x9e37_79b1) >> 13) as u8;
        index += 1;
    }
    bytes
}

/// The lengths of a request and of its response, in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The request's, header included.
    pub request: u32,
    /// The response's.
    pub response: u32,
}

impl Default for Lengths {
    fn default() -> Self {
        Self { request: MESSAGE_LEN_DEFAULT, response: MESSAGE_LEN_DEFAULT }
    }
}

/// A request has lengths that the protocol does not allow.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {message} of {len} bytes is outside {len_min}..={MESSAGE_LEN_MAX}")]
pub struct LengthError {
    /// `request` or `response`.
    pub message: &'static str,
    /// The least length.
    pub len_min: u32,
    /// The length.
    pub len: u32,
}

impl Lengths {
    /// Checks both lengths against the protocol's limits.
    ///
    /// # Errors
    /// A request shorter than its header or longer than [`MESSAGE_LEN_MAX`], a response that is
    /// empty or longer than that.
    pub const fn checked(self) -> Result<Self, LengthError> {
        if self.request < HEADER_LEN as u32 || self.request > MESSAGE_LEN_MAX {
            let (message, len_min) = ("request", HEADER_LEN as u32);
            return Err(LengthError { message, len_min, len: self.request });
        }
        if self.response == 0 || self.response > MESSAGE_LEN_MAX {
            return Err(LengthError { message: "response", len_min: 1, len: self.response });
        }
        Ok(self)
    }

    /// Parses the header at the beginning of a request.
    fn read(header: [u8; HEADER_LEN], defaults: Self) -> Result<Self, LengthError> {
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        if header[..4] != MAGIC {
            return Ok(defaults);
        }
        let response = match word(8) {
            0 => defaults.response,
            asked => asked,
        };
        Self { request: word(4), response }.checked()
    }

    /// Whether the response is the request itself.
    const fn is_echo(self) -> bool {
        self.request == self.response && self.request <= PREFIX_LEN as u32
    }
}

/// The header of a request with these lengths.
#[must_use]
pub fn header(lengths: Lengths, tag: u32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&lengths.request.to_le_bytes());
    header[8..12].copy_from_slice(&lengths.response.to_le_bytes());
    header[12..].copy_from_slice(&tag.to_le_bytes());
    header
}

/// Requests at the front of a piece of the stream that a server may send back as they are.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Echoes {
    /// How many bytes they are.
    pub len: usize,
    /// How many requests they are.
    pub count: u64,
}

/// The whole requests at the start of `bytes` whose responses are their echoes. `bytes` must begin
/// with a request.
#[must_use]
#[inline]
pub fn echoes(bytes: &[u8], defaults: Lengths) -> Echoes {
    let mut found = Echoes::default();
    while let Some(header) = bytes[found.len..].first_chunk() {
        match Lengths::read(*header, defaults) {
            Ok(lengths) if lengths.is_echo() => {
                let end = found.len + lengths.request as usize;
                if end > bytes.len() {
                    return found;
                }
                found = Echoes { len: end, count: found.count + 1 };
            }
            _ => return found,
        }
    }
    found
}

/// What a server owes for one request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RpcReply {
    prefix: [u8; PREFIX_LEN],
    prefix_len: u32,
    /// The response's length in bytes, prefix included.
    pub response_len: u32,
}

impl RpcReply {
    /// The bytes that the response begins with.
    #[must_use]
    pub fn prefix(&self) -> &[u8] {
        &self.prefix[..self.prefix_len as usize]
    }

    /// The rest of the response, in pieces that lie in static memory.
    pub fn rest(&self) -> impl Iterator<Item = &'static [u8]> {
        let (mut offset, end) = (self.prefix_len as usize, self.response_len as usize);
        std::iter::from_fn(move || {
            let piece = pattern_at(offset, end);
            offset += piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// What is left of the response after `sent` bytes, in pieces.
    pub fn pieces_after(&self, sent: usize) -> impl Iterator<Item = &[u8]> {
        let (prefix_len, end) = (self.prefix_len as usize, self.response_len as usize);
        let mut offset = sent;
        std::iter::from_fn(move || {
            let piece = match self.prefix[..prefix_len].get(offset..) {
                Some(front) if !front.is_empty() => front,
                _ => pattern_at(offset, end),
            };
            offset += piece.len();
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Appends the whole response.
    pub fn append_to(&self, out: &mut impl Extend<u8>) {
        out.extend(self.prefix().iter().copied());
        self.rest().for_each(|piece| out.extend(piece.iter().copied()));
    }
}

/// The pattern from `offset` to `end` of a response, up to where the pattern begins anew.
fn pattern_at(offset: usize, end: usize) -> &'static [u8] {
    let start = offset % PATTERN_LEN;
    &PATTERN[start..start + (PATTERN_LEN - start).min(end.saturating_sub(offset))]
}

/// Whether `bytes` are what stands at `offset` of the response to a request that began with
/// `prefix`. The response's length is the caller's to check.
#[must_use]
pub fn matches_response(prefix: &[u8], offset: usize, mut bytes: &[u8]) -> bool {
    let mut offset = offset;
    if let Some(rest) = prefix.get(offset..) {
        let len = rest.len().min(bytes.len());
        if rest[..len] != bytes[..len] {
            return false;
        }
        (offset, bytes) = (offset + len, &bytes[len..]);
    }
    while !bytes.is_empty() {
        let expected = pattern_at(offset, offset + bytes.len());
        let (piece, rest) = bytes.split_at(expected.len());
        if piece != expected {
            return false;
        }
        (offset, bytes) = (offset + piece.len(), rest);
    }
    true
}

/// Finds the requests in a stream of bytes.
#[derive(Clone, Debug)]
pub struct Framer {
    prefix: [u8; PREFIX_LEN],
    /// Bytes of the current request that have arrived.
    have: u32,
    /// The current request's lengths; meaningful from its sixteenth byte on.
    lengths: Lengths,
}

impl Default for Framer {
    fn default() -> Self {
        Self { prefix: [0; PREFIX_LEN], have: 0, lengths: Lengths::default() }
    }
}

impl Framer {
    /// Whether the stream is between two requests.
    #[must_use]
    pub const fn at_boundary(&self) -> bool {
        self.have == 0
    }

    /// Takes bytes from the front of `bytes` up to the end of the current request. Returns what is
    /// owed for it, or None if all bytes were taken and the request goes on.
    ///
    /// # Errors
    /// A request with lengths beyond the limits. The stream cannot be used after that.
    pub fn next(
        &mut self,
        bytes: &mut &[u8],
        defaults: Lengths,
    ) -> Result<Option<RpcReply>, LengthError> {
        if (self.have as usize) < HEADER_LEN {
            self.take(bytes, HEADER_LEN);
            if (self.have as usize) < HEADER_LEN {
                return Ok(None);
            }
            let header = self.prefix.first_chunk().copied().unwrap_or_default();
            self.lengths = Lengths::read(header, defaults)?;
        }
        self.take(bytes, self.lengths.request as usize);
        if self.have < self.lengths.request {
            return Ok(None);
        }
        self.have = 0;
        let Lengths { request, response } = self.lengths;
        Ok(Some(RpcReply {
            prefix: self.prefix,
            prefix_len: request.min(response).min(PREFIX_LEN as u32),
            response_len: response,
        }))
    }

    /// Moves bytes into the current request until it has `len` of them.
    fn take(&mut self, bytes: &mut &[u8], len: usize) {
        let have = self.have as usize;
        let (taken, rest) = bytes.split_at((len - have).min(bytes.len()));
        if let Some(room) = self.prefix.get_mut(have..) {
            let kept = room.len().min(taken.len());
            room[..kept].copy_from_slice(&taken[..kept]);
        }
        self.have += taken.len() as u32;
        *bytes = rest;
    }
}

#[cfg(test)]
mod tests;
