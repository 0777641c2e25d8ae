//! A move that is refused because no more connections may be moved leaves its connection alone.

use std::net::TcpStream;

use megapipe::{Accept, Address, Connection, Event, ListenOptions};

use super::hosts::{Hosts, NEAR, at, with_hosts};
use super::mover::{Mover, Side};
use super::transfers::{close, exchange, next, patterns};

const PORT: u16 = 8_300;
/// More connections than the filter of a packet socket has room for.
const CONNECTIONS: u32 = 120;
const SEED: u64 = 31;

#[test]
fn refused_move_leaves_the_transfer_alone() {
    let name = "refused_move_leaves_the_transfer_alone";
    with_hosts(name, move |hosts| {
        if let Err(why) = move_until_refused(hosts) {
            println!("skipped: {name}: {why}");
        }
    });
}

fn move_until_refused(hosts: &Hosts) -> Result<(), String> {
    let mut channel = hosts.channels_for("packet:mp-near", 1, 2 * CONNECTIONS)?.remove(0);
    let to = at(NEAR[1], PORT);
    let listener = channel.listen(&Address::from(to), &ListenOptions::default(), 0);
    let listener = listener.expect("listens");
    channel.accept(listener, Accept::lwsocket(CONNECTIONS)).expect("a listener");
    let connect = move || TcpStream::connect(to).expect("connects");
    let peers = hosts.far(move || (0..CONNECTIONS).map(|_| connect()).collect::<Vec<_>>());
    let mut handles = Vec::new();
    while handles.len() < CONNECTIONS as usize {
        let Event::Accept(Ok(accepted)) = next(&mut channel).event else { panic!("refused") };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!("a descriptor") };
        handles.push(handle);
    }
    // The kernel's, as long as they are open.
    let (_peers, mut moved) = (peers.join().expect("connected"), Vec::new());
    for handle in handles {
        channel.to_fd(handle).expect("it is asked for");
        match next(&mut channel).event {
            Event::ToFd(Ok(socket)) => moved.push(socket),
            Event::ToFd(Err(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(moved.len() < CONNECTIONS as usize, "all of them moved");

    channel.accept(listener, Accept::lwsocket(1)).expect("a listener");
    let peer = hosts.far(move || exchange(connect(), SEED));
    let Event::Accept(Ok(accepted)) = next(&mut channel).event else { panic!("no connection") };
    let Connection::Lwsocket(handle) = accepted.connection else { panic!("a descriptor") };
    let before = hosts.far_retransmissions();
    let (outward, inward) = patterns(SEED);
    let attempts = Mover::new(&mut channel, (handle, Side::Stack), outward, inward).run_refused();
    let retransmitted = hosts.far_retransmissions() - before;
    println!("{attempts} moves refused, {retransmitted} segments sent again by the peer");
    assert!(attempts > 50, "only {attempts} attempts");
    // Each one that left the stack and came back would cost what was on its way.
    assert!(retransmitted < attempts / 10, "{retransmitted} segments for {attempts} attempts");
    close(&mut channel, handle);
    peer.join().expect("the peer is content");
    Ok(())
}
