//! ARP for IPv4 over Ethernet (RFC 826).
//!
//! ```text
//! hardware (2) | protocol (2) | 6 | 4 | operation (2)
//! sender: hardware address (6), IP (4) | target: hardware address (6), IP (4)
//! ```
//!
//! Invariant: a view speaks of IPv4 over Ethernet, and nothing else.

use core::net::Ipv4Addr;

use super::ethernet;
use super::field::{array_at, put_u16, u16_at};
use crate::counters::Drop;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 28;

const ETHERNET: u16 = 1;
const LENGTHS: u16 = 0x0604;

/// A message whose length and kinds of addresses were checked.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
}

impl<'a> View<'a> {
    /// Checks length, and that it is about IPv4 over Ethernet.
    ///
    /// # Errors
    ///
    /// [`Drop::Truncated`], or [`Drop::BadHeader`] for other kinds of addresses.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Drop> {
        let bytes = bytes.get(..MESSAGE_BYTES).ok_or(Drop::Truncated)?;
        let kinds = [u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4)];
        if kinds != [ETHERNET, ethernet::IPV4, LENGTHS] {
            return Err(Drop::BadHeader);
        }
        Ok(Self { bytes })
    }

    /// What is wanted, as a number.
    #[must_use]
    pub fn operation(&self) -> u16 {
        u16_at(self.bytes, 6)
    }

    /// The sender's address on the link.
    #[must_use]
    pub fn sender_mac(&self) -> [u8; 6] {
        array_at(self.bytes, 8).unwrap_or_default()
    }

    /// The sender's IP address.
    #[must_use]
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array_at(self.bytes, 14).unwrap_or_default())
    }

    /// The target's address on the link; without meaning in a request.
    #[must_use]
    pub fn target_mac(&self) -> [u8; 6] {
        array_at(self.bytes, 18).unwrap_or_default()
    }

    /// The target's IP address.
    #[must_use]
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from_octets(array_at(self.bytes, 24).unwrap_or_default())
    }
}

/// What an ARP message wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Request for the link address of the target.
    Request,
    /// The sender has it.
    Reply,
}

/// A message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// What is wanted.
    pub operation: Operation,
    /// The sender's address on the link.
    pub sender_mac: [u8; 6],
    /// The sender's IP address; unspecified in a probe (RFC 5227 §2.1.1).
    pub sender_ip: Ipv4Addr,
    /// The target's address on the link; zero in a request.
    pub target_mac: [u8; 6],
    /// The target's IP address.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// What `view` says.
    ///
    /// # Errors
    ///
    /// [`Drop::BadNeighbourMessage`] for another operation, or a sender whose address on the link
    /// is a group's.
    pub fn parse(view: &View<'_>) -> Result<Self, Drop> {
        let operation = match view.operation() {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(Drop::BadNeighbourMessage),
        };
        if ethernet::is_group(view.sender_mac()) {
            return Err(Drop::BadNeighbourMessage);
        }
        Ok(Self {
            operation,
            sender_mac: view.sender_mac(),
            sender_ip: view.sender_ip(),
            target_mac: view.target_mac(),
            target_ip: view.target_ip(),
        })
    }

    /// Length of the message in bytes.
    #[must_use]
    pub const fn header_bytes(&self) -> usize {
        MESSAGE_BYTES
    }

    /// Writes the message to the start of `bytes`.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`Repr::header_bytes`].
    pub fn emit(&self, bytes: &mut [u8]) {
        let message = &mut bytes[..MESSAGE_BYTES];
        put_u16(message, 0, ETHERNET);
        put_u16(message, 2, ethernet::IPV4);
        put_u16(message, 4, LENGTHS);
        put_u16(message, 6, if self.operation == Operation::Request { 1 } else { 2 });
        message[8..14].copy_from_slice(&self.sender_mac);
        message[14..18].copy_from_slice(&self.sender_ip.octets());
        message[18..24].copy_from_slice(&self.target_mac);
        message[24..28].copy_from_slice(&self.target_ip.octets());
    }
}
