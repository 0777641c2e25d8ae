//! Tokens: sessions without a path, and a daemon that ends with its users.

use rustix::net::socketpair;

use super::*;
use crate::attach::attach_by_token;
use crate::attach::message::encode_open;

fn sockets() -> (OwnedFd, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    pair.expect("two descriptors")
}

#[test]
fn token_opens_sessions_and_keeps_the_daemon() {
    let (ours, theirs) = sockets();
    let mut daemon = Daemon::start_with("token", Some(theirs));
    let nowhere = Path::new("/nonexistent/x");
    let client = attach_by_token(ours.as_fd(), nowhere, "test", &SessionSizes::LEAST);
    let client = client.expect("it is welcome");
    let Asked::Opened(identity, _) = daemon.next() else { panic!("a session opens") };
    assert_eq!((identity.pid, identity.name.as_str()), (std::process::id(), "test"));
    assert_eq!(daemon.next(), Asked::Begun);
    drop(ours);
    // It has a client.
    std::thread::sleep(2 * crate::limits::UNUSED_TIME);
    assert!(!daemon.thread.as_ref().is_some_and(JoinHandle::is_finished));
    drop(client);
    daemon.thread.take().expect("it ran").join().expect("it ends by itself");
}

#[test]
fn stray_bytes_and_descriptors_on_a_token_change_nothing() {
    let (ours, theirs) = sockets();
    let daemon = Daemon::start_with("stray", Some(theirs));
    let flags = SocketFlags::CLOEXEC;
    let unconnected = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let unconnected = unconnected.expect("a descriptor");
    let internet = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let internet = internet.expect("a descriptor");
    let file = std::fs::File::open("/dev/null").expect("Linux");
    let (one, other) = sockets();
    let open = encode_open();
    for (bytes, fds) in [
        (&b"megapipe"[..], vec![]),
        (&[0; 4_096][..], vec![]),
        (&open[..], vec![]),
        (&open[..], vec![file.as_fd()]),
        (&open[..], vec![internet.as_fd()]),
        (&open[..], vec![unconnected.as_fd()]),
        (&open[..], vec![one.as_fd(), other.as_fd()]),
        (&open[..9], vec![one.as_fd()]),
    ] {
        send(ours.as_fd(), bytes, &fds).expect("it is read");
    }
    let client = attach_by_token(ours.as_fd(), Path::new("x"), "test", &SessionSizes::LEAST);
    client.expect("the token works");
    for _ in 0..8 {
        assert_eq!(daemon.next(), Asked::Notice("stray".to_owned()));
    }
    assert!(matches!(daemon.next(), Asked::Opened(..)));
}
