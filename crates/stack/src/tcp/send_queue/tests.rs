//! The send queue against a vector of bytes.

use proptest::prelude::*;

use super::*;
use crate::heap::HeapMemory;

#[test]
fn a_queue_without_nodes_takes_nothing() {
    let mut memory = HeapMemory::new(2, 16);
    let mut nodes = ChunkNodes::new(1, 1);
    let mut queue = SendQueue::default();
    let chunk = memory.chunk_of(b"abc").unwrap();
    // The only chunk needs none, two need one each.
    assert_eq!(queue.push(&mut nodes, chunk), Ok(()));
    assert_eq!(nodes.len(), 0);
    assert_eq!(queue.push(&mut nodes, chunk), Err(Full));
    assert_eq!((queue.bytes(), queue.chunks()), (3, 1));
    queue.clear(&mut nodes, &mut memory);
    assert_eq!((nodes.len(), memory.in_use(), queue.bytes()), (0, 0, 0));
}

#[test]
fn what_lies_past_the_end_is_zeroes() {
    let mut memory = HeapMemory::new(2, 16);
    let mut nodes = ChunkNodes::new(2, 1);
    let mut queue = SendQueue::default();
    let mut out = [9; 4];
    queue.copy_out(&nodes, &memory, 0, &mut out);
    assert_eq!(out, [0; 4]);
    queue.push(&mut nodes, memory.chunk_of(b"abc").unwrap()).unwrap();
    queue.copy_out(&nodes, &memory, 2, &mut out);
    assert_eq!(out, *b"c\0\0\0");
    queue.copy_out(&nodes, &memory, 7, &mut out);
    assert_eq!(out, [0; 4]);
}

#[derive(Debug, Clone)]
enum Step {
    Push(Vec<u8>),
    Acknowledge(u32),
    Copy(u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..33).prop_map(Step::Push),
        (0_u32..50).prop_map(Step::Acknowledge),
        (0_u32..100, 0_usize..80).prop_map(|(offset, len)| Step::Copy(offset, len)),
    ]
}

#[test]
fn a_record_goes_on_to_its_end() {
    let mut memory = HeapMemory::new(4, 16);
    let mut nodes = ChunkNodes::new(4, 1);
    let mut queue = SendQueue::default();
    queue.end_record(&mut nodes).unwrap();
    assert_eq!(queue.record_bytes(&nodes, 0), None, "nothing is queued");
    for (text, ends) in [(b"abc", false), (b"def", true), (b"ghi", false)] {
        queue.push(&mut nodes, memory.chunk_of(text).unwrap()).unwrap();
        if ends {
            queue.end_record(&mut nodes).unwrap();
        }
    }
    let bytes = |queue: &SendQueue, nodes: &ChunkNodes| {
        [0, 2, 5, 6, 8].map(|offset| queue.record_bytes(nodes, offset))
    };
    let expected = [Some(6), Some(4), Some(1), None, None];
    assert_eq!(bytes(&queue, &nodes), expected);
    queue.copy_out(&nodes, &memory, 7, &mut [0; 2]);
    assert_eq!(bytes(&queue, &nodes), expected, "wherever the cursor is");
    queue.acknowledge(&mut nodes, &mut memory, 4);
    assert_eq!(queue.record_bytes(&nodes, 0), Some(2));
    queue.acknowledge(&mut nodes, &mut memory, 5);
    queue.push(&mut nodes, memory.chunk_of(b"jkl").unwrap()).unwrap();
    assert_eq!(queue.record_bytes(&nodes, 0), None, "a node that is used again ends nothing");
    queue.clear(&mut nodes, &mut memory);
}

proptest! {
    #[test]
    fn it_is_a_vector_of_bytes(steps in prop::collection::vec(step(), 1..120)) {
        let mut memory = HeapMemory::new(200, 32);
        let mut nodes = ChunkNodes::new(200, 1);
        let mut queue = SendQueue::default();
        let mut model = Vec::new();
        for step in steps {
            match step {
                Step::Push(bytes) => {
                    queue.push(&mut nodes, memory.chunk_of(&bytes).unwrap()).unwrap();
                    model.extend(bytes);
                }
                Step::Acknowledge(bytes) => {
                    let before = queue.chunks();
                    let freed = queue.acknowledge(&mut nodes, &mut memory, bytes);
                    prop_assert_eq!(queue.chunks(), before - freed);
                    model.drain(..model.len().min(bytes as usize));
                }
                Step::Copy(offset, len) => {
                    let start = model.len().min(offset as usize);
                    let expected = &model[start..model.len().min(start + len)];
                    let mut out = vec![1; expected.len()];
                    let sum = queue.copy_out(&nodes, &memory, offset, &mut out);
                    prop_assert_eq!(&out, expected);
                    let whole = memory_sum(&out);
                    prop_assert_eq!(sum, whole);
                }
            }
            prop_assert_eq!(queue.bytes() as usize, model.len());
            prop_assert_eq!(queue.chunks() as usize, memory.in_use());
            // The only chunk has a node if others went with it.
            let has_nodes = nodes.len() > 0;
            prop_assert!(has_nodes || queue.chunks() <= 1);
            prop_assert!(!has_nodes || queue.chunks() == nodes.len());
            let listed: Vec<u8> =
                queue.iter(&nodes).flat_map(|chunk| memory.bytes(chunk).to_vec()).collect();
            prop_assert_eq!(&listed, &model);
        }
        queue.clear(&mut nodes, &mut memory);
        prop_assert_eq!((memory.in_use(), nodes.len()), (0, 0));
    }
}

fn memory_sum(bytes: &[u8]) -> u16 {
    let mut memory = HeapMemory::new(1, 4096);
    memory.copy_in(BufId(0), 0, bytes)
}
