//! Echoes, ICMP errors out, ICMP errors in.

use super::*;
use crate::event::{Arrival, Notice};
use crate::limits::ICMP_ERRORS_BURST;
use crate::wire::extension;

/// The message in a frame of ours.
fn open_icmp4(frame: &[u8]) -> (ipv4::Repr, icmp4::Repr, &[u8]) {
    let (_, header, payload) = open4(frame);
    let view = icmp4::View::new(payload).unwrap();
    (header, icmp4::Repr::parse(&view).unwrap(), view.payload())
}

#[test]
fn echoes_come_back() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    let echo = icmp4::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
    for payload in [&b""[..], b"odd", &[7; 1472]] {
        let frames = host.reply(&frame4(Protocol::Icmp, &message4(echo, payload)));
        let (header, message, echoed) = open_icmp4(&frames[0]);
        assert_eq!((frames.len(), header.src, header.dst), (1, OURS, PEER));
        assert_eq!(message, icmp4::Repr::EchoReply { code: 0, identifier: 3, sequence: 9 });
        assert_eq!(echoed, payload);
    }
    let echo = icmp6::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
    let frames = host.reply(&frame6(58, &message6((PEER6, OURS6), echo, b"ping")));
    let (header, message, echoed) = open_icmp6(&frames[0]);
    assert_eq!((header.src, header.dst), (OURS6, PEER6));
    assert_eq!(message, icmp6::Repr::EchoReply { code: 0, identifier: 3, sequence: 9 });
    assert_eq!(echoed, b"ping");
    assert_eq!(host.stack.counters().totals.icmp_in, 4);
    assert_eq!(host.stack.counters().totals.icmp_out, 4);
}

/// RFC 792 and RFC 4443 define code 0 only. Linux answers any code, and returns it.
#[test]
fn echo_with_any_code_is_answered_with_that_code() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    for code in [1, 9, 255] {
        let echo = icmp4::Repr::Echo { code, identifier: 3, sequence: 9 };
        let frames = host.reply(&frame4(Protocol::Icmp, &message4(echo, b"ping")));
        let (_, message, echoed) = open_icmp4(&frames[0]);
        assert_eq!(message, icmp4::Repr::EchoReply { code, identifier: 3, sequence: 9 });
        assert_eq!(echoed, b"ping");
        let echo = icmp6::Repr::Echo { code, identifier: 3, sequence: 9 };
        let frames = host.reply(&frame6(58, &message6((PEER6, OURS6), echo, b"ping")));
        let (_, message, echoed) = open_icmp6(&frames[0]);
        assert_eq!(message, icmp6::Repr::EchoReply { code, identifier: 3, sequence: 9 });
        assert_eq!(echoed, b"ping");
    }
}

#[test]
fn echo_reply_waits_for_neighbour_without_displacing_others() {
    let mut host = Host::new();
    let echo = icmp4::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
    let message = message4(echo, b"ping");
    // Many hosts that do not exist.
    for n in 0..200 {
        let src = Ipv4Addr::new(10, 0, 0, 50 + n);
        let packet = packet4(header4(src, OURS, Protocol::Icmp, message.len()), &message);
        host.reply(&ethernet(OUR_MAC, ethernet::IPV4, &packet));
    }
    host.meet(PEER.into());
    let frames = host.reply(&frame4(Protocol::Icmp, &message));
    assert_eq!(open_icmp4(&frames[0]).0.dst, PEER);
    host.pass(Duration::from_secs(10));
    assert!(host.dropped(Drop::NextHopUnresolved) > 0);
    assert_eq!(host.stack.poll_timeout(), None);
}

#[test]
fn invalid_and_broadcast_echoes_are_not_answered() {
    let mut host = Host::new();
    let echo = icmp4::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
    let mut message = message4(echo, b"ping");
    message[9] ^= 1;
    host.drops(&frame4(Protocol::Icmp, &message), Drop::BadTransportChecksum);
    let message = message4(echo, b"ping");
    let to_all = Ipv4Addr::new(10, 0, 0, 255);
    let packet = packet4(header4(PEER, to_all, Protocol::Icmp, message.len()), &message);
    host.drops(&ethernet(ethernet::BROADCAST, ethernet::IPV4, &packet), Drop::OtherAddress);
    let group = "ff02::1".parse().unwrap();
    let echo = icmp6::Repr::Echo { code: 0, identifier: 3, sequence: 9 };
    let packet = packet6(PEER6, group, 58, &message6((PEER6, group), echo, b"ping"));
    host.drops(&ethernet([0x33, 0x33, 0, 0, 0, 1], ethernet::IPV6, &packet), Drop::IgnoredMessage);
    let reply = icmp4::Repr::EchoReply { code: 0, identifier: 3, sequence: 9 };
    host.drops(&frame4(Protocol::Icmp, &message4(reply, b"")), Drop::IgnoredMessage);
}

#[test]
fn a_closed_port_is_reported() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    let frame = frame4(Protocol::Udp, &datagram4(53, &[9; 1000]));
    let frames = host.reply(&frame);
    let (header, message, quoted) = open_icmp4(&frames[0]);
    assert_eq!((frames.len(), header.dst), (1, PEER));
    assert_eq!(message, icmp4::Repr::Unreachable { code: icmp4::CODE_PORT, mtu: 0 });
    assert_eq!(header.payload_bytes + 20, 576);
    assert_eq!(quoted, &frame[14..14 + quoted.len()]);
    assert_eq!(host.dropped(Drop::NoEndpoint), 1);
    let frame = frame6(17, &datagram6(53, &[9; 1400]));
    let frames = host.reply(&frame);
    let (header, message, quoted) = open_icmp6(&frames[0]);
    assert_eq!(message, icmp6::Repr::Unreachable { code: icmp6::CODE_PORT });
    assert_eq!(header.payload_bytes + 40, 1280);
    assert_eq!(quoted, &frame[14..14 + quoted.len()]);
    let mut wrong = datagram4(53, b"x");
    wrong[6] ^= 1;
    host.drops(&frame4(Protocol::Udp, &wrong), Drop::BadTransportChecksum);
}

#[test]
fn errors_are_limited_in_rate() {
    let mut host = Host::new();
    host.meet(PEER.into());
    let frame = frame4(Protocol::Udp, &datagram4(53, b"x"));
    let sent: usize = (0..1000).map(|_| host.reply(&frame).len()).sum();
    assert_eq!(sent, ICMP_ERRORS_BURST as usize);
    assert_eq!(host.dropped(Drop::RateLimited), 1000 - u64::from(ICMP_ERRORS_BURST));
    host.now += Duration::from_millis(10);
    let sent: usize = (0..1000).map(|_| host.reply(&frame).len()).sum();
    assert_eq!(sent, 10);
}

#[test]
fn unknown_transports_are_reported_and_unknown_errors_are_not() {
    let mut host = Host::new();
    host.meet(PEER.into());
    host.meet(PEER6.into());
    let packet =
        packet4(ipv4::Repr { protocol: 132, ..header4(PEER, OURS, Protocol::Udp, 8) }, &[0; 8]);
    let frames = host.reply(&ethernet(OUR_MAC, ethernet::IPV4, &packet));
    let unreachable = icmp4::Repr::Unreachable { code: icmp4::CODE_PROTOCOL, mtu: 0 };
    assert_eq!(open_icmp4(&frames[0]).1, unreachable);
    let frames = host.reply(&frame6(132, &[0; 8]));
    let code = extension::CODE_NEXT_HEADER;
    assert_eq!(open_icmp6(&frames[0]).1, icmp6::Repr::ParameterProblem { code, pointer: 6 });
    host.drops(&frame6(extension::NO_NEXT, &[]), Drop::UnknownTransport);
    // The other version's ICMP is no transport.
    assert_eq!(
        host.reply(&frame6(1, &message4(icmp4::Repr::TimeExceeded { code: 0 }, &[0; 28]))).len(),
        1
    );
}

#[test]
fn headers_that_must_not_be_followed_are_reported() {
    let mut host = Host::new();
    host.meet(PEER6.into());
    let route = [17, 0, 0, 1, 0, 0, 0, 0];
    let frames = host.reply(&frame6(extension::ROUTING, &route));
    let code = extension::CODE_FIELD;
    assert_eq!(open_icmp6(&frames[0]).1, icmp6::Repr::ParameterProblem { code, pointer: 42 });
    assert_eq!(host.dropped(Drop::ForbiddenOption), 1);
    // An option that wants a report even from a group gets it, from our own address.
    let group = "ff02::1".parse().unwrap();
    for (kind, reports) in [(0x80, 1), (0xc0, 0)] {
        let options = [59, 0, kind, 4, 0, 0, 0, 0];
        let packet = packet6(PEER6, group, extension::DESTINATION, &options);
        let frames = host.reply(&ethernet([0x33, 0x33, 0, 0, 0, 1], ethernet::IPV6, &packet));
        assert_eq!(frames.len(), reports);
        if let Some(frame) = frames.first() {
            let code = extension::CODE_OPTION;
            let (header, message, _) = open_icmp6(frame);
            assert_eq!(header.src, OURS6);
            assert_eq!(message, icmp6::Repr::ParameterProblem { code, pointer: 42 });
        }
    }
    // A source route of IPv4 is not followed either.
    let mut packet = packet4(header4(PEER, OURS, Protocol::Udp, 12), &[0; 12]);
    packet[0] = 0x46;
    packet[20..24].copy_from_slice(&[131, 3, 4, 0]);
    packet[10..12].copy_from_slice(&[0, 0]);
    let sum = checksum::finish(checksum::sum(&packet[..24]));
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    host.drops(&ethernet(OUR_MAC, ethernet::IPV4, &packet), Drop::ForbiddenOption);
}

#[test]
fn a_router_alert_hides_no_datagram() {
    let mut host = Host::new();
    host.bind6(53);
    let mut payload = vec![17, 0, 5, 2, 0, 0, 1, 0];
    payload.extend(datagram6(53, b"hello"));
    host.give(&frame6(extension::HOP_BY_HOP, &payload));
    assert_eq!(host.receive(), Some((peer6(), b"hello".to_vec())));
}

/// An error about a datagram of ours to `to`, as a router on the way sends it.
fn unreachable(ports: (u16, u16), code: u8) -> Vec<u8> {
    let sent = datagram(OURS.into(), PEER.into(), ports, b"x");
    let quoted = packet4(header4(OURS, PEER, Protocol::Udp, sent.len()), &sent);
    frame4(Protocol::Icmp, &message4(icmp4::Repr::Unreachable { code, mtu: 1000 }, &quoted))
}

#[test]
fn an_error_reaches_the_endpoint_that_sent() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.meet(PEER.into());
    host.drops(&unreachable((53, 5000), 3), Drop::BadIcmpError);
    host.send(id, peer(), b"x").unwrap();
    host.frames();
    host.give(&unreachable((53, 5000), 3));
    let why = Undelivered::PortUnreachable;
    let refused = Event::DatagramRefused { endpoint: id, to: peer(), why };
    assert_eq!(host.stack.poll_event(), Some(refused));
    for forged in [(53, 5001), (54, 5000)] {
        host.drops(&unreachable(forged, 3), Drop::BadIcmpError);
    }
    assert_eq!(host.stack.poll_event(), None);
    // We never forbid routers to cut a datagram.
    host.drops(&unreachable((53, 5000), icmp4::CODE_FRAGMENTATION_NEEDED), Drop::BadIcmpError);
    // Nor is a quote believed whose source is not ours, or that is cut too short.
    let stranger = packet4(header4(FAR, PEER, Protocol::Udp, 9), &datagram4(53, b"x"));
    let about = icmp4::Repr::Unreachable { code: 3, mtu: 0 };
    host.drops(&frame4(Protocol::Icmp, &message4(about, &stranger)), Drop::BadIcmpError);
    let short = packet4(header4(OURS, PEER, Protocol::Udp, 7), &[0; 7]);
    host.drops(&frame4(Protocol::Icmp, &message4(about, &short)), Drop::BadIcmpError);
}

#[test]
fn path_mtu_is_learnt_from_matching_quotes() {
    let mut host = Host::new();
    let id = host.bind6(53);
    host.meet(PEER6.into());
    let too_big = |port, mtu| {
        let sent = datagram(OURS6.into(), PEER6.into(), (port, 5000), b"x");
        let quoted = packet6(OURS6, PEER6, 17, &sent);
        frame6(58, &message6((PEER6, OURS6), icmp6::Repr::PacketTooBig { mtu }, &quoted))
    };
    host.drops(&too_big(53, 1300), Drop::BadIcmpError);
    host.send(id, peer6(), &[0; 1452]).unwrap();
    assert_eq!(host.frames().len(), 1);
    for impossible in [0, 1279, 1500, 70_000] {
        host.drops(&too_big(53, impossible), Drop::BadIcmpError);
    }
    host.drops(&too_big(54, 1300), Drop::BadIcmpError);
    host.give(&too_big(53, 1300));
    let refused = Event::DatagramRefused { endpoint: id, to: peer6(), why: Undelivered::TooLong };
    assert_eq!(host.stack.poll_event(), Some(refused));
    assert_eq!(host.send(id, peer6(), &[0; 1253]), Err(crate::OperationError::TooLong));
    host.send(id, peer6(), &[0; 1252]).unwrap();
    host.pass(Duration::from_secs(600));
    host.send(id, peer6(), &[0; 1452]).unwrap();
}

/// Returns the notice of the last event and its quoted bytes; frees the buffer.
fn notice(host: &mut Host) -> Option<(Notice, Vec<u8>)> {
    let mut notice = host.stack.take_notice()?;
    let quote = notice.quote.take().map(|chunk| {
        let mut bytes = vec![0; chunk.len as usize];
        host.memory.copy_out(chunk, &mut bytes);
        host.memory.free(chunk.buf);
        bytes
    });
    Some((notice, quote.unwrap_or_default()))
}

#[test]
fn a_notice_says_who_complains_and_quotes_for_who_asks() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.meet(PEER.into());
    host.send(id, peer(), b"x").unwrap();
    host.frames();
    assert_eq!(host.stack.take_notice(), None);
    for (asked, code, quoted) in [(false, 3, &b""[..]), (true, 3, b"x"), (true, 13, b"x")] {
        host.stack.quote_errors(id, asked).unwrap();
        host.give(&unreachable((53, 5000), code));
        assert!(host.stack.poll_event().is_some());
        let (told, quote) = notice(&mut host).unwrap();
        let arrival = Arrival { to: OURS.into(), hop_limit: 64, traffic_class: 0 };
        let by = PEER.into();
        assert_eq!(told, Notice { by, kind: 3, code, info: 0, arrival, quote: None });
        assert_eq!(quote, quoted);
        assert_eq!(host.stack.take_notice(), None, "once");
    }
    // An untaken quote is freed with the endpoint.
    host.give(&unreachable((53, 5000), 3));
    assert_eq!(host.memory.in_use(), 1);
    host.stack.close_datagram(id, &mut host.memory).unwrap();
    assert_eq!(host.memory.in_use(), 0);
    assert_eq!(host.stack.quote_errors(id, true), Err(crate::OperationError::Unknown));
}

#[test]
fn notices_are_bounded_and_stay_in_step_with_their_events() {
    let mut host = Host::new();
    let (one, other) = (host.bind(53), host.bind(54));
    host.meet(PEER.into());
    for id in [one, other] {
        host.send(id, peer(), b"x").unwrap();
        host.stack.quote_errors(id, true).unwrap();
    }
    host.frames();
    // More than there are buffers: without one, a notice comes without its quote.
    for _ in 0..150 {
        host.give(&unreachable((53, 5000), 3));
        host.give(&unreachable((54, 5000), 1));
    }
    host.stack.close_datagram(one, &mut host.memory).unwrap();
    let mut count = 0;
    while let Some(event) = host.stack.poll_event() {
        let why = Undelivered::HostUnreachable;
        assert_eq!(event, Event::DatagramRefused { endpoint: other, to: peer(), why });
        assert_eq!(notice(&mut host).map(|(told, _)| told.code), Some(1));
        count += 1;
    }
    assert_eq!(count, crate::limits::NOTICES_WAITING_MAX / 2);
    assert_eq!(host.memory.in_use(), 0);
}
