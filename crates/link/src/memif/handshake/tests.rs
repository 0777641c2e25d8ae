//! The order of messages, and each way of being sent away.

use super::*;

fn terms() -> Terms {
    Terms {
        id: 3,
        mode: 0,
        secret: [0; SECRET_BYTES],
        name: FixedText::new("test"),
        queue_count: 2,
        all_queues: false,
        ring_size_log2: 4,
    }
}

fn ring(to_server: bool, index: u16) -> AddRing {
    AddRing { to_server, index, region: 0, offset: 0, size_log2: 4, private_header_bytes: 0 }
}

fn started() -> ServerHandshake<u32> {
    let mut server = ServerHandshake::new(terms());
    assert_eq!(server.on_message(init(&terms()), None), Ok(ServerReply::Ack));
    let region = MemifMessage::AddRegion { index: 0, bytes: 4096 };
    assert_eq!(server.on_message(region, Some(1)), Ok(ServerReply::Ack));
    server
}

fn refused(
    server: &mut ServerHandshake<u32>,
    message: MemifMessage,
    fd: Option<u32>,
) -> &'static str {
    server.on_message(message, fd).expect_err("it must be refused").0
}

#[test]
fn a_whole_handshake_connects() {
    let mut server = started();
    for to_server in [true, false] {
        let message = MemifMessage::AddRing(ring(to_server, 0));
        assert_eq!(server.on_message(message, Some(2)), Ok(ServerReply::Ack));
    }
    let connect = MemifMessage::Connect { name: FixedText::new("port") };
    assert_eq!(server.on_message(connect, None), Ok(ServerReply::Connected));
    assert_eq!(server.regions.len(), 1);
    assert_eq!(server.to_client.len(), 1);
}

#[test]
fn a_client_comes_to_an_end() {
    let mut server = started();
    let answered = (0..10_000).take_while(|_| server.on_message(MemifMessage::Ack, None).is_ok());
    assert!(answered.count() < 300);
    let connect = MemifMessage::Connect { name: FixedText::new("port") };
    assert_eq!(refused(&mut server, connect, None), "too many messages");
}

/// The largest offer that there may be passes.
#[test]
fn all_regions_and_rings_may_be_named() {
    let terms = Terms { queue_count: MEMIF_QUEUE_COUNT_MAX, ..terms() };
    let mut server = ServerHandshake::new(terms.clone());
    assert_eq!(server.on_message(init(&terms), None), Ok(ServerReply::Ack));
    for index in 0..MEMIF_REGION_COUNT_MAX as u16 {
        let region = MemifMessage::AddRegion { index, bytes: 4096 };
        assert_eq!(server.on_message(region, Some(1)), Ok(ServerReply::Ack));
    }
    for to_server in [true, false] {
        for index in 0..MEMIF_QUEUE_COUNT_MAX {
            let message = MemifMessage::AddRing(ring(to_server, index));
            assert_eq!(server.on_message(message, Some(2)), Ok(ServerReply::Ack));
        }
    }
    let connect = MemifMessage::Connect { name: FixedText::new("port") };
    assert_eq!(server.on_message(connect, None), Ok(ServerReply::Connected));
}

#[test]
fn nothing_comes_before_init() {
    let mut server = ServerHandshake::new(terms());
    let region = MemifMessage::AddRegion { index: 0, bytes: 4096 };
    assert_eq!(refused(&mut server, region, Some(1)), "INIT comes first");
    let connect = MemifMessage::Connect { name: FixedText::new("port") };
    assert_eq!(refused(&mut server, connect, None), "INIT comes first");
}

#[test]
fn init_must_agree() {
    let cases: [(Terms, &str); 3] = [
        (Terms { id: 4, ..terms() }, "no interface with that id"),
        (Terms { mode: 1, ..terms() }, "another mode is spoken here"),
        (Terms { secret: [1; SECRET_BYTES], ..terms() }, "wrong secret"),
    ];
    for (client, reason) in cases {
        let mut server = ServerHandshake::new(terms());
        assert_eq!(refused(&mut server, init(&client), None), reason);
    }
    let mut server = started();
    assert_eq!(refused(&mut server, init(&terms()), None), "unexpected message");
}

#[test]
fn regions_come_in_order_with_memory_and_within_limits() {
    let mut server = started();
    let add = |index, bytes| MemifMessage::AddRegion { index, bytes };
    assert_eq!(refused(&mut server, add(1, 64), None), "ADD_REGION without a descriptor");
    assert_eq!(refused(&mut server, add(0, 64), Some(1)), "invalid region index");
    assert_eq!(refused(&mut server, add(2, 64), Some(1)), "invalid region index");
    assert_eq!(refused(&mut server, add(1, 0), Some(1)), "invalid region size");
    assert_eq!(refused(&mut server, add(1, u64::MAX), Some(1)), "invalid region size");
    for index in 1..MEMIF_REGION_COUNT_MAX as u16 {
        assert_eq!(server.on_message(add(index, 64), Some(1)), Ok(ServerReply::Ack));
    }
    let one_more = add(MEMIF_REGION_COUNT_MAX as u16, 64);
    assert_eq!(refused(&mut server, one_more, Some(1)), "invalid region index");
}

#[test]
fn rings_lie_inside_their_region() {
    let cases: [(AddRing, &str); 8] = [
        (AddRing { size_log2: 5, ..ring(true, 0) }, "invalid ring size"),
        (AddRing { size_log2: 0, ..ring(true, 0) }, "invalid ring size"),
        (AddRing { size_log2: 255, ..ring(true, 0) }, "invalid ring size"),
        (AddRing { region: 1, ..ring(true, 0) }, "a ring in no region"),
        (
            AddRing { private_header_bytes: 1, ..ring(true, 0) },
            "no private headers are spoken here",
        ),
        (
            AddRing { offset: 4096 - 256, ..ring(true, 0) },
            "a ring outside of its region, or misaligned",
        ),
        (AddRing { offset: 9, ..ring(true, 0) }, "a ring outside of its region, or misaligned"),
        (ring(true, 1), "invalid ring index"),
    ];
    for (ring, reason) in cases {
        let mut server = started();
        assert_eq!(refused(&mut server, MemifMessage::AddRing(ring), Some(1)), reason);
    }
    let mut server = started();
    let message = MemifMessage::AddRing(ring(true, 0));
    assert_eq!(refused(&mut server, message, None), "ADD_RING without a descriptor");
}

#[test]
fn a_connection_has_as_many_rings_each_way() {
    let mut server = started();
    let connect = MemifMessage::Connect { name: FixedText::new("port") };
    let reason = "as many rings are wanted one way as the other";
    assert_eq!(refused(&mut server, connect, None), reason);
    let message = MemifMessage::AddRing(ring(true, 0));
    assert_eq!(server.on_message(message, Some(1)), Ok(ServerReply::Ack));
    assert_eq!(refused(&mut server, connect, None), reason);
}

#[test]
fn a_client_takes_the_smaller_of_both() {
    let server: ServerHandshake<u32> =
        ServerHandshake::new(Terms { queue_count: 1, ring_size_log2: 3, ..terms() });
    let MemifMessage::Hello(hello) = server.hello() else { panic!("no HELLO") };
    let agreed = AgreedMemory { queue_count: 1, ring_size_log2: 3 };
    assert_eq!(agree(&terms(), &hello), Ok(agreed));
    let old = Hello { version_max: VERSION - 1, version_min: 0, ..hello };
    assert!(agree(&terms(), &old).is_err());
    let tiny = Hello { ring_size_log2_max: 0, ..hello };
    assert!(agree(&terms(), &tiny).is_err());
    let huge = Hello { to_client_index_max: u16::MAX, to_server_index_max: u16::MAX, ..hello };
    assert_eq!(agree(&terms(), &huge).map(|agreed| agreed.queue_count), Ok(2));
}
