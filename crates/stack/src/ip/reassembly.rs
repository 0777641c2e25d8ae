//! Fragment reassembly (RFC 791 §3.2, RFC 815, RFC 8200 §4.5).
//!
//! ```text
//! a slot:  | .... headers of the first fragment | fragmented part, up to 65,535 bytes |
//!                                 HEADER_ROOM --^
//! ```
//!
//! Invariants
//! - At most [`REASSEMBLIES_MAX`] packets at once, of at most [`FRAGMENTS_MAX`] fragments each,
//!   for at most [`KEPT_V6`]. The memory for them is fixed; a packet too many pushes out the
//!   oldest.
//! - Fragments that overlap are an attack: the whole packet is given up, and what still comes of
//!   it (RFC 5722 §4; RFC 8900 §3.5 says the same of IPv4). An exact copy of a fragment is not:
//!   networks duplicate.
//! - A packet is delivered only if every byte of it arrived exactly once.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::ops::Range;
use core::time::Duration;

use crate::counters::Drop;
use crate::limits::{FRAGMENTS_MAX, REASSEMBLIES_MAX};
use crate::time::Instant;
use crate::wire::Ecn;

/// How long fragments of IPv6 wait for the others (RFC 8200 §4.5).
const KEPT_V6: Duration = Duration::from_secs(60);
/// The same of IPv4: its identifications soon come round again (RFC 4963), so that less than the
/// 60 s of RFC 1122 §3.3.2 is better. Linux waits as long.
const KEPT_V4: Duration = Duration::from_secs(30);
/// Room for the headers before the fragmented part.
const HEADER_ROOM: usize = 256;
/// Longest fragmented part.
const PART_BYTES_MAX: usize = 65_535;
const SLOT_BYTES: usize = HEADER_ROOM + PART_BYTES_MAX;

/// Which packet a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    /// Who sent it.
    pub src: IpAddr,
    /// To whom.
    pub dst: IpAddr,
    /// What it carries. IPv6: without meaning, zero.
    pub protocol: u8,
    /// The sender's number for it.
    pub identification: u32,
}

/// A fragment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    /// Which packet.
    pub key: Key,
    /// What stands before the fragmented part.
    pub header: &'a [u8],
    /// Where `payload` belongs in the fragmented part, in bytes.
    pub offset: usize,
    /// This is not the last one.
    pub more: bool,
    /// Congestion marks.
    pub ecn: Ecn,
    /// A part of the fragmented part.
    pub payload: &'a [u8],
}

impl Piece<'_> {
    /// Where it begins and ends in the fragmented part.
    fn range(&self) -> (u16, u16) {
        (self.offset as u16, (self.offset + self.payload.len()) as u16)
    }

    /// It carries bytes, ends within the longest packet and where the next one can begin. The
    /// headers of the first one fit into a slot.
    fn is_well_formed(&self) -> bool {
        let len = self.payload.len();
        let ends_between_units = self.more && !len.is_multiple_of(8);
        len > 0
            && !ends_between_units
            && self.offset + len <= PART_BYTES_MAX
            && (self.offset > 0 || self.header.len() <= HEADER_ROOM)
    }
}

/// A packet of which everything arrived.
#[derive(Debug)]
pub(crate) struct ReassembledPacket<'a> {
    /// Headers of the first fragment, as they came, and then the fragmented part.
    pub packet: &'a mut [u8],
    /// Length of the headers in bytes.
    pub header_bytes: usize,
    /// Congestion marks of all of it.
    pub ecn: Ecn,
}

/// What became of a fragment.
#[derive(Debug)]
pub(crate) enum FragmentOutcome<'a> {
    /// It waits for the others.
    Waits,
    /// It waits for the others, in place of another packet that was given up: the oldest, or an
    /// earlier one with the same identification.
    WaitsInPlaceOfAnother,
    /// It was the last that missed. The packet stays as it is until the next call.
    Whole(ReassembledPacket<'a>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FragmentState {
    Free,
    Filling,
    /// Given up; what still comes of it is dropped.
    Refused,
}

#[derive(Debug)]
struct FragmentSlot {
    state: FragmentState,
    key: Key,
    until: Instant,
    /// Where each fragment began and ended, in bytes of the fragmented part.
    ranges: [(u16, u16); FRAGMENTS_MAX],
    count: usize,
    received_bytes: usize,
    /// Length of the fragmented part, once the last fragment said so.
    total_bytes: Option<usize>,
    /// Length of the headers, once the first fragment arrived.
    header_bytes: Option<usize>,
    ecn: Ecn,
}

/// Fragments that wait for others.
#[derive(Debug)]
pub(crate) struct Reassembly {
    slots: Vec<FragmentSlot>,
    bytes: Vec<u8>,
    next: Option<Instant>,
}

impl Reassembly {
    pub(crate) fn new() -> Self {
        let unused = Key { src: UNSPECIFIED, dst: UNSPECIFIED, protocol: 0, identification: 0 };
        let slot = || FragmentSlot {
            state: FragmentState::Free,
            key: unused,
            until: Instant::ZERO,
            ranges: [(0, 0); FRAGMENTS_MAX],
            count: 0,
            received_bytes: 0,
            total_bytes: None,
            header_bytes: None,
            ecn: Ecn::NotEct,
        };
        Self {
            slots: core::iter::repeat_with(slot).take(REASSEMBLIES_MAX).collect(),
            bytes: alloc::vec![0; REASSEMBLIES_MAX * SLOT_BYTES],
            next: None,
        }
    }

    /// Takes a fragment.
    ///
    /// # Errors
    ///
    /// Why the fragment, and perhaps its packet, is dropped. No other packet is given up then.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        piece: &Piece<'_>,
    ) -> Result<FragmentOutcome<'_>, Drop> {
        // Before any slot is looked at: such a fragment belongs to no packet.
        if !piece.is_well_formed() {
            return Err(Drop::BadFragment);
        }
        let (index, made_room) = match self.find(&piece.key) {
            Some(index) if self.is_reused(index, piece) => {
                self.begin_in(now, index, piece);
                (index, true)
            }
            Some(index) => (index, false),
            None => self.begin(now, piece),
        };
        let bytes = &mut self.bytes[bytes_of(index)];
        let slot = &mut self.slots[index];
        if slot.state == FragmentState::Refused {
            return Err(Drop::BadFragment);
        }
        if let Err(reason) = slot.place(piece, bytes) {
            slot.state = FragmentState::Refused;
            return Err(reason);
        }
        if let (Some(total), Some(header_bytes)) = (slot.total_bytes, slot.header_bytes)
            && slot.received_bytes == total
        {
            slot.state = FragmentState::Free;
            let packet = &mut bytes[HEADER_ROOM - header_bytes..HEADER_ROOM + total];
            let whole = ReassembledPacket { packet, header_bytes, ecn: slot.ecn };
            return Ok(FragmentOutcome::Whole(whole));
        }
        Ok(if made_room { FragmentOutcome::WaitsInPlaceOfAnother } else { FragmentOutcome::Waits })
    }

    /// Gives up the packets whose time is over: for each, `expired` gets the first fragment, as it
    /// came, if that arrived. Returns how many.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        mut expired: impl FnMut(Option<&[u8]>),
    ) -> usize {
        if self.next.is_none_or(|next| now < next) {
            return 0;
        }
        let mut given_up = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if slot.state == FragmentState::Free || now < slot.until {
                continue;
            }
            // A refused packet was already counted, and its sender gets no error.
            if slot.state == FragmentState::Filling {
                given_up += 1;
                let at = index * SLOT_BYTES + HEADER_ROOM;
                let first = slot.first_fragment();
                expired(first.map(|(header, part)| &self.bytes[at - header..at + part]));
            }
            slot.state = FragmentState::Free;
        }
        let busy = self.slots.iter().filter(|slot| slot.state != FragmentState::Free);
        self.next = busy.map(|slot| slot.until).min();
        given_up
    }

    /// When [`Reassembly::on_timeout`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    fn find(&self, key: &Key) -> Option<usize> {
        self.slots.iter().position(|slot| slot.state != FragmentState::Free && slot.key == *key)
    }

    /// A slot for the packet of `piece`, and whether another packet was given up for it.
    fn begin(&mut self, now: Instant, piece: &Piece<'_>) -> (usize, bool) {
        // Free ones first, then those that are only remembered to refuse them, then the oldest.
        let rank = |slot: &FragmentSlot| match slot.state {
            FragmentState::Free => (0, Instant::ZERO),
            FragmentState::Refused => (1, slot.until),
            FragmentState::Filling => (2, slot.until),
        };
        let index = (0..self.slots.len()).min_by_key(|at| rank(&self.slots[*at])).unwrap_or(0);
        let made_room = self.slots[index].state == FragmentState::Filling;
        self.begin_in(now, index, piece);
        (index, made_room)
    }

    /// An IPv4 fragment that differs from the one in its place is of a later packet with the same
    /// identification.
    fn is_reused(&self, index: usize, piece: &Piece<'_>) -> bool {
        let (slot, bytes) = (&self.slots[index], &self.bytes[bytes_of(index)]);
        let range = piece.range();
        piece.key.src.is_ipv4()
            && slot.state == FragmentState::Filling
            && slot.ranges[..slot.count].contains(&range)
            && bytes[HEADER_ROOM..][usize::from(range.0)..usize::from(range.1)] != *piece.payload
    }

    /// Makes the slot `index` that of the packet of `piece`.
    fn begin_in(&mut self, now: Instant, index: usize, piece: &Piece<'_>) {
        let slot = &mut self.slots[index];
        slot.state = FragmentState::Filling;
        slot.key = piece.key;
        slot.until = now + if piece.key.src.is_ipv4() { KEPT_V4 } else { KEPT_V6 };
        slot.count = 0;
        slot.received_bytes = 0;
        slot.total_bytes = None;
        slot.header_bytes = None;
        slot.ecn = piece.ecn;
        if self.next.is_none_or(|next| slot.until < next) {
            self.next = Some(slot.until);
        }
    }
}

/// Where a slot's bytes lie.
fn bytes_of(index: usize) -> Range<usize> {
    let start = index * SLOT_BYTES;
    start..start + SLOT_BYTES
}

const UNSPECIFIED: IpAddr = IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED);

impl FragmentSlot {
    /// Puts a fragment where it belongs. An error refuses the whole packet.
    fn place(&mut self, piece: &Piece<'_>, bytes: &mut [u8]) -> Result<(), Drop> {
        let end = piece.offset + piece.payload.len();
        let range = piece.range();
        if self.ranges[..self.count].contains(&range) {
            let held = &bytes[HEADER_ROOM + piece.offset..HEADER_ROOM + end];
            return if held == piece.payload { Ok(()) } else { Err(Drop::BadFragment) };
        }
        let overlaps = |other: &(u16, u16)| range.0 < other.1 && other.0 < range.1;
        if self.ranges[..self.count].iter().any(overlaps) || self.count == FRAGMENTS_MAX {
            return Err(Drop::BadFragment);
        }
        if !piece.more && self.total_bytes.replace(end).is_some() {
            return Err(Drop::BadFragment);
        }
        let highest = self.ranges[..self.count].iter().map(|range| range.1).max().unwrap_or(0);
        if self.total_bytes.is_some_and(|total| total < end.max(usize::from(highest))) {
            return Err(Drop::BadFragment);
        }
        self.ecn = join(self.ecn, piece.ecn).ok_or(Drop::BadFragment)?;
        if piece.offset == 0 {
            let header = piece.header;
            let at = HEADER_ROOM - header.len();
            bytes[at..HEADER_ROOM].copy_from_slice(header);
            self.header_bytes = Some(header.len());
        }
        bytes[HEADER_ROOM + piece.offset..HEADER_ROOM + end].copy_from_slice(piece.payload);
        self.ranges[self.count] = range;
        self.count += 1;
        self.received_bytes += piece.payload.len();
        Ok(())
    }

    /// Length of the first fragment's headers and of its part, if it arrived.
    fn first_fragment(&self) -> Option<(usize, usize)> {
        let part = self.ranges[..self.count].iter().find(|range| range.0 == 0)?;
        Some((self.header_bytes?, usize::from(part.1)))
    }
}

/// The marks of a packet, from those of its fragments (RFC 3168 §5.3). `None`: they contradict
/// each other.
const fn join(a: Ecn, b: Ecn) -> Option<Ecn> {
    match (a, b) {
        (Ecn::NotEct, Ecn::NotEct) => Some(Ecn::NotEct),
        (Ecn::NotEct, _) | (_, Ecn::NotEct) => None,
        (Ecn::Ce, _) | (_, Ecn::Ce) => Some(Ecn::Ce),
        (Ecn::Ect0, Ecn::Ect0) => Some(Ecn::Ect0),
        _ => Some(Ecn::Ect1),
    }
}

#[cfg(test)]
mod tests;
