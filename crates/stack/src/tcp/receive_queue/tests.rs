//! The receive queue against a reference stream.

use proptest::prelude::*;

use super::*;
use crate::heap::HeapMemory;
use crate::limits::{OUT_OF_ORDER_RANGES_MAX, SPARSE_CHUNKS_MAX};

const START: SeqNum = SeqNum(u32::MAX - 40);

struct World {
    memory: HeapMemory,
    nodes: ChunkNodes,
    queue: ReceiveQueue,
    rcv_nxt: SeqNum,
}

impl World {
    fn new(buffers: u32, buf_bytes: u32) -> Self {
        Self {
            memory: HeapMemory::new(buffers, buf_bytes),
            nodes: ChunkNodes::new(buffers, 1),
            queue: ReceiveQueue::default(),
            rcv_nxt: START,
        }
    }

    /// The stream's bytes `from..to`; a byte says where it belongs.
    fn insert(&mut self, from: u32, to: u32) -> Inserted {
        let payload: Vec<u8> = (from..to).map(|at| at as u8).collect();
        let pool = PoolId::default();
        let mut store = Store { nodes: &mut self.nodes, memory: &mut self.memory, pool };
        let inserted = self.queue.insert(&mut store, self.rcv_nxt, START + from, &payload);
        self.rcv_nxt += inserted.advanced;
        inserted
    }

    fn take_all(&mut self) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some(chunk) = self.queue.pop(&mut self.nodes) {
            taken.extend_from_slice(self.memory.bytes(chunk));
            self.memory.free(chunk.buf);
        }
        taken
    }

    fn blocks(&self) -> Vec<(u32, u32)> {
        let (blocks, count) = self.queue.sack_blocks(&self.nodes);
        blocks[..count].iter().map(|b| (b.start.since(START), b.end.since(START))).collect()
    }
}

#[test]
fn small_segments_share_a_buffer() {
    let mut world = World::new(4, 64);
    for at in 0..60 {
        assert_eq!(world.insert(at, at + 1).advanced, 1);
    }
    assert_eq!((world.memory.in_use(), world.queue.ready_bytes()), (1, 60));
    assert_eq!(world.take_all(), (0..60).collect::<Vec<u8>>());
    assert_eq!(world.memory.in_use(), 0);
}

#[test]
fn the_range_that_grew_last_is_reported_first() {
    let mut world = World::new(16, 64);
    for (from, to) in [(10, 20), (30, 40), (50, 60), (35, 45)] {
        assert!(world.insert(from, to).out_of_order);
    }
    assert_eq!(world.blocks(), [(30, 45), (50, 60), (10, 20)]);
    // A fifth range pushes out the oldest; filling a gap joins its neighbours.
    world.insert(70, 80);
    world.insert(90, 95);
    assert_eq!(world.blocks(), [(90, 95), (70, 80), (30, 45), (50, 60)]);
    world.insert(45, 50);
    assert_eq!(world.blocks(), [(30, 60), (90, 95), (70, 80)]);
    let inserted = world.insert(0, 12);
    assert_eq!(inserted.advanced, 20);
    let duplicate = inserted.duplicate.unwrap();
    assert_eq!((duplicate.start, duplicate.end), (START + 10, START + 12));
}

#[test]
fn what_came_before_is_a_duplicate() {
    let mut world = World::new(16, 64);
    world.insert(0, 20);
    let again = world.insert(5, 15);
    assert_eq!((again.advanced, again.out_of_order), (0, false));
    assert_eq!(again.duplicate, Some(SeqRange { start: START + 5, end: START + 15 }));
    let part = world.insert(10, 30);
    assert_eq!(part.advanced, 10);
    assert_eq!(part.duplicate, Some(SeqRange { start: START + 10, end: START + 20 }));
    world.insert(40, 50);
    let apart = world.insert(44, 60);
    assert_eq!(apart.duplicate, Some(SeqRange { start: START + 44, end: START + 50 }));
    assert_eq!(world.take_all(), (0..30).collect::<Vec<u8>>());
}

#[test]
fn sparse_segments_cannot_hold_many_buffers() {
    let mut world = World::new(400, 2048);
    for at in 0..200 {
        world.insert(2 * at + 1, 2 * at + 2);
    }
    assert_eq!(world.memory.in_use(), SPARSE_CHUNKS_MAX as usize);
    assert!(world.insert(1001, 1002).no_room);
    world.queue.drop_out_of_order(&mut world.nodes, &mut world.memory);
    assert_eq!((world.memory.in_use(), world.nodes.len()), (0, 0));
    assert!(!world.queue.has_gap());
}

/// The most nodes that were looked at for a segment and the SACK blocks of its ACK.
fn most_steps(world: &mut World, segments: impl Iterator<Item = (u32, u32)>) -> u32 {
    let steps_of = |world: &mut World, (from, to): (u32, u32)| {
        world.nodes.steps.set(0);
        world.insert(from, to);
        let _ = world.blocks();
        world.nodes.steps.get()
    };
    segments.map(|segment| steps_of(world, segment)).max().unwrap()
}

/// A large window of which the first segment was lost, and two more in the middle.
#[test]
fn out_of_order_segments_cost_few_steps_after_a_loss() {
    let mut world = World::new(8192, 2048);
    let segment = |n: u32| (n * 1448, (n + 1) * 1448);
    let arriving = (1..4000).filter(|n| ![1000, 2000].contains(n)).map(segment);
    assert!(most_steps(&mut world, arriving) < 32);
    assert!(most_steps(&mut world, [1000, 2000].into_iter().map(segment)) < 32);
    assert_eq!(world.blocks(), [(1448, 4000 * 1448)]);
    assert_eq!(world.insert(0, 1448).advanced, 4000 * 1448);
}

/// A peer that leaves out every second piece, and then sends into the ranges that it made.
#[test]
fn out_of_order_steps_are_bounded_against_a_hostile_peer() {
    let mut world = World::new(16_384, 512);
    let pieces = (0..9000_u32).map(|n| (n * 512 + 256, n * 512 + 512));
    let again = pieces.clone().map(|(from, to)| (from + 1, to + 1));
    let most = most_steps(&mut world, pieces.chain(again));
    assert!(most < 2 * OUT_OF_ORDER_RANGES_MAX + 16, "{most}");
    assert!(world.memory.in_use() <= OUT_OF_ORDER_RANGES_MAX as usize);
    // What fills its gaps is still taken.
    assert_eq!(world.insert(0, 2048).advanced, 2049);
}

#[test]
fn without_buffers_the_window_does_not_move() {
    let mut world = World::new(1, 16);
    let inserted = world.insert(0, 40);
    assert_eq!((inserted.advanced, inserted.no_room), (16, true));
    assert_eq!(world.take_all().len(), 16);
    assert_eq!(world.insert(16, 30).advanced, 14);
}

#[test]
fn a_filled_buffer_is_adopted() {
    let mut world = World::new(4, 16);
    let chunk = world.memory.chunk_of(&[0, 1, 2]).unwrap();
    assert!(world.queue.adopt(&mut world.nodes, chunk));
    world.rcv_nxt += 3;
    assert_eq!(world.insert(3, 6).advanced, 3);
    assert_eq!(world.memory.in_use(), 1);
    assert_eq!(world.queue.iter(&world.nodes).count(), 1);
    assert_eq!(world.take_all(), [0, 1, 2, 3, 4, 5]);
}

proptest! {
    #[test]
    fn every_byte_comes_out_once_and_in_order(
        segments in prop::collection::vec((0_u32..200, 1_u32..40, any::<bool>()), 1..120),
    ) {
        let mut world = World::new(512, 16);
        let mut there = [false; 256];
        let mut taken = Vec::new();
        for (from, len, take) in segments {
            let before = world.rcv_nxt;
            let had = there;
            let inserted = world.insert(from, from + len);
            prop_assert!(!inserted.no_room);
            there[from as usize..(from + len) as usize].fill(true);
            let in_order = there.iter().take_while(|there| **there).count() as u32;
            prop_assert_eq!(world.rcv_nxt.since(START), in_order);
            prop_assert_eq!(world.rcv_nxt, before + inserted.advanced);
            let first_old = (from..from + len).find(|at| had[*at as usize]);
            prop_assert_eq!(inserted.duplicate.map(|d| d.start.since(START)), first_old);
            let apart = there.iter().skip(in_order as usize).filter(|there| **there).count();
            prop_assert_eq!(world.queue.out_of_order_bytes(&world.nodes) as usize, apart);
            for (start, end) in world.blocks() {
                prop_assert!(start > in_order && !there[start as usize - 1]);
                prop_assert!(!there[end as usize]);
                prop_assert!(there[start as usize..end as usize].iter().all(|there| *there));
            }
            prop_assert_eq!(world.queue.has_gap(), !world.blocks().is_empty());
            if take {
                taken.extend(world.take_all());
            }
        }
        taken.extend(world.take_all());
        let expected: Vec<u8> = (0..world.rcv_nxt.since(START)).map(|at| at as u8).collect();
        prop_assert_eq!(taken, expected);
        world.queue.clear(&mut world.nodes, &mut world.memory);
        prop_assert_eq!((world.memory.in_use(), world.nodes.len()), (0, 0));
    }
}
