//! A listener leaves, and a sibling's stack takes over what it holds: what peers notice.

use super::*;
use crate::config::SynCookies;
use crate::error::CloseReason;

/// Two stacks with one address and secret: `pair.b`, which frames reach, and one apart.
struct Siblings {
    pair: Pair,
    apart: Host,
    listener: ListenerId,
    /// Of the one apart.
    other: ListenerId,
}

impl Siblings {
    /// Both listen; the first accepts nothing.
    fn new(change: impl Fn(&mut Config)) -> Self {
        let mut pair = Pair::new(&change);
        let mut apart = Host::new(2, &change);
        let listener = listen(&mut pair.b, pair.now);
        let other = listen(&mut apart, pair.now);
        apart.tcp.accept(other, 100).unwrap();
        Self { pair, apart, listener, other }
    }

    /// Connects, and goes on for a while. The wire takes 5 ms.
    fn connect(&mut self, for_ms: u64) -> ConnId {
        let conn = self.pair.connect();
        self.pair.run_without_readers(for_ms);
        conn
    }

    /// The first leaves, and frames reach the other from now on. How much was handed over.
    fn leave(&mut self) -> usize {
        let now = self.pair.now;
        let mut count = 0;
        while let Some(handover) = self.next() {
            let taken = self.apart.with(now, |tcp, context| tcp.take_over(context, handover));
            assert!(taken.is_ok(), "there is a listener, and room");
            count += 1;
        }
        self.redirect();
        count
    }

    fn next(&mut self) -> Option<Handover> {
        let (now, listener) = (self.pair.now, self.listener);
        self.pair.b.with(now, |tcp, context| tcp.hand_over_next(context, listener))
    }

    fn redirect(&mut self) {
        let (now, listener) = (self.pair.now, self.listener);
        self.pair.b.with(now, |tcp, context| tcp.unlisten(context, listener)).unwrap();
        assert_eq!(self.pair.b.frame(now), None, "the peer notices nothing");
        assert_eq!((self.pair.b.memory.in_use(), self.pair.b.tcp.held()), (0, (0, 0)));
        self.pair.b.tcp.check_invariants();
        std::mem::swap(&mut self.pair.b, &mut self.apart);
        std::mem::swap(&mut self.listener, &mut self.other);
    }

    /// The connection that the stack which frames reach has accepted.
    fn accepted(&mut self) -> ConnId {
        let now = self.pair.now;
        self.pair.b.collect(now);
        let mut incoming = self.pair.b.events.iter().filter_map(|event| match event {
            Event::Incoming { conn, .. } => Some(*conn),
            _ => None,
        });
        let conn = incoming.next().expect("a connection was accepted");
        assert_eq!(incoming.next(), None, "and one only");
        conn
    }

    /// Both sides get what the other sends, and close in peace.
    fn talk(&mut self, a: ConnId, expected: &[u8]) {
        let b = self.accepted();
        self.pair.a.tcp.receive(a).unwrap();
        self.pair.b.tcp.receive(b).unwrap();
        assert!(self.pair.b.send(self.pair.now, b, b"welcome"));
        self.pair.run(3000);
        assert_eq!(self.pair.b.received, expected);
        assert_eq!(self.pair.a.received, b"welcome");
        self.pair.a.with(self.pair.now, |tcp, context| tcp.close(context, a)).unwrap();
        self.pair.b.with(self.pair.now, |tcp, context| tcp.close(context, b)).unwrap();
        self.pair.run(3000);
        let resets = |host: &Host| host.base.counters.totals.resets_out;
        assert_eq!((resets(&self.pair.b), resets(&self.apart)), (0, 0), "nothing is refused");
        let reset = Event::Closed { conn: a, reason: CloseReason::ResetByPeer };
        assert!(!self.pair.a.events.contains(&reset));
        assert_eq!((self.pair.a.memory.in_use(), self.pair.b.memory.in_use()), (0, 0));
    }
}

fn listen(host: &mut Host, now: Instant) -> ListenerId {
    let local = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
    let id =
        host.with(now, |tcp, context| tcp.listen(&context.base.ip, local, 8, PoolId(0))).unwrap();
    host.join_group(id);
    id
}

#[test]
fn handshake_with_its_ack_on_the_way_goes_on_elsewhere() {
    for timestamps in [true, false] {
        let mut siblings = Siblings::new(|config| config.tcp.timestamps = timestamps);
        let a = siblings.connect(12);
        assert_eq!(siblings.leave(), 1);
        siblings.pair.run(100);
        assert!(siblings.pair.a.events.contains(&Event::Connected { conn: a }));
        siblings.talk(a, b"");
    }
}

#[test]
fn handshake_goes_on_where_its_syn_ack_was_lost() {
    let mut siblings = Siblings::new(|_| {});
    siblings.pair.lose = Box::new(|to_b, _| !to_b);
    let a = siblings.connect(12);
    siblings.pair.lose = Box::new(|_, _| false);
    assert_eq!(siblings.leave(), 1);
    siblings.pair.run(5000);
    siblings.talk(a, b"");
}

#[test]
fn handshake_that_owes_its_syn_ack_goes_on() {
    let mut siblings = Siblings::new(|_| {});
    let a = siblings.pair.connect();
    let (syn, _) = siblings.pair.a.frame(siblings.pair.now).unwrap();
    siblings.pair.b.take(siblings.pair.now, &syn);
    assert_eq!(siblings.leave(), 1);
    let sent = siblings.pair.now;
    siblings.pair.run(100);
    assert!(siblings.pair.b.base.counters.totals.segments_retransmitted == 0, "sent at {sent:?}");
    siblings.talk(a, b"");
}

/// The repeated SYN comes to the sibling before what the listener hands over.
#[test]
fn syn_repeated_before_the_handover_does_no_harm() {
    let mut siblings = Siblings::new(|_| {});
    let now = siblings.pair.now;
    let a = siblings.pair.connect();
    let (syn, _) = siblings.pair.a.frame(now).unwrap();
    siblings.pair.b.take(now, &syn);
    let (answer, _) = siblings.pair.b.frame(now).unwrap();
    let later = now + Duration::from_millis(1);
    siblings.apart.take(later, &syn);
    siblings.pair.now = later;
    assert_eq!(siblings.leave(), 1);
    assert_eq!(siblings.pair.b.tcp.half_open.len(), 1);
    // The answer of before arrives, and its ACK.
    siblings.pair.a.take(later, &answer);
    siblings.pair.run(2000);
    siblings.talk(a, b"");
}

#[test]
fn waiting_connection_moves_with_data_and_fin() {
    let mut siblings = Siblings::new(|_| {});
    let a = siblings.connect(12);
    let stream: Vec<u8> = (0..6000_u32).map(|number| number as u8).collect();
    for part in stream.chunks(1500) {
        assert!(siblings.pair.a.send(siblings.pair.now, a, part));
    }
    siblings.pair.a.with(siblings.pair.now, |tcp, context| tcp.shutdown(context, a)).unwrap();
    siblings.pair.run_without_readers(1000);
    assert_eq!(siblings.leave(), 1);
    siblings.talk(a, &stream);
    let closed = |event: &&Event| matches!(event, Event::PeerClosed { .. });
    assert_eq!(siblings.pair.b.events.iter().filter(closed).count(), 1);
}

/// Half of the data was acknowledged here; the rest, and what is lost, comes to the sibling.
#[test]
fn data_on_the_way_reaches_the_sibling_once() {
    for lost in [None, Some(4), Some(6)] {
        let mut siblings = Siblings::new(|_| {});
        let a = siblings.connect(12);
        let stream: Vec<u8> = (0..40_000_u32).map(|number| (number / 7) as u8).collect();
        for part in stream.chunks(2000) {
            assert!(siblings.pair.a.send(siblings.pair.now, a, part));
        }
        let mut count = 0;
        siblings.pair.lose = Box::new(move |to_b, _| {
            count += u32::from(to_b);
            to_b && Some(count) == lost
        });
        siblings.pair.run_without_readers(17);
        assert_eq!(siblings.leave(), 1);
        siblings.pair.run_without_readers(3000);
        siblings.talk(a, &stream);
    }
}

#[test]
fn connection_moves_again_where_the_sibling_leaves_too() {
    let mut siblings = Siblings::new(|_| {});
    let a = siblings.connect(8);
    assert_eq!(siblings.leave(), 1, "a handshake");
    // The first listens again, and gets back what it had.
    siblings.other = listen(&mut siblings.apart, siblings.pair.now);
    assert_eq!(siblings.leave(), 1);
    siblings.pair.run_without_readers(5);
    assert!(siblings.pair.a.send(siblings.pair.now, a, b"hello"));
    siblings.pair.run_without_readers(20);
    siblings.other = listen(&mut siblings.apart, siblings.pair.now);
    siblings.apart.tcp.accept(siblings.other, 1).unwrap();
    assert_eq!(siblings.leave(), 1, "a connection with data");
    siblings.talk(a, b"hello");
}

#[test]
fn syn_cookie_is_valid_at_the_sibling() {
    let mut siblings = Siblings::new(|config| config.tcp.syn_cookies = SynCookies::Always);
    let a = siblings.connect(12);
    assert_eq!(siblings.leave(), 0, "nothing is kept of it");
    siblings.pair.run(100);
    siblings.talk(a, b"");
}

#[test]
fn fast_open_data_moves_before_the_handshake_is_complete() {
    let mut siblings = Siblings::new(|config| config.tcp.fast_open_key = Some([7; 16]));
    for (host, listener) in
        [(&mut siblings.pair.b, siblings.listener), (&mut siblings.apart, siblings.other)]
    {
        host.tcp.set_listener_fast_open(listener, 1).unwrap();
    }
    let open = |siblings: &mut Siblings| {
        let conn = siblings.pair.connect();
        let now = siblings.pair.now;
        let wanted = ConnOption::FastOpen;
        siblings.pair.a.with(now, |tcp, context| tcp.set_option(context, conn, wanted)).unwrap();
        conn
    };
    // The first connection learns the cookie, and moves as any other.
    let first = open(&mut siblings);
    siblings.pair.run_without_readers(100);
    siblings.pair.a.with(siblings.pair.now, |tcp, context| tcp.abort(context, first)).unwrap();
    siblings.pair.run_without_readers(100);
    let a = open(&mut siblings);
    assert!(siblings.pair.a.send(siblings.pair.now, a, b"early"));
    siblings.pair.run_without_readers(7);
    let is_early =
        |conn: &Connection| conn.state.is_fast_open() && conn.receive.queue.ready_bytes() == 5;
    assert!(siblings.pair.b.tcp.connections.iter().any(is_early), "its data came with the SYN");
    assert_eq!(siblings.leave(), 1);
    siblings.pair.run_without_readers(100);
    siblings.talk(a, b"early");
}

#[test]
fn backlog_does_not_limit_what_is_taken_over() {
    let mut siblings = Siblings::new(|_| {});
    siblings.apart.with(siblings.pair.now, |tcp, context| {
        tcp.unlisten(context, siblings.other).unwrap();
        let local = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 2).into(), PORT);
        siblings.other = tcp.listen(&context.base.ip, local, 0, PoolId(0)).unwrap();
    });
    for _ in 0..5 {
        siblings.connect(1);
    }
    siblings.pair.run_without_readers(50);
    assert_eq!(siblings.leave(), 5);
    let listener = siblings.pair.b.tcp.listeners.get(siblings.listener.index).unwrap();
    assert_eq!((listener.waiting.len(), listener.is_full()), (5, true));
    // A SYN is dropped until there is room.
    let late = siblings.connect(50);
    assert!(!siblings.pair.a.events.contains(&Event::Connected { conn: late }));
    siblings.pair.b.tcp.accept(siblings.listener, 100).unwrap();
    siblings.pair.run(5000);
    assert!(siblings.pair.a.events.contains(&Event::Connected { conn: late }));
}

#[test]
fn handover_without_a_listener_comes_back_and_is_refused() {
    let mut siblings = Siblings::new(|_| {});
    let a = siblings.connect(50);
    siblings.pair.connect();
    siblings.pair.run_without_readers(7);
    let now = siblings.pair.now;
    siblings.apart.with(now, |tcp, context| tcp.unlisten(context, siblings.other)).unwrap();
    let mut refused = 0;
    while let Some(handover) = siblings.next() {
        let back = siblings.apart.with(now, |tcp, context| tcp.take_over(context, handover));
        let handover = back.expect_err("there is no listener");
        siblings.apart.with(now, |tcp, context| tcp.refuse_handover(context, &handover));
        refused += 1;
    }
    assert_eq!(refused, 2);
    let (reset, _) = siblings.apart.frame(now).expect("a RST for the connection");
    assert_eq!(siblings.apart.frame(now), None, "and none for the handshake");
    siblings.pair.a.take(now, &reset);
    siblings.pair.a.collect(now);
    let ended = Event::Closed { conn: a, reason: CloseReason::ResetByPeer };
    assert!(siblings.pair.a.events.contains(&ended));
}

#[test]
fn full_table_gives_a_handover_back_whole() {
    let mut siblings = Siblings::new(|_| {});
    let a = siblings.connect(12);
    assert!(siblings.pair.a.send(siblings.pair.now, a, b"hello"));
    siblings.pair.run_without_readers(50);
    let now = siblings.pair.now;
    let mut handover = siblings.next().expect("a connection");
    // Its buffers are all taken.
    let bufs: Vec<_> = core::iter::from_fn(|| siblings.apart.memory.alloc(PoolId(0))).collect();
    handover.prepend(b"oh, ");
    let back = siblings.apart.with(now, |tcp, context| tcp.take_over(context, handover));
    let handover = back.expect_err("no room for its data");
    siblings.apart.tcp.check_invariants();
    bufs.into_iter().for_each(|buf| siblings.apart.memory.free(buf));
    let taken = siblings.apart.with(now, |tcp, context| tcp.take_over(context, handover));
    assert!(taken.is_ok());
    siblings.redirect();
    siblings.talk(a, b"oh, hello");
}

#[test]
fn connection_in_use_is_not_handed_over() {
    let mut pair = Pair::new(|_| {});
    let (_, b) = pair.establish();
    assert!(pair.b.send(pair.now, b, b"an answer"));
    let refused = pair.b.with(pair.now, |tcp, context| tcp.hand_over_reported(context, b));
    assert!(refused.is_none() && pair.b.tcp.info(b).is_ok());
}
