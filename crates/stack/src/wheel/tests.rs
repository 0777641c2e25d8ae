//! The wheel against a plain list of deadlines.

use core::time::Duration;

use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

fn drain(wheel: &mut Wheel, now: Instant) -> Vec<u32> {
    let mut expired: Vec<u32> = core::iter::from_fn(|| wheel.expire(now)).collect();
    expired.sort_unstable();
    expired
}

#[test]
fn nothing_expires_early_and_all_expire_a_tick_late_at_most() {
    for after in [0, 1, 262, 300, 17_000, 1_080_000, 70_000_000, 5_000_000_000_u64] {
        let start = Instant::from_millis(12_345);
        let mut wheel = Wheel::new(4, start);
        let at = start + Duration::from_micros(after);
        wheel.arm(2, at);
        assert!(wheel.next().unwrap() <= at + TICK);
        if after > 0 {
            assert_eq!(wheel.expire(at - Duration::from_nanos(1)), None, "{after}");
        }
        assert_eq!(wheel.expire(at + TICK), Some(2), "{after}");
        assert_eq!(wheel.next(), None);
    }
}

#[test]
fn a_later_arming_is_ignored_and_an_earlier_one_taken() {
    let mut wheel = Wheel::new(1, Instant::ZERO);
    wheel.arm(0, Instant::from_millis(50));
    wheel.arm(0, Instant::from_millis(90));
    wheel.arm(0, Instant::from_millis(20));
    assert_eq!(wheel.expire(Instant::from_millis(19)), None);
    assert_eq!(wheel.expire(Instant::from_millis(21)), Some(0));
    assert_eq!(wheel.expire(Instant::from_millis(200)), None);
}

#[test]
fn cancelled_entry_keeps_its_slot_until_that_expires() {
    let ms = Instant::from_millis;
    let mut wheel = Wheel::new(2, Instant::ZERO);
    for round in 0..1000 {
        wheel.arm(0, ms(1000 + round));
        wheel.cancel(0);
        wheel.cancel(0);
        assert_eq!(wheel.next(), None, "nothing waits");
        wheel.arm(0, ms(1000 + round));
        assert!(wheel.is_armed_by(0, ms(1000 + round)));
        wheel.cancel(0);
    }
    wheel.arm(0, ms(5000));
    wheel.arm(1, ms(1001));
    assert!(drain(&mut wheel, ms(999)).is_empty());
    assert_eq!(drain(&mut wheel, ms(1002)), [0, 1], "the owner of 0 is asked early");
    wheel.arm(0, ms(5000));
    assert!(drain(&mut wheel, ms(4999)).is_empty());
    assert_eq!(drain(&mut wheel, ms(5001)), [0]);
    assert_eq!((wheel.next(), drain(&mut wheel, ms(100_000))), (None, vec![]));
    wheel.arm(0, ms(200_000));
    wheel.cancel(0);
    wheel.arm(0, ms(150_000));
    assert_eq!(drain(&mut wheel, ms(150_001)), [0], "an earlier one is taken");
    wheel.arm(0, ms(200_000));
    wheel.cancel(0);
    assert!(drain(&mut wheel, ms(200_001)).is_empty(), "a cancelled one expires unseen");
}

#[test]
fn time_may_jump_far() {
    let mut wheel = Wheel::new(2, Instant::ZERO);
    wheel.arm(0, Instant::ZERO + Duration::from_secs(1_000_000));
    wheel.arm(1, Instant::ZERO + Duration::from_secs(100_000));
    assert_eq!(drain(&mut wheel, Instant::ZERO + Duration::from_secs(99_999)), []);
    // The farthest is asked again at the wheel's horizon, which its owner has to expect.
    assert_eq!(drain(&mut wheel, Instant::ZERO + Duration::from_secs(2_000_000)), [0, 1]);
}

proptest! {
    #[test]
    fn it_is_a_list_of_deadlines(
        steps in prop::collection::vec((0_u8..4, 0_u32..16, 0_u64..400_000_000), 1..300),
    ) {
        let mut wheel = Wheel::new(16, Instant::ZERO);
        let mut deadlines: [Option<Instant>; 16] = [None; 16];
        // Deadlines before they were cancelled: an entry may still lie there.
        let mut cancelled: [Option<Instant>; 16] = [None; 16];
        let mut now = Instant::ZERO;
        for (kind, entry, micros) in steps {
            let held = &mut deadlines[entry as usize];
            match kind {
                0 | 1 => {
                    let at = now + Duration::from_micros(micros);
                    wheel.arm(entry, at);
                    *held = Some(held.map_or(at, |old| old.min(at)));
                }
                2 => {
                    wheel.cancel(entry);
                    let lay = [held.take(), cancelled[entry as usize]].into_iter().flatten().min();
                    cancelled[entry as usize] = lay;
                }
                _ => now += Duration::from_micros(micros / 64),
            }
            if let (Some(next), Some(earliest)) = (wheel.next(), deadlines.iter().flatten().min()) {
                prop_assert!(next <= *earliest + TICK);
            }
            prop_assert_eq!(wheel.next().is_some(), deadlines.iter().any(Option::is_some));
            prop_assert_eq!(wheel.is_due(now), wheel.next().is_some_and(|at| at <= now));
            for expired in drain(&mut wheel, now) {
                let at = deadlines[expired as usize].take().expect("it is armed");
                let lay = cancelled[expired as usize].take().unwrap_or(at);
                prop_assert!(at.min(lay) <= now);
                if at > now {
                    wheel.arm(expired, at);
                    deadlines[expired as usize] = Some(at);
                }
            }
            for at in deadlines.iter().flatten() {
                prop_assert!(*at + TICK > now, "overdue");
            }
        }
    }
}
