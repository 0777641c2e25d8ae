//! The program against `owner_of`, on packets from a small world where rules often meet.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::{Owner, PortRanges};

/// Runs a program as the kernel does. The VLAN tag is absent.
fn run(program: &[FilterInstruction], frame: &[u8]) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0_u32, 0_u32, [0_u32; 16], 0);
    let load = |offset: u32, count: usize| -> Option<u32> {
        let bytes = frame.get(offset as usize..)?.get(..count)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    loop {
        let FilterInstruction { code, jump_true, jump_false, value } = program[at];
        at += 1;
        let is_true = match code {
            JUMP_EQUAL => a == value,
            JUMP_GREATER => a > value,
            JUMP_AT_LEAST => a >= value,
            JUMP_BITS => a & value != 0,
            _ => false,
        };
        let loaded = match code {
            LOAD_WORD if value == VLAN_TAG_PRESENT => Some(0),
            LOAD_WORD => load(value, 4),
            LOAD_HALF => load(value, 2),
            LOAD_BYTE => load(value, 1),
            LOAD_WORD_AT_X => load(x.wrapping_add(value), 4),
            LOAD_HALF_AT_X => load(x.wrapping_add(value), 2),
            LOAD_BYTE_AT_X => load(x.wrapping_add(value), 1),
            LOAD_X_HEADER => load(value, 1),
            LOAD_MEMORY => Some(memory[value as usize]),
            _ => Some(a),
        };
        let Some(loaded) = loaded else { return LEAVE };
        match code {
            LOAD_X_HEADER => x = 4 * (loaded & 15),
            STORE => memory[value as usize] = a,
            AND => a &= value,
            SHIFT_LEFT => a <<= value,
            SHIFT_RIGHT => a >>= value,
            ADD_X => a = a.wrapping_add(x),
            TO_X => x = a,
            JUMP => at += value as usize,
            JUMP_EQUAL | JUMP_GREATER | JUMP_AT_LEAST | JUMP_BITS => {
                at += usize::from(if is_true { jump_true } else { jump_false });
            }
            RETURN => return value,
            _ => a = loaded,
        }
    }
}

fn address(is_ipv4: bool, last: u8) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::new(10, 0, 0, last).into()
    } else {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into()
    }
}

fn flow() -> impl Strategy<Value = FlowTuple> {
    (any::<bool>(), any::<bool>(), 0..3_u8, 0..3_u8, 1..8_u16, 1..8_u16).prop_map(
        |(is_tcp, is_ipv4, local, remote, local_port, remote_port)| FlowTuple {
            transport: if is_tcp { Transport::Tcp } else { Transport::Udp },
            local: address(is_ipv4, local),
            remote: address(is_ipv4, remote),
            local_port,
            remote_port,
        },
    )
}

fn ports() -> impl Strategy<Value = PortRanges> {
    proptest::collection::vec((1..8_u16, 0..2_u16), 0..3).prop_map(|list| {
        let mut ports = PortRanges::new();
        for (first, more) in list {
            ports.insert(first..=first + more).unwrap();
        }
        ports
    })
}

fn ownership() -> impl Strategy<Value = Ownership> {
    let addresses = proptest::collection::vec((any::<bool>(), 0..3_u8), 0..4);
    let flows = proptest::collection::vec((any::<bool>(), flow()), 0..4);
    let switches = (proptest::bool::weighted(0.2), any::<bool>());
    (addresses, ports(), ports(), flows, switches).prop_map(
        |(addresses, tcp_ports, udp_ports, flows, (whole_address, neighbours))| {
            let mut ownership = Ownership::new();
            for (is_ipv4, last) in addresses {
                ownership.add_address(address(is_ipv4, last)).unwrap();
            }
            ownership.tcp_ports = tcp_ports;
            ownership.udp_ports = udp_ports;
            ownership.whole_address = whole_address;
            ownership.neighbours = neighbours;
            for (is_taken, flow) in flows {
                let done = if is_taken { ownership.take(flow) } else { ownership.release(flow) };
                done.unwrap();
            }
            ownership
        },
    )
}

/// A packet from `source` to `destination`, IPv4 with options at times.
fn packet(protocol: u8, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let options = usize::from(payload.len() % 2 == 1) * 8;
            packet.extend([0x45 + (options / 4) as u8, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            packet.resize(20 + options, 1);
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            packet.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
        }
        _ => panic!("one family"),
    }
    packet.extend(payload);
    packet
}

fn any_packet() -> impl Strategy<Value = Vec<u8>> {
    let protocols = prop_oneof![Just(6_u8), Just(17), Just(1), Just(58), Just(44), Just(132)];
    let inner = flow().prop_map(|flow| {
        let ports = [flow.local_port.to_be_bytes(), flow.remote_port.to_be_bytes()].concat();
        packet(flow.transport.number(), flow.local, flow.remote, &ports)
    });
    let kinds = prop_oneof![0..14_u8, 130..140_u8];
    let changes = proptest::option::weighted(0.3, (0..70_usize, any::<u8>(), 20..90_usize));
    (flow(), protocols, kinds, inner, any::<bool>(), changes).prop_map(
        |(flow, protocol, kind, inner, is_odd, changes)| {
            let mut payload = match protocol {
                1 | 58 => [&[kind, 0, 0, 0, 0, 0, 0, 0], inner.as_slice()].concat(),
                _ => {
                    let ports = [flow.remote_port.to_be_bytes(), flow.local_port.to_be_bytes()];
                    [ports.concat().as_slice(), &[0; 16]].concat()
                }
            };
            payload.resize(payload.len() + usize::from(is_odd), 0);
            let mut packet = packet(protocol, flow.remote, flow.local, &payload);
            if let Some((at, value, cut)) = changes {
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
                packet.truncate(cut);
            }
            packet
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_program_decides_as_the_reference(ownership in ownership(), packet in any_packet()) {
        let expected = ownership.owner_of(LinkMedium::Ip, &packet) != Owner::Kernel;
        let program = compile(LinkMedium::Ip, &ownership).unwrap();
        prop_assert_eq!(run(&program, &packet) == TAKE, expected);

        let is_ipv6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
        let kind = if is_ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        let frame = [&[2; 12], &kind[..], &packet].concat();
        let expected = ownership.owner_of(LinkMedium::Ethernet, &frame) != Owner::Kernel;
        let program = compile(LinkMedium::Ethernet, &ownership).unwrap();
        prop_assert_eq!(run(&program, &frame) == TAKE, expected);
    }
}

#[test]
fn neighbour_frames_go_where_they_are_wanted() {
    let mut ownership = Ownership::new();
    let arp = [&[2; 12][..], &[0x08, 0x06], &[0; 28]].concat();
    for neighbours in [false, true] {
        ownership.neighbours = neighbours;
        let program = compile(LinkMedium::Ethernet, &ownership).expect("short");
        assert_eq!(run(&program, &arp), if neighbours { TAKE } else { LEAVE });
    }
}

#[test]
fn too_many_rules_are_refused() {
    let mut ownership = Ownership::new();
    for port in 1..=200 {
        let flow = FlowTuple {
            transport: Transport::Tcp,
            local: address(false, 1),
            remote: address(false, 2),
            local_port: port,
            remote_port: 9,
        };
        ownership.take(flow).expect("within the table");
    }
    let refused = compile(LinkMedium::Ethernet, &ownership);
    assert!(matches!(refused, Err(LinkError::Setting { setting: "ownership", .. })));
}
