//! The XDP program: which frames go to our sockets, and which the kernel never misses.
//!
//! It decides as [`Ownership::owner_of`](crate::Ownership::owner_of) does, which the tests hold it
//! against frame by frame: `Ours` and `IcmpError` are redirected, everything else is passed on
//! untouched. So ARP and neighbour discovery stay with the kernel.
//!
//! Passed on with a reason:
//! - Frames with a VLAN tag: the tag names another network than the one whose addresses we share.
//!   (A NIC that takes tags off before XDP has to be told not to: `ethtool -K … rxvlan off`; over
//!   veth the sender has to write them into the frame: `txvlan off` there.)
//! - IPv6 packets with extension headers before the transport: the program walks no chain of
//!   unknown length, and TCP and UDP of this kind are rare.
//! - Later fragments to a shared address: they carry no ports. The kernel never gets all fragments
//!   of a packet for our ports, so it never answers one.
//!
//! A frame of ours on a queue without a socket is dropped: the kernel must not answer it.
//!
//! Registers: R6 the context, R7 the first byte, R8 behind the last, R9 what is known of the
//! destination address. On the stack the key of a flow, [`FLOW_KEY_BYTES`] long.
//!
//! Read first: [`program`], from top to bottom; the layout of keys in [`flow_key`].

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use super::assembler::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};
use super::assembler::Width::{Byte, Double, Half, Word};
use super::assembler::{
    Arithmetic, Assembler, AssemblyError, BpfInstruction, BpfLabel, JumpCondition, Register,
};
use crate::{FlowTuple, Transport};

/// Bytes in the key of the map of addresses: an IPv6 address, IPv4 mapped (RFC 4291 2.5.5.2).
pub(super) const ADDRESS_KEY_BYTES: usize = 16;
/// Bytes in the key of the map of flows.
pub(super) const FLOW_KEY_BYTES: usize = 40;
/// Ports in one word of the map of ports.
pub(super) const PORTS_PER_WORD: u32 = 64;
/// Words for one protocol in the map of ports: TCP's, then UDP's.
pub(super) const WORDS_PER_TRANSPORT: u32 = 65_536 / PORTS_PER_WORD;

/// In the map of addresses: the ports decide.
pub(super) const ADDRESS_SHARED: u32 = 1;
/// In the map of addresses: everything to it is ours.
pub(super) const ADDRESS_WHOLE: u32 = 2;
/// In the map of flows: ours, whatever the port says.
pub(super) const FLOW_TAKEN: u32 = 1;
/// In the map of flows: the kernel's, whatever the port says.
pub(super) const FLOW_RELEASED: u32 = 2;

/// What the program answers for frames that are not ours (`XDP_PASS`).
pub(super) const PASS: u32 = 2;
/// What it answers for frames of ours that no socket can have (`XDP_DROP`).
pub(super) const DROP: u32 = 1;

/// The maps that the program reads.
pub(super) struct Maps<'a> {
    /// Queue to socket.
    pub(super) sockets: BorrowedFd<'a>,
    /// Address to what is ours of it.
    pub(super) addresses: BorrowedFd<'a>,
    /// Map from flow to owner.
    pub(super) flows: BorrowedFd<'a>,
    /// Bits of ports that are ours.
    pub(super) ports: BorrowedFd<'a>,
}

/// An address as a key.
pub(super) fn address_key(address: IpAddr) -> [u8; ADDRESS_KEY_BYTES] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A flow as a key: local address, remote address, local port, remote port (network order),
/// protocol, zeros.
pub(super) fn flow_key(flow: &FlowTuple) -> [u8; FLOW_KEY_BYTES] {
    let mut key = [0; FLOW_KEY_BYTES];
    key[..16].copy_from_slice(&address_key(flow.local));
    key[16..32].copy_from_slice(&address_key(flow.remote));
    key[32..34].copy_from_slice(&flow.local_port.to_be_bytes());
    key[34..36].copy_from_slice(&flow.remote_port.to_be_bytes());
    key[36] = flow.transport.number();
    key
}

// Where the key's parts are on the stack, from R10 down.
const KEY: i16 = -(FLOW_KEY_BYTES as i16);
const LOCAL: i16 = KEY;
const REMOTE: i16 = KEY + 16;
const LOCAL_PORT: i16 = KEY + 32;
const REMOTE_PORT: i16 = KEY + 34;
const PROTOCOL: i16 = KEY + 36;
/// The key of the map of ports.
const WORD_INDEX: i16 = KEY - 8;

// Helper functions (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;

// `struct xdp_md`.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

const ETHERNET_BYTES: i32 = 14;
const TCP: i32 = 6;
const UDP: i32 = 17;
const ICMP: i32 = 1;
const ICMPV6: i32 = 58;

/// Where the parts of the program begin.
struct Labels {
    pass: BpfLabel,
    redirect: BpfLabel,
    /// The key is whole: decide by flow, address and port.
    flow: BpfLabel,
    /// No ports: only a whole address is ours.
    portless: BpfLabel,
    /// R2 is at a transport header with ports.
    ports: BpfLabel,
    /// R2 is at an ICMP error; R9 knows its destination.
    error_ipv4: BpfLabel,
    /// The same for ICMPv6.
    error_ipv6: BpfLabel,
}

/// The instructions.
pub(super) fn program(maps: &Maps<'_>) -> Result<Vec<BpfInstruction>, AssemblyError> {
    let mut a = Assembler::new();
    let labels = Labels {
        pass: a.label(),
        redirect: a.label(),
        flow: a.label(),
        portless: a.label(),
        ports: a.label(),
        error_ipv4: a.label(),
        error_ipv6: a.label(),
    };
    let (ipv4, ipv6) = (a.label(), a.label());
    a.set(R6, R1);
    a.load(Word, R7, R6, CONTEXT_DATA);
    a.load(Word, R8, R6, CONTEXT_DATA_END);
    clear_key(&mut a);
    need(&mut a, R7, ETHERNET_BYTES, &labels);
    a.load(Half, R3, R7, 12);
    a.jump_if_number(R3, JumpCondition::Equal, network(0x0800), ipv4);
    a.jump_if_number(R3, JumpCondition::Equal, network(0x86dd), ipv6);
    a.jump(labels.pass);

    a.place(ipv4);
    from_ipv4(&mut a, maps, &labels);
    a.place(ipv6);
    from_ipv6(&mut a, maps, &labels);
    from_error(&mut a, &labels);
    a.place(labels.ports);
    from_ports(&mut a, &labels);
    a.place(labels.flow);
    from_flow(&mut a, maps, &labels);
    a.place(labels.portless);
    a.jump_if_number(R9, JumpCondition::Equal, ADDRESS_WHOLE as i32, labels.redirect);
    a.place(labels.pass);
    a.set_number(R0, PASS as i32);
    a.exit();
    a.place(labels.redirect);
    a.map(R1, maps.sockets);
    a.load(Word, R2, R6, CONTEXT_QUEUE);
    a.set_number(R3, DROP as i32);
    a.call(REDIRECT_MAP);
    a.exit();
    a.finish()
}

/// A number of 16 bits as a load of network order shows it.
fn network(number: u16) -> i32 {
    i32::from(number.to_be())
}

/// Passes the frame on unless `bytes` from `from` on are inside it; destroys R3.
fn need(a: &mut Assembler, from: Register, bytes: i32, labels: &Labels) {
    a.set(R3, from);
    a.alu_number(Arithmetic::Add, R3, bytes);
    a.jump_if(R3, JumpCondition::Greater, R8, labels.pass);
}

fn clear_key(a: &mut Assembler) {
    for part in 0..FLOW_KEY_BYTES as i16 / 8 {
        a.store_number(Double, R10, KEY + part * 8, 0);
    }
}

/// Copies an IPv4 address from the packet into the key, mapped.
fn copy_ipv4(a: &mut Assembler, key: i16, from: Register, offset: i16) {
    a.store_number(Double, R10, key, 0);
    a.store_number(Word, R10, key + 8, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
    a.load(Word, R3, from, offset);
    a.store(Word, R10, key + 12, R3);
}

/// Copies an IPv6 address from the packet into the key.
fn copy_ipv6(a: &mut Assembler, key: i16, from: Register, offset: i16) {
    for part in [0, 8] {
        a.load(Double, R3, from, offset + part);
        a.store(Double, R10, key + part, R3);
    }
}

/// R0 = the value that `map` holds for the key at `key`, or null.
fn look_up(a: &mut Assembler, map: BorrowedFd<'_>, key: i16) {
    a.map(R1, map);
    a.set(R2, R10);
    a.alu_number(Arithmetic::Add, R2, i32::from(key));
    a.call(MAP_LOOKUP);
}

/// R9 = what is ours of the address in the key; 0: nothing.
fn look_up_destination(a: &mut Assembler, maps: &Maps<'_>) {
    let unknown = a.label();
    look_up(a, maps.addresses, LOCAL);
    a.set_number(R9, 0);
    a.jump_if_number(R0, JumpCondition::Equal, 0, unknown);
    a.load(Word, R9, R0, 0);
    a.place(unknown);
}

/// R7 is at an Ethernet header with an IPv4 packet behind it.
fn from_ipv4(a: &mut Assembler, maps: &Maps<'_>, labels: &Labels) {
    let at = ETHERNET_BYTES as i16;
    need(a, R7, ETHERNET_BYTES + 20, labels);
    copy_ipv4(a, LOCAL, R7, at + 16);
    copy_ipv4(a, REMOTE, R7, at + 12);
    look_up_destination(a, maps);
    // A fragment offset other than 0 (RFC 791): no ports.
    a.load(Half, R3, R7, at + 6);
    a.jump_if_number(R3, JumpCondition::Overlaps, network(0x1fff), labels.portless);
    // R2 = R7 + Ethernet's header + four times the header length.
    a.load(Byte, R2, R7, at);
    a.alu_number(Arithmetic::And, R2, 15);
    a.alu_number(Arithmetic::ShiftLeft, R2, 2);
    a.alu(Arithmetic::Add, R2, R7);
    a.alu_number(Arithmetic::Add, R2, ETHERNET_BYTES);
    a.load(Byte, R4, R7, at + 9);
    a.store(Byte, R10, PROTOCOL, R4);
    a.jump_if_number(R4, JumpCondition::Equal, TCP, labels.ports);
    a.jump_if_number(R4, JumpCondition::Equal, UDP, labels.ports);
    a.jump_if_number(R4, JumpCondition::NotEqual, ICMP, labels.portless);
    need(a, R2, 1, labels);
    a.load(Byte, R5, R2, 0);
    // Destination unreachable, time exceeded, parameter problem (RFC 792).
    for kind in [3, 11, 12] {
        a.jump_if_number(R5, JumpCondition::Equal, kind, labels.error_ipv4);
    }
    a.jump(labels.portless);
}

/// R7 is at an Ethernet header with an IPv6 packet behind it.
fn from_ipv6(a: &mut Assembler, maps: &Maps<'_>, labels: &Labels) {
    let at = ETHERNET_BYTES as i16;
    let icmp = a.label();
    need(a, R7, ETHERNET_BYTES + 40, labels);
    copy_ipv6(a, LOCAL, R7, at + 24);
    copy_ipv6(a, REMOTE, R7, at + 8);
    look_up_destination(a, maps);
    a.set(R2, R7);
    a.alu_number(Arithmetic::Add, R2, ETHERNET_BYTES + 40);
    a.load(Byte, R4, R7, at + 6);
    a.store(Byte, R10, PROTOCOL, R4);
    a.jump_if_number(R4, JumpCondition::Equal, TCP, labels.ports);
    a.jump_if_number(R4, JumpCondition::Equal, UDP, labels.ports);
    a.jump_if_number(R4, JumpCondition::Equal, ICMPV6, icmp);
    // Fragments and other extension headers too.
    a.jump(labels.portless);
    a.place(icmp);
    need(a, R2, 1, labels);
    a.load(Byte, R5, R2, 0);
    // Router and neighbour discovery, redirects (RFC 4861): always the kernel's.
    let not_discovery = a.label();
    a.jump_if_number(R5, JumpCondition::Greater, 137, not_discovery);
    a.jump_if_number(R5, JumpCondition::GreaterOrEqual, 133, labels.pass);
    a.place(not_discovery);
    // Errors (RFC 4443 section 3).
    for kind in 1..=4 {
        a.jump_if_number(R5, JumpCondition::Equal, kind, labels.error_ipv6);
    }
    a.jump(labels.portless);
}

/// R2 is at an ICMP error, by label of its IP version. The packet that it quotes was sent from
/// here, so its source is local; it is of the error's own version.
fn from_error(a: &mut Assembler, labels: &Labels) {
    let (quoted_ports, has_ports) = (a.label(), a.label());
    a.place(labels.error_ipv4);
    quoted(a, 4, 20, labels);
    copy_ipv4(a, LOCAL, R2, 12);
    copy_ipv4(a, REMOTE, R2, 16);
    a.load(Byte, R4, R2, 9);
    a.alu_number(Arithmetic::And, R5, 15);
    a.alu_number(Arithmetic::ShiftLeft, R5, 2);
    a.alu(Arithmetic::Add, R2, R5);
    a.jump(quoted_ports);
    a.place(labels.error_ipv6);
    quoted(a, 6, 40, labels);
    copy_ipv6(a, LOCAL, R2, 8);
    copy_ipv6(a, REMOTE, R2, 24);
    a.load(Byte, R4, R2, 6);
    a.alu_number(Arithmetic::Add, R2, 40);
    a.place(quoted_ports);
    a.store(Byte, R10, PROTOCOL, R4);
    a.jump_if_number(R4, JumpCondition::Equal, TCP, has_ports);
    a.jump_if_number(R4, JumpCondition::NotEqual, UDP, labels.pass);
    a.place(has_ports);
    need(a, R2, 4, labels);
    a.load(Half, R3, R2, 0);
    a.store(Half, R10, LOCAL_PORT, R3);
    a.load(Half, R3, R2, 2);
    a.store(Half, R10, REMOTE_PORT, R3);
    a.jump(labels.flow);
}

/// Moves R2 from an ICMP error to the packet that it quotes, of which `bytes` have to be there,
/// and loads the first into R5.
fn quoted(a: &mut Assembler, version: i32, bytes: i32, labels: &Labels) {
    a.jump_if_number(R9, JumpCondition::Equal, 0, labels.pass);
    need(a, R2, 9, labels);
    a.jump_if_number(R9, JumpCondition::Equal, ADDRESS_WHOLE as i32, labels.redirect);
    a.alu_number(Arithmetic::Add, R2, 8);
    need(a, R2, bytes, labels);
    a.load(Byte, R5, R2, 0);
    a.set(R4, R5);
    a.alu_number(Arithmetic::ShiftRight, R4, 4);
    a.jump_if_number(R4, JumpCondition::NotEqual, version, labels.pass);
}

/// R2 is at a received transport header: the source is remote.
fn from_ports(a: &mut Assembler, labels: &Labels) {
    need(a, R2, 4, labels);
    a.load(Half, R3, R2, 0);
    a.store(Half, R10, REMOTE_PORT, R3);
    a.load(Half, R3, R2, 2);
    a.store(Half, R10, LOCAL_PORT, R3);
}

/// The key is whole.
fn from_flow(a: &mut Assembler, maps: &Maps<'_>, labels: &Labels) {
    let (by_port, is_tcp) = (a.label(), a.label());
    look_up(a, maps.flows, KEY);
    a.jump_if_number(R0, JumpCondition::Equal, 0, by_port);
    a.load(Word, R3, R0, 0);
    a.jump_if_number(R3, JumpCondition::Equal, FLOW_RELEASED as i32, labels.pass);
    a.jump(labels.redirect);
    a.place(by_port);
    look_up(a, maps.addresses, LOCAL);
    a.jump_if_number(R0, JumpCondition::Equal, 0, labels.pass);
    a.load(Word, R3, R0, 0);
    a.jump_if_number(R3, JumpCondition::Equal, ADDRESS_WHOLE as i32, labels.redirect);
    a.load(Half, R3, R10, LOCAL_PORT);
    a.swap_network_16(R3);
    // R9 is free now: the bit in the word.
    a.set(R9, R3);
    a.alu_number(Arithmetic::And, R9, PORTS_PER_WORD as i32 - 1);
    a.alu_number(Arithmetic::ShiftRight, R3, PORTS_PER_WORD.ilog2() as i32);
    a.load(Byte, R4, R10, PROTOCOL);
    a.jump_if_number(R4, JumpCondition::Equal, TCP, is_tcp);
    a.alu_number(Arithmetic::Add, R3, WORDS_PER_TRANSPORT as i32);
    a.place(is_tcp);
    a.store(Word, R10, WORD_INDEX, R3);
    look_up(a, maps.ports, WORD_INDEX);
    a.jump_if_number(R0, JumpCondition::Equal, 0, labels.pass);
    a.load(Double, R3, R0, 0);
    a.alu(Arithmetic::ShiftRight, R3, R9);
    a.jump_if_number(R3, JumpCondition::Overlaps, 1, labels.redirect);
    a.jump(labels.pass);
}

/// The word and the bit of a port in the map of ports.
pub(super) fn port_bit(transport: Transport, port: u16) -> (usize, u64) {
    let first = match transport {
        Transport::Tcp => 0,
        Transport::Udp => WORDS_PER_TRANSPORT,
    };
    let port = u32::from(port);
    ((first + port / PORTS_PER_WORD) as usize, 1 << (port % PORTS_PER_WORD))
}
