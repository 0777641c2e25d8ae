//! Cores of a channel and of its server.

/// The cores that a thread may run on.
fn allowed(thread: Option<rustix::thread::Pid>) -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(thread) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Core that the calling thread is pinned to, if it is pinned to one.
pub(super) fn own_core() -> Option<usize> {
    match allowed(None).as_slice() {
        [core] => Some(*core),
        _ => None,
    }
}

/// The same, as the steering of shards numbers it.
pub(super) fn own_shard_core() -> Option<u32> {
    own_core().and_then(|core| u32::try_from(core).ok())
}

/// Core for a server whose channel runs on `own`: the next one that the process may use. Where the
/// channel is not pinned, the kernel chooses.
pub(super) fn other_core(own: Option<usize>) -> Option<usize> {
    let own = own?;
    let cores = allowed(Some(rustix::process::getpid()));
    let next = cores.iter().find(|core| **core > own).or_else(|| cores.first());
    next.copied()
}

/// A core in words.
pub(super) fn on_core(core: Option<usize>) -> String {
    core.map_or_else(|| "on no core in particular".to_owned(), |core| format!("on core {core}"))
}
