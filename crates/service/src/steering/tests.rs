//! Tables and properties of the pure parts of steering.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use megapipe_stack::wire::{Ecn, Protocol, arp, ethernet, extension, icmp4, ipv4, ipv6};
use megapipe_stack::{Instant, Medium, Received};
use proptest::prelude::*;

use super::*;
use crate::limits::{FRAGMENTED_MAX, FRAGMENTS_HELD_MAX};

const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const OURS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const THEIRS6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);

fn any_end(v6: bool) -> impl Strategy<Value = SocketAddr> {
    (any::<u128>(), any::<u16>()).prop_map(move |(bits, port)| {
        let ip: IpAddr = match v6 {
            true => Ipv6Addr::from_bits(bits).into(),
            false => Ipv4Addr::from_bits(bits as u32).into(),
        };
        SocketAddr::new(ip, port)
    })
}

fn any_ends() -> impl Strategy<Value = SteeringKey> {
    any::<bool>().prop_flat_map(|v6| {
        (any_end(v6), any_end(v6)).prop_map(|(src, dst)| SteeringKey { src, dst })
    })
}

/// What happens to the listener of a shard: bound without or with a mask, changed, unbound.
fn any_step() -> impl Strategy<Value = (u8, u16, Vec<u32>)> {
    (0..4_u8, 0..5_u16, prop::collection::vec(0..6_u32, 0..4))
}

proptest! {
    #[test]
    fn both_directions_of_a_flow_hash_alike(
        key: [u8; 16], ends in any_ends(), shards in 1..64_u16,
    ) {
        let hash = FlowHash::new(&key);
        let back = SteeringKey { src: ends.dst, dst: ends.src };
        prop_assert_eq!(hash.of(&ends), hash.of(&back));
        prop_assert!(hash.shard_of(&ends, shards) < shards);
    }

    #[test]
    fn any_bytes_can_be_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        both_ways_agree(&bytes);
    }

    /// Frames that are nearly parsed, with a few bytes changed and some cut off.
    #[test]
    fn the_short_reading_says_what_the_full_one_says(
        is_tcp: bool,
        ports: [u8; 4],
        changes in prop::collection::vec((0..48_usize, any::<u8>()), 0..3),
        cut in 0..60_usize,
    ) {
        let protocol = if is_tcp { TCP } else { UDP };
        let mut packet = v4(protocol, 0, false, &[&ports[..], &[0; 40]].concat());
        for (at, byte) in changes {
            packet[at] = byte;
        }
        packet.truncate(packet.len().saturating_sub(cut.saturating_sub(30)));
        both_ways_agree(&packet);
    }

    /// Whatever listeners come, change and go: a default shard's flows that are taken have one
    /// taker, which listens, and all homes of one table are shards.
    #[test]
    fn homes_are_taken_by_those_who_listen(
        steps in prop::collection::vec(any_step(), 1..40)
    ) {
        let mut bindings = Bindings::new(5);
        (0..5).for_each(|shard| bindings.set_core(shard, Some(shard.into())));
        let mut listening = [const { None::<Takes> }; 5];
        for (what, shard, cores) in steps {
            let takes = if what == 0 { Takes::Rest } else { Takes::Cores(cores) };
            let place = &mut listening[usize::from(shard)];
            match what {
                0 | 1 => if bindings.bind(HTTP, shard, takes.clone(), false).is_ok() {
                    prop_assert!(place.is_none());
                    *place = Some(takes);
                },
                2 => if bindings.change(HTTP, shard, takes.clone()).is_ok() {
                    prop_assert!(place.is_some());
                    *place = Some(takes);
                },
                _ => { bindings.unbind(HTTP, shard); *place = None; }
            }
            let table = bindings.table();
            let has_rest = listening.contains(&Some(Takes::Rest));
            for home in 0..5_u16 {
                let taker = table.shard_of(Transport::Tcp, &ends(1), home);
                let takes = &listening[usize::from(taker)];
                let by_mask = |it: &Option<Takes>| {
                    matches!(it, Some(Takes::Cores(cores)) if cores.contains(&home.into()))
                };
                if listening.iter().any(by_mask) {
                    prop_assert!(by_mask(takes), "{listening:?} {home} {taker}");
                } else if has_rest {
                    prop_assert_eq!(takes, &Some(Takes::Rest));
                } else {
                    prop_assert_eq!(taker, home);
                }
            }
        }
    }
}

/// What the short reading says of a packet, the full one says as well, on either medium.
fn both_ways_agree(packet: &[u8]) {
    let frame = [&[2; 12], &ethernet::IPV4.to_be_bytes()[..], packet].concat();
    for (medium, frame) in [
        (Medium::Ip, packet),
        (Medium::Ethernet([2; 6]), packet),
        (Medium::Ethernet([2; 6]), &frame),
    ] {
        let full = classify(medium, frame);
        if let Some(parsed) = fast_parse(medium, frame) {
            assert_eq!(parsed.classified(), full);
        }
    }
}

#[test]
fn most_frames_are_read_the_short_way() {
    let steering = Steering::new(&[1; 16], 7);
    let mut bindings = Bindings::new(7);
    for (protocol, transport) in [(TCP, Transport::Tcp), (UDP, Transport::Udp)] {
        let packet = v4(protocol, 0, false, &ports(9, 80, 0x12));
        let frame = [&[2; 12], &ethernet::IPV4.to_be_bytes()[..], &packet].concat();
        for (medium, frame) in [(Medium::Ip, &packet), (Medium::Ethernet([2; 6]), &frame)] {
            let parsed = fast_parse(medium, frame).unwrap();
            let home = steering.default_shard_of(&bindings.table(), parsed);
            assert_eq!(home, Some(steering.shard_of(&bindings.table(), transport, &ends(9))));
        }
        assert_eq!(fast_parse(Medium::Ip, &v4(protocol, 0, true, &ports(9, 80, 0))), None);
        assert_eq!(fast_parse(Medium::Ip, &v4(protocol, 8, false, &ports(9, 80, 0))), None);
    }
    assert_eq!(fast_parse(Medium::Ip, &v6(TCP, &ports(9, 80, 0))), None);
    // Where a shard listens for others, the table decides.
    bindings.bind(HTTP, 3, Takes::Rest, false).unwrap();
    let parsed = fast_parse(Medium::Ip, &v4(TCP, 0, false, &ports(9, 80, 0x12))).unwrap();
    assert_eq!(steering.default_shard_of(&bindings.table(), parsed), None);
}

#[test]
fn the_hash_is_siphash_of_the_ends_in_order() {
    let hasher = siphasher::sip::SipHasher13::new_with_key(&[7; 16]);
    let hash = FlowHash::new(&[7; 16]);
    let end = |ip: &[u8], port: u16| [&port.to_le_bytes()[..], ip].concat();
    // Addresses as numbers, the lowest byte first.
    let four = [end(&[1, 0, 0, 10], 9), end(&[2, 0, 0, 10], 80)].concat();
    assert_eq!(hash.of(&ends(9)), hasher.hash(&four) as u32);
    let ips = [THEIRS6, OURS6].map(|ip| ip.to_bits().to_le_bytes());
    let six = [&ips[0][..], &ips[1], &80_u16.to_le_bytes(), &9_u16.to_le_bytes()].concat();
    let at = |ip: Ipv6Addr, port| SocketAddr::new(ip.into(), port);
    let ends = SteeringKey::from_peer(at(THEIRS6, 9), at(OURS6, 80));
    assert_eq!(hash.of(&ends), hasher.hash(&six) as u32);
}

#[test]
fn flows_are_spread_evenly_and_by_the_key() {
    let flow = |port| ends(port);
    for shards in [2_u16, 3, 8] {
        let hash = FlowHash::new(&[1; 16]);
        let mut counts = vec![0_u32; shards.into()];
        for port in 0..30_000 {
            counts[usize::from(hash.shard_of(&flow(port), shards))] += 1;
        }
        let fair = 30_000 / u32::from(shards);
        assert!(counts.iter().all(|count| count.abs_diff(fair) < fair / 10), "{counts:?}");
    }
    let place = |key| {
        let hash = FlowHash::new(&[key; 16]);
        (0..64).map(|port| hash.shard_of(&flow(port), 2)).collect::<Vec<_>>()
    };
    assert_ne!(place(1), place(2));
}

/// What the peer sends from a port to our port 80.
fn ends(port: u16) -> SteeringKey {
    let remote = SocketAddr::new(THEIRS.into(), port);
    SteeringKey::from_peer(remote, SocketAddr::new(OURS.into(), 80))
}

fn v4(protocol: u8, offset: usize, more: bool, payload: &[u8]) -> Vec<u8> {
    let repr = ipv4::Repr {
        src: THEIRS,
        dst: OURS,
        protocol,
        ttl: 64,
        dscp: 0,
        ecn: Ecn::NotEct,
        identification: 7,
        dont_fragment: false,
        more_fragments: more,
        fragment_offset: offset,
        payload_bytes: payload.len(),
    };
    let mut bytes = vec![0; repr.header_bytes()];
    repr.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn v6(next_header: u8, payload: &[u8]) -> Vec<u8> {
    let repr = ipv6::Repr {
        src: THEIRS6,
        dst: OURS6,
        next_header,
        hop_limit: 255,
        dscp: 0,
        ecn: Ecn::NotEct,
        payload_bytes: payload.len(),
    };
    let mut bytes = vec![0; repr.header_bytes()];
    repr.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn ports(src: u16, dst: u16, flags: u8) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[..2].copy_from_slice(&src.to_be_bytes());
    bytes[2..4].copy_from_slice(&dst.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = flags;
    bytes
}

const TCP: u8 = Protocol::Tcp as u8;
const UDP: u8 = Protocol::Udp as u8;

#[test]
fn a_packet_is_of_its_flow_and_an_error_of_the_flow_that_it_quotes() {
    let flow = |transport, begins| Classified::Flow { transport, ends: ends(9), begins };
    let classify = |packet: &[u8]| classify(Medium::Ip, packet);
    assert_eq!(classify(&v4(TCP, 0, false, &ports(9, 80, 0x02))), flow(Transport::Tcp, true));
    assert_eq!(classify(&v4(TCP, 0, false, &ports(9, 80, 0x12))), flow(Transport::Tcp, false));
    assert_eq!(classify(&v4(UDP, 0, false, &ports(9, 80, 0x02))), flow(Transport::Udp, false));

    // What we sent to the peer came back in an error.
    let mut sent = v4(TCP, 0, false, &ports(80, 9, 0x10));
    sent[12..16].copy_from_slice(&OURS.octets());
    sent[16..20].copy_from_slice(&THEIRS.octets());
    let error = |kind: u8| {
        let mut message = vec![0; icmp4::HEADER_BYTES];
        message[0] = kind;
        message.extend_from_slice(&sent);
        v4(Protocol::Icmp as u8, 0, false, &message)
    };
    for kind in [3, 11, 12] {
        assert_eq!(classify(&error(kind)), flow(Transport::Tcp, false));
    }
    assert_eq!(classify(&error(8)), Classified::Anyone, "an echo is no error");

    let Classified::Flow { ends: of_six, .. } = classify(&v6(TCP, &ports(9, 80, 0))) else {
        panic!()
    };
    let mut sent = v6(TCP, &ports(80, 9, 0x10));
    sent[8..24].copy_from_slice(&OURS6.octets());
    sent[24..40].copy_from_slice(&THEIRS6.octets());
    let too_big = [&[2, 0, 0, 0, 0, 0, 5, 0], &sent[..]].concat();
    let quoted = classify(&v6(Protocol::Icmp6 as u8, &too_big));
    assert_eq!(quoted, Classified::Flow { transport: Transport::Tcp, ends: of_six, begins: false });
}

#[test]
fn questions_are_anyones_and_answers_everyones() {
    let asked = |operation, sender_ip| {
        let repr = arp::Repr {
            operation,
            sender_mac: [2; 6],
            sender_ip,
            target_mac: [0; 6],
            target_ip: OURS,
        };
        let mut frame = vec![0; 14 + repr.header_bytes()];
        frame[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
        repr.emit(&mut frame[14..]);
        classify(Medium::Ethernet([2; 6]), &frame)
    };
    assert_eq!(asked(arp::Operation::Request, THEIRS), Classified::Anyone);
    assert_eq!(asked(arp::Operation::Reply, THEIRS), Classified::Everyone);
    assert_eq!(asked(arp::Operation::Request, OURS), Classified::Everyone, "an announcement");
    let icmp6 = |kind: u8| {
        let mut message = [0; 24];
        message[0] = kind;
        classify(Medium::Ip, &v6(Protocol::Icmp6 as u8, &message))
    };
    assert_eq!((icmp6(135), icmp6(136)), (Classified::Anyone, Classified::Everyone));
    assert_eq!(icmp6(128), Classified::Anyone);
}

#[test]
fn fragments_say_whose_they_are_or_that_they_do_not_know() {
    let classify = |packet: &[u8]| classify(Medium::Ip, packet);
    let Classified::First(first, Transport::Udp, of) =
        classify(&v4(UDP, 0, true, &ports(9, 80, 0)))
    else {
        panic!()
    };
    assert_eq!(of, ends(9));
    assert_eq!(classify(&v4(UDP, 64, false, &[0; 30])), Classified::Later(first));
    let other = v4(TCP, 64, false, &[0; 30]);
    assert_ne!(classify(&other), Classified::Later(first), "another protocol is another datagram");
    // A large echo has no ports: the hosts say where it goes, all of it.
    let echo = [classify(&v4(1, 0, true, &[8; 32])), classify(&v4(1, 32, false, &[0; 32]))];
    assert!(matches!(echo[0], Classified::Hosts(_)) && echo[0] == echo[1]);

    let six = |offset, more, payload: &[u8]| {
        let header = extension::Fragment { next_header: UDP, offset, more, identification: 5 };
        let mut bytes = vec![0; extension::FRAGMENT_BYTES];
        header.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        super::classify(Medium::Ip, &v6(extension::FRAGMENT, &bytes))
    };
    let Classified::First(first, ..) = six(0, true, &ports(9, 80, 0)) else { panic!() };
    assert_eq!(six(24, false, &[1; 8]), Classified::Later(first));
}

#[test]
fn fragments_are_held_in_bounds_and_forgotten_in_time() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let name = |number: u16| {
        let mut packet = v4(UDP, 64, false, &[0; 30]);
        packet[4..6].copy_from_slice(&number.to_be_bytes());
        match classify(Medium::Ip, &packet) {
            Classified::Later(datagram) => datagram,
            other => panic!("{other:?}"),
        }
    };
    let mut fragments = Fragments::new();
    let frame = (&[1_u8; 40][..], Received::default());
    for _ in 0..FRAGMENTS_HELD_MAX {
        assert_eq!(fragments.on_later(at(1), name(1), frame), Later::Held);
    }
    assert_eq!(fragments.on_later(at(1), name(2), frame), Later::Dropped);
    let mut lent = 0;
    fragments.on_first(at(2), (name(1), 3), |bytes, _| lent += bytes.len() / 40);
    assert_eq!(lent, FRAGMENTS_HELD_MAX);
    assert_eq!(fragments.on_later(at(2), name(1), frame), Later::Shard(3));
    assert_eq!(fragments.on_later(at(90), name(1), frame), Later::Held, "that was another one");
    // A flood of others drives it out, with what is held of it.
    for number in 10..10 + FRAGMENTED_MAX as u16 {
        fragments.on_first(at(91), (name(number), 0), |_, _| panic!("nothing is held of it"));
    }
    fragments.on_first(at(91), (name(1), 2), |_, _| panic!("it was forgotten"));
}

const HTTP: (Transport, SocketAddr) =
    (Transport::Tcp, SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 80));

fn takers(bindings: &Bindings) -> Vec<u16> {
    let table = bindings.table();
    (0..table.shards()).map(|home| table.shard_of(Transport::Tcp, &ends(1), home)).collect()
}

/// Four shards, each on the core of its number.
fn four() -> Bindings {
    let mut bindings = Bindings::new(4);
    (0..4).for_each(|shard| bindings.set_core(shard, Some(shard.into())));
    bindings
}

#[test]
fn masks_partition_a_listener_and_may_change() {
    let mut bindings = four();
    assert_eq!(takers(&bindings), [0, 1, 2, 3]);
    let cores = |cores: &[u32]| Takes::Cores(cores.to_vec());
    bindings.bind(HTTP, 0, cores(&[0, 1]), false).unwrap();
    // No shard listens for cores 2 and 3: they are refused where they arrive.
    assert_eq!(takers(&bindings), [0, 0, 2, 3]);
    let overlap = bindings.bind(HTTP, 2, cores(&[1, 2]), false);
    assert_eq!(overlap, Err(BindingError::Overlap { core: 1 }));
    assert_eq!(bindings.bind(HTTP, 2, cores(&[]), false), Err(BindingError::NoCore));
    bindings.bind(HTTP, 2, cores(&[2]), false).unwrap();
    bindings.bind(HTTP, 3, Takes::Rest, false).unwrap();
    assert_eq!(takers(&bindings), [0, 0, 2, 3]);
    bindings.change(HTTP, 0, cores(&[0])).unwrap();
    assert_eq!(takers(&bindings), [0, 3, 2, 3], "core 1 is in no mask any more");
    bindings.change(HTTP, 2, cores(&[1, 2])).unwrap();
    assert_eq!(takers(&bindings), [0, 2, 2, 3]);
    assert_eq!(bindings.change(HTTP, 1, Takes::Rest), Err(BindingError::NotBound));
    bindings.leave(2);
    assert_eq!(takers(&bindings), [0, 3, 3, 3]);
}

#[test]
fn listeners_without_masks_share_what_has_no_listener() {
    let mut bindings = four();
    bindings.bind(HTTP, 2, Takes::Rest, false).unwrap();
    assert_eq!(takers(&bindings), [2, 2, 2, 2]);
    assert_eq!(bindings.bind(HTTP, 1, Takes::Rest, true), Err(BindingError::InUse));
    bindings.bind(HTTP, 1, Takes::Rest, false).unwrap();
    let spread = takers(&bindings);
    assert_eq!((spread[1], spread[2]), (1, 2));
    assert!(spread.iter().all(|taker| [1, 2].contains(taker)), "{spread:?}");
    bindings.bind(HTTP, 0, Takes::Rest, false).unwrap();
    bindings.bind(HTTP, 3, Takes::Rest, false).unwrap();
    assert_eq!(bindings.table().rows(), 0, "all serve themselves: nothing to look up");
    (0..4).for_each(|shard| bindings.unbind(HTTP, shard));
    assert!(!bindings.is_bound(HTTP.0, HTTP.1));
    assert_eq!(takers(&bindings), [0, 1, 2, 3]);
}

#[test]
fn an_address_goes_before_all_addresses_and_protocols_do_not_meet() {
    let mut bindings = four();
    let exact = (Transport::Tcp, SocketAddr::new(OURS.into(), 80));
    let udp = (Transport::Udp, exact.1);
    bindings.bind(HTTP, 0, Takes::Rest, false).unwrap();
    bindings.bind(exact, 1, Takes::Rest, false).unwrap();
    bindings.bind(udp, 2, Takes::Rest, true).unwrap();
    let table = bindings.table();
    let elsewhere = SteeringKey { dst: SocketAddr::new([10, 0, 0, 9].into(), 80), ..ends(1) };
    assert_eq!(table.shard_of(Transport::Tcp, &ends(1), 3), 1);
    assert_eq!(table.shard_of(Transport::Tcp, &elsewhere, 3), 0);
    assert_eq!(table.shard_of(Transport::Udp, &ends(1), 3), 2);
    assert_eq!(table.shard_of(Transport::Udp, &elsewhere, 3), 3);
    let six = SteeringKey {
        src: SocketAddr::new(THEIRS6.into(), 1),
        dst: SocketAddr::new(OURS6.into(), 80),
    };
    assert_eq!(table.shard_of(Transport::Tcp, &six, 3), 3, "0.0.0.0 is not IPv6");
}

#[test]
fn a_table_remembers_where_connections_began() {
    let mut bindings = four();
    bindings.bind(HTTP, 0, Takes::Rest, false).unwrap();
    let table = bindings.table();
    let row = table.row_of(Transport::Tcp, &ends(1)).unwrap();
    assert!(!table.has_past(row, 3));
    bindings.bind(HTTP, 3, Takes::Rest, false).unwrap();
    let table = bindings.table();
    let row = table.row_of(Transport::Tcp, &ends(1)).unwrap();
    assert!(!table.has_past(row, 3), "no connection had begun");
    bindings.mark_used(&table, row);
    bindings.change(HTTP, 0, Takes::Cores(vec![0])).unwrap();
    let table = bindings.table();
    let row = table.row_of(Transport::Tcp, &ends(1)).unwrap();
    let moved = (0..4).filter(|home| table.has_past(row, *home)).collect::<Vec<_>>();
    assert_eq!(takers(&bindings), [0, 3, 3, 3]);
    for home in moved {
        let before = table.before(Transport::Tcp, &ends(1), home, 0);
        assert_eq!(before, Some(0), "home {home}");
        assert_eq!(table.before(Transport::Tcp, &ends(1), home, 1), None);
    }
}

/// The row of port 80, which has to be looked up.
fn row_of(table: &BindingTable) -> usize {
    table.row_of(Transport::Tcp, &ends(1)).expect("a row")
}

#[test]
fn row_of_listeners_everywhere_is_remembered_without_marks() {
    let mut bindings = four();
    (0..4).for_each(|shard| bindings.bind(HTTP, shard, Takes::Rest, false).unwrap());
    assert_eq!(bindings.table().rows(), 0, "no packet is looked up");
    bindings.unbind(HTTP, 0);
    let table = bindings.table();
    let past: Vec<u16> = (0..4).filter(|home| table.has_past(row_of(&table), *home)).collect();
    assert_eq!(past, [0]);
    assert_eq!(table.before(Transport::Tcp, &ends(1), 0, 0), Some(0));
}

#[test]
fn former_shards_survive_any_number_of_changes() {
    let mut bindings = four();
    (0..3).for_each(|shard| bindings.bind(HTTP, shard, Takes::Rest, false).unwrap());
    for round in 0..100 {
        bindings.bind(HTTP, (round + 3) % 4, Takes::Rest, false).unwrap();
        bindings.unbind(HTTP, round % 4);
    }
    let table = bindings.table();
    for home in 0..4 {
        let former = |back| table.before(Transport::Tcp, &ends(1), home, back);
        let mut former: Vec<u16> = (0..).map_while(former).collect();
        former.push(table.taker(row_of(&table), home).shard);
        assert!(former.contains(&home), "what began at home: {former:?}");
    }
    bindings.leave(1);
    let table = bindings.table();
    let mut all = (0..4).flat_map(|home| {
        let former = |back| table.before(Transport::Tcp, &ends(1), home, back);
        (0..).map_while(former).collect::<Vec<_>>()
    });
    assert!(all.all(|shard| shard != 1), "nothing of a shard that is gone is left");
}

#[test]
fn heir_is_the_shard_that_takes_the_flow_from_now_on() {
    let mut bindings = four();
    let local = ends(1).dst;
    assert_eq!(bindings.heir(Transport::Tcp, local, 0), None, "there is no listener");
    bindings.bind(HTTP, 0, Takes::Rest, false).unwrap();
    bindings.bind(HTTP, 2, Takes::Rest, false).unwrap();
    assert_eq!(bindings.heir(Transport::Tcp, local, 0), Some(0));
    bindings.unbind(HTTP, 0);
    assert_eq!(bindings.heir(Transport::Tcp, local, 0), Some(2));
    // What it was given is looked for there later.
    bindings.bind(HTTP, 0, Takes::Rest, false).unwrap();
    let table = bindings.table();
    assert_eq!(table.before(Transport::Tcp, &ends(1), 0, 1), Some(2));
    bindings.unbind(HTTP, 0);
    bindings.change(HTTP, 2, Takes::Cores(vec![2])).unwrap();
    assert_eq!(bindings.heir(Transport::Tcp, local, 0), None, "its core is left out");
    assert_eq!(bindings.heir(Transport::Udp, local, 2), None);
}
