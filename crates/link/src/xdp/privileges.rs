//! Capabilities that AF_XDP needs, and those of them that the calling thread lacks.
//!
//! The kernel answers a missing capability with EPERM, with ENOBUFS (memory that cannot be
//! locked), or with the verifier's log (CAP_PERFMON), so a failure is explained by looking at what
//! the thread has.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

/// All of them, for the message.
const ALL: &str = "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON, and CAP_IPC_LOCK or a larger \
                   limit of locked memory (ulimit -l)";

/// A capability by its name, and others that include it.
const NEEDED: [(&str, CapabilitySet, CapabilitySet); 4] = [
    ("CAP_NET_RAW", CapabilitySet::NET_RAW, CapabilitySet::empty()),
    ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN, CapabilitySet::empty()),
    ("CAP_BPF", CapabilitySet::BPF, CapabilitySet::SYS_ADMIN),
    ("CAP_PERFMON", CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN),
];

/// Which of them this thread lacks, in words; `None`: it has all.
pub(super) fn lacking() -> Option<String> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let is_missing =
        |(_, own, other): &&(_, CapabilitySet, CapabilitySet)| !effective.intersects(*own | *other);
    let names: Vec<&str> = NEEDED.iter().filter(is_missing).map(|(name, ..)| *name).collect();
    (!names.is_empty()).then(|| format!("{ALL} are needed; missing: {}", names.join(", ")))
}

/// What is missing where the kernel does not lock the memory of frames.
pub(super) fn unlocked() -> String {
    let limit = getrlimit(Resource::Memlock).current;
    let limit =
        limit.map_or_else(|| "unlimited".to_owned(), |bytes| format!("{} KiB", bytes >> 10));
    format!("{ALL} are needed; missing: CAP_IPC_LOCK, and the limit of locked memory is {limit}")
}
