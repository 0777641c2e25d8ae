//! Segments, commands and time in any order: nothing panics, the invariants hold, and in the end
//! nothing is left over.

use proptest::prelude::*;

use super::peer::*;
use super::*;
use crate::seq::SeqNum;
use crate::wire::tcp::{Flags, Options, SackBlock, Timestamps};

/// One step of a run.
#[derive(Debug, Clone)]
enum Step {
    Segment { flags: u8, seq: i32, ack: i32, len: usize, window: u16 },
    Sack { from: u32, len: u32 },
    Timestamp(u32),
    Send(usize),
    Receive,
    Shutdown,
    Wait(u64),
    Close,
    Abort,
}

/// How a connection begins.
#[derive(Debug, Clone, Copy)]
enum Beginning {
    Accepted,
    /// By a SYN with a cookie and data, and its handshake goes on.
    TakenFromSyn,
    /// By our SYN with a cookie and data, which has no answer yet.
    SentWithSyn,
}

/// The peer, and the connection that steps are about.
fn begin(beginning: Beginning, syn: Options) -> (Peer, ConnId) {
    match beginning {
        Beginning::Accepted => Peer::accepted(|config| config.tcp.retries = 3, syn),
        Beginning::TakenFromSyn => {
            let (mut peer, cookie, _) = fast_open::server(1);
            peer.host.base.config.tcp.retries = 3;
            fast_open::syn(&mut peer, fast_open::with(cookie), b"data");
            let conn = fast_open::incoming(&mut peer).unwrap();
            peer.send(conn, b"answer");
            peer.out();
            (peer, conn)
        }
        Beginning::SentWithSyn => {
            let (mut peer, _, first) = fast_open::client_with_cookie();
            peer.host.base.config.tcp.retries = 3;
            peer.host.with(peer.now, |tcp, context| tcp.abort(context, first)).unwrap();
            let (conn, _) = fast_open::client(&mut peer, &[1; 2_000]);
            (peer, conn)
        }
    }
}

fn near() -> impl Strategy<Value = i32> {
    prop_oneof![6 => -3..4_000_i32, 1 => any::<i32>()]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (any::<u8>(), near(), near(), 0..1200_usize, any::<u16>()).prop_map(
            |(flags, seq, ack, len, window)| {
                // Mostly what a peer in a connection sends.
                let flags = if flags & 0xc0 == 0 { flags & 0x3f } else { 0x10 | flags & 0x08 };
                Step::Segment { flags, seq, ack, len, window }
            }
        ),
        2 => (0..8_000_u32, 0..4_000_u32).prop_map(|(from, len)| Step::Sack { from, len }),
        1 => any::<u32>().prop_map(Step::Timestamp),
        4 => (1..2000_usize).prop_map(Step::Send),
        2 => Just(Step::Receive),
        1 => Just(Step::Shutdown),
        3 => (0..5_000_u64).prop_map(Step::Wait),
        1 => Just(Step::Close),
        1 => Just(Step::Abort),
    ]
}

/// What the peer should say to go on is not far from where the connection is.
fn take(peer: &mut Peer, conn: ConnId, step: &Step) {
    let now = peer.now;
    match *step {
        Step::Segment { flags, seq, ack, len, window } => {
            let (rcv, una) = place(peer, conn);
            peer.window = window;
            let seq = rcv.wrapping_add_signed(seq - 1000 * i32::from(len % 2 == 0));
            peer.inject(Flags(flags), seq, una.wrapping_add_signed(ack), &vec![1; len]);
        }
        Step::Sack { from, len } => {
            let (rcv, una) = place(peer, conn);
            let start = peer.iss + una + from;
            peer.options.set_sack(&[SackBlock { start, end: start + len }]);
            peer.inject(A, rcv, una, &[]);
            peer.options = Options::default();
        }
        Step::Timestamp(value) => {
            let (rcv, una) = place(peer, conn);
            peer.options.timestamps = Some(Timestamps { value, echo: peer.host_clock });
            peer.inject(A, rcv, una, &[]);
            peer.options = Options::default();
        }
        Step::Send(len) => {
            peer.host.send(now, conn, &vec![2; len]);
        }
        Step::Receive => {
            let _ = peer.host.tcp.receive(conn);
        }
        Step::Shutdown => {
            let _ = peer.host.with(now, |tcp, context| tcp.shutdown(context, conn));
        }
        Step::Wait(ms) => {
            peer.wait(ms);
        }
        Step::Close => {
            let _ = peer.host.with(now, |tcp, context| tcp.close(context, conn));
        }
        Step::Abort => {
            let _ = peer.host.with(now, |tcp, context| tcp.abort(context, conn));
        }
    }
}

/// Where the connection is: what it expects, and what it waits to be acknowledged.
fn place(peer: &Peer, conn: ConnId) -> (u32, u32) {
    if !peer.host.tcp.places.holds(conn.index, conn.generation) {
        return (1, 1);
    }
    let record = peer.host.conn(conn);
    (record.receive.nxt.since(SeqNum(4_000_000_000)), record.send.una.since(peer.iss))
}

/// Frees what came, and wants no other connection.
fn answer(peer: &mut Peer) {
    while let Some(event) = peer.host.tcp.poll_event(peer.now) {
        match event {
            Event::Received { chunk, .. } => peer.host.memory.free(chunk.buf),
            Event::Incoming { conn, .. } => {
                peer.host.with(peer.now, |tcp, context| tcp.abort(context, conn)).unwrap();
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_in_leaves_nothing_behind(
        steps in proptest::collection::vec(step(), 1..60),
        sack in any::<bool>(),
        times in any::<bool>(),
        beginning in prop_oneof![
            4 => Just(Beginning::Accepted),
            1 => Just(Beginning::TakenFromSyn),
            1 => Just(Beginning::SentWithSyn),
        ],
    ) {
        let syn = Options {
            sack_permitted: sack,
            timestamps: times.then_some(Timestamps { value: 7, echo: 0 }),
            ..plain()
        };
        let (mut peer, conn) = begin(beginning, syn);
        for step in &steps {
            take(&mut peer, conn, step);
            peer.out();
            answer(&mut peer);
            peer.host.tcp.check_invariants();
        }
        let _ = peer.host.with(peer.now, |tcp, context| tcp.abort(context, conn));
        peer.wait(2_000_000);
        answer(&mut peer);
        peer.out();
        peer.host.tcp.check_invariants();
        prop_assert_eq!(peer.host.memory.in_use(), 0);
        prop_assert_eq!(peer.host.tcp.places.len(), 0);
        prop_assert_eq!(peer.host.tcp.shard.nodes.len(), 0);
        prop_assert_eq!(peer.host.tcp.time_waits.len(), 0);
    }
}
