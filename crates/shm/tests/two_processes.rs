//! A server and an application in two processes, over a sealed memfd: an honest one, one that
//! scribbles over everything, and one that dies.
//!
//! Each test runs itself again as the other process, which finds a socket in place of its standard
//! input and gets the descriptors over it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command as Process};
use std::sync::Arc;
use std::time::{Duration, Instant};

use megapipe_shm::record::{
    Bufs, Chunk, Command, Completion, Event, Id, Op, Record, RecordFault, ServerAnswer,
};
use megapipe_shm::{
    BufError, BufId, BufferArea, Consumer, DoorbellError, Pool, PoolLayout, Producer, Region,
    RingFault, Ringer, Sleeper, bell_sockets, ring_bytes,
};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

const REGION_BYTES: usize = 1 << 18;
/// Entries of both rings. In the region are, in this order: the flag at which the server sleeps,
/// the application's, the ring of ops, that of completions, and the buffers.
const ENTRIES: u32 = 64;
const POOL: PoolLayout = PoolLayout { buf_bytes: 2048, count: 32, tag: 3 };
/// All of the region as cache lines, for a process that writes where it should not.
const LINES: PoolLayout = PoolLayout { buf_bytes: 64, count: (REGION_BYTES / 64) as u32, tag: 0 };
/// The lines where the rings begin.
const OPS_LINE: u32 = 4;
const COMPLETIONS_LINE: u32 = OPS_LINE + (ring_bytes::<Record>(ENTRIES) / 64) as u32;
const PATIENCE: Duration = Duration::from_secs(20);
const CHILD: &str = "MEGAPIPE_SHM_TEST_CHILD";

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error(transparent)]
    Ring(#[from] RingFault),
    #[error(transparent)]
    Record(#[from] RecordFault),
    #[error(transparent)]
    Buf(#[from] BufError),
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
}

/// Says which bytes arrived.
fn digest(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum: u32, byte| sum.rotate_left(5) ^ u32::from(*byte))
}

/// Hands descriptors over.
fn send_fds(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = [IoSlice::new(b"x")];
    net::sendmsg(socket, &bytes, &mut ancillary, SendFlags::empty()).expect("a connected socket");
}

/// Takes two descriptors from the other process.
fn receive_fds(socket: BorrowedFd<'_>) -> (OwnedFd, OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    net::recvmsg(socket, &mut bytes, &mut ancillary, RecvFlags::empty()).expect("a message");
    let rights = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = rights.expect("descriptors came along");
    (fds.next().expect("the memory"), fds.next().expect("the doorbell"))
}

/// The server's side of a session.
struct Server {
    pool: Pool,
    ops: Consumer<Record>,
    completions: Producer<Record>,
    sleeper: Sleeper,
    ringer: Ringer,
    child: Child,
}

impl Server {
    /// Starts `test` again as the application and hands it the memory.
    fn start(test: &str) -> Self {
        let region = Region::memfd("megapipe-shm-test", REGION_BYTES).expect("memory");
        let (near, far) = bell_sockets().expect("a socket pair");
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .expect("a socket pair");
        let child = Process::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--test-threads", "1"])
            .env(CHILD, "1")
            .stdin(theirs)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("it runs");
        send_fds(ours.as_fd(), &[region.fd().expect("a memfd"), far.as_fd()]);
        let near = Arc::new(near);
        let mut parts = region.into_parts();
        let sleeper = Sleeper::over_socket(&mut parts, Arc::clone(&near)).expect("it fits");
        let ringer = Ringer::over_socket(&mut parts, near).expect("it fits");
        let ops = Consumer::new(&mut parts, ENTRIES).expect("it fits");
        let completions = Producer::new(&mut parts, ENTRIES).expect("it fits");
        let pool = Pool::new(BufferArea::new(&mut parts, POOL).expect("it fits"));
        Self { pool, ops, completions, sleeper, ringer, child }
    }

    /// One turn: answers each `Send` with its sum and its buffer, each `Return` by freeing it.
    fn poll(&mut self) -> Result<u32, End> {
        let mut count = 0;
        if self.ops.peek(1)? == 0 {
            let ops = &mut self.ops;
            self.sleeper.sleep(Some(PATIENCE), || Ok::<_, End>(ops.peek(1)? > 0))?;
            self.ops.peek(1)?;
        }
        while self.completions.reserve(1)? > 0 {
            let Some(record) = self.ops.take() else { break };
            let event = match Op::parse(&record)? {
                Op { command: Command::Send { conn, chunk }, .. } => {
                    let mut bytes = [0; 2048];
                    let bytes = &mut bytes[..2048.min(chunk.len as usize)];
                    self.pool.copy_out(chunk.buf, chunk.offset, bytes)?;
                    Event::Acked { conn, chunks: 1, queued_bytes: digest(bytes) }
                }
                Op { command: Command::Return { bufs }, .. } => {
                    for buf in bufs.iter() {
                        self.pool.free(buf)?;
                    }
                    Event::Returned { bufs }
                }
                _ => Event::Answer(ServerAnswer::Done),
            };
            let cookie = record_cookie(&record);
            let completion = Completion { cookie, event };
            self.completions.put(&completion.record()).expect("one is reserved");
            count += 1;
        }
        self.ops.release();
        self.completions.commit();
        self.ringer.ring()?;
        Ok(count)
    }

    /// Serves until the session ends.
    fn end(&mut self) -> End {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "the session goes on");
            if let Err(end) = self.poll() {
                return end;
            }
        }
    }

    fn finish(mut self) {
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "the application failed: {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that fails leaves no process behind; one that has ended is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn record_cookie(record: &Record) -> u64 {
    Op::parse(record).expect("it was parsed before").cookie
}

/// The application's side of a session.
struct Application {
    buffers: BufferArea,
    /// The same memory again, as it is.
    lines: BufferArea,
    ops: Producer<Record>,
    completions: Consumer<Record>,
    sleeper: Sleeper,
    ringer: Ringer,
}

impl Application {
    /// If this process is the other one: its side.
    fn if_child() -> Option<Self> {
        std::env::var_os(CHILD)?;
        let (memory, bell) = receive_fds(rustix::stdio::stdin());
        let map = |fd| Region::from_fd(fd, REGION_BYTES).expect("sealed as agreed").into_parts();
        let mut all = map(memory.try_clone().expect("a copy"));
        let lines = BufferArea::new(&mut all, LINES).expect("it fits");
        let mut parts = map(memory);
        let bell = Arc::new(bell);
        let ringer = Ringer::over_socket(&mut parts, Arc::clone(&bell)).expect("it fits");
        let sleeper = Sleeper::over_socket(&mut parts, bell).expect("it fits");
        let ops = Producer::new(&mut parts, ENTRIES).expect("it fits");
        let completions = Consumer::new(&mut parts, ENTRIES).expect("it fits");
        let buffers = BufferArea::new(&mut parts, POOL).expect("it fits");
        Some(Self { buffers, lines, ops, completions, sleeper, ringer })
    }

    fn ask(&mut self, cookie: u64, command: Command) {
        let op = Op { cookie, command };
        while self.ops.send(&[op.record()]).expect("an honest server") == 0 {
            std::thread::yield_now();
        }
        self.ringer.ring().expect("a living server");
    }

    fn answer(&mut self) -> Completion {
        loop {
            if let Some(record) = self.completions.take() {
                self.completions.release();
                return Completion::parse(&record).expect("an honest server");
            }
            let completions = &mut self.completions;
            let has_work = || Ok::<_, DoorbellError>(completions.peek(1).expect("honest") > 0);
            assert!(self.sleeper.sleep(Some(PATIENCE), has_work).expect("a living server"));
        }
    }
}

const CONN: Id = Id { index: 7, generation: 9 };

#[test]
fn an_honest_application_and_a_server_exchange_buffers() {
    const COUNT: u64 = 2_000;
    if let Some(mut application) = Application::if_child() {
        for cookie in 0..COUNT {
            // The server has lent all of its buffers to us.
            let buf = BufId::from_bits(3 << 22 | (cookie % 32) as u32);
            let bytes: Vec<u8> = (0..cookie % 1460 + 1).map(|byte| (byte * cookie) as u8).collect();
            application.buffers.write(buf.index(), 8, &bytes).expect("in bounds");
            let chunk = Chunk { buf, offset: 8, len: bytes.len() as u32 };
            application.ask(cookie, Command::Send { conn: CONN, chunk });
            let queued_bytes = digest(&bytes);
            let event = Event::Acked { conn: CONN, chunks: 1, queued_bytes };
            assert_eq!(application.answer(), Completion { cookie, event });
        }
        return;
    }
    let mut server = Server::start("an_honest_application_and_a_server_exchange_buffers");
    while server.pool.alloc().is_some() {}
    let mut count = 0;
    while count < COUNT {
        count += u64::from(server.poll().expect("an honest application"));
    }
    server.finish();
}

#[test]
fn an_application_that_frees_what_it_does_not_have_ends_its_session() {
    if let Some(mut application) = Application::if_child() {
        let buf = BufId::from_bits(3 << 22 | 5);
        application.ask(1, Command::Return { bufs: Bufs::of(buf) });
        return;
    }
    let mut server =
        Server::start("an_application_that_frees_what_it_does_not_have_ends_its_session");
    let end = server.end();
    assert!(matches!(end, End::Buf(BufError::NotInUse(buf)) if buf.index() == 5), "{end}");
    assert_eq!(server.pool.free_count(), 32);
    server.finish();
}

#[test]
fn scribbling_over_all_of_the_memory_ends_the_session_and_harms_nothing() {
    if let Some(application) = Application::if_child() {
        scribble(&application);
        return;
    }
    for _ in 0..3 {
        let mut server =
            Server::start("scribbling_over_all_of_the_memory_ends_the_session_and_harms_nothing");
        let buf = server.pool.alloc().expect("a fresh pool");
        let start = Instant::now();
        let end = loop {
            assert!(start.elapsed() < PATIENCE, "the session goes on");
            // Whatever is in them, the buffers can be used, by the bookkeeping that is ours alone.
            server.pool.copy_in(buf, 0, &[0xab; 1460]).expect("ours");
            if let Err(end) = server.poll() {
                break end;
            }
        };
        assert!(!end.to_string().is_empty());
        assert!(!matches!(end, End::Doorbell(_)), "it ended before it was found out");
        assert_eq!(server.pool.free_count(), 31);
        server.pool.free(buf).expect("ours");
    }
}

/// Writes words of all kinds everywhere, then a tail that cannot be, until it is stopped.
fn scribble(application: &Application) {
    let mut state = u64::from(std::process::id()) << 17 | 1;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for _ in 0..1000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = if state & 8 == 0 { state >> 32 } else { (state >> 32) % 70 };
            // Half of all writes go to the indices, the others anywhere.
            let index = 2 * (state >> 20 & 1) as u32;
            let (line, offset) = match state % 4 {
                0 => (OPS_LINE + index, 0),
                1 => (COMPLETIONS_LINE + index, 0),
                _ => ((state >> 23) as u32 % LINES.count, (state >> 20) as usize % 8 * 8),
            };
            application.lines.write(line, offset, &value.to_ne_bytes()).expect("in bounds");
        }
        // A flag that is set makes us be rung; a ring that is not wanted wakes the server in vain.
        application.lines.write(0, 0, &1u32.to_ne_bytes()).expect("in bounds");
        if application.ringer.ring().is_err() {
            return;
        }
    }
}

#[test]
fn death_of_an_application_is_noticed() {
    if Application::if_child().is_some() {
        return;
    }
    let mut server = Server::start("death_of_an_application_is_noticed");
    let end = server.end();
    assert!(matches!(end, End::Doorbell(DoorbellError::Gone)), "{end}");
    server.finish();
}
