//! ICMP send queue: echo replies and errors.
//!
//! Invariants
//! - At most [`OUTBOX_MESSAGES`] of them, each of at most [`OUTBOX_MESSAGE_BYTES`]; the oldest goes
//!   first, and if in parts, then one part after the other.
//! - A message whose next hop is unresolved is parked and does not block others. If the queue is
//!   full, the oldest parked one is dropped, so that messages to hosts that do not exist only
//!   displace each other.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::counters::Drop;
use crate::limits::{OUTBOX_MESSAGE_BYTES, OUTBOX_MESSAGES};
use crate::wire::Protocol;

/// A message, without IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// One of our addresses.
    pub src: IpAddr,
    /// To whom.
    pub dst: IpAddr,
    /// Which version of ICMP.
    pub protocol: Protocol,
    /// Its length in bytes.
    pub len: usize,
}

/// A message, and how much of it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Next {
    /// The message, its length the whole one.
    pub message: Message,
    /// Bytes of it that were taken.
    pub taken: usize,
    /// Which of all messages that ever were.
    pub number: u64,
}

#[derive(Debug, Clone, Copy)]
struct WaitingPackets {
    next: Next,
    slot: u8,
    parked: bool,
}

/// The messages.
#[derive(Debug)]
pub(crate) struct Outbox {
    waiting: VecDeque<WaitingPackets>,
    free: Vec<u8>,
    bytes: Vec<u8>,
    parked: usize,
    next_number: u64,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(OUTBOX_MESSAGES),
            free: (0..OUTBOX_MESSAGES as u8).rev().collect(),
            bytes: alloc::vec![0; OUTBOX_MESSAGES * OUTBOX_MESSAGE_BYTES],
            parked: 0,
            next_number: 0,
        }
    }

    /// Takes a message, whose bytes `write` writes.
    ///
    /// # Errors
    ///
    /// [`Drop::QueueFull`]; also for a message that is longer than [`OUTBOX_MESSAGE_BYTES`].
    pub(crate) fn push(
        &mut self,
        message: Message,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), Drop> {
        if message.len > OUTBOX_MESSAGE_BYTES {
            return Err(Drop::QueueFull);
        }
        let slot = self.free.pop().or_else(|| self.give_up_parked()).ok_or(Drop::QueueFull)?;
        let start = usize::from(slot) * OUTBOX_MESSAGE_BYTES;
        write(&mut self.bytes[start..start + message.len]);
        let next = Next { message, taken: 0, number: self.next_number };
        self.next_number = self.next_number.wrapping_add(1);
        self.waiting.push_back(WaitingPackets { next, slot, parked: false });
        Ok(())
    }

    /// Nothing can be sent now.
    #[inline]
    pub(crate) fn is_silent(&self) -> bool {
        self.waiting.len() == self.parked
    }

    /// The oldest message that is not parked.
    pub(crate) fn next(&self) -> Option<Next> {
        if self.is_silent() {
            return None;
        }
        self.waiting.iter().find(|waiting| !waiting.parked).map(|waiting| waiting.next)
    }

    /// Copies the next bytes of what [`Outbox::next`] gave to `to`. With its last byte the message
    /// goes.
    pub(crate) fn take(&mut self, to: &mut [u8]) {
        let Some(at) = self.waiting.iter().position(|waiting| !waiting.parked) else { return };
        let WaitingPackets { next, slot, .. } = &mut self.waiting[at];
        let start = usize::from(*slot) * OUTBOX_MESSAGE_BYTES + next.taken;
        let len = (next.message.len - next.taken).min(to.len());
        to[..len].copy_from_slice(&self.bytes[start..start + len]);
        next.taken += len;
        if next.taken == next.message.len {
            self.free.push(*slot);
            self.waiting.remove(at);
        }
    }

    /// Lets what [`Outbox::next`] gave wait for its next hop.
    pub(crate) fn park(&mut self) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| !waiting.parked) {
            waiting.parked = true;
            self.parked += 1;
        }
    }

    /// A neighbour was found, or given up: those that `concerns` says are sent, or dropped.
    /// Returns how many were dropped.
    pub(crate) fn on_neighbour(
        &mut self,
        resolved: bool,
        mut concerns: impl FnMut(IpAddr) -> bool,
    ) -> usize {
        if self.parked == 0 {
            return 0;
        }
        let mut dropped = 0;
        let Self { waiting, free, parked, .. } = self;
        waiting.retain_mut(|waiting| {
            if !waiting.parked || !concerns(waiting.next.message.dst) {
                return true;
            }
            waiting.parked = false;
            *parked -= 1;
            if !resolved {
                free.push(waiting.slot);
                dropped += 1;
            }
            resolved
        });
        dropped
    }

    fn give_up_parked(&mut self) -> Option<u8> {
        let at = self.waiting.iter().position(|waiting| waiting.parked)?;
        self.parked -= 1;
        self.waiting.remove(at).map(|waiting| waiting.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + n).into())
    }

    fn push(outbox: &mut Outbox, n: u32) -> Result<(), Drop> {
        let message = Message { src: ip(0), dst: ip(n), protocol: Protocol::Icmp, len: 4 };
        outbox.push(message, |bytes| bytes.copy_from_slice(&n.to_be_bytes()))
    }

    fn take(outbox: &mut Outbox) -> u32 {
        let mut bytes = [0; 4];
        outbox.take(&mut bytes);
        u32::from_be_bytes(bytes)
    }

    #[test]
    fn is_bounded_and_in_order() {
        let mut outbox = Outbox::new();
        for n in 0..OUTBOX_MESSAGES as u32 {
            push(&mut outbox, n).unwrap();
        }
        assert_eq!(push(&mut outbox, 99), Err(Drop::QueueFull));
        for n in 0..OUTBOX_MESSAGES as u32 {
            assert_eq!(outbox.next().unwrap().message.dst, ip(n));
            assert_eq!(take(&mut outbox), n);
        }
        assert_eq!(outbox.next(), None);
        let len = OUTBOX_MESSAGE_BYTES + 1;
        let long = Message { src: ip(0), dst: ip(1), protocol: Protocol::Icmp, len };
        assert_eq!(outbox.push(long, |_| ()), Err(Drop::QueueFull));
    }

    #[test]
    fn a_message_may_go_in_parts() {
        let mut outbox = Outbox::new();
        push(&mut outbox, 0x0102_0304).unwrap();
        push(&mut outbox, 7).unwrap();
        let mut bytes = [0; 3];
        outbox.take(&mut bytes);
        assert_eq!((bytes, outbox.next().unwrap().taken), ([1, 2, 3], 3));
        assert_eq!(outbox.next().unwrap().number, 0);
        outbox.take(&mut bytes);
        assert_eq!((bytes[0], outbox.next().unwrap().taken), (4, 0));
        assert_eq!(outbox.next().unwrap().number, 1);
        assert_eq!(take(&mut outbox), 7);
    }

    #[test]
    fn a_parked_message_lets_others_pass_and_goes_first() {
        let mut outbox = Outbox::new();
        push(&mut outbox, 1).unwrap();
        push(&mut outbox, 2).unwrap();
        outbox.park();
        assert_eq!(take(&mut outbox), 2);
        assert_eq!(outbox.next(), None);
        assert_eq!(outbox.on_neighbour(true, |dst| dst == ip(9)), 0);
        assert_eq!(outbox.next(), None);
        assert_eq!(outbox.on_neighbour(true, |dst| dst == ip(1)), 0);
        assert_eq!(take(&mut outbox), 1);
        push(&mut outbox, 3).unwrap();
        outbox.park();
        assert_eq!(outbox.on_neighbour(false, |_| true), 1);
        assert_eq!(outbox.next(), None);
        for n in 0..OUTBOX_MESSAGES as u32 {
            push(&mut outbox, n).unwrap();
        }
        outbox.park();
        push(&mut outbox, 77).unwrap();
        assert_eq!(take(&mut outbox), 1, "0 was parked, and made room");
    }
}
