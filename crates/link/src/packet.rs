//! `packet`: an AF_PACKET socket on an interface that the kernel also uses.
//!
//! Read first: packet(7); `ownership.rs` for what is ours; `docs/decisions` on packet sockets for
//! why there is no ring, and on silent ports for how the kernel is kept from answering.
//!
//! The kernel gives us a copy of each frame that the filter takes. It sees the frame itself too, so
//! each port that is ours is held by a deaf socket ([`PortGuard`](crate::PortGuard)).
//!
//! Invariants
//! - The kernel's ports are silent before the filter takes their frames, and are given back after
//!   it has stopped to.
//! - A frame that was filled is sent, kept for the next burst in its place, or counted as refused.
//! - Nothing of ours outlives the process: no rule, no program, no socket.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::interface::InterfaceQuery;
use crate::limits::{
    ETHERNET_HEADER_BYTES, OFFLOAD_FRAME_BYTES, PACKET_BATCH_MAX, PACKET_SOCKET_BUFFER_BYTES,
};
use crate::port_table::PortTable;
use crate::socket_option::{attach_filter, set_option};
use crate::virtio::{self, HEADER_BYTES};
use crate::watch::Watch;
use crate::{Caps, FrameCounters, Link, LinkError, LinkMedium, Ownership, RxMetadata, TxMetadata};

mod filter;

const DRIVER: &str = "packet";

/// How a packet socket is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketConfig {
    /// The interface.
    pub interface: String,
    /// Checksums and segmentation are left to the interface, and merged frames come whole.
    pub offloads: bool,
    /// Frames go straight to the driver, past traffic control (`PACKET_QDISC_BYPASS`): a full
    /// queue then loses them without a word.
    pub bypasses_qdisc: bool,
}

impl PacketConfig {
    /// With offloads, through traffic control.
    #[must_use]
    pub fn new(interface: &str) -> Self {
        Self { interface: interface.to_owned(), offloads: true, bypasses_qdisc: false }
    }
}

/// A link over a packet socket. Nothing is ours until `set_ownership` says so.
#[derive(Debug)]
pub struct Packet {
    caps: Caps,
    counters: FrameCounters,
    socket: OwnedFd,
    port_table: PortTable,
    /// [`PACKET_BATCH_MAX`] buffers of `slot_bytes`: a virtio header, then a frame.
    rx: Box<[u8]>,
    tx: Box<[u8]>,
    slot_bytes: usize,
    /// The filled frames in `tx` that were not taken yet: the first one's place, and lengths.
    waiting: WaitingFrames,
    watch: Watch,
    /// The interface was down when last heard of. The socket does not report its deletion then.
    is_down: bool,
    is_gone: bool,
}

/// Frames that wait in `tx`, from `first` to `end`.
#[derive(Debug, Default)]
struct WaitingFrames {
    first: usize,
    end: usize,
    lens: [usize; PACKET_BATCH_MAX],
}

/// Opens a packet socket. Needs CAP_NET_RAW.
///
/// # Errors
/// [`LinkError::Unavailable`] without the capability, [`LinkError::Setting`] for an interface that
/// does not exist or carries neither Ethernet nor IP, [`LinkError::Io`].
pub fn open(config: &PacketConfig) -> Result<Packet, LinkError> {
    let interface = InterfaceQuery::new(&config.interface)?;
    let (index, mtu) = (interface.index()?, interface.mtu()?);
    let (kind, mac) = interface.hardware()?;
    let medium = match kind {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => LinkMedium::Ethernet,
        libc::ARPHRD_NONE => LinkMedium::Ip,
        other => {
            let why = format!("{:?} is of hardware type {other}", config.interface);
            return Err(LinkError::Setting { setting: "interface", why });
        }
    };
    let socket = packet_socket(config)?;
    attach(&socket, medium, &Ownership::new())?;
    bind_to(&socket, index)?;
    let header_bytes = if medium == LinkMedium::Ethernet { ETHERNET_HEADER_BYTES } else { 0 };
    let plain = mtu + header_bytes;
    let frame_bytes = plain.max(OFFLOAD_FRAME_BYTES);
    let slot_bytes = (HEADER_BYTES + frame_bytes).next_multiple_of(64);
    let caps = Caps {
        driver: DRIVER,
        medium,
        mac: if medium == LinkMedium::Ethernet { mac } else { [0; 6] },
        mtu,
        tx_frame_bytes: if config.offloads { OFFLOAD_FRAME_BYTES } else { plain },
        tx_checksum: config.offloads,
        tso: config.offloads,
        shares_host_address: true,
        rss: None,
        notes: vec!["the kernel copies each frame; ports of ours are held by sockets".to_owned()],
    };
    let watch = Watch::new(socket.as_fd(), false).map_err(io_error("watch an interface"))?;
    Ok(Packet {
        caps,
        counters: FrameCounters::default(),
        watch,
        socket,
        port_table: PortTable::new(index.unsigned_abs()),
        rx: vec![0; PACKET_BATCH_MAX * slot_bytes].into(),
        tx: vec![0; PACKET_BATCH_MAX * slot_bytes].into(),
        slot_bytes,
        waiting: WaitingFrames::default(),
        is_down: false,
        is_gone: false,
    })
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> LinkError {
    move |source| LinkError::Io { what, source }
}

/// A socket with its options, which receives nothing yet.
fn packet_socket(config: &PacketConfig) -> Result<OwnedFd, LinkError> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `socket` takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        let source = io::Error::last_os_error();
        if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
            let why = "packet sockets need CAP_NET_RAW".to_owned();
            return Err(LinkError::Unavailable { driver: DRIVER, why });
        }
        return Err(LinkError::Io { what: "open a packet socket", source });
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    let options = [
        (libc::PACKET_IGNORE_OUTGOING, true, "leave out what this host sends"),
        // Always: received frames then say what is known of their checksums.
        (libc::PACKET_VNET_HDR, true, "ask for offload headers"),
        (libc::PACKET_QDISC_BYPASS, config.bypasses_qdisc, "bypass traffic control"),
    ];
    for (option, is_wanted, what) in options {
        if is_wanted {
            set_option(&socket, libc::SOL_PACKET, option, &on).map_err(io_error(what))?;
        }
    }
    let buffer: libc::c_int = PACKET_SOCKET_BUFFER_BYTES;
    // Beyond the system's bound only with CAP_NET_ADMIN; else up to it.
    if set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &buffer).is_err() {
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &buffer)
            .map_err(io_error("size a packet socket's buffer"))?;
    }
    Ok(socket)
}

/// Compiles and attaches the filter.
fn attach(socket: &OwnedFd, medium: LinkMedium, ownership: &Ownership) -> Result<(), LinkError> {
    let program = filter::compile(medium, ownership)?;
    let to_kernel = |instruction: filter::FilterInstruction| libc::sock_filter {
        code: instruction.code,
        jt: instruction.jump_true,
        jf: instruction.jump_false,
        k: instruction.value,
    };
    let mut program: Vec<_> = program.into_iter().map(to_kernel).collect();
    attach_filter(socket, &mut program).map_err(io_error("attach a packet filter"))
}

fn bind_to(socket: &OwnedFd, index: i32) -> Result<(), LinkError> {
    // SAFETY: `sockaddr_ll` is plain memory: all zero is a value of it.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let pointer = (&raw const address).cast();
    // SAFETY: `bind` reads `len` bytes of the address, which is alive and that long.
    let done = unsafe { libc::bind(socket.as_raw_fd(), pointer, len) };
    if done < 0 {
        return Err(io_error("bind a packet socket")(io::Error::last_os_error()));
    }
    Ok(())
}

/// What one call to send a batch came to.
enum BatchSent {
    /// So many of the frames went.
    Frames(usize),
    NoRoom,
    /// The first frame was refused; the others were not tried.
    Refused,
}

impl Packet {
    fn gone(&mut self) -> LinkError {
        self.is_gone = true;
        LinkError::Gone { driver: DRIVER }
    }

    /// An interface that went away takes its number from the socket; one that is only down not.
    fn is_unbound(&self) -> bool {
        // SAFETY: `sockaddr_ll` is plain memory: all zero is a value of it.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let (fd, pointer) = (self.socket.as_raw_fd(), (&raw mut address).cast());
        // SAFETY: `getsockname` writes at most `len` bytes to the address and the length to `len`;
        // both are alive and exclusively ours.
        let done = unsafe { libc::getsockname(fd, pointer, &raw mut len) };
        done == 0 && address.sll_ifindex <= 0
    }

    /// The interface is down: from now on its deletion is found by looking.
    fn went_down(&mut self) -> Result<(), LinkError> {
        self.set_down(true)?;
        self.look()
    }

    fn set_down(&mut self, is_down: bool) -> Result<(), LinkError> {
        self.is_down = is_down;
        self.watch.want_news(is_down).map_err(io_error("watch an interface"))
    }

    /// Looks whether the interface was deleted since it went down. One system call.
    fn look(&mut self) -> Result<(), LinkError> {
        self.counters.system_calls += 1;
        if self.is_unbound() { Err(self.gone()) } else { Ok(()) }
    }

    /// Takes up what the kernel dropped because our buffer was full. Reading clears it.
    fn count_overruns(&mut self) {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let (level, option) = (libc::SOL_PACKET, libc::PACKET_STATISTICS);
        let (fd, pointer) = (self.socket.as_raw_fd(), (&raw mut statistics).cast());
        self.counters.system_calls += 1;
        // SAFETY: `getsockopt` writes at most `len` bytes to the statistics and the length to
        // `len`; both are alive and exclusively ours.
        let done = unsafe { libc::getsockopt(fd, level, option, pointer, &raw mut len) };
        if done == 0 {
            self.counters.rx_dropped_overrun += u64::from(statistics.tp_drops);
        }
    }

    /// Receives at most `max` frames into `rx`; their lengths, header included, and flags.
    fn receive(
        &mut self,
        max: usize,
        lens: &mut [(usize, bool); PACKET_BATCH_MAX],
    ) -> Result<usize, Errno> {
        let mut parts = self.rx.chunks_exact_mut(self.slot_bytes);
        let mut vectors =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PACKET_BATCH_MAX];
        for (vector, slot) in vectors.iter_mut().zip(&mut parts).take(max) {
            *vector = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
        }
        let mut messages = headers(&mut vectors);
        let count = max.min(PACKET_BATCH_MAX) as libc::c_uint;
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let none = std::ptr::null_mut();
        // SAFETY: `recvmmsg` writes into the `count` first messages and where their vectors point:
        // slots of `rx`, disjoint, exclusively ours, alive during the call, of the lengths given.
        let count = unsafe { libc::recvmmsg(fd, messages.as_mut_ptr(), count, flags, none) };
        let Ok(count) = usize::try_from(count) else {
            return Err(last_errno());
        };
        for (len, message) in lens.iter_mut().zip(&messages[..count]) {
            *len = (message.msg_len as usize, message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0);
        }
        Ok(count)
    }

    /// Hands over the frames that wait, in order. Afterwards none waits, or there is no room.
    fn flush(&mut self) -> Result<(), LinkError> {
        while self.waiting.first < self.waiting.end {
            match self.send()? {
                BatchSent::Frames(count) => {
                    let sent = &self.waiting.lens[self.waiting.first..][..count];
                    self.counters.tx_frames += count as u64;
                    self.counters.tx_bytes += sent.iter().sum::<usize>() as u64;
                    self.waiting.first += count;
                }
                BatchSent::NoRoom => return Ok(()),
                BatchSent::Refused => {
                    self.counters.tx_dropped_refused += 1;
                    self.waiting.first += 1;
                }
            }
        }
        self.waiting.first = 0;
        self.waiting.end = 0;
        Ok(())
    }

    fn send(&mut self) -> Result<BatchSent, LinkError> {
        let mut vectors =
            [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PACKET_BATCH_MAX];
        let places = self.waiting.first..self.waiting.end;
        let count = places.len() as libc::c_uint;
        for (vector, place) in vectors.iter_mut().zip(places) {
            let slot = &mut self.tx[place * self.slot_bytes..][..self.slot_bytes];
            let iov_len = HEADER_BYTES + self.waiting.lens[place];
            *vector = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len };
        }
        let mut messages = headers(&mut vectors);
        self.counters.system_calls += 1;
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: `sendmmsg` reads the `count` first messages and what their vectors point at:
        // slots of `tx`, alive during the call, at least of the lengths given (`tx_burst` checks).
        // It writes the messages' lengths, which are ours.
        let sent = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count, flags) };
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(BatchSent::Frames(sent));
        }
        match last_errno() {
            Errno::AGAIN | Errno::INTR => Ok(BatchSent::NoRoom),
            Errno::NXIO | Errno::NODEV => Err(self.gone()),
            Errno::NETDOWN => self.went_down().map(|()| BatchSent::Refused),
            // The interface's queue is full, or the frame is no frame to the kernel.
            _ => Ok(BatchSent::Refused),
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A message for each vector.
fn headers(vectors: &mut [libc::iovec; PACKET_BATCH_MAX]) -> [libc::mmsghdr; PACKET_BATCH_MAX] {
    // SAFETY: `mmsghdr` is plain memory (integers, pointers that may be null): all zero is a value.
    let mut messages: [libc::mmsghdr; PACKET_BATCH_MAX] = unsafe { mem::zeroed() };
    for (message, vector) in messages.iter_mut().zip(vectors) {
        message.msg_hdr.msg_iov = std::ptr::from_mut(vector);
        message.msg_hdr.msg_iovlen = 1;
    }
    messages
}

impl Link for Packet {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn rx_burst(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(&[u8], RxMetadata),
    ) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < max {
            if self.is_gone {
                return Err(self.gone());
            }
            let asked = (max - count).min(PACKET_BATCH_MAX);
            let mut lens = [(0, false); PACKET_BATCH_MAX];
            self.counters.system_calls += 1;
            let got = match self.receive(asked, &mut lens) {
                Ok(got) => got,
                Err(Errno::AGAIN | Errno::INTR) if self.is_down => {
                    self.look()?;
                    break;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                // Reported once, when the interface goes down.
                Err(Errno::NETDOWN) => {
                    self.went_down()?;
                    break;
                }
                Err(source) => {
                    let what = "receive from a packet socket";
                    return Err(LinkError::Io { what, source: source.into() });
                }
            };
            if got > 0 && self.is_down {
                self.set_down(false)?;
            }
            for (slot, (len, is_cut)) in self.rx.chunks_exact(self.slot_bytes).zip(&lens[..got]) {
                if *is_cut {
                    self.counters.rx_dropped_too_long += 1;
                    continue;
                }
                let parts = slot[..*len].split_first_chunk::<HEADER_BYTES>();
                let known = parts.and_then(|(head, frame)| Some((virtio::decode(*head)?, frame)));
                let Some((received, frame)) = known else {
                    self.counters.rx_dropped_malformed += 1;
                    continue;
                };
                count += 1;
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += frame.len() as u64;
                each(frame, received);
            }
            if got < asked {
                break;
            }
        }
        Ok(count)
    }

    fn tx_burst(
        &mut self,
        max: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> Option<TxMetadata>,
    ) -> Result<usize, LinkError> {
        if self.is_gone {
            return Err(self.gone());
        }
        let mut count = 0;
        if max > 0 {
            self.flush()?;
        }
        while count < max {
            if self.waiting.end == PACKET_BATCH_MAX {
                self.flush()?;
                if self.waiting.end == PACKET_BATCH_MAX {
                    self.counters.tx_full += 1;
                    return Ok(count);
                }
            }
            let slot = &mut self.tx[self.waiting.end * self.slot_bytes..][..self.slot_bytes];
            let (head, room) = slot.split_at_mut(HEADER_BYTES);
            let room = &mut room[..self.caps.tx_frame_bytes];
            let Some(transmit) = fill(room) else { break };
            count += 1;
            let frame = room.get(..transmit.len).filter(|frame| !frame.is_empty());
            let header = frame.and_then(|f| virtio::encode(self.caps.medium, f, transmit));
            let Some(header) = header else {
                self.counters.tx_dropped_refused += 1;
                continue;
            };
            head.copy_from_slice(&header);
            self.waiting.lens[self.waiting.end] = transmit.len;
            self.waiting.end += 1;
        }
        if max > 0 {
            self.flush()?;
        }
        Ok(count)
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        self.count_overruns();
        if self.is_down {
            self.watch.take_news();
            // After the news: what they were about is seen now, and what comes later wakes.
            self.look()?;
        }
        // The descriptor is readable while there is a frame: nothing to prepare.
        self.flush()?;
        Ok(self.waiting.first == self.waiting.end)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn slept(&mut self) {
        self.counters.system_calls += 1;
    }

    fn counters(&self) -> FrameCounters {
        self.counters
    }

    fn set_ownership(&mut self, ownership: &Ownership) -> Result<(), LinkError> {
        let change = self.port_table.prepare(ownership)?;
        attach(&self.socket, self.caps.medium, ownership)?;
        self.port_table.commit(change);
        Ok(())
    }

    fn check_ownership(&self, ownership: &Ownership) -> Result<(), LinkError> {
        filter::compile(self.caps.medium, ownership).map(drop)
    }
}
