//! Exchange of receive buffers, heap memory in their place, and overflow buffers.

use super::*;
use crate::buffer::ReadBuf;
use crate::kernel::pool::PoolOwner;

/// The pools, and what a channel has of them.
fn pools() -> (Pools, [PoolOwner; 2]) {
    let owners = [8, 4].map(|count| PoolOwner::new(64, count).unwrap());
    let [receive, send] = [0, 1].map(|pool: usize| Arc::clone(&owners[pool]));
    (Pools { receive, send }, owners)
}

fn out(memory: &LentMemory, chunk: Chunk) -> Vec<u8> {
    let mut bytes = vec![0xee; chunk.len as usize];
    memory.copy_out(chunk, &mut bytes);
    bytes
}

#[test]
fn buffers_go_to_and_fro_by_their_numbers() {
    let (pools, _owners) = pools();
    let mut memory = LentMemory::new(&pools);
    assert_eq!(pools.receive.free_count(), 2, "a quarter stays with the kernel's driver");
    let buf = memory.alloc(PoolId::default()).unwrap();
    let sum = memory.copy_in(buf, 0, b"hello world");
    let all = Chunk { buf, offset: 0, len: 11 };
    let Some(ReceivedMemory::Pool(held)) = memory.received(all) else { panic!("it has a buffer") };
    assert!(memory.received(all).is_none(), "it was taken");
    let mut bytes = ReadBuf::new(pools.receive.adopt(held, 11).unwrap());
    let front = bytes.split_to(6);
    let front = pools.surrender(memory.surrendered(), front).map_err(drop).unwrap();
    let rest = pools.surrender(memory.surrendered(), bytes).map_err(drop).unwrap();
    assert_eq!((out(&memory, front), out(&memory, rest)), (b"hello ".into(), b"world".into()));
    assert_eq!(memory.copy_out(Chunk { len: 11, ..front }, &mut [0; 11]), sum);
    memory.free(front.buf);
    memory.free(rest.buf);
    assert_eq!(pools.receive.free_count(), 2, "the channel has not come by");
    memory.exchange(&pools);
    assert_eq!((memory.stock.len(), pools.receive.free_count()), (6, 2));
}

#[test]
fn the_server_frees_and_copies_on_its_own_thread() {
    let (pools, _owners) = pools();
    let mut memory = LentMemory::new(&pools);
    let chunk = pools.copy(memory.surrendered(), b"from a buffer").unwrap();
    let memory = std::thread::spawn(move || {
        assert_eq!(out(&memory, chunk), b"from a buffer");
        let buf = memory.alloc(PoolId::default()).unwrap();
        memory.copy_in(buf, 2, b"came");
        memory.free(buf);
        memory.free(chunk.buf);
        memory
    });
    let mut memory = memory.join().expect("nothing failed there");
    assert_eq!((pools.send.free_count(), memory.stock.len()), (3, 5));
    memory.exchange(&pools);
    assert_eq!((pools.send.free_count(), memory.stock.len()), (4, 6));
    assert!(out(&memory, chunk).iter().all(|byte| *byte == 0), "it has no owner");
}

#[test]
fn heap_memory_stands_in_when_the_stock_is_out() {
    let (pools, _owners) = pools();
    let mut memory = LentMemory::new(&pools);
    let bufs: Vec<_> = (0..7).map_while(|_| memory.alloc(PoolId::default())).collect();
    assert_eq!(bufs.len(), 7);
    memory.copy_in(bufs[6], 0, b"late");
    let chunk = Chunk { buf: bufs[6], offset: 0, len: 4 };
    let Some(ReceivedMemory::Heap(bytes)) = memory.received(chunk) else {
        panic!("it has no buffer")
    };
    assert_eq!((&*bytes, memory.heap.reserve_count()), (&b"late"[..], 0));
    bufs[..6].iter().for_each(|buf| memory.free(*buf));
    let spare = memory.alloc(PoolId::default()).unwrap();
    memory.free(spare);
    assert_eq!(memory.heap.reserve_count(), 0);
    memory.exchange(&pools);
    assert_eq!(memory.stock.len(), 6);
}

#[test]
fn foreign_payload_is_kept_and_returned() {
    let (pools, _owners) = pools();
    let mut memory = LentMemory::new(&pools);
    let shared: Arc<[u8]> = Arc::from(&b"shared"[..]);
    let owner: Arc<Vec<u8>> = Arc::new(b"owned".to_vec());
    let other = PoolOwner::new(64, 4).unwrap();
    let mut filled = crate::buffer::WriteBuf::with_capacity(&other, 16);
    filled.extend_from_slice(b"another's");
    for payload in [
        Payload::from(b"heap".to_vec()),
        Payload::from(&b"static"[..]),
        Payload::shared(shared, 1..4),
        Payload::owner(owner, 1..3),
        Payload::from(filled),
        Payload::from(ReadBuf::from_vec(b"received".to_vec())),
    ] {
        let bytes = payload.as_slice().to_vec();
        let chunk = memory.keep(payload).unwrap();
        assert_eq!((out(&memory, chunk), memory.buf_bytes(chunk.buf)), (bytes.clone(), chunk.len));
        let back = memory.give_back(chunk).expect("it was kept");
        assert_eq!(back.as_slice(), bytes);
        assert!(memory.give_back(chunk).is_none(), "it is given back once");
        let chunk = memory.keep(back).unwrap();
        memory.free(chunk.buf);
    }
    assert_eq!(memory.heap.payload_count(), 0);
    assert_eq!(other.free_count(), 4);
}
