//! TCP Fast Open (RFC 7413), as server and as client.

use super::peer::*;
use super::segments::closed;
use super::*;
use crate::counters::Drop;
use crate::error::CloseReason;
use crate::limits::{FAST_OPEN_BLOCKED, FAST_OPEN_COOKIE_PERIOD, FAST_OPEN_RESET_PENDING};
use crate::wire::tcp::{Cookie, Options};

const SYN: u8 = 0x02;
const SA: u8 = 0x12;
const ACK: u8 = 0x10;
const PA: u8 = 0x18;
const RA: u8 = 0x14;
const FA: u8 = 0x11;

pub(super) fn with(cookie: Cookie) -> Options {
    Options { fast_open: Some(cookie), ..plain() }
}

/// The peer sends a SYN with these options from a new port.
pub(super) fn syn(peer: &mut Peer, options: Options, data: &[u8]) {
    peer.remote.1 += 1;
    peer.options = options;
    peer.inject(S, 0, 0, data);
    peer.options = Options::default();
}

/// A listener with Fast Open, and the cookie that it gave the peer.
pub(super) fn server(pending_max: u32) -> (Peer, Cookie, ListenerId) {
    let mut peer = Peer::new(|_| {});
    let id = peer.listen();
    peer.host.tcp.set_listener_fast_open(id, pending_max).unwrap();
    syn(&mut peer, with(Cookie::REQUEST), &[]);
    let cookie = peer.out()[0].options.fast_open.unwrap();
    peer.inject(R, 1, 0, &[]);
    (peer, cookie, id)
}

/// The connection reported last.
pub(super) fn incoming(peer: &mut Peer) -> Option<ConnId> {
    peer.host.collect(peer.now);
    let conn = peer.host.events.iter().rev().find_map(|event| match event {
        Event::Incoming { conn, .. } => Some(*conn),
        _ => None,
    })?;
    peer.host.tcp.receive(conn).unwrap();
    peer.host.collect(peer.now);
    Some(conn)
}

fn state(peer: &Peer, conn: ConnId) -> TcpState {
    peer.host.tcp.info(conn).unwrap().state
}

#[test]
fn fast_open_is_off_by_default() {
    let mut peer = Peer::new(|_| {});
    peer.listen();
    syn(&mut peer, with(Cookie::REQUEST), b"data");
    let out = peer.out();
    assert_eq!((out[0].core(), out[0].options.fast_open), ((SA, 0, 1, 0), None));
    syn(&mut peer, with(Cookie::new(&[1; 8]).unwrap()), b"data");
    let out = peer.out();
    assert_eq!((out[0].core(), out[0].options.fast_open), ((SA, 0, 1, 0), None));
    let id = peer.host.tcp.listeners.id(0);
    peer.host.tcp.set_listener_fast_open(id, 5).unwrap();
    peer.host.tcp.set_listener_fast_open(id, 0).unwrap();
    syn(&mut peer, with(Cookie::REQUEST), b"data");
    assert_eq!(peer.out()[0].options.fast_open, None);
}

#[test]
fn fast_open_server_hands_out_a_cookie_that_is_the_peers_own() {
    let (mut peer, cookie, _) = server(5);
    assert_eq!(cookie.bytes().len(), 8);
    // The same for each port, another for each host.
    syn(&mut peer, with(Cookie::REQUEST), b"data");
    let out = peer.out();
    assert_eq!((out[0].core(), out[0].options.fast_open), ((SA, 0, 1, 0), Some(cookie)));
    peer.remote.0 = Ipv4Addr::new(10, 0, 0, 3).into();
    syn(&mut peer, with(Cookie::REQUEST), &[]);
    assert_ne!(peer.out()[0].options.fast_open, Some(cookie));
    // Sent again, the SYN-ACK has it too.
    let again = peer.wait(1_100);
    assert!(!again.is_empty() && again.iter().all(|out| out.options.fast_open.is_some()));
}

#[test]
fn fast_open_server_takes_and_answers_the_data_of_a_syn() {
    let (mut peer, cookie, _) = server(5);
    syn(&mut peer, with(cookie), b"question");
    let conn = incoming(&mut peer).expect("incoming");
    assert_eq!(peer.host.received, b"question");
    assert_eq!(state(&peer, conn), TcpState::SynReceived);
    peer.send(conn, b"answer");
    assert_eq!(peer.cores(), [(SA, 0, 9, 0), (PA, 1, 9, 6)]);
    peer.inject(A, 9, 7, &[]);
    assert_eq!(state(&peer, conn), TcpState::Established);
    assert_eq!(peer.host.tcp.info(conn).unwrap().queued_bytes, 0);
    peer.inject(A, 9, 7, b"more");
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"questionmore");
    assert_eq!(peer.host.base.counters.totals.fast_opens, 1);
    // What came with the handshake's last ACK counts as always.
    syn(&mut peer, with(cookie), b"1");
    let conn = incoming(&mut peer).expect("incoming");
    peer.out();
    peer.inject(F | A, 2, 1, b"2");
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"questionmore12");
    assert_eq!(state(&peer, conn), TcpState::CloseWait);
}

#[test]
fn fast_open_server_refuses_cookies_that_are_not_its_own() {
    let (mut peer, cookie, _) = server(5);
    let mut forged = cookie.bytes().to_vec();
    forged[7] ^= 1;
    let longer = [cookie.bytes(), &[0, 0]].concat();
    for wrong in [&forged[..], &longer, &cookie.bytes()[..4]] {
        syn(&mut peer, with(Cookie::new(wrong).unwrap()), b"data");
        let out = peer.out();
        assert_eq!((out[0].core(), out[0].options.fast_open), ((SA, 0, 1, 0), Some(cookie)));
    }
    // Another host has another cookie.
    peer.remote.0 = Ipv4Addr::new(10, 0, 0, 3).into();
    syn(&mut peer, with(cookie), b"data");
    assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
    peer.remote.0 = Ipv4Addr::new(10, 0, 0, 2).into();
    assert_eq!(incoming(&mut peer), None);
    // One is good for its period and the next.
    peer.now += FAST_OPEN_COOKIE_PERIOD;
    syn(&mut peer, with(cookie), b"data");
    assert!(peer.cores().contains(&(SA, 0, 5, 0)));
    peer.now += FAST_OPEN_COOKIE_PERIOD;
    syn(&mut peer, with(cookie), b"data");
    assert!(peer.cores().contains(&(SA, 0, 1, 0)));
}

#[test]
fn fast_open_pending_limit_survives_resets() {
    let (mut peer, cookie, _) = server(2);
    let open = |peer: &mut Peer| {
        syn(peer, with(cookie), b"data");
        let taken = peer.cores() == [(SA, 0, 5, 0)];
        (taken, (peer.remote.1, peer.iss))
    };
    let on = |peer: &mut Peer, (port, iss), flags| {
        let last = (peer.remote.1, peer.iss);
        (peer.remote.1, peer.iss) = (port, iss);
        peer.inject(flags, 5, 1, &[]);
        (peer.remote.1, peer.iss) = last;
    };
    let (first, one) = open(&mut peer);
    assert!(first && open(&mut peer).0);
    assert!(!open(&mut peer).0, "a handshake like any other");
    // One that is established makes room.
    on(&mut peer, one, A);
    let (taken, one) = open(&mut peer);
    assert!(taken);
    // A RST may be that of a victim whose address was forged: it makes none for a while.
    on(&mut peer, one, R);
    assert!(!open(&mut peer).0);
    peer.now += FAST_OPEN_RESET_PENDING;
    assert!(open(&mut peer).0);
}

#[test]
fn fast_open_syn_ack_is_sent_again() {
    let (mut peer, cookie, _) = server(5);
    syn(&mut peer, with(cookie), b"data");
    let conn = incoming(&mut peer).expect("incoming");
    assert_eq!(peer.cores(), [(SA, 0, 5, 0)]);
    // The peer's SYN comes again, with and without what it carried.
    peer.options = plain();
    peer.inject(S, 0, 0, &[]);
    peer.options = with(cookie);
    peer.inject(S, 0, 0, b"data");
    peer.options = Options::default();
    assert_eq!(peer.cores(), [(SA, 0, 5, 0)]);
    let again: Vec<_> = peer.wait(3_500).iter().map(Out::core).collect();
    assert_eq!(again, [(SA, 0, 5, 0), (SA, 0, 5, 0)]);
    // With data in flight both are sent again.
    peer.send(conn, b"answer");
    assert_eq!(peer.cores(), [(PA, 1, 5, 6)]);
    let again: Vec<_> = peer.wait(5_000).iter().map(Out::core).collect();
    assert!(again.contains(&(SA, 0, 5, 0)) && again.contains(&(PA, 1, 5, 6)), "{again:?}");
    peer.inject(A, 5, 7, &[]);
    assert_eq!(state(&peer, conn), TcpState::Established);
    assert_eq!(peer.wait(60_000).len(), 0);
    // A peer that never answers is given up.
    syn(&mut peer, with(cookie), b"data");
    let conn = incoming(&mut peer).expect("incoming");
    peer.wait(200_000);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::TimedOut));
}

#[test]
fn fast_open_connection_ends_before_its_handshake() {
    let (mut peer, cookie, _) = server(5);
    // A FIN waits for the ACK of our SYN.
    syn(&mut peer, with(cookie), b"data");
    let conn = incoming(&mut peer).expect("incoming");
    peer.send(conn, b"answer");
    peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).unwrap();
    assert!(!peer.host.send(peer.now, conn, b"x"), "it is closed");
    assert!(peer.host.with(peer.now, |tcp, context| tcp.shutdown(context, conn)).is_err());
    assert_eq!(peer.cores(), [(SA, 0, 5, 0), (PA, 1, 5, 6)]);
    peer.inject(A, 5, 7, &[]);
    assert_eq!(peer.cores(), [(FA, 7, 5, 0)]);
    // An ACK of what was never sent is answered by a RST.
    syn(&mut peer, with(cookie), b"data");
    let conn = incoming(&mut peer).expect("incoming");
    peer.out();
    peer.inject(A, 5, 9, &[]);
    assert_eq!(peer.cores(), [(0x04, 9, 0, 0)]);
    assert_eq!(state(&peer, conn), TcpState::SynReceived);
    // The peer's RST, and ours.
    peer.inject(R, 5, 0, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::ResetByPeer));
    syn(&mut peer, with(cookie), b"data");
    let conn = incoming(&mut peer).expect("incoming");
    peer.out();
    peer.host.with(peer.now, |tcp, context| tcp.abort(context, conn)).unwrap();
    assert_eq!(peer.cores(), [(RA, 1, 5, 0)]);
    // A connection that was not accepted ends with its listener.
    syn(&mut peer, with(cookie), b"data");
    peer.out();
    let id = peer.host.tcp.listeners.id(0);
    peer.host.with(peer.now, |tcp, context| tcp.unlisten(context, id)).unwrap();
    let core = (RA, 1, 5, 0);
    assert!(peer.cores().contains(&core) || peer.host.events.len() > 3);
    assert_eq!(peer.host.tcp.set_listener_fast_open(id, 1), Err(crate::OperationError::Unknown));
}

#[test]
fn fast_open_without_a_buffer_acknowledges_the_syn_alone() {
    let (mut peer, cookie, _) = server(5);
    while peer.host.memory.alloc(PoolId(0)).is_some() {}
    syn(&mut peer, with(cookie), b"data");
    assert_eq!(peer.cores(), [(SA, 0, 1, 0)]);
    assert_eq!(peer.dropped(Drop::NoBuffer), 1);
}

/// A connection that asks for Fast Open, with `data` queued.
pub(super) fn client(peer: &mut Peer, data: &[u8]) -> (ConnId, Out) {
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let conn = peer.host.with(peer.now, |tcp, context| {
        let conn = tcp.connect(context, remote, None, PoolId(0), &|_| true).unwrap();
        tcp.set_option(context, conn, ConnOption::FastOpen).unwrap();
        conn
    });
    for part in data.chunks(2000) {
        peer.send(conn, part);
    }
    peer.host.tcp.receive(conn).unwrap();
    let syn = the_syn(peer.out());
    (conn, syn)
}

/// The SYN among what leaves, which may be of other connections.
fn the_syn(out: Vec<Out>) -> Out {
    out.into_iter().find(|out| out.flags.contains(S)).unwrap()
}

/// A client that knows the peer's cookie.
pub(super) fn client_with_cookie() -> (Peer, Cookie, ConnId) {
    let mut peer = Peer::new(|_| {});
    let (conn, syn) = client(&mut peer, b"question");
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 0), Some(Cookie::REQUEST)));
    let cookie = Cookie::new(&[1, 2, 3, 4, 5, 6]).unwrap();
    peer.options = with(cookie);
    peer.inject(S | A, 0, 1, &[]);
    peer.options = Options::default();
    // The data leaves with the handshake's last ACK.
    assert_eq!(peer.cores(), [(PA, 1, 1, 8)]);
    assert_eq!(state(&peer, conn), TcpState::Established);
    (peer, cookie, conn)
}

#[test]
fn fast_open_client_sends_data_with_its_syn() {
    let (mut peer, cookie, _) = client_with_cookie();
    let (conn, syn) = client(&mut peer, b"question");
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 8), Some(cookie)));
    peer.options = plain();
    peer.inject(S | A, 0, 9, b"answer");
    peer.options = Options::default();
    peer.host.collect(peer.now);
    assert_eq!(peer.host.received, b"answer");
    assert_eq!(peer.cores(), [(ACK, 9, 7, 0)]);
    assert_eq!(peer.host.tcp.info(conn).unwrap().queued_bytes, 0);
    peer.send(conn, b"more");
    assert_eq!(peer.cores(), [(PA, 9, 7, 4)]);
}

#[test]
fn fast_open_client_sends_what_its_syn_did_not_bring() {
    for acknowledged in [0, 300, 960] {
        let (mut peer, ..) = client_with_cookie();
        let (conn, syn) = client(&mut peer, &[7; 2500]);
        // The MSS of before, 1000, less the room of all options.
        assert_eq!(syn.core(), (SYN, 0, 0, 960));
        // Too much is not ours.
        peer.options = plain();
        peer.inject(S | A, 0, 962, &[]);
        assert_eq!(peer.cores(), [(0x04, 962, 0, 0)]);
        peer.inject(S | A, 0, 1 + acknowledged, &[]);
        peer.options = Options::default();
        let sent = peer.out();
        assert_eq!(sent[0].seq, 1 + acknowledged);
        let bytes: usize = sent.iter().map(|out| out.len).sum();
        assert_eq!(bytes, 2500 - acknowledged as usize);
        peer.inject(A, 1, 2501, &[]);
        assert_eq!(peer.host.tcp.info(conn).unwrap().queued_bytes, 0);
    }
}

#[test]
fn fast_open_client_falls_back_where_syns_with_data_are_lost() {
    let (mut peer, cookie, _) = client_with_cookie();
    client(&mut peer, b"question");
    let again = the_syn(peer.wait(1_500));
    assert_eq!((again.core(), again.options.fast_open), ((SYN, 0, 0, 0), None));
    peer.options = plain();
    peer.inject(S | A, 0, 1, &[]);
    peer.options = Options::default();
    assert!(peer.cores().contains(&(PA, 1, 1, 8)));
    // For a while nothing of it is tried; then it is.
    let (_, syn) = client(&mut peer, b"question");
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 0), None));
    peer.now += FAST_OPEN_BLOCKED;
    let (conn, syn) = client(&mut peer, b"question");
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 8), Some(cookie)));
    // The first SYN arrived after all, and only its answer was lost.
    peer.wait(1_500);
    peer.options = plain();
    peer.inject(S | A, 0, 9, &[]);
    peer.options = Options::default();
    assert!(peer.cores().contains(&(ACK, 9, 1, 0)));
    assert_eq!(state(&peer, conn), TcpState::Established);
    assert_eq!(client(&mut peer, b"question").1.len, 8);
}

#[test]
fn fast_open_client_that_ends_gives_its_data_back() {
    let (mut peer, ..) = client_with_cookie();
    let held = peer.host.memory.in_use();
    let (conn, _) = client(&mut peer, b"question");
    peer.options = plain();
    peer.inject(R | A, 0, 1, &[]);
    assert_eq!(peer.last_event(), closed(conn, CloseReason::Refused));
    let (conn, _) = client(&mut peer, b"question");
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    assert_eq!(peer.host.memory.in_use(), held);
    // Once the SYN has left it is too late for the option, and data has to wait for the handshake.
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let now = peer.now;
    let connect = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
        tcp.connect(context, remote, None, PoolId(0), &|_| true)
    };
    let conn = peer.host.with(now, connect).unwrap();
    peer.out();
    peer.host
        .with(now, |tcp, context| tcp.set_option(context, conn, ConnOption::FastOpen))
        .unwrap();
    assert!(!peer.host.send(now, conn, b"x"));
}

#[test]
fn fast_open_moves_every_byte_under_loss() {
    let mut fast_opens = 0;
    for seed in 0..40_u32 {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state
        };
        let mut pair = Pair::new(|_| {});
        let id = pair.listen();
        pair.b.tcp.set_listener_fast_open(id, 8).unwrap();
        let mut expected = 0;
        for round in 0..4 {
            let lossy = round > 0;
            let percent = if lossy { 5 + seed % 30 } else { 0 };
            let mut dice = random();
            pair.lose = Box::new(move |_, _| {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (dice >> 8) % 100 < percent
            });
            let question = vec![round as u8; 1 + (random() % 3000) as usize];
            expected += question.len();
            let a = pair.connect();
            let now = pair.now;
            pair.a
                .with(now, |tcp, context| tcp.set_option(context, a, ConnOption::FastOpen))
                .unwrap();
            for part in question.chunks(1000) {
                assert!(pair.a.send(now, a, part));
            }
            pair.a.tcp.receive(a).unwrap();
            pair.run(20);
            let b = (0..).find_map(|_| {
                pair.run(1_000);
                pair.b.events.iter().rev().find_map(|event| match event {
                    Event::Incoming { conn, .. } => Some(*conn),
                    _ => None,
                })
            });
            let b = b.unwrap();
            pair.b.tcp.receive(b).unwrap();
            assert!(pair.b.send(pair.now, b, b"answer"), "seed {seed} round {round}");
            pair.run(100_000);
            assert_eq!(pair.b.received.len(), expected, "seed {seed} round {round}");
            assert_eq!(pair.a.received.len(), 6 * (round + 1), "seed {seed} round {round}");
            for (host, conn) in [(&mut pair.a, a), (&mut pair.b, b)] {
                host.with(pair.now, |tcp, context| tcp.close(context, conn)).unwrap();
                host.events.clear();
            }
            pair.lose = Box::new(|_, _| false);
            pair.run(300_000);
        }
        fast_opens += pair.b.base.counters.totals.fast_opens;
        assert_eq!(pair.a.memory.in_use() + pair.b.memory.in_use(), 0, "seed {seed}");
        assert_eq!((pair.a.tcp.places.len(), pair.b.tcp.places.len()), (0, 0), "seed {seed}");
    }
    assert!(fast_opens > 40, "{fast_opens} of 120");
}

#[test]
fn fast_open_client_holds_its_syn_until_data_comes() {
    let (mut peer, cookie, _) = client_with_cookie();
    let remote = SocketAddr::new(peer.remote.0, peer.remote.1);
    let held = |peer: &mut Peer| {
        peer.host.with(peer.now, |tcp, context| {
            let conn = tcp.connect(context, remote, None, PoolId(0), &|_| true).unwrap();
            tcp.set_option(context, conn, ConnOption::FastOpen).unwrap();
            conn
        })
    };
    let conn = held(&mut peer);
    // Neither at once nor by any timer; there is room for the MSS of before less that of options.
    let is_syn = |out: &Out| out.flags.contains(S);
    assert!(!peer.out().iter().any(is_syn) && !peer.wait(600_000).iter().any(is_syn));
    let info = peer.host.tcp.info(conn).unwrap();
    assert_eq!((info.state, info.syn_room), (TcpState::SynSent, Some(960)));
    peer.send(conn, b"question");
    assert_eq!(peer.host.tcp.info(conn).unwrap().syn_room, None);
    let syn = the_syn(peer.out());
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 8), Some(cookie)));
    peer.options = plain();
    peer.inject(S | A, 0, 9, &[]);
    peer.options = Options::default();
    let info = peer.host.tcp.info(conn).unwrap();
    assert_eq!((info.state, info.syn_data), (TcpState::Established, true));
    // Asked for once more, it leaves without data; closed before, it never does.
    let conn = held(&mut peer);
    peer.host
        .with(peer.now, |tcp, context| tcp.set_option(context, conn, ConnOption::FastOpen))
        .unwrap();
    let syn = the_syn(peer.out());
    assert_eq!((syn.core(), syn.options.fast_open), ((SYN, 0, 0, 0), Some(cookie)));
    let conn = held(&mut peer);
    peer.host.with(peer.now, |tcp, context| tcp.close(context, conn)).unwrap();
    assert!(peer.out().iter().all(|out| !out.flags.contains(S)));
}
