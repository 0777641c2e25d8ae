//! Listeners on a link that shares the host's address: each needs the sockets that its client has
//! passed.

use std::os::fd::BorrowedFd;

use megapipe_link::{
    Caps, FrameCounters, Link, LinkError, NetworkNamespace, Ownership, RxMetadata, Transport,
    TxMetadata, bind_port,
};

use rustix::net::getsockname;

use super::many_sessions::TestShard;
use super::*;
use megapipe_stack::DatagramSharing;

use crate::begin::ConnectStart;
use crate::descriptors::{PassPurpose, PassedDescriptors, ShareToken};
use crate::error::PortError;
use crate::limits::MOVED_LOOK_PERIOD;
use crate::policy::{PolicyRefusal, PortGrants, Quotas, SessionRights};

/// A link that shares an address with a host, of which it changes nothing.
struct SharedAddress(Pair, Caps);

impl SharedAddress {
    fn new(link: Pair) -> Self {
        let caps = Caps { shares_host_address: true, ..link.caps().clone() };
        Self(link, caps)
    }
}

impl Link for SharedAddress {
    fn caps(&self) -> &Caps {
        &self.1
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        self.0.rx_burst(max, each)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        self.0.tx_burst(max, fill)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.0.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.0.wait_fd()
    }

    fn counters(&self) -> FrameCounters {
        self.0.counters()
    }

    fn set_ownership(&mut self, _: &Ownership) -> Result<(), LinkError> {
        Ok(())
    }
}

/// The limits of a user without rights of its own.
fn of_user(passed: &Arc<PassedDescriptors>) -> SessionLimits {
    let rights = SessionRights::new(Arc::default(), Quotas::from_each(|_| 9), PortGrants::All);
    let (rights, descriptors) = (Some(Arc::new(rights)), Some(Arc::clone(passed)));
    SessionLimits { rights, descriptors, ..SessionLimits::WHOLE_SHARD }
}

#[test]
fn listener_needs_the_reservation_that_its_call_names() {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let shard = TestShard::start(SharedAddress::new(link), 1);
    let namespace = NetworkNamespace::current().expect("Linux 5.14");
    let passed = Arc::new(PassedDescriptors::new(Some(namespace)));
    let (mut session, id) = shard.attach(of_user(&passed));
    let local = SocketAddr::from(([10, 0, 0, 1], 80));
    let mut refused =
        |cookie| match session.listen_reserved((local, cookie), 10, Sharing::default()) {
            Err(PortError::Policy(PolicyRefusal::Port(text))) => {
                assert!(text.contains("kernel decides") && text.contains("10.0.0.1:80"), "{text}");
            }
            other => panic!("{other:?}"),
        };
    refused(0);
    refused(7);
    // One of UDP, at another address.
    let socket = bind_port(Transport::Udp, ([127, 0, 0, 1], 0).into(), true).expect("a free port");
    passed.keep((3, PassPurpose::UdpPort), vec![socket], None).expect("it is one");
    refused(3);
    // Datagrams, and connections from a port of the program's choice.
    let by_rule = |error: PolicyRefusal, part: &str| {
        let text = error.to_string();
        assert!(text.contains("kernel decides") && text.contains(part), "{text}");
    };
    let sharing = DatagramSharing::default();
    match session.bind_reserved((local, 3), sharing) {
        Err(PortError::Policy(refusal)) => by_rule(refusal, "UDP 10.0.0.1:80"),
        other => panic!("{other:?}"),
    }
    let from = |local| (SocketAddr::from(([10, 0, 0, 2], 80)), Some(local), 7);
    match session.connect_reserved(from(local), ConnectStart::default()) {
        Err(PortError::Policy(refusal)) => by_rule(refusal, "TCP 10.0.0.1:80"),
        other => panic!("{other:?}"),
    }
    let any = SocketAddr::from(([10, 0, 0, 1], 0));
    session.bind_reserved((any, 0), sharing).expect("the stack chooses the port");
    assert_eq!(shard.counters(id).refused, 5);
    // Root has all ports, and needs none.
    let (mut root, _) = shard.attach(SessionLimits::WHOLE_SHARD);
    root.listen_reserved((local, 0), 10, Sharing::default()).expect("the port is free");
}

/// The kernel's reservation is the listener's: it outlives the session that has passed it.
#[test]
fn reservation_of_a_shared_listener_lives_until_its_last_owner_ends() {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let shard = TestShard::start(SharedAddress::new(link), 1);
    let namespace = NetworkNamespace::current().expect("Linux 5.14");
    let passed = Arc::new(PassedDescriptors::new(Some(namespace)));
    let socket = bind_port(Transport::Tcp, ([0, 0, 0, 0], 0).into(), true).expect("a free port");
    let local = getsockname(&socket).expect("it is bound");
    let local = SocketAddr::try_from(local).expect("IPv4");
    passed.keep((1, PassPurpose::TcpPort), vec![socket], None).expect("it is one");
    let token = ShareToken::new(7, None).expect("no quota");
    passed.keep_token(2, (Arc::clone(&token), true)).expect("there is room");
    let (mut maker, id) = shard.attach(of_user(&passed));
    let listener = maker.listen_reserved((local, 1), 10, Sharing::default()).expect("reserved");
    passed.forget(1);
    maker.hold_listener(2, listener).expect("it is its own");
    let is_free = || match std::net::TcpListener::bind(local) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
            false
        }
    };
    shard.detach(id);
    shard.await_sessions(0);
    drop(passed);
    // Longer than the time after which unused ports are looked for.
    std::thread::sleep(2 * MOVED_LOOK_PERIOD);
    assert!(!is_free(), "the token owns the listener");
    // Another user, which may pass nothing, adopts it.
    let its = Arc::new(PassedDescriptors::new(None));
    its.keep_token(2, (Arc::clone(&token), false)).expect("there is room");
    let (mut child, _) = shard.attach(SessionLimits { user: 5, key: 9, ..of_user(&its) });
    let ((adopted, options), is_new) = child.adopt_listener(2).expect("the token owns it");
    assert_eq!((options.address, is_new), (local, true));
    token.end();
    shard.change_token(TokenChange::End(7));
    std::thread::sleep(2 * MOVED_LOOK_PERIOD);
    assert!(!is_free(), "a session owns the listener");
    child.unlisten(adopted);
    let start = Instant::now();
    while !is_free() {
        assert!(start.elapsed() < PATIENCE, "the last owner has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}
