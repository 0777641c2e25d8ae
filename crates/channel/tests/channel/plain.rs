//! Pipes, FIFOs, terminals, devices, eventfd, timerfd, signalfd.

use std::fs::File;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use megapipe::{Event, Handle, OpError};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::scene::{Case, Folder, PATIENCE, Scene, on_each_driver, pattern, receive, send};

on_each_driver![
    a_pipe_carries_bytes_both_roles,
    a_non_blocking_pipe_works_like_a_blocking_one,
    a_pipes_end_is_an_empty_read,
    writing_to_a_pipe_without_a_reader_is_a_broken_pipe,
    a_write_larger_than_the_pipe_completes_whole,
    a_pipe_takes_a_vector_of_many_parts,
    reads_of_a_pipe_are_answered_in_order,
    a_pipe_given_back_has_lost_nothing,
    a_fifo_carries_bytes,
    a_terminal_reads_lines_and_writes,
    the_null_device_swallows_and_the_zero_device_gives,
    an_eventfd_counts,
    timerfd_read_returns_expirations,
    signalfd_read_returns_the_signal,
    reading_the_writing_end_fails,
];

fn pipe(flags: PipeFlags) -> (File, File) {
    let (reader, writer) = pipe_with(flags | PipeFlags::CLOEXEC).unwrap();
    (reader.into(), writer.into())
}

fn put(scene: &mut Scene, fd: impl Into<OwnedFd>) -> Handle {
    scene.register(fd.into(), 0, None).unwrap()
}

fn a_pipe_carries_bytes_both_roles(case: &Case) {
    let mut scene = case.scene();
    let (reader, mut writer) = pipe(PipeFlags::empty());
    let reader = put(&mut scene, reader);
    send(&mut writer, b"into the channel");
    assert_eq!(scene.read_exact(reader, 16), b"into the channel");
    let (mut reader, writer) = pipe(PipeFlags::empty());
    let writer = put(&mut scene, writer);
    scene.write(writer, "out of ").unwrap();
    scene.write(writer, "the channel").unwrap();
    scene.expect_written(writer, 7);
    scene.expect_written(writer, 11);
    assert_eq!(receive(&mut reader, 18), b"out of the channel");
}

fn a_non_blocking_pipe_works_like_a_blocking_one(case: &Case) {
    let mut scene = case.scene();
    let (reader, writer) = pipe(PipeFlags::NONBLOCK);
    let (reader, writer) = (put(&mut scene, reader), put(&mut scene, writer));
    scene.read(reader, 100).unwrap();
    scene.expect_silence();
    scene.write(writer, "at last").unwrap();
    let Event::Read(Ok(bytes)) = scene.next_of(reader) else { panic!() };
    assert_eq!(&*bytes, b"at last");
    scene.expect_written(writer, 7);
    scene.write(writer, pattern(1, 300_000)).unwrap();
    assert!(scene.read_exact(reader, 300_000) == pattern(1, 300_000));
    scene.expect_written(writer, 300_000);
}

fn a_pipes_end_is_an_empty_read(case: &Case) {
    let mut scene = case.scene();
    let (reader, mut writer) = pipe(PipeFlags::empty());
    let reader = put(&mut scene, reader);
    send(&mut writer, b"last");
    drop(writer);
    assert_eq!(scene.read_to_end(reader), b"last");
    assert!(scene.read_once(reader, 1).unwrap().is_empty());
}

fn writing_to_a_pipe_without_a_reader_is_a_broken_pipe(case: &Case) {
    let mut scene = case.scene();
    let (reader, writer) = pipe(PipeFlags::empty());
    let writer = put(&mut scene, writer);
    drop(reader);
    let start = Instant::now();
    let error = loop {
        scene.write(writer, "unread").unwrap();
        match scene.next_of(writer) {
            Event::Write(Err(error)) => break error,
            // The child of another test's fork has its copy of the reader until it executes.
            Event::Write(Ok(_)) if start.elapsed() < PATIENCE => thread::yield_now(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(error, OpError::BrokenPipe);
}

fn a_write_larger_than_the_pipe_completes_whole(case: &Case) {
    let mut scene = case.scene();
    for flags in [PipeFlags::empty(), PipeFlags::NONBLOCK] {
        let (reader, writer) = pipe(flags);
        let writer = put(&mut scene, writer);
        scene.write(writer, pattern(1, 1 << 20)).unwrap();
        scene.flush().unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
        let mut reader = reader;
        let getter = thread::spawn(move || receive(&mut reader, 1 << 20));
        scene.expect_written(writer, 1 << 20);
        assert!(getter.join().unwrap() == pattern(1, 1 << 20));
    }
}

fn a_pipe_takes_a_vector_of_many_parts(case: &Case) {
    let mut scene = case.scene();
    let (mut reader, writer) = pipe(PipeFlags::empty());
    let writer = put(&mut scene, writer);
    let parts: Vec<_> = (0..200).map(|turn| pattern(turn, 20)).collect();
    let whole = parts.concat();
    scene.writev(writer, parts.into_iter().map(megapipe::Payload::from)).unwrap();
    scene.expect_written(writer, 4000);
    assert_eq!(receive(&mut reader, 4000), whole);
}

fn reads_of_a_pipe_are_answered_in_order(case: &Case) {
    let mut scene = case.scene();
    let (reader, mut writer) = pipe(PipeFlags::empty());
    let reader = put(&mut scene, reader);
    for len in [2, 3, 100] {
        scene.read(reader, len).unwrap();
    }
    scene.flush().unwrap();
    send(&mut writer, b"aabbbcccc");
    for expected in ["aa", "bbb", "cccc"] {
        let Event::Read(Ok(bytes)) = scene.next_of(reader) else { panic!() };
        assert_eq!(&*bytes, expected.as_bytes());
    }
}

fn a_pipe_given_back_has_lost_nothing(case: &Case) {
    let mut scene = case.scene();
    for _ in 0..20 {
        let (reader, mut writer) = pipe(PipeFlags::empty());
        let handle = put(&mut scene, reader);
        scene.read(handle, 10).unwrap();
        scene.flush().unwrap();
        let left = scene.unregister(handle).unwrap();
        send(&mut writer, b"afterwards");
        drop(writer);
        let reader = left.fd.unwrap();
        rustix::fs::fcntl_setfl(&reader, OFlags::empty()).unwrap();
        let mut got: Vec<u8> = left.unread.iter().flat_map(|unread| unread.to_vec()).collect();
        File::from(reader).read_to_end(&mut got).unwrap();
        assert_eq!(got, b"afterwards");
    }
    scene.expect_silence();
}

fn a_fifo_carries_bytes(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // Opened for both, so that neither open waits for the other.
    let mut ours = File::options().read(true).write(true).open(&path).unwrap();
    let theirs = File::options().read(true).write(true).open(&path).unwrap();
    let handle = put(&mut scene, theirs);
    send(&mut ours, b"hello fifo");
    assert_eq!(scene.read_exact(handle, 10), b"hello fifo");
    scene.write(handle, "and back").unwrap();
    scene.expect_written(handle, 8);
    assert_eq!(receive(&mut ours, 8), b"and back");
}

fn a_terminal_reads_lines_and_writes(case: &Case) {
    let mut scene = case.scene();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let handle = put(&mut scene, terminal);
    assert_eq!(scene.explain(handle).unwrap().kind, "character device");
    let mut master = File::from(master);
    send(&mut master, b"a line\n");
    assert_eq!(&*scene.read_once(handle, 100).unwrap(), b"a line\n");
    scene.write(handle, "shown").unwrap();
    scene.expect_written(handle, 5);
    // The terminal has echoed the line, with a carriage return.
    assert_eq!(receive(&mut master, 13), b"a line\r\nshown");
}

fn the_null_device_swallows_and_the_zero_device_gives(case: &Case) {
    let mut scene = case.scene();
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let null = put(&mut scene, null);
    scene.write(null, vec![1; 100_000]).unwrap();
    scene.expect_written(null, 100_000);
    assert!(scene.read_once(null, 10).unwrap().is_empty());
    let zero = put(&mut scene, File::open("/dev/zero").unwrap());
    assert_eq!(*scene.read_once(zero, 100).unwrap(), [0; 100]);
}

fn an_eventfd_counts(case: &Case) {
    for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK] {
        let mut scene = case.scene();
        let event = eventfd(0, flags | EventfdFlags::CLOEXEC).unwrap();
        let twin = event.as_fd().try_clone_to_owned().unwrap();
        let handle = put(&mut scene, event);
        scene.read(handle, 8).unwrap();
        scene.expect_silence();
        rustix::io::write(&twin, &3u64.to_ne_bytes()).unwrap();
        let Event::Read(Ok(count)) = scene.next_of(handle) else { panic!() };
        assert_eq!(*count, 3u64.to_ne_bytes());
        scene.write(handle, 5u64.to_ne_bytes().to_vec()).unwrap();
        scene.expect_written(handle, 8);
        assert_eq!(*scene.read_once(handle, 8).unwrap(), 5u64.to_ne_bytes());
    }
}

fn timerfd_read_returns_expirations(case: &Case) {
    let mut scene = case.scene();
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
    let every = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let setting = Itimerspec { it_interval: every, it_value: every };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &setting).unwrap();
    let handle = put(&mut scene, timer);
    for _ in 0..3 {
        let read = scene.read_once(handle, 8).unwrap();
        assert!(u64::from_ne_bytes(read[..].try_into().unwrap()) >= 1);
    }
    thread::sleep(Duration::from_millis(30));
    let read = scene.read_once(handle, 8).unwrap();
    assert!(u64::from_ne_bytes(read[..].try_into().unwrap()) >= 5);
}

fn signalfd_read_returns_the_signal(case: &Case) {
    let mut scene = case.scene();
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset writes a whole set to the memory that the pointer names.
    assert_eq!(unsafe { libc::sigemptyset(set.as_mut_ptr()) }, 0);
    // SAFETY: the line above initialised the set.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: the pointer is to an initialised set of this frame.
    assert_eq!(unsafe { libc::sigaddset(&raw mut set, libc::SIGUSR1) }, 0);
    // SAFETY: the pointers are to an initialised set and to nothing, which asks for no old mask.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    assert_eq!(blocked, 0);
    // SAFETY: the pointer is to an initialised set, which the kernel only reads.
    let raw = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    assert!(raw >= 0);
    // SAFETY: the kernel has just made this descriptor; it has no other owner.
    let signals = unsafe { OwnedFd::from_raw_fd(raw) };
    let handle = put(&mut scene, signals);
    scene.read(handle, 128).unwrap();
    scene.expect_silence();
    // SAFETY: pthread_self names this thread, which is alive.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread is alive, and blocks the signal, so no handler runs.
    assert_eq!(unsafe { libc::pthread_kill(this, libc::SIGUSR1) }, 0);
    let Event::Read(Ok(record)) = scene.next_of(handle) else { panic!() };
    assert_eq!(record.len(), size_of::<libc::signalfd_siginfo>());
    assert_eq!(u32::from_ne_bytes(record[..4].try_into().unwrap()), libc::SIGUSR1 as u32);
}

fn reading_the_writing_end_fails(case: &Case) {
    let mut scene = case.scene();
    let (reader, writer) = pipe(PipeFlags::empty());
    let raw = writer.as_raw_fd();
    let writer = put(&mut scene, writer);
    assert_eq!(writer.number(), raw as u32);
    assert_eq!(scene.read_once(writer, 10).unwrap_err(), OpError::BadDescriptor);
    let reader = put(&mut scene, reader);
    scene.write(reader, "x").unwrap();
    let Event::Write(Err(OpError::BadDescriptor)) = scene.next_of(reader) else { panic!() };
    scene.write(writer, "fine").unwrap();
    scene.expect_written(writer, 4);
    assert_eq!(scene.read_exact(reader, 4), b"fine");
}
