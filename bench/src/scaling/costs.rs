//! What frames and transactions cost on this machine, measured in this process just before they
//! are used.
//!
//! Two measurements. [`frame_costs`]: frames through the real switch between two shards, on two
//! cores, beside frames read from the link alone. [`exchange_shape`]: two channels on our own
//! stack in one thread, over a link that counts frames and takes the time of its bursts; the real
//! program's part of a turn is what is left. How much a transaction costs in all is not measured
//! here but where servers are, between processes (`scaling.rs`).
//!
//! Read first: `megapipe_service`'s `rx_mux.rs`; mTCP 3.2.1 for why frames are steered.
//!
//! Invariant: what is compared was measured in turn, in bursts of the same size.

use super::model::FrameCosts;
use crate::{limits, measure::median, peer_channel::PeerError, process};
use megapipe::{
    Accept, Address, Backend, Channel, Completion, Config, ConnectOptions, Event, Handle,
    ListenOptions, LocalNetwork, ServerConfig,
};
use megapipe_apps::{serve::CpuList, threads};
use megapipe_link::{
    Caps, FrameCounters, Link, LinkError, LinkMedium, Ownership, Pair, PairConfig, RxMetadata,
    TxMetadata, pair,
};
use megapipe_service::{
    FrameSink, RxMuxError, ShardLink,
    steering::{FlowHash, SteeringKey},
    switch,
};
use megapipe_shm::{RegionError, RingError};
use megapipe_stack as stack;
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

/// The costs could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    /// The link between the two sides.
    #[error("the link: {0}")]
    Link(#[from] LinkError),
    /// The switch.
    #[error("the switch: {0}")]
    Switch(#[from] RxMuxError),
    /// A channel of either side.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A thread could not be put on its core.
    #[error("a thread: {0}")]
    System(#[from] io::Error),
    /// No memory for rings.
    #[error("the region of the rings: {0}")]
    Region(#[from] RegionError),
    /// No ring.
    #[error("a ring: {0}")]
    Ring(#[from] RingError),
    /// Not all came, or not where it belongs.
    #[error("frames were lost, or not where they belong: {0}")]
    Lost(&'static str),
}

const KEY: [u8; 16] = *b"of no importance";
const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PORT: u16 = 80;

/// Looks at a frame as little as a stack may.
struct ByteSum(u64);

impl ByteSum {
    #[inline]
    fn add(&mut self, frame: &[u8]) {
        self.0 += frame.iter().take(64).map(|byte| u64::from(*byte)).sum::<u64>();
    }
}

impl FrameSink for ByteSum {
    fn knows(&self, _: &SteeringKey) -> bool {
        true
    }

    #[inline]
    fn on_frame(&mut self, frame: &[u8], _: stack::Received) {
        self.add(frame);
    }

    fn on_stray(&mut self, _: &[u8], _: stack::Received) {}

    fn refuse(&mut self, _: &[u8], _: stack::Received) {}

    fn on_handover(&mut self, _: stack::Handover) {}
}

/// An ACK with 64 bytes, from a port of the peer's.
fn segment(port: u16) -> Vec<u8> {
    let mut frame = vec![0; 20 + 20 + 64];
    frame[0] = 0x45;
    frame[2..4].copy_from_slice(&104_u16.to_be_bytes());
    frame[9] = 6;
    frame[12..16].copy_from_slice(&THEIRS.octets());
    frame[16..20].copy_from_slice(&OURS.octets());
    frame[20..22].copy_from_slice(&port.to_be_bytes());
    frame[22..24].copy_from_slice(&PORT.to_be_bytes());
    frame[32] = 0x50;
    frame[33] = 0x10;
    frame
}

/// A frame for each of two shards.
fn segments() -> Result<[Vec<u8>; 2], CostError> {
    let hash = FlowHash::new(&KEY);
    let at = |ip: Ipv4Addr, port| SocketAddr::new(IpAddr::V4(ip), port);
    let home = |port| hash.shard_of(&SteeringKey::from_peer(at(THEIRS, port), at(OURS, PORT)), 2);
    let of = |shard| (1..u16::MAX).find(|port| home(*port) == shard).map(segment);
    let (Some(first), Some(second)) = (of(0), of(1)) else {
        return Err(CostError::Lost("no port belongs to one of two shards"));
    };
    Ok([first, second])
}

fn frames() -> Result<(Pair, Pair), LinkError> {
    pair(&PairConfig { medium: LinkMedium::Ip, ..PairConfig::default() })
}

/// Fills the peer's queue with a burst of one frame.
fn send(peer: &mut Pair, frame: &[u8]) -> Result<(), CostError> {
    let sent = peer.tx_burst(limits::STEERED_BURST, &mut |room| {
        room[..frame.len()].copy_from_slice(frame);
        Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
    })?;
    if sent == limits::STEERED_BURST { Ok(()) } else { Err(CostError::Lost("not all were sent")) }
}

/// The other shard, on its own core: receives frames on request and returns the time taken.
struct Sibling {
    tell: Sender<()>,
    told: Receiver<Result<(usize, Duration), LinkError>>,
}

impl Sibling {
    /// On a thread that ends when the sibling is dropped.
    fn start<'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        mut link: ShardLink,
        core: &'scope CpuList,
    ) -> io::Result<Self> {
        let (tell, asked) = mpsc::channel::<()>();
        let (answer, told) = mpsc::channel();
        let body = move || {
            // Where it runs is a wish: the numbers stand for what was possible.
            let _ = process::pin(core);
            let mut sum = ByteSum(0);
            while wait(&asked).is_some() {
                let start = Instant::now();
                let taken = link.receive(limits::STEERED_BURST, &mut sum);
                let spent = start.elapsed();
                if answer.send(taken.map(|count| (count, spent))).is_err() {
                    break;
                }
            }
            std::hint::black_box(sum.0);
        };
        threads::spawn_scoped(scope, "sibling", body)?;
        Ok(Self { tell, told })
    }

    /// How long it takes to take over a burst.
    fn take(&self) -> Result<Duration, CostError> {
        let gone = || CostError::Lost("the other shard is gone");
        self.tell.send(()).map_err(|_| gone())?;
        match wait(&self.told).ok_or_else(gone)? {
            Ok((limits::STEERED_BURST, spent)) => Ok(spent),
            Ok(_) => Err(CostError::Lost("not all were handed over")),
            Err(error) => Err(error.into()),
        }
    }
}

/// The next message, without sleeping: a core that sleeps wakes slowly. None: the other is gone.
fn wait<T>(receiver: &Receiver<T>) -> Option<T> {
    let mut tries = 0_u32;
    loop {
        match receiver.try_recv() {
            Ok(message) => return Some(message),
            Err(TryRecvError::Disconnected) => return None,
            // The other may need this core to get on.
            Err(TryRecvError::Empty) if tries >= limits::STEERED_SPINS => thread::yield_now(),
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
        tries += 1;
    }
}

/// One shard's way through the bursts of a round, each timed.
struct TimedReader {
    alone: (Pair, Pair),
    peer: Pair,
    link: ShardLink,
    sibling: Sibling,
    sum: ByteSum,
    mine: Vec<u8>,
    others: Vec<u8>,
}

impl TimedReader {
    fn plain(&mut self) -> Result<Duration, CostError> {
        send(&mut self.alone.1, &self.mine)?;
        let Self { alone, sum, .. } = self;
        let start = Instant::now();
        let count = alone.0.rx_burst(limits::STEERED_BURST, &mut |frame, _| sum.add(frame))?;
        let spent = start.elapsed();
        if count == limits::STEERED_BURST { Ok(spent) } else { Err(CostError::Lost("plain")) }
    }

    /// Reads a burst through the switch; its own, or the other's.
    fn switched(&mut self, is_mine: bool) -> Result<Duration, CostError> {
        send(&mut self.peer, if is_mine { &self.mine } else { &self.others })?;
        let start = Instant::now();
        let count = self.link.receive(limits::STEERED_BURST, &mut self.sum)?;
        let spent = start.elapsed();
        let expected = if is_mine { limits::STEERED_BURST } else { 0 };
        if count == expected { Ok(spent) } else { Err(CostError::Lost("steered")) }
    }

    /// The costs of a round, each the median of its bursts, one kind after the other in turn: a
    /// burst in which the core was taken away says nothing.
    fn round(&mut self) -> Result<FrameCosts, CostError> {
        let mut bursts = [const { Vec::new() }; 4];
        for _ in 0..limits::STEERED_BURSTS {
            bursts[0].push(self.plain()?);
            bursts[1].push(self.switched(true)?);
            bursts[2].push(self.switched(false)?);
            bursts[3].push(self.sibling.take()?);
        }
        let frame_ns = |burst: Duration| burst.as_nanos() as f64 / limits::STEERED_BURST as f64;
        let [plain_ns, kept_ns, steered_ns, taken_ns] =
            bursts.map(|bursts| median(bursts.into_iter().map(frame_ns)));
        Ok(FrameCosts { plain_ns, kept_ns, steered_ns, taken_ns })
    }
}

/// What a frame costs on its way to a stack, alone and through the switch: the median of `rounds`.
/// The shard that reads runs on a core of `here`, the one that takes on one of `there`. A round
/// takes about ten milliseconds.
///
/// # Errors
/// [`CostError`]: no link or switch, or frames that were lost.
pub(crate) fn frame_costs(
    here: &CpuList,
    there: &CpuList,
    rounds: usize,
) -> Result<FrameCosts, CostError> {
    thread::scope(|scope| {
        let reading = move || {
            process::pin(here)?;
            thread::scope(|scope| {
                let mut reader = reader(scope, there)?;
                reader.round()?;
                let rounds: Result<Vec<FrameCosts>, CostError> =
                    (0..rounds).map(|_| reader.round()).collect();
                Ok(FrameCosts::median(&rounds?))
            })
        };
        threads::spawn_scoped(scope, "reading", reading)?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn reader<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    there: &'scope CpuList,
) -> Result<TimedReader, CostError> {
    let (ours, peer) = frames()?;
    let mut links = switch(vec![Box::new(ours)], 2, &KEY)?;
    let [mine, others] = segments()?;
    let (Some(there_link), Some(link)) = (links.pop(), links.pop()) else {
        return Err(CostError::Lost("there are not two shards"));
    };
    let sibling = Sibling::start(scope, there_link, there)?;
    Ok(TimedReader { alone: frames()?, peer, link, sibling, sum: ByteSum(0), mine, others })
}

/// Whose frames are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FrameKind {
    /// Of a queue that no other shard shares.
    Alone,
    /// Of the shard that reads them, of two.
    Kept,
    /// Of the other one, which takes them over.
    Steered,
}

/// Sends frames and reads them, both shards on this thread: for callgrind, which counts the
/// instructions of each kind beside those of another. How many frames there were.
///
/// # Errors
/// [`CostError`].
pub(crate) fn carry_frames(kind: FrameKind) -> Result<usize, CostError> {
    let ((mut ours, mut peer), [first, second]) = (frames()?, segments()?);
    let (mut sum, mut count) = (ByteSum(0), 0);
    let frame = if kind == FrameKind::Steered { second } else { first };
    if kind == FrameKind::Alone {
        for _ in 0..limits::CARRIED_BURSTS {
            send(&mut peer, &frame)?;
            count += ours.rx_burst(limits::STEERED_BURST, &mut |frame, _| sum.add(frame))?;
        }
    } else {
        let mut links = switch(vec![Box::new(ours)], 2, &KEY)?;
        for _ in 0..limits::CARRIED_BURSTS {
            send(&mut peer, &frame)?;
            for link in &mut links {
                count += link.receive(limits::STEERED_BURST, &mut sum)?;
            }
        }
    }
    std::hint::black_box(sum.0);
    let is_whole = count == limits::CARRIED_BURSTS * limits::STEERED_BURST;
    if is_whole { Ok(count) } else { Err(CostError::Lost("carried")) }
}

/// What a transaction consists of at the server, as seen at its link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TransactionShape {
    pub(crate) frames_in: f64,
    pub(crate) frames_out: f64,
    /// Shares of the server's time in which frames came in and went out.
    pub(crate) input_share: f64,
    pub(crate) output_share: f64,
    /// All of the server's time, in nanoseconds: both sides on one thread, so that nothing comes
    /// from another core's cache.
    pub(crate) server_ns: f64,
    /// All of the load's time, likewise.
    pub(crate) load_ns: f64,
}

/// What a metered link has seen.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    frames_in: u64,
    frames_out: u64,
    input: Duration,
    output: Duration,
}

/// A link that counts, and takes the time of bursts with frames: the stack's part of it too, which
/// runs inside of the bursts.
struct Metered {
    link: Pair,
    /// Behind an uncontended lock: everything runs on one thread.
    meter: Arc<Mutex<Meter>>,
}

impl Link for Metered {
    fn caps(&self) -> &Caps {
        self.link.caps()
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let start = Instant::now();
        let count = self.link.rx_burst(max, each)?;
        if count > 0 {
            let spent = start.elapsed();
            let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.frames_in += count as u64;
            meter.input += spent;
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        let start = Instant::now();
        let count = self.link.tx_burst(max, fill)?;
        if count > 0 {
            let spent = start.elapsed();
            let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.frames_out += count as u64;
            meter.output += spent;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.link.arm()
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.link.wait_fd()
    }

    fn slept(&mut self) {
        self.link.slept();
    }

    fn counters(&self) -> FrameCounters {
        self.link.counters()
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.link.set_ownership(ownership)
    }
}

const READ_BYTES: usize = 4096;
const REQUEST: &[u8] = &[7; 64];

/// The server's shards, which all run on this thread.
struct Echo {
    shards: Vec<Channel>,
    meter: Arc<Mutex<Meter>>,
    spent: Duration,
}

fn network(link: Box<dyn Link>, address: Ipv4Addr, shards: u16) -> Result<LocalNetwork, PeerError> {
    let settings = ServerConfig {
        addresses: vec![(address.into(), 24)],
        connections: limits::SHAPE_CONNECTIONS * 4,
        shards: Some(shards),
        ..ServerConfig::default()
    };
    Ok(LocalNetwork::over(vec![link], settings)?)
}

impl Echo {
    fn new(link: Pair, shards: u16) -> Result<Self, PeerError> {
        let meter = Arc::new(Mutex::new(Meter::default()));
        let link = Metered { link, meter: Arc::clone(&meter) };
        let network = network(Box::new(link), OURS, shards)?;
        let mut channels = Vec::new();
        for _ in 0..shards {
            let backend = Backend::Local(network.clone());
            let mut channel = Channel::create(Config::default().backend(backend))?;
            let address = Address::from(SocketAddr::from((OURS, PORT)));
            let listener = channel.listen(&address, &ListenOptions::default(), 0)?;
            channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
            channels.push(channel);
        }
        Ok(Self { shards: channels, meter, spent: Duration::ZERO })
    }

    /// Each shard until it has nothing to do. Turns that found nothing cost nothing: on a core of
    /// its own a shard would have had them while it waited.
    fn poll(&mut self) -> Result<(), PeerError> {
        for index in 0..self.shards.len() {
            let before = self.frames();
            let start = Instant::now();
            let handled = echo(&mut self.shards[index])?;
            let spent = start.elapsed();
            if handled > 0 || self.frames() > before {
                self.spent += spent;
            }
        }
        Ok(())
    }

    fn frames(&self) -> u64 {
        let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.frames_in + meter.frames_out
    }
}

/// All that a shard has to do now. How many completions that were.
fn echo(channel: &mut Channel) -> Result<usize, PeerError> {
    let mut handled = 0;
    while let Some(done) = channel.dispatch(Some(Duration::ZERO))? {
        let Completion { handle, event, .. } = done;
        handled += 1;
        match event {
            Event::Read(Ok(data)) if !data.is_empty() => {
                channel.write_quiet(handle, data)?;
                channel.read(handle, READ_BYTES)?;
            }
            Event::Read(_) => drop(channel.unregister(handle)?),
            _ => {}
        }
    }
    Ok(handled)
}

/// The load: connections that stay, or one for each transaction, reset by the load.
struct Asker {
    channel: Channel,
    server: Address,
    stays: bool,
    done: u64,
}

impl Asker {
    fn new(link: Pair, stays: bool) -> Result<Self, PeerError> {
        let network = network(Box::new(link), THEIRS, 1)?;
        let channel = Channel::create(Config::default().backend(Backend::Local(network)))?;
        let server = Address::from(SocketAddr::from((OURS, PORT)));
        Ok(Self { channel, server, stays, done: 0 })
    }

    fn connect(&mut self) -> Result<(), PeerError> {
        let options = ConnectOptions::default().reset_on_close(!self.stays);
        self.channel.connect(&self.server, &options, 0)?;
        Ok(())
    }

    fn ask(&mut self, handle: Handle) -> Result<(), PeerError> {
        self.channel.write_quiet(handle, REQUEST)?;
        Ok(self.channel.read(handle, READ_BYTES)?)
    }

    fn poll(&mut self) -> Result<(), PeerError> {
        while let Some(done) = self.channel.dispatch(Some(Duration::ZERO))? {
            let handle = done.handle;
            match done.event {
                Event::Connect(outcome) => {
                    outcome?;
                    self.ask(handle)?;
                }
                Event::Read(Ok(data)) if data.len() == REQUEST.len() => {
                    drop(data);
                    self.done += 1;
                    if self.stays {
                        self.ask(handle)?;
                    } else {
                        self.channel.unregister(handle)?;
                        self.connect()?;
                    }
                }
                Event::Read(Ok(_)) => return Err(PeerError::Exchange("an answer in pieces")),
                Event::Read(Err(error)) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// How many transactions are looked at, on how many connections at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) connections: u32,
    pub(crate) transactions: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self { connections: limits::SHAPE_CONNECTIONS, transactions: limits::SHAPE_TRANSACTIONS }
    }
}

/// What a 64 B transaction consists of at a server of `shards` shards on one queue, on connections
/// that are kept or, if not, one for each. Takes about a fifth of a second as a rule.
///
/// # Errors
/// [`CostError`].
pub(crate) fn exchange_shape(
    shards: u16,
    stays: bool,
    extent: Extent,
) -> Result<TransactionShape, CostError> {
    let (ours, theirs) = pair(&PairConfig::default())?;
    let mut server = Echo::new(ours, shards)?;
    let mut load = Asker::new(theirs, stays)?;
    for _ in 0..extent.connections {
        load.connect()?;
    }
    let mut load_spent = Duration::ZERO;
    let mut go_on = |server: &mut Echo, transactions: u64| {
        let end = load.done + transactions;
        let deadline = Instant::now() + limits::SHAPE_MAX;
        load_spent = Duration::ZERO;
        while load.done < end {
            let start = Instant::now();
            load.poll()?;
            load_spent += start.elapsed();
            server.poll()?;
            if Instant::now() > deadline {
                return Err(PeerError::Exchange("transactions come to a stop"));
            }
        }
        Ok(load.done + transactions - end)
    };
    go_on(&mut server, extent.transactions / 10)?;
    server.spent = Duration::ZERO;
    *server.meter.lock().unwrap_or_else(PoisonError::into_inner) = Meter::default();
    let transactions = go_on(&mut server, extent.transactions)? as f64;
    let meter = *server.meter.lock().unwrap_or_else(PoisonError::into_inner);
    let share = |part: Duration| part.as_secs_f64() / server.spent.as_secs_f64();
    Ok(TransactionShape {
        frames_in: meter.frames_in as f64 / transactions,
        frames_out: meter.frames_out as f64 / transactions,
        input_share: share(meter.input),
        output_share: share(meter.output),
        server_ns: server.spent.as_nanos() as f64 / transactions,
        load_ns: load_spent.as_nanos() as f64 / transactions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    const FEW: Extent = Extent { connections: 8, transactions: 500 };

    #[test]
    fn steering_costs_something_and_nothing_is_lost() {
        let cpus = layout::online_cpus().unwrap();
        let (first, last) = (vec![cpus[0]].into(), vec![cpus[cpus.len() - 1]].into());
        let costs = frame_costs(&first, &last, 1).unwrap();
        for ns in [costs.plain_ns, costs.kept_ns, costs.steered_ns, costs.taken_ns] {
            assert!(ns > 0.1 && ns < 1e6, "{costs:?}");
        }
    }

    #[test]
    fn all_frames_are_carried_whosever_they_are() {
        for kind in [FrameKind::Alone, FrameKind::Kept, FrameKind::Steered] {
            let count = carry_frames(kind).unwrap();
            assert_eq!(count, limits::CARRIED_BURSTS * limits::STEERED_BURST, "{kind:?}");
        }
    }

    #[test]
    fn a_kept_connection_has_a_frame_each_way_and_a_short_one_its_handshake_too() {
        let kept = exchange_shape(1, true, FEW).unwrap();
        assert!((kept.frames_in - 1.0).abs() < 0.05, "{kept:?}");
        assert!((kept.frames_out - 1.0).abs() < 0.05, "{kept:?}");
        let short = exchange_shape(1, false, FEW).unwrap();
        assert!(short.frames_in > 2.5 && short.frames_in < 4.5, "{short:?}");
        assert!((short.frames_out - 2.0).abs() < 0.1, "{short:?}");
        for shape in [kept, short] {
            let shares = shape.input_share + shape.output_share;
            assert!(shape.input_share > 0.0 && shape.output_share > 0.0, "{shape:?}");
            assert!(shares < 1.0 && shape.server_ns > 0.0, "{shape:?}");
        }
    }

    #[test]
    fn two_shards_on_one_queue_serve_the_same_frames() {
        let both = exchange_shape(2, true, FEW).unwrap();
        assert!((both.frames_in - 1.0).abs() < 0.05, "{both:?}");
    }
}
