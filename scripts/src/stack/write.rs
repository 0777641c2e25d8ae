//! How much of a write the send buffer takes, and when one that waits goes on.
//!
//! Read first: socket(7) on SO_SNDBUF, tcp(7) and the kernel's ip-sysctl.rst on TCP_NOTSENT_LOWAT.
//!
//! FreeBSD counts bytes. Linux fills packet buffers: one is begun as long as the queue holds less
//! than SO_SNDBUF says and less than TCP_NOTSENT_LOWAT is unsent, and then it is filled, so that
//! the last one may go beyond both. It holds what a device cuts into segments at once: whole
//! segments, up to half of the largest window that the peer has had.
//!
//! Invariants
//! - The stack's own limit lies one such buffer beyond the program's, so that that one decides.

use megapipe_stack::{ConnId, ConnInfo, ConnOption, Memory};

use super::host::Host;
use super::sockets::Stream;
use crate::dialect::Dialect;
use crate::limits::POOL_BUFFER_BYTES;
use crate::system::SystemError;

/// A writer that was blocked goes on when so much of the buffer is free: a third, as on Linux.
const WRITABLE_SHARE: u32 = 3;
/// What Linux puts into a packet buffer at most: an IP packet less the room for headers.
const BUFFER_BYTES_MAX: u32 = 65_215;
/// A window above this is not to be used up by one buffer.
const SMALL_WINDOW_BYTES: u32 = 536;

const _: () = assert!(BUFFER_BYTES_MAX <= POOL_BUFFER_BYTES);

/// By how much the last buffer may go beyond SO_SNDBUF.
pub(super) fn excess_bytes(dialect: Dialect) -> u32 {
    match dialect {
        Dialect::Linux => BUFFER_BYTES_MAX,
        Dialect::FreeBsd => 0,
    }
}

/// SO_SNDBUF as it holds for a connection.
pub(super) fn send_buffer_bytes(info: &ConnInfo, dialect: Dialect) -> u32 {
    info.send_buffer_bytes.saturating_sub(excess_bytes(dialect))
}

/// Bytes that were never sent.
pub(super) fn unsent_bytes(info: &ConnInfo) -> u32 {
    info.queued_bytes.saturating_sub(info.flight_bytes)
}

impl Stream {
    /// How much may be unsent for more to be taken.
    pub(super) fn unsent_limit_bytes(&self) -> u32 {
        let limit = self.number(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
        limit.and_then(|limit| u32::try_from(limit).ok()).filter(|&it| it > 0).unwrap_or(u32::MAX)
    }

    /// How many bytes a packet buffer holds.
    fn buffer_bytes(&self, mss: u32) -> u32 {
        let window = self.window_max_bytes;
        let part = if window > SMALL_WINDOW_BYTES { window / 2 } else { window };
        let bytes = BUFFER_BYTES_MAX.min(part);
        (bytes - bytes % mss).max(mss)
    }

    /// How much can be queued now.
    fn room_bytes(&mut self, info: &ConnInfo, dialect: Dialect) -> u32 {
        let limit = send_buffer_bytes(info, dialect);
        let free = limit.saturating_sub(info.queued_bytes);
        let unsent = unsent_bytes(info);
        let is_low = unsent < self.unsent_limit_bytes();
        if self.is_writer_blocked && (free < limit / WRITABLE_SHARE || !is_low) {
            return 0;
        }
        self.is_writer_blocked = false;
        if dialect == Dialect::FreeBsd {
            return free;
        }
        self.window_max_bytes = self.window_max_bytes.max(info.snd_wnd);
        // What has left of the last buffer can be filled again, but for one that has left whole.
        self.last_buffer_bytes = self.last_buffer_bytes.min(unsent);
        let whole = self.buffer_bytes(u32::from(info.mss).max(1));
        match self.last_buffer_bytes {
            last if last > 0 && last < whole => whole - last,
            _ if free > 0 && is_low => {
                self.last_buffer_bytes = 0;
                whole
            }
            _ => 0,
        }
    }

    /// Queues what is left of a write, as much as the send buffer has room for; how much that was.
    pub(super) fn queue(
        &mut self,
        conn: ConnId,
        bytes: &[u8],
        more: bool,
        host: &mut Host,
    ) -> Result<usize, SystemError> {
        let bytes = &bytes[self.written..];
        if bytes.is_empty() {
            return Ok(0);
        }
        self.say_more(conn, more, host)?;
        let (now, dialect) = (host.now(), host.dialect);
        let mut queued = 0;
        while queued < bytes.len() {
            let (stack, memory) = host.parts()?;
            let Ok(info) = stack.info(conn) else { break };
            let room = self.room_bytes(&info, dialect).min(POOL_BUFFER_BYTES) as usize;
            if room == 0 {
                break;
            }
            let end = bytes.len().min(queued + room);
            let Some(chunk) = memory.chunk_of(&bytes[queued..end]) else { break };
            if stack.send(now, conn, chunk, memory).is_err() {
                memory.free(chunk.buf);
                break;
            }
            self.last_buffer_bytes += u32::try_from(end - queued).unwrap_or(u32::MAX);
            queued = end;
            if queued < bytes.len() && dialect == Dialect::Linux {
                // A full buffer leaves before the next is begun.
                self.say_more(conn, true, host)?;
                host.transmit();
            }
        }
        if self.has_more != more {
            self.say_more(conn, more, host)?;
        }
        self.is_writer_blocked = queued < bytes.len();
        Ok(queued)
    }

    /// Tells the stack that what is queued next is not all, or is all again.
    fn say_more(&mut self, conn: ConnId, more: bool, host: &mut Host) -> Result<(), SystemError> {
        if more || self.has_more {
            let now = host.now();
            let (stack, memory) = host.parts()?;
            // A connection that is over tells so itself.
            let _ = stack.set_option(now, conn, ConnOption::More(more), memory);
            self.has_more = more;
        }
        Ok(())
    }
}
