//! SYNs for listeners that are expected are dropped for a while, and not refused.

use core::time::Duration;

use super::peer::*;
use super::*;
use crate::config::AwaitedListener;
use crate::limits::LISTENER_WAIT_MAX;

/// A SYN from a new port; how it was answered: 'A' by a SYN-ACK, 'R' by a RST, ' ' not at all.
fn answer(peer: &mut Peer) -> char {
    peer.remote.1 += 1;
    peer.inject(S, 0, 0, &[]);
    let (out, port) = (peer.out(), peer.local.1);
    match out.as_slice() {
        [] => ' ',
        [one] if one.flags.contains(S | A) => 'A',
        [one] if one.flags.contains(R) => 'R',
        _ => panic!("{out:?} from {port}"),
    }
}

fn peer_awaited(local: &str, has_successor: bool) -> Peer {
    let listener = AwaitedListener { local: local.parse().unwrap(), has_successor };
    let mut peer = Peer::new(|config| config.tcp.awaited_listeners = vec![listener]);
    peer.local.1 = listener.local.port();
    peer
}

#[test]
fn syn_for_expected_listener_is_not_refused() {
    for has_successor in [false, true] {
        let mut peer = peer_awaited("10.0.0.1:80", has_successor);
        assert_eq!(answer(&mut peer), ' ');
        assert_eq!(peer.host.base.counters.dropped(crate::Drop::AwaitedListener), 1);
        peer.local.1 = 81;
        assert_eq!(answer(&mut peer), 'R', "another port");
        peer.local.1 = 80;
        peer.inject(A, 1, 1, &[]);
        assert!(peer.out()[0].flags.contains(R), "a segment without a connection");
        let id = peer.listen();
        assert_eq!(answer(&mut peer), 'A');
        peer.host.with(peer.now, |tcp, context| tcp.unlisten(context, id)).unwrap();
        assert_eq!(answer(&mut peer), if has_successor { ' ' } else { 'R' });
    }
}

#[test]
fn expected_listener_is_awaited_for_a_limited_time() {
    let mut peer = peer_awaited("0.0.0.0:80", true);
    peer.now += Duration::from_secs(100);
    assert_eq!(answer(&mut peer), ' ');
    peer.now += LISTENER_WAIT_MAX - Duration::from_millis(1);
    assert_eq!(answer(&mut peer), ' ');
    peer.now += Duration::from_millis(1);
    assert_eq!(answer(&mut peer), 'R');
    let any = "0.0.0.0:80".parse().unwrap();
    let listen = |tcp: &mut Tcp, context: &mut Context<'_, HeapMemory>| {
        tcp.listen(&context.base.ip, any, 4, PoolId(0))
    };
    let id = peer.host.with(peer.now, listen).unwrap();
    peer.now += 2 * LISTENER_WAIT_MAX;
    assert_eq!(answer(&mut peer), 'A');
    peer.host.with(peer.now, |tcp, context| tcp.unlisten(context, id)).unwrap();
    assert_eq!(answer(&mut peer), ' ');
    peer.now += LISTENER_WAIT_MAX;
    assert_eq!(answer(&mut peer), 'R');
}
