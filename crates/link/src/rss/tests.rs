//! Microsoft's published vectors, and what they do not cover.

use super::*;

/// The key of the vectors.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// Destination, source, the hash of the hosts alone, and that with ports.
const VECTORS: [(&str, &str, u32, u32); 8] = [
    ("161.142.100.80:1766", "66.9.149.187:2794", 0x323e_8fc2, 0x51cc_c178),
    ("65.69.140.83:4739", "199.92.111.2:14230", 0xd718_262a, 0xc626_b0ea),
    ("12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0_a5de, 0x5c2b_394a),
    ("209.142.163.6:2217", "38.27.205.30:48228", 0x8298_9176, 0xafc7_327f),
    ("202.188.127.2:1303", "153.39.163.191:44251", 0x5d18_09c5, 0x10e8_28a2),
    ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc1_8cd5, 0x4020_7d3d),
    ("[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c_461c, 0xdde5_1bbf),
    (
        "[fe80::200:f8ff:fe21:67cf]:38024",
        "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
        0x4b61_e985,
        0x02d1_feef,
    ),
];

fn rss(fields: FieldsByKind, table: &[Option<u16>]) -> Rss {
    Rss::new(&KEY, table.into(), fields).unwrap()
}

#[test]
fn hashes_are_those_that_were_published() {
    let hosts = Fields::Hosts;
    let by_hosts = FieldsByKind { tcp4: hosts, tcp6: hosts, udp4: hosts, udp6: hosts };
    for (dst, src, of_hosts, with_ports) in VECTORS {
        let (dst, src) = (dst.parse().unwrap(), src.parse().unwrap());
        for transport in [Transport::Tcp, Transport::Udp] {
            let hash = |fields| rss(fields, &[None]).hash(transport, src, dst);
            assert_eq!((hash(by_hosts), hash(FieldsByKind::ALL)), (of_hosts, with_ports), "{dst}");
        }
    }
}

#[test]
fn fields_count_by_protocol_and_family() {
    let fields = FieldsByKind { udp4: Fields::Hosts, tcp6: Fields::Hosts, ..FieldsByKind::ALL };
    let rss = rss(fields, &[None]);
    let ends = |of: usize| (VECTORS[of].1.parse().unwrap(), VECTORS[of].0.parse().unwrap());
    let hash = |transport, (src, dst)| rss.hash(transport, src, dst);
    assert_eq!(hash(Transport::Tcp, ends(0)), VECTORS[0].3);
    assert_eq!(hash(Transport::Udp, ends(0)), VECTORS[0].2);
    assert_eq!(hash(Transport::Tcp, ends(5)), VECTORS[5].2);
    assert_eq!(hash(Transport::Udp, ends(5)), VECTORS[5].3);
    assert_eq!(hash(Transport::Tcp, (ends(0).0, ends(5).1)), 0, "no packet is of both");
}

#[test]
fn the_low_bits_choose_a_queue() {
    let rss = rss(FieldsByKind::ALL, &[Some(0), Some(1), None, Some(3)]);
    let queues = [0xffff_fff0, 1, 0x8000_0002, 7].map(|hash| rss.queue(hash));
    assert_eq!(queues, [Some(0), Some(1), None, Some(3)]);
}

/// The definition, bit by bit.
fn slowly(key: &[u8], input: &[u8]) -> u32 {
    let bit =
        |bytes: &[u8], at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let window =
        |at: usize| (0..32).fold(0, |bits, next| bits << 1 | u32::from(bit(key, at + next)));
    (0..8 * input.len()).filter(|at| bit(input, *at) == 1).fold(0, |sum, at| sum ^ window(at))
}

#[test]
fn toeplitz_table_matches_the_definition() {
    let mut state = 7_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    for round in 0..200 {
        // Longer keys than the input needs, and shorter ones.
        let key: Vec<u8> = (0..20 + round % 40).map(|_| next()).collect();
        let input: Vec<u8> = (0..round % 37).map(|_| next()).collect();
        assert_eq!(Toeplitz::new(&key).of(&input), slowly(&key, &input), "round {round}");
    }
}

#[test]
fn invalid_rss_settings_are_refused() {
    let table = |entries: usize| vec![Some(0); entries].into_boxed_slice();
    let error = |key: &[u8], entries| {
        Rss::new(key, table(entries), FieldsByKind::ALL).expect_err("a refusal")
    };
    assert_eq!(error(&KEY[..39], 128), RssError::Key { bytes: 39 });
    assert_eq!(error(&[0; RSS_KEY_BYTES_MAX + 1], 2), RssError::Key { bytes: 257 });
    for entries in [0, 3, 2 * RSS_TABLE_ENTRIES_MAX] {
        assert_eq!(error(&KEY, entries), RssError::Table { entries });
    }
}
