//! Doorbells: no sleep is missed, no ring blocks.

use std::sync::atomic::Ordering;

use super::*;
use crate::region::Region;
use crate::ring::ring;

const LONG: Option<Duration> = Some(Duration::from_secs(30));

fn parts() -> RegionParts {
    Region::heap(1 << 14).expect("memory").into_parts()
}

/// Ends as two processes have them, with one flag.
fn over_sockets() -> (Sleeper, Ringer, [Arc<OwnedFd>; 2]) {
    let (near, far) = bell_sockets().expect("a socket pair");
    let (near, far) = (Arc::new(near), Arc::new(far));
    let region = Region::memfd("mp-test", 4096).expect("a memfd");
    let fd = region.fd().expect("has one").try_clone_to_owned().expect("a copy");
    let mut theirs = Region::from_fd(fd, 4096).expect("sealed as agreed").into_parts();
    let sleeper = Sleeper::over_socket(&mut region.into_parts(), Arc::clone(&near));
    let ringer = Ringer::over_socket(&mut theirs, Arc::clone(&far));
    (sleeper.expect("it fits"), ringer.expect("it fits"), [near, far])
}

fn nothing() -> Result<bool, DoorbellError> {
    Ok(false)
}

fn readable(sleeper: &Sleeper) -> bool {
    let fd = sleeper.fd();
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&zero)).expect("a descriptor") > 0
}

#[test]
fn only_a_sleeper_is_rung_and_only_once() {
    let (sleeper, ringer) = doorbell(&mut parts()).expect("a doorbell");
    let (other, other_ringer, _ends) = over_sockets();
    for (sleeper, ringer) in [(&sleeper, &ringer), (&other, &other_ringer)] {
        assert_eq!(ringer.ring(), Ok(false));
        assert!(!readable(sleeper));
        sleeper.arm();
        assert_eq!(ringer.ring(), Ok(true));
        assert_eq!(ringer.ring(), Ok(false));
        assert!(readable(sleeper));
        assert_eq!(sleeper.sleep(LONG, nothing), Ok(true));
        assert!(!readable(sleeper));
        // Awake again: no ring is wanted.
        assert_eq!(ringer.ring(), Ok(false));
        let short = Some(Duration::from_millis(1));
        assert_eq!(sleeper.sleep(short, nothing), Ok(false));
    }
}

#[test]
fn an_end_with_work_does_not_sleep() {
    let (sleeper, ringer) = doorbell(&mut parts()).expect("a doorbell");
    assert_eq!(sleeper.sleep(None, || Ok::<_, DoorbellError>(true)), Ok(true));
    let fault = DoorbellError::Gone;
    assert_eq!(sleeper.sleep(None, || Err::<bool, _>(fault)), Err(fault));
    assert_eq!(ringer.ring(), Ok(false));
}

#[test]
fn two_threads_that_sleep_whenever_they_can_pass_everything_on() {
    const COUNT: u64 = 5_000;
    let mut parts = parts();
    let (mut out, mut far_in) = ring::<u64>(&mut parts, 2).expect("it fits");
    let (mut far_out, mut back) = ring::<u64>(&mut parts, 2).expect("it fits");
    let (far_sleeper, ringer) = doorbell(&mut parts).expect("a doorbell");
    let (sleeper, far_ringer) = doorbell(&mut parts).expect("a doorbell");
    let echo = std::thread::spawn(move || {
        let mut next = 0;
        while next < COUNT {
            let has_work = || Ok::<_, DoorbellError>(far_in.peek(1).expect("honest") > 0);
            far_sleeper.sleep(LONG, has_work).expect("it works");
            while let Some(number) = far_in.take() {
                assert_eq!(number, next);
                assert_eq!(far_out.send(&[number]), Ok(1));
                next += 1;
            }
            far_in.release();
            far_ringer.ring().expect("it works");
        }
    });
    for number in 0..COUNT {
        assert_eq!(out.send(&[number]), Ok(1));
        ringer.ring().expect("it works");
        let mut answer = [u64::MAX];
        while back.receive(&mut answer).expect("honest") == 0 {
            let has_work = || Ok::<_, DoorbellError>(back.peek(1).expect("honest") > 0);
            // A lost wake-up shows as a timeout.
            assert_eq!(sleeper.sleep(LONG, has_work), Ok(true));
        }
        assert_eq!(answer, [number]);
    }
    echo.join().expect("no assertion failed there");
}

#[test]
fn ringing_a_process_that_never_reads_does_not_block() {
    let (sleeper, ringer, [near, _far]) = over_sockets();
    // What a hostile process can do to its own end does nothing to ours.
    let blocking = rustix::fs::fcntl_getfl(&near).expect("flags") - rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&near, blocking).expect("flags");
    for value in 1..20_000 {
        sleeper.flag.atomic().store(value, Ordering::Relaxed);
        assert_eq!(ringer.ring(), Ok(true));
    }
    assert_eq!(sleeper.sleep(LONG, nothing), Ok(true));
}

#[test]
fn a_process_that_is_gone_is_an_error_and_no_signal() {
    let (sleeper, ringer, [near, far]) = over_sockets();
    drop((ringer, far));
    assert_eq!(sleeper.sleep(LONG, nothing), Err(DoorbellError::Gone));
    drop((sleeper, near));
    let (sleeper, ringer, [near, _far]) = over_sockets();
    sleeper.arm();
    drop((sleeper, near));
    assert_eq!(ringer.ring(), Err(DoorbellError::Gone));
}

#[test]
fn a_flag_outside_the_region_is_refused() {
    let mut parts = parts();
    parts.take(parts.bytes_left()).expect("all of it");
    let refused = doorbell(&mut parts).map(|_| ()).expect_err("refused");
    assert!(matches!(refused, DoorbellError::Region(_)));
}

#[test]
fn an_end_that_has_ended_stays_so_and_is_not_rung() {
    let (sleeper, ringer) = doorbell(&mut parts()).expect("a doorbell");
    let (other, other_ringer, _ends) = over_sockets();
    for (sleeper, ringer) in [(&sleeper, &ringer), (&other, &other_ringer)] {
        sleeper.arm();
        assert!(!ringer.has_ended());
        sleeper.end();
        for _ in 0..2 {
            assert!(ringer.has_ended());
            assert_eq!(ringer.ring(), Ok(false));
        }
        assert!(!readable(sleeper));
    }
}

#[test]
fn sleeper_that_sleeps_briefly_is_not_rung_from_its_own_core() {
    let (sleeper, ringer, _ends) = over_sockets();
    let (own, other) = (3, 4);
    sleeper.arm_briefly();
    assert_eq!(ringer.ring_from(|| own), Ok(true), "its core is unknown");
    sleeper.note_core(own);
    sleeper.clear().expect("the other end is there");
    sleeper.arm_briefly();
    assert_eq!(ringer.ring_from(|| own), Ok(false));
    assert!(!readable(&sleeper) && ringer.is_awaited(), "its wish stays");
    assert_eq!(ringer.ring_from(|| other), Ok(true));
    assert_eq!(ringer.ring(), Ok(false), "one ring answers it");
    sleeper.arm_briefly();
    assert_eq!(ringer.ring(), Ok(true), "the ringer has nothing more to do");
    sleeper.arm();
    assert_eq!(ringer.ring_from(|| own), Ok(true), "it sleeps for long");
    sleeper.end();
    assert_eq!(ringer.ring_from(|| own), Ok(false));
}

#[test]
fn core_of_a_sleeper_is_known_once_it_is_published() {
    let (sleeper, ringer, _ends) = over_sockets();
    assert_eq!(ringer.core(), None);
    for core in [0, 7] {
        sleeper.note_core(core);
        assert_eq!(ringer.core(), Some(core));
        assert!(!ringer.is_awaited(), "the flag is another word");
    }
}
