//! A network namespace for a unit test, so that no other program uses the ports that it frees.

use std::panic::resume_unwind;

use crate::interface::InterfaceQuery;

/// Runs `test` on a thread in a network namespace of its own, with the loopback interface on. A
/// process that may not make one runs it in its own namespace.
pub(crate) fn isolated(test: impl FnOnce() + Send + 'static) {
    let run = move || {
        // SAFETY: `unshare` takes no pointer. The network namespace is this thread's alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
            let lo = InterfaceQuery::new("lo").expect("a socket");
            lo.set_up().expect("an interface of the new namespace");
        }
        test();
    };
    std::thread::spawn(run).join().unwrap_or_else(|panic| resume_unwind(panic));
}
