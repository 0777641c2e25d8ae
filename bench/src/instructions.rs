//! Instructions of the stack per received segment and per answer.
//!
//! `megapipe bench segments` carries segments of 64 bytes between two stacks in one thread.
//! Callgrind counts in `measured_segment`: one frame in, its event out; or in
//! `measured_segment_out`: a command to send, its frame out. It stops where the stack calls the
//! buffers ([`OutlinedBuffers`]): allocating one and copying to it is their owner's, and comes on
//! top. Nothing here does I/O, so that the count is the same on every machine of the architecture.

use crate::process;
use megapipe_stack::{
    BufId, Chunk, Config, ConnId, ConnOption, Event, Instant, Memory, PoolId, Received, Stack,
    wire::checksum,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    time::Duration,
};

/// Segments that are counted; enough that what comes once does not show.
const SEGMENTS: u32 = 2_000;
const MESSAGE_BYTES: u32 = 64;
const BUF_BYTES: usize = 2048;
const BUF_COUNT: u32 = 64;
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// How often a timer would run between two segments.
const STEP: Duration = Duration::from_micros(50);

/// Why nothing was counted.
#[derive(Debug, thiserror::Error)]
pub enum InstructionsError {
    /// No callgrind.
    #[error("valgrind is not installed (apt-get install valgrind)")]
    NoValgrind,
    /// It could not be run.
    #[error("running valgrind: {0}")]
    System(#[from] io::Error),
    /// It counted nothing, and why.
    #[error("callgrind counted nothing: {0}")]
    Uncounted(String),
    /// The stacks did not do what was expected of them.
    #[error("the stack did something else: {0}")]
    Unexpected(String),
}

/// Which segment with 64 bytes is counted, and what it does besides carrying them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SegmentKind {
    /// It acknowledges nothing new.
    Text,
    /// It acknowledges the answer to the one before it.
    Request,
    /// It leaves, and acknowledges the request.
    Answer,
}

/// Runs `megapipe bench segments` under callgrind; instructions for each segment, from the frame to
/// its event, or from the command to the frame. Blocks for some seconds.
pub(crate) fn per_segment(program: &Path, kind: SegmentKind) -> Result<f64, InstructionsError> {
    let name = match kind {
        SegmentKind::Text => "text",
        SegmentKind::Request => "request",
        SegmentKind::Answer => "answer",
    };
    let valgrind = process::find_program("valgrind").ok_or(InstructionsError::NoValgrind)?;
    let output = Command::new(valgrind)
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .args(["--toggle-collect=*measured_segment*", "--toggle-collect=*OutlinedBuffers as *"])
        .arg("--callgrind-out-file=/dev/null")
        .arg(program)
        .args(["bench", "segments", name])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = collected(&said).filter(|count| *count > 0 && output.status.success());
    let count = collected.ok_or_else(|| InstructionsError::Uncounted(last_line(&said)))?;
    Ok(count as f64 / f64::from(SEGMENTS))
}

/// Pure: the number behind `Collected :` in what callgrind prints.
fn collected(said: &str) -> Option<u64> {
    let line = said.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

/// The words before a program's that run it under callgrind.
pub(crate) fn callgrind_words(counts: &Path) -> [String; 2] {
    ["--tool=callgrind".to_owned(), format!("--callgrind-out-file={}", counts.display())]
}

/// Pure: the sum in a file that callgrind has written.
pub(crate) fn counted_in(file: &str) -> Option<u64> {
    let totals = file.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
    totals.split_ascii_whitespace().next()?.parse().ok()
}

fn last_line(said: &str) -> String {
    said.lines().last().unwrap_or("it said nothing").to_owned()
}

/// Buffers as plain as can be.
struct PlainBuffers {
    bytes: Vec<u8>,
    free: Vec<u32>,
}

impl PlainBuffers {
    fn new(count: u32) -> Self {
        Self { bytes: vec![0; count as usize * BUF_BYTES], free: (0..count).collect() }
    }

    fn range(buf: BufId, offset: u32, len: usize) -> std::ops::Range<usize> {
        let start = buf.0 as usize * BUF_BYTES + offset as usize;
        start..start + len
    }
}

impl Memory for PlainBuffers {
    fn alloc(&mut self, _pool: PoolId) -> Option<BufId> {
        self.free.pop().map(BufId)
    }

    fn free(&mut self, buf: BufId) {
        self.free.push(buf.0);
    }

    fn buf_bytes(&self, _buf: BufId) -> u32 {
        BUF_BYTES as u32
    }

    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        self.bytes[Self::range(buf, offset, from.len())].copy_from_slice(from);
        checksum::sum(from)
    }

    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        to.copy_from_slice(&self.bytes[Self::range(chunk.buf, chunk.offset, to.len())]);
        checksum::sum(to)
    }
}

/// The same behind separate functions, which callgrind excludes.
struct OutlinedBuffers<'a>(&'a mut PlainBuffers);

impl Memory for OutlinedBuffers<'_> {
    #[inline(never)]
    fn alloc(&mut self, pool: PoolId) -> Option<BufId> {
        self.0.alloc(pool)
    }

    #[inline(never)]
    fn free(&mut self, buf: BufId) {
        self.0.free(buf);
    }

    #[inline(never)]
    fn buf_bytes(&self, buf: BufId) -> u32 {
        self.0.buf_bytes(buf)
    }

    #[inline(never)]
    fn copy_in(&mut self, buf: BufId, offset: u32, from: &[u8]) -> u16 {
        self.0.copy_in(buf, offset, from)
    }

    #[inline(never)]
    fn store(&mut self, pool: PoolId, bytes: &[u8]) -> Option<(BufId, u16)> {
        self.0.store(pool, bytes)
    }

    #[inline(never)]
    fn copy_out(&self, chunk: Chunk, to: &mut [u8]) -> u16 {
        self.0.copy_out(chunk, to)
    }
}

struct MeasuredHost {
    stack: Stack,
    memory: PlainBuffers,
}

impl MeasuredHost {
    fn new(ip: Ipv4Addr) -> Result<Self, InstructionsError> {
        let config = Config::single(ip, 24, [ip.octets()[3]; 32]);
        let stack = Stack::new(config, Instant::from_millis(1)).map_err(unexpected)?;
        Ok(Self { stack, memory: PlainBuffers::new(BUF_COUNT) })
    }

    fn send(&mut self, now: Instant, conn: ConnId) -> Result<(), InstructionsError> {
        let chunk = self.message()?;
        self.stack.send(now, conn, chunk, &mut self.memory).map_err(unexpected)
    }

    fn message(&mut self) -> Result<Chunk, InstructionsError> {
        let buf = self.memory.alloc(PoolId(0)).ok_or_else(|| unexpected("no buffer"))?;
        Ok(Chunk { buf, offset: 0, len: MESSAGE_BYTES })
    }

    /// Takes events until there is none; the last one.
    fn drain(&mut self) -> Option<Event> {
        let mut last = None;
        while let Some(event) = self.stack.poll_event() {
            if let Event::Received { chunk, .. } = event {
                self.memory.free(chunk.buf);
            }
            last = Some(event);
        }
        last
    }
}

fn unexpected(what: impl std::fmt::Debug) -> InstructionsError {
    InstructionsError::Unexpected(format!("{what:?}"))
}

/// All frames of `from` go to `to`.
fn carry(now: Instant, from: &mut MeasuredHost, to: &mut MeasuredHost) {
    let mut frame = [0; 2048];
    while let Some(sent) = from.stack.poll_transmit(now, &mut frame, &mut from.memory) {
        to.stack.on_frame(now, &frame[..sent.frame_bytes()], Received::default(), &mut to.memory);
    }
}

/// What is counted of a segment that arrives: one frame in, its event out.
#[inline(never)]
fn measured_segment(host: &mut MeasuredHost, now: Instant, frame: &[u8]) -> Option<Event> {
    let MeasuredHost { stack, memory } = host;
    stack.on_frame(now, frame, Received::default(), &mut OutlinedBuffers(memory));
    stack.poll_event()
}

/// The same, not counted.
fn arrive(host: &mut MeasuredHost, now: Instant, frame: &[u8]) -> Option<Event> {
    let MeasuredHost { stack, memory } = host;
    stack.on_frame(now, frame, Received::default(), memory);
    stack.poll_event()
}

/// What is counted of a segment that leaves: a command, and its frame; how long that is.
#[inline(never)]
fn measured_segment_out(
    host: &mut MeasuredHost,
    now: Instant,
    (conn, chunk): (ConnId, Chunk),
    frame: &mut [u8],
) -> Option<usize> {
    let MeasuredHost { stack, memory } = host;
    stack.send(now, conn, chunk, &mut OutlinedBuffers(memory)).ok()?;
    stack.poll_transmit(now, frame, &mut OutlinedBuffers(memory)).map(|sent| sent.frame_bytes())
}

fn establish(
    client: &mut MeasuredHost,
    server: &mut MeasuredHost,
    now: Instant,
) -> Result<(ConnId, ConnId), InstructionsError> {
    let at = SocketAddr::new(SERVER.into(), 80);
    let listener = server.stack.listen(at, 16, PoolId(0)).map_err(unexpected)?;
    server.stack.accept(listener, 1).map_err(unexpected)?;
    let pool = (PoolId(0), &mut client.memory);
    let there = client.stack.connect(now, at, None, pool).map_err(unexpected)?;
    for _ in 0..4 {
        carry(now, client, server);
        carry(now, server, client);
    }
    client.drain();
    match server.drain() {
        Some(Event::Incoming { conn, .. }) => Ok((there, conn)),
        other => Err(unexpected(other)),
    }
}

/// Carries the segments that callgrind counts in, and says how many. Each has its event.
///
/// # Errors
/// [`InstructionsError::Unexpected`]: the stack did something else.
pub(crate) fn carry_segments(kind: SegmentKind) -> Result<u32, InstructionsError> {
    let mut now = Instant::from_millis(1);
    let (mut client, mut server) = (MeasuredHost::new(CLIENT)?, MeasuredHost::new(SERVER)?);
    let (there, here) = establish(&mut client, &mut server, now)?;
    let mut frame = [0; 2048];
    for _ in 0..SEGMENTS {
        now += STEP;
        server.stack.receive(now, here).map_err(unexpected)?;
        client.send(now, there)?;
        let sent = client.stack.poll_transmit(now, &mut frame, &mut client.memory);
        let sent = sent.ok_or_else(|| unexpected("no segment"))?;
        let segment = &frame[..sent.frame_bytes()];
        let event = match kind {
            SegmentKind::Text | SegmentKind::Request => measured_segment(&mut server, now, segment),
            SegmentKind::Answer => arrive(&mut server, now, segment),
        };
        match event {
            Some(Event::Received { chunk, .. }) if chunk.len == MESSAGE_BYTES => {
                server.memory.free(chunk.buf);
            }
            other => return Err(unexpected(other)),
        }
        match kind {
            SegmentKind::Text => {
                // An ACK alone, so that nothing piles up.
                let ack = ConnOption::QuickAck(true);
                let MeasuredHost { stack, memory } = &mut server;
                stack.set_option(now, here, ack, memory).map_err(unexpected)?;
            }
            SegmentKind::Request => {
                server.send(now, here)?;
                client.stack.receive(now, there).map_err(unexpected)?;
            }
            SegmentKind::Answer => {
                let what = (here, server.message()?);
                let len = measured_segment_out(&mut server, now, what, &mut frame);
                let len = len.ok_or_else(|| unexpected("no answer"))?;
                client.stack.receive(now, there).map_err(unexpected)?;
                let MeasuredHost { stack, memory } = &mut client;
                stack.on_frame(now, &frame[..len], Received::default(), memory);
            }
        }
        carry(now, &mut server, &mut client);
        client.drain();
    }
    Ok(SEGMENTS)
}

#[cfg(test)]
mod tests {
    use super::{SEGMENTS, SegmentKind, carry_segments, collected, counted_in};

    #[test]
    fn each_segment_has_its_event() {
        for kind in [SegmentKind::Text, SegmentKind::Request, SegmentKind::Answer] {
            assert_eq!(carry_segments(kind).unwrap(), SEGMENTS);
        }
    }

    #[test]
    fn callgrind_totals_are_read() {
        let file = "# callgrind format\nevents: Ir\nfn=(1) main\n1 5\n\ntotals: 812345\n";
        assert_eq!(counted_in(file), Some(812_345));
        assert_eq!(counted_in("events: Ir\n"), None);
        assert_eq!(counted_in("totals: none\n"), None);
    }

    #[test]
    fn the_count_is_what_callgrind_prints() {
        let said = "==1== Events    : Ir\n==1== Collected : 812345\n==1==\n";
        assert_eq!(collected(said), Some(812_345));
        assert_eq!(collected("==1== nothing"), None);
    }
}
