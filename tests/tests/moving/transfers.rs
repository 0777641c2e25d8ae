//! Megabytes in both directions at once, while the connection moves there and back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use megapipe::{
    Accept, Address, Channel, Completion, ConnectOptions, Connection, Disconnect, Event, Handle,
    ListenOptions,
};
use megapipe_tests::transfer::{CHUNK_LEN, Header, Mode, Pattern};

use super::hosts::{FAR, Hosts, NEAR, PATIENCE, at, with_hosts};
use super::mover::{Mover, Side};

/// Bytes in each direction.
const LEN: u64 = 6 << 20;
const MOVES: usize = 6;

/// What we send, and what the peer sends.
pub(crate) fn patterns(seed: u64) -> (Pattern, Pattern) {
    let header = Header { mode: Mode::Give, len: LEN, seed };
    (header.from_server(), header.from_client())
}

/// The peer's end: a plain program that knows nothing of all this.
pub(crate) fn exchange(stream: TcpStream, seed: u64) {
    let (mut inward, mut outward) = patterns(seed);
    stream.set_read_timeout(Some(PATIENCE)).expect("TCP");
    stream.set_write_timeout(Some(PATIENCE)).expect("TCP");
    let mut sender = stream.try_clone().expect("a descriptor");
    let sending = std::thread::spawn(move || {
        while outward.left() > 0 {
            sender.write_all(&outward.take(CHUNK_LEN)).expect("the peer sends");
        }
    });
    let mut receiver = stream;
    let mut buffer = [0; CHUNK_LEN];
    while inward.left() > 0 {
        let len = receiver.read(&mut buffer).expect("the peer receives");
        assert!(len > 0, "an end with {} bytes left", inward.left());
        assert!(inward.matches(&buffer[..len]), "other bytes, {} left", inward.left());
    }
    sending.join().expect("the peer has sent");
    assert_eq!(receiver.read(&mut buffer).expect("an end"), 0);
    receiver.shutdown(Shutdown::Both).expect("an end of ours");
}

pub(crate) fn next(channel: &mut Channel) -> Completion {
    let done = channel.dispatch(Some(PATIENCE)).expect("dispatch");
    done.expect("a completion in time")
}

/// Closes, and waits for what the peer says to that.
pub(crate) fn close(channel: &mut Channel, handle: Handle) {
    channel.disconnect(handle, Disconnect::Write).expect("a connection");
    channel.read(handle, 1).expect("a connection");
    let mut left = 2;
    while left > 0 {
        match next(channel).event {
            Event::Disconnect(Ok(())) => left -= 1,
            Event::Read(Ok(bytes)) if bytes.is_empty() => left -= 1,
            other => panic!("{other:?}"),
        }
    }
    channel.unregister(handle).expect("a handle");
    // The last acknowledgment leaves.
    let nothing = channel.dispatch(Some(Duration::from_millis(20))).expect("dispatch");
    assert!(nothing.is_none(), "{nothing:?}");
}

/// What the moves cost the peer, as a number to compare versions by.
fn show_retransmissions(hosts: &Hosts, link: &str) {
    let retransmitted = hosts.far_retransmissions();
    println!("{link}: {} moves, {retransmitted} segments sent again by the peer", 2 * MOVES);
}

/// We connect to the peer from our stack's ports.
fn connected(hosts: &mut Hosts, link: &str) {
    let mut channel = match hosts.channel(link) {
        Ok(channel) => channel,
        Err(why) => return println!("skipped: moving on {link}: {why}"),
    };
    for (seed, address) in FAR.into_iter().enumerate() {
        let seed = seed as u64;
        let peer = hosts.far(move || {
            let listener = TcpListener::bind(at(address, 7_000)).expect("a listener");
            exchange(listener.accept().expect("a connection").0, seed);
        });
        // The listener is about to be there.
        std::thread::sleep(Duration::from_millis(100));
        let to = Address::from(at(address, 7_000));
        let handle = channel.connect(&to, &ConnectOptions::default(), 0).expect("begins");
        let Event::Connect(Ok(())) = next(&mut channel).event else { panic!("not connected") };
        let (outward, inward) = patterns(seed);
        let mut mover = Mover::new(&mut channel, (handle, Side::Stack), outward, inward);
        mover.run(MOVES);
        let handle = mover.handle;
        close(&mut channel, handle);
        peer.join().expect("the peer is content");
    }
    let segments = hosts.judge();
    println!("{link}: {segments} segments");
    show_retransmissions(hosts, link);
}

/// The peer connects to a listener of our stack's.
fn accepted(hosts: &mut Hosts, link: &str) {
    let mut channel = match hosts.channel(link) {
        Ok(channel) => channel,
        Err(why) => return println!("skipped: moving on {link}: {why}"),
    };
    for (seed, address) in NEAR.into_iter().enumerate() {
        let seed = seed as u64 + 10;
        let ours = Address::from(at(address, 8_000 + seed as u16));
        let listener = channel.listen(&ours, &ListenOptions::default(), 0).expect("listens");
        channel.accept(listener, Accept::lwsocket(1)).expect("a listener");
        let to = at(address, 8_000 + seed as u16);
        let peer = hosts.far(move || exchange(TcpStream::connect(to).expect("connects"), seed));
        let Event::Accept(Ok(accepted)) = next(&mut channel).event else { panic!("no connection") };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!("a descriptor") };
        let (outward, inward) = patterns(seed);
        let mut mover = Mover::new(&mut channel, (handle, Side::Stack), outward, inward);
        mover.run(MOVES);
        let handle = mover.handle;
        close(&mut channel, handle);
        peer.join().expect("the peer is content");
    }
    hosts.judge();
    show_retransmissions(hosts, link);
}

/// The connection begins in the kernel, on a port of the kernel's: a flow that is taken singly.
fn begun_in_kernel(hosts: &mut Hosts, link: &str) {
    let mut channel = match hosts.channel(link) {
        Ok(channel) => channel,
        Err(why) => return println!("skipped: moving on {link}: {why}"),
    };
    for (seed, address) in NEAR.into_iter().enumerate() {
        let seed = seed as u64 + 20;
        let listener = TcpListener::bind(at(address, 9_000)).expect("a listener of the kernel's");
        let to = at(address, 9_000);
        let peer = hosts.far(move || exchange(TcpStream::connect(to).expect("connects"), seed));
        let (stream, _) = listener.accept().expect("a connection");
        let handle = channel.register(stream.into(), 0, None).expect("a socket");
        let (outward, inward) = patterns(seed);
        let mut mover = Mover::new(&mut channel, (handle, Side::Kernel), outward, inward);
        mover.run(MOVES + 1);
        let handle = mover.handle;
        assert_eq!(mover.side, Side::Stack);
        close(&mut channel, handle);
        peer.join().expect("the peer is content");
    }
    hosts.judge();
    show_retransmissions(hosts, link);
}

macro_rules! on_links {
    ($($fact:ident),+) => {$(
        mod $fact {
            use super::*;

            #[test]
            fn on_packet() {
                with_hosts(concat!(stringify!($fact), " on packet"), |hosts| {
                    super::$fact(hosts, "packet:mp-near");
                });
            }

            #[test]
            fn on_packet_with_loss() {
                with_hosts(concat!(stringify!($fact), " on packet with loss"), |hosts| {
                    super::$fact(hosts, "packet:mp-near,offload=off,loss=1%,seed=7");
                });
            }

            #[test]
            fn on_xdp() {
                with_hosts(concat!(stringify!($fact), " on xdp"), |hosts| {
                    super::$fact(hosts, "xdp:mp-near");
                });
            }

            #[test]
            fn on_xdp_with_loss() {
                with_hosts(concat!(stringify!($fact), " on xdp with loss"), |hosts| {
                    super::$fact(hosts, "xdp:mp-near,loss=1%,seed=7");
                });
            }
        }
    )+};
}

on_links![connected, accepted, begun_in_kernel];
