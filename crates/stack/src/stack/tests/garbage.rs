//! Random frames: no panic, every frame counted, no leak.

use proptest::prelude::*;

use super::*;
use crate::wire::extension;

/// Frames that are nearly right, so that a change reaches every branch.
fn likely() -> Vec<Vec<u8>> {
    let echo = icmp4::Repr::Echo { code: 0, identifier: 1, sequence: 2 };
    let echo6 = icmp6::Repr::Echo { code: 0, identifier: 1, sequence: 2 };
    let quoted = packet4(header4(OURS, PEER, Protocol::Udp, 9), &datagram4(53, b"x"));
    let about = icmp4::Repr::Unreachable { code: 4, mtu: 1000 };
    let mut options = vec![17, 0, 5, 2, 0, 0, 1, 0];
    options.extend(datagram6(53, b"hello"));
    let mut fragment = vec![0; 8];
    let header = extension::Fragment { next_header: 17, offset: 0, more: true, identification: 1 };
    header.emit(&mut fragment);
    fragment.extend(datagram6(53, &[1; 16]));
    let arp = arp::Repr {
        operation: arp::Operation::Request,
        sender_mac: PEER_MAC,
        sender_ip: PEER,
        target_mac: [0; 6],
        target_ip: OURS,
    };
    let mut message = vec![0; arp.header_bytes()];
    arp.emit(&mut message);
    let question = ndp::Repr::Solicitation { target: OURS6, source_mac: Some(PEER_MAC) };
    let mut solicitation = vec![0; question.header_bytes()];
    let sum = checksum::pseudo_header(PEER6.into(), OURS6.into(), 58, solicitation.len());
    question.emit(&mut solicitation, sum);
    let fragmented = ipv4::Repr { more_fragments: true, ..header4(PEER, OURS, Protocol::Udp, 16) };
    vec![
        frame4(Protocol::Udp, &datagram4(53, b"hello")),
        frame4(Protocol::Tcp, &[0x10; 40]),
        frame4(Protocol::Icmp, &message4(echo, b"ping")),
        frame4(Protocol::Icmp, &message4(about, &quoted)),
        ethernet(OUR_MAC, ethernet::IPV4, &packet4(fragmented, &[3; 16])),
        frame6(17, &datagram6(53, b"hello")),
        frame6(58, &message6((PEER6, OURS6), echo6, b"ping")),
        frame6(58, &solicitation),
        frame6(extension::HOP_BY_HOP, &options),
        frame6(extension::FRAGMENT, &fragment),
        ethernet(ethernet::BROADCAST, ethernet::ARP, &message),
    ]
}

/// One frame of [`likely`], with some bytes changed and its end cut or grown.
fn changed() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let frame = prop::sample::select(likely());
    (frame, changes, any::<Option<u8>>(), any::<bool>()).prop_map(
        |(mut frame, changes, cut, fix)| {
            for (at, byte) in changes {
                let at = at.index(frame.len());
                frame[at] = byte;
            }
            if let Some(cut) = cut {
                let len = frame.len();
                frame.resize(len.saturating_sub(20) + usize::from(cut) % 40, cut);
            }
            if fix && frame.len() >= 34 && frame[14] == 0x45 {
                frame[24..26].copy_from_slice(&[0, 0]);
                let sum = checksum::finish(checksum::sum(&frame[14..34]));
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            frame
        },
    )
}

fn run(host: &mut Host, frames: &[Vec<u8>], offloaded: bool) {
    let checksums = if offloaded { Checksums::Verified } else { Checksums::Unverified };
    for (n, frame) in frames.iter().enumerate() {
        let received = Received { checksums, segment_bytes: 0 };
        host.stack.on_frame(host.now, frame, received, &mut host.memory);
        while let Some(event) = host.stack.poll_event() {
            if let Event::Datagram { chunk, .. } = event {
                host.memory.free(chunk.buf);
            }
        }
        host.frames();
        host.stack.check_invariants();
        if n % 7 == 0 {
            host.pass(Duration::from_secs(1));
        }
    }
    assert_eq!(host.stack.counters().totals.frames_in, frames.len() as u64);
    host.pass(Duration::from_secs(600));
    assert_eq!(host.memory.in_use(), 0);
}

proptest! {
    #[test]
    fn noise_is_survived(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 0..40),
    ) {
        let mut host = Host::new();
        host.bind(53);
        run(&mut host, &frames, false);
// Each frame was dropped, for one reason.
        let drops: u64 = host.stack.counters().drops().map(|(_, count)| count).sum();
        prop_assert_eq!(drops, frames.len() as u64);
    }

    #[test]
    fn changed_frames_are_survived(
        frames in prop::collection::vec(changed(), 0..60),
        offloaded in any::<bool>(),
    ) {
        let mut host = Host::new();
        host.bind(53);
        host.bind6(53);
        host.meet(PEER.into());
        run(&mut host, &frames, offloaded);
    }

    #[test]
    fn packets_without_a_link_are_survived(
        frames in prop::collection::vec(changed(), 0..60),
    ) {
        let mut host = Host::with(|config| config.medium = Medium::Ip);
        host.bind(53);
        let packets: Vec<_> =
            frames.iter().map(|frame| frame.get(14..).unwrap_or_default().to_vec()).collect();
        run(&mut host, &packets, false);
    }
}
