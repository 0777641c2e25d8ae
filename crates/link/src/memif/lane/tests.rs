//! Frames through one ring from both sides, and what a peer can do to it.

use super::*;
use crate::memif::ring::ring_bytes;

const SIZE_LOG2: u8 = 3;
const SIZE: u16 = 1 << SIZE_LOG2;
const BUFFER_BYTES: u32 = 128;

/// One ring with its buffers behind it, and a second mapping of the ring for the peer's hand.
struct Cable {
    region: Arc<MemifRegion>,
    ring: MemifRing,
}

impl Cable {
    fn new() -> Self {
        let bytes = ring_bytes(SIZE_LOG2) + ((BUFFER_BYTES as usize) << SIZE_LOG2);
        let (region, _fd) = MemifRegion::create(bytes).expect("region");
        let region = Arc::new(region);
        let cable = Self { ring: Self::open(&region), region };
        cable.ring.clear();
        cable
    }

    fn open(region: &Arc<MemifRegion>) -> MemifRing {
        MemifRing::at(region, 0, SIZE_LOG2).expect("ring")
    }

    fn ours(&self) -> (MemifRing, LaneBuffers) {
        let buffers = LaneBuffers::Ours {
            region: Arc::clone(&self.region),
            first_offset: ring_bytes(SIZE_LOG2) as u32,
            buffer_bytes: BUFFER_BYTES,
        };
        (Self::open(&self.region), buffers)
    }

    fn theirs(&self) -> (MemifRing, LaneBuffers) {
        let buffers = LaneBuffers::Theirs { regions: [Arc::clone(&self.region)].into() };
        (Self::open(&self.region), buffers)
    }

    /// Both ends: client to server, or the other way.
    fn ends(&self, to_server: bool) -> (SendLane, ReceiveLane) {
        let (client, server) = (self.ours(), self.theirs());
        let (from, to) = if to_server { (client, server) } else { (server, client) };
        let receiving = ReceiveLane::new(to.0, to.1);
        (SendLane::new(from.0, from.1), receiving)
    }
}

fn frame(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(3).wrapping_add(seed)).collect()
}

fn send(sending: &mut SendLane, frame: &[u8]) -> Result<u16, Nonsense> {
    let room = sending.room()?;
    let place = sending.reserve(room, frame.len())?.unwrap_or(Reserved::Chain);
    let slots = sending.put((room, place), frame)?;
    sending.publish();
    Ok(slots)
}

fn fits(sending: &SendLane, room: u16, bytes: usize) -> Result<bool, Nonsense> {
    sending.reserve(room, bytes).map(|place| place.is_some())
}

#[test]
fn frames_pass_both_ways_through_many_turns_of_the_indices() {
    for to_server in [true, false] {
        let cable = Cable::new();
        let (mut sending, mut receiving) = cable.ends(to_server);
        let mut private = vec![0; 1024];
        for round in 0..20_000u32 {
            let sent = frame(1 + (round as usize * 37) % 700, round as u8);
            assert_eq!(sending.room(), Ok(SIZE));
            assert_eq!(fits(&sending, SIZE, sent.len()), Ok(true));
            let slots = sent.len().div_ceil(BUFFER_BYTES as usize) as u16;
            assert_eq!(send(&mut sending, &sent), Ok(slots));
            assert_eq!(sending.room(), Ok(SIZE - slots));
            assert_eq!(receiving.waiting(), Ok(slots));
            let gathered = receiving.gather(slots, &mut private);
            assert_eq!(gathered, GatheredFrame::Frame { len: sent.len(), slots });
            assert_eq!(private[..sent.len()], sent);
            receiving.give_back();
        }
    }
}

#[test]
fn a_full_ring_has_no_room_until_slots_come_back() {
    for to_server in [true, false] {
        let cable = Cable::new();
        let (mut sending, mut receiving) = cable.ends(to_server);
        for number in 0..SIZE {
            assert_eq!(send(&mut sending, &frame(60, number as u8)), Ok(1));
        }
        assert_eq!(sending.room(), Ok(0));
        assert_eq!(fits(&sending, 0, 60), Ok(false));
        let mut private = [0; 128];
        assert_eq!(
            receiving.gather(SIZE, &mut private),
            GatheredFrame::Frame { len: 60, slots: 1 }
        );
        assert_eq!(sending.room(), Ok(0), "the slot was not given back yet");
        receiving.give_back();
        assert_eq!(sending.room(), Ok(1));
        assert_eq!(fits(&sending, 1, 128), Ok(true));
        assert_eq!(fits(&sending, 1, 129), Ok(false));
    }
}

#[test]
fn an_index_past_the_ring_ends_it() {
    for to_server in [true, false] {
        let cable = Cable::new();
        let (sending, receiving) = cable.ends(to_server);
        let theirs = if to_server { Index::Head } else { Index::Tail };
        cable.ring.store(theirs, SIZE + 1);
        assert!(receiving.waiting().is_err());
        let theirs = if to_server { Index::Tail } else { Index::Head };
        // The sender has sent nothing: nothing can have been taken, nor more given than there is.
        cable.ring.store(theirs, SIZE + 1);
        assert!(sending.room().is_err());
        cable.ring.store(theirs, u16::MAX);
        assert_eq!(sending.room().is_err(), !to_server);
    }
}

#[test]
fn a_descriptor_out_of_range_costs_its_frame_only() {
    let cable = Cable::new();
    let (_, mut receiving) = cable.ends(true);
    let at = ring_bytes(SIZE_LOG2) as u32;
    let good = DescriptorFields { more: false, region: 0, offset: at, len: 60 };
    let bad = [
        DescriptorFields { region: 1, ..good },
        DescriptorFields { region: u16::MAX, ..good },
        DescriptorFields { offset: u32::MAX, ..good },
        DescriptorFields { offset: at + (BUFFER_BYTES << SIZE_LOG2) - 59, ..good },
        DescriptorFields { len: 0, ..good },
    ];
    for (index, slot) in (0..).zip(bad) {
        cable.ring.write(index, slot);
    }
    cable.ring.write(5, DescriptorFields { len: u32::MAX, ..good });
    cable.ring.write(6, good);
    cable.ring.store(Index::Head, 7);
    let mut private = [0; 256];
    for left in (3..=7).rev() {
        assert_eq!(receiving.gather(left, &mut private), GatheredFrame::Malformed { slots: 1 });
    }
    assert_eq!(receiving.gather(2, &mut private), GatheredFrame::TooLong { slots: 1 });
    assert_eq!(receiving.gather(1, &mut private), GatheredFrame::Frame { len: 60, slots: 1 });
}

#[test]
fn a_chain_that_is_too_long_or_has_no_end_is_dropped_whole() {
    let cable = Cable::new();
    let (_, mut receiving) = cable.ends(true);
    let at = ring_bytes(SIZE_LOG2) as u32;
    let part = DescriptorFields { more: true, region: 0, offset: at, len: 100 };
    for index in 0..SIZE {
        cable.ring.write(index, part);
    }
    let mut private = [0; 256];
    assert_eq!(receiving.gather(3, &mut private), GatheredFrame::Incomplete);
    cable.ring.write(3, DescriptorFields { more: false, ..part });
    assert_eq!(receiving.gather(5, &mut private), GatheredFrame::TooLong { slots: 4 });
    receiving.give_back();
    assert!((0..4).all(|index| !cable.ring.read(index).more), "the chain is undone");
    for index in 0..SIZE {
        cable.ring.write(index, part);
    }
    assert_eq!(receiving.gather(SIZE, &mut private), GatheredFrame::Malformed { slots: SIZE });
}

#[test]
fn a_client_never_believes_where_its_own_buffers_are() {
    let cable = Cable::new();
    let (mut sending, mut receiving) = cable.ends(false);
    assert_eq!(send(&mut sending, &frame(60, 1)), Ok(1));
    let slot = cable.ring.read(0);
    cable.ring.write(0, DescriptorFields { region: 77, offset: u32::MAX, ..slot });
    let mut private = [0; 256];
    assert_eq!(receiving.gather(1, &mut private), GatheredFrame::Frame { len: 60, slots: 1 });
    assert_eq!(private[..60], frame(60, 1));
    receiving.give_back();
    assert_eq!(cable.ring.read(8).offset, ring_bytes(SIZE_LOG2) as u32);
    // A descriptor longer than its buffer is dropped.
    assert_eq!(send(&mut sending, &frame(60, 1)), Ok(1));
    let slot = cable.ring.read(1);
    cable.ring.write(1, DescriptorFields { len: BUFFER_BYTES + 1, ..slot });
    assert_eq!(receiving.gather(1, &mut private), GatheredFrame::Malformed { slots: 1 });
}

#[test]
fn a_server_sends_into_no_buffer_that_is_none() {
    let good = DescriptorFields { more: false, region: 0, offset: 4096, len: 64 };
    let bad = [
        DescriptorFields { region: 9, ..good },
        DescriptorFields { len: 0, ..good },
        DescriptorFields { offset: u32::MAX, ..good },
        DescriptorFields { len: u32::MAX, ..good },
    ];
    for slot in bad {
        let cable = Cable::new();
        let (mut sending, _) = cable.ends(false);
        cable.ring.write(0, slot);
        assert!(sending.reserve(SIZE, 60).is_err());
        assert!(sending.scatter(SIZE, &[0; 60]).is_err());
        if slot.region != good.region || slot.offset != good.offset {
            assert!(sending.put((SIZE, Reserved::Slot(slot)), &[0; 60]).is_err());
        }
    }
}

/// Whatever is scribbled over the whole shared memory, from between any two steps: no panic, no
/// hang, and what comes out is a frame, a drop or the end.
#[test]
fn scribbling_is_survived() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut outcomes = [0u32; 4];
    for _ in 0..400 {
        for to_server in [true, false] {
            let cable = Cable::new();
            let (mut sending, mut receiving) = cable.ends(to_server);
            for _ in 0..40 {
                scribble(&cable, &mut next);
                let Ok(waiting) = receiving.waiting() else {
                    outcomes[0] += 1;
                    break;
                };
                let mut private = [0; 300];
                match receiving.gather(waiting, &mut private) {
                    GatheredFrame::Frame { len, slots } => {
                        assert!(len <= 300 && slots <= waiting);
                        outcomes[1] += 1;
                    }
                    GatheredFrame::TooLong { .. } | GatheredFrame::Malformed { .. } => {
                        outcomes[2] += 1
                    }
                    GatheredFrame::Incomplete => {}
                }
                receiving.give_back();
                scribble(&cable, &mut next);
                let sent = send(&mut sending, &[7; 200]);
                outcomes[3] += u32::from(sent.is_ok());
            }
        }
    }
    assert!(outcomes.iter().all(|&count| count > 100), "each was reached: {outcomes:?}");
}

/// Writes a few random bytes, mostly small ones, over header and descriptors.
fn scribble(cable: &Cable, next: &mut impl FnMut() -> u64) {
    for _ in 0..next() % 4 {
        let at = match next() % 4 {
            0 => 4 + next() % 4,
            1 => 64 + next() % 2,
            _ => 128 + next() % (16 << SIZE_LOG2),
        };
        let byte = if next().is_multiple_of(4) { next() as u8 } else { (next() % 8) as u8 };
        assert!(cable.region.write(at as usize, &[byte]));
    }
}
