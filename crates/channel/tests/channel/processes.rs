//! What concerns the whole process: its descriptors, their limit, fork. Each fact runs in a
//! process of its own (`Case::alone`).

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use megapipe::{
    Accept, Channel, Config, Connection, Disconnect, DispatchError, DriverChoice, Event, Handle,
    Misuse, OpError, SubmitError,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::scene::{Case, Scene, Stream, on_each_driver, pattern, send};

on_each_driver![
    a_dropped_channel_leaves_no_descriptor_behind,
    handles_that_come_and_go_leave_no_descriptor_behind,
    fork_fails_in_the_child_and_keeps_the_parent,
    a_child_may_make_a_channel_of_its_own;
    kernel:
    without_descriptors_accepting_pauses_and_goes_on_when_some_are_closed,
];

fn descriptor_count() -> usize {
    // The folder's own descriptor is counted each time.
    std::fs::read_dir("/proc/self/fd").expect("Linux has it").count()
}

/// Something of every kind, with operations outstanding.
fn busy(scene: &mut Scene) -> Vec<crate::scene::Peer> {
    let mut peers = Vec::new();
    for kind in Stream::ALL {
        let (handle, mut peer) = scene.stream(kind);
        scene.send(&mut peer, b"something unread");
        scene.read(handle, 4).unwrap();
        scene.read(handle, 4096).unwrap();
        scene.write(handle, vec![0; 4 << 20]).unwrap();
        scene.write(handle, "behind it").unwrap();
        peers.push(peer);
    }
    let (listener, address) = scene.listening("127.0.0.1:0");
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(10)).unwrap();
    let client = scene.dial(address.as_inet().unwrap()).unwrap();
    peers.push(crate::scene::peer(client));
    scene.timer(std::time::Duration::from_secs(100), None, 0).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let reader = scene.register(reader, 0, None).unwrap();
    scene.read(reader, 10).unwrap();
    let writer = scene.register(writer, 0, None).unwrap();
    scene.write(writer, vec![0; 1 << 20]).unwrap();
    peers
}

fn a_dropped_channel_leaves_no_descriptor_behind(case: &Case) {
    if case.is_service {
        // The daemons of the test are in this process, and have their own.
        return;
    }
    case.alone(|| {
        let mut counts = Vec::new();
        for turn in 0..8 {
            let mut scene = case.scene_without_limit();
            let peers = busy(&mut scene);
            if turn % 2 == 0 {
                scene.flush().unwrap();
                scene.dispatch(Some(std::time::Duration::ZERO)).unwrap();
            }
            drop(scene);
            drop(peers);
            counts.push(descriptor_count());
        }
        // What is made once for the process is there after the first turn.
        assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
    });
}

fn handles_that_come_and_go_leave_no_descriptor_behind(case: &Case) {
    case.alone(|| {
        let mut scene = case.scene();
        let mut counts = Vec::new();
        for _ in 0..5 {
            for kind in Stream::ALL {
                let (handle, _peer) = scene.stream(kind);
                scene.read(handle, 10).unwrap();
                let _fd = scene.unregister(handle).unwrap();
                let (handle, _peer) = scene.stream(kind);
                if !scene.ask_for_fd(handle) {
                    scene.unregister(handle).unwrap();
                    continue;
                }
                match scene.next_of(handle) {
                    Event::ToFd(Ok(_)) => {}
                    other => panic!("{kind:?} {other:?}"),
                }
            }
            scene.expect_silence();
            counts.push(descriptor_count());
        }
        assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
        scene.expect_no_strays();
    });
}

fn limit_descriptors(count: usize) {
    let limit = Rlimit { current: Some(count as u64), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("lowering is always allowed");
}

fn without_descriptors_accepting_pauses_and_goes_on_when_some_are_closed(case: &Case) {
    const CLIENTS: usize = 30;
    case.alone(|| {
        let mut scene = case.scene();
        let (listener, address) = scene.listening("127.0.0.1:0");
        let address = address.as_inet().unwrap();
        let mut clients: Vec<_> = (0..CLIENTS).map(|_| scene.dial(address).unwrap()).collect();
        limit_descriptors(descriptor_count() + 4);
        scene.channel.accept(listener, Accept::fd(u32::MAX)).unwrap();
        let (mut accepted, mut held, mut refused) = (0, Vec::<OwnedFd>::new(), 0);
        while accepted < CLIENTS {
            match scene.next().event {
                Event::Accept(Ok(it)) => match it.connection {
                    Connection::Fd(fd) => {
                        accepted += 1;
                        rustix::io::write(&fd, b"hello").unwrap();
                        held.push(fd);
                    }
                    Connection::Lwsocket(_) => panic!("descriptors were asked for"),
                },
                Event::Accept(Err(OpError::NoDescriptors)) => {
                    refused += 1;
                    assert!(held.len() < CLIENTS / 2, "{} are held", held.len());
                    held.clear();
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0, "the limit was met");
        assert!(scene.counters().accept_exhausted > 0);
        for client in &mut clients {
            assert_eq!(scene.receive(client, 5), b"hello", "no connection was lost");
        }
    });
}

fn expect_forked(channel: &mut Channel, handle: Handle) -> bool {
    let forked = Err(Misuse::Forked.into());
    channel.read(handle, 1) == forked
        && channel.write(handle, "x") == forked
        && channel.disconnect(handle, Disconnect::Both) == forked
        && channel.to_fd(handle) == forked
        && channel.timer(std::time::Duration::ZERO, None, 0)
            == Err(SubmitError::Misuse(Misuse::Forked))
        && matches!(channel.explain(handle), Err(Misuse::Forked))
        && channel.local_address(handle) == Err(OpError::BadDescriptor)
        && matches!(channel.unregister(handle), Err(Misuse::Forked))
        && matches!(channel.flush(), Err(DispatchError::Forked))
        && matches!(channel.dispatch(None), Err(DispatchError::Forked))
}

/// Runs `child` in a fork and gives its verdict.
fn in_a_fork(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child of this process with several threads runs only this thread. What it calls
    // needs no lock that another thread could hold (the harness's other thread only waits), and
    // it leaves by _exit.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child at once, without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!good)) }
    }
    let pid = rustix::process::Pid::from_raw(pid).expect("a child");
    let options = rustix::process::WaitOptions::empty();
    let (_, status) = rustix::process::waitpid(Some(pid), options).unwrap().expect("it ended");
    status.exit_status() == Some(0)
}

fn fork_fails_in_the_child_and_keeps_the_parent(case: &Case) {
    case.alone(|| {
        let mut scene = case.scene();
        let (handle, mut peer) = scene.stream(Stream::Accepted4);
        let (registered, mut other) = scene.stream(Stream::RegisteredUnix);
        scene.read(handle, 100).unwrap();
        scene.write(registered, "queued before").unwrap();
        let mut scene = Some(scene);
        let good = in_a_fork(|| {
            let mut scene = scene.take().expect("the child's copy");
            let told = expect_forked(&mut scene, handle) && expect_forked(&mut scene, registered);
            // Dropping it in the child must not touch what the parent goes on using.
            drop(scene);
            told
        });
        assert!(good, "some call did not say that the process forked");
        let mut scene = scene.expect("the child took its own");
        scene.expect_written(registered, 13);
        assert_eq!(scene.receive(&mut other, 13), b"queued before");
        scene.send(&mut peer, b"after the fork");
        let Event::Read(Ok(bytes)) = scene.next_of(handle) else { panic!() };
        assert_eq!(&*bytes, b"after the fork");
    });
}

fn a_child_may_make_a_channel_of_its_own(case: &Case) {
    case.alone(|| {
        let mut parents = case.scene();
        let (handle, mut peer) = parents.stream(Stream::Accepted4);
        let driver = case.driver;
        let good = in_a_fork(|| echo_in_a_new_channel(driver));
        assert!(good);
        parents.write(handle, pattern(1, 100)).unwrap();
        parents.expect_written(handle, 100);
        assert_eq!(parents.receive(&mut peer, 100), pattern(1, 100));
    });
}

fn echo_in_a_new_channel(driver: DriverChoice) -> bool {
    let mut channel = Channel::create(Config::default().driver(driver)).unwrap();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let handle = channel.register(ours.into(), 0, None).unwrap();
    channel.read(handle, 10).unwrap();
    send(&mut theirs, b"in the child");
    let done = channel.dispatch(Some(crate::scene::PATIENCE)).unwrap().unwrap();
    matches!(done.event, Event::Read(Ok(bytes)) if &*bytes == b"in the chi")
}
