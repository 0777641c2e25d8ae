//! When the thread looks for requests, and when it wakes an application on its own core.

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use megapipe_link::{Pair, PairConfig, pair};
use megapipe_shm::Region;
use megapipe_shm::limits::BELL_BYTES;

use super::*;
use crate::config::{ServerConfig, Waits};
use crate::link_server::Frames;
use crate::session_sizes::SessionSizes;
use crate::sleep::wait_readable;

const PATIENCE: Duration = Duration::from_secs(30);

/// A server without sessions, and the other end of its link.
fn server() -> (Server<SharedMemory>, Pair) {
    let (link, other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 2]), 24)],
        connections: 10,
        waits: Waits { spin: Duration::ZERO, ..Waits::default() },
        ..ServerConfig::default()
    };
    let memory = SharedMemory::new(2_048, 64).expect("memory");
    let frames = Frames::Queue(Box::new(link));
    (Server::new(frames, &config, memory, config.clock.now()).expect("a server"), other)
}

/// A shard without sessions, what it is stopped by, and the other end of its link.
fn shard() -> (RemoteServer, requests::RequestSender, Pair) {
    let (server, other) = server();
    let (sender, requests) = RequestQueue::new().expect("a descriptor");
    let lifetime = Lifetime::Requested(requests, Box::new(|_| ()));
    let settings = (HandOverSettings::default(), ShardPeers::default());
    let own = RemoteServer::new(server, settings, lifetime).expect("a set");
    (own, sender, other)
}

#[test]
fn application_on_the_shards_core_is_woken_without_work_or_late() {
    let (mut own, _sender, _other) = shard();
    let mut parts = Region::heap(2 * BELL_BYTES).expect("memory").into_parts();
    let (application, bell) = SleepingEnd::pair(&mut parts).expect("two doorbells");
    let id = PoolId(1);
    own.bells.insert(id, bell).expect("an epoll set");
    let now = own.clock.now();
    let is_rung = || {
        let readable = wait_readable([Some(application.fd())], Some(Duration::ZERO));
        application.clear().expect("the other end is there");
        readable.expect("poll works")[0]
    };
    for (later, has_worked, is_woken) in [
        (Duration::ZERO, false, true),
        (WAKE_DELAY_MAX / 2, true, false),
        (WAKE_DELAY_MAX, true, true),
    ] {
        application.arm();
        own.delay(now, id);
        let yields = own.wake_delayed(now + later, has_worked);
        assert_eq!((is_rung(), yields), (is_woken, is_woken && !has_worked), "{later:?}");
        own.delayed.clear();
    }
}

#[test]
fn sleep_is_brief_after_work_while_an_application_on_the_core_is_awake() {
    let (server, _other) = server();
    let sizes = SessionSizes::of(2_048, 16);
    let (ServerHalf { ends, memory, .. }, fds) = sizes.create().expect("memory");
    let application = sizes.client(fds).expect("as agreed").sleep;
    let mut own = RemoteServer::for_session(server, ends, memory).expect("a set");
    let core = own.core;
    for (has_worked, sleeps, its_core, is_brief) in [
        (true, false, core, true),
        (false, false, core, false),
        (true, true, core, false),
        (true, false, core + 1, false),
    ] {
        application.note_core(its_core);
        if sleeps {
            application.arm();
        }
        own.has_worked = has_worked;
        let case = format!("{has_worked}, {sleeps}, {its_core}");
        assert_eq!(own.arm(), (is_brief, false), "{case}");
        assert_eq!(own.arm(), (false, false), "{case}: and not twice for the same work");
        application.disarm();
    }
    application.mark_ended();
    assert_eq!(own.arm(), (false, true));
}

/// The thread looks for requests between a poll without work and its sleep. What it finds then has
/// already rung: nothing would wake it.
#[test]
fn stop_that_a_look_finds_ends_a_shard_that_was_about_to_sleep() {
    let (mut own, sender, _other) = shard();
    // Nothing is left to do but the stop, which the next poll's look finds.
    own.shard.poll(own.clock.now()).expect("a link");
    own.polls = LOOK_POLLS - 1;
    sender.send(ShardRequest::Stop);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(own.run()));
    told.recv_timeout(PATIENCE).expect("it stops").expect("without an error");
}
