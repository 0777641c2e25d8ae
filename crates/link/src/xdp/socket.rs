//! One AF_XDP socket: its frames, its four rings, and how it is bound to a queue.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`.
//!
//! Invariants
//! - Each frame of the UMEM is in one place: with the kernel (in the fill or transmit ring, or
//!   behind it), or with us (a descriptor just received, or in `free`). Only frames with us are
//!   read or written.
//! - Half of the frames circulate for receiving, half for sending; so neither can starve the other.
//! - The socket goes before its memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{xdp_desc, xdp_mmap_offsets, xdp_umem_reg};

use super::busy::{is_busy, while_busy};
use super::mapping::Mapping;
use super::ring::{Consumer, Layout, Producer};

/// How a socket is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Bytes of one frame.
    pub(super) frame_bytes: u32,
    /// Entries of each ring, and frames in each direction.
    pub(super) ring_size: u32,
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
    receive: Consumer<xdp_desc>,
    fill: Producer<u64>,
    transmit: Producer<xdp_desc>,
    completion: Consumer<u64>,
    umem: Mapping,
    frame_bytes: u32,
    /// Frames for sending that are with us.
    free: Vec<u64>,
    /// Frames for sending in all.
    tx_frame_count: usize,
}

impl Socket {
    /// Makes a socket with its memory and rings; not bound yet.
    pub(super) fn new(shape: Shape) -> io::Result<Self> {
        // SAFETY: `socket` takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let Shape { frame_bytes, ring_size } = shape;
        let frame_count = 2 * ring_size as usize;
        let umem = Mapping::anonymous(frame_count * frame_bytes as usize)?;
        let base = umem.locate(0, umem.bytes()).ok_or(io::ErrorKind::InvalidData)?;
        let registration = xdp_umem_reg {
            addr: base.as_ptr().expose_provenance() as u64,
            len: umem.bytes() as u64,
            chunk_size: frame_bytes,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(&fd, libc::XDP_UMEM_REG, &registration)?;
        // The kernel shows a received frame before it shows that its entry in the fill ring is
        // free, so a frame may come back while its old entry still counts: twice the entries.
        let fill_size = 2 * ring_size;
        for (ring, size) in [
            (libc::XDP_UMEM_FILL_RING, fill_size),
            (libc::XDP_UMEM_COMPLETION_RING, ring_size),
            (libc::XDP_RX_RING, ring_size),
            (libc::XDP_TX_RING, ring_size),
        ] {
            set_option(&fd, ring, &size)?;
        }
        let layouts = layouts(&fd)?;
        let receive = map(&fd, &layouts.rx, libc::XDP_PGOFF_RX_RING as u64, ring_size, 16)?;
        let transmit = map(&fd, &layouts.tx, libc::XDP_PGOFF_TX_RING as u64, ring_size, 16)?;
        let fill = map(&fd, &layouts.fr, libc::XDP_UMEM_PGOFF_FILL_RING, fill_size, 8)?;
        let completion = map(&fd, &layouts.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING, ring_size, 8)?;
        let frame = |index: u32| u64::from(index) * u64::from(frame_bytes);
        let mut socket = Self {
            fd,
            receive: Consumer::new(receive, &layouts.rx, ring_size)?,
            fill: Producer::new(fill, &layouts.fr, fill_size)?,
            transmit: Producer::new(transmit, &layouts.tx, ring_size)?,
            completion: Consumer::new(completion, &layouts.cr, ring_size)?,
            umem,
            frame_bytes,
            free: (ring_size..2 * ring_size).rev().map(frame).collect(),
            tx_frame_count: ring_size as usize,
        };
        for index in 0..ring_size {
            socket.return_frame(frame(index));
        }
        socket.fill.publish();
        Ok(socket)
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
            while_busy(|| self.try_bind(interface, queue, libc::XDP_COPY))?;
            return Ok((Copying::Each, None));
        }
        let refusal = match while_busy(|| self.try_bind(interface, queue, libc::XDP_ZEROCOPY)) {
            Ok(()) => return Ok((Copying::None, None)),
            Err(error) if zero_copy.is_some() || is_busy(&error) => {
                return Err(error);
            }
            Err(error) => error,
        };
        while_busy(|| self.try_bind(interface, queue, libc::XDP_COPY))?;
        Ok((Copying::Each, Some(refusal)))
    }

    fn try_bind(&self, interface: u32, queue: u32, how: u16) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: how | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let bytes = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the address is of the length given and alive during the call.
        let done = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), bytes) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// How many received frames wait.
    pub(super) fn waiting(&mut self) -> u32 {
        self.receive.waiting()
    }

    /// Lends the oldest received frame; `None`: none waits; `Some(false)`: the kernel named memory
    /// that is not a frame's, which is lost.
    pub(super) fn receive(&mut self, each: impl FnOnce(&[u8])) -> Option<bool> {
        let descriptor = self.receive.take()?;
        let frame = u64::from(self.frame_bytes);
        let start = descriptor.addr - descriptor.addr % frame;
        let ends_inside = descriptor.addr - start + u64::from(descriptor.len) <= frame;
        let place = usize::try_from(descriptor.addr).ok().filter(|_| ends_inside);
        let place = place.and_then(|at| self.umem.locate(at, descriptor.len as usize));
        let Some(place) = place else { return Some(false) };
        // SAFETY: the bytes are inside of the UMEM. Their frame came out of the receive ring just
        // now, so it is ours and the kernel does not write it until `return_frame` and `publish`
        // below; the UMEM is private to this process. `each` keeps nothing of the slice.
        let bytes = unsafe { std::slice::from_raw_parts(place.as_ptr(), descriptor.len as usize) };
        each(bytes);
        self.return_frame(start);
        Some(true)
    }

    /// Puts a frame for receiving into the fill ring. It has twice as many entries as there are
    /// such frames, so there is always room.
    fn return_frame(&mut self, frame: u64) {
        let has_room = self.fill.put(frame);
        debug_assert!(has_room, "the fill ring has two entries for each frame");
    }

    /// Gives the kernel the frames that were lent, and the entries that named them.
    pub(super) fn end_receive(&mut self) {
        self.receive.give_back();
        self.fill.publish();
    }

    /// Takes back the frames that were sent. Answers how many may be filled now.
    pub(super) fn reclaim(&mut self) -> usize {
        while let Some(frame) = self.completion.take() {
            // `free` had room for all of them when it was made, and holds each once.
            if self.free.len() < self.tx_frame_count {
                self.free.push(frame - frame % u64::from(self.frame_bytes));
            }
        }
        self.completion.give_back();
        self.free.len().min(self.transmit.room() as usize)
    }

    /// Lends a free frame to `fill` and queues what it made of it: its length, or `None` to leave
    /// the frame free. Answers `None` if there is no frame or no room.
    pub(super) fn send<R>(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> (Option<u32>, R),
    ) -> Option<R> {
        if self.transmit.room() == 0 {
            return None;
        }
        let frame = *self.free.last()?;
        let at = usize::try_from(frame).ok()?;
        let place = self.umem.locate(at, self.frame_bytes as usize)?;
        // SAFETY: the bytes are inside of the UMEM, which is private to this process and not
        // otherwise referred to. The frame is in `free`: the kernel has completed it or never had
        // it, so nobody else touches it before `publish`; `&mut self` makes it the only slice.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), self.frame_bytes as usize) };
        let (len, answer) = fill(bytes);
        if let Some(len) = len {
            let len = len.min(self.frame_bytes);
            if self.transmit.put(xdp_desc { addr: frame, len, options: 0 }) {
                self.free.pop();
            }
        }
        Some(answer)
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
        // SAFETY: plain numbers: all zero is a value.
        let mut statistics: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        get_option(&self.fd, libc::SOL_XDP, libc::XDP_STATISTICS, &mut statistics)?;
        Ok(statistics)
    }

    /// The error that happened to the socket behind our back, if one did.
    pub(super) fn pending_error(&self) -> io::Result<i32> {
        let mut error: libc::c_int = 0;
        get_option(&self.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error)?;
        Ok(error)
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

fn set_option<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    let (value, bytes) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is of the length given and alive; the options used here take numbers and
    // structs of numbers, and the kernel reads no more than the length.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, value, bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_option<T>(
    fd: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_mut(value).cast();
    // SAFETY: the kernel writes at most `bytes` into the value, which are its own, and the options
    // used here are numbers and structs of numbers, for which any bytes are a value.
    let done = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value, &raw mut bytes) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn layouts(fd: &OwnedFd) -> io::Result<xdp_mmap_offsets> {
    // SAFETY: plain numbers: all zero is a value.
    let mut layouts: xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(fd, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, &mut layouts)?;
    Ok(layouts)
}

fn map(
    fd: &OwnedFd,
    layout: &Layout,
    offset: u64,
    ring_size: u32,
    entry_bytes: usize,
) -> io::Result<Mapping> {
    let bytes = layout.desc as usize + ring_size as usize * entry_bytes;
    Mapping::shared(fd, offset, bytes)
}
