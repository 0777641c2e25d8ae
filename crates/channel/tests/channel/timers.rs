//! Timers: one-shot, periodic, missed, cancelled.

use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Event, Misuse};

use crate::scene::{Case, Scene, Stream, on_each_driver};

on_each_driver![
    a_one_shot_timer_comes_once_and_not_early,
    a_periodic_timer_keeps_its_rhythm,
    expirations_that_were_slept_through_are_counted,
    a_cancelled_timer_never_comes,
    timers_come_in_the_order_of_their_times,
    a_timer_of_zero_comes_at_once,
    a_timer_cuts_a_longer_wait_short_and_a_shorter_one_not,
    wrong_times_are_refused,
    a_timer_in_a_busy_channel_comes_in_time,
    a_timer_comes_although_each_dispatch_finds_a_completion,
    many_timers_each_earlier_than_the_one_before_come_in_time,
    a_timer_that_passed_before_the_first_dispatch_comes_without_waiting,
    a_timer_set_after_many_were_cancelled_comes_in_time,
    a_timer_that_passes_between_polls_comes_with_the_next,
];

const MS: Duration = Duration::from_millis(1);

/// Whether the channel's timer comes while `wait` passes, which it must not before its time: on a
/// busy machine that may be over first.
#[track_caller]
fn is_due(scene: &mut Scene, wait: Duration, time: Instant) -> bool {
    let Some(done) = scene.dispatch(Some(wait)).unwrap() else { return false };
    assert!(matches!(done.event, Event::Timer { .. }), "{done:?}");
    assert!(Instant::now() >= time, "early: {done:?}");
    true
}

fn a_one_shot_timer_comes_once_and_not_early(case: &Case) {
    let mut scene = case.scene();
    let start = Instant::now();
    let timer = scene.timer(20 * MS, None, 7).unwrap();
    assert!(timer.is_lwsocket());
    let done = scene.next();
    assert!(start.elapsed() >= 20 * MS);
    assert_eq!((done.handle, done.cookie), (timer, 7));
    assert!(matches!(done.event, Event::Timer { expirations: 1 }), "{done:?}");
    scene.expect_silence();
    scene.unregister(timer).unwrap();
    assert_eq!(scene.set_cookie(timer, 1), Err(Misuse::StaleHandle));
}

fn a_periodic_timer_keeps_its_rhythm(case: &Case) {
    let mut scene = case.scene();
    let start = Instant::now();
    let timer = scene.timer(5 * MS, Some(10 * MS), 0).unwrap();
    let mut expired = 0;
    while expired < 5 {
        let Event::Timer { expirations } = scene.next_of(timer) else { panic!() };
        expired += expirations;
        // The n-th deadline is at 5 + 10 (n - 1) ms, however late the earlier ones completed.
        assert!(start.elapsed() >= 5 * MS + 10 * MS * (expired as u32 - 1));
    }
    scene.unregister(timer).unwrap();
    scene.expect_silence();
}

fn expirations_that_were_slept_through_are_counted(case: &Case) {
    let mut scene = case.scene();
    let timer = scene.timer(MS, Some(2 * MS), 0).unwrap();
    thread::sleep(41 * MS);
    let Event::Timer { expirations } = scene.next_of(timer) else { panic!() };
    assert!(expirations >= 20, "{expirations}");
    let Event::Timer { .. } = scene.next_of(timer) else { panic!() };
}

fn a_cancelled_timer_never_comes(case: &Case) {
    let mut scene = case.scene();
    let timer = scene.timer(5 * MS, Some(5 * MS), 0).unwrap();
    scene.unregister(timer).unwrap();
    scene.expect_silence();
    // Nor does one that has expired and was not yet handed out.
    let (first, second) = (scene.timer(MS, None, 1).unwrap(), scene.timer(MS, None, 2).unwrap());
    thread::sleep(5 * MS);
    let done = scene.next();
    assert_eq!(done.handle, first);
    scene.unregister(second).unwrap();
    scene.expect_silence();
}

fn timers_come_in_the_order_of_their_times(case: &Case) {
    let mut scene = case.scene();
    // A machine that is busy while they are set may turn two times round: then they are set anew.
    loop {
        let start = Instant::now();
        let timers = [9u32, 3, 6, 1, 8, 2].map(|after| {
            let after_start = (after * 3 * MS).saturating_sub(start.elapsed());
            scene.timer(after_start, None, after.into()).unwrap()
        });
        if start.elapsed() < 3 * MS {
            break;
        }
        timers.into_iter().for_each(|timer| drop(scene.unregister(timer).unwrap()));
    }
    let order: Vec<u64> = (0..6).map(|_| scene.next().cookie).collect();
    assert_eq!(order, [1, 2, 3, 6, 8, 9]);
}

fn a_timer_of_zero_comes_at_once(case: &Case) {
    let mut scene = case.scene();
    scene.timer(Duration::ZERO, None, 3).unwrap();
    let done = scene.dispatch(Some(Duration::ZERO)).unwrap().expect("it is due");
    assert_eq!(done.cookie, 3);
}

fn a_timer_cuts_a_longer_wait_short_and_a_shorter_one_not(case: &Case) {
    let mut scene = case.scene();
    let start = loop {
        let start = Instant::now();
        let timer = scene.timer(60 * MS, None, 0).unwrap();
        if !is_due(&mut scene, 10 * MS, start + 60 * MS) {
            break start;
        }
        scene.unregister(timer).unwrap();
    };
    assert!(start.elapsed() >= 10 * MS);
    let done = scene.dispatch(None).unwrap().expect("the timer ends the wait");
    assert!(matches!(done.event, Event::Timer { expirations: 1 }));
    assert!(start.elapsed() >= 60 * MS);
}

fn wrong_times_are_refused(case: &Case) {
    let mut scene = case.scene();
    for (after, period) in
        [(MS, Some(Duration::ZERO)), (Duration::MAX, None), (MS, Some(Duration::MAX))]
    {
        assert_eq!(scene.timer(after, period, 0), Err(Misuse::InvalidDuration.into()));
    }
    // A thousand years is a long time, and no overflow.
    let far = scene.timer(Duration::from_secs(1000 * 365 * 86_400), None, 0).unwrap();
    scene.expect_silence();
    scene.unregister(far).unwrap();
}

fn a_timer_in_a_busy_channel_comes_in_time(case: &Case) {
    use crate::scene::send;
    let mut scene = case.scene();
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let mut echo = peer.try_clone().unwrap();
    let looping = thread::spawn(move || {
        let mut bytes = [0; 64];
        while let Ok(len @ 1..) = std::io::Read::read(&mut echo, &mut bytes) {
            send(&mut echo, &bytes[..len]);
        }
    });
    send(&mut peer, b"ping");
    scene.read(handle, 64).unwrap();
    scene.timer(30 * MS, None, 1).unwrap();
    // The ball never rests, so there is always a completion to come; the timer must come too.
    let start = Instant::now();
    loop {
        let done = scene.next();
        match done.event {
            Event::Timer { .. } => break,
            Event::Read(Ok(ball)) => {
                scene.write(handle, ball).unwrap();
                scene.read(handle, 64).unwrap();
            }
            Event::Write(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "the timer is starved");
    }
    drop(scene);
    looping.join().unwrap();
}

/// Reads of bytes that were received before complete without a poll.
fn a_timer_comes_although_each_dispatch_finds_a_completion(case: &Case) {
    let mut scene = case.scene_with(case.config().buffer_len(1 << 16));
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    scene.send(&mut peer, &[7; 40_000]);
    assert_eq!(scene.read_once(handle, 1).unwrap().len(), 1);
    scene.timer(MS, None, 1).unwrap();
    thread::sleep(5 * MS);
    for _ in 0..20_000 {
        scene.read(handle, 1).unwrap();
        match scene.next().event {
            Event::Timer { .. } => return,
            Event::Read(Ok(byte)) => assert_eq!(*byte, [7]),
            event => panic!("{event:?}"),
        }
    }
    panic!("the timer never comes");
}

fn many_timers_each_earlier_than_the_one_before_come_in_time(case: &Case) {
    // More than a driver may want to be told of, each waited for before the next is set.
    const COUNT: u32 = 24;
    let time_of = |turn: u32| 60 * MS + (COUNT - turn) * 10 * MS;
    let mut scene = case.scene();
    let mut start = Instant::now();
    let (mut timers, mut turn) = (Vec::new(), 0);
    while turn < COUNT {
        let set_at = start.elapsed();
        let after = time_of(turn).saturating_sub(set_at);
        timers.push(scene.timer(after, None, turn.into()).unwrap());
        let is_in_order = start.elapsed() - set_at < 5 * MS;
        // The newest is the next.
        let is_due = is_due(&mut scene, Duration::ZERO, start + time_of(turn));
        turn += 1;
        if is_due || !is_in_order {
            timers.drain(..).for_each(|timer| drop(scene.unregister(timer).unwrap()));
            (start, turn) = (Instant::now(), 0);
        }
    }
    for turn in (0..COUNT).rev() {
        assert_eq!(scene.next().cookie, u64::from(turn));
        assert!(start.elapsed() + MS >= time_of(turn), "early: {turn}");
    }
    scene.expect_silence();
}

fn a_timer_that_passed_before_the_first_dispatch_comes_without_waiting(case: &Case) {
    let mut scene = case.scene();
    scene.timer(MS, None, 1).unwrap();
    thread::sleep(3 * MS);
    let done = scene.dispatch(Some(Duration::ZERO)).unwrap().expect("it is due");
    assert_eq!(done.cookie, 1);
}

fn a_timer_set_after_many_were_cancelled_comes_in_time(case: &Case) {
    let mut scene = case.scene();
    for _ in 0..40 {
        let start = Instant::now();
        let timer = scene.timer(5 * MS, None, 0).unwrap();
        is_due(&mut scene, Duration::ZERO, start + 5 * MS);
        scene.unregister(timer).unwrap();
    }
    let start = Instant::now();
    scene.timer(30 * MS, None, 1).unwrap();
    assert_eq!(scene.next().cookie, 1);
    assert!(start.elapsed() >= 30 * MS);
    scene.expect_silence();
}

fn a_timer_that_passes_between_polls_comes_with_the_next(case: &Case) {
    let mut scene = case.scene();
    for cookie in 0..10 {
        loop {
            let start = Instant::now();
            scene.timer(2 * MS, None, cookie).unwrap();
            if !is_due(&mut scene, Duration::ZERO, start + 2 * MS) {
                break;
            }
        }
        thread::sleep(4 * MS);
        let done = scene.dispatch(Some(Duration::ZERO)).unwrap().expect("it has passed");
        assert_eq!(done.cookie, cookie);
    }
}
