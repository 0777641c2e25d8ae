//! Queries and answers: what is written is read, and nothing else is.

use std::net::SocketAddr;
use std::time::Duration;

use megapipe_stack::{ConnInfo, TcpState};

use super::super::{
    ManagedAcceptor, ManagedListener, ManagerOffer, QuotaUse, ServiceAcceptor, ServiceHandOver,
    ServicePick, SessionUse, SocketState, SocketTimer,
};
use super::*;
use crate::limits::{
    ACCEPTORS_LISTED_MAX, ADDRESSES_SHOWN, LANES_MAX, LISTENERS_PER_PAGE,
    MANAGED_LISTENERS_PER_PAGE, NOTES_SHOWN, PICKS_REMEMBERED, SESSIONS_PER_PAGE, SOCKETS_PER_PAGE,
    USERS_PER_PAGE,
};
use crate::policy::QuotaKind;

fn address() -> Option<SocketAddr> {
    Some("[2001:db8::1]:443".parse().expect("an address"))
}

fn daemon() -> ServiceDaemon {
    ServiceDaemon {
        pid: 7,
        uid: 1_000,
        version: "0.1.0".to_owned(),
        started: Duration::from_secs(1_700_000_000),
        shards: 2,
        managers: 2,
        link_servers: 1,
        sessions: 3,
        sessions_begun: 9,
        stray_messages: 4,
        layout: "TS2LS2CM2".to_owned(),
        sees_all: true,
    }
}

fn session() -> ServiceSession {
    let program = "x".repeat(64);
    let connections = SessionUse { now: 5, limit: 8 };
    let quotas = user().quotas.into_iter().take(8).collect();
    ServiceSession { key: 3, number: 1, program, connections, quotas, ..ServiceSession::default() }
}

fn listener() -> ServiceListener {
    let some = Some(Duration::from_micros(50));
    let acceptor = ServiceAcceptor { service_time: some, open: Some(1), ..Default::default() };
    let acceptors = vec![acceptor; ACCEPTORS_LISTED_MAX];
    let pick = ServicePick { service_time: some, ..ServicePick::default() };
    let picks = vec![pick; PICKS_REMEMBERED];
    let scheme = "tournament:999.99".to_owned();
    let hand_over = Some(ServiceHandOver { scheme, picks, ..ServiceHandOver::default() });
    let listener = ServiceListener { local: address(), shared_by: Some(0), ..Default::default() };
    ServiceListener { acceptors, hand_over, ..listener }
}

fn socket(with_info: bool) -> ServiceSocket {
    let some = Some(Duration::from_micros(50));
    let mut info = ConnInfo::default();
    (info.state, info.window_scale) = (TcpState::Established, Some((7, 7)));
    (info.srtt, info.min_rtt, info.ssthresh) = (some, some, Some(7));
    ServiceSocket {
        state: SocketState::Connection(TcpState::Established),
        local: address(),
        peer: address(),
        session: 3,
        uid: Some(1_000),
        timer: Some(SocketTimer::default()),
        info: with_info.then(|| Box::new(info)),
        ..ServiceSocket::default()
    }
}

fn user() -> ServiceUser {
    let names = QuotaKind::ALL.iter().map(|kind| kind.key().1.to_owned());
    let quotas = names.map(|name| (name, QuotaUse { now: 1, limit: 2, reached: 3 })).collect();
    ServiceUser { uid: 1_000, quotas }
}

fn manager() -> ServiceManager {
    let time = Duration::from_micros(50);
    let acceptor = ManagedAcceptor { service_time: Some(time), ..ManagedAcceptor::default() };
    let offer = ManagerOffer { service_time: time, ..ManagerOffer::default() };
    let listener = ManagedListener {
        local: address(),
        scheme: "tournament:999.99".to_owned(),
        acceptors: vec![acceptor; ACCEPTORS_LISTED_MAX],
        offers: vec![offer; LANES_MAX.into()],
        ..ManagedListener::default()
    };
    let listeners = vec![listener; MANAGED_LISTENERS_PER_PAGE];
    ServiceManager { number: 1, shard: Some(1), listeners }
}

fn shard() -> ServiceShard {
    ServiceShard {
        driver: "packet".to_owned(),
        notes: vec!["n".repeat(NOTES_SHOWN.1); NOTES_SHOWN.0],
        addresses: vec![address().expect("one").ip(); ADDRESSES_SHOWN],
        drops: vec![("a_reason_with_a_long_name".to_owned(), 1); 64],
        ..ServiceShard::default()
    }
}

fn link_server() -> ServiceLinkServer {
    ServiceLinkServer { number: 1, core: Some(3), cpu_ns: 7, ..ServiceLinkServer::default() }
}

/// The longest page of each subject.
fn pages() -> Vec<AnswerPage> {
    let bodies = [
        AnswerBody::Daemon(daemon()),
        AnswerBody::Shard(None),
        AnswerBody::Shard(Some(Box::new(shard()))),
        AnswerBody::Sessions(vec![session(); SESSIONS_PER_PAGE]),
        AnswerBody::Listeners(vec![listener(); LISTENERS_PER_PAGE]),
        AnswerBody::Sockets(vec![socket(false); SOCKETS_PER_PAGE.0]),
        AnswerBody::Sockets(vec![socket(true); SOCKETS_PER_PAGE.1]),
        AnswerBody::Users(vec![user(); USERS_PER_PAGE]),
        AnswerBody::Networks(ServiceNetworks {
            networks: vec![(address().expect("one").ip(), 24); ADDRESSES_SHOWN],
            gateways: vec![address().expect("one").ip(); ADDRESSES_SHOWN],
            shares_host_address: true,
        }),
        AnswerBody::Manager(None),
        AnswerBody::Manager(Some(Box::new(manager()))),
        AnswerBody::LinkServer(None),
        AnswerBody::LinkServer(Some(link_server())),
    ];
    bodies.map(|body| AnswerPage { next: Some(u64::MAX), body }).into()
}

#[test]
fn queries_and_pages_are_read_as_they_were_written() {
    for subject in QuerySubject::ALL {
        let query = ServiceQuery { from: 5, ..ServiceQuery::new(subject, 3) };
        assert_eq!(ServiceQuery::decode(&query.encode()), Some(query));
        assert!(is_query(&query.encode()));
    }
    for page in pages() {
        let bytes = page.encode(QUERY_VERSIONS.1);
        assert_eq!(AnswerPage::decode(&bytes), Some(page));
    }
}

#[test]
fn socket_states_have_an_index_each() {
    // As many as there are: three, and nine of connections.
    let indices: Vec<usize> = SocketState::ALL.into_iter().map(SocketState::index).collect();
    assert_eq!(indices, (0..3 + 9).collect::<Vec<_>>());
    for state in SocketState::ALL {
        let entry = ServiceSocket { state, ..ServiceSocket::default() };
        let page = AnswerPage::last(AnswerBody::Sockets(vec![entry]));
        assert_eq!(AnswerPage::decode(&page.encode(QUERY_VERSIONS.1)), Some(page));
    }
}

#[test]
fn longest_pages_fit_a_message() {
    for page in pages() {
        let len = page.encode(QUERY_VERSIONS.1).len();
        assert!(len <= ANSWER_BYTES_MAX, "{:?}: {len} bytes", page.subject());
    }
}

#[test]
fn cut_and_extended_queries_and_answers_are_none() {
    let query = ServiceQuery::new(QuerySubject::Sockets, 0).encode();
    let page = AnswerPage::last(AnswerBody::Sockets(vec![socket(true)])).encode(QUERY_VERSIONS.1);
    for len in 0..query.len() {
        assert_eq!(ServiceQuery::decode(&query[..len]), None, "{len}");
    }
    for len in 0..page.len() {
        assert_eq!(AnswerPage::decode(&page[..len]), None, "{len}");
    }
    assert_eq!(ServiceQuery::decode(&[&query[..], &[0]].concat()), None);
    assert_eq!(AnswerPage::decode(&[&page[..], &[0]].concat()), None);
    assert_eq!(AnswerPage::decode(&query), None);
    assert_eq!(ServiceQuery::decode(&page), None);
    assert!(!is_query(&page));
}

#[test]
fn announced_counts_without_entries_allocate_nothing() {
    let mut bytes = AnswerPage::last(AnswerBody::Sockets(Vec::new())).encode(QUERY_VERSIONS.1);
    let count = bytes.len() - 2;
    bytes[count..].copy_from_slice(&u16::MAX.to_ne_bytes());
    assert_eq!(AnswerPage::decode(&bytes), None);
    let too_long = vec![0; ANSWER_BYTES_MAX + 1];
    assert_eq!(AnswerPage::decode(&too_long), None);
}

#[test]
fn query_versions_are_negotiated() {
    let query = |versions| ServiceQuery { versions, ..ServiceQuery::new(QuerySubject::Daemon, 0) };
    let newest = QUERY_VERSIONS.1;
    assert_eq!(query((1, newest + 3)).version(), Some(newest));
    assert_eq!(query((newest + 1, newest + 3)).version(), None);
    assert_eq!(query((1, QUERY_VERSIONS.0 - 1)).version(), None);
    assert_eq!(ServiceQuery::decode(&query((0, 1)).encode()), None);
    assert_eq!(ServiceQuery::decode(&query((3, 2)).encode()), None);
    let page = AnswerPage::last(AnswerBody::Shard(None));
    assert_eq!(AnswerPage::decode(&page.encode(newest + 1)), None);
}

/// A daemon and a program of different builds refuse each other by their versions. If this fails,
/// an entry has changed: it needs another version, and then the number here.
#[test]
fn layout_of_entries_is_that_of_the_newest_version() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let shards = AnswerBody::Shard(Some(Box::new(ServiceShard::default())));
    let bodies = [
        AnswerBody::Daemon(daemon()),
        shards,
        AnswerBody::Sessions(vec![ServiceSession {
            quotas: vec![("x".to_owned(), QuotaUse::default())],
            ..ServiceSession::default()
        }]),
        AnswerBody::Listeners(vec![listener()]),
        AnswerBody::Sockets(vec![socket(true)]),
        AnswerBody::Users(vec![ServiceUser {
            quotas: vec![("x".to_owned(), QuotaUse::default())],
            ..ServiceUser::default()
        }]),
        AnswerBody::Networks(ServiceNetworks::default()),
        AnswerBody::Manager(Some(Box::new(manager()))),
        AnswerBody::LinkServer(Some(link_server())),
    ];
    for body in bodies {
        for byte in AnswerPage::last(body).encode(0) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    assert_eq!((QUERY_VERSIONS.1, format!("{hash:016x}")), (6, "670178f4234853ef".to_owned()));
}

/// The query of a process of version 1, as it was sent by the first that was released.
#[test]
fn recorded_query_of_version_1_is_read() {
    let recorded = include_bytes!("../../../testdata/query_v1.bin");
    let query = ServiceQuery::decode(recorded).expect("each daemon reads it");
    let expected = ServiceQuery::new(QuerySubject::Listeners, 0);
    assert_eq!(query, ServiceQuery { with_info: true, versions: (1, 1), ..expected });
    assert_eq!(query.version(), None, "it is refused, which names both ranges");
}

#[test]
fn texts_of_entries_have_no_control_characters() {
    let program = "\u{1b}[31mred".to_owned();
    let page = AnswerPage::last(AnswerBody::Sessions(vec![ServiceSession {
        program,
        ..ServiceSession::default()
    }]));
    let Some(AnswerPage { body: AnswerBody::Sessions(read), .. }) =
        AnswerPage::decode(&page.encode(QUERY_VERSIONS.1))
    else {
        panic!("it is a page")
    };
    assert_eq!(read[0].program, "[31mred");
}
