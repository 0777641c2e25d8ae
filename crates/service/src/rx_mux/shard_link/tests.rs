//! What wakes a shard that sleeps: looked at in its set, where its own descriptors tell who it was.

use std::time::Instant;

use megapipe_link::{Link, LinkMedium, Pair, PairConfig, pair};
use rustix::buffer::spare_capacity;

use super::*;
use crate::rx_mux::switch;

const KEY: [u8; 16] = *b"a key for a test";

struct NoStack;

impl FrameSink for NoStack {
    fn knows(&self, _: &SteeringKey) -> bool {
        false
    }

    fn on_frame(&mut self, _: &[u8], _: Received) {}

    fn on_stray(&mut self, _: &[u8], _: Received) {}

    fn refuse(&mut self, _: &[u8], _: Received) {}

    fn on_handover(&mut self, _: Handover) {}
}

/// The peer's end of each of `queues` queues, and the links of two shards, which are awake.
fn network(queues: usize) -> (Vec<Pair>, [ShardLink; 2]) {
    let (peers, links) = network_of(queues, 2);
    (peers, links.try_into().ok().unwrap())
}

/// The peer's end of each of `queues` queues, and the links of `shards` shards, which are awake.
fn network_of(queues: usize, shards: u16) -> (Vec<Pair>, Vec<ShardLink>) {
    let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
    let (ours, peers): (Vec<Box<dyn Link>>, Vec<Pair>) = (0..queues)
        .map(|_| {
            let (ours, peer) = pair(&config).unwrap();
            (Box::new(ours) as Box<dyn Link>, peer)
        })
        .unzip();
    let mut links = switch(ours, shards, &KEY).unwrap();
    links.iter_mut().for_each(look);
    (peers, links)
}

fn look(link: &mut ShardLink) {
    link.receive(16, &mut NoStack).unwrap();
}

/// A frame for any shard: its reader keeps it.
fn send(peer: &mut Pair) {
    let mut frames = 1..=1;
    let sent = peer.tx_burst(1, &mut |room| {
        frames.next()?;
        room[..20].fill(0);
        Some(TxMetadata { len: 20, ..TxMetadata::default() })
    });
    assert_eq!(sent.unwrap(), 1);
}

/// Whether its queues would wake a shard now. Its watch says nothing about that.
fn is_rung(link: &ShardLink, by: u64) -> bool {
    let mut events: Vec<epoll::Event> = Vec::with_capacity(8);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    epoll::wait(&link.set, spare_capacity(&mut events), Some(&now)).unwrap();
    events.iter().any(|event| event.data.u64() == by)
}

#[test]
fn a_sleeper_is_woken_by_its_own_queue_beside_a_neighbour_who_is_busy_on_another() {
    let (mut peers, mut links) = network(2);
    // The first is awake, and never asks for frames again.
    assert!(links[1].arm().unwrap());
    assert!(!is_rung(&links[1], QUEUE));
    send(&mut peers[1]);
    assert!(is_rung(&links[1], QUEUE));
    assert_eq!(links[1].receive(16, &mut NoStack).unwrap(), 1);
    // What comes for the neighbour does not wake it, but its watch will.
    assert!(links[1].arm().unwrap());
    send(&mut peers[0]);
    assert!(!is_rung(&links[1], QUEUE));
}

#[test]
fn a_neighbour_who_has_looked_at_a_sleeper_s_queue_leaves_it_armed() {
    let (mut peers, mut links) = network(2);
    assert!(links[1].arm().unwrap());
    // It has nothing else to do, reads what came, and is busy from then on.
    let mut taken = 0;
    for round in 0..4 * LOOKS_BEFORE_READING {
        if round == 2 * LOOKS_BEFORE_READING {
            send(&mut peers[1]);
        }
        taken += links[0].receive(16, &mut NoStack).unwrap();
    }
    assert_eq!(taken, 1, "a shard without work reads it");
    assert!(links[1].arm().unwrap());
    (0..2 * LOOKS_BEFORE_READING).for_each(|_| look(&mut links[0]));
    assert!(!is_rung(&links[1], QUEUE));
    send(&mut peers[1]);
    assert!(is_rung(&links[1], QUEUE));
}

#[test]
fn who_wakes_while_all_sleep_has_the_others_watch() {
    let (mut peers, mut links) = network(1);
    assert!(links[0].arm().unwrap() && links[1].arm().unwrap());
    // The second sleeps on the link alone, which the first reads for another reason than a frame.
    look(&mut links[0]);
    send(&mut peers[0]);
    let mut fds = [PollFd::new(&links[1].set, PollFlags::IN)];
    let long = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "it would have slept for ever");
    assert!(is_rung(&links[1], ALARM));
    assert_eq!(links[1].receive(16, &mut NoStack).unwrap(), 1);
}

#[test]
fn all_are_woken_by_any_queue_where_all_sleep() {
    let (mut peers, mut links) = network(2);
    assert!(links[0].arm().unwrap() && links[1].arm().unwrap());
    // The first lay down beside one who was awake: it has its own queue, and its watch.
    assert!(!is_rung(&links[0], QUEUE) && !is_rung(&links[1], QUEUE));
    send(&mut peers[0]);
    assert!(is_rung(&links[0], QUEUE) && is_rung(&links[1], QUEUE));
}

/// Lets all shards sleep for `time`, each woken by what its set shows. How often one was woken.
fn wake_ups(links: &mut [ShardLink], time: Duration) -> usize {
    let end = Instant::now() + time;
    let mut count = 0;
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).unwrap();
        let mut fds: Vec<_> =
            links.iter().map(|link| PollFd::new(&link.set, PollFlags::IN)).collect();
        if poll(&mut fds, Some(&left)).unwrap() == 0 {
            return count;
        }
        let is_woken: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (link, _) in links.iter_mut().zip(is_woken).filter(|(_, is_woken)| *is_woken) {
            count += 1;
            look(link);
            assert!(link.arm().unwrap(), "there is no work");
        }
    }
}

#[test]
fn idle_shards_sleep_until_a_frame_arrives() {
    for (queues, shards) in [(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (3, 8), (4, 2)] {
        let (mut peers, mut links) = network_of(queues, shards);
        for link in &mut links {
            assert!(link.arm().unwrap());
        }
        // Each watch that was set while others were awake goes off once, and the shard that it
        // wakes finds all others asleep.
        let settled = wake_ups(&mut links, 10 * WATCH_PERIOD_MAX);
        assert!(settled <= 2 * links.len(), "{settled} wake-ups: {queues} queues, {shards} shards");
        assert_eq!(wake_ups(&mut links, Duration::from_millis(100)), 0, "{queues}, {shards}");
        // After a frame, too.
        send(&mut peers[0]);
        let woken = wake_ups(&mut links, 10 * WATCH_PERIOD_MAX);
        assert!((1..=3 * links.len()).contains(&woken), "{woken}: {queues}, {shards}");
        assert_eq!(wake_ups(&mut links, Duration::from_millis(100)), 0, "{queues}, {shards}");
    }
}

#[test]
fn shards_that_sleep_beside_a_busy_one_keep_looking() {
    let (mut peers, mut links) = network_of(1, 3);
    for link in &mut links {
        assert!(link.arm().unwrap());
    }
    // Awake, and then busy with something else.
    look(&mut links[0]);
    for _ in 0..3 {
        let began = wake_ups(&mut links[1..], Duration::from_millis(50));
        assert!(began >= 2, "{began} wake-ups");
    }
    send(&mut peers[0]);
    let frames =
        |links: &[ShardLink]| links.iter().map(|link| link.counters().rx_frames).sum::<u64>();
    let before = frames(&links);
    let deadline = Instant::now() + Duration::from_secs(20);
    while frames(&links) == before {
        assert!(Instant::now() < deadline, "no shard reads the link");
        wake_ups(&mut links[1..], Duration::from_millis(10));
    }
}
