//! Listeners of the back end `service` with several owners: channels, processes, and tokens.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use megapipe::{
    Accept, Address, Backend, Channel, Config, Connection, Event, Handle, ListenOptions,
    ServiceAddress, ShareError,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::place;
use crate::scene::{A_WHILE, PATIENCE, start};

/// Has the role of a process that a test starts, and its arguments.
const ROLE: &str = "MEGAPIPE_TEST_LISTENER_ROLE";
/// A user without rights.
const UNPRIVILEGED_USER: u32 = 65_534;

fn attached(service: &ServiceAddress) -> Channel {
    let config = Config::default().backend(Backend::Service(service.clone()));
    Channel::create(config).expect("the daemon runs")
}

fn errno(error: ShareError) -> i32 {
    error.raw_os_error()
}

/// A daemon of so many shards, at a network of its own.
struct World {
    service: ServiceAddress,
    channels: Vec<Channel>,
}

impl World {
    /// `None`: nothing can be tested here.
    fn new(name: &str, shards: u16, channels: usize) -> Option<Self> {
        if let Err(why) = place::enter() {
            println!("skipped: {name}: {why}");
            return None;
        }
        let Ok(Backend::Service(service)) = place::service_of_shards(shards) else {
            panic!("a daemon")
        };
        let channels = (0..channels).map(|_| attached(&service)).collect();
        Some(Self { service, channels })
    }

    fn listen(&mut self, options: &ListenOptions) -> (Handle, SocketAddr) {
        let channel = &mut self.channels[0];
        let listener = channel.listen(&place::here("127.0.0.1:0"), options, 0).expect("a port");
        let address = channel.local_address(listener).expect("it listens").as_inet();
        (listener, address.expect("TCP"))
    }
}

/// A client, and whether it gets an answer in time is to be seen.
fn client(address: SocketAddr) -> TcpStream {
    let peer = TcpStream::connect_timeout(&address, PATIENCE).expect("it listens");
    peer.set_read_timeout(Some(PATIENCE)).expect("not zero");
    peer
}

/// Until nothing listens at an address. The daemon sees the end of a token when its last descriptor
/// is closed, of which a process that is being started may have a copy for a moment.
fn await_refusal(address: SocketAddr) {
    let started = Instant::now();
    loop {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
        assert!(started.elapsed() < PATIENCE, "it still listens");
    }
}

/// The next connection that a channel accepts, which writes `answer`.
fn serve(channel: &mut Channel, listener: Handle, answer: &'static str) -> Handle {
    channel.accept(listener, Accept::lwsocket(1).exactly()).expect("it listens");
    let handle = loop {
        let done = channel.dispatch(Some(PATIENCE)).expect("no error").expect("in time");
        match done.event {
            Event::Accept(Ok(accepted)) => match accepted.connection {
                Connection::Lwsocket(handle) => break handle,
                Connection::Fd(_) => panic!("no descriptor was asked for"),
            },
            Event::Write(_) => {}
            other => panic!("{other:?}"),
        }
    };
    channel.write(handle, answer).expect("it is open");
    channel.flush().expect("no error");
    handle
}

fn expect(peer: &mut TcpStream, text: &str) {
    let mut read = vec![0; text.len()];
    peer.read_exact(&mut read).expect("it comes");
    assert_eq!(read, text.as_bytes());
}

fn listener_is_shared_by_two_channels(name: &str, shards: u16) {
    let Some(mut world) = World::new(name, shards, 2) else { return };
    let options = ListenOptions::default().share(false).backlog(50);
    let (listener, address) = world.listen(&options);
    let [one, two] = &mut world.channels[..] else { panic!("two") };
    let token = one.share(listener).expect("it listens");
    let adopted = two.adopt(token.as_fd(), 7).expect("the token is good");
    assert_eq!(two.local_address(adopted).expect("it listens"), address.into());
    for (channel, handle) in [(&mut *one, listener), (&mut *two, adopted)] {
        let again = channel.adopt(token.as_fd(), 0);
        assert!(matches!(again, Err(ShareError::Known { handle: known }) if known == handle));
    }
    // Both take connections, each connection goes to one of them.
    let (mut by_one, mut by_two) = (0, 0);
    for (channel, handle) in [(&mut *one, listener), (&mut *two, adopted)] {
        channel.accept(handle, Accept::lwsocket(u32::MAX)).expect("it listens");
        channel.flush().expect("no error");
    }
    let mut peers = Vec::new();
    while by_one == 0 || by_two == 0 {
        peers.push(client(address));
        assert!(peers.len() < 200, "{by_one} {by_two}");
        while by_one + by_two < peers.len() {
            for (channel, count) in [(&mut *one, &mut by_one), (&mut *two, &mut by_two)] {
                let done = channel.dispatch(Some(A_WHILE / 10)).expect("no error");
                let Some(done) = done else { continue };
                assert!(matches!(done.event, Event::Accept(Ok(_))), "{done:?}");
                *count += 1;
            }
        }
    }
    drop(peers);
    // The token and the other channel own it further.
    drop(one.unregister(listener).expect("it listens"));
    one.flush().expect("no error");
    drop(token);
    let mut peer = client(address);
    loop {
        let done = two.dispatch(Some(PATIENCE)).expect("no error").expect("in time");
        let Event::Accept(Ok(accepted)) = done.event else { continue };
        let Connection::Lwsocket(handle) = accepted.connection else { panic!("no other") };
        if two.peer_address(handle).ok() == peer.local_addr().ok().map(Into::into) {
            assert_eq!(done.cookie, 7);
            two.write(handle, "by two").expect("it is open");
            two.flush().expect("no error");
            break;
        }
    }
    expect(&mut peer, "by two");
    drop(two.unregister(adopted).expect("it listens"));
    two.flush().expect("no error");
    await_refusal(address);
}

#[test]
fn listener_is_shared_by_two_channels_of_one_shard() {
    let name = "shared_listeners::listener_is_shared_by_two_channels_of_one_shard";
    listener_is_shared_by_two_channels(name, 1);
}

#[test]
fn listener_is_shared_by_two_channels_on_three_shards() {
    let name = "shared_listeners::listener_is_shared_by_two_channels_on_three_shards";
    listener_is_shared_by_two_channels(name, 3);
}

/// Connections that came while no channel had the listener wait in its backlog.
fn token_keeps_a_listener(name: &str, shards: u16) {
    let Some(mut world) = World::new(name, shards, 2) else { return };
    let (listener, address) = world.listen(&ListenOptions::default());
    let mut two = world.channels.pop().expect("two");
    let mut one = world.channels.pop().expect("one");
    let token = one.share(listener).expect("it listens");
    drop(one);
    let mut waiting: Vec<_> = (0..8).map(|_| client(address)).collect();
    for peer in &mut waiting {
        peer.write_all(b"early").expect("connected");
    }
    let taken = two.listen(&address.into(), &ListenOptions::default().share(false), 0);
    taken.expect_err("the port is taken");
    let adopted = two.adopt(token.as_fd(), 0).expect("the token owns it");
    for _ in 0..waiting.len() {
        serve(&mut two, adopted, "later");
    }
    waiting.iter_mut().for_each(|peer| expect(peer, "later"));
    drop(two.unregister(adopted).expect("it listens"));
    two.flush().expect("no error");
    // The last owner's end resets those that wait.
    let mut last = client(address);
    drop(token);
    let end = last.read(&mut [0; 8]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    await_refusal(address);
    two.listen(&address.into(), &ListenOptions::default(), 0).expect("the port is free");
}

#[test]
fn token_keeps_a_listener_without_channel_on_one_shard() {
    let name = "shared_listeners::token_keeps_a_listener_without_channel_on_one_shard";
    token_keeps_a_listener(name, 1);
}

#[test]
fn token_keeps_a_listener_without_channel_on_three_shards() {
    let name = "shared_listeners::token_keeps_a_listener_without_channel_on_three_shards";
    token_keeps_a_listener(name, 3);
}

#[test]
fn refused_listeners_and_tokens_change_nothing() {
    let name = "shared_listeners::refused_listeners_and_tokens_change_nothing";
    let Some(mut world) = World::new(name, 2, 2) else { return };
    let (listener, address) = world.listen(&ListenOptions::default());
    let [one, two] = &mut world.channels[..] else { panic!("two") };
    let file = std::env::temp_dir().join(format!("mp-shared-listener-{}", std::process::id()));
    let unix = one
        .listen(&Address::unix(&file).expect("a short path"), &ListenOptions::default(), 0)
        .expect("a path");
    let refused = one.share(unix).expect_err("the kernel's");
    assert!(matches!(refused, ShareError::Misuse(_)), "{refused:?}");
    let _ = std::fs::remove_file(&file);
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    assert_eq!(two.adopt(reader.as_fd(), 0).map_err(errno), Err(libc::EBADF));
    let token = one.share(listener).expect("it listens");
    assert_eq!(two.adopt_shared_connection(token.as_fd(), 0).map_err(errno), Err(libc::ESTALE));
    // As many tokens as a program makes in a loop go with their descriptors.
    for _ in 0..300 {
        drop(one.share(listener).expect("it listens"));
    }
    drop(one.unregister(listener).expect("it listens"));
    one.flush().expect("no error");
    assert!(matches!(one.share(listener), Err(ShareError::Misuse(_))), "it is stale");
    let adopted = two.adopt(token.as_fd(), 0).expect("the token is good");
    let mut peer = client(address);
    serve(two, adopted, "goes on");
    expect(&mut peer, "goes on");
}

// -- processes

fn send_fd(over: &UnixStream, fd: BorrowedFd<'_>, text: &[u8]) {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let sent = sendmsg(over, &[IoSlice::new(text)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(text.len()));
}

fn receive_fd(over: &UnixStream) -> (OwnedFd, String) {
    let mut text = [0; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(over, &mut [IoSliceMut::new(&mut text)], &mut control, flags);
    let len = received.expect("a message").bytes;
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    (fd.expect("a descriptor"), String::from_utf8_lossy(&text[..len]).into_owned())
}

/// A process that plays a role, and the other end of its standard input.
fn process(role: &str) -> (Child, UnixStream) {
    let (ours, its) = UnixStream::pair().expect("a pair");
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", "shared_listeners::process_of_a_role", "--nocapture"]);
    command.env(ROLE, role).stdin(Stdio::from(OwnedFd::from(its)));
    (start(&mut command).expect("a test can run itself"), ours)
}

/// What a process does that another test has started; nothing if none has.
#[test]
fn process_of_a_role() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().expect("UTF-8");
    let over = rustix::io::dup(rustix::stdio::stdin()).expect("a descriptor");
    let over = UnixStream::from(over);
    match role.split_once(' ') {
        Some(("make", text)) => {
            let (path, address) = text.split_once(' ').expect("a path and an address");
            let mut channel = attached(&ServiceAddress::new(path));
            let address: SocketAddr = address.parse().expect("an address");
            let options = ListenOptions::default().share(false);
            let listener = channel.listen(&address.into(), &options, 0).expect("a free port");
            let token = channel.share(listener).expect("it listens");
            let address = channel.local_address(listener).expect("it listens");
            send_fd(&over, token.as_fd(), address.to_string().as_bytes());
            // Until it is killed.
            let _ = (&over).read(&mut [0; 1]);
            std::process::exit(0);
        }
        Some(("adopt", text)) => {
            let (token, _) = receive_fd(&over);
            if rustix::process::geteuid().is_root() {
                // SAFETY: it changes the user of this process, which has one test to run.
                assert_eq!(unsafe { libc::setuid(UNPRIVILEGED_USER) }, 0);
            }
            // It has neither the path nor a right to it.
            let copy = token.try_clone().expect("a descriptor");
            let mut channel = attached(&ServiceAddress::new(text).with_token(copy));
            let adopted = channel.adopt(token.as_fd(), 0).expect("possession is the permission");
            for _ in 0..2 {
                serve(&mut channel, adopted, "from another process");
            }
            // Until the peers have read it.
            let _ = (&over).read(&mut [0; 1]);
            std::process::exit(0);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn listener_outlives_its_killed_maker_for_another_user() {
    let name = "shared_listeners::listener_outlives_its_killed_maker_for_another_user";
    let Some(world) = World::new(name, 2, 0) else { return };
    let path = world.service.path().display();
    let role = format!("make {path} {}", place::here("127.0.0.1:0"));
    let (mut maker, over) = process(&role);
    let (token, address) = receive_fd(&over);
    let address: SocketAddr = address.parse().expect("an address");
    maker.kill().expect("it runs");
    maker.wait().expect("it is ours");
    let mut early = client(address);
    let (mut adopter, over) = process("adopt /nowhere");
    send_fd(&over, token.as_fd(), b"token");
    drop(token);
    let mut late = client(address);
    for peer in [&mut early, &mut late] {
        expect(peer, "from another process");
    }
    drop(over);
    assert!(adopter.wait().expect("it is ours").success());
    // Nothing owns it any more.
    await_refusal(address);
}
