//! What a killed program leaves behind: nothing.

use std::io::{ErrorKind, Read, Write};

use megapipe_link::Link;
use megapipe_link::packet::{self, PacketConfig};

#[path = "conformance/hosts.rs"]
#[expect(dead_code, reason = "made for the conformance tests, of which this needs a part")]
mod hosts;
#[path = "conformance/wire.rs"]
#[expect(dead_code, reason = "made for the conformance tests, of which this needs a part")]
mod wire;

use hosts::{HERE, OURS, at, is_silent, knock, sharing, with_two_hosts};

#[test]
fn a_killed_program_leaves_nothing_behind() {
    with_two_hosts("a_killed_program_leaves_nothing_behind", |elsewhere| {
        let (mut told, mut tell) = std::io::pipe().expect("a pipe");
        // SAFETY: the child of a process with threads may call what is safe after a fork; glibc
        // keeps its allocator usable there. The child opens sockets, writes one byte and sleeps.
        // It inherits what is open: therefore this test has a process of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let link = packet::open(&PacketConfig::new("mp-near")).and_then(|mut link| {
                link.set_ownership(&sharing(&[OURS]))?;
                Ok(link)
            });
            let _ = tell.write_all(&[u8::from(link.is_ok())]);
            loop {
                // SAFETY: takes nothing; returns when a signal comes.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0, "fork");
        let mut said = [0];
        told.read_exact(&mut said).expect("a byte");
        let held = is_silent(elsewhere, at(HERE[0], OURS));
        // SAFETY: the child is ours and not reaped, so the number is still its own.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: as above; the status is not asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!((said, held), ([1], true));
        let after = knock(elsewhere, at(HERE[0], OURS));
        assert_eq!(after, Err(ErrorKind::ConnectionRefused), "the kernel answers again");
    });
}
