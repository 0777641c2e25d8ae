//! Has every runnable thread had the processor? On a busy machine that takes time.
//!
//! What is on its way between two hosts is carried by threads: the stacks' own in two of the three
//! placements, and on Linux the kernel's that delivers what a sender could not deliver itself
//! (ksoftirqd). A world that settles for a fixed time says nothing about whether they ran. So one
//! thread is tied to each processor here, and sleeps; when all of them have run after they were
//! asked, the scheduler, which serves sleepers in the order in which they became runnable or nearly
//! so, has served those that were woken before.

use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whom to tell that the processor was had.
type Asks = Sender<Sender<()>>;

/// One thread on each processor that this process may use.
fn threads() -> &'static [Asks] {
    static THREADS: OnceLock<Vec<Asks>> = OnceLock::new();
    THREADS.get_or_init(|| {
        let allowed = sched_getaffinity(None).expect("a thread knows where it may run");
        (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(tied_to).collect()
    })
}

fn tied_to(cpu: usize) -> Asks {
    let (asks, asked) = mpsc::channel::<Sender<()>>();
    std::thread::spawn(move || {
        let mut only = CpuSet::new();
        only.set(cpu);
        sched_setaffinity(None, &only).expect("the process may use it");
        for whom in asked {
            // A thread that does not wait any more needs no answer.
            let _ = whom.send(());
        }
    });
    asks
}

/// Waits until every processor has run a thread that became runnable now.
pub(crate) fn let_all_have_one() {
    let (told, heard) = mpsc::channel();
    for asks in threads() {
        asks.send(told.clone()).expect("it never ends");
    }
    threads().iter().for_each(|_| heard.recv().expect("each answers"));
}
