//! Looped frames beside those of a link, with room and without.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use megapipe_link::{FrameCounters, LinkMedium, RxMetadata};
use stack::{Checksums, Handover, Instant, Received, Transmit};

use super::*;
use crate::limits::LOOPED_FRAMES_MAX;
use crate::steering::SteeringKey;

/// What a link has seen, and for how many frames it has room.
#[derive(Default)]
struct Wire {
    room: usize,
    sent: Vec<u8>,
    looped: Vec<u8>,
}

struct TestLink(Arc<Mutex<Wire>>, Caps, OwnedFd);

impl Link for TestLink {
    fn caps(&self) -> &Caps {
        &self.1
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        if max > 0 {
            each(&[200], RxMetadata::default());
        }
        Ok(max.min(1))
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let mut wire = self.0.lock().unwrap();
        let mut count = 0;
        while count < max && wire.room > 0 {
            let mut room = [0; 100];
            let Some(transmit) = fill(&mut room) else { break };
            assert_eq!(transmit.len, 1);
            wire.sent.push(room[0]);
            wire.room -= 1;
            count += 1;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.2.as_fd()
    }

    fn counters(&self) -> FrameCounters {
        FrameCounters::default()
    }

    fn record_looped(&mut self, frame: &[u8], _: TxMetadata) {
        self.0.lock().unwrap().looped.extend(frame);
    }
}

/// Frames that a stack was lent: their byte, and whether they were looped.
#[derive(Default)]
struct Sink(Vec<(u8, bool)>);

impl FrameSink for Sink {
    fn knows(&self, _: &SteeringKey) -> bool {
        true
    }

    fn on_frame(&mut self, frame: &[u8], received: Received) {
        self.0.push((frame[0], received.checksums == Checksums::Looped));
    }

    fn on_stray(&mut self, frame: &[u8], received: Received) {
        self.on_frame(frame, received);
    }

    fn refuse(&mut self, frame: &[u8], received: Received) {
        self.on_frame(frame, received);
    }

    fn on_handover(&mut self, _: Handover) {}
}

fn server(room: usize) -> (LinkServer, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire { room, ..Wire::default() }));
    let caps = Caps {
        driver: "test",
        medium: LinkMedium::Ip,
        mac: [0; 6],
        mtu: 100,
        tx_frame_bytes: 100,
        tx_checksum: false,
        tso: false,
        shares_host_address: false,
        rss: None,
        notes: Vec::new(),
    };
    let fd = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let link = TestLink(Arc::clone(&wire), caps, fd);
    (LinkServer::new(Frames::Queue(Box::new(link))), wire)
}

/// Frames 0, 1, 2 and so on; those that `stays_here` says stay here.
fn frames(count: u8, stays_here: fn(u8) -> bool) -> impl FnMut(&mut [u8]) -> Option<Transmit> {
    let mut all = 0..count;
    move |room| {
        let frame = all.next()?;
        room[0] = frame;
        Some(Transmit::new(1).staying(stays_here(frame)))
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(1_000 + ms)
}

#[test]
fn looped_frames_come_before_those_of_the_link() {
    let (mut server, wire) = server(3);
    let count = server.transmit((at(0), true), frames(7, |frame| frame % 2 == 1)).unwrap();
    assert_eq!(count, 5, "the link has room for three, and is asked with it for the two between");
    assert!(!server.arm().unwrap(), "frames wait");
    let mut sink = Sink::default();
    assert_eq!(server.receive(&mut sink).unwrap(), 3);
    assert_eq!(sink.0, [(1, true), (3, true), (200, false)]);
    assert_eq!(wire.lock().unwrap().sent, [0, 2, 4]);
    assert_eq!(wire.lock().unwrap().looped, [1, 3]);
    assert_eq!(server.counters().looped, 2);
    assert!(server.arm().unwrap());
}

#[test]
fn stack_is_not_asked_while_looped_frames_wait() {
    let (mut server, _wire) = server(1_000);
    let mut fill = frames(200, |_| true);
    assert_eq!(server.transmit((at(0), true), &mut fill).unwrap(), LOOPED_FRAMES_MAX);
    assert_eq!(server.transmit((at(0), true), &mut fill).unwrap(), LOOPED_FRAMES_MAX);
    let mut sink = Sink::default();
    while server.has_looped() {
        server.receive_looped(&mut sink);
        server.transmit((at(0), true), &mut fill).unwrap();
    }
    let bytes: Vec<u8> = sink.0.iter().map(|(byte, _)| *byte).collect();
    assert_eq!(bytes, (0..200).collect::<Vec<u8>>(), "none is lost, and none overtakes another");
}

#[test]
fn full_link_stops_looped_frames_for_a_bounded_time() {
    let (mut server, wire) = server(0);
    let mut fill = frames(40, |frame| frame % 4 == 3);
    assert_eq!(server.transmit((at(0), true), &mut fill).unwrap(), 0);
    let stuck = LINK_STUCK_AFTER.as_millis() as u64;
    assert_eq!(server.passes_full_link_at(at(1)), Some(at(stuck)));
    assert_eq!(server.transmit((at(stuck - 1), true), &mut fill).unwrap(), 0);
    assert_eq!(server.transmit((at(stuck), true), &mut fill).unwrap(), 10);
    assert_eq!(server.passes_full_link_at(at(stuck)), None, "a sleeping server is not woken");
    assert_eq!(server.counters().tx_dropped_stuck, 30);
    let mut sink = Sink::default();
    assert_eq!(server.receive_looped(&mut sink), 10);
    // Once it has room the time begins anew.
    wire.lock().unwrap().room = 1;
    let mut fill = frames(40, |frame| frame % 4 == 3);
    assert_eq!(server.transmit((at(2 * stuck), true), &mut fill).unwrap(), 1);
    assert_eq!(server.transmit((at(2 * stuck), true), &mut fill).unwrap(), 0);
    assert_eq!(server.counters().tx_dropped_stuck, 30);
}

#[test]
fn full_link_loses_nothing_of_a_stack_without_local_peers() {
    let (mut server, wire) = server(0);
    let mut fill = frames(3, |_| false);
    for ms in [0, 1_000, 100_000] {
        assert_eq!(server.transmit((at(ms), false), &mut fill).unwrap(), 0);
    }
    wire.lock().unwrap().room = 9;
    assert_eq!(server.transmit((at(200_000), false), &mut fill).unwrap(), 3);
    assert_eq!(server.counters().tx_dropped_stuck, 0);
    assert!(LINK_STUCK_AFTER > Duration::from_millis(200), "the shortest time-out of the stack");
}
