//! The baselines' half of the ping-pong protocol for one connection: bytes in, replies out.
//!
//! The protocol itself is `megapipe_apps::rpc::protocol`, the same code that `megapipe serve rpc`
//! runs, so that nothing but the I/O differs. Pure: no socket, no clock.
//!
//! Invariant: what a peer sends ahead of its replies is held up to a limit, then the connection
//! ends.

use crate::limits;
use megapipe_apps::rpc::protocol::{
    Framer, Lengths, MESSAGE_LEN_MAX, PATTERN_LEN, PREFIX_LEN, RpcReply, echoes,
};

/// The most pieces a reply has: its prefix, and the pattern, which begins in the middle.
pub(crate) const PIECES_MAX: usize = MESSAGE_LEN_MAX as usize / PATTERN_LEN + 2;

/// The pieces of a reply from its byte `skip` on, and how many there are.
pub(crate) fn pieces(reply: &RpcReply, mut skip: usize) -> ([&[u8]; PIECES_MAX], usize) {
    let mut pieces: [&[u8]; PIECES_MAX] = [&[]; PIECES_MAX];
    let mut count = 0;
    let mut pattern = reply.rest();
    let mut next = Some(reply.prefix());
    while let Some(piece) = next {
        let rest = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        if !rest.is_empty() && count < PIECES_MAX {
            pieces[count] = rest;
            count += 1;
        }
        next = pattern.next();
    }
    (pieces, count)
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation;

/// One connection's stream of requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    framer: Framer,
    /// Bytes that arrived while a reply was still being sent.
    ahead: Vec<u8>,
}

impl Requests {
    /// Whether `bytes` are whole requests whose responses are the requests themselves, and nothing
    /// came before it: by far the most frequent case, answered without looking further.
    pub(crate) fn is_echo(&self, bytes: &[u8], defaults: Lengths) -> bool {
        bytes.len() <= PREFIX_LEN
            && self.framer.at_boundary()
            && self.ahead.is_empty()
            && echoes(bytes, defaults).len == bytes.len()
    }

    /// Takes `bytes` and returns the first reply that is owed, keeping what follows for
    /// [`next`](Self::next). To be called when no reply is being sent.
    pub(crate) fn on_received(
        &mut self,
        mut bytes: &[u8],
        defaults: Lengths,
    ) -> Result<Option<RpcReply>, ProtocolViolation> {
        if !self.ahead.is_empty() {
            self.hold(bytes)?;
            return self.next(defaults);
        }
        let reply = self.framer.next(&mut bytes, defaults).map_err(|_| ProtocolViolation)?;
        self.hold(bytes)?;
        Ok(reply)
    }

    /// Keeps bytes that arrived while a reply is being sent.
    pub(crate) fn hold(&mut self, bytes: &[u8]) -> Result<(), ProtocolViolation> {
        if self.ahead.len() + bytes.len() > limits::AHEAD_BYTES_MAX {
            return Err(ProtocolViolation);
        }
        self.ahead.extend_from_slice(bytes);
        Ok(())
    }

    /// The next reply owed for bytes that were kept. To be called when a reply has been sent.
    pub(crate) fn next(
        &mut self,
        defaults: Lengths,
    ) -> Result<Option<RpcReply>, ProtocolViolation> {
        if self.ahead.is_empty() {
            return Ok(None);
        }
        let mut bytes = &self.ahead[..];
        let reply = self.framer.next(&mut bytes, defaults).map_err(|_| ProtocolViolation)?;
        let taken = self.ahead.len() - bytes.len();
        self.ahead.drain(..taken);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::{ProtocolViolation, Requests, pieces};
    use crate::limits;
    use megapipe_apps::rpc::protocol::{Lengths, MESSAGE_LEN_MAX, header, matches_response};

    fn request(lengths: Lengths) -> Vec<u8> {
        let mut bytes = header(lengths, 7).to_vec();
        bytes.resize(lengths.request as usize, b'x');
        bytes
    }

    #[test]
    fn an_echo_is_recognised_only_alone_and_at_a_boundary() {
        let lengths = Lengths::default();
        let one = request(lengths);
        let mut requests = Requests::default();
        assert!(requests.is_echo(&one, lengths));
        assert!(!requests.is_echo(&one[..63], lengths));
        assert!(!requests.is_echo(&[one.clone(), one.clone()].concat(), lengths));
        assert!(requests.on_received(&one[..20], lengths).unwrap().is_none());
        assert!(!requests.is_echo(&one, lengths));
    }

    #[test]
    fn pieces_make_up_the_response_from_any_byte_on() {
        for response in [1, 63, 64, 65, 65_536, 70_000, MESSAGE_LEN_MAX] {
            let lengths = Lengths { request: 80, response };
            let request = request(lengths);
            let reply = Requests::default().on_received(&request, lengths).unwrap().unwrap();
            let len = response as usize;
            for skip in [0, 1, 63, 64, 65, len / 2, len - 1].into_iter().filter(|&at| at < len) {
                let (pieces, count) = pieces(&reply, skip);
                let bytes = pieces[..count].concat();
                assert_eq!(bytes.len(), len - skip);
                assert!(matches_response(reply.prefix(), skip, &bytes));
            }
        }
    }

    #[test]
    fn pipelined_requests_are_answered_in_turn() {
        let lengths = Lengths { request: 100, response: 30 };
        let three = [request(lengths), request(lengths), request(lengths)].concat();
        let mut requests = Requests::default();
        assert_eq!(requests.on_received(&three[..150], lengths).unwrap().unwrap().response_len, 30);
        assert_eq!(requests.hold(&three[150..]), Ok(()));
        assert!(requests.next(lengths).unwrap().is_some());
        assert!(requests.next(lengths).unwrap().is_some());
        assert!(requests.next(lengths).unwrap().is_none());
    }

    #[test]
    fn a_flood_and_nonsense_end_the_connection() {
        let lengths = Lengths::default();
        let mut requests = Requests::default();
        let flood = vec![0; limits::AHEAD_BYTES_MAX + 1];
        assert_eq!(requests.hold(&flood), Err(ProtocolViolation));
        let absurd = header(Lengths { request: u32::MAX, response: 1 }, 0);
        assert!(requests.on_received(&absurd, lengths).is_err());
    }
}
