//! The caller's mistakes: each is an error by name, and changes nothing.

use std::collections::{HashMap, HashSet};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use megapipe::limits::{READ_LEN_MAX, WRITE_PARTS_MAX};
use megapipe::{
    Accept, Address, CpuMask, Disconnect, Event, Handle, Limit, ListenOptions, Misuse, OpenOptions,
    Payload, RegisterError, SocketKind, SubmitError,
};

use crate::place::there;
use crate::scene::{Case, Folder, Scene, Stream, on_each_driver};

on_each_driver![
    calls_that_a_kind_does_not_know_are_refused_by_name,
    lengths_and_counts_out_of_range_are_refused,
    an_unregistered_handle_is_stale_for_every_call,
    a_stale_handle_never_reaches_the_next_owner_of_its_number,
    registered_descriptor_does_not_revive_stale_handles,
    stale_handles_of_every_kind_stay_stale,
    a_handle_of_another_channel_is_foreign,
    handles_made_up_from_bits_are_harmless,
    masks_that_overlap_or_are_empty_or_not_for_listeners_are_refused,
    a_descriptor_cannot_be_registered_twice;
    kernel:
    a_handle_that_moves_takes_no_new_operation,
];

/// Every call that takes a handle, with arguments that are otherwise right.
fn each_call(scene: &mut Scene, handle: Handle) -> Vec<(&'static str, Result<(), SubmitError>)> {
    let somewhere = "127.0.0.1:9".parse().unwrap();
    vec![
        ("accept", scene.channel.accept(handle, Accept::lwsocket(1))),
        ("read", scene.read(handle, 10)),
        ("read_at", scene.read_at(handle, 0, 10)),
        ("recvfrom", scene.recvfrom(handle, 10)),
        ("write", scene.write(handle, "x")),
        ("writev", scene.writev(handle, [Payload::from("x")])),
        ("write_at", scene.write_at(handle, 0, "x")),
        ("sendto", scene.sendto(handle, "x", &somewhere)),
        ("fsync", scene.fsync(handle)),
        ("disconnect", scene.disconnect(handle, Disconnect::Write)),
        ("to_fd", scene.to_fd(handle)),
        ("set_cookie", scene.set_cookie(handle, 1).map_err(SubmitError::from)),
        ("explain", scene.explain(handle).map(drop).map_err(SubmitError::from)),
    ]
}

#[track_caller]
fn expect_only(scene: &mut Scene, handle: Handle, possible: &[&str]) {
    for (name, result) in each_call(scene, handle) {
        match result {
            Ok(()) => assert!(possible.contains(&name), "{name} is possible"),
            Err(SubmitError::Misuse(Misuse::WrongKind { call, kind })) => {
                assert!(!possible.contains(&name), "{name} is not possible");
                assert_eq!(call, name);
                assert!(!kind.is_empty());
            }
            // What is possible may be refused because of a call before it in the list.
            Err(SubmitError::Misuse(Misuse::Closing)) => {
                assert!(possible.contains(&name), "{name}")
            }
            // What is our own stack's has a way to the kernel on some links only.
            Err(SubmitError::Misuse(Misuse::CannotMove { .. })) => {
                assert!(name == "to_fd" && crate::place::is_local());
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
}

fn calls_that_a_kind_does_not_know_are_refused_by_name(case: &Case) {
    let mut scene = case.scene();
    let always = ["set_cookie", "explain"];
    let with = |calls: &[&'static str]| [calls, &always].concat();
    let (listener, _) = scene.listening("127.0.0.1:0");
    expect_only(&mut scene, listener, &with(&["accept"]));
    let timer = scene.timer(Duration::from_secs(100), None, 0).unwrap();
    expect_only(&mut scene, timer, &with(&[]));
    let (stream, _peer) = scene.stream(Stream::Accepted4);
    let calls = ["read", "write", "writev", "disconnect", "to_fd"];
    expect_only(&mut scene, stream, &with(&calls));
    let udp = scene.socket(SocketKind::Udp4, None, 0).unwrap();
    let calls = ["read", "recvfrom", "write", "writev", "sendto", "disconnect", "to_fd"];
    expect_only(&mut scene, udp, &with(&calls));
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    let pipe = scene.register(writer, 0, None).unwrap();
    expect_only(&mut scene, pipe, &with(&["read", "write", "writev"]));
    let folder = Folder::new();
    let file = scene.open(&folder.path("file"), &OpenOptions::write(), 0).unwrap();
    let Event::Open(Ok(())) = scene.next_of(file) else { panic!() };
    let calls = ["read", "read_at", "write", "writev", "write_at", "fsync"];
    expect_only(&mut scene, file, &with(&calls));
}

fn lengths_and_counts_out_of_range_are_refused(case: &Case) {
    let mut scene = case.scene();
    let (stream, _peer) = scene.stream(Stream::Accepted4);
    for len in [0, READ_LEN_MAX + 1, usize::MAX] {
        let refused = Err(Misuse::InvalidLength { len, max: READ_LEN_MAX }.into());
        assert_eq!(scene.read(stream, len), refused);
    }
    assert!(matches!(
        scene.write(stream, ""),
        Err(SubmitError::Misuse(Misuse::InvalidLength { len: 0, .. }))
    ));
    assert!(matches!(
        scene.writev(stream, []),
        Err(SubmitError::Misuse(Misuse::InvalidLength { len: 0, .. }))
    ));
    let parts = (0..=WRITE_PARTS_MAX).map(|_| Payload::from("x"));
    let refused = scene.writev(stream, parts);
    assert!(matches!(
        refused,
        Err(SubmitError::Misuse(Misuse::InvalidLength { max: WRITE_PARTS_MAX, .. }))
    ));
    let (listener, _) = scene.listening("127.0.0.1:0");
    assert_eq!(
        scene.channel.accept(listener, Accept::lwsocket(0)),
        Err(Misuse::InvalidCount.into())
    );
    for len in [0, READ_LEN_MAX + 1] {
        let refused = scene.channel.accept(listener, Accept::lwsocket(1).first_read(len));
        assert_eq!(refused, Err(Misuse::InvalidLength { len, max: READ_LEN_MAX }.into()));
    }
    let udp = scene.socket(SocketKind::Udp4, None, 0).unwrap();
    assert!(matches!(
        scene.recvfrom(udp, 0),
        Err(SubmitError::Misuse(Misuse::InvalidLength { .. }))
    ));
    scene.expect_silence();
    let too_many = (0..100_000)
        .map(|_| scene.channel.accept(listener, Accept::lwsocket(1)))
        .find_map(Result::err);
    assert_eq!(too_many, Some(Limit::Operations.into()), "credit for accepts is bounded");
}

fn an_unregistered_handle_is_stale_for_every_call(case: &Case) {
    let mut scene = case.scene();
    for kind in [Stream::Accepted4, Stream::RegisteredUnix] {
        let (handle, _peer) = scene.stream(kind);
        let _fd = scene.unregister(handle).unwrap();
        for (name, result) in each_call(&mut scene, handle) {
            assert_eq!(result, Err(Misuse::StaleHandle.into()), "{name}");
        }
        assert!(matches!(scene.unregister(handle), Err(Misuse::StaleHandle)));
    }
    for (name, result) in each_call(&mut scene, Handle::NONE) {
        assert_eq!(result, Err(Misuse::StaleHandle.into()), "{name}");
    }
}

fn a_stale_handle_never_reaches_the_next_owner_of_its_number(case: &Case) {
    let mut scene = case.scene();
    let mut old: Vec<Handle> = Vec::new();
    // Lwsockets: the slot is reused again and again.
    for _ in 0..2000 {
        let handle = scene.timer(Duration::from_secs(100), None, 0).unwrap();
        assert!(!old.contains(&handle));
        for stale in old.iter().rev().take(5) {
            assert_eq!(scene.set_cookie(*stale, 9), Err(Misuse::StaleHandle));
        }
        scene.unregister(handle).unwrap();
        old.push(handle);
    }
    let reused = old.iter().filter(|handle| handle.number() == old[0].number()).count();
    assert!(reused > 1000, "numbers are reused: {reused}");
    // Descriptors: the same number comes back under another handle.
    let (first, _peer) = scene.stream(Stream::RegisteredUnix);
    let fd = scene.unregister(first).unwrap().fd.unwrap();
    let second = scene.register(fd, 0, None).unwrap();
    assert_eq!(first.number(), second.number());
    assert_eq!(scene.write(first, "x"), Err(Misuse::StaleHandle.into()));
    scene.write(second, "x").unwrap();
    scene.expect_written(second, 1);
}

/// A slot that a registered descriptor has used goes on with its own generations.
fn registered_descriptor_does_not_revive_stale_handles(case: &Case) {
    let (mut scene, folder) = (case.scene(), Folder::new());
    let address = Address::unix(folder.path("listener")).unwrap();
    let listener = scene.listen(&address, &ListenOptions::default(), 0).unwrap();
    scene.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
    let visitor = |scene: &mut Scene| {
        let _client = UnixStream::connect(folder.path("listener")).unwrap();
        let handle = scene.accepted(listener);
        scene.unregister(handle).unwrap();
        handle
    };
    let mut stale: Vec<_> = (0..12).map(|_| visitor(&mut scene)).collect();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let registered = scene.register(ours.into(), 0, None).unwrap();
    scene.unregister(registered).unwrap();
    for _ in 0..24 {
        let handle = visitor(&mut scene);
        assert!(!stale.contains(&handle), "{handle:?} has named another connection");
        stale.push(handle);
    }
}

/// Begins a handle of some kind.
fn begin_some(scene: &mut Scene, folder: &Folder, listener: Handle, kind: u32) -> Handle {
    match kind {
        0 => scene.timer(Duration::from_secs(60), None, 0).unwrap(),
        1 => scene.socket(SocketKind::Udp4, None, 0).unwrap(),
        2 => scene.open(&folder.path("none"), &OpenOptions::read(), 0).unwrap(),
        3 => scene.register(UnixStream::pair().unwrap().0.into(), 0, None).unwrap(),
        4 => scene.register(std::io::pipe().unwrap().0.into(), 0, None).unwrap(),
        5 => scene.listening("127.0.0.1:0").0,
        6 => scene.stream(Stream::ConnectedUnix).0,
        _ => {
            let _client = UnixStream::connect(folder.path("listener")).unwrap();
            scene.accepted(listener)
        }
    }
}

/// Each number counts its own uses, whatever it names, and ended handles are refused.
fn stale_handles_of_every_kind_stay_stale(case: &Case) {
    let (mut scene, folder) = (case.scene(), Folder::new());
    let (mut live, mut ended, mut random) = (Vec::new(), HashSet::new(), 13_u32);
    let mut latest = HashMap::new();
    let address = Address::unix(folder.path("listener")).unwrap();
    let listener = scene.listen(&address, &ListenOptions::default(), 0).unwrap();
    scene.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
    for step in 0..400 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Mostly connections, which are handles that no call of the program has begun.
        let handle = begin_some(&mut scene, &folder, listener, (random >> 20) % 40);
        assert!(!ended.contains(&handle), "step {step}: {handle:?} was used before");
        let before = latest.insert(handle.number(), generation(handle));
        let before = before.unwrap_or_default();
        assert!(before <= generation(handle), "step {step}: {handle:?} after {before}");
        live.push(handle);
        // So few at a time that each number is used more often than the program calls.
        if live.len() > 1 {
            let handle = live.swap_remove((random >> 10) as usize % live.len());
            if (random >> 9).is_multiple_of(8) && scene.channel.to_fd(handle).is_ok() {
                let Event::ToFd(Ok(_)) = scene.next_of(handle) else { panic!("it moves") };
            } else {
                scene.unregister(handle).unwrap();
            }
            ended.insert(handle);
        }
        for &handle in &ended {
            assert_eq!(scene.set_cookie(handle, 1), Err(Misuse::StaleHandle), "{handle:?}");
        }
    }
}

fn generation(handle: Handle) -> u64 {
    handle.to_bits() >> 12 & ((1 << 21) - 1)
}

fn a_handle_of_another_channel_is_foreign(case: &Case) {
    let (mut here, mut there) = (case.scene(), case.scene());
    let (handle, _peer) = there.stream(Stream::Accepted4);
    let (_same_number, _other_peer) = here.stream(Stream::Accepted4);
    for (name, result) in each_call(&mut here, handle) {
        assert_eq!(result, Err(Misuse::ForeignHandle.into()), "{name}");
    }
    assert!(matches!(here.unregister(handle), Err(Misuse::ForeignHandle)));
    there.write(handle, "x").unwrap();
    there.expect_written(handle, 1);
}

fn handles_made_up_from_bits_are_harmless(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    let mut bits = 0x9e37_79b9_7f4a_7c15u64;
    for turn in 0..5000 {
        bits = bits.rotate_left(7).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ turn;
        // Some with this channel's tag, so that the number and generation are looked at.
        let tagged = bits & !0xfff | u64::from(handle.channel_tag());
        for bits in [bits, tagged] {
            let made_up = Handle::from_bits(bits);
            if made_up != handle {
                scene.set_cookie(made_up, 1).unwrap_err();
                scene.write(made_up, "x").unwrap_err();
            }
        }
    }
}

fn a_handle_that_moves_takes_no_new_operation(case: &Case) {
    let mut scene = case.scene();
    let (handle, _peer) = scene.stream(Stream::Accepted4);
    scene.to_fd(handle).unwrap();
    for (name, result) in each_call(&mut scene, handle) {
        match name {
            "read" | "write" | "writev" | "disconnect" | "to_fd" => {
                assert_eq!(result, Err(Misuse::Closing.into()), "{name}");
            }
            "set_cookie" | "explain" => result.unwrap(),
            _ => assert!(
                matches!(result, Err(SubmitError::Misuse(Misuse::WrongKind { .. }))),
                "{name}"
            ),
        }
    }
    let Event::ToFd(Ok(_)) = scene.next_of(handle) else { panic!() };
    assert_eq!(scene.write(handle, "x"), Err(Misuse::StaleHandle.into()));
    scene.expect_silence();
}

fn masks_that_overlap_or_are_empty_or_not_for_listeners_are_refused(case: &Case) {
    let (mut first, mut second) = (case.scene(), case.scene());
    let listening = TcpListener::bind(there("127.0.0.1:0")).unwrap();
    let twin = listening.try_clone().unwrap();
    let address = listening.local_addr().unwrap();
    let mask = Some(CpuMask::cpus([0, 2]));
    let one = first.register(listening.into(), 0, mask).unwrap();
    let overlap = second.register(twin.try_clone().unwrap().into(), 0, Some(CpuMask::cpu(2)));
    assert!(matches!(overlap, Err(RegisterError::MaskOverlaps { core: 2 })), "{overlap:?}");
    let empty = second.register(twin.try_clone().unwrap().into(), 0, Some(CpuMask::EMPTY));
    assert!(matches!(empty, Err(RegisterError::MaskNotPossible)), "{empty:?}");
    let two = second.register(twin.into(), 0, Some(CpuMask::cpus([1, 3]))).unwrap();
    let overlap = second.set_cpu_mask(two, CpuMask::cpus([1, 0]));
    assert!(matches!(overlap, Err(RegisterError::MaskOverlaps { core: 0 })), "{overlap:?}");
    let empty = second.set_cpu_mask(two, CpuMask::EMPTY);
    assert!(matches!(empty, Err(RegisterError::MaskNotPossible)), "{empty:?}");
    assert_eq!(second.explain(two).unwrap().cpu_mask, Some(CpuMask::cpus([1, 3])));
    let (stream, _) = UnixStream::pair().unwrap();
    let refused = first.register(stream.into(), 0, mask);
    assert!(matches!(refused, Err(RegisterError::MaskNotPossible)), "{refused:?}");
    let timer = first.timer(Duration::from_secs(9), None, 0).unwrap();
    let refused = first.set_cpu_mask(timer, CpuMask::cpu(0));
    assert!(matches!(refused, Err(RegisterError::MaskNotPossible)), "{refused:?}");
    // What was refused has changed nothing: every connection finds one of the two.
    for (scene, listener) in [(&mut first, one), (&mut second, two)] {
        scene.channel.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
        scene.flush().unwrap();
    }
    let _clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut accepted = 0;
    while accepted < 20 {
        for scene in [&mut first, &mut second] {
            let done = scene.dispatch(Some(Duration::from_millis(1))).unwrap();
            accepted +=
                usize::from(done.is_some_and(|it| matches!(it.event, Event::Accept(Ok(_)))));
        }
    }
}

fn a_descriptor_cannot_be_registered_twice(case: &Case) {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let mut scene = case.scene();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let raw = ours.as_raw_fd();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    // SAFETY: this makes a second owner on purpose, the mistake under test; the channel keeps
    // the first, and is documented not to close the second, so the number is closed once.
    let twin = unsafe { OwnedFd::from_raw_fd(raw) };
    let refused = scene.register(twin, 0, None);
    assert!(matches!(refused, Err(RegisterError::AlreadyRegistered)), "{refused:?}");
    scene.write(handle, "open").unwrap();
    scene.expect_written(handle, 4);
    assert_eq!(crate::scene::receive(&mut theirs, 4), b"open");
}
