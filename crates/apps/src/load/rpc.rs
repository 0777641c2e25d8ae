//! The client of the ping-pong server: sized requests, sized responses, checked.
//!
//! Read first: [`crate::rpc::protocol`]. A request is its header followed by the protocol's
//! pattern, each byte at its own offset; so a response is the header followed by the pattern too.

use crate::rpc::protocol::{
    HEADER_LEN, LengthError, Lengths, MESSAGE_LEN_MAX, PATTERN, PATTERN_LEN, header,
    matches_response,
};

use super::client_protocol::{ClientProtocol, RequestBuilder, ResponseProgress};
use super::distribution::Distribution;
use super::rng::Rng;

/// Requests up to this many bytes are copied into one piece of memory.
const COPY_LEN_MAX: usize = 1_024;

/// The requests of the load.
#[derive(Debug)]
pub(crate) struct RpcClient {
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

impl RpcClient {
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

impl ClientProtocol for RpcClient {
    type Exchange = RpcExchange;

    fn request(&mut self, exchange: &mut RpcExchange, request: &mut RequestBuilder<'_>) {
        // The bounds were checked when the protocol was made.
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

    fn response(&mut self, exchange: &mut RpcExchange, bytes: &[u8]) -> ResponseProgress {
        let offset = exchange.received_len as usize;
        let left_len = (exchange.response_len - exchange.received_len) as usize;
        if bytes.len() > left_len {
            return ResponseProgress::Wrong;
        }
        // The header's tag is in the first bytes: a response to another request is noticed even
        // when the rest is not looked at.
        let looked_at =
            if exchange.verified { bytes.len() } else { HEADER_LEN.saturating_sub(offset) };
        let front = &bytes[..looked_at.min(bytes.len())];
        if !matches_response(&exchange.header, offset, front) {
            return ResponseProgress::Wrong;
        }
        exchange.received_len += bytes.len() as u32;
        if bytes.len() < left_len {
            ResponseProgress::More
        } else {
            ResponseProgress::Done { reusable: true }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::protocol::{Framer, Lengths};

    fn protocol(request: &str, response: &str, verify_every: u32) -> RpcClient {
        let parse = |text: &str| text.parse::<Distribution>().expect(text);
        RpcClient::new(parse(request), parse(response), verify_every, Rng::new(1))
            .expect("lengths within the limits")
    }

    /// One request and the server's response to it.
    fn exchange(protocol: &mut RpcClient) -> (RpcExchange, Vec<u8>) {
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        let mut exchange = RpcExchange::default();
        protocol.request(&mut exchange, &mut RequestBuilder { head: &mut head, tail: &mut tail });
        let sent = [head, tail.concat()].concat();
        let mut response = Vec::new();
        let reply = Framer::default().next(&mut &sent[..], Lengths::default());
        let reply = reply.expect("well-formed").expect("a whole request");
        reply.append_to(&mut response);
        (exchange, response)
    }

    #[test]
    fn server_and_client_agree_on_content() {
        for (request, response) in
            [("64", "64"), ("16", "1"), ("uniform:16-3K", "uniform:1-200K"), ("1M", "1M")]
        {
            let mut protocol = protocol(request, response, 1);
            for piece_len in [1 << 21, 4_096, 1_000, 7] {
                let (mut exchange, response) = exchange(&mut protocol);
                let mut answers: Vec<ResponseProgress> = response
                    .chunks(piece_len)
                    .map(|piece| protocol.response(&mut exchange, piece))
                    .collect();
                assert_eq!(answers.pop(), Some(ResponseProgress::Done { reusable: true }));
                assert!(answers.iter().all(|answer| *answer == ResponseProgress::More));
            }
        }
    }

    #[test]
    fn a_response_that_is_too_long_or_someone_elses_is_wrong() {
        let mut protocol = protocol("64", "100", 1_000);
        let (mut first, mut response) = exchange(&mut protocol);
        let (mut second, _) = exchange(&mut protocol);
        assert_eq!(
            protocol.response(&mut second, &response),
            ResponseProgress::Wrong,
            "another tag"
        );
        response.push(0);
        assert_eq!(
            protocol.response(&mut first, &response),
            ResponseProgress::Wrong,
            "a byte too many"
        );
    }

    #[test]
    fn a_damaged_response_is_noticed_when_it_is_verified() {
        let (mut all, mut some) = (protocol("64", "5000", 1), protocol("64", "5000", 1_000));
        for (protocol, expected) in [
            (&mut all, ResponseProgress::Wrong),
            (&mut some, ResponseProgress::Done { reusable: true }),
        ] {
            let (mut exchange, mut response) = exchange(protocol);
            response[4_000] ^= 0x10;
            assert_eq!(protocol.response(&mut exchange, &response), expected);
        }
    }

    #[test]
    fn lengths_beyond_the_protocol_are_refused() {
        let parse = |text: &str| text.parse::<Distribution>().expect(text);
        for (request, response) in [("15", "64"), ("64", "0"), ("64", "yahoo"), ("2M", "64")] {
            let refused = RpcClient::new(parse(request), parse(response), 1, Rng::new(1));
            assert!(refused.is_err(), "{request} {response}");
        }
    }
}
