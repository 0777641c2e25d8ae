//! Owners of buffers, tokens, and threads that drop owners.

use super::span::SpanPlace;
use super::*;
use crate::limits::BUFFER_COUNT_MAX;

#[test]
fn the_last_owner_frees_the_buffer() {
    let pool = PoolOwner::new(128, 4).unwrap();
    let mut first = pool.take().unwrap();
    first.bytes_mut()[..5].copy_from_slice(b"abcde");
    let mut all = first.into_span(5);
    let front = all.split_to(3);
    assert_eq!(pool.free_count(), 3);
    assert_eq!((front.bytes(), all.bytes()), (&b"abc"[..], &b"de"[..]));
    drop(all);
    assert_eq!((front.bytes(), pool.free_count()), (&b"abc"[..], 3));
    drop(front);
    assert_eq!(pool.free_count(), 4);
}

#[test]
fn spans_say_where_their_bytes_are() {
    for (index, start, len) in [(0, 0, 0), (BUFFER_COUNT_MAX - 1, 1 << 20, 1 << 20)] {
        let place = SpanPlace::in_pool(index, start, len);
        assert_eq!((place.index(), place.is_in_heap()), (index, false));
        assert_eq!(place.range(), (start as usize, len as usize));
    }
    let place = SpanPlace::in_heap(i32::MAX as u32, u32::MAX).part(0, 7);
    assert!(place.is_in_heap() && place.range() == (i32::MAX as usize, 7));
    let mut heap = Span::from_vec(b"0123456789".to_vec());
    let front = heap.split_to(4);
    drop(heap.split_to(2));
    assert_eq!((front.bytes(), heap.bytes()), (&b"0123"[..], &b"6789"[..]));
    assert!(heap.split_to(100).len() == 4 && heap.len() == 0);
    assert!(Span::EMPTY.bytes().is_empty() && !Span::EMPTY.holds_pool_buffer());
}

#[test]
fn empty_pool_returns_none() {
    let pool = PoolOwner::new(64, 4).unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(all.len(), 4);
    assert!(pool.take().is_none());
}

#[test]
fn the_kernel_cannot_give_back_what_it_does_not_hold() {
    let pool = PoolOwner::new(64, 4).unwrap();
    let mut lent = Vec::new();
    pool.lend_free(|index, _| lent.push(index));
    assert_eq!(lent.len(), 4);
    let filled = pool.adopt(pool.hold(2).unwrap(), 1000).unwrap();
    assert_eq!(filled.len(), 64, "no more than there is");
    assert!(pool.hold(2).is_none(), "it is owned already");
    assert!(pool.receive(2, 1).is_none(), "by either way");
    assert!(pool.hold(4).is_none(), "there is no such buffer");
    drop(filled);
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn free_buffer_named_by_the_kernel_is_refused() {
    let pool = PoolOwner::new(64, 4).unwrap();
    assert!(pool.hold(2).is_none() && pool.receive(2, 1).is_none(), "none was lent");
    pool.lend_free(|_, _| {});
    drop(pool.receive(2, 1).unwrap());
    assert!(pool.hold(2).is_none() && pool.receive(2, 1).is_none(), "it is free again");
    let again = pool.take().unwrap();
    assert_eq!((again.index(), pool.free_count()), (2, 0));
}

#[cfg(feature = "local")]
#[test]
fn token_fills_only_its_own_pool() {
    let (pool, other) = (PoolOwner::new(64, 4).unwrap(), PoolOwner::new(64, 4).unwrap());
    let mut table = pool.held_table();
    assert_eq!(other.take_held(&mut table), None);
    let index = pool.take_held(&mut table).unwrap();
    assert_eq!(other.buffers.fill_held((&mut table, index), 0, b"abc"), 0);
    other.buffers.fill_held_by((&mut table, index), 3, |_| panic!("it has no such token"));
    assert_eq!(pool.buffers.fill_held((&mut table, index + 1), 0, b"abc"), 0);
    assert_ne!(pool.buffers.fill_held((&mut table, index), 0, b"abc"), 0);
    pool.buffers.fill_held_by((&mut table, index), 2, |to| to.copy_from_slice(b"xy"));
    assert_eq!(pool.adopt(table.take(index).unwrap(), 3).unwrap().bytes(), b"xyc");
    let again = pool.take_held(&mut table).and_then(|index| table.take(index)).unwrap();
    pool.put_back(again);
    assert_eq!((pool.free_count(), other.free_count()), (4, 4));
}

#[cfg(feature = "local")]
#[test]
fn token_of_another_pool_is_refused() {
    let (pool, other) = (PoolOwner::new(64, 4).unwrap(), PoolOwner::new(64, 4).unwrap());
    let mut table = other.held_table();
    for refused in [true, false] {
        let index = other.take_held(&mut table).unwrap();
        let held = table.take(index).unwrap();
        if refused {
            assert!(pool.adopt(held, 1).is_none());
        } else {
            pool.put_back(held);
        }
    }
    assert_eq!((pool.free_count(), other.free_count()), (4, 2));
}

#[cfg(feature = "local")]
#[test]
fn a_surrendered_owner_is_an_owner() {
    let (pool, other) = (PoolOwner::new(64, 4).unwrap(), PoolOwner::new(64, 4).unwrap());
    let mut first = pool.take().unwrap();
    first.bytes_mut()[..5].copy_from_slice(b"abcde");
    let mut all = first.into_span(5);
    let front = all.split_to(2);
    let (mut table, mut foreign) = (pool.surrendered_table(), other.surrendered_table());
    let Err(all) = all.surrender(&other, &mut foreign) else { panic!("it is of another pool") };
    let Err(all) = all.surrender(&pool, &mut foreign) else { panic!("the table is") };
    let Ok((index, 2, 3)) = all.surrender(&pool, &mut table) else { panic!("it is of this one") };
    assert_eq!(&pool.buffers.surrendered(&table, index)[2..5], b"cde");
    drop(front);
    assert_eq!(pool.free_count(), 3, "one owner is left");
    let again = pool.reclaim(&mut table, (index, 2, 3)).unwrap();
    assert_eq!((again.bytes(), pool.buffers.surrendered(&table, index)), (&b"cde"[..], &[][..]));
    assert!(pool.reclaim(&mut table, (index, 2, 3)).is_none(), "it is a span already");
    let Ok((index, ..)) = again.surrender(&pool, &mut table) else { panic!("it is of this one") };
    pool.give_up(&mut table, index);
    assert_eq!(pool.free_count(), 4);
    assert!(Span::from_vec(vec![1]).surrender(&pool, &mut table).is_err());
}

#[cfg(feature = "local")]
#[test]
fn number_without_its_table_ends_no_owner() {
    let (pool, other) = (PoolOwner::new(64, 4).unwrap(), PoolOwner::new(64, 4).unwrap());
    let [mut first, mut second] = [pool.surrendered_table(), pool.surrendered_table()];
    let mut foreign = other.surrendered_table();
    let index = pool.surrender_copy(&mut first, b"abc").unwrap();
    assert_eq!(other.surrender_copy(&mut foreign, b"xyz"), Some(index), "the same number");
    assert_eq!(pool.surrender_copy(&mut foreign, b"x"), None);
    for table in [&mut second, &mut foreign] {
        pool.give_up(table, index);
        assert!(pool.reclaim(table, (index, 0, 3)).is_none());
        assert!(pool.buffers.surrendered(table, index).is_empty());
    }
    pool.give_up(&mut first, index + 1);
    assert_eq!((pool.free_count(), other.free_count()), (3, 3));
    assert_eq!(&pool.buffers.surrendered(&first, index)[..3], b"abc");
    pool.give_up(&mut first, index);
    assert_eq!(pool.free_count(), 4);
    pool.give_up(&mut first, index);
    assert_eq!(pool.free_count(), 4, "an owner ends once");
}

#[cfg(feature = "local")]
#[test]
fn a_copy_is_owned_without_a_name_from_the_start() {
    let pool = PoolOwner::new(64, 2).unwrap();
    let table = &mut pool.surrendered_table();
    assert_eq!(pool.surrender_copy(table, &[7; 65]), None, "no buffer is so long");
    let copies = [&b"abc"[..], &[9; 64]].map(|bytes| pool.surrender_copy(table, bytes).unwrap());
    assert_eq!(pool.surrender_copy(table, b"d"), None, "none is free");
    assert_eq!(&pool.buffers.surrendered(table, copies[0])[..3], b"abc");
    assert_eq!(pool.buffers.surrendered(table, copies[1]), &[9; 64]);
    pool.give_up(table, copies[0]);
    let span = pool.reclaim(table, (copies[1], 0, 64)).unwrap();
    assert_eq!((pool.free_count(), span.bytes()), (1, &[9; 64][..]));
    drop(span);
    assert_eq!(pool.free_count(), 2);
}

#[test]
fn a_buffer_outlives_the_handle_to_its_pool() {
    let pool = PoolOwner::new(64, 4).unwrap();
    let buffer = pool.take().unwrap();
    drop(pool);
    assert_eq!(buffer.bytes().len(), 64);
}

/// A span of the first `len` bytes of a buffer that says `text`.
fn span_of(pool: &Arc<Pool>, text: &[u8]) -> Span {
    let mut buffer = pool.take().unwrap();
    buffer.bytes_mut()[..text.len()].copy_from_slice(text);
    buffer.into_span(text.len() as u32)
}

#[test]
fn owner_dropped_on_another_thread_is_released_by_the_bound_one() {
    let pool = PoolOwner::new(64, 2).unwrap();
    let mut spans = [span_of(&pool, b"abcde"), span_of(&pool, b"f")];
    let front = spans[0].split_to(2);
    assert!(pool.take().is_none());
    std::thread::scope(|scope| {
        let [rest, other] = &mut spans;
        scope.spawn(move || {
            let copied = rest.split_to(1);
            assert!(!copied.holds_pool_buffer(), "it cannot be counted here");
            assert_eq!((copied.bytes(), rest.bytes()), (&b"c"[..], &b"de"[..]));
            *rest = Span::EMPTY;
            *other = Span::EMPTY;
        });
    });
    assert_eq!(pool.free_count(), 1, "one of two buffers has an owner left");
    drop(pool.take().expect("it was released"));
    drop(front);
    assert_eq!(pool.free_count(), 2);
}

#[test]
fn thread_that_is_not_bound_takes_nothing() {
    let pool = PoolOwner::new(64, 4).unwrap();
    pool.lend_free(|_, _| {});
    let held = pool.hold(1).unwrap();
    let kept = pool.receive(0, 3).unwrap();
    pool.unbind_thread();
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            let bound = pool.bind_thread();
            drop(pool.receive(2, 1).expect("this thread is bound now"));
            bound && pool.take().is_some()
        });
        assert!(bound.join().unwrap());
    });
    assert!(!pool.bind_thread(), "the other thread did not end its binding");
    assert!(pool.take().is_none() && pool.hold(3).is_none() && pool.receive(3, 1).is_none());
    assert!(pool.adopt(held, 1).is_none());
    pool.lend_free(|_, _| panic!("it is free, but not for this thread"));
    drop(kept);
    assert_eq!(pool.free_count(), 1);
}

#[test]
fn pool_without_a_channel_ends_with_its_last_owner() {
    for is_elsewhere in [false, true] {
        let pool = PoolOwner::new(64, 4).unwrap();
        let weak = Arc::downgrade(&pool);
        pool.lend_free(|_, _| {});
        let mut all = pool.receive(1, 5).unwrap();
        let (front, other) = (all.split_to(2), pool.receive(2, 1).unwrap());
        let end = move || {
            drop((pool, front));
            assert_eq!(all.bytes().len(), 3);
            drop(other);
            all
        };
        let last = if is_elsewhere { std::thread::spawn(end).join().unwrap() } else { end() };
        // The pool of a channel that ends on a thread that is not bound stays.
        assert!(weak.upgrade().is_some());
        drop(last);
        assert_eq!(weak.upgrade().is_some(), is_elsewhere);
    }
}
