//! Captures: every frame of a link, both directions, into a pcapng file; and such files read back.
//!
//! Read first: [`Pcap`], then `capture/segments.rs` for what a capture shows of offloads, and
//! `capture/pcapng.rs` for the format.
//!
//! Invariants
//! - What stands in a capture is what goes over the wire: checksums left to the link are filled
//!   in, and large frames are cut as the link will cut them.
//! - A capture that cannot be written costs frames of the capture, counted, and none of the link.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::limits::{CAPTURE_BUFFER_BYTES, OFFLOAD_FRAME_BYTES};
use crate::{Caps, Checksums, Counters, Link, LinkError, Ownership, Received, Transmit};

mod pcapng;
mod reader;
mod segments;

pub use pcapng::Direction;
pub use reader::{Captured, ReadError, Reader};

/// The environment variable that names the capture file of a program.
pub const VARIABLE: &str = "MEGAPIPE_CAPTURE";

/// A capture file, shared by the links that write into it. Cheap to clone.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<Sink>>);

struct Sink {
    out: Box<dyn Write + Send>,
    /// Blocks on their way out. Never grows: it is flushed before it is full.
    buffer: Vec<u8>,
    interfaces: u32,
    frames: u64,
    lost: u64,
    has_failed: bool,
}

impl Capture {
    /// Makes the file, or empties it, and writes its head.
    ///
    /// # Errors
    /// [`LinkError::Io`].
    pub fn create(path: &Path) -> Result<Self, LinkError> {
        let fail = |source| LinkError::Io { what: "make a capture file", source };
        Self::new(Box::new(File::create(path).map_err(fail)?)).map_err(fail)
    }

    /// Writes a capture into `out`, a block or more at a time.
    ///
    /// # Errors
    /// What `out` answers to the head of the capture.
    pub fn new(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let buffer = Vec::with_capacity(CAPTURE_BUFFER_BYTES);
        let mut sink = Sink { out, buffer, interfaces: 0, frames: 0, lost: 0, has_failed: false };
        pcapng::section_header(&mut sink.buffer);
        sink.out.write_all(&sink.buffer)?;
        sink.buffer.clear();
        Ok(Self(Arc::new(Mutex::new(sink))))
    }

    /// The capture that the environment asks for by [`VARIABLE`], if it does. `{pid}` in the
    /// path becomes the process's number, so that several programs can have one setting. Links of
    /// one process write into one capture as long as any of them has it.
    ///
    /// # Errors
    /// [`LinkError::Io`] when the file cannot be made.
    pub fn from_environment() -> Result<Option<Self>, LinkError> {
        static IN_USE: Mutex<Weak<Mutex<Sink>>> = Mutex::new(Weak::new());
        let asked = std::env::var_os(VARIABLE);
        let Some(path) = asked.and_then(|value| asked_path(value, std::process::id())) else {
            return Ok(None);
        };
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = in_use.upgrade() {
            return Ok(Some(Self(sink)));
        }
        let capture = Self::create(&path)?;
        *in_use = Arc::downgrade(&capture.0);
        Ok(Some(capture))
    }

    /// Frames written, and frames that were lost because the file could not be written.
    #[must_use]
    pub fn frames(&self) -> (u64, u64) {
        let sink = self.lock();
        (sink.frames, sink.lost)
    }

    /// Hands what is buffered to the file.
    pub fn flush(&self) {
        self.lock().flush();
    }

    fn add_interface(&self, caps: &Caps) -> u32 {
        let mut sink = self.lock();
        let number = sink.interfaces;
        sink.interfaces += 1;
        sink.make_room();
        pcapng::interface(&mut sink.buffer, caps.medium, caps.driver);
        number
    }

    fn lock(&self) -> MutexGuard<'_, Sink> {
        // Blocks are appended whole or not at all: a panic elsewhere does no harm here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    fn add(&mut self, frame: &pcapng::Frame<'_>) {
        self.make_room();
        if self.has_failed {
            self.lost += 1;
            return;
        }
        pcapng::packet(&mut self.buffer, frame);
        self.frames += 1;
    }

    fn make_room(&mut self) {
        if self.buffer.len() + pcapng::BLOCK_BYTES_MAX > CAPTURE_BUFFER_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let is_written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush()).is_ok();
        self.has_failed |= !is_written;
        self.buffer.clear();
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frames, lost) = self.frames();
        f.debug_struct("Capture").field("frames", &frames).field("lost", &lost).finish()
    }
}

/// The path in the variable's value; an empty one asks for nothing.
fn asked_path(value: OsString, pid: u32) -> Option<PathBuf> {
    if value.is_empty() {
        return None;
    }
    // A path that is no UTF-8 has no braces for us.
    Some(match value.into_string() {
        Ok(path) => path.replace("{pid}", &pid.to_string()).into(),
        Err(path) => path.into(),
    })
}

/// A link whose frames are written into a [`Capture`], inward and outward ones.
///
/// A frame on its way out is written when it was filled: one that the link refuses afterwards
/// stands in the capture all the same. What is buffered reaches the file when the link goes to
/// sleep, when the buffer is full, and at the end.
pub struct Pcap<L> {
    link: L,
    capture: Capture,
    interface: u32,
    /// Time since 1970.
    clock: Clock,
    /// Where frames are completed.
    scratch: Box<[u8]>,
}

type Clock = Box<dyn FnMut() -> Duration + Send>;

impl<L: Link> Pcap<L> {
    /// Writes the frames of `link` into `capture`, by the system's clock.
    pub fn new(link: L, capture: Capture) -> Self {
        let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::with_clock(link, capture, Box::new(now))
    }

    /// The same with another clock: it answers the time since 1970.
    pub fn with_clock(link: L, capture: Capture, clock: Clock) -> Self {
        let interface = capture.add_interface(link.caps());
        let frame_bytes = link.caps().tx_frame_bytes.max(OFFLOAD_FRAME_BYTES);
        Self { link, capture, interface, clock, scratch: vec![0; frame_bytes].into() }
    }

    /// The link inside.
    pub fn into_inner(self) -> L {
        self.link
    }
}

/// The parts of a [`Pcap`] that record, apart from the link that lends the frames.
struct Recorder<'a> {
    sink: MutexGuard<'a, Sink>,
    interface: u32,
    timestamp: Duration,
}

impl Recorder<'_> {
    fn add(&mut self, direction: Direction, bytes: &[u8]) {
        let (interface, timestamp) = (self.interface, self.timestamp);
        self.sink.add(&pcapng::Frame { interface, timestamp, direction, bytes });
    }
}

impl<L: Link> Link for Pcap<L> {
    fn caps(&self) -> &Caps {
        self.link.caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], Received),
    ) -> Result<usize, LinkError> {
        let Self { link, capture, interface, clock, scratch } = self;
        let medium = link.caps().medium;
        link.rx_burst(max, &mut |frame, received| {
            let sink = capture.lock();
            let mut recorder = Recorder { sink, interface: *interface, timestamp: clock() };
            let whole = match received.checksums {
                Checksums::Unverified => frame,
                Checksums::Verified => segments::completed(medium, frame, scratch),
            };
            recorder.add(Direction::Inward, whole);
            drop(recorder);
            each(frame, received);
        })
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<Transmit>,
    ) -> Result<usize, LinkError> {
        let Self { link, capture, interface, clock, scratch } = self;
        let medium = link.caps().medium;
        link.tx_burst(max, &mut |room| {
            let transmit = fill(room)?;
            if let Some(frame) = room.get(..transmit.len) {
                let sink = capture.lock();
                let mut recorder = Recorder { sink, interface: *interface, timestamp: clock() };
                segments::each(medium, frame, transmit, scratch, &mut |segment| {
                    recorder.add(Direction::Outward, segment);
                });
            }
            Some(transmit)
        })
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        let is_armed = self.link.arm()?;
        if is_armed {
            self.capture.flush();
        }
        Ok(is_armed)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.link.wait_fd()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<bool, LinkError> {
        self.capture.flush();
        self.link.wait(timeout)
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.set_ownership(ownership)
    }

    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.check_ownership(ownership)
    }
}

impl<L: fmt::Debug> fmt::Debug for Pcap<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Pcap");
        debug.field("link", &self.link).field("capture", &self.capture).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
