//! pcapng captures of a link, in both directions, and a reader for them.
//!
//! Read first: [`Pcap`], then `capture/segments.rs` for what a capture shows of offloads, and
//! `capture/pcapng.rs` for the format.
//!
//! Invariants
//! - What stands in a capture is what goes over the wire: checksums left to the link are filled
//!   in, and large frames are cut as the link will cut them.
//! - A capture that cannot be written costs frames of the capture, counted, and none of the link.
//! - A capture with a limit ends with the last block that fits, and reports that once.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use crate::limits::{
    CAPTURE_BUFFER_BYTES, CAPTURE_BYTES_MAX_DEFAULT, CAPTURE_BYTES_MAX_MIN, OFFLOAD_FRAME_BYTES,
};
use crate::{Caps, FrameCounters, Link, LinkError, Ownership, RxChecksum, RxMetadata, TxMetadata};

mod pcapng;
mod reader;
mod segments;

pub use pcapng::Direction;
pub use reader::{Captured, ReadError, Reader};

/// The environment variable that names the capture file of a program.
pub const VARIABLE: &str = "MEGAPIPE_CAPTURE";

/// The environment variable that bounds the capture file of a program, in bytes.
pub const BYTES_MAX_VARIABLE: &str = "MEGAPIPE_CAPTURE_BYTES_MAX";

/// A capture file, shared by the links that write into it. Cheap to clone.
#[derive(Clone)]
pub struct Capture(Arc<Mutex<Sink>>);

struct Sink {
    out: Box<dyn Write + Send>,
    /// Blocks on their way out. Never grows: it is flushed before it is full.
    buffer: Vec<u8>,
    interfaces: u32,
    counts: CaptureCounts,
    /// Bytes of blocks that may still be added.
    room_bytes: u64,
    /// Called once, when the capture ends before the program does, with the reason.
    report: Box<dyn FnMut(&str) + Send>,
    end: Option<CaptureEnd>,
}

/// Why a capture takes no more blocks.
#[derive(Debug, Clone, Copy)]
enum CaptureEnd {
    Full,
    Failed,
}

/// Frames of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureCounts {
    /// Frames in the capture.
    pub frames: u64,
    /// Frames that came after the capture had reached its limit.
    pub beyond_limit: u64,
    /// Frames that came after the file could not be written.
    pub lost: u64,
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
        let mut sink = Sink {
            out,
            buffer,
            interfaces: 0,
            counts: CaptureCounts::default(),
            room_bytes: u64::MAX,
            report: Box::new(|_| ()),
            end: None,
        };
        pcapng::section_header(&mut sink.buffer);
        sink.room_bytes -= sink.buffer.len() as u64;
        sink.out.write_all(&sink.buffer)?;
        sink.buffer.clear();
        Ok(Self(Arc::new(Mutex::new(sink))))
    }

    /// Ends the capture before it is longer than `bytes_max`, with whole blocks. `report` receives
    /// one line when that happens, or when the file cannot be written.
    #[must_use]
    pub fn bounded(self, bytes_max: u64, report: Box<dyn FnMut(&str) + Send>) -> Self {
        let mut sink = self.lock();
        // The head, and what was added before.
        sink.room_bytes = bytes_max.saturating_sub(u64::MAX - sink.room_bytes);
        sink.report = report;
        drop(sink);
        self
    }

    /// The capture that the environment asks for by [`VARIABLE`], if it does, bounded by
    /// [`BYTES_MAX_VARIABLE`] (default [`CAPTURE_BYTES_MAX_DEFAULT`]). `{pid}` in the path becomes
    /// the process's number, so that several programs can have one setting. Links of one process
    /// write into one capture as long as any of them has it. The end of a capture that is full is
    /// reported on standard error.
    ///
    /// # Errors
    /// [`LinkError::Io`] when the file cannot be made, [`LinkError::Setting`] for a limit that is
    /// no number of bytes.
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
        let bytes_max = asked_bytes_max(std::env::var_os(BYTES_MAX_VARIABLE))?;
        let report = {
            let path = path.clone();
            // A closed standard error is no reason to stop.
            move |why: &str| {
                let _ = writeln!(io::stderr(), "megapipe: capture {} {why}", path.display());
            }
        };
        let capture = Self::create(&path)?.bounded(bytes_max, Box::new(report));
        *in_use = Arc::downgrade(&capture.0);
        Ok(Some(capture))
    }

    /// Frames written, and frames that are not in the capture.
    #[must_use]
    pub fn counts(&self) -> CaptureCounts {
        self.lock().counts
    }

    /// Hands what is buffered to the file.
    pub fn flush(&self) {
        self.lock().flush();
    }

    fn add_interface(&self, caps: &Caps) -> u32 {
        let mut sink = self.lock();
        let number = sink.interfaces;
        sink.interfaces += 1;
        sink.append(|buffer| pcapng::interface(buffer, caps.medium, caps.driver));
        number
    }

    fn lock(&self) -> MutexGuard<'_, Sink> {
        // Blocks are appended whole or not at all: a panic elsewhere does no harm here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    fn add(&mut self, frame: &pcapng::Frame<'_>) {
        self.append(|buffer| pcapng::packet(buffer, frame));
        match self.end {
            None => self.counts.frames += 1,
            Some(CaptureEnd::Full) => self.counts.beyond_limit += 1,
            Some(CaptureEnd::Failed) => self.counts.lost += 1,
        }
    }

    /// Appends a block, unless the capture has ended or ends because the block does not fit.
    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.buffer.len() + pcapng::BLOCK_BYTES_MAX > CAPTURE_BUFFER_BYTES {
            self.flush();
        }
        if self.end.is_some() {
            return;
        }
        let start = self.buffer.len();
        write(&mut self.buffer);
        let block_bytes = (self.buffer.len() - start) as u64;
        match self.room_bytes.checked_sub(block_bytes) {
            Some(left) => self.room_bytes = left,
            None => {
                self.buffer.truncate(start);
                // Its last blocks may fail to be written, which is then the reason of the end.
                self.flush();
                if self.end.is_none() {
                    self.end = Some(CaptureEnd::Full);
                    (self.report)("has reached its limit and ends here");
                }
            }
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        let written = self.out.write_all(&self.buffer).and_then(|()| self.out.flush());
        self.buffer.clear();
        if let Err(error) = written {
            self.end = Some(CaptureEnd::Failed);
            (self.report)(&format!("cannot be written: {error}"));
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.flush();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("counts", &self.counts()).finish()
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

/// The limit in the variable's value; an empty one asks for the default.
fn asked_bytes_max(value: Option<OsString>) -> Result<u64, LinkError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(CAPTURE_BYTES_MAX_DEFAULT);
    };
    let bytes = value.to_str().and_then(|text| text.parse().ok());
    bytes.filter(|bytes| *bytes >= CAPTURE_BYTES_MAX_MIN).ok_or_else(|| LinkError::Setting {
        setting: BYTES_MAX_VARIABLE,
        why: format!("{value:?} is not a number of bytes of at least {CAPTURE_BYTES_MAX_MIN}"),
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
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let Self { link, capture, interface, clock, scratch } = self;
        let medium = link.caps().medium;
        link.rx_burst(max, &mut |frame, received| {
            let sink = capture.lock();
            let mut recorder = Recorder { sink, interface: *interface, timestamp: clock() };
            let whole = match received.checksums {
                RxChecksum::Unverified => frame,
                RxChecksum::Verified => segments::completed(medium, frame, scratch),
            };
            recorder.add(Direction::Inward, whole);
            drop(recorder);
            each(frame, received);
        })
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
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

    /// Once, as outward: it would have gone over the wire so.
    fn record_looped(&mut self, frame: &[u8], transmit: TxMetadata) {
        let Self { link, capture, interface, clock, scratch } = self;
        let medium = link.caps().medium;
        let sink = capture.lock();
        let mut recorder = Recorder { sink, interface: *interface, timestamp: clock() };
        segments::each(medium, frame, transmit, scratch, &mut |segment| {
            recorder.add(Direction::Outward, segment);
        });
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

    fn counters(&self) -> FrameCounters {
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
