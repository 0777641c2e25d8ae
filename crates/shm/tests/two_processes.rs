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
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use megapipe_shm::record::{Bufs, Chunk, Command, Completion, Event, Id, Op, Record, RecordFault};
use megapipe_shm::{
    BufError, BufId, Consumer, DoorbellError, Pool, PoolLayout, Producer, Region, RingFault,
    RingLayout, Ringer, Sleeper, bell_sockets,
};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

const REGION_BYTES: usize = 1 << 18;
/// Both rings' entries; the flags of the two doorbells come before them.
const OPS: RingLayout = RingLayout { offset: 1024, entries: 64 };
const COMPLETIONS: RingLayout = RingLayout { offset: 8192, entries: 64 };
const SERVER_SLEEPS: usize = 0;
const APPLICATION_SLEEPS: usize = 256;
const POOL: PoolLayout = PoolLayout { offset: 1 << 16, buf_bytes: 2048, count: 32, tag: 3 };
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
        let region = Arc::new(Region::memfd("megapipe-shm-test", REGION_BYTES).expect("memory"));
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
        let again = || Arc::clone(&region);
        Self {
            pool: Pool::new(again(), POOL).expect("it fits"),
            ops: Consumer::new(again(), OPS).expect("it fits"),
            completions: Producer::new(again(), COMPLETIONS).expect("it fits"),
            sleeper: Sleeper::over_socket(again(), SERVER_SLEEPS, Arc::clone(&near))
                .expect("in bounds"),
            ringer: Ringer::over_socket(again(), APPLICATION_SLEEPS, near).expect("in bounds"),
            child,
        }
    }

    /// One turn: answers each `Send` with its sum and its buffer, each `Return` by freeing it.
    fn turn(&mut self) -> Result<u32, End> {
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
                _ => Event::Done,
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
            if let Err(end) = self.turn() {
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
    region: Arc<Region>,
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
        let region = Arc::new(Region::from_fd(memory, REGION_BYTES).expect("sealed as agreed"));
        let bell = Arc::new(bell);
        let again = || Arc::clone(&region);
        Some(Self {
            region: again(),
            ops: Producer::new(again(), OPS).expect("it fits"),
            completions: Consumer::new(again(), COMPLETIONS).expect("it fits"),
            sleeper: Sleeper::over_socket(again(), APPLICATION_SLEEPS, Arc::clone(&bell))
                .expect("in bounds"),
            ringer: Ringer::over_socket(again(), SERVER_SLEEPS, bell).expect("in bounds"),
        })
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

/// Where a buffer's bytes lie, as the application knows it.
fn place(buf: BufId) -> usize {
    POOL.offset + buf.index() as usize * POOL.stride_bytes()
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
            application.region.write(place(buf) + 8, &bytes).expect("in bounds");
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
        count += u64::from(server.turn().expect("an honest application"));
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
            if let Err(end) = server.turn() {
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
    let region = &application.region;
    let mut state = u64::from(std::process::id()) << 17 | 1;
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        for _ in 0..1000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = if state & 8 == 0 { state >> 32 } else { (state >> 32) % 70 };
            // Half of all writes go to the indices, the others anywhere.
            let offset = match state % 4 {
                0 => OPS.offset + 128 * (state >> 20 & 1) as usize,
                1 => COMPLETIONS.offset + 128 * (state >> 20 & 1) as usize,
                _ => (state >> 20) as usize % (REGION_BYTES / 8) * 8,
            };
            region.store(offset, &value).expect("in bounds");
        }
        // A flag that is set makes us be rung; a ring that is not wanted wakes the server in vain.
        region.atomic_u32(SERVER_SLEEPS).expect("in bounds").store(1, Ordering::Relaxed);
        if application.ringer.ring().is_err() {
            return;
        }
    }
}

#[test]
fn an_application_that_dies_is_noticed() {
    if Application::if_child().is_some() {
        return;
    }
    let mut server = Server::start("an_application_that_dies_is_noticed");
    let end = server.end();
    assert!(matches!(end, End::Doorbell(DoorbellError::Gone)), "{end}");
    server.finish();
}
