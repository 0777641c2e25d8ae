//! The client of the ping-pong server: sized requests, sized responses, checked.
//!
//! Read first: [`crate::rpc::protocol`]. A request is its header followed by the protocol's
//! pattern, each byte at its own offset; so a response is the header followed by the pattern too.

use crate::rpc::protocol::{
    HEADER_LEN, LengthError, Lengths, MESSAGE_LEN_MAX, PATTERN, PATTERN_LEN, header,
    matches_response,
};

use super::dialogue::{Answer, Dialogue, Request};
use super::distribution::Distribution;
use super::rng::Rng;

/// Requests up to this many bytes are copied into one piece of memory.
const COPY_LEN_MAX: usize = 1_024;

/// What is asked of the server.
#[derive(Debug)]
pub(crate) struct RpcDialogue {
    request_bytes: Distribution,
    response_bytes: Distribution,
    verify_every: u32,
    rng: Rng,
    tag: u32,
}

/// One request under way.
#[derive(Debug, Default)]
pub(crate) struct RpcExchange {
    header: [u8; HEADER_LEN],
    response_len: u32,
    received_len: u32,
    verified: bool,
}

impl RpcDialogue {
    /// Messages of these lengths; every `verify_every`-th response is checked byte by byte, the
    /// others by their length.
    ///
    /// # Errors
    /// A distribution that reaches beyond what the protocol allows.
    pub(crate) fn new(
        request_bytes: Distribution,
        response_bytes: Distribution,
        verify_every: u32,
        rng: Rng,
    ) -> Result<Self, LengthError> {
        let narrow = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
        for (request, response) in [
            (request_bytes.min(), response_bytes.min()),
            (request_bytes.max(), response_bytes.max()),
        ] {
            Lengths { request: narrow(request), response: narrow(response) }.checked()?;
        }
        Ok(Self { request_bytes, response_bytes, verify_every: verify_every.max(1), rng, tag: 0 })
    }
}

impl Dialogue for RpcDialogue {
    type Exchange = RpcExchange;

    fn request(&mut self, exchange: &mut RpcExchange, request: &mut Request<'_>) {
        // The bounds were checked when the dialogue was made.
        let clamp = |len: u64| len.min(u64::from(MESSAGE_LEN_MAX)) as u32;
        let lengths = Lengths {
            request: clamp(self.request_bytes.sample(&mut self.rng)),
            response: clamp(self.response_bytes.sample(&mut self.rng)),
        };
        self.tag = self.tag.wrapping_add(1);
        *exchange = RpcExchange {
            header: header(lengths, self.tag),
            response_len: lengths.response,
            received_len: 0,
            verified: self.tag.is_multiple_of(self.verify_every),
        };
        request.head.append(&exchange.header);
        let (mut offset, end) = (HEADER_LEN, lengths.request as usize);
        if end <= COPY_LEN_MAX {
            return request.head.append(&PATTERN[offset..end]);
        }
        while offset < end {
            let start = offset % PATTERN_LEN;
            let len = (PATTERN_LEN - start).min(end - offset);
            request.tail.push(&PATTERN[start..start + len]);
            offset += len;
        }
    }

    fn response(&mut self, exchange: &mut RpcExchange, bytes: &[u8]) -> Answer {
        let offset = exchange.received_len as usize;
        let left_len = (exchange.response_len - exchange.received_len) as usize;
        if bytes.len() > left_len {
            return Answer::Wrong;
        }
        // The header's tag is in the first bytes: a response to another request is noticed even
        // when the rest is not looked at.
        let looked_at =
            if exchange.verified { bytes.len() } else { HEADER_LEN.saturating_sub(offset) };
        let front = &bytes[..looked_at.min(bytes.len())];
        if !matches_response(&exchange.header, offset, front) {
            return Answer::Wrong;
        }
        exchange.received_len += bytes.len() as u32;
        if bytes.len() < left_len { Answer::More } else { Answer::Done { reusable: true } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::protocol::{Framer, Lengths};

    fn dialogue(request: &str, response: &str, verify_every: u32) -> RpcDialogue {
        let parse = |text: &str| text.parse::<Distribution>().expect(text);
        RpcDialogue::new(parse(request), parse(response), verify_every, Rng::new(1))
            .expect("lengths within the limits")
    }

    /// One request and the server's response to it.
    fn exchange(dialogue: &mut RpcDialogue) -> (RpcExchange, Vec<u8>) {
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let mut exchange = RpcExchange::default();
        dialogue.request(&mut exchange, &mut Request { head: &mut head, tail: &mut tail });
        let sent = [head, tail.concat()].concat();
        let mut response = Vec::new();
        let reply = Framer::default().next(&mut &sent[..], Lengths::default());
        let reply = reply.expect("well-formed").expect("a whole request");
        reply.append_to(&mut response);
        (exchange, response)
    }

    #[test]
    fn what_the_server_sends_is_what_the_client_expects() {
        for (request, response) in
            [("64", "64"), ("16", "1"), ("uniform:16-3K", "uniform:1-200K"), ("1M", "1M")]
        {
            let mut dialogue = dialogue(request, response, 1);
            for piece_len in [1 << 21, 4_096, 1_000, 7] {
                let (mut exchange, response) = exchange(&mut dialogue);
                let mut answers: Vec<Answer> = response
                    .chunks(piece_len)
                    .map(|piece| dialogue.response(&mut exchange, piece))
                    .collect();
                assert_eq!(answers.pop(), Some(Answer::Done { reusable: true }));
                assert!(answers.iter().all(|answer| *answer == Answer::More));
            }
        }
    }

    #[test]
    fn a_response_that_is_too_long_or_someone_elses_is_wrong() {
        let mut dialogue = dialogue("64", "100", 1_000);
        let (mut first, mut response) = exchange(&mut dialogue);
        let (mut second, _) = exchange(&mut dialogue);
        assert_eq!(dialogue.response(&mut second, &response), Answer::Wrong, "another tag");
        response.push(0);
        assert_eq!(dialogue.response(&mut first, &response), Answer::Wrong, "a byte too many");
    }

    #[test]
    fn a_damaged_response_is_noticed_when_it_is_verified() {
        let (mut all, mut some) = (dialogue("64", "5000", 1), dialogue("64", "5000", 1_000));
        for (dialogue, expected) in
            [(&mut all, Answer::Wrong), (&mut some, Answer::Done { reusable: true })]
        {
            let (mut exchange, mut response) = exchange(dialogue);
            response[4_000] ^= 0x10;
            assert_eq!(dialogue.response(&mut exchange, &response), expected);
        }
    }

    #[test]
    fn lengths_beyond_the_protocol_are_refused() {
        let parse = |text: &str| text.parse::<Distribution>().expect(text);
        for (request, response) in [("15", "64"), ("64", "0"), ("64", "yahoo"), ("2M", "64")] {
            let refused = RpcDialogue::new(parse(request), parse(response), 1, Rng::new(1));
            assert!(refused.is_err(), "{request} {response}");
        }
    }
}
