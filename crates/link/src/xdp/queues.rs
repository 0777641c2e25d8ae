//! Opening a socket for each queue: what is tried, in which order, and what is said about it.

use std::io;
use std::ops::RangeInclusive;

use super::busy::is_busy;
use super::shape::SocketShape;
use super::socket::{Copying, Socket};
use super::{XdpConfig, failed};
use crate::LinkError;

/// The sockets of an interface, bound.
pub(super) struct Opened {
    /// Each with its queue.
    pub(super) sockets: Vec<(u32, Socket)>,
    /// What is to be said of each of them.
    pub(super) queue_notes: Vec<String>,
    /// What is to be said of all.
    pub(super) notes: Vec<String>,
    /// The kernel fills in transport checksums.
    pub(super) fills_checksums: bool,
}

/// Opens a socket on each of `queues`.
pub(super) fn open(
    config: &XdpConfig,
    shape: SocketShape,
    index: u32,
    queues: RangeInclusive<u32>,
) -> Result<Opened, LinkError> {
    // At most `XDP_QUEUES_MAX`.
    let count = queues.clone().count() as u32;
    let shares = config.shares_memory && count > 1;
    let first_queue = *queues.start();
    let mut setup = QueueSetup { config, shape, index };
    let parts = if shares { count } else { 1 };
    let (first, copying, note) = setup.with_own_umem(first_queue, parts)?;
    // A driver that reads our memory itself may know nothing of metadata, and would send frames
    // without checksums: that is found out before anything is sent.
    let (first, copying, note) = if copying == Copying::None && shape.wants_metadata {
        drop(first);
        setup.shape.wants_metadata = false;
        setup.with_own_umem(first_queue, parts)?
    } else {
        (first, copying, note)
    };
    let mut notes = vec![checksums(config, &first, copying)];
    let fills_checksums = first.metadata().is_ok();
    if let Some(bytes) = shape.pieces_bytes {
        notes.push(format!("frames of up to {bytes} bytes go in several buffers (multi-buffer)"));
    }
    let mut sockets = vec![(first_queue, first)];
    let mut queue_notes = vec![note];
    let mut refusal = None;
    for (part, queue) in queues.skip(1).enumerate() {
        let (_, first) = &sockets[0];
        let shared = if shares && refusal.is_none() {
            match setup.with_shared_umem(first, queue, part as u32 + 1) {
                Ok(socket) => Some(socket),
                Err(error) if is_busy(&error) => return Err(failed(BIND, error)),
                Err(error) => {
                    refusal = Some(error);
                    None
                }
            }
        } else {
            None
        };
        let (socket, note) = match shared {
            Some(socket) => (socket, format!("queue {queue}: as queue {first_queue}")),
            None => setup.with_own_umem(queue, 1).map(|(socket, _, note)| (socket, note))?,
        };
        sockets.push((queue, socket));
        queue_notes.push(note);
    }
    notes.push(match refusal {
        _ if count == 1 => "one queue".to_owned(),
        Some(why) => format!("each queue has memory of its own; sharing it was refused: {why}"),
        None if shares => format!("{count} queues share memory"),
        None => "each queue has memory of its own, as asked".to_owned(),
    });
    Ok(Opened { sockets, queue_notes, notes, fills_checksums })
}

const BIND: &str = "bind an AF_XDP socket";

/// What is the same for all queues.
struct QueueSetup<'a> {
    config: &'a XdpConfig,
    shape: SocketShape,
    index: u32,
}

impl QueueSetup<'_> {
    /// A socket with memory of its own, for `parts` sockets.
    fn with_own_umem(
        &self,
        queue: u32,
        parts: u32,
    ) -> Result<(Socket, Copying, String), LinkError> {
        let socket = Socket::new(self.shape, parts);
        let socket = socket.map_err(|error| failed("make an AF_XDP socket", error))?;
        let bound = socket.bind(self.index, queue, self.config.zero_copy);
        let (copying, refusal) = bound.map_err(|error| self.refused(error))?;
        let note = match (copying, refusal) {
            (Copying::None, _) => format!("queue {queue}: zero-copy"),
            (Copying::Each, None) => {
                format!("queue {queue}: the kernel copies each frame, as asked")
            }
            (Copying::Each, Some(why)) => {
                format!("queue {queue}: the kernel copies each frame; zero-copy was refused: {why}")
            }
        };
        Ok((socket, copying, note))
    }

    /// A socket with a part of the memory of `first`.
    fn with_shared_umem(&self, first: &Socket, queue: u32, part: u32) -> io::Result<Socket> {
        let socket = first.sharing(part)?;
        socket.bind_shared_umem(first, self.index, queue)?;
        Ok(socket)
    }

    fn refused(&self, error: io::Error) -> LinkError {
        match (self.shape.pieces_bytes, error.raw_os_error()) {
            (Some(bytes), Some(libc::EINVAL)) => LinkError::Setting {
                setting: "frame_bytes",
                why: format!(
                    "the interface's frames of {bytes} bytes do not fit, and this kernel has none \
                     of several buffers (Linux 6.6)"
                ),
            },
            _ => failed(BIND, error),
        }
    }
}

fn checksums(config: &XdpConfig, first: &Socket, copying: Copying) -> String {
    match first.metadata() {
        Ok(()) => "transport checksums are left to the kernel, by metadata".to_owned(),
        Err(_) if !config.checksums => "transport checksums are made here, as asked".to_owned(),
        Err(Some(why)) => {
            format!("transport checksums are made here; the kernel refused metadata: {why}")
        }
        Err(None) if copying == Copying::None => "transport checksums are made here: the driver \
            does not report whether it supports metadata"
            .to_owned(),
        Err(None) => {
            "transport checksums are made here: frames of several buffers have no metadata"
                .to_owned()
        }
    }
}
