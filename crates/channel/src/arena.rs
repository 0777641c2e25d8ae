//! Many short queues in one piece of memory.
//!
//! Each handle has queues of reads, of received buffers and of writes. Nearly all are empty or
//! hold one element, and there are tens of thousands of them, so a queue is eight bytes and the
//! elements lie in an [`Arena`] that all queues of one element type share.
//!
//! Invariants
//! - An element is in exactly one queue, or its node is on the free list.
//! - Nodes are reused last-in first-out, so the hot ones stay in the cache.
//! - After the first burst nothing allocates: the arena only grows to the largest total so far.

/// No node.
const NIL: u32 = u32::MAX;

/// A first-in first-out queue whose elements lie in an [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListQueue {
    head: u32,
    tail: u32,
}

impl ListQueue {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL };

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.head == NIL
    }
}

struct ArenaNode<T> {
    next: u32,
    value: Option<T>,
}

/// The memory of all queues of one element type.
pub(crate) struct Arena<T> {
    nodes: Vec<ArenaNode<T>>,
    free: u32,
    len: usize,
}

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self { nodes: Vec::new(), free: NIL, len: 0 }
    }

    /// Elements in all queues together.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes held, used or not.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<ArenaNode<T>>()
    }

    /// Appends an element. The caller bounds the number of elements (`limits::OPERATIONS_MAX`).
    #[inline(always)]
    pub(crate) fn push_back(&mut self, queue: &mut ListQueue, value: T) {
        let index = self.take_node(value);
        if queue.tail == NIL {
            queue.head = index;
        } else {
            self.nodes[queue.tail as usize].next = index;
        }
        queue.tail = index;
    }

    /// Makes room for one more element where there is none; `false` if there is no memory.
    #[inline(always)]
    pub(crate) fn reserve_one(&mut self) -> bool {
        self.free != NIL || self.nodes.try_reserve(1).is_ok()
    }

    /// Makes room for `count` more elements; `false` if there is no memory.
    #[inline]
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        self.nodes.try_reserve(count).is_ok()
    }

    /// Puts an element before the oldest.
    pub(crate) fn push_front(&mut self, queue: &mut ListQueue, value: T) {
        let index = self.take_node(value);
        self.nodes[index as usize].next = queue.head;
        if queue.tail == NIL {
            queue.tail = index;
        }
        queue.head = index;
    }

    /// Removes the oldest element.
    #[inline]
    pub(crate) fn pop_front(&mut self, queue: &mut ListQueue) -> Option<T> {
        if queue.head == NIL {
            return None;
        }
        let index = queue.head;
        let node = &mut self.nodes[index as usize];
        let value = node.value.take();
        queue.head = node.next;
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        if queue.head == NIL {
            queue.tail = NIL;
        }
        value
    }

    /// Drops the oldest element where it lies.
    #[inline]
    pub(crate) fn drop_front(&mut self, queue: &mut ListQueue) {
        let Some(node) = self.nodes.get_mut(queue.head as usize) else { return };
        node.value = None;
        let index = queue.head;
        queue.head = node.next;
        node.next = self.free;
        self.free = index;
        self.len -= 1;
        if queue.head == NIL {
            queue.tail = NIL;
        }
    }

    /// The oldest element.
    #[inline]
    pub(crate) fn front(&self, queue: ListQueue) -> Option<&T> {
        self.nodes.get(queue.head as usize).and_then(|node| node.value.as_ref())
    }

    /// The oldest element, to be changed in place.
    #[inline]
    pub(crate) fn front_mut(&mut self, queue: ListQueue) -> Option<&mut T> {
        self.nodes.get_mut(queue.head as usize).and_then(|node| node.value.as_mut())
    }

    /// The youngest element.
    #[inline]
    pub(crate) fn back(&self, queue: ListQueue) -> Option<&T> {
        self.nodes.get(queue.tail as usize).and_then(|node| node.value.as_ref())
    }

    /// The youngest element, to be changed in place.
    pub(crate) fn back_mut(&mut self, queue: ListQueue) -> Option<&mut T> {
        if queue.head == NIL {
            return None;
        }
        self.nodes.get_mut(queue.tail as usize).and_then(|node| node.value.as_mut())
    }

    /// The elements of a queue, oldest first.
    pub(crate) fn iter(&self, queue: ListQueue) -> impl Iterator<Item = &T> {
        let mut at = queue.head;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.next;
            node.value.as_ref()
        })
    }

    /// Empties a queue, oldest first.
    pub(crate) fn drain(&mut self, queue: &mut ListQueue, mut each: impl FnMut(T)) {
        while let Some(value) = self.pop_front(queue) {
            each(value);
        }
    }

    #[inline(always)]
    fn take_node(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free == NIL {
            self.nodes.push(ArenaNode { next: NIL, value: Some(value) });
            return (self.nodes.len() - 1) as u32;
        }
        let index = self.free;
        let node = &mut self.nodes[index as usize];
        self.free = node.next;
        *node = ArenaNode { next: NIL, value: Some(value) };
        index
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn queues_in_one_arena_behave_like_separate_deques(
            steps in prop::collection::vec((0usize..4, 0u8..5), 0..400),
        ) {
            let mut arena = Arena::new();
            let mut queues = [ListQueue::EMPTY; 4];
            let mut oracle: [VecDeque<usize>; 4] = Default::default();
            for (value, (which, what)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 => {
                        arena.push_back(&mut queues[which], value);
                        oracle[which].push_back(value);
                    }
                    2 => {
                        arena.push_front(&mut queues[which], value);
                        oracle[which].push_front(value);
                    }
                    _ => prop_assert_eq!(
                        arena.pop_front(&mut queues[which]),
                        oracle[which].pop_front()
                    ),
                }
                for (queue, expected) in queues.iter().zip(&oracle) {
                    prop_assert_eq!(queue.is_empty(), expected.is_empty());
                    prop_assert_eq!(arena.front(*queue), expected.front());
                    prop_assert!(arena.iter(*queue).eq(expected.iter()));
                }
                prop_assert_eq!(arena.len(), oracle.iter().map(VecDeque::len).sum::<usize>());
            }
        }
    }

    #[test]
    fn memory_is_reused_instead_of_grown() {
        let mut arena = Arena::new();
        let mut queue = ListQueue::EMPTY;
        for round in 0..1000 {
            arena.push_back(&mut queue, round);
            assert_eq!(arena.pop_front(&mut queue), Some(round));
        }
        assert_eq!(arena.nodes.len(), 1);
    }
}
