//! Ports as a set against a bitmap; owners of frames built byte by byte.

use proptest::prelude::*;

use super::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const HERE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const THERE6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));

fn packet(protocol: u8, source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::new();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            packet.extend([0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
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

fn ports(source: u16, destination: u16) -> Vec<u8> {
    let mut payload = [source.to_be_bytes(), destination.to_be_bytes()].concat();
    payload.resize(20, 0);
    payload
}

fn sharing() -> Ownership {
    let mut ownership = Ownership::new();
    for address in [HERE, HERE6] {
        ownership.add_address(address).unwrap();
    }
    ownership.tcp_ports.insert(80..=80).unwrap();
    ownership.tcp_ports.insert(40_000..=50_000).unwrap();
    ownership.udp_ports.insert(53..=53).unwrap();
    ownership.neighbours = true;
    ownership
}

fn owner(ownership: &Ownership, packet: &[u8]) -> Owner {
    ownership.owner_of(LinkMedium::Ip, packet)
}

#[test]
fn ports_decide_for_each_protocol() {
    let ours = sharing();
    for (here, there) in [(HERE, THERE), (HERE6, THERE6)] {
        let at = |protocol, port| owner(&ours, &packet(protocol, there, here, &ports(999, port)));
        assert_eq!(at(6, 80), Owner::Ours);
        assert_eq!(at(6, 22), Owner::Kernel);
        assert_eq!(at(6, 39_999), Owner::Kernel);
        assert_eq!(at(6, 50_000), Owner::Ours);
        assert_eq!(at(17, 53), Owner::Ours);
        assert_eq!(at(17, 80), Owner::Kernel);
        assert_eq!(at(132, 80), Owner::Kernel);
        assert_eq!(owner(&ours, &packet(6, here, there, &ports(9, 80))), Owner::Kernel);
    }
}

#[test]
fn a_whole_address_leaves_nothing_of_it_to_the_kernel() {
    let mut ours = sharing();
    ours.whole_address = true;
    assert_eq!(owner(&ours, &packet(6, THERE, HERE, &ports(9, 22))), Owner::Ours);
    assert_eq!(owner(&ours, &packet(1, THERE, HERE, &[8, 0, 0, 0])), Owner::Ours);
    assert_eq!(owner(&ours, &packet(6, HERE, THERE, &ports(9, 22))), Owner::Kernel);
}

#[test]
fn a_released_flow_is_the_kernels_and_a_taken_one_ours() {
    let mut ours = sharing();
    let mut flow = FlowTuple {
        transport: Transport::Tcp,
        local: HERE,
        local_port: 80,
        remote: THERE,
        remote_port: 999,
    };
    let frame = packet(6, THERE, HERE, &ports(999, 80));
    ours.release(flow).unwrap();
    assert_eq!(owner(&ours, &frame), Owner::Kernel);
    assert_eq!(owner(&ours, &packet(6, THERE, HERE, &ports(998, 80))), Owner::Ours);
    ours.take(flow).unwrap();
    assert_eq!((owner(&ours, &frame), ours.taken().len()), (Owner::Ours, 0));
    flow.local_port = 22;
    ours.take(flow).unwrap();
    assert_eq!(owner(&ours, &packet(6, THERE, HERE, &ports(999, 22))), Owner::Ours);
    assert_eq!(owner(&ours, &packet(6, THERE, HERE, &ports(998, 22))), Owner::Kernel);
    ours.forget(&flow);
    assert_eq!(owner(&ours, &packet(6, THERE, HERE, &ports(999, 22))), Owner::Kernel);
    flow.remote = THERE6;
    assert_eq!(ours.take(flow), Err(OwnershipError::MixedFamilies));
}

#[test]
fn icmp_error_belongs_to_sender_of_quoted_packet() {
    let ours = sharing();
    let error = |port, kind| {
        let quoted = packet(6, HERE, THERE, &ports(port, 5));
        packet(1, THERE, HERE, &[&[kind, 4, 0, 0, 0, 0, 0, 0], quoted.as_slice()].concat())
    };
    assert_eq!(owner(&ours, &error(80, 3)), Owner::IcmpError);
    assert_eq!(owner(&ours, &error(22, 3)), Owner::Kernel);
    assert_eq!(owner(&ours, &error(80, 8)), Owner::Kernel);
    let quoted = packet(17, HERE6, THERE6, &ports(53, 5));
    let big = [&[2, 0, 0, 0, 0, 0, 5, 0], quoted.as_slice()].concat();
    assert_eq!(owner(&ours, &packet(58, THERE6, HERE6, &big)), Owner::IcmpError);
}

#[test]
fn fragments_and_neighbours_are_named() {
    let mut ours = sharing();
    let mut fragment = packet(17, THERE, HERE, &ports(0, 0));
    fragment[7] = 1;
    assert_eq!(owner(&ours, &fragment), Owner::Fragment);
    assert_eq!(owner(&ours, &packet(44, THERE6, HERE6, &[0; 8])), Owner::Fragment);
    let solicitation = packet(58, THERE6, HERE6, &[135; 24]);
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&ARP.to_be_bytes());
    assert_eq!(owner(&ours, &solicitation), Owner::Neighbour);
    assert_eq!(ours.owner_of(LinkMedium::Ethernet, &arp), Owner::Neighbour);
    ours.neighbours = false;
    assert_eq!(owner(&ours, &solicitation), Owner::Kernel);
    assert_eq!(ours.owner_of(LinkMedium::Ethernet, &arp), Owner::Kernel);
    let mut tagged = vec![0; 12];
    tagged.extend([0x81, 0, 0, 1, 8, 0]);
    tagged.extend(packet(6, THERE, HERE, &ports(9, 80)));
    assert_eq!(ours.owner_of(LinkMedium::Ethernet, &tagged), Owner::Kernel);
}

#[test]
fn tables_are_bounded() {
    let mut ours = Ownership::new();
    for port in 0..OWNED_PORT_RANGES_MAX {
        let port = u16::try_from(port * 2 + 1).unwrap();
        ours.tcp_ports.insert(port..=port).unwrap();
    }
    let before = ours.tcp_ports.clone();
    let full = OwnershipError::Full(OWNED_PORT_RANGES_MAX, "ranges of ports");
    assert_eq!(ours.tcp_ports.insert(60_000..=60_000), Err(full));
    assert_eq!(ours.tcp_ports, before);
    ours.tcp_ports.insert(2..=2).expect("it joins two ranges");
    assert_eq!(ours.tcp_ports.insert(0..=5), Err(OwnershipError::PortRange(0, 5)));
    for last in 0..OWNED_ADDRESSES_MAX {
        let last = u8::try_from(last).unwrap();
        ours.add_address(IpAddr::from([10, 0, 0, last])).unwrap();
    }
    let full = OwnershipError::Full(OWNED_ADDRESSES_MAX, "addresses");
    assert_eq!(ours.add_address(HERE6), Err(full));
}

proptest! {
    #[test]
    fn ranges_are_a_set_of_ports(
        steps in proptest::collection::vec((any::<bool>(), 1..300_u16, 0..40_u16), 0..40),
    ) {
        let mut ranges = PortRanges::new();
        let mut oracle = [false; 400];
        for (is_insert, first, more) in steps {
            let last = first + more;
            let done = if is_insert {
                ranges.insert(first..=last)
            } else {
                ranges.remove(first..=last)
            };
            prop_assert_eq!(done, Ok(()));
            oracle[usize::from(first)..=usize::from(last)].fill(is_insert);
        }
        for (port, expected) in oracle.iter().enumerate() {
            prop_assert_eq!(ranges.contains(u16::try_from(port).unwrap()), *expected);
        }
        prop_assert_eq!(ranges.count(), oracle.iter().filter(|is_in| **is_in).count());
        prop_assert!(ranges.ranges().windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
    }

    #[test]
    fn noise_is_never_ours(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let ours = sharing();
        prop_assert_ne!(ours.owner_of(LinkMedium::Ethernet, &bytes), Owner::Ours);
        prop_assert_ne!(ours.owner_of(LinkMedium::Ip, &bytes), Owner::Ours);
    }

    #[test]
    fn no_cut_panics(cut in 0..100_usize, is_ipv6 in any::<bool>(), protocol in 0..60_u8) {
        let (here, there) = if is_ipv6 { (HERE6, THERE6) } else { (HERE, THERE) };
        let whole = packet(protocol, there, here, &packet(6, here, there, &ports(80, 1)));
        let cut = &whole[..cut.min(whole.len())];
        let found = owner(&sharing(), cut);
        let ports_end = if is_ipv6 { 44 } else { 24 };
        prop_assert!(found != Owner::Ours || cut.len() >= ports_end);
    }
}
