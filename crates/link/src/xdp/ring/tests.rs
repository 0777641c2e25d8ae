//! Both of our ends on memory of our own, with the kernel's part played by hand.

use super::*;

const SIZE: u32 = 4;

fn layout() -> Layout {
    Layout { producer: 0, consumer: 64, flags: 128, desc: 192 }
}

fn mapping() -> RingMapping {
    RingMapping::anonymous(4096).expect("memory")
}

#[test]
fn a_layout_outside_of_the_mapping_is_refused() {
    let bad = [
        Layout { producer: 4096, ..layout() },
        Layout { consumer: 2, ..layout() },
        Layout { desc: 4096 - 31, ..layout() },
        Layout { desc: u64::MAX, ..layout() },
    ];
    for layout in bad {
        assert!(XdpProducer::<u64>::new(mapping(), &layout, SIZE).is_err());
    }
    assert!(XdpProducer::<u64>::new(mapping(), &layout(), 3).is_err(), "no power of two");
    assert!(XdpProducer::<u64>::new(mapping(), &layout(), SIZE).is_ok());
}

#[test]
fn a_producer_stops_when_the_ring_is_full_and_goes_on_when_it_is_not() {
    let mut producer = XdpProducer::<u64>::new(mapping(), &layout(), SIZE).expect("ring");
    for round in 0..1000u32 {
        for number in 0..SIZE {
            assert!(producer.put(u64::from(round * SIZE + number)));
        }
        assert!(!producer.put(0), "full");
        assert_eq!(producer.ring.producer().load(Ordering::Relaxed), round * SIZE);
        producer.publish();
        assert_eq!(producer.ring.producer().load(Ordering::Relaxed), (round + 1) * SIZE);
        producer.ring.consumer().store((round + 1) * SIZE, Ordering::Release);
    }
}

#[test]
fn a_consumer_takes_what_was_produced_and_no_more() {
    let mut consumer = XdpConsumer::<u64>::new(mapping(), &layout(), SIZE).expect("ring");
    assert_eq!(consumer.take(), None);
    let mut produced = 0u32;
    for round in 0..1000u32 {
        for _ in 0..round % (SIZE + 1) {
            // SAFETY: the entry is in bounds, and only this thread accesses the ring.
            unsafe { consumer.ring.entry(produced).write(u64::from(produced)) };
            produced += 1;
        }
        consumer.ring.producer().store(produced, Ordering::Release);
        let mut taken = consumer.next;
        while let Some(entry) = consumer.take() {
            assert_eq!(entry, u64::from(taken));
            taken += 1;
        }
        assert_eq!(taken, produced);
        consumer.give_back();
        assert_eq!(consumer.ring.consumer().load(Ordering::Relaxed), produced);
    }
}

#[test]
fn an_index_that_ran_past_the_ring_leads_nowhere_outside() {
    let mut consumer = XdpConsumer::<u64>::new(mapping(), &layout(), SIZE).expect("ring");
    consumer.ring.producer().store(u32::MAX, Ordering::Release);
    assert_eq!(consumer.waiting(), SIZE);
}

#[test]
fn kernel_requests_wakeup_by_flag() {
    let producer = XdpProducer::<u64>::new(mapping(), &layout(), SIZE).expect("ring");
    assert!(!producer.needs_wakeup());
    producer.ring.flags().store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
    assert!(producer.needs_wakeup());
}
