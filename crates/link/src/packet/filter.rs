//! The socket filter of a packet link: what is ours, as classic BPF.
//!
//! Read first: `ownership.rs`, whose `owner_of` this program computes; the kernel's
//! `networking/filter` for the machine: an accumulator A, an index X, sixteen words of memory.
//!
//! Pure: an ownership in, instructions out.
//!
//! Invariants
//! - The program takes a frame exactly when `owner_of` answers anything but `Owner::Kernel`. A
//!   load beyond the frame ends the program with "not ours", as `owner_of` does.
//! - Conditional jumps reach 255 instructions at most, so they only skip what stands right behind
//!   them; longer ways are unconditional jumps.

use std::net::IpAddr;

use crate::limits::PACKET_FILTER_INSTRUCTIONS_MAX;
use crate::{FlowTuple, LinkError, LinkMedium, Ownership, Transport};

/// One instruction, laid out as the kernel's `sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FilterInstruction {
    pub(super) code: u16,
    pub(super) jump_true: u8,
    pub(super) jump_false: u8,
    pub(super) value: u32,
}

pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const LOAD_BYTE: u16 = 0x30;
pub(super) const LOAD_WORD_AT_X: u16 = 0x40;
pub(super) const LOAD_HALF_AT_X: u16 = 0x48;
pub(super) const LOAD_BYTE_AT_X: u16 = 0x50;
pub(super) const LOAD_MEMORY: u16 = 0x60;
/// X = four times the low half of a byte: the length of an IPv4 header.
pub(super) const LOAD_X_HEADER: u16 = 0xb1;
pub(super) const STORE: u16 = 0x02;
pub(super) const AND: u16 = 0x54;
pub(super) const SHIFT_LEFT: u16 = 0x64;
pub(super) const SHIFT_RIGHT: u16 = 0x74;
pub(super) const ADD_X: u16 = 0x0c;
pub(super) const TO_X: u16 = 0x07;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_EQUAL: u16 = 0x15;
pub(super) const JUMP_GREATER: u16 = 0x25;
pub(super) const JUMP_AT_LEAST: u16 = 0x35;
pub(super) const JUMP_BITS: u16 = 0x45;
pub(super) const RETURN: u16 = 0x06;

/// Where a load finds whether a VLAN tag was taken off the frame
/// (`SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT`).
pub(super) const VLAN_TAG_PRESENT: u32 = (-0x1000_i32 + 48) as u32;

/// Take the whole frame, or nothing of it.
pub(super) const TAKE: u32 = 0x4_0000;
pub(super) const LEAVE: u32 = 0;

/// Memory words: the local and the remote address (four words each, IPv4 uses the first), ports.
const LOCAL: u32 = 0;
const REMOTE: u32 = 4;
const LOCAL_PORT: u32 = 8;
const REMOTE_PORT: u32 = 9;

const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
const FRAGMENT_HEADER: u32 = 44;

/// The program for `ownership`.
///
/// # Errors
/// [`LinkError::Setting`]: the rules make more instructions than the kernel takes.
pub(super) fn compile(
    medium: LinkMedium,
    ownership: &Ownership,
) -> Result<Vec<FilterInstruction>, LinkError> {
    let mut program = FilterProgram { ownership, code: Vec::new(), jumps: Vec::new(), labels: 0 };
    program.frame(medium);
    let code = program.linked();
    if code.len() > PACKET_FILTER_INSTRUCTIONS_MAX {
        let why = format!("its filter has {} instructions, the kernel takes 4096", code.len());
        return Err(LinkError::Setting { setting: "ownership", why });
    }
    Ok(code)
}

/// A place in the program that is not known yet.
#[derive(Clone, Copy, PartialEq)]
struct FilterLabel(usize);

struct FilterProgram<'a> {
    ownership: &'a Ownership,
    code: Vec<FilterInstruction>,
    /// Jumps whose value is still the number of a label, and the places of labels.
    jumps: Vec<(FilterLabel, FilterEnd)>,
    labels: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum FilterEnd {
    From(usize),
    To(usize),
}

/// An IP version, with what the program needs of it.
#[derive(Clone, Copy)]
struct Family {
    is_ipv4: bool,
    /// Offsets of the source and the destination address in the header.
    source: u32,
    destination: u32,
    protocol: u32,
}

const IPV4: Family = Family { is_ipv4: true, source: 12, destination: 16, protocol: 9 };
const IPV6: Family = Family { is_ipv4: false, source: 8, destination: 24, protocol: 6 };

impl Family {
    fn words(self, address: IpAddr) -> Vec<u32> {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        octets.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
    }

    fn word_count(self) -> u32 {
        if self.is_ipv4 { 1 } else { 4 }
    }
}

impl FilterProgram<'_> {
    fn put(&mut self, code: u16, value: u32) {
        self.branch(code, value, 0, 0);
    }

    fn branch(&mut self, code: u16, value: u32, jump_true: u8, jump_false: u8) {
        self.code.push(FilterInstruction { code, jump_true, jump_false, value });
    }

    fn label(&mut self) -> FilterLabel {
        self.labels += 1;
        FilterLabel(self.labels)
    }

    fn here(&mut self, label: FilterLabel) {
        self.jumps.push((label, FilterEnd::To(self.code.len())));
    }

    fn jump(&mut self, label: FilterLabel) {
        self.jumps.push((label, FilterEnd::From(self.code.len())));
        self.put(JUMP, 0);
    }

    /// If A is `value`, goes to `label`.
    fn jump_if(&mut self, value: u32, label: FilterLabel) {
        self.branch(JUMP_EQUAL, value, 0, 1);
        self.jump(label);
    }

    fn jump_unless(&mut self, value: u32, label: FilterLabel) {
        self.branch(JUMP_EQUAL, value, 1, 0);
        self.jump(label);
    }

    fn finish(&mut self, is_ours: bool) {
        self.put(RETURN, if is_ours { TAKE } else { LEAVE });
    }

    fn linked(mut self) -> Vec<FilterInstruction> {
        for &(label, place) in &self.jumps {
            let FilterEnd::From(from) = place else { continue };
            let find = |&(other, place): &(FilterLabel, FilterEnd)| match place {
                FilterEnd::To(to) if other == label => Some(to),
                _ => None,
            };
            let to = self.jumps.iter().find_map(find).expect("every label is set by `frame`");
            // Jumps go forward only: each label is set after the jumps to it.
            self.code[from].value = (to - from - 1) as u32;
        }
        self.code
    }

    fn frame(&mut self, medium: LinkMedium) {
        let (ipv4, ipv6) = (self.label(), self.label());
        let start = match medium {
            LinkMedium::Ethernet => {
                self.put(LOAD_WORD, VLAN_TAG_PRESENT);
                self.branch(JUMP_EQUAL, 0, 1, 0);
                self.finish(false);
                self.put(LOAD_HALF, 12);
                self.jump_if(0x0800, ipv4);
                self.jump_if(0x86dd, ipv6);
                self.branch(JUMP_EQUAL, 0x0806, 0, 1);
                self.finish(self.ownership.neighbours);
                self.finish(false);
                14
            }
            LinkMedium::Ip => {
                self.put(LOAD_BYTE, 0);
                self.put(SHIFT_RIGHT, 4);
                self.jump_if(4, ipv4);
                self.jump(ipv6);
                0
            }
        };
        self.here(ipv4);
        self.put(LOAD_X_HEADER, start);
        self.packet(IPV4, start);
        self.here(ipv6);
        self.packet(IPV6, start);
    }

    /// A packet at `start`; for IPv4, X is its header's length. Ends the program on all ways.
    fn packet(&mut self, family: Family, start: u32) {
        if !family.is_ipv4 {
            self.neighbour_discovery(start);
        }
        self.store_address(LOAD_WORD, start + family.source, REMOTE, family);
        self.store_address(LOAD_WORD, start + family.destination, LOCAL, family);
        let local = self.label();
        self.jump_if_ours(family, local);
        // Not to one of the addresses: only a flow that was taken can be ours.
        if family.is_ipv4 {
            self.put(LOAD_HALF, start + 6);
            self.branch(JUMP_BITS, 0x1fff, 0, 1);
            self.finish(false);
        }
        self.transports(family, start, false, None);

        self.here(local);
        if family.is_ipv4 {
            self.put(LOAD_HALF, start + 6);
            self.branch(JUMP_BITS, 0x1fff, 0, 1);
            self.finish(true);
        } else {
            self.put(LOAD_BYTE, start + family.protocol);
            self.branch(JUMP_EQUAL, FRAGMENT_HEADER, 0, 1);
            self.finish(true);
        }
        let icmp = self.label();
        self.transports(family, start, true, Some(icmp));
        self.here(icmp);
        self.icmp(family, start);
    }

    /// Neighbour discovery, whatever its destination.
    fn neighbour_discovery(&mut self, start: u32) {
        let other = self.label();
        self.put(LOAD_BYTE, start + IPV6.protocol);
        self.jump_unless(ICMPV6, other);
        self.put(LOAD_BYTE, start + 40);
        self.branch(JUMP_AT_LEAST, 133, 0, 2);
        self.branch(JUMP_GREATER, 137, 1, 0);
        self.finish(self.ownership.neighbours);
        self.here(other);
    }

    fn store_address(&mut self, load: u16, at: u32, memory: u32, family: Family) {
        for word in 0..family.word_count() {
            self.put(load, at + 4 * word);
            self.put(STORE, memory + word);
        }
    }

    /// Goes to `label` if the local address in memory is one of ours.
    fn jump_if_ours(&mut self, family: Family, label: FilterLabel) {
        let ownership = self.ownership;
        let same_family = |address: &&IpAddr| address.is_ipv4() == family.is_ipv4;
        for address in ownership.addresses().iter().filter(same_family) {
            let words = family.words(*address);
            let mut left = words.len();
            for (memory, word) in (LOCAL..).zip(words) {
                left -= 1;
                self.put(LOAD_MEMORY, memory);
                // What is left of the comparison, and the jump behind it.
                self.branch(JUMP_EQUAL, word, 0, (2 * left + 1) as u8);
            }
            self.jump(label);
        }
    }

    /// TCP and UDP, by their ports. Other protocols: ICMP to `icmp`, the rest by the address.
    fn transports(&mut self, family: Family, start: u32, is_ours: bool, icmp: Option<FilterLabel>) {
        let (tcp, udp) = (self.label(), self.label());
        self.put(LOAD_BYTE, start + family.protocol);
        self.jump_if(u32::from(Transport::Tcp.number()), tcp);
        self.jump_if(u32::from(Transport::Udp.number()), udp);
        if let Some(icmp) = icmp {
            self.jump_if(if family.is_ipv4 { ICMP } else { ICMPV6 }, icmp);
        }
        self.finish(is_ours && self.ownership.whole_address);
        for (label, transport) in [(tcp, Transport::Tcp), (udp, Transport::Udp)] {
            self.here(label);
            self.store_ports(family, start, REMOTE_PORT, LOCAL_PORT);
            self.flows_and_ports(family, transport, is_ours);
        }
    }

    /// Stores the first and the second port of the transport header behind the IP header.
    fn store_ports(&mut self, family: Family, start: u32, first: u32, second: u32) {
        // An IPv6 header has one length: its offset is known without X.
        let (load, at) =
            if family.is_ipv4 { (LOAD_HALF_AT_X, start) } else { (LOAD_HALF, start + 40) };
        self.put(load, at);
        self.put(STORE, first);
        self.put(load, at + 2);
        self.put(STORE, second);
    }

    /// Decides by the addresses and ports in memory. `is_ours`: the local address is.
    fn flows_and_ports(&mut self, family: Family, transport: Transport, is_ours: bool) {
        let ownership = self.ownership;
        if is_ours {
            for flow in ownership.released() {
                self.finish_flow(family, transport, flow, false);
            }
        }
        for flow in ownership.taken() {
            self.finish_flow(family, transport, flow, true);
        }
        if is_ours && ownership.whole_address {
            return self.finish(true);
        }
        if is_ours {
            self.put(LOAD_MEMORY, LOCAL_PORT);
            for &(first, last) in ownership.ports(transport).ranges() {
                self.branch(JUMP_AT_LEAST, first.into(), 0, 2);
                self.branch(JUMP_GREATER, last.into(), 1, 0);
                self.finish(true);
            }
        }
        self.finish(false);
    }

    /// Ends the program if `flow` is what memory holds.
    fn finish_flow(
        &mut self,
        family: Family,
        transport: Transport,
        flow: &FlowTuple,
        is_ours: bool,
    ) {
        if flow.transport != transport || flow.local.is_ipv4() != family.is_ipv4 {
            return;
        }
        let ports = [(LOCAL_PORT, flow.local_port), (REMOTE_PORT, flow.remote_port)];
        let mut wanted: Vec<(u32, u32)> =
            ports.iter().map(|(memory, port)| (*memory, u32::from(*port))).collect();
        wanted.extend((LOCAL..).zip(family.words(flow.local)));
        wanted.extend((REMOTE..).zip(family.words(flow.remote)));
        for (index, (memory, value)) in wanted.iter().enumerate() {
            let left = wanted.len() - index - 1;
            self.put(LOAD_MEMORY, *memory);
            self.branch(JUMP_EQUAL, *value, 0, (2 * left + 1) as u8);
        }
        self.finish(is_ours);
    }

    /// ICMP to one of our addresses: an error belongs to the sender of the quoted packet.
    fn icmp(&mut self, family: Family, start: u32) {
        let error = self.label();
        let (load, at) =
            if family.is_ipv4 { (LOAD_BYTE_AT_X, start) } else { (LOAD_BYTE, start + 40) };
        self.put(load, at);
        for kind in if family.is_ipv4 { &[3, 11, 12][..] } else { &[1, 2, 3, 4] } {
            self.jump_if(*kind, error);
        }
        self.finish(self.ownership.whole_address);
        self.here(error);
        let quoted = at + 8;
        self.put(load, quoted);
        if self.ownership.whole_address {
            return self.finish(true);
        }
        self.put(SHIFT_RIGHT, 4);
        self.branch(JUMP_EQUAL, if family.is_ipv4 { 4 } else { 6 }, 1, 0);
        self.finish(false);
        self.quoted(family, quoted);
    }

    /// The quoted packet, which went the other way.
    fn quoted(&mut self, family: Family, quoted: u32) {
        let load = if family.is_ipv4 { LOAD_WORD_AT_X } else { LOAD_WORD };
        self.store_address(load, quoted + family.source, LOCAL, family);
        self.store_address(load, quoted + family.destination, REMOTE, family);
        for transport in [Transport::Tcp, Transport::Udp] {
            let (other, ours) = (self.label(), self.label());
            let load = if family.is_ipv4 { LOAD_BYTE_AT_X } else { LOAD_BYTE };
            self.put(load, quoted + family.protocol);
            self.jump_unless(u32::from(transport.number()), other);
            if family.is_ipv4 {
                self.put(LOAD_BYTE_AT_X, quoted);
                self.put(AND, 15);
                self.put(SHIFT_LEFT, 2);
                self.put(ADD_X, 0);
                self.put(TO_X, 0);
            }
            self.store_ports(family, quoted, LOCAL_PORT, REMOTE_PORT);
            self.jump_if_ours(family, ours);
            self.flows_and_ports(family, transport, false);
            self.here(ours);
            self.flows_and_ports(family, transport, true);
            self.here(other);
        }
        self.finish(false);
    }
}

#[cfg(test)]
mod tests;
