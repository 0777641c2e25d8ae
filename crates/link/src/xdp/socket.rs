//! One AF_XDP socket: its frames, its four rings, and how it is bound to a queue.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`.
//!
//! Invariants
//! - Each chunk of the socket's part of the UMEM is in one place: with the kernel (in the fill or
//!   transmit ring, or behind it), or with us (a descriptor just received, or in `free`). Only
//!   chunks with us are read or written.
//! - Half of the chunks circulate for receiving, half for sending; so neither can starve the other.
//! - A frame for sending has one chunk, or a few that follow each other: it is filled as one slice,
//!   and goes as several pieces.
//! - The socket goes before its memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use libc::{xdp_desc, xdp_mmap_offsets};

use super::busy::{is_busy, while_busy};
use super::mapping::RingMapping;
use super::pieces::Pieces;
use super::ring::{Layout, XdpConsumer, XdpProducer};
use super::shape::SocketShape;
use super::umem::{Umem, ask_for_checksum};
use crate::socket_option::{SocketOptionValue, option, set_option};

// SAFETY: 64-bit integers.
unsafe impl SocketOptionValue for libc::xdp_statistics {}
// SAFETY: 64-bit integers.
unsafe impl SocketOptionValue for xdp_mmap_offsets {}

/// What became of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TakenFrame {
    /// It was lent.
    Lent,
    /// The kernel named memory that is not a frame's.
    Malformed,
    /// Its pieces are more than a frame may have, or one of them is memory of no frame's.
    TooLong,
}

/// A frame that was filled.
#[derive(Debug, Clone, Copy)]
pub(super) struct FilledFrame {
    /// Its length in bytes, above zero.
    pub(super) len: u32,
    /// Where its transport checksum begins and, from there, where the field is, if the kernel is to
    /// fill it in.
    pub(super) checksum: Option<(u16, u16)>,
}

/// How the kernel moves frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copying {
    /// The NIC reads and writes our memory.
    None,
    /// The kernel copies each frame.
    Each,
}

/// A bound socket.
#[derive(Debug)]
pub(super) struct Socket {
    // Dropped first: the kernel lets go of the memory below.
    fd: OwnedFd,
    receive: XdpConsumer<xdp_desc>,
    fill: XdpProducer<u64>,
    transmit: XdpProducer<xdp_desc>,
    completion: XdpConsumer<u64>,
    umem: Arc<Umem>,
    shape: SocketShape,
    /// Frames for sending that are with us, by their first chunk.
    free: Vec<u64>,
    /// Where those frames begin, and pieces of each that are with the kernel.
    sending_from: u64,
    pending: Box<[u8]>,
    /// A frame whose pieces did not all come yet.
    pieces: Pieces,
}

impl Socket {
    /// Makes a socket with its rings and with memory for `parts` sockets; not bound yet.
    pub(super) fn new(shape: SocketShape, parts: u32) -> io::Result<Self> {
        let fd = socket()?;
        let umem = Umem::register(&fd, shape, parts)?;
        Self::with_memory(fd, shape, Arc::new(umem), 0)
    }

    /// Makes another socket with a part of this one's memory; not bound yet.
    pub(super) fn sharing(&self, part: u32) -> io::Result<Self> {
        Self::with_memory(socket()?, self.shape, Arc::clone(&self.umem), part)
    }

    fn with_memory(
        fd: OwnedFd,
        shape: SocketShape,
        umem: Arc<Umem>,
        part: u32,
    ) -> io::Result<Self> {
        let SocketShape { frame_bytes, ring_size, .. } = shape;
        // The kernel shows a received frame before it shows that its entry in the fill ring is
        // free, so a frame may come back while its old entry still counts: twice the entries.
        let fill_size = 2 * ring_size;
        for (ring, size) in [
            (libc::XDP_UMEM_FILL_RING, fill_size),
            (libc::XDP_UMEM_COMPLETION_RING, ring_size),
            (libc::XDP_RX_RING, ring_size),
            (libc::XDP_TX_RING, ring_size),
        ] {
            set_option(&fd, libc::SOL_XDP, ring, &size)?;
        }
        let layouts = layouts(&fd)?;
        let receive = map(&fd, &layouts.rx, libc::XDP_PGOFF_RX_RING as u64, ring_size, 16)?;
        let transmit = map(&fd, &layouts.tx, libc::XDP_PGOFF_TX_RING as u64, ring_size, 16)?;
        let fill = map(&fd, &layouts.fr, libc::XDP_UMEM_PGOFF_FILL_RING, fill_size, 8)?;
        let completion = map(&fd, &layouts.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, ring_size, 8)?;
        let first = u64::from(part) * u64::from(shape.chunk_count());
        let chunk = |index: u32| (first + u64::from(index)) * u64::from(frame_bytes);
        let frames = 0..ring_size / shape.pieces();
        let mut socket = Self {
            fd,
            receive: XdpConsumer::new(receive, &layouts.rx, ring_size)?,
            fill: XdpProducer::new(fill, &layouts.fr, fill_size)?,
            transmit: XdpProducer::new(transmit, &layouts.tx, ring_size)?,
            completion: XdpConsumer::new(completion, &layouts.cr, ring_size)?,
            umem,
            shape,
            sending_from: chunk(ring_size),
            pending: vec![0; frames.len()].into(),
            free: frames.rev().map(|frame| chunk(ring_size + frame * shape.pieces())).collect(),
            pieces: Pieces::new(shape.pieces_bytes.unwrap_or(0)),
        };
        for index in 0..ring_size {
            socket.return_chunk(chunk(index));
        }
        socket.fill.publish();
        Ok(socket)
    }

    /// The kernel takes checksums over; else why not, if it refused.
    pub(super) fn metadata(&self) -> Result<(), Option<&io::Error>> {
        if self.umem.metadata_bytes > 0 { Ok(()) } else { Err(self.umem.refusal.as_ref()) }
    }

    /// Binds it to a queue: as told, or else without copies if the driver can and with them if not;
    /// the driver's refusal comes along then.
    pub(super) fn bind(
        &self,
        interface: u32,
        queue: u32,
        zero_copy: Option<bool>,
    ) -> io::Result<(Copying, Option<io::Error>)> {
        if zero_copy == Some(false) {
            while_busy(|| self.try_bind(interface, queue, self.flags(libc::XDP_COPY), 0))?;
            return Ok((Copying::Each, None));
        }
        let zero_copying = self.flags(libc::XDP_ZEROCOPY);
        let refusal = match while_busy(|| self.try_bind(interface, queue, zero_copying, 0)) {
            Ok(()) => return Ok((Copying::None, None)),
            Err(error) if zero_copy.is_some() || is_busy(&error) => {
                return Err(error);
            }
            Err(error) => error,
        };
        while_busy(|| self.try_bind(interface, queue, self.flags(libc::XDP_COPY), 0))?;
        Ok((Copying::Each, Some(refusal)))
    }

    /// Binds it to another queue of the interface that `first` is bound to, whose memory it shares,
    /// and in the same way as that one.
    pub(super) fn bind_shared_umem(
        &self,
        first: &Self,
        interface: u32,
        queue: u32,
    ) -> io::Result<()> {
        let fd = first.fd.as_raw_fd().unsigned_abs();
        while_busy(|| self.try_bind(interface, queue, libc::XDP_SHARED_UMEM, fd))
    }

    fn flags(&self, how: u16) -> u16 {
        let pieces = if self.shape.pieces_bytes.is_some() { libc::XDP_USE_SG } else { 0 };
        how | pieces | libc::XDP_USE_NEED_WAKEUP
    }

    fn try_bind(&self, interface: u32, queue: u32, flags: u16, shared: u32) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: shared,
        };
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is of the length given and alive during the call.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Chunks of one frame.
    pub(super) fn pieces(&self) -> usize {
        self.shape.pieces() as usize
    }

    /// How many received frames wait, or pieces of some.
    pub(super) fn waiting(&mut self) -> u32 {
        self.receive.waiting()
    }

    /// Lends the oldest received frame; `None`: none is whole.
    pub(super) fn receive(&mut self, each: impl FnOnce(&[u8])) -> Option<TakenFrame> {
        loop {
            let descriptor = self.receive.take()?;
            let len = descriptor.len as usize;
            let chunk = u64::from(self.shape.frame_bytes);
            let start = descriptor.addr - descriptor.addr % chunk;
            let ends_inside = descriptor.addr - start + u64::from(descriptor.len) <= chunk;
            let place = usize::try_from(descriptor.addr).ok().filter(|_| ends_inside);
            let place = place.and_then(|at| self.umem.memory.locate(at, len));
            // SAFETY: the bytes are inside of the UMEM. Their chunk came out of the receive ring
            // just now, so it is ours and the kernel does not write it until `return_chunk` and
            // `publish` below; the UMEM is private to this process, and no other socket of it has
            // this chunk. Nothing of the slice is kept.
            let bytes = place.map(|at| unsafe { std::slice::from_raw_parts(at.as_ptr(), len) });
            let is_last = descriptor.options & libc::XDP_PKT_CONTD == 0;
            let taken = match bytes {
                Some(bytes) if is_last && !self.pieces.is_open() => {
                    each(bytes);
                    self.return_chunk(start);
                    return Some(TakenFrame::Lent);
                }
                // A chunk that is none is lost: it cannot be given back.
                None if is_last && !self.pieces.is_open() => return Some(TakenFrame::Malformed),
                bytes => {
                    self.pieces.add(bytes);
                    bytes.is_some()
                }
            };
            if taken {
                self.return_chunk(start);
            }
            if is_last {
                let whole = self.pieces.end().map(each);
                return Some(if whole.is_some() { TakenFrame::Lent } else { TakenFrame::TooLong });
            }
        }
    }

    /// Puts a chunk for receiving into the fill ring. It has twice as many entries as there are
    /// such chunks, so there is always room.
    fn return_chunk(&mut self, chunk: u64) {
        let has_room = self.fill.put(chunk);
        debug_assert!(has_room, "the fill ring has two entries for each chunk");
    }

    /// Gives the kernel the frames that were lent, and the entries that named them.
    pub(super) fn end_receive(&mut self) {
        self.receive.give_back();
        self.fill.publish();
    }

    /// Takes back the frames that were sent. Answers how many may be filled now.
    pub(super) fn reclaim(&mut self) -> usize {
        let pieces = self.shape.pieces();
        let bytes = u64::from(pieces) * u64::from(self.shape.frame_bytes);
        while let Some(address) = self.completion.take() {
            let frame = address.checked_sub(self.sending_from).map(|offset| offset / bytes);
            let index = frame.and_then(|frame| usize::try_from(frame).ok());
            let pending = index.and_then(|index| self.pending.get_mut(index));
            // The kernel names each piece once; anything else is passed over.
            let Some(pending @ 1..) = pending else { continue };
            *pending -= 1;
            if *pending == 0 {
                // `free` had room for all of them when it was made, and holds each once.
                self.free.push(address - (address - self.sending_from) % bytes);
            }
        }
        self.completion.give_back();
        self.free.len().min((self.transmit.room(pieces) / pieces) as usize)
    }

    /// Lends a free frame to `fill` and queues what it made of it: a frame, or `None` to leave it
    /// free. Answers `None` if there is no frame or no room.
    pub(super) fn send<R>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> (Option<FilledFrame>, R),
    ) -> Option<R> {
        let pieces = self.shape.pieces();
        if self.transmit.room(pieces) < pieces {
            return None;
        }
        let frame = *self.free.last()?;
        let at = usize::try_from(frame).ok()?;
        let bytes_max = pieces as usize * self.shape.frame_bytes as usize;
        let place = self.umem.memory.locate(at, bytes_max)?;
        // SAFETY: the bytes are inside of the UMEM, which is private to this process and not
        // otherwise referred to. The frame is in `free`: the kernel has completed it or never had
        // it, and no other socket has it, so there is no other access before `publish`; `&mut
        // self` makes it the only slice.
        let bytes = unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), bytes_max) };
        let (metadata, room) = bytes.split_at_mut(self.umem.metadata_bytes as usize);
        let (outgoing, answer) = fill(room);
        if let Some(FilledFrame { len, checksum }) = outgoing {
            let len = len.min(room.len() as u32);
            let asked = checksum.filter(|_| !metadata.is_empty());
            if let Some(checksum) = asked {
                ask_for_checksum(metadata, checksum);
            }
            self.queue(frame, len, if asked.is_some() { libc::XDP_TX_METADATA } else { 0 });
            self.free.pop();
        }
        Some(answer)
    }

    /// Queues a frame of `len` bytes, piece by piece; there is room for as many as it can have.
    fn queue(&mut self, frame: u64, len: u32, first_options: u32) {
        let chunk = u64::from(self.shape.frame_bytes);
        let mut addr = frame + u64::from(self.umem.metadata_bytes);
        let (mut left, mut count, mut first) = (u64::from(len), 0, first_options);
        while left > 0 {
            let piece = left.min(chunk - addr % chunk);
            left -= piece;
            let more = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            // A piece is at most a chunk.
            let descriptor = xdp_desc { addr, len: piece as u32, options: more | first };
            let is_queued = self.transmit.put(descriptor);
            debug_assert!(is_queued, "there was room for a whole frame");
            (first, count) = (0, count + 1);
            addr += piece;
        }
        let bytes = u64::from(self.shape.pieces()) * chunk;
        let index = usize::try_from((frame - self.sending_from) / bytes).ok();
        if let Some(pending) = index.and_then(|index| self.pending.get_mut(index)) {
            *pending = count;
        }
    }

    /// Shows the kernel what was queued.
    pub(super) fn end_send(&self) {
        self.transmit.publish();
    }

    /// Frames are queued, and the kernel wants a [`Socket::kick`] to take them.
    pub(super) fn wants_kick(&self) -> bool {
        self.transmit.is_pending() && self.transmit.needs_wakeup()
    }

    /// Whether the kernel wants to be woken to fill frames.
    pub(super) fn fill_needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Has the kernel send what is queued. A kernel that is busy with it is no error.
    pub(super) fn kick(&self) -> io::Result<()> {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: a null address with length 0 is allowed: nothing is read.
        let sent = unsafe { libc::sendto(fd, std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        forgive(sent)
    }

    /// Has the kernel look at the fill ring.
    pub(super) fn kick_fill(&self) -> io::Result<()> {
        let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT);
        let nothing = std::ptr::null_mut();
        // SAFETY: a null buffer with length 0 is allowed: nothing is written.
        forgive(unsafe { libc::recvfrom(fd, nothing, 0, flags, nothing.cast(), nothing.cast()) })
    }

    /// What the kernel dropped for want of room, and what it found malformed of ours.
    pub(super) fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        option(&self.fd, libc::SOL_XDP, libc::XDP_STATISTICS)
    }

    /// The error that happened to the socket behind our back, if one did.
    pub(super) fn pending_error(&self) -> io::Result<i32> {
        option(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A kick may come while the kernel is at work already, or short of memory for the moment.
fn forgive(answer: isize) -> io::Result<()> {
    if answer >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The last: the interface is switched off; what is queued goes when it is on again.
        Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR | libc::ENETDOWN) => Ok(()),
        _ => Err(error),
    }
}

/// A new socket.
fn socket() -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn layouts(fd: &OwnedFd) -> io::Result<xdp_mmap_offsets> {
    option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
}

fn map(
    fd: &OwnedFd,
    layout: &Layout,
    offset: u64,
    ring_size: u32,
    entry_bytes: usize,
) -> io::Result<RingMapping> {
    let bytes = layout.desc as usize + ring_size as usize * entry_bytes;
    RingMapping::shared(fd, offset, bytes)
}
