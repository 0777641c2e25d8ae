//! Every datagram that a program sent, and what was received of it.
//!
//! A datagram begins with its number, which decides the bytes behind it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::Violation;
use crate::pattern::Pattern;

/// Bytes of the number.
pub(crate) const NUMBER_BYTES: usize = 8;

/// A datagram that was sent.
#[derive(Debug, Clone, Copy)]
struct SentDatagram {
    from: SocketAddr,
    to: SocketAddr,
    len: usize,
    /// The datagram that it answers.
    answers: Option<u64>,
    received: u32,
}

/// A datagram that was received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckedDatagram<'a> {
    pub(crate) at: SocketAddr,
    pub(crate) from: SocketAddr,
    /// As far as there was room for it.
    pub(crate) bytes: &'a [u8],
    pub(crate) is_cut: bool,
}

/// The datagrams of a world.
#[derive(Debug)]
pub(crate) struct Ledger {
    sent: BTreeMap<u64, SentDatagram>,
    /// How often one may be received.
    times: u32,
}

impl Ledger {
    /// An empty one. `may_repeat`: the network repeats packets.
    pub(crate) const fn new(may_repeat: bool) -> Self {
        Self { sent: BTreeMap::new(), times: if may_repeat { 2 } else { 1 } }
    }

    /// A datagram that is about to be sent: its bytes.
    pub(crate) fn send(
        &mut self,
        (from, to): (SocketAddr, SocketAddr),
        len: usize,
        answers: Option<u64>,
    ) -> (u64, Vec<u8>) {
        let number = self.sent.len() as u64;
        let len = len.max(NUMBER_BYTES);
        self.sent.insert(number, SentDatagram { from, to, len, answers, received: 0 });
        (number, bytes_of(number, len))
    }

    /// A datagram was received. Its number, and that of the one that it answers.
    pub(crate) fn receive(
        &mut self,
        arrived: &CheckedDatagram<'_>,
    ) -> Result<(u64, Option<u64>), Violation> {
        let CheckedDatagram { at, from, bytes, is_cut } = *arrived;
        let wrong = |what: &'static str| {
            Err(Violation::WrongDatagram { at, from, bytes: bytes.len(), what })
        };
        let Some(number) = bytes.first_chunk().map(|it| u64::from_be_bytes(*it)) else {
            return wrong("it is shorter than any that was sent");
        };
        let Some(sent) = self.sent.get_mut(&number) else {
            return wrong("it was never sent");
        };
        if (sent.from, sent.to) != (from, at) {
            return wrong("it was sent from or to another address");
        }
        if bytes.len() > sent.len || (bytes.len() < sent.len) != is_cut {
            return wrong("it has another length than was sent");
        }
        if bytes != &bytes_of(number, sent.len)[..bytes.len()] {
            return wrong("its bytes are not those that were sent");
        }
        sent.received += 1;
        if sent.received > self.times {
            return wrong("it was received more often than the network repeats");
        }
        Ok((number, sent.answers))
    }
}

fn bytes_of(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend(Pattern::new(number).bytes(0, len.saturating_sub(NUMBER_BYTES)));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_are_wrong_or_too_many_are_seen() {
        let [one, other] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 7)));
        let mut ledger = Ledger::new(false);
        let (number, bytes) = ledger.send((one, other), 100, None);
        let arrived = CheckedDatagram { at: other, from: one, bytes: &bytes, is_cut: false };
        let mut changed = bytes.clone();
        changed[50] ^= 1;
        for wrong in [
            CheckedDatagram { at: one, ..arrived },
            CheckedDatagram { from: other, ..arrived },
            CheckedDatagram { is_cut: true, ..arrived },
            CheckedDatagram { bytes: &bytes[..99], ..arrived },
            CheckedDatagram { bytes: &changed, ..arrived },
            CheckedDatagram { bytes: &[0; 7], ..arrived },
            CheckedDatagram { bytes: &[9; 8], ..arrived },
        ] {
            assert!(ledger.receive(&wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(ledger.receive(&arrived), Ok((number, None)));
        assert!(ledger.receive(&arrived).is_err(), "once is enough");
    }
}
