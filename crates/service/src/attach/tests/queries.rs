//! Processes that ask: an honest one, and each way to ask too much.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::limits::{ANSWER_BYTES_MAX, QUERIERS_OF_USER_MAX};
use crate::observe::QUERY_VERSIONS;

fn query(subject: QuerySubject) -> Vec<u8> {
    ServiceQuery::new(subject, 0).encode()
}

/// The next page. `None`: the daemon has closed the connection.
fn page(socket: &OwnedFd) -> Option<AnswerPage> {
    wait_readable([Some(socket.as_fd())], Some(PATIENCE)).expect("no signal");
    match receive_up_to(socket.as_fd(), ANSWER_BYTES_MAX).expect("it can be read") {
        Reception::Message(message) => Some(AnswerPage::decode(&message.bytes).expect("a page")),
        Reception::Closed => None,
        other => panic!("{other:?}"),
    }
}

fn refusal(socket: &OwnedFd) -> Refused {
    let refused = HelloAnswer::decode(&answer(socket).expect("an answer"));
    let Ok(HelloAnswer::Refused(refused)) = refused else { panic!("{refused:?}") };
    refused
}

#[test]
fn queries_are_answered_one_after_the_other() {
    let daemon = Daemon::start("queries");
    let observer = ServiceObserver::connect(&daemon.path()).expect("it answers");
    assert_eq!(observer.daemon().uid, rustix::process::geteuid().as_raw());
    let socket = connected(&daemon.path());
    for from in 0..3 {
        let query = ServiceQuery { from, ..ServiceQuery::new(QuerySubject::Sockets, 0) };
        send(socket.as_fd(), &query.encode(), &[]).expect("it is sent");
        assert_eq!(page(&socket).expect("a page").next, Some(from + 1));
    }
    // No session was opened, and none ends.
    drop((observer, socket));
    attach_to(&daemon.path(), "test").expect("it is welcome");
    assert!(matches!(daemon.next(), Asked::Opened(..)));
}

#[test]
fn invalid_query_ends_the_connection() {
    let daemon = Daemon::start("invalid");
    let daemon_query = query(QuerySubject::Daemon);
    let longer = [&daemon_query[..], &[0]].concat();
    for bytes in [&daemon_query[..daemon_query.len() - 1], &longer, &hello()] {
        let socket = connected(&daemon.path());
        send(socket.as_fd(), &daemon_query, &[]).expect("it is sent");
        page(&socket).expect("a page");
        send(socket.as_fd(), bytes, &[]).expect("it is sent");
        assert_eq!(page(&socket), None);
        assert!(matches!(daemon.next(), Asked::Notice(_)));
    }
    let future = ServiceQuery { versions: (7, 9), ..ServiceQuery::new(QuerySubject::Daemon, 0) };
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &future.encode(), &[]).expect("it is sent");
    let refused = refusal(&socket);
    assert_eq!(refused.code, RefusalCode::Version);
    for version in [7, 9, QUERY_VERSIONS.1] {
        assert!(refused.sentence.contains(&version.to_string()), "{}", refused.sentence);
    }
    assert_eq!(page(&socket), None);
}

#[test]
fn queriers_of_a_user_are_bounded() {
    let daemon = Daemon::start("queriers");
    let queriers: Vec<_> = (0..QUERIERS_OF_USER_MAX)
        .map(|_| {
            let socket = connected(&daemon.path());
            send(socket.as_fd(), &query(QuerySubject::Daemon), &[]).expect("it is sent");
            page(&socket).expect("a page");
            socket
        })
        .collect();
    let socket = connected(&daemon.path());
    send(socket.as_fd(), &query(QuerySubject::Daemon), &[]).expect("it is sent");
    let refused = refusal(&socket);
    assert_eq!(refused.code, RefusalCode::Busy, "{}", refused.sentence);
    // They do not keep clients from attaching, and there is room when one is gone.
    attach_to(&daemon.path(), "test").expect("it is welcome");
    drop(queriers);
    ServiceObserver::connect(&daemon.path()).expect("it tries again");
}

#[test]
fn querier_without_end_does_not_stop_handshakes() {
    let daemon = Daemon::start("endless");
    let (path, is_over) = (daemon.path(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let querier = scope.spawn(|| {
            let socket = connected(&path);
            let mut pages = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                send(socket.as_fd(), &query(QuerySubject::Sockets), &[]).expect("it is sent");
                pages += u64::from(page(&socket).is_some());
            }
            pages
        });
        for _ in 0..20 {
            attach_to(&path, "test").expect("it is welcome");
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(querier.join().expect("it ends") > 0);
    });
    // A query that does not wait for the answer before ends its connection.
    let socket = connected(&daemon.path());
    let mut is_closed = false;
    for _ in 0..100_000 {
        is_closed |= send(socket.as_fd(), &query(QuerySubject::Sockets), &[]).is_err();
    }
    assert!(is_closed);
}

#[test]
fn nonsense_of_a_daemon_is_an_error_of_the_query() {
    let folder = std::env::temp_dir().join(format!("mp-attach-{}-qliar", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("socket");
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let listener = listener.expect("a socket");
    let bound = megapipe_link::BoundPath::listen(listener.as_fd(), &path, 8).expect("it is free");
    let daemon = AnswerPage::last(AnswerBody::Daemon(ServiceDaemon {
        shards: 1,
        ..ServiceDaemon::default()
    }));
    let same_page = AnswerPage { next: Some(0), body: AnswerBody::Sockets(Vec::new()) };
    let other_subject = AnswerPage::last(AnswerBody::Sessions(Vec::new()));
    let answers = [
        vec![b"nonsense".to_vec()],
        vec![vec![0; ANSWER_BYTES_MAX + 1]],
        vec![other_subject.encode(QUERY_VERSIONS.1)],
        vec![daemon.encode(QUERY_VERSIONS.1), same_page.encode(QUERY_VERSIONS.1)],
        vec![daemon.encode(QUERY_VERSIONS.1), other_subject.encode(QUERY_VERSIONS.1)],
    ];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for messages in &answers {
                let client = rustix::net::accept(&listener).expect("a client comes");
                for bytes in messages {
                    let _ = wait_readable([Some(client.as_fd())], Some(PATIENCE));
                    let _ = receive(client.as_fd());
                    send(client.as_fd(), bytes, &[]).expect("it is sent");
                }
                let _ = wait_readable([Some(client.as_fd())], Some(PATIENCE));
            }
        });
        for number in 0..answers.len() {
            let asked = ServiceObserver::connect(&path).and_then(|mut it| it.sockets(false));
            let error = asked.expect_err("no correct daemon answers so");
            assert!(matches!(error, ServiceQueryError::Invalid { .. }), "{number}: {error}");
        }
    });
    drop(bound);
    let _ = std::fs::remove_dir(&folder);
    let error = ServiceObserver::connect(&path).expect_err("nothing listens there");
    assert!(error.to_string().contains(path.to_str().expect("text")), "{error}");
}
