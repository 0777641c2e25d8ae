//! AF_XDP: frames that bypass the kernel's network stack, on an interface shared with it.
//!
//! An XDP program of our own runs where frames arrive, and hands those that are ours
//! ([`Ownership`]: addresses, ports and flows) to our sockets, one per queue; everything else
//! reaches the kernel untouched, ARP and neighbour discovery included. What we send goes straight
//! to the driver.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`; `program.rs` for the frames
//! that are ours or passed to the kernel; `socket.rs` for the ownership of UMEM frames.
//!
//! Needs: CAP_NET_RAW for the sockets, CAP_IPC_LOCK (or a larger limit of locked memory) for their
//! frames; CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN for the program, unless a map of
//! sockets from another program is used ([`SocketMap`]). Linux 5.9 or newer.
//!
//! Invariants
//! - The program is attached by a descriptor: it is gone when the last link is dropped and when
//!   the process is killed, and the kernel then has all frames again.
//! - Nothing is ours before `set_ownership`, and by then each socket is bound.
//! - Each port that is ours is held by a deaf kernel socket ([`PortGuard`](crate::PortGuard)),
//!   so that no other program gets it and waits for frames in vain.
//! - A frame that the kernel has is not touched; a frame is lent in place, without a copy of ours.
//!
//! Features of kernel and driver are probed, and the notes of [`Caps`] report the results:
//! zero-copy, native mode, frames of several buffers (Linux 6.6), checksums by metadata (6.8 and
//! later), memory that all queues share (5.10). Checksum offload is not used with zero-copy
//! drivers, because they do not report whether they support it.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{EBUSY, ENETDOWN, ENXIO, EOPNOTSUPP, EPERM};

use crate::ethtool::Ethtool;
use crate::interface::InterfaceQuery;
use crate::limits::{
    ETHERNET_HEADER_BYTES, XDP_FRAMES_PER_KICK, XDP_HEADROOM_BYTES, XDP_PIECES_MAX,
    XDP_POLLS_PER_LOOK, XDP_QUEUES_MAX, XDP_RING_SIZE_MAX, XDP_RING_SIZE_MIN,
};
use crate::port_table::PortTable;
use crate::spec::XdpMode;
use crate::watch::Watch;
use crate::{
    Caps, FrameCounters, Link, LinkError, LinkMedium, Ownership, Rss, RxChecksum, RxMetadata,
    TxMetadata,
};

mod assembler;
mod bpf;
mod busy;
mod filter;
mod mapping;
mod partial;
mod pieces;
mod privileges;
mod program;
mod queues;
mod ring;
mod shape;
mod socket;
mod umem;

use bpf::Map;
use filter::Filter;
use shape::SocketShape;
use socket::{FilledFrame, Socket, TakenFrame};

const DRIVER: &str = "xdp";

/// Who says which frames come to our sockets.
#[derive(Debug, Clone, Default)]
pub enum SocketMap {
    /// A program of ours, by the ownership given.
    #[default]
    Own,
    /// Another program, which redirects into the XSKMAP that is pinned here and decides the
    /// ownership of frames.
    Pinned(PathBuf),
    /// The same, with the map as a descriptor.
    Given(Arc<OwnedFd>),
}

/// Where and how to open AF_XDP links.
#[derive(Debug, Clone)]
pub struct XdpConfig {
    /// The interface's name.
    pub interface: String,
    /// The first and the last queue to open; `None`: all. Frames of ours on queues without a
    /// socket are dropped.
    pub queues: Option<(u32, u32)>,
    /// Where the program runs; `None`: in the driver if it can, else in the general path.
    pub mode: Option<XdpMode>,
    /// Frames go without a copy: `Some(true)` insists, `Some(false)` forbids, `None` tries.
    pub zero_copy: Option<bool>,
    /// Entries of each ring, and frames in each direction: a power of two, 64 to 8,192.
    pub ring_size: u32,
    /// Bytes of a chunk of memory: 2,048 or 4,096. 256 of them are the kernel's where it receives.
    /// Frames of an interface whose MTU is larger come and go in several chunks.
    pub frame_bytes: u32,
    /// Transport checksums are left to the kernel where it takes them; `false`: made here.
    pub checksums: bool,
    /// All queues' memory is registered at once; `false`: that of each by itself.
    pub shares_memory: bool,
    /// Who says which frames come to us.
    pub socket_map: SocketMap,
}

impl XdpConfig {
    /// All queues of `interface`, the best mode to be had, rings of 2,048 entries, frames of 2,048
    /// bytes.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            queues: None,
            mode: None,
            zero_copy: None,
            ring_size: 2_048,
            frame_bytes: 2_048,
            checksums: true,
            shares_memory: true,
            socket_map: SocketMap::Own,
        }
    }

    fn check(&self) -> Result<(), LinkError> {
        let sizes = XDP_RING_SIZE_MIN..=XDP_RING_SIZE_MAX;
        if !self.ring_size.is_power_of_two() || !sizes.contains(&self.ring_size) {
            let why =
                format!("a power of two, {XDP_RING_SIZE_MIN} to {XDP_RING_SIZE_MAX}, is possible");
            return Err(LinkError::Setting { setting: "ring_size", why });
        }
        if ![2_048, 4_096].contains(&self.frame_bytes) {
            let why = "2048 or 4096 are possible".to_owned();
            return Err(LinkError::Setting { setting: "frame_bytes", why });
        }
        Ok(())
    }

    /// How sockets are laid out for frames of an interface with this MTU.
    fn shape(&self, mtu: usize) -> Result<SocketShape, LinkError> {
        let whole = mtu + ETHERNET_HEADER_BYTES;
        let chunk = self.frame_bytes as usize;
        let pieces_bytes = (whole > chunk - XDP_HEADROOM_BYTES).then_some(whole);
        // The kernel keeps its bytes free in each chunk where it receives, and none where we send.
        if whole.div_ceil(chunk - XDP_HEADROOM_BYTES) > XDP_PIECES_MAX {
            let most = XDP_PIECES_MAX * (chunk - XDP_HEADROOM_BYTES) - ETHERNET_HEADER_BYTES;
            let why = format!("the interface's MTU is {mtu}: at most {most} fit into a frame");
            return Err(LinkError::Setting { setting: "frame_bytes", why });
        }
        // Metadata needs room in each chunk, and a frame of several would have holes.
        let wants_metadata = self.checksums && pieces_bytes.is_none();
        let Self { frame_bytes, ring_size, .. } = *self;
        Ok(SocketShape { frame_bytes, ring_size, pieces_bytes, wants_metadata })
    }

    /// Queues to open, of `existing` ones.
    fn queues(&self, existing: u32) -> Result<RangeInclusive<u32>, LinkError> {
        let (first, last) = self.queues.unwrap_or_else(|| (0, existing.saturating_sub(1)));
        if first > last || last >= existing.min(XDP_QUEUES_MAX) {
            let why = format!("the interface has {existing}; {XDP_QUEUES_MAX} may be opened");
            return Err(LinkError::Setting { setting: "queues", why });
        }
        Ok(first..=last)
    }
}

/// Opens the queues of an interface, each a link.
///
/// # Errors
/// [`LinkError::Setting`]; [`LinkError::Unavailable`] with what is missing: a capability, a free
/// queue, an interface without another XDP program; [`LinkError::Io`].
pub fn open(config: &XdpConfig) -> Result<Vec<Xdp>, LinkError> {
    config.check()?;
    let interface = InterfaceQuery::new(&config.interface)?;
    let (mtu, (_, mac)) = (interface.mtu()?, interface.hardware()?);
    let shape = config.shape(mtu)?;
    // An index is above zero.
    let index = interface.index()?.unsigned_abs();
    let ethtool = Ethtool::new(&config.interface)?;
    let existing = ethtool.queue_count()?;
    let queues = config.queues(existing)?;
    let (mut steering, mut notes) = XdpSteering::open(config, index, shape.pieces_bytes.is_some())?;
    if queues.clone().count() < existing as usize {
        notes.push("frames of ours on queues that are not open are dropped".to_owned());
    }
    let is_veth = ethtool.driver().is_some_and(|driver| driver == "veth");
    if is_veth {
        notes.push(
            "frames whose checksum the other end of the veth left to its device are taken"
                .to_owned(),
        );
    }
    // One queue gets everything.
    let (rss, note) = if existing > 1 { known_rss(&ethtool, &queues) } else { (None, None) };
    notes.extend(note);
    let opened = queues::open(config, shape, index, queues)?;
    notes.extend(opened.notes);
    for (queue, socket) in &opened.sockets {
        steering.add(*queue, socket)?;
    }
    let steering = Arc::new(Mutex::new(steering));
    let caps = |queue_note: String| Caps {
        driver: DRIVER,
        medium: LinkMedium::Ethernet,
        mac,
        mtu,
        tx_frame_bytes: mtu + ETHERNET_HEADER_BYTES,
        tx_checksum: opened.fills_checksums,
        tso: false,
        shares_host_address: true,
        rss: rss.clone(),
        notes: std::iter::once(queue_note).chain(notes.iter().cloned()).collect(),
    };
    let link = |((_, socket), note)| {
        let mut link = Xdp::new(socket, caps(note), Arc::clone(&steering))?;
        link.is_veth = is_veth;
        Ok(link)
    };
    opened.sockets.into_iter().zip(opened.queue_notes).map(link).collect()
}

/// What a failed system call of AF_XDP or bpf(2) means to a user.
fn failed(what: &'static str, source: io::Error) -> LinkError {
    use io::ErrorKind::{InvalidInput, PermissionDenied};
    let unavailable = |why: &str| LinkError::Unavailable { driver: DRIVER, why: why.to_owned() };
    let because = |why: &str| unavailable(&format!("{what}: {source}: {why}"));
    match source.raw_os_error() {
        // The verifier refuses with a log, which says nothing of capabilities.
        _ if matches!(source.kind(), PermissionDenied | InvalidInput)
            && let Some(lacking) = privileges::lacking() =>
        {
            unavailable(&format!("{what}: {lacking}"))
        }
        Some(EPERM) => because("the kernel refuses it although the capabilities are there"),
        Some(libc::EAFNOSUPPORT) => {
            because("this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS)")
        }
        Some(libc::ENOBUFS) => unavailable(&format!("{what}: {}", privileges::unlocked())),
        Some(EBUSY) => {
            let why = "another program or socket has the interface or its queue";
            LinkError::InUse { driver: DRIVER, why: format!("{what}: {source}: {why}") }
        }
        Some(EOPNOTSUPP) => because("the interface cannot do XDP"),
        _ => LinkError::Io { what, source },
    }
}

/// Who brings frames to our sockets; shared by all links of one `open`.
#[derive(Debug)]
enum XdpSteering {
    /// Our program, and the ports that no other program may have meanwhile.
    Own(Filter, PortTable),
    /// Another program with this map; the keys are our entries in it.
    Foreign(Map, Vec<u32>),
}

impl XdpSteering {
    fn open(
        config: &XdpConfig,
        index: u32,
        has_pieces: bool,
    ) -> Result<(Self, Vec<String>), LinkError> {
        let foreign = |map: io::Result<Map>| {
            let map = map.map_err(|error| failed("open the map of sockets", error))?;
            let note = "another XDP program selects the frames for us".to_owned();
            Ok((Self::Foreign(map, Vec::new()), vec![note]))
        };
        match &config.socket_map {
            SocketMap::Own => {}
            SocketMap::Pinned(path) => return foreign(Map::pinned_sockets(path)),
            SocketMap::Given(fd) => {
                return foreign(fd.try_clone().and_then(Map::adopt_sockets));
            }
        }
        let filter = Filter::new(has_pieces);
        let mut filter = filter.map_err(|error| failed("load the XDP program", error))?;
        let attached = filter.attach(index, config.mode);
        let (mode, refusal) = attached.map_err(|error| failed("attach the XDP program", error))?;
        let note = match (mode, refusal) {
            (XdpMode::Native, _) => "the XDP program runs in the driver (native)".to_owned(),
            (XdpMode::Generic, None) => {
                "the XDP program runs in the general path, as asked".to_owned()
            }
            (XdpMode::Generic, Some(why)) => {
                format!("the XDP program runs in the general path; the driver refused: {why}")
            }
        };
        Ok((Self::Own(filter, PortTable::new(index)), vec![note]))
    }

    /// From now on frames of ours on `queue` go to `socket`.
    fn add(&mut self, queue: u32, socket: &Socket) -> Result<(), LinkError> {
        let fd = socket.as_fd().as_raw_fd();
        let entered = self.sockets().set(&queue.to_ne_bytes(), &fd.to_ne_bytes());
        entered.map_err(|error| failed("enter a socket into the map", error))?;
        if let Self::Foreign(_, queues) = self {
            queues.push(queue);
        }
        Ok(())
    }

    fn sockets(&self) -> &Map {
        match self {
            Self::Own(filter, _) => filter.sockets(),
            Self::Foreign(map, _) => map,
        }
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        match self {
            Self::Own(filter, port_table) => {
                let change = port_table.prepare(ownership)?;
                filter
                    .set_ownership(ownership)
                    .map_err(|source| LinkError::Io { what: "change what is ours", source })?;
                port_table.commit(change);
                Ok(())
            }
            Self::Foreign(..) => Ok(()),
        }
    }
}

impl Drop for XdpSteering {
    fn drop(&mut self) {
        if let Self::Foreign(map, queues) = self {
            // The kernel takes an entry away with its socket as well; one that is gone is as good.
            for queue in queues {
                let _ = map.remove(&queue.to_ne_bytes());
            }
        }
    }
}

/// How the device brings frames to the links on `queues`, in that order, and a word about it.
fn known_rss(
    ethtool: &Ethtool<'_>,
    queues: &RangeInclusive<u32>,
) -> (Option<Arc<Rss>>, Option<String>) {
    let known = ethtool.spreading().and_then(|spreading| {
        let link = |queue: &u32| queues.contains(queue).then(|| (queue - queues.start()) as u16);
        let table = spreading.table.iter().map(link).collect();
        Rss::new(&spreading.key, table, spreading.fields).map_err(|error| error.to_string())
    });
    match known {
        Ok(rss) => (Some(Arc::new(rss)), Some("the device's receive hash is known".to_owned())),
        Err(why) => (None, Some(format!("the device's receive hash is not known: {why}"))),
    }
}

/// One queue.
#[derive(Debug)]
pub struct Xdp {
    // Dropped first, so that no frame of ours is steered to a socket that is gone.
    steering: Arc<Mutex<XdpSteering>>,
    socket: Socket,
    caps: Caps,
    counters: FrameCounters,
    watch: Watch,
    /// What sends to the interface is on this machine, and may leave checksums to the veth.
    is_veth: bool,
    /// The last `tx_burst` ended for want of a free frame.
    is_full: bool,
    /// Bursts that found nothing to do since the last look.
    idle_polls: u32,
    is_gone: bool,
}

impl Xdp {
    fn new(
        socket: Socket,
        caps: Caps,
        steering: Arc<Mutex<XdpSteering>>,
    ) -> Result<Self, LinkError> {
        let watch = Watch::new(socket.as_fd(), true)
            .map_err(|source| LinkError::Io { what: "watch an interface", source })?;
        let counters = FrameCounters::default();
        Ok(Self {
            steering,
            socket,
            caps,
            counters,
            watch,
            is_veth: false,
            is_full: false,
            idle_polls: 0,
            is_gone: false,
        })
    }

    /// The map of sockets that our program redirects into, for links of other programs
    /// ([`SocketMap::Given`]): they need no privilege but CAP_NET_RAW, and share what is ours.
    ///
    /// # Errors
    /// What the kernel says when a descriptor is copied.
    pub fn socket_map(&self) -> io::Result<OwnedFd> {
        self.steering().sockets().as_fd().try_clone_to_owned()
    }

    /// Pins that map in a BPF file system ([`SocketMap::Pinned`]). The caller removes the pin.
    ///
    /// # Errors
    /// What the kernel says: the place has to be in a BPF file system, and free.
    pub fn pin_socket_map(&self, path: &Path) -> io::Result<()> {
        self.steering().sockets().pin(path)
    }

    fn steering(&self) -> MutexGuard<'_, XdpSteering> {
        // A thread that panicked in here left the maps in a state that the next change corrects.
        self.steering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_gone(&self) -> Result<(), LinkError> {
        if self.is_gone { Err(LinkError::Gone { driver: DRIVER }) } else { Ok(()) }
    }

    /// Asks what happened to the socket. One system call.
    fn look(&mut self) -> Result<(), LinkError> {
        self.counters.system_calls += 1;
        let error = self.socket.pending_error();
        match error.map_err(|source| LinkError::Io { what: "look at a socket", source })? {
            0 => {}
            ENETDOWN | ENXIO => self.is_gone = true,
            other => {
                let source = io::Error::from_raw_os_error(other);
                return Err(LinkError::Io { what: "an AF_XDP socket failed", source });
            }
        }
        self.check_gone()
    }

    fn idle(&mut self) -> Result<(), LinkError> {
        if self.socket.fill_needs_wakeup() {
            self.counters.system_calls += 1;
            let kicked = self.socket.kick_fill();
            self.kicked(kicked)?;
        }
        self.idle_polls += 1;
        if self.idle_polls >= XDP_POLLS_PER_LOOK {
            self.idle_polls = 0;
            self.look()?;
        }
        Ok(())
    }

    /// Has the kernel take what is queued; it takes so many for one call.
    fn kick(&mut self, queued: usize) -> Result<(), LinkError> {
        for _ in 0..=queued * self.socket.pieces() / XDP_FRAMES_PER_KICK {
            if !self.socket.wants_kick() {
                break;
            }
            self.counters.system_calls += 1;
            let kicked = self.socket.kick();
            self.kicked(kicked)?;
        }
        Ok(())
    }

    fn kicked(&mut self, outcome: io::Result<()>) -> Result<(), LinkError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(ENXIO) => {
                self.is_gone = true;
                self.check_gone()
            }
            Err(source) => Err(LinkError::Io { what: "wake an AF_XDP socket", source }),
        }
    }

    /// Lends frames until one of the ends comes; answers how many were filled, and how many of
    /// them are queued.
    fn fill(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> (usize, usize) {
        let (mut filled, mut queued) = (0, 0);
        let (frame_bytes, fills_checksums) = (self.caps.tx_frame_bytes, self.caps.tx_checksum);
        self.socket.reclaim();
        self.is_full = false;
        while filled < max {
            let lent = self.socket.send(|frame| match fill(&mut frame[..frame_bytes]) {
                None => (None, None),
                Some(transmit) => {
                    let outgoing = outgoing(transmit, frame_bytes, fills_checksums);
                    (outgoing, Some(outgoing.map(|outgoing| outgoing.len)))
                }
            });
            match lent {
                None => {
                    self.is_full = true;
                    self.counters.tx_full += 1;
                    break;
                }
                Some(None) => break,
                Some(Some(None)) => self.counters.tx_dropped_refused += 1,
                Some(Some(Some(len))) => {
                    queued += 1;
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += u64::from(len);
                }
            }
            filled += 1;
        }
        (filled, queued)
    }
}

/// What the caps do not offer cannot be done: the frame would arrive wrong.
fn outgoing(
    transmit: TxMetadata,
    frame_bytes: usize,
    fills_checksums: bool,
) -> Option<FilledFrame> {
    let TxMetadata { len, checksum_start, checksum_field, segment_bytes, .. } = transmit;
    let checksum = (checksum_start > 0).then_some((checksum_start, checksum_field));
    let field_end = usize::from(checksum_start) + usize::from(checksum_field) + 2;
    let can_be_filled = checksum.is_none() || (fills_checksums && field_end <= len);
    let is_good = segment_bytes == 0 && can_be_filled && (1..=frame_bytes).contains(&len);
    // At most a frame, so it fits.
    is_good.then_some(FilledFrame { len: len as u32, checksum })
}

impl Link for Xdp {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        if self.socket.waiting() == 0 {
            self.check_gone()?;
            self.idle()?;
            return Ok(0);
        }
        let (mut lent, is_veth) = (0, self.is_veth);
        while lent < max {
            let mut bytes = 0;
            let received = self.socket.receive(|frame| {
                bytes = frame.len() as u64;
                let is_partial = is_veth && partial::has_partial_checksum(frame);
                let checksums =
                    if is_partial { RxChecksum::Verified } else { RxChecksum::Unverified };
                each(frame, RxMetadata { checksums, ..RxMetadata::default() });
            });
            match received {
                None => break,
                Some(TakenFrame::Malformed) => self.counters.rx_dropped_malformed += 1,
                Some(TakenFrame::TooLong) => self.counters.rx_dropped_too_long += 1,
                Some(TakenFrame::Lent) => {
                    lent += 1;
                    self.counters.rx_frames += 1;
                    self.counters.rx_bytes += bytes;
                }
            }
        }
        self.socket.end_receive();
        Ok(lent)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        self.check_gone()?;
        let (filled, queued) = self.fill(max, fill);
        self.socket.end_send();
        self.kick(queued)?;
        if filled == 0 && self.is_full {
            self.idle()?;
        }
        Ok(filled)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        if self.socket.waiting() > 0 {
            return Ok(false);
        }
        self.check_gone()?;
        self.kick(XDP_RING_SIZE_MAX as usize)?;
        if self.is_full && self.socket.reclaim() > 0 {
            return Ok(false);
        }
        let wanted = self.watch.want_room(self.socket.as_fd(), self.is_full);
        wanted.map_err(|source| LinkError::Io { what: "epoll_ctl", source })?;
        self.watch.take_news();
        // After the news: what they were about is seen now, and what comes later wakes.
        self.look()?;
        Ok(self.socket.waiting() == 0)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn slept(&mut self) {
        self.counters.system_calls += 1;
    }

    /// Asks the kernel for what it dropped: one system call.
    fn counters(&self) -> FrameCounters {
        let dropped = self.socket.statistics();
        let dropped = dropped.map_or(0, |counted| counted.rx_dropped + counted.rx_ring_full);
        FrameCounters { rx_dropped_overrun: dropped, ..self.counters }
    }

    /// Changes the ownership for all links that were opened together. Frames that stay ours never
    /// reach the kernel meanwhile. Has no effect if another XDP program steers.
    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        self.steering().set_ownership(ownership)
    }
}
