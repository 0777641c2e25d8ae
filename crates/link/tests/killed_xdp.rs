//! What a killed program leaves behind on an interface that it had an XDP program on: nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use megapipe_link::Link;
use megapipe_link::xdp::{self, XdpConfig};

#[path = "conformance/hosts.rs"]
mod hosts;
#[path = "conformance/wire.rs"]
#[expect(dead_code, reason = "made for the conformance tests, of which this needs a part")]
mod wire;

use hosts::{HERE, KERNELS, OURS, at, is_silent, knock, sharing, with_two_hosts};

#[test]
fn a_killed_program_leaves_nothing_behind() {
    with_two_hosts("killed_xdp::a_killed_program_leaves_nothing_behind", |elsewhere| {
        // A session of the kernel's, as SSH would have, open all the time.
        let listener = TcpListener::bind(at(HERE[0], KERNELS)).expect("the kernel's port");
        let connect = || TcpStream::connect(at(HERE[0], KERNELS)).expect("a connection");
        let mut session = elsewhere.run(connect);
        let (mut shell, _) = listener.accept().expect("a connection");
        session.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let mut is_alive = move |line: &[u8; 4]| {
            shell.write_all(line).expect("sent");
            let mut got = [0; 4];
            session.read_exact(&mut got).expect("received");
            assert_eq!(&got, line);
        };
        is_alive(b"one\n");

        let (mut told, mut tell) = std::io::pipe().expect("a pipe");
        // SAFETY: the child of a process with threads may call what is safe after a fork; glibc
        // keeps its allocator usable there. The child opens sockets, writes one byte and sleeps.
        // It inherits what is open: therefore this test has a process of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let links = xdp::open(&XdpConfig::new("mp-near")).and_then(|mut links| {
                links[0].set_ownership(&sharing(&[OURS]))?;
                Ok(links)
            });
            let _ = tell.write_all(&[u8::from(links.is_ok())]);
            loop {
                // SAFETY: takes nothing; returns when a signal comes.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0, "fork");
        let mut said = [0];
        told.read_exact(&mut said).expect("a byte");
        let held = is_silent(elsewhere, at(HERE[0], OURS));
        is_alive(b"two\n");
        // SAFETY: the child is ours and not reaped, so the number is still its own.
        unsafe { libc::kill(child, libc::SIGKILL) };
        // SAFETY: as above; the status is not asked for.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!((said, held), ([1], true));
        let after = knock(elsewhere, at(HERE[0], OURS));
        assert_eq!(after, Err(ErrorKind::ConnectionRefused), "the kernel answers again");
        is_alive(b"end\n");
        let again = xdp::open(&XdpConfig::new("mp-near"));
        assert!(again.is_ok(), "no program is left there: {again:?}");
    });
}
