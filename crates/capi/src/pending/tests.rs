//! The queues of pending operations, compared with ordinary queues.

use std::collections::{HashMap, VecDeque};

use super::*;

/// A handle with this number; the low bits make it unique.
fn handle(number: u32, salt: u64) -> Handle {
    Handle::from_bits(u64::from(number) << 33 | salt << 12 | 1)
}

fn read(id: usize) -> PendingOp {
    PendingOp::Read(place(id))
}

fn place(id: usize) -> ReadDestination {
    ReadDestination::Copy(std::ptr::without_provenance_mut(id), id)
}

fn push(table: &mut PendingTable, handle: Handle, pending: PendingOp) {
    let queue = table.enter(handle);
    match pending {
        PendingOp::Read(place) => table.push_read(queue, place),
        pending => table.push(queue, pending),
    }
}

fn pop(table: &mut PendingTable, handle: Handle) -> Option<ReadAnswer> {
    let queue = table.find(handle)?;
    table.pop_read(queue)
}

fn popped(table: &mut PendingTable, handle: Handle) -> Option<usize> {
    pop(table, handle).map(|answer| match answer.place {
        ReadDestination::Copy(_, id) => id,
        _ => panic!("only copies were pushed"),
    })
}

#[test]
fn reads_complete_in_order_of_submission() {
    let mut table = PendingTable::default();
    let (fd, lwsocket) = (handle(5, 1), handle(FIRST_LWSOCKET + 5, 1));
    for id in 1..=3 {
        push(&mut table, fd, read(id));
        push(&mut table, lwsocket, read(id * 10));
    }
    for id in 1..=3 {
        assert_eq!(popped(&mut table, lwsocket), Some(id * 10));
        assert_eq!(popped(&mut table, fd), Some(id));
    }
    assert_eq!(popped(&mut table, fd), None);
}

#[test]
fn reused_handle_number_has_an_empty_queue() {
    let mut table = PendingTable::default();
    let (old, new) = (handle(FIRST_LWSOCKET, 1), handle(FIRST_LWSOCKET, 2));
    push(&mut table, old, read(1));
    push(&mut table, old, read(2));
    assert_eq!(popped(&mut table, new), None);
    push(&mut table, new, read(3));
    table.leave(old);
    assert_eq!(popped(&mut table, new), Some(3), "a stale handle removes nothing");
    push(&mut table, new, read(4));
    table.leave(new);
    assert_eq!(popped(&mut table, new), None);
}

#[test]
fn find_of_a_forged_handle_allocates_nothing() {
    let mut table = PendingTable::default();
    assert_eq!(table.find(Handle::from_bits(u64::MAX)), None);
    table.leave(Handle::from_bits(u64::MAX));
    assert!(table.queues.iter().all(|queues| queues.capacity() == 0));
}

#[test]
fn memory_is_reused() {
    let mut table = PendingTable::default();
    for round in 0..1000 {
        let handle = handle(7, round);
        for id in 0..4 {
            push(&mut table, handle, read(id));
        }
        popped(&mut table, handle);
    }
    assert_eq!(table.nodes.len(), 4);
}

#[test]
fn reads_at_offsets_run_one_at_a_time() {
    let mut table = PendingTable::default();
    let file = handle(FIRST_LWSOCKET + 9, 1);
    let at = |offset| QueuedRead { len: 10, offset: Some(offset) };
    let queue = table.enter(file);
    assert!(!table.must_wait(queue, true) && !table.must_wait(queue, false));
    push(&mut table, file, read(1));
    assert!(!table.must_wait(queue, false), "plain reads complete in order anyway");
    assert!(table.must_wait(queue, true));
    push(&mut table, file, PendingOp::Waiting(place(2), at(70)));
    assert!(table.must_wait(queue, false), "it would overtake");
    push(&mut table, file, PendingOp::Waiting(place(3), QueuedRead { len: 5, offset: None }));
    push(&mut table, file, PendingOp::Waiting(place(4), at(80)));
    assert_eq!(table.start_waiting(queue), None, "the oldest is in progress");
    assert_eq!(pop(&mut table, file).map(|answer| answer.more), Some(true));
    assert_eq!(popped(&mut table, file), None, "the next is not submitted");
    assert_eq!(table.start_waiting(queue), Some(at(70)));
    assert_eq!(popped(&mut table, file), Some(2));
    assert_eq!(table.start_waiting(queue), Some(QueuedRead { len: 5, offset: None }));
    assert_eq!(popped(&mut table, file), Some(3));
    assert_eq!(table.start_waiting(queue), Some(at(80)));
    assert_eq!(pop(&mut table, file).map(|answer| answer.more), Some(false));
    assert_eq!(table.start_waiting(queue), None);
    assert!(!table.must_wait(queue, true));
}

#[test]
fn accepts_are_used_one_connection_at_a_time() {
    let mut table = PendingTable::default();
    let listener = handle(3, 1);
    push(&mut table, listener, PendingOp::Accept { remaining: 2, first_read: true });
    push(&mut table, listener, PendingOp::Accept { remaining: 1, first_read: false });
    push(&mut table, listener, PendingOp::Accept { remaining: u32::MAX, first_read: true });
    let queue = table.enter(listener);
    let spent: Vec<bool> = (0..6).map(|_| table.spend_accept(queue)).collect();
    assert_eq!(spent, [true, true, false, true, true, true]);
    let other = table.enter(handle(4, 1));
    assert!(!table.spend_accept(other), "no accept is pending here");
    assert_eq!(table.pop_read(queue), None, "an accept is no read");
}

#[test]
fn table_matches_a_queue_for_each_handle() {
    // The same random program on the table and on ordinary queues.
    let mut table = PendingTable::default();
    let mut model: HashMap<u32, (u64, VecDeque<usize>)> = HashMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for id in 0..20_000 {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (number, action) = ((random >> 40) as u32 % 6, (random >> 50) % 8);
        let number = if number % 2 == 0 { number } else { FIRST_LWSOCKET + number };
        let (salt, queue) = model.entry(number).or_default();
        match action {
            0 => {
                table.leave(handle(number, *salt));
                *salt = (*salt + 1) % 1000;
                queue.clear();
            }
            1..=4 => {
                push(&mut table, handle(number, *salt), read(id));
                queue.push_back(id);
            }
            _ => assert_eq!(popped(&mut table, handle(number, *salt)), queue.pop_front()),
        }
    }
}
