//! Encodings: everything comes through, and everything else is refused without a panic.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use megapipe_link::{Caps, LinkError, LinkMedium};
use megapipe_shm::record::Refusal;
use megapipe_stack::{
    BindError, ConnInfo, ConnOption, ConnectError, DatagramOwner, DatagramSharing, Holder,
    ListenError, OperationError, Reuse, TcpState,
};
use proptest::prelude::*;

use super::*;
use crate::begin::ConnectStart;
use crate::error::PortError;
use crate::sharing::Sharing;
use crate::steering::{BindingError, Takes};

fn config() -> ProptestConfig {
    ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() }
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),]
}

fn reuse() -> impl Strategy<Value = Reuse> {
    any::<[bool; 3]>().prop_map(|[address, port, v6_only]| Reuse { address, port, v6_only })
}

fn state() -> impl Strategy<Value = TcpState> {
    use TcpState::*;
    proptest::sample::select(vec![
        Closed,
        SynSent,
        SynReceived,
        Established,
        FinWait1,
        FinWait2,
        CloseWait,
        Closing,
        LastAck,
    ])
}

/// Every field is a function of `seed`, and no two of them have the same value.
fn info() -> impl Strategy<Value = ConnInfo> {
    (state(), any::<u64>(), any::<[bool; 10]>()).prop_map(|(state, seed, bits)| {
        let mut next = seed;
        let mut number = move || {
            next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            next
        };
        let mut info = ConnInfo::default();
        info.state = state;
        info.srtt = bits[0].then(|| Duration::from_nanos(number()));
        info.min_rtt = bits[1].then(|| Duration::from_nanos(number()));
        (info.rttvar, info.rto) = (Duration::from_nanos(number()), Duration::from_nanos(number()));
        info.ssthresh = bits[2].then(|| number() as u32);
        info.syn_room = bits[3].then(|| number() as u32);
        info.window_scale = bits[4].then(|| (number() as u8, number() as u8));
        (info.timestamps, info.sack, info.ecn) = (bits[5], bits[6], bits[7]);
        (info.soft_error, info.syn_data) = (bits[8], bits[9]);
        (info.mss, info.timeouts) = (number() as u16, number() as u8);
        (info.bytes_in, info.bytes_out) = (number(), number());
        for field in [
            &mut info.cwnd,
            &mut info.snd_wnd,
            &mut info.snd_wnd_max,
            &mut info.rcv_wnd,
            &mut info.flight_bytes,
            &mut info.queued_bytes,
            &mut info.queued_chunks,
            &mut info.unsent_bytes,
            &mut info.lost_bytes,
            &mut info.sacked_bytes,
            &mut info.unread_bytes,
            &mut info.out_of_order_bytes,
            &mut info.receive_buffer_bytes,
            &mut info.send_buffer_bytes,
            &mut info.segments_in,
            &mut info.segments_out,
            &mut info.segments_retransmitted,
            &mut info.urgent_bytes,
        ] {
            *field = number() as u32;
        }
        info
    })
}

fn option() -> impl Strategy<Value = ConnOption> {
    use ConnOption::*;
    let time = || (0..u64::MAX - 1).prop_map(Duration::from_micros);
    prop_oneof![
        any::<bool>().prop_map(NoDelay),
        any::<bool>().prop_map(Cork),
        any::<bool>().prop_map(More),
        any::<bool>().prop_map(QuickAck),
        proptest::option::of(time()).prop_map(KeepaliveIdle),
        time().prop_map(KeepaliveInterval),
        any::<u8>().prop_map(KeepaliveProbes),
        proptest::option::of(time()).prop_map(UserTimeout),
        prop_oneof![
            any::<u32>().prop_map(ReceiveBuffer),
            any::<u32>().prop_map(SendBuffer),
            any::<u32>().prop_map(ReportUnsentBelow),
            any::<u8>().prop_map(HopLimit),
            any::<u8>().prop_map(Dscp),
        ],
        proptest::sample::select(vec![Urgent, EndOfRecord, FastOpen]),
        reuse().prop_map(Reuse),
    ]
}

fn sharing() -> impl Strategy<Value = Sharing> {
    let cores = proptest::collection::btree_set(0..crate::limits::CORES_MAX, 0..20);
    let takes = prop_oneof![
        Just(Takes::Rest),
        cores.prop_map(|cores| Takes::Cores(cores.into_iter().collect())),
    ];
    (takes, any::<bool>(), reuse(), any::<u32>()).prop_map(
        |(takes, is_exclusive, reuse, fast_open)| Sharing { takes, is_exclusive, reuse, fast_open },
    )
}

fn description() -> impl Strategy<Value = Description> {
    let caps = (
        proptest::sample::select(vec!["tap", "tun", "packet", "xdp", "memif", "pair"]),
        any::<[u8; 6]>(),
        any::<[u32; 2]>(),
        any::<[bool; 4]>(),
        proptest::collection::vec(".{0,40}", 0..4),
    )
        .prop_map(|(driver, mac, [mtu, frame], [is_ip, sums, tso, shares], notes)| Caps {
            driver,
            medium: if is_ip { LinkMedium::Ip } else { LinkMedium::Ethernet },
            mac,
            mtu: mtu as usize,
            tx_frame_bytes: frame as usize,
            tx_checksum: sums,
            tso,
            shares_host_address: shares,
            rss: None,
            notes,
        });
    let shard = proptest::option::of((0u16..10, 10u16..20));
    let addresses = proptest::collection::vec(any::<IpAddr>(), 0..4);
    (caps, shard, addresses, 0..=megapipe_stack::limits::CONNECTIONS_MAX, any::<u32>()).prop_map(
        |(caps, shard, addresses, connections, send_buffer_bytes)| Description {
            addresses,
            caps,
            shard,
            connections,
            send_buffer_bytes,
        },
    )
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn information_of_a_connection_comes_through(info in info()) {
        let bytes = encode_info(&info);
        prop_assert_eq!(decode_info(&bytes), Some(info));
        prop_assert_eq!(decode_info(&bytes[1..]), None);
        prop_assert_eq!(decode_info(&[bytes, vec![0]].concat()), None);
    }

    #[test]
    fn holders_come_through_in_order(
        holders in proptest::collection::btree_set((any::<u16>(), ip(), reuse()), 0..30),
    ) {
        let holders: BTreeSet<Holder> =
            holders.into_iter().map(|(port, ip, reuse)| Holder { port, ip, reuse }).collect();
        let bytes = encode_holders(&holders);
        let twice = [bytes.clone(), bytes.clone()].concat();
        prop_assert_eq!(decode_holders(&twice).is_none(), !holders.is_empty());
        prop_assert_eq!(decode_holders(&bytes), Some(holders));
    }

    #[test]
    fn options_come_through(option in option()) {
        let (code, value) = encode_option(option).expect("each option has a code");
        prop_assert_eq!(decode_option(code, value), Some(option));
    }

    #[test]
    fn sharing_of_a_listener_comes_through(sharing in sharing()) {
        let (flags, cores) = encode_sharing(&sharing);
        let decoded = decode_sharing(flags, sharing.fast_open, cores.as_deref());
        prop_assert_eq!(decoded, Some(sharing));
    }

    #[test]
    fn descriptions_come_through(description in description()) {
        let bytes = description.encode();
        let decoded = Description::decode(&bytes).expect("it is one");
        prop_assert_eq!(decoded.caps, description.caps);
        prop_assert_eq!(decoded.shard, description.shard);
        prop_assert_eq!(decoded.connections, description.connections);
        prop_assert_eq!(decoded.send_buffer_bytes, description.send_buffer_bytes);
        prop_assert!(Description::decode(&bytes[..bytes.len() - 1]).is_none());
    }

    #[test]
    fn any_bytes_are_a_value_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        code in any::<u32>(),
        value in any::<u64>(),
        flags in any::<u16>(),
    ) {
        if let Some(info) = decode_info(&bytes) {
            prop_assert_eq!(encode_info(&info), &*bytes);
        }
        if let Some(holders) = decode_holders(&bytes) {
            prop_assert_eq!(encode_holders(&holders), &*bytes);
        }
        for code in [code, code % 20] {
            if let Some(option) = decode_option(code, value) {
                prop_assert_eq!(encode_option(option), Some((code, value)));
            }
        }
        if let Some(sharing) = decode_sharing(flags & 15, code, Some(&bytes)) {
            prop_assert_eq!(encode_sharing(&sharing).1, Some(bytes.clone()));
        }
        if let Some(begin) = decode_begin(flags) {
            prop_assert_eq!(encode_begin(begin), flags);
        }
        for refusal in Refusal::ALL {
            let _: Option<PortError<ListenError>> = decode_port_error(*refusal, code, &bytes);
        }
        if let Some(description) = Description::decode(&bytes) {
            prop_assert_eq!(description.encode(), bytes);
        }
    }
}

#[test]
fn each_error_of_the_stack_has_a_code_of_its_own() {
    fn check<E: Coded + std::fmt::Debug>(errors: &[E]) {
        let codes: BTreeSet<u32> = errors.iter().map(|error| error.refusal() as u32).collect();
        assert_eq!(codes.len(), errors.len());
        for error in errors {
            assert_eq!(E::from_refusal(error.refusal()), Some(*error));
        }
    }
    {
        use OperationError::*;
        check(&[Unknown, NotConnected, Closing, BadChunk, QueueFull, BadAddress, TooLong]);
    }
    {
        use ListenError::*;
        check(&[BadLocalAddress, BadPort, InUse, TooManyListeners, NoMemory]);
    }
    {
        use BindError::*;
        check(&[BadLocalAddress, InUse, NoPort, TooManyEndpoints, NoMemory]);
    }
    {
        use ConnectError::*;
        check(&[NoRoute, BadLocalAddress, BadRemoteAddress, InUse, NoPort, TooManyConnections]);
    }
}

/// The text of an error that went through an answer.
fn through(error: PortError<BindError>) -> String {
    let (refusal, detail, text) = encode_port_error(&error);
    let decoded: Option<PortError<BindError>> = decode_port_error(refusal, detail, &text);
    decoded.expect("it is one").to_string()
}

#[test]
fn errors_of_ports_keep_their_texts() {
    let source = std::io::Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error());
    let host = [
        LinkError::Io { what: "bind", source },
        LinkError::Gone { driver: "xdp" },
        LinkError::Unavailable { driver: "packet", why: "no CAP_NET_RAW".to_owned() },
        LinkError::Setting { setting: "ownership", why: "port 80 is taken".to_owned() },
    ];
    let shared = [
        BindingError::InUse,
        BindingError::Overlap { core: 7 },
        BindingError::NoCore,
        BindingError::Full,
        BindingError::NotBound,
    ];
    let errors = host.into_iter().map(PortError::Host);
    for error in errors.chain(shared.into_iter().map(PortError::Shared)) {
        let text = error.to_string();
        assert_eq!(through(error), text);
    }
    // What was tried has no static name here: it goes into the reason.
    let source = std::io::Error::from_raw_os_error(rustix::io::Errno::ADDRINUSE.raw_os_error());
    let text = through(PortError::Host(LinkError::Io { what: "another thing", source }));
    assert!(text.contains("another thing: ") && text.contains("in use"), "{text}");
}

#[test]
fn error_of_the_host_keeps_its_kind() {
    let source = std::io::Error::from_raw_os_error(rustix::io::Errno::ACCESS.raw_os_error());
    let kind = source.kind();
    let error: PortError<BindError> = PortError::Host(LinkError::Io { what: "bind", source });
    let (refusal, detail, text) = encode_port_error(&error);
    match decode_port_error::<BindError>(refusal, detail, &text) {
        Some(PortError::Host(LinkError::Io { source, .. })) => assert_eq!(source.kind(), kind),
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_of_connections_and_endpoints_come_through() {
    for nodelay in [None, Some(false), Some(true)] {
        for [fast_open, resets_on_close] in
            [[false, false], [false, true], [true, false], [true; 2]]
        {
            let begin = ConnectStart { nodelay, fast_open, resets_on_close };
            assert_eq!(decode_begin(encode_begin(begin)), Some(begin));
        }
    }
    for bits in 0..16 {
        let [is_shared, spreads, is_mapped, excludes_others] =
            [1, 2, 4, 8].map(|bit| bits & bit != 0);
        let owner = DatagramOwner::default();
        let sharing = DatagramSharing { is_shared, spreads, is_mapped, excludes_others, owner };
        assert_eq!(decode_bind(encode_bind(sharing)), sharing);
    }
}
