//! When the thread looks for requests.

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use megapipe_link::{PairConfig, pair};

use super::*;
use crate::config::{ServerConfig, Waits};
use crate::link_server::Frames;

const PATIENCE: Duration = Duration::from_secs(30);

/// The thread looks for requests between a poll without work and its sleep. What it finds then has
/// already rung: nothing would wake it.
#[test]
fn stop_that_a_look_finds_ends_a_shard_that_was_about_to_sleep() {
    let (link, _other) = pair(&PairConfig::default()).expect("a pair");
    let config = ServerConfig {
        addresses: vec![(IpAddr::from([10, 0, 0, 2]), 24)],
        connections: 10,
        waits: Waits { spin: Duration::ZERO },
        ..ServerConfig::default()
    };
    let memory = SharedMemory::new(2_048, 64).expect("memory");
    let frames = Frames::Queue(Box::new(link));
    let server = Server::new(frames, &config, memory, config.clock.now()).expect("a server");
    let (sender, requests) = RequestQueue::new().expect("a descriptor");
    let lifetime = Lifetime::Requested(requests, Box::new(|_| ()));
    let mut own = RemoteServer::new(server, HandOverSettings::default(), lifetime).expect("a set");
    // Nothing is left to do but the stop, which the next poll's look finds.
    own.shard.poll(own.clock.now()).expect("a link");
    own.polls = LOOK_POLLS - 1;
    sender.send(ShardRequest::Stop);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(own.run()));
    told.recv_timeout(PATIENCE).expect("it stops").expect("without an error");
}
