//! Records: everything that can be said comes through, everything else is a fault.

use proptest::prelude::*;

use super::*;
use crate::bytes;

fn id() -> impl Strategy<Value = Id> {
    any::<(u32, u32)>().prop_map(|(index, generation)| Id { index, generation })
}

fn address() -> impl Strategy<Value = SocketAddr> {
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
    ];
    (ip, any::<u16>()).prop_map(SocketAddr::from)
}

fn buf() -> impl Strategy<Value = BufId> {
    any::<u32>().prop_map(BufId::from_bits)
}

fn bufs() -> impl Strategy<Value = Bufs> {
    proptest::collection::vec(buf(), 1..=limits::BUFS_PER_RECORD).prop_map(|items| {
        let mut bufs = Bufs::default();
        items.iter().for_each(|buf| bufs.push(*buf));
        assert!(bufs.iter().eq(items));
        bufs
    })
}

fn ids() -> impl Strategy<Value = Ids> {
    proptest::collection::vec(id(), 1..=limits::IDS_PER_RECORD).prop_map(|items| {
        let mut ids = Ids::default();
        items.iter().for_each(|id| ids.push(*id));
        assert!(ids.iter().eq(items));
        ids
    })
}

fn chunk() -> impl Strategy<Value = Chunk> {
    (buf(), 0u32..1 << 23, 1u32..1 << 23).prop_map(|(buf, offset, len)| Chunk { buf, offset, len })
}

/// A chunk that may be of no bytes.
fn chunk_or_none() -> impl Strategy<Value = Chunk> {
    prop_oneof![chunk(), buf().prop_map(|buf| Chunk { buf, offset: 0, len: 0 })]
}

/// A receiver, and perhaps a source address of its family.
fn way() -> impl Strategy<Value = (SocketAddr, Option<IpAddr>)> {
    (address(), proptest::option::of(address())).prop_map(|(to, from)| {
        let from = from.map(|from| if from.is_ipv4() == to.is_ipv4() { from } else { to });
        (to, from.map(|from| from.ip()))
    })
}

fn sharing() -> impl Strategy<Value = ListenSharing> {
    let no_bytes =
        (1..=u32::MAX).prop_map(|buf| Chunk { buf: BufId::from_bits(buf), offset: 0, len: 0 });
    let cores = prop_oneof![chunk(), no_bytes];
    (0u16..16, any::<u32>(), proptest::option::of(cores))
        .prop_map(|(flags, fast_open, cores)| ListenSharing { flags, fast_open, cores })
}

fn listener_call() -> impl Strategy<Value = SessionCall> {
    use SessionCall::*;
    prop_oneof![
        Just(Sync),
        proptest::option::of(any::<u32>()).prop_map(|core| SetCore { core }),
        (address(), any::<u32>(), sharing(), any::<u64>()).prop_map(
            |(local, backlog, sharing, reservation)| Listen {
                reservation,
                local,
                backlog,
                sharing
            }
        ),
        (id(), sharing()).prop_map(|(listener, sharing)| Share { listener, sharing }),
        (id(), any::<u32>())
            .prop_map(|(listener, pending_max)| SetFastOpen { listener, pending_max }),
        address().prop_map(|local| IsListening { local }),
        id().prop_map(|listener| Unlisten { listener }),
        id().prop_map(|conn| TakeOut { conn }),
        prop_oneof![
            id().prop_map(|conn| MoveOut { conn }),
            id().prop_map(|conn| FinishMove { conn }),
            any::<u64>().prop_map(|cookie| TakeOver { cookie }),
            Just(TakeUnread),
            (any::<u64>(), proptest::option::of(id()))
                .prop_map(|(token, conn)| Hold { token, conn }),
            (any::<u64>(), proptest::option::of(id()))
                .prop_map(|(token, conn)| Adopt { token, conn }),
            (id(), chunk_or_none()).prop_map(|(conn, chunk)| GiveBack { conn, chunk }),
        ],
        (id(), chunk()).prop_map(|(conn, chunk)| PrependUnread { conn, chunk }),
        prop_oneof![
            id().prop_map(|conn| HandOver { conn }),
            id().prop_map(|conn| HandOverOffered { conn }),
        ],
    ]
}

fn connection_call() -> impl Strategy<Value = SessionCall> {
    use SessionCall::*;
    prop_oneof![
        (address(), proptest::option::of(address()), 0u16..8, any::<u64>()).prop_map(
            |(remote, local, flags, reservation)| Connect { remote, local, flags, reservation }
        ),
        id().prop_map(|conn| Info { conn }),
        id().prop_map(|conn| Addresses { conn }),
        (id(), any::<u32>(), any::<u64>()).prop_map(|(conn, option, value)| SetOption {
            conn,
            option,
            value
        }),
        (id(), chunk()).prop_map(|(conn, chunk)| SendCopy { conn, chunk }),
        any::<(u16, u16)>().prop_map(|ports| Holders { ports }),
        any::<((u16, u16), u16)>().prop_map(|(ports, from)| FreePort { ports, from }),
        Just(HasUndelivered),
    ]
}

fn datagram_call() -> impl Strategy<Value = SessionCall> {
    use SessionCall::*;
    prop_oneof![
        (address(), 0u16..8, any::<u64>()).prop_map(|(local, flags, reservation)| Bind {
            local,
            flags,
            reservation
        }),
        (id(), proptest::option::of(address()))
            .prop_map(|(endpoint, peer)| ConnectDatagram { endpoint, peer }),
        id().prop_map(|endpoint| CloseDatagram { endpoint }),
        (id(), any::<bool>()).prop_map(|(endpoint, on)| QuoteErrors { endpoint, on }),
        address().prop_map(|to| PacketBytesMax { to: to.ip() }),
        id().prop_map(|endpoint| DatagramAddress { endpoint }),
        (id(), way(), any::<(u16, u16)>()).prop_map(|(endpoint, (to, from), (len, count))| {
            CheckDatagrams { endpoint, to, from, len, count }
        }),
        prop_oneof![
            (any::<u64>(), proptest::option::of(id()))
                .prop_map(|(token, endpoint)| HoldEndpoint { token, endpoint }),
            (any::<u64>(), proptest::option::of(id()))
                .prop_map(|(token, endpoint)| AdoptEndpoint { token, endpoint }),
            (id(), any::<bool>()).prop_map(|(endpoint, keeps)| TakeDatagram { endpoint, keeps }),
            id().prop_map(|endpoint| AwaitDatagram { endpoint }),
            (id(), chunk()).prop_map(|(endpoint, chunk)| GiveDatagramBack { endpoint, chunk }),
        ],
        (any::<u64>(), id()).prop_map(|(token, listener)| HoldListener { token, listener }),
        any::<u64>().prop_map(|token| AdoptListener { token }),
    ]
}

fn call() -> impl Strategy<Value = SessionCall> {
    prop_oneof![listener_call(), connection_call(), datagram_call()]
}

fn op() -> impl Strategy<Value = Op> {
    use Command::*;
    let command = prop_oneof![
        (id(), any::<u32>()).prop_map(|(listener, credit)| Accept { listener, credit }),
        (address(), proptest::option::of(address()), 0u16..16)
            .prop_map(|(remote, local, flags)| Connect { remote, local, flags }),
        (id(), any::<bool>()).prop_map(|(conn, on)| ResetOnClose { conn, on }),
        ids().prop_map(|conns| Receive { conns }),
        (id(), chunk()).prop_map(|(conn, chunk)| Send { conn, chunk }),
        id().prop_map(|conn| AwaitAcks { conn }),
        prop_oneof![
            id().prop_map(|conn| Shutdown { conn }),
            id().prop_map(|conn| Close { conn }),
            id().prop_map(|conn| Abort { conn }),
        ],
        bufs().prop_map(|bufs| Return { bufs }),
        (id(), way(), any::<(u8, u8, u16)>(), buf()).prop_map(
            |(endpoint, (to, from), (hop_limit, traffic_class, len), buf)| {
                SendDatagram { endpoint, to, from, hop_limit, traffic_class, buf, len }
            }
        ),
        (id(), id(), any::<bool>()).prop_map(|(conn, acceptor, receives)| Claim {
            conn,
            acceptor,
            receives
        }),
        call().prop_map(Call),
    ];
    (any::<u64>(), command).prop_map(|(cookie, command)| Op { cookie, command })
}

fn answer() -> impl Strategy<Value = ServerAnswer> {
    use ServerAnswer::*;
    let empty = buf().prop_map(|buf| Chunk { buf, offset: 0, len: 0 });
    prop_oneof![
        Just(Done),
        id().prop_map(|listener| Listening { listener }),
        id().prop_map(|conn| Connecting { conn }),
        id().prop_map(|conn| AdoptedConnecting { conn }),
        proptest::sample::select(CloseCode::ALL).prop_map(|reason| ConnectFailed { reason }),
        id().prop_map(|endpoint| Bound { endpoint }),
        any::<u64>().prop_map(|value| Value { value }),
        (address(), proptest::option::of(address()))
            .prop_map(|(local, remote)| ServerAnswer::addresses(local, remote)),
        prop_oneof![chunk(), empty].prop_map(|chunk| Written { chunk }),
        (proptest::sample::select(Refusal::ALL), any::<u32>(), proptest::option::of(chunk()))
            .prop_map(|(refusal, detail, text)| Refused { refusal, detail, text }),
    ]
}

fn completion() -> impl Strategy<Value = Completion> {
    use Event::*;
    let answer = prop_oneof![
        answer().prop_map(Answer),
        bufs().prop_map(|bufs| Returned { bufs }),
        (id(), proptest::sample::select(Refusal::ALL))
            .prop_map(|(endpoint, refusal)| DatagramFailed { endpoint, refusal }),
    ];
    let stream = prop_oneof![
        (id(), id(), address(), any::<u32>()).prop_map(|(listener, conn, remote, waiting)| {
            Incoming { listener, conn, remote, waiting }
        }),
        prop_oneof![
            (id(), id()).prop_map(|(conn, acceptor)| Available { conn, acceptor }),
            (id(), id()).prop_map(|(conn, acceptor)| ClaimRefused { conn, acceptor }),
            id().prop_map(|conn| Withdrawn { conn }),
            (id(), proptest::option::of(address()))
                .prop_map(|(conn, local)| Connected { conn, local }),
        ],
        (id(), chunk()).prop_map(|(conn, chunk)| Received { conn, chunk }),
        (id(), any::<(u32, u32)>()).prop_map(|(conn, (chunks, queued_bytes))| Acked {
            conn,
            chunks,
            queued_bytes
        }),
        (id(), any::<u32>()).prop_map(|(conn, bytes)| Urgent { conn, bytes }),
        id().prop_map(|conn| PeerClosed { conn }),
        id().prop_map(|conn| UnsentBelow { conn }),
        (id(), proptest::sample::select(CloseCode::ALL))
            .prop_map(|(conn, reason)| Closed { conn, reason }),
        (id(), proptest::sample::select(CloseCode::ALL), any::<bool>())
            .prop_map(|(conn, reason, is_whole)| Broken { conn, reason, is_whole }),
    ];
    let datagram = prop_oneof![
        (id(), address(), address(), any::<(u8, u8, u16)>(), buf()).prop_map(
            |(endpoint, from, to, (hop_limit, traffic_class, len), buf)| {
                // Of one family.
                let to = if to.is_ipv4() == from.is_ipv4() { to.ip() } else { from.ip() };
                let arrival = Arrival { to, hop_limit, traffic_class };
                Datagram { endpoint, from: from.ip(), port: from.port(), arrival, buf, len }
            }
        ),
        (
            (address(), address()),
            any::<(u8, u8, u32, u8, u8)>(),
            proptest::option::of((buf(), 1..=u16::MAX))
        )
            .prop_map(|((by, to), numbers, quote)| {
                let (kind, code, info, hop_limit, traffic_class) = numbers;
                let arrival = Arrival { to: to.ip(), hop_limit, traffic_class };
                let (by, kind_and_code) = (by.ip(), (kind, code));
                Notice { by, kind_and_code, info, arrival, quote }
            }),
        (id(), address(), proptest::sample::select(UndeliveredCode::ALL))
            .prop_map(|(endpoint, to, why)| DatagramRefused { endpoint, to, why }),
    ];
    (any::<u64>(), prop_oneof![answer, stream, datagram])
        .prop_map(|(cookie, event)| Completion { cookie, event })
}

fn message() -> impl Strategy<Value = Message> {
    use MessageSubject::*;
    let acceptor = || {
        any::<(u16, u64, u32)>().prop_map(|(manager, id, enlistment)| AcceptorRef {
            manager,
            id,
            enlistment,
        })
    };
    let conn = || {
        any::<(u16, u64, u32)>().prop_map(|(transport, id, flow_hash)| ConnRef {
            transport,
            id,
            flow_hash,
        })
    };
    let of_conn = prop_oneof![
        conn().prop_map(|conn| Established { conn }),
        conn().prop_map(|conn| Reset { conn }),
        conn().prop_map(|conn| Refuse { conn }),
        (conn(), acceptor()).prop_map(|(conn, acceptor)| TakenBack { conn, acceptor }),
        (conn(), acceptor(), any::<u32>()).prop_map(|(conn, acceptor, how)| Assign {
            conn,
            acceptor,
            how
        }),
    ];
    let timed = || (acceptor(), any::<u64>());
    let of_acceptor = prop_oneof![
        acceptor().prop_map(|lost| AcceptAgain { lost }),
        acceptor().prop_map(|acceptor| Withdrawn { acceptor }),
        acceptor().prop_map(|acceptor| Left { acceptor }),
        acceptor().prop_map(|acceptor| Recall { acceptor }),
        (acceptor(), any::<Option<u16>>())
            .prop_map(|(acceptor, borrower)| Assigned { acceptor, borrower }),
        (acceptor(), any::<(u32, u16)>()).prop_map(|(acceptor, (credits, borrower))| {
            Returned { acceptor, credits, borrower }
        }),
        acceptor().prop_map(|acceptor| TimedOut { acceptor }),
        timed().prop_map(|(acceptor, service_time_ns)| Answered { acceptor, service_time_ns }),
        timed().prop_map(|(acceptor, service_time_ns)| Closed { acceptor, service_time_ns }),
        (timed(), any::<u32>()).prop_map(|((acceptor, service_time_ns), credits)| Offer {
            acceptor,
            service_time_ns,
            credits
        }),
        (timed(), any::<u32>()).prop_map(|((acceptor, service_time_ns), credits)| Granted {
            acceptor,
            service_time_ns,
            credits
        }),
    ];
    let of_session = prop_oneof![
        any::<u64>().prop_map(|session| Gone { session }),
        any::<(u16, u16)>().prop_map(|(lender, borrower)| Request { lender, borrower }),
        any::<(u64, u64, u32)>().prop_map(|(session, number, credit)| Accept {
            session,
            number,
            credit
        }),
        (acceptor(), any::<(u64, u64)>())
            .prop_map(|(acceptor, (session, number))| { Joined { acceptor, session, number } }),
    ];
    let subject = prop_oneof![of_conn, of_acceptor, of_session];
    (address(), subject).prop_map(|(listener, subject)| Message { listener, subject })
}

fn config(cases: u32) -> ProptestConfig {
    let cases = if cfg!(miri) { 2 } else { cases };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Parsers by direction: whether each accepts a record, and whether what it made encodes to it.
fn accepted(record: &Record) -> [bool; 3] {
    let same = |encoded: Record| assert_eq!(encoded, *record);
    [
        Op::parse(record).map(|op| same(op.record())).is_ok(),
        Completion::parse(record).map(|completion| same(completion.record())).is_ok(),
        Message::parse(record).map(|message| same(message.record())).is_ok(),
    ]
}

proptest! {
    #![proptest_config(config(512))]

    #[test]
    fn record_is_parsed_by_its_receiver_only(
        op in op(),
        completion in completion(),
        message in message(),
    ) {
        prop_assert_eq!(Op::parse(&op.record()), Ok(op));
        prop_assert_eq!(Completion::parse(&completion.record()), Ok(completion));
        prop_assert_eq!(Message::parse(&message.record()), Ok(message));
        prop_assert_eq!(accepted(&op.record()), [true, false, false]);
        prop_assert_eq!(accepted(&completion.record()), [false, true, false]);
        prop_assert_eq!(accepted(&message.record()), [false, false, true]);
    }

    #[test]
    fn a_changed_word_is_another_record_or_a_fault(
        op in op(),
        completion in completion(),
        index in 0usize..8,
        mask in any::<u64>(),
    ) {
        for record in [op.record(), completion.record()] {
            let mut words: [u64; 8] = cast(&record);
            words[index] ^= mask;
            // Nothing panics, and what is accepted encodes to the same bytes.
            accepted(&cast(&words));
        }
    }

    #[test]
    fn any_words_are_a_record_or_a_fault(mut words in any::<[u64; 8]>(), kind in 0u16..0x410) {
        words[0] = words[0] & !0xffff | u64::from(kind);
        accepted(&cast(&words));
    }
}

#[test]
fn a_kind_that_is_none_is_named() {
    for kind in [0, 0x100, 0x110, 0x200, 0x300, u16::MAX] {
        let record = Record::new(kind, 7);
        assert_eq!(accepted(&record), [false; 3]);
        assert_eq!(Op::parse(&record), Err(RecordFault::Kind { kind }));
    }
}

#[test]
fn unused_record_fields_must_be_zero() {
    let op = Op { cookie: 1, command: Command::Shutdown { conn: Id { index: 2, generation: 3 } } };
    let bits = Err(RecordFault::Bits { kind: 0x108 });
    let flagged = Record { flags: 1, ..op.record() };
    assert_eq!(Op::parse(&flagged), bits);
    assert_eq!(Op::parse(&op.record().with_count(1)), bits);
    assert_eq!(Op::parse(&Record { body: [0, 0, 0, 0, 1], ..op.record() }), bits);
    // An address of IPv4 has nothing behind its four bytes.
    let local = "10.1.2.3:80".parse().expect("an address");
    let mut pair = AddressPairRecord::default().with_local(local);
    pair.local[4] = 1;
    let record = Record::new(0x145, 0).with_pair(&pair);
    assert_eq!(Op::parse(&record), Err(RecordFault::Bits { kind: 0x145 }));
    // Flags beyond those that a call has, of listeners, connections and endpoints.
    let pair = AddressPairRecord::default().with_local(local).with_remote(local);
    for (kind, flags) in [(0x142, 16), (0x14b, 16), (0x152, 8)] {
        let record = Record { flags, ..Record::new(kind, 0).with_pair(&pair) };
        let transfer = Transfer::default().with_address(local);
        let record = if kind == 0x142 { record.with_transfer(&transfer) } else { record };
        assert_eq!(Op::parse(&record), Err(RecordFault::Bits { kind }));
    }
    // A truth value is 0 or 1.
    let record = Record::new(0x155, 0).with_count(2);
    assert_eq!(Op::parse(&record), Err(RecordFault::Bits { kind: 0x155 }));
}

#[test]
fn lists_are_as_long_as_they_say_and_never_longer_than_a_record() {
    let bufs = Bufs::of(BufId::from_bits(7));
    let back = Op { cookie: 0, command: Command::Return { bufs } }.record();
    let returned = Completion { cookie: 0, event: Event::Returned { bufs } }.record();
    let wanted = Op { cookie: 0, command: Command::Receive { conns: Ids::of(Id::default()) } };
    for count in [0, 11, u32::MAX] {
        let fault = Err(RecordFault::Count { count });
        assert_eq!(Op::parse(&back.with_count(count)), fault);
        assert_eq!(Completion::parse(&returned.with_count(count)).err(), fault.err());
    }
    let fault = Err(RecordFault::Count { count: 6 });
    assert_eq!(Op::parse(&wanted.record().with_count(6)), fault);
    // More than it says: the place behind the last must be zero.
    let two = Record { body: [7 | 8 << 32, 0, 0, 0, 0], ..back };
    assert_eq!(Op::parse(&two), Err(RecordFault::Bits { kind: 0x10b }));
    assert!(Op::parse(&two.with_count(2)).is_ok());
    let mut full = Bufs::default();
    (0..20).for_each(|index| full.push(BufId::from_bits(index)));
    assert!(full.is_full() && full.iter().count() == limits::BUFS_PER_RECORD);
    let mut full = Ids::default();
    (0..20).for_each(|index| full.push(Id { index, generation: 1 }));
    assert!(full.is_full() && full.iter().count() == limits::IDS_PER_RECORD);
    // Lists say nothing else.
    for other in [Record { flags: 1, ..back }, back.with_id(Id { index: 1, generation: 0 })] {
        assert_eq!(Op::parse(&other), Err(RecordFault::Bits { kind: 0x10b }));
    }
}

#[test]
fn families_codes_and_chunks_that_are_none_are_named() {
    let record = Record::new(0x145, 0)
        .with_pair(&AddressPairRecord { local_family: 5, ..AddressPairRecord::default() });
    assert_eq!(Op::parse(&record), Err(RecordFault::Family { family: 5 }));
    let record = Record::new(0x104, 0).with_pair(&AddressPairRecord::default());
    assert_eq!(Op::parse(&record), Err(RecordFault::Family { family: 0 }));
    for code in [0, 23, u32::MAX] {
        let record = Record::new(0x247, 0).with_count(code);
        assert_eq!(Completion::parse(&record), Err(RecordFault::Code { code }));
    }
    let max = limits::BUF_BYTES_MAX as u32;
    for (offset, len) in [(0, 0), (max, 1), (1, max), (u32::MAX, u32::MAX)] {
        let record = Record::new(0x106, 0);
        let record = record.with_transfer(&Transfer { offset, len, ..Transfer::default() });
        assert_eq!(Op::parse(&record), Err(RecordFault::Chunk { offset, len }));
    }
}

#[test]
fn record_layout_matches_the_picture() {
    let conn = Id { index: 0x0102_0304, generation: 0x0506_0708 };
    let chunk = Chunk { buf: BufId::from_bits(0x1112_1314), offset: 0x21, len: 0x31 };
    let op = Op { cookie: 0x4142_4344_4546_4748, command: Command::Send { conn, chunk } };
    assert_eq!(bytes::words_of::<Record>(), 8);
    let words: [std::sync::atomic::AtomicU64; 8] = Default::default();
    // SAFETY: as many words as the record has, and no others access them.
    unsafe { bytes::store(words.as_ptr(), &op.record()) };
    let mut found = [0; 64];
    for (to, word) in found.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.into_inner().to_ne_bytes());
    }
    let mut expected = [0; 64];
    expected[..2].copy_from_slice(&0x106u16.to_ne_bytes());
    expected[8..16].copy_from_slice(&op.cookie.to_ne_bytes());
    expected[16..20].copy_from_slice(&conn.index.to_ne_bytes());
    expected[20..24].copy_from_slice(&conn.generation.to_ne_bytes());
    expected[24..28].copy_from_slice(&chunk.buf.bits().to_ne_bytes());
    expected[28..32].copy_from_slice(&chunk.offset.to_ne_bytes());
    expected[32..36].copy_from_slice(&chunk.len.to_ne_bytes());
    assert_eq!(found, expected);
}
