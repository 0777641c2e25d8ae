//! The helper threads by themselves: how many there are, in what order, and how they end.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::*;

fn set() -> Set {
    Set::new(8, false).unwrap()
}

/// Outcomes as they come, until there are `count`.
fn collect(files: &mut Files, count: usize) -> Vec<(u32, Outcome)> {
    let mut all = Vec::new();
    while all.len() < count {
        files.wait_for_one();
        all.extend(files.take_done());
    }
    all
}

fn submit(files: &mut Files, set: &Set, slot: u32, fd: Option<RawFd>, work: Work) {
    assert!(files.submit(set, Job { slot, fd, work }).is_ok());
}

fn read_work(want: usize) -> Work {
    Work::Read { done: Vec::new(), want, offset: None, to_end: false }
}

fn write_work(bytes: &[u8], offset: u64) -> Work {
    Work::Write { parts: vec![Bytes::Owned(bytes.to_vec())], offset: Some(offset) }
}

fn threads(files: &Files) -> usize {
    files.shared.as_ref().map_or(0, |shared| shared.lock().threads)
}

fn scratch_file() -> File {
    let memory = rustix::fs::memfd_create("jobs", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    File::from(memory)
}

#[test]
fn there_is_no_thread_before_the_first_job_and_never_more_than_the_limit() {
    let (mut files, set) = (Files::default(), set());
    assert_eq!(threads(&files), 0);
    let file = scratch_file();
    for slot in 0..100 {
        let work = write_work(&[slot as u8; 10], u64::from(slot) * 10);
        submit(&mut files, &set, slot, Some(file.as_raw_fd()), work);
    }
    let done = collect(&mut files, 100);
    assert!(done.iter().all(|(_, outcome)| matches!(outcome, Outcome::WrittenAt(Ok(10)))));
    assert!((1..=FILE_THREADS_MAX).contains(&threads(&files)));
    let work = Work::Read { done: Vec::new(), want: 2000, offset: Some(0), to_end: true };
    submit(&mut files, &set, 7, Some(file.as_raw_fd()), work);
    match collect(&mut files, 1).pop() {
        Some((7, Outcome::ReadAt(Ok(all)))) => {
            assert!(all.chunks(10).enumerate().all(|(slot, ten)| ten == [slot as u8; 10]));
            assert_eq!(all.len(), 1000);
        }
        _ => panic!("a read of slot 7"),
    }
    files.stop();
}

#[test]
fn finished_job_makes_the_set_readable() {
    let (mut files, mut set) = (Files::default(), set());
    let file = scratch_file();
    for _ in 0..3 {
        submit(&mut files, &set, 1, Some(file.as_raw_fd()), Work::Sync);
        assert_eq!(set.wait(Some(Duration::from_secs(5))), Ok(1));
        assert_eq!(set.event(0).0, FILES_DONE);
        assert!(matches!(files.take_done()[..], [(1, Outcome::Synced(Ok(())))]));
    }
    assert_eq!(set.wait(Some(Duration::ZERO)), Ok(0));
    files.stop();
}

#[test]
fn jobs_that_were_not_begun_can_be_taken_back() {
    let (mut files, set) = (Files::default(), set());
    let (reader, mut writer) = std::io::pipe().unwrap();
    // Every thread is busy with a pipe that says nothing.
    for slot in 0..FILE_THREADS_MAX as u32 {
        submit(&mut files, &set, slot, Some(reader.as_raw_fd()), read_work(1));
    }
    while files.shared.as_ref().is_some_and(|shared| !shared.lock().jobs.is_empty()) {
        thread::yield_now();
    }
    for _ in 0..5 {
        submit(&mut files, &set, 99, Some(reader.as_raw_fd()), read_work(1));
    }
    submit(&mut files, &set, 50, Some(reader.as_raw_fd()), read_work(1));
    assert_eq!(files.cancel(99), 5);
    assert_eq!(files.cancel(99), 0);
    writer.write_all(&[1; FILE_THREADS_MAX + 1]).unwrap();
    let done = collect(&mut files, FILE_THREADS_MAX + 1);
    assert!(done.iter().all(|(slot, _)| *slot != 99));
    assert!(done.iter().any(|(slot, _)| *slot == 50));
    files.stop();
}

#[test]
fn stopping_waits_for_users_of_a_descriptor() {
    let (mut files, set) = (Files::default(), set());
    let (reader, mut writer) = std::io::pipe().unwrap();
    submit(&mut files, &set, 1, Some(reader.as_raw_fd()), read_work(1));
    let shared = Arc::clone(files.shared.as_ref().unwrap());
    while shared.lock().working == 0 {
        thread::yield_now();
    }
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        writer.write_all(b"x").unwrap();
    });
    files.stop();
    assert_eq!(shared.lock().working, 0);
    late.join().unwrap();
    // Nothing is done any more, and the threads are gone or on their way.
    while shared.lock().threads > 0 {
        thread::yield_now();
    }
}

#[test]
fn the_threads_block_every_signal_but_those_of_faults() {
    let (mut files, set) = (Files::default(), set());
    let path = PathBuf::from("/proc/thread-self/status");
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // The thread that opens it finds its own.
    submit(&mut files, &set, 1, None, Work::Open { path, flags });
    let Some((_, Outcome::Opened(Ok(status)))) = collect(&mut files, 1).pop() else {
        panic!("the status of the thread")
    };
    let status = std::io::read_to_string(File::from(status)).unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD] {
        assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal} in {blocked:x}");
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL] {
        assert_eq!(blocked & (1 << (signal - 1)), 0, "signal {signal} in {blocked:x}");
    }
    assert!(status.contains("Name:\tmegapipe-file"), "{status}");
    files.stop();
}

#[test]
fn failed_job_returns_its_error() {
    let error = OpError::NoMemory;
    assert!(matches!(read_work(1).refused(error), Outcome::Read(Err(OpError::NoMemory))));
    assert!(matches!(write_work(b"", 0).refused(error), Outcome::WrittenAt(Err(_))));
    assert!(matches!(Work::Sync.refused(error), Outcome::Synced(Err(_))));
    let open = Work::Open { path: PathBuf::new(), flags: 0 };
    assert!(matches!(open.refused(error), Outcome::Opened(Err(_))));
}

#[test]
fn more_parts_than_one_call_takes_are_written_whole() {
    let (mut files, set) = (Files::default(), set());
    let file = scratch_file();
    let parts: Vec<Bytes> = (0..500u32).map(|part| vec![part as u8; 3].into()).collect();
    let work = Work::Write { parts, offset: Some(1) };
    submit(&mut files, &set, 0, Some(file.as_raw_fd()), work);
    assert!(matches!(collect(&mut files, 1)[..], [(0, Outcome::WrittenAt(Ok(1500)))]));
    assert_eq!(file.metadata().unwrap().len(), 1501);
    files.stop();
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}
