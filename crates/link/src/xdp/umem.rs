//! The memory that frames lie in, registered with the kernel: once for all queues of an interface,
//! or once for each.
//!
//! Read first: the kernel's `Documentation/networking/af_xdp.rst`, "UMEM" and "Shared UMEM";
//! `xsk-tx-metadata.rst`.
//!
//! Invariants
//! - Each socket has a part of its own, and a frame stays in its part: sockets that share memory
//!   share nothing that changes, and may belong to different threads.

use std::io;
use std::os::fd::OwnedFd;

use libc::xdp_umem_reg;

use super::mapping::RingMapping;
use super::shape::SocketShape;
use crate::socket_option::set_option_with_memory;

/// Bytes before a frame that tell the driver what is left to it: those of `struct xsk_tx_metadata`,
/// rounded up. Has to be a multiple of 8 below 256.
const METADATA_BYTES: u32 = 32;
const _: () = assert!(METADATA_BYTES as usize >= size_of::<libc::xsk_tx_metadata>());

/// Registered memory.
#[derive(Debug)]
pub(super) struct Umem {
    pub(super) memory: RingMapping,
    /// Bytes before each frame that is sent; 0: the kernel knows no such metadata, or none is
    /// wanted.
    pub(super) metadata_bytes: u32,
    /// Why there is none although it was wanted.
    pub(super) refusal: Option<io::Error>,
}

impl Umem {
    /// Memory for `parts` sockets, which `fd` registers.
    pub(super) fn register(fd: &OwnedFd, shape: SocketShape, parts: u32) -> io::Result<Self> {
        let chunk_count = parts as usize * shape.chunk_count() as usize;
        let memory = RingMapping::anonymous(chunk_count * shape.frame_bytes as usize)?;
        let base = memory.locate(0, memory.bytes()).ok_or(io::ErrorKind::InvalidData)?;
        let plain = xdp_umem_reg {
            addr: base.as_ptr().expose_provenance() as u64,
            len: memory.bytes() as u64,
            chunk_size: shape.frame_bytes,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        // SAFETY: the record names the mapping, which goes into the `Umem` that a socket keeps for
        // as long as it has frames (`socket.rs`: "the socket goes before its memory").
        let announce = |fd: &OwnedFd, record: &xdp_umem_reg| unsafe {
            set_option_with_memory(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, record)
        };
        let mut refusal = None;
        if shape.wants_metadata {
            // A kernel that knows the flag looks at the length; others refuse the flag, and do not
            // look.
            let flags = libc::XDP_UMEM_TX_METADATA_LEN;
            let with = xdp_umem_reg { flags, tx_metadata_len: METADATA_BYTES, ..plain };
            match announce(fd, &with) {
                Ok(()) => return Ok(Self { memory, metadata_bytes: METADATA_BYTES, refusal }),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        announce(fd, &plain)?;
        Ok(Self { memory, metadata_bytes: 0, refusal })
    }
}

/// Asks for the transport checksum in the metadata before a frame: what is summed begins at
/// `start`, counted from the frame, and the field is at `field` from there. The layout is that of
/// `struct xsk_tx_metadata`.
pub(super) fn ask_for_checksum(metadata: &mut [u8], (start, field): (u16, u16)) {
    metadata.fill(0);
    let flags = u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes();
    for (at, bytes) in [(0, &flags[..]), (8, &start.to_ne_bytes()), (10, &field.to_ne_bytes())] {
        if let Some(room) = metadata.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }
}
