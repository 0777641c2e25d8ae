//! The thread of a link server that is apart from the shards.
//!
//! Read first: `rx_mux/split_server.rs`.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe_link::LinkError;

use crate::clock::Clock;
use crate::error::RemoteError;
use crate::limits::SHUTDOWN_ROOM_WAIT;
use crate::rx_mux::{LinkServerControl, OnAccount, SplitLinkServer};
use crate::server_thread;

/// A link server on a thread of its own. Dropping it sends what shards have put into its rings,
/// until the link has no room for [`SHUTDOWN_ROOM_WAIT`], and ends the thread.
pub(crate) struct LinkThread {
    control: LinkServerControl,
    thread: Option<JoinHandle<Result<(), LinkError>>>,
    ending: Arc<OnceLock<String>>,
}

/// Reports the end of a server, also that by a panic.
struct EndReport<F: FnOnce()> {
    ending: Arc<OnceLock<String>>,
    on_end: Option<F>,
}

impl<F: FnOnce()> Drop for EndReport<F> {
    fn drop(&mut self) {
        self.ending.get_or_init(|| "its thread has panicked".to_owned());
        self.on_end.take().into_iter().for_each(|on_end| on_end());
    }
}

impl LinkThread {
    /// Starts a server, pinned to `core` (`None`: wherever the kernel likes). It sleeps after
    /// `spin` without frames. `on_end` is called when it has ended, for whatever reason.
    ///
    /// # Errors
    /// [`RemoteError`]; nothing is left running.
    pub(crate) fn start(
        server: SplitLinkServer,
        spin: Duration,
        core: Option<usize>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, RemoteError> {
        let (control, ending) = (server.control(), Arc::new(OnceLock::new()));
        let report = EndReport { ending: Arc::clone(&ending), on_end: Some(on_end) };
        let run = move || {
            let outcome = run(server, spin);
            report.ending.get_or_init(|| match &outcome {
                Ok(()) => "it was stopped".to_owned(),
                Err(error) => error.to_string(),
            });
            drop(report);
            outcome
        };
        let thread = server_thread::spawn(run, core)?;
        Ok(Self { control, thread: Some(thread), ending })
    }

    /// Requests what the server has used and moved since it began. `on_account` is called on its
    /// thread, and dropped if that has ended.
    pub(crate) fn request_account(&self, on_account: OnAccount) {
        self.control.request_account(on_account);
    }

    /// Why the server moves no frames any more. `None`: it does.
    pub(crate) fn ending(&self) -> Option<&str> {
        self.ending.get().map(String::as_str)
    }
}

impl Drop for LinkThread {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and the error of a link is its ending.
            let _ = thread.join();
        }
    }
}

/// The loop of the thread.
fn run(mut server: SplitLinkServer, spin: Duration) -> Result<(), LinkError> {
    let clock = Clock::new();
    let mut worked_at = clock.now();
    while !server.is_stopped() {
        let now = clock.now();
        if server.poll()? {
            worked_at = now;
        } else if now.since(worked_at) >= spin {
            // Without work afterwards it sleeps again at once.
            server.sleep()?;
        } else {
            std::hint::spin_loop();
        }
    }
    send_last(&mut server, &clock)
}

/// Sends what shards, which have ended, have put into the rings. Only time without room counts: a
/// thread that the kernel does not run for a while must not lose frames.
fn send_last(server: &mut SplitLinkServer, clock: &Clock) -> Result<(), LinkError> {
    let mut end = clock.now() + SHUTDOWN_ROOM_WAIT;
    loop {
        let now = clock.now();
        if server.send()? > 0 {
            end = now + SHUTDOWN_ROOM_WAIT;
        } else if !server.has_outgoing()? || now >= end {
            return Ok(());
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use megapipe_link::{
        Caps, FrameCounters, Link, LinkMedium, PairConfig, RxMetadata, TxMetadata, pair,
    };

    use super::*;
    use crate::rx_mux::split_switch;

    /// How long a burst takes: all frames of a test take longer than the wait for room.
    const BURST_TIME: Duration = Duration::from_millis(10);

    /// A link that keeps the first byte of each frame, and has room for a few in each burst.
    struct Recorder {
        caps: Caps,
        firsts: Arc<Mutex<Vec<u8>>>,
        silent: UnixStream,
        fails: bool,
    }

    impl Link for Recorder {
        fn caps(&self) -> &Caps {
            &self.caps
        }

        fn rx_burst(
            &mut self,
            _: usize,
            _: &mut dyn FnMut(&[u8], RxMetadata),
        ) -> Result<usize, LinkError> {
            if self.fails { Err(LinkError::Gone { driver: "recorder" }) } else { Ok(0) }
        }

        fn tx_burst(
            &mut self,
            max: usize,
            fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
        ) -> Result<usize, LinkError> {
            std::thread::sleep(BURST_TIME);
            let mut room = [0; 2048];
            let mut firsts = self.firsts.lock().unwrap();
            for count in 0..max.min(7) {
                if fill(&mut room).is_none() {
                    return Ok(count);
                }
                firsts.push(room[0]);
            }
            Ok(max.min(7))
        }

        fn arm(&mut self) -> Result<bool, LinkError> {
            Ok(true)
        }

        fn wait_fd(&self) -> BorrowedFd<'_> {
            self.silent.as_fd()
        }

        fn counters(&self) -> FrameCounters {
            FrameCounters::default()
        }
    }

    /// A recorder, what it records, and the other end of what it sleeps on.
    fn recorder(fails: bool) -> (Box<dyn Link>, Arc<Mutex<Vec<u8>>>, UnixStream) {
        let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
        let caps = pair(&config).unwrap().0.caps().clone();
        let (silent, other) = UnixStream::pair().unwrap();
        let firsts = Arc::default();
        let link = Recorder { caps, firsts: Arc::clone(&firsts), silent, fails };
        (Box::new(link), firsts, other)
    }

    #[test]
    fn frames_of_shards_leave_before_the_thread_ends() {
        let (link, firsts, _other) = recorder(false);
        let (mut servers, mut links) = split_switch(vec![link], (1, 1), &[7; 16]).unwrap();
        let (ended, end) = channel();
        let on_end = move || ended.send(()).unwrap();
        let server = servers.pop().unwrap();
        let thread = LinkThread::start(server, Duration::ZERO, None, on_end).unwrap();
        assert_eq!(thread.ending(), None);
        let mut frames = 1..=100_u8;
        let mut fill = |room: &mut [u8]| {
            room[..60].fill(frames.next()?);
            Some(TxMetadata { len: 60, ..TxMetadata::default() })
        };
        assert_eq!(links[0].transmit(1000, &mut fill).unwrap(), 100);
        drop(thread);
        end.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(*firsts.lock().unwrap(), (1..=100).collect::<Vec<u8>>());
    }

    #[test]
    fn account_grows_with_the_frames_of_the_link_server() {
        const FRAMES: u32 = 20_000;
        let config = PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() };
        let (here, mut peer) = pair(&config).unwrap();
        let (mut servers, mut links) =
            split_switch(vec![Box::new(here)], (1, 1), &[7; 16]).unwrap();
        let server = servers.pop().unwrap();
        let thread = LinkThread::start(server, Duration::ZERO, None, || {}).unwrap();
        let account = || {
            let (answer, answered) = channel();
            thread.request_account(Box::new(move |account| answer.send(account).unwrap()));
            answered.recv_timeout(Duration::from_secs(20)).unwrap()
        };
        let before = account();
        assert_eq!((before.queues, before.frames_in, before.frames_out), (1, 0, 0));
        let mut read = 0;
        while read < FRAMES {
            let mut fill = |room: &mut [u8]| {
                room[..60].fill(0);
                Some(TxMetadata { len: 60, ..TxMetadata::default() })
            };
            links[0].transmit(32, &mut fill).unwrap();
            read += peer.rx_burst(64, &mut |_, _| {}).unwrap() as u32;
        }
        let after = account();
        assert!(after.frames_out >= FRAMES.into(), "{after:?}");
        assert!(after.cpu > before.cpu, "{before:?}, {after:?}");
    }

    #[test]
    fn link_that_fails_is_the_reason_of_the_end() {
        let (link, _, _other) = recorder(true);
        let (mut servers, _links) = split_switch(vec![link], (1, 1), &[7; 16]).unwrap();
        let (ended, end) = channel();
        let on_end = move || ended.send(()).unwrap();
        let server = servers.pop().unwrap();
        let thread = LinkThread::start(server, Duration::ZERO, None, on_end).unwrap();
        end.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(thread.ending().unwrap().contains("recorder"), "{:?}", thread.ending());
    }
}
