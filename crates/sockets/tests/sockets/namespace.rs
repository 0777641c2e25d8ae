//! A loopback interface of a test's own.
//!
//! The kernel gives a port to the first that binds it, and the tests of a machine bind all the
//! time: a program that binds a second address to the port of its first one would now and then find
//! another test's socket there, and one that expects none would find one.

use std::cell::Cell;
use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketType, socket};

thread_local! {
    static HAS_ENTERED: Cell<bool> = const { Cell::new(false) };
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Moves the calling thread, and those it starts, into a network namespace of its own, which goes
/// with them; once. Who may not have one stays where others' ports are.
pub(crate) fn enter_own() {
    if HAS_ENTERED.replace(true) {
        return;
    }
    // SAFETY: `unshare` takes no pointer. The network namespace is the calling thread's alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        switch_loopback_on();
        IS_OWN.set(true);
    }
}

/// Lets servers of this thread's namespace, too, use TCP Fast Open. `false`: the namespace is not
/// the thread's own, or its settings cannot be changed.
pub(crate) fn allow_fast_open() -> bool {
    enter_own();
    IS_OWN.get() && std::fs::write("/proc/sys/net/ipv4/tcp_fastopen", "3").is_ok()
}

fn switch_loopback_on() {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket can be had");
    // SAFETY: ifreq is plain data for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request reads one `ifreq`, which outlives the call.
    let set = unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(set, 0, "loopback stays off: {}", io::Error::last_os_error());
}
