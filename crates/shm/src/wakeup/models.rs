//! Loom models: no wake-up is lost. Loom fails a model in which a thread waits for ever.

use loom::sync::{Arc, Notify};
use loom::thread;

use super::*;
use crate::cursor::{ConsumerCursor, ProducerCursor};

struct ModelShared {
    head: AtomicU32,
    tail: AtomicU32,
    flag: AtomicU32,
    /// Stands for the descriptor: a ring before the sleep ends the sleep at once.
    bell: Notify,
}

impl ModelShared {
    fn new() -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        Arc::new(Self { head: zero(), tail: zero(), flag: zero(), bell: Notify::new() })
    }
}

/// Publishes `count` records one by one, ringing as the flag says.
fn produce(shared: &ModelShared, count: u32) {
    produce_for(shared, &shared.tail, count);
}

/// As `produce`, into the ring with this tail.
fn produce_for(shared: &ModelShared, tail: &AtomicU32, count: u32) {
    let mut cursor = ProducerCursor::new(4);
    for _ in 0..count {
        cursor.stage().expect("the ring is larger than what is sent");
        cursor.commit(tail);
        if take_wish(&shared.flag).is_some() {
            shared.bell.notify();
        }
    }
}

/// Takes `count` records, sleeping whenever there is none.
fn consume(shared: &ModelShared, count: u32) {
    let mut cursor = ConsumerCursor::new(4);
    let mut taken = 0;
    while taken < count {
        if cursor.waiting(1, &shared.tail).expect("an honest producer") == 0 {
            arm(&shared.flag, AT_DESCRIPTOR);
            if cursor.waiting(1, &shared.tail).expect("an honest producer") == 0 {
                shared.bell.wait();
            }
            disarm(&shared.flag);
        }
        while cursor.take().is_some() {
            taken += 1;
        }
        cursor.release(&shared.head);
    }
}

/// `preemptions`: how often a thread may be stopped where it need not be; `None`: everywhere.
fn model(count: u32, preemptions: Option<usize>) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let shared = ModelShared::new();
        let theirs = Arc::clone(&shared);
        let producer = thread::spawn(move || produce(&theirs, count));
        consume(&shared, count);
        producer.join().expect("no assertion failed there");
    });
}

#[test]
fn a_sleeper_is_woken_by_what_comes_last() {
    model(1, None);
}

#[test]
fn a_sleeper_that_wakes_may_sleep_again() {
    // All orders would take half a minute.
    model(2, Some(3));
}

/// A producer that does not ring while the consumer sleeps briefly: that sleep ends by its time,
/// and the next one is for long.
#[test]
fn brief_sleep_before_a_long_one_loses_nothing() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = ModelShared::new();
        let theirs = Arc::clone(&shared);
        let producer = thread::spawn(move || {
            let mut cursor = ProducerCursor::new(4);
            for _ in 0..2 {
                cursor.stage().expect("the ring is larger than what is sent");
                cursor.commit(&theirs.tail);
                if take_wish_unless(&theirs.flag, || true).is_some() {
                    theirs.bell.notify();
                }
            }
        });
        let mut cursor = ConsumerCursor::new(4);
        let (mut taken, mut may_be_brief) = (0, true);
        while taken < 2 {
            let is_brief = std::mem::replace(&mut may_be_brief, false);
            arm(&shared.flag, if is_brief { BRIEFLY } else { AT_DESCRIPTOR });
            if cursor.waiting(1, &shared.tail).expect("an honest producer") == 0 && !is_brief {
                shared.bell.wait();
            }
            disarm(&shared.flag);
            let waiting = cursor.waiting(1, &shared.tail).expect("an honest producer");
            may_be_brief |= waiting > 0;
            while cursor.take().is_some() {
                taken += 1;
            }
            cursor.release(&shared.head);
        }
        producer.join().expect("no assertion failed there");
    });
}

/// One record of each of two producers, whose rings have one bell.
#[test]
fn a_sleeper_is_woken_by_each_of_two_ringers() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let shared = ModelShared::new();
        let other_tail = Arc::new(AtomicU32::new(0));
        let (theirs, others) = (Arc::clone(&shared), Arc::clone(&shared));
        let producer = thread::spawn(move || produce(&theirs, 1));
        let tail = Arc::clone(&other_tail);
        let other = thread::spawn(move || produce_for(&others, &tail, 1));
        let mut cursors = [ConsumerCursor::new(4), ConsumerCursor::new(4)];
        let mut waiting = || {
            let [one, two] = &mut cursors;
            let one = one.waiting(1, &shared.tail).expect("an honest producer");
            one + two.waiting(1, &other_tail).expect("an honest producer")
        };
        while waiting() < 2 {
            arm(&shared.flag, AT_DESCRIPTOR);
            if waiting() < 2 {
                shared.bell.wait();
            }
            disarm(&shared.flag);
        }
        producer.join().expect("no assertion failed there");
        other.join().expect("no assertion failed there");
    });
}
