//! The signals that stop a program, and threads that end by themselves, as one stream of notices.
//!
//! A signal handler may call async-signal-safe functions only, so it writes one byte into a socket
//! pair, whose other end the supervising thread polls. Another thread that ends writes into the
//! same pair; the supervisor therefore waits in one place.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

/// What the supervisor learns.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum SupervisorNotice {
    /// SIGINT or SIGTERM came.
    Signal,
    /// A thread that held an [`EndNotice`] has ended, for whatever reason.
    ThreadEnded,
}

/// What a thread writes when it ends; the handlers' byte is chosen by `signal_hook`.
const ENDED: u8 = b'E';

/// The reading end.
#[derive(Debug)]
pub(crate) struct Notices {
    reader: UnixStream,
    writer: UnixStream,
}

/// The writing end of a thread: reports its end when dropped, also after a panic.
#[derive(Debug)]
pub(crate) struct EndNotice(UnixStream);

impl Drop for EndNotice {
    fn drop(&mut self) {
        // A full or closed pair means that the supervisor is awake or gone.
        let _ = self.0.write(&[ENDED]);
    }
}

impl Notices {
    /// A pair without any signal attached to it.
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    /// From now on SIGINT and SIGTERM are notices and no longer end the process.
    pub(crate) fn catch_signals(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            pipe::register(signal, self.writer.try_clone()?)?;
        }
        Ok(())
    }

    /// The end that a thread holds while it lives.
    pub(crate) fn end_notice(&self) -> io::Result<EndNotice> {
        self.writer.try_clone().map(EndNotice)
    }

    /// Waits for notices, at most `timeout`; none means that the time is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Vec<SupervisorNotice>> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut [PollFd::new(&self.reader, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 64];
        match self.reader.read(&mut bytes) {
            Ok(len) => Ok(bytes[..len].iter().map(|&byte| notice(byte)).collect()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

const fn notice(byte: u8) -> SupervisorNotice {
    match byte {
        ENDED => SupervisorNotice::ThreadEnded,
        _ => SupervisorNotice::Signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_is_noticed_and_silence_times_out() {
        let mut notices = Notices::new().expect("a socket pair");
        let end = notices.end_notice().expect("a clone");
        let quiet = notices.wait(Some(Duration::from_millis(1))).expect("poll");
        assert_eq!(quiet, []);
        std::thread::spawn(move || drop(end)).join().expect("the thread");
        assert_eq!(notices.wait(None).expect("poll"), [SupervisorNotice::ThreadEnded]);
    }
}
