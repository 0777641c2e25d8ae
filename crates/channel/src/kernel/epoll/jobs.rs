//! Disk files: what the page cache has is read at once, the rest is done by helper threads.
//!
//! Read first: `files.rs` (the threads), readv(2) for RWF_NOWAIT.
//!
//! Invariants
//! - A job that was handed over counts in `slot.kernel_requests` until its outcome is looked at;
//!   the slot, and the descriptor that the thread uses, stay until then.
//! - At most one read and one write at the file's own position are under way, so they go in order.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::Epoll;
use super::files::{Bytes, Job, Outcome, Work};
use super::plain::CURRENT_POSITION;
use super::stream::{SendOutcome, fill};
use crate::buffer::ReadBuf;
use crate::completion::Event;
use crate::error::OpError;
use crate::kernel::sys;
use crate::limits::CACHED_READ_BYTES_MAX;
use crate::options::OpenOptions;
use crate::slot::{Body, FileJob, Kind, SlotPhase, WriteOp};
use crate::state::State;

impl Epoll {
    pub(super) fn open_file(
        &mut self,
        state: &mut State,
        slot: u32,
        path: PathBuf,
        options: OpenOptions,
    ) {
        self.hand_over_job(state, slot, Work::Open { path, flags: sys::open_flags(&options) });
    }

    pub(super) fn do_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        match job {
            FileJob::ReadAt { offset, len } => match read_cached(state, slot, len, offset) {
                Cached::All(read) => state.complete(slot, Event::Read(read)),
                Cached::Part(done) => {
                    let work = Work::Read { done, want: len, offset: Some(offset), to_end: true };
                    self.hand_over_job(state, slot, work);
                }
            },
            FileJob::WriteAt { offset, data } => {
                let (parts, offset) = (vec![Bytes::from(data)], Some(offset));
                self.hand_over_job(state, slot, Work::Write { parts, offset });
            }
            FileJob::Fsync => self.hand_over_job(state, slot, Work::Sync),
        }
    }

    /// The oldest read at the file's position. Returns the bytes, if they were there.
    pub(super) fn read_file(&mut self, state: &mut State, slot: u32, want: usize) -> usize {
        match read_cached(state, slot, want, CURRENT_POSITION) {
            Cached::All(read) => {
                let count = read.as_ref().map_or(0, |bytes| bytes.len());
                state.answer_one(slot, read);
                count.max(1)
            }
            Cached::Part(done) => {
                let entry = state.slot(slot);
                entry.flags.readable = false;
                let to_end = entry.kind == Kind::File;
                self.hand_over_job(state, slot, Work::Read { done, want, offset: None, to_end });
                0
            }
        }
    }

    /// The write at the head, at the file's position.
    pub(super) fn write_file(&mut self, state: &mut State, slot: u32) -> SendOutcome {
        let queue = state.peek(slot).writes;
        let Some(WriteOp { body, .. }) = state.writes.front_mut(queue) else {
            return SendOutcome::Bytes(0);
        };
        // The entry stays until the bytes are written; what it had is with the thread.
        let parts = match std::mem::replace(body, Body::Many(Box::default())) {
            Body::One(payload) => vec![Bytes::from(payload)],
            Body::Many(payloads) => payloads.into_iter().map(Bytes::from).collect(),
            Body::Disconnect(_) | Body::ToFd => Vec::new(),
        };
        state.slot(slot).flags.writable = false;
        self.hand_over_job(state, slot, Work::Write { parts, offset: None });
        SendOutcome::NoRoom
    }

    fn hand_over_job(&mut self, state: &mut State, slot: u32, work: Work) {
        let entry = state.slot(slot);
        let is_open = matches!(work, Work::Open { .. });
        let fd = entry.fd.as_ref().map(AsRawFd::as_raw_fd);
        if fd.is_none() && !is_open {
            return self.on_outcome(state, slot, work.refused(OpError::BadDescriptor));
        }
        entry.kernel_requests += 1;
        state.counters.kernel_requests += 1;
        if let Err((work, error)) = self.files.submit(&self.set, Job { slot, fd, work }) {
            state.slot(slot).kernel_requests -= 1;
            self.on_outcome(state, slot, work.refused(error));
        }
    }

    /// Looks at what the threads have finished.
    pub(super) fn collect_jobs(&mut self, state: &mut State) {
        for (slot, outcome) in self.files.take_done() {
            let entry = state.slot(slot);
            entry.kernel_requests -= 1;
            match entry.phase {
                SlotPhase::Closing => self.finish_closing(state, slot),
                SlotPhase::Leaving => {}
                _ => self.on_outcome(state, slot, outcome),
            }
        }
    }

    /// Waits until no thread works for the slot, which is leaving.
    pub(super) fn settle(&mut self, state: &mut State, slot: u32) {
        while state.slot(slot).kernel_requests > 0 {
            self.files.wait_for_one();
            self.collect_jobs(state);
        }
    }

    fn on_outcome(&mut self, state: &mut State, slot: u32, outcome: Outcome) {
        match outcome {
            Outcome::Read(result) => {
                state.slot(slot).flags.readable = true;
                state.answer_one(slot, result.map(ReadBuf::from_vec));
                self.enqueue(state, slot);
            }
            Outcome::ReadAt(result) => {
                state.complete(slot, Event::Read(result.map(ReadBuf::from_vec)));
            }
            Outcome::Written(result) => {
                state.slot(slot).flags.writable = true;
                match result {
                    Ok(count) => state.on_sent(slot, count),
                    Err(error) => state.on_send_failed(slot, error),
                }
                self.enqueue(state, slot);
            }
            Outcome::WrittenAt(result) => state.complete(slot, Event::Write(result)),
            Outcome::Synced(result) => state.complete(slot, Event::Fsync(result)),
            Outcome::Opened(result) => self.on_opened(state, slot, result),
        }
    }

    fn on_opened(&mut self, state: &mut State, slot: u32, result: Result<OwnedFd, OpError>) {
        let attached = result.and_then(|fd| {
            state.slot(slot).set_fd(fd);
            self.attach_plain(state, slot).map_err(|error| OpError::from_io(&error))
        });
        state.on_opened(slot, attached);
        // Writes may have been queued since; without a file they fail.
        let flags = &mut state.slot(slot).flags;
        (flags.readable, flags.writable) = (true, true);
        if !state.peek(slot).writes.is_empty() {
            state.slot(slot).flags.writing = true;
            self.enqueue(state, slot);
        }
    }
}

/// What the page cache had.
enum Cached {
    /// The read is done, or failed.
    All(Result<ReadBuf, OpError>),
    /// The beginning, perhaps empty; a thread does the rest.
    Part(Vec<u8>),
}

/// Reads what is in the page cache, without waiting for the disk.
fn read_cached(state: &mut State, slot: u32, want: usize, offset: u64) -> Cached {
    if want > CACHED_READ_BYTES_MAX {
        return Cached::Part(Vec::new());
    }
    state.counters.system_calls += 1;
    let mut beginning = Vec::new();
    let read = fill(state, want, |state, room| {
        let entry = state.peek(slot);
        let fd = entry.fd.as_ref().ok_or(Errno::BADF)?;
        let mut count = 0;
        loop {
            let at = if offset == CURRENT_POSITION { offset } else { offset + count as u64 };
            let mut rest = [IoSliceMut::new(&mut room[count..])];
            match preadv2(fd, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Ok(count),
                Ok(more) => {
                    count += more;
                    // Only of files is a short read continued; a device gave what it had.
                    if count == room.len() || entry.kind != Kind::File {
                        return Ok(count);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    beginning.extend_from_slice(&room[..count]);
                    return Err(Errno::AGAIN);
                }
                Err(errno) if count == 0 => return Err(errno),
                Err(_) => return Ok(count),
            }
        }
    });
    match read {
        Ok(bytes) => Cached::All(Ok(bytes)),
        Err(Errno::AGAIN) => Cached::Part(beginning),
        Err(errno) => Cached::All(Err(errno.into())),
    }
}
