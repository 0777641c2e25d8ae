//! Helper threads for disk files: started on demand, few, gone with the channel.
//!
//! Reads and writes of disk files block whatever O_NONBLOCK says, and epoll refuses such
//! descriptors. So jobs go through one queue to at most `FILE_THREADS_MAX` threads, and outcomes
//! come back through another, with an eventfd in the epoll set that says so.
//!
//! Invariants
//! - A job owns its memory; all that it shares is a descriptor's number. The submitter of a job
//!   keeps that descriptor open until the outcome was taken or `stop` has returned.
//! - `JobQueue::working` counts the threads that use such a descriptor now; `stop` waits for them.
//!   A thread that is opening a file uses none and is not waited for: opening may last for ever.
//! - The threads block all signals: those are for the program's own threads.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use megapipe_shm::without_signals;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::FILES_DONE;
use super::set::Set;
use crate::buffer::Payload;
use crate::error::OpError;
use crate::limits::{FILE_JOBS_MAX, FILE_THREADS_MAX, GATHER_PARTS_MAX};

/// One piece of work.
pub(super) struct Job {
    pub(super) slot: u32,
    /// The descriptor, except for `Work::Open`.
    pub(super) fd: Option<RawFd>,
    pub(super) work: Work,
}

pub(super) enum Work {
    /// Up to `want` bytes, of which `done` were read already; at `offset`, or at the file's own
    /// position. `to_end`: a short read is continued until the end of the file.
    Read {
        done: Vec<u8>,
        want: usize,
        offset: Option<u64>,
        to_end: bool,
    },
    Write {
        parts: Vec<Bytes>,
        offset: Option<u64>,
    },
    Sync,
    Open {
        path: PathBuf,
        flags: i32,
    },
}

/// What became of it.
pub(super) enum Outcome {
    Read(Result<Vec<u8>, OpError>),
    ReadAt(Result<Vec<u8>, OpError>),
    Written(Result<usize, OpError>),
    WrittenAt(Result<usize, OpError>),
    Synced(Result<(), OpError>),
    Opened(Result<OwnedFd, OpError>),
}

/// Bytes to be written that may go to another thread; copied only if they lie in the channel's
/// own buffers.
pub(super) enum Bytes {
    Owned(Vec<u8>),
    Static(&'static [u8]),
    Shared(Arc<[u8]>, Range<usize>),
    Owner(Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>),
}

impl From<Payload> for Bytes {
    fn from(payload: Payload) -> Self {
        match payload {
            Payload::Vec(bytes) => Self::Owned(bytes),
            Payload::Static(bytes) => Self::Static(bytes),
            Payload::Shared(bytes, range) => Self::Shared(bytes, range),
            Payload::Owner(owner, range) => Self::Owner(owner, range),
            Payload::Write(_) | Payload::Read(_) => Self::Owned(payload.as_slice().to_vec()),
        }
    }
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Static(bytes) => bytes,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owner(owner, range) => (**owner).as_ref().get(range.clone()).unwrap_or_default(),
        }
    }
}

/// The threads of one channel; none until the first job.
#[derive(Default)]
pub(super) struct Files {
    shared: Option<Arc<JobsShared>>,
}

struct JobsShared {
    queue: Mutex<JobQueue>,
    /// There is a job, or it is time to stop.
    wanted: Condvar,
    /// A job was finished.
    finished: Condvar,
    bell: OwnedFd,
}

#[derive(Default)]
struct JobQueue {
    jobs: VecDeque<Job>,
    done: Vec<(u32, Outcome)>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads that use a descriptor of the channel.
    working: usize,
    stopped: bool,
}

impl Files {
    /// Hands a job to a thread.
    ///
    /// # Errors
    /// The work, and why it cannot be done: no thread could be started, or too much waits.
    pub(super) fn submit(&mut self, set: &Set, job: Job) -> Result<(), (Work, OpError)> {
        let shared = match self.shared(set) {
            Ok(shared) => Arc::clone(shared),
            Err(errno) => return Err((job.work, errno.into())),
        };
        let mut queue = shared.lock();
        if queue.jobs.len() + queue.done.len() >= FILE_JOBS_MAX {
            return Err((job.work, OpError::NoMemory));
        }
        queue.jobs.push_back(job);
        if queue.jobs.len() > queue.idle && queue.threads < FILE_THREADS_MAX {
            match start_thread(&shared) {
                Ok(()) => queue.threads += 1,
                // Those that there are will do it.
                Err(_) if queue.threads > 0 => {}
                Err(error) => {
                    let error = OpError::from_io(&error);
                    return queue.jobs.pop_back().map_or(Ok(()), |job| Err((job.work, error)));
                }
            }
        }
        shared.wanted.notify_one();
        Ok(())
    }

    fn shared(&mut self, set: &Set) -> Result<&Arc<JobsShared>, Errno> {
        if self.shared.is_none() {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Edge-triggered: the counter need not be read.
            set.add(bell.as_fd(), FILES_DONE, EventFlags::IN | EventFlags::ET)?;
            let (queue, wanted, finished) = (Mutex::default(), Condvar::new(), Condvar::new());
            self.shared = Some(Arc::new(JobsShared { queue, wanted, finished, bell }));
        }
        self.shared.as_ref().ok_or(Errno::NOMEM)
    }

    /// The outcomes that are there, each with its slot.
    pub(super) fn take_done(&mut self) -> Vec<(u32, Outcome)> {
        self.shared
            .as_ref()
            .map(|shared| std::mem::take(&mut shared.lock().done))
            .unwrap_or_default()
    }

    /// Waits until there is an outcome. Only for when one is due.
    pub(super) fn wait_for_one(&self) {
        let Some(shared) = &self.shared else { return };
        let queue = shared.lock();
        drop(shared.finished.wait_while(queue, |queue| queue.done.is_empty()));
    }

    /// Takes back the jobs of a slot that no thread has begun; says how many.
    pub(super) fn cancel(&mut self, slot: u32) -> u32 {
        let Some(shared) = &self.shared else { return 0 };
        let mut queue = shared.lock();
        let before = queue.jobs.len();
        queue.jobs.retain(|job| job.slot != slot);
        (before - queue.jobs.len()) as u32
    }

    /// Ends the threads. Returns when none uses a descriptor of the channel.
    pub(super) fn stop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let mut queue = shared.lock();
        queue.stopped = true;
        queue.jobs.clear();
        shared.wanted.notify_all();
        drop(shared.finished.wait_while(queue, |queue| queue.working > 0));
    }

    /// In a fork's child there are no threads, and the lock may be held for ever.
    pub(super) fn abandon(&mut self) {
        std::mem::forget(self.shared.take());
    }
}

impl JobsShared {
    /// A poisoned lock is taken all the same: each change under it is complete before the next
    /// step that could panic.
    fn lock(&self) -> MutexGuard<'_, JobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does all its life.
    fn serve(&self) {
        let mut queue = self.lock();
        while !queue.stopped {
            let Some(job) = queue.jobs.pop_front() else {
                queue.idle += 1;
                queue = self.wanted.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
                continue;
            };
            let (slot, borrows) = (job.slot, usize::from(job.fd.is_some()));
            queue.working += borrows;
            drop(queue);
            let outcome = job.run();
            queue = self.lock();
            queue.working -= borrows;
            queue.done.push((slot, outcome));
            if queue.done.len() == 1 {
                // Nothing else fails than a counter that is full, and so rung.
                let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            }
            self.finished.notify_all();
        }
        queue.threads -= 1;
    }
}

fn start_thread(shared: &Arc<JobsShared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    let builder = thread::Builder::new().name("megapipe-file".to_owned());
    without_signals(|| builder.spawn(move || shared.serve()).map(drop))
}

impl Job {
    fn run(self) -> Outcome {
        let Some(raw) = self.fd else {
            return match self.work {
                Work::Open { path, flags } => Outcome::Opened(open(path, flags)),
                other => other.refused(OpError::BadDescriptor),
            };
        };
        // SAFETY: the submitter keeps the descriptor open until the outcome was taken or `stop`
        // has returned, and `stop` waits for this job (`JobQueue::working`).
        let fd = unsafe { BorrowedFd::borrow_raw(raw) };
        match self.work {
            Work::Read { done, want, offset, to_end } => {
                let read = read(fd, done, want, offset, to_end).map_err(OpError::from);
                if offset.is_some() { Outcome::ReadAt(read) } else { Outcome::Read(read) }
            }
            Work::Write { parts, offset } => {
                let written = write(fd, &parts, offset);
                if offset.is_some() {
                    Outcome::WrittenAt(written)
                } else {
                    Outcome::Written(written)
                }
            }
            Work::Sync => Outcome::Synced(rustix::fs::fsync(fd).map_err(OpError::from)),
            Work::Open { .. } => self.work.refused(OpError::InvalidInput),
        }
    }
}

impl Work {
    /// The outcome of work that could not be done.
    pub(super) fn refused(self, error: OpError) -> Outcome {
        match self {
            Self::Read { offset: None, .. } => Outcome::Read(Err(error)),
            Self::Read { .. } => Outcome::ReadAt(Err(error)),
            Self::Write { offset: None, .. } => Outcome::Written(Err(error)),
            Self::Write { .. } => Outcome::WrittenAt(Err(error)),
            Self::Sync => Outcome::Synced(Err(error)),
            Self::Open { .. } => Outcome::Opened(Err(error)),
        }
    }
}

fn open(path: PathBuf, flags: i32) -> Result<OwnedFd, OpError> {
    let flags = OFlags::from_bits_retain(flags as u32);
    let mode = Mode::from_bits_retain(0o666);
    loop {
        match rustix::fs::open(&path, flags, mode) {
            Err(Errno::INTR) => {}
            other => return other.map_err(OpError::from),
        }
    }
}

fn read(
    fd: BorrowedFd<'_>,
    done: Vec<u8>,
    want: usize,
    offset: Option<u64>,
    to_end: bool,
) -> Result<Vec<u8>, Errno> {
    let mut buffer = done;
    let mut count = buffer.len();
    buffer.try_reserve_exact(want - count).map_err(|_| Errno::NOMEM)?;
    buffer.resize(want, 0);
    while count < want {
        let room = &mut buffer[count..];
        let got = match offset {
            Some(offset) => rustix::io::pread(fd, room, offset + count as u64),
            None => rustix::io::read(fd, room),
        };
        match got {
            Ok(0) => break,
            Ok(more) => {
                count += more;
                if !to_end {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) if count == 0 => return Err(errno),
            // What was read is the program's; the next read meets the error.
            Err(_) => break,
        }
    }
    buffer.truncate(count);
    Ok(buffer)
}

/// Writes all of it; the number of bytes.
fn write(fd: BorrowedFd<'_>, parts: &[Bytes], offset: Option<u64>) -> Result<usize, OpError> {
    let total: usize = parts.iter().map(|part| part.as_slice().len()).sum();
    let mut done = 0;
    while done < total {
        let mut skip = done;
        let mut rest = Vec::with_capacity(parts.len().min(GATHER_PARTS_MAX));
        for part in parts.iter().map(Bytes::as_slice) {
            let left = &part[skip.min(part.len())..];
            skip -= part.len() - left.len();
            if !left.is_empty() && rest.len() < GATHER_PARTS_MAX {
                rest.push(IoSlice::new(left));
            }
        }
        let written = match offset {
            Some(offset) => rustix::io::pwritev(fd, &rest, offset + done as u64),
            None => rustix::io::writev(fd, &rest),
        };
        match written {
            Ok(0) => return Err(OpError::NoSpace),
            Ok(more) => done += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
