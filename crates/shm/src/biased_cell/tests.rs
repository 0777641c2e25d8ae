//! Two threads at one value, with each kind of barrier.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::*;

const BARRIERS: [Barrier; 2] = [Barrier::Own, Barrier::Revokers];

/// How often the two come: Miri is a thousand times slower.
const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };

fn made(barrier: Barrier) -> (BiasOwner<[u64; 2]>, Revoker<[u64; 2]>) {
    if barrier == Barrier::Revokers {
        return biased([0; 2]);
    }
    ends([0; 2], barrier)
}

fn add_one(value: &mut [u64; 2]) {
    assert_eq!(value[0], value[1], "another thread is inside");
    value[0] += 1;
    std::hint::black_box(&mut *value);
    value[1] += 1;
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
fn nothing_is_lost_between_an_owner_and_a_revoker() {
    for barrier in BARRIERS {
        let (mut owner, mut revoker) = made(barrier);
        let thread = std::thread::spawn(move || {
            for _ in 0..ROUNDS / 8 {
                add_one(&mut revoker.enter());
            }
        });
        for round in 0..ROUNDS {
            add_one(&mut owner.enter());
            if round % 64 == 0 {
                owner.leave();
            }
        }
        owner.leave();
        thread.join().expect("no assertion failed there");
        assert_eq!(*owner.enter(), [ROUNDS + ROUNDS / 8; 2]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
fn owner_enters_despite_a_busy_revoker() {
    let (mut owner, mut revoker) = biased([0; 2]);
    let is_over = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_over);
    let thread = std::thread::spawn(move || {
        while !theirs.load(Ordering::Relaxed) {
            add_one(&mut revoker.enter());
        }
    });
    (0..ROUNDS / 8).for_each(|_| add_one(&mut owner.enter()));
    is_over.store(true, Ordering::Relaxed);
    owner.leave();
    thread.join().expect("no assertion failed there");
    assert!(owner.enter()[0] >= ROUNDS / 8);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
fn a_revoker_waits_for_an_owner_that_is_inside() {
    let (mut owner, mut revoker) = biased([0; 2]);
    assert!(!revoker.is_owner_away());
    let (tell, told) = mpsc::channel();
    let mut inside = owner.enter();
    let thread = std::thread::spawn(move || {
        add_one(&mut revoker.enter());
        tell.send(()).expect("the receiver waits");
        revoker
    });
    add_one(&mut inside);
    assert_eq!(told.recv_timeout(Duration::from_millis(20)), Err(mpsc::RecvTimeoutError::Timeout));
    drop(inside);
    told.recv().expect("the revoker is in");
    owner.leave();
    let revoker = thread.join().expect("no assertion failed there");
    assert!(revoker.is_owner_away());
    assert_eq!(*owner.enter(), [2; 2]);
    assert!(!revoker.is_owner_away());
}

/// From now on membarrier(2) is "not permitted" for this thread, by a filter as sandboxes have.
fn forbid_membarrier() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        // The number of the call is the first word of seccomp_data.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_membarrier as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its steps outlive the call, which copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(done, 0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri knows no membarrier(2)")]
fn revoker_without_barrier_enters_while_owner_is_away() {
    const COMES: u64 = 20;
    let (mut owner, mut revoker) = biased([0; 2]);
    let thread = std::thread::spawn(move || {
        forbid_membarrier();
        for _ in 0..COMES {
            add_one(&mut revoker.enter());
            // At the next time the owner is there, mostly.
            std::thread::sleep(NAP);
        }
    });
    let mut rounds = 0;
    while !thread.is_finished() {
        for _ in 0..100 {
            add_one(&mut owner.enter());
            rounds += 1;
            std::thread::sleep(NAP / 8);
        }
        owner.leave();
        std::thread::sleep(4 * NAP);
    }
    thread.join().expect("no assertion failed there");
    assert_eq!(*owner.enter(), [rounds + COMES; 2]);
}
