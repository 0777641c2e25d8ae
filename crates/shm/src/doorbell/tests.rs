//! Doorbells: no sleep is missed, no ring blocks.

use std::sync::atomic::Ordering;

use super::*;
use crate::ring::{RingLayout, ring};

const FLAG: usize = 0;
const LONG: Option<Duration> = Some(Duration::from_secs(30));

fn region() -> Arc<Region> {
    Arc::new(Region::heap(1 << 14).expect("memory"))
}

fn over_sockets(region: &Arc<Region>) -> (Sleeper, Ringer, [Arc<OwnedFd>; 2]) {
    let (near, far) = bell_sockets().expect("a socket pair");
    let (near, far) = (Arc::new(near), Arc::new(far));
    let sleeper = Sleeper::over_socket(Arc::clone(region), FLAG, Arc::clone(&near));
    let ringer = Ringer::over_socket(Arc::clone(region), FLAG, Arc::clone(&far));
    (sleeper.expect("in bounds"), ringer.expect("in bounds"), [near, far])
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
    let region = region();
    let (sleeper, ringer) = doorbell(&region, FLAG).expect("a doorbell");
    let (other, other_ringer, _ends) = over_sockets(&self::region());
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
fn whoever_has_work_does_not_sleep() {
    let (sleeper, ringer) = doorbell(&region(), FLAG).expect("a doorbell");
    assert_eq!(sleeper.sleep(None, || Ok::<_, DoorbellError>(true)), Ok(true));
    let fault = DoorbellError::Gone;
    assert_eq!(sleeper.sleep(None, || Err::<bool, _>(fault)), Err(fault));
    assert_eq!(ringer.ring(), Ok(false));
}

#[test]
fn two_threads_that_sleep_whenever_they_can_pass_everything_on() {
    const COUNT: u64 = 5_000;
    let region = region();
    let layout = |offset| RingLayout { offset, entries: 2 };
    let (mut out, mut far_in) = ring::<u64>(&region, layout(1024)).expect("it fits");
    let (mut far_out, mut back) = ring::<u64>(&region, layout(2048)).expect("it fits");
    let (far_sleeper, ringer) = doorbell(&region, 0).expect("a doorbell");
    let (sleeper, far_ringer) = doorbell(&region, 256).expect("a doorbell");
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
    let region = region();
    let (sleeper, ringer, [near, _far]) = over_sockets(&region);
    // What a hostile process can do to its own end does nothing to ours.
    let blocking = rustix::fs::fcntl_getfl(&near).expect("flags") - rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&near, blocking).expect("flags");
    let flag = region.atomic_u32(FLAG).expect("in bounds");
    for value in 1..20_000 {
        flag.store(value, Ordering::Relaxed);
        assert_eq!(ringer.ring(), Ok(true));
    }
    assert_eq!(sleeper.sleep(LONG, nothing), Ok(true));
}

#[test]
fn a_process_that_is_gone_is_an_error_and_no_signal() {
    let region = region();
    let (sleeper, ringer, [near, far]) = over_sockets(&region);
    drop((ringer, far));
    assert_eq!(sleeper.sleep(LONG, nothing), Err(DoorbellError::Gone));
    drop((sleeper, near));
    let (sleeper, ringer, [near, _far]) = over_sockets(&region);
    sleeper.arm();
    drop((sleeper, near));
    assert_eq!(ringer.ring(), Err(DoorbellError::Gone));
}

#[test]
fn a_flag_outside_the_region_is_refused() {
    let refused = doorbell(&region(), 1 << 14).map(|_| ()).expect_err("refused");
    assert!(matches!(refused, DoorbellError::Region(_)));
}
