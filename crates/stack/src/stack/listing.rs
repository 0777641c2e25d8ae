//! Lists the sockets of a stack, a bounded number of places at a time.
//!
//! A listing is no snapshot: between two calls sockets may come and go. One that exists throughout
//! is listed exactly once.

use core::net::SocketAddr;

use super::Stack;
use crate::id::{ConnId, DatagramId, ListenerId};
use crate::tcp::ConnTimer;
use crate::time::Instant;

/// A socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedSocket {
    /// A listener.
    Listener {
        /// Its name.
        id: ListenerId,
        /// Where it listens.
        local: SocketAddr,
        /// Connections that are established and not reported.
        waiting: u32,
        /// Most of them.
        backlog: u32,
        /// Handshakes of which only the SYN has come.
        half_open: u32,
        /// Connections that may be reported at once.
        credit: u32,
    },
    /// An endpoint for datagrams.
    Endpoint {
        /// Its name.
        id: DatagramId,
        /// Where it is.
        local: SocketAddr,
        /// The only peer that it hears; `None`: any.
        peer: Option<SocketAddr>,
        /// Datagrams that were not taken yet.
        received: u32,
        /// Datagrams that wait to be sent.
        sending: u32,
    },
    /// A connection; [`Stack::info`] has its state.
    Conn {
        /// Its name.
        id: ConnId,
        /// Our end.
        local: SocketAddr,
        /// The peer's.
        remote: SocketAddr,
    },
    /// A handshake of which only the SYN has come.
    HalfOpen {
        /// Our end.
        local: SocketAddr,
        /// The peer's.
        remote: SocketAddr,
    },
    /// What is left of a connection in TIME-WAIT.
    TimeWait {
        /// Our end.
        local: SocketAddr,
        /// The peer's.
        remote: SocketAddr,
        /// When nothing is left.
        ends_at: Instant,
    },
}

/// The tables of sockets, in the order in which they are listed.
const TABLE_COUNT: u32 = 5;

/// Where a listing continues. The default is its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ListingCursor {
    table: u32,
    index: u32,
}

impl ListingCursor {
    /// As a number, which grows as the listing goes on.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.table as u64) << 32 | self.index as u64
    }

    /// Any number is a place to continue at.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { table: (bits >> 32) as u32, index: bits as u32 }
    }
}

impl Stack {
    /// Calls `each` with the sockets from `from` on, in at most `slots_max` places of the tables
    /// and until `each` returns `false`. Returns where to continue; `None`: that was all.
    pub fn list_sockets(
        &self,
        from: ListingCursor,
        slots_max: u32,
        mut each: impl FnMut(ListedSocket) -> bool,
    ) -> Option<ListingCursor> {
        let ListingCursor { mut table, mut index } = from;
        let mut left = slots_max;
        while table < TABLE_COUNT {
            let end = self.slots(table);
            while index < end {
                if left == 0 {
                    return Some(ListingCursor { table, index });
                }
                left -= 1;
                let listed = self.listed(table, index);
                index += 1;
                if listed.is_some_and(|socket| !each(socket)) {
                    return Some(ListingCursor { table, index });
                }
            }
            (table, index) = (table + 1, 0);
        }
        None
    }

    /// The timer of a connection that expires next, as seen from `now`. `None`: none runs, or the
    /// id is stale.
    #[must_use]
    pub fn conn_timer(&self, now: Instant, conn: ConnId) -> Option<ConnTimer> {
        self.tcp.timer(conn, now)
    }

    fn slots(&self, table: u32) -> u32 {
        match table {
            0 => self.tcp.listener_slots(),
            1 => self.udp.slots(),
            2 => self.tcp.conn_slots(),
            3 => self.tcp.half_open_slots(),
            _ => self.tcp.time_wait_slots(),
        }
    }

    /// What is in a place of a table, below its number of places.
    fn listed(&self, table: u32, index: u32) -> Option<ListedSocket> {
        Some(match table {
            0 => {
                let (id, listener) = self.tcp.listener_at(index)?;
                ListedSocket::Listener {
                    id,
                    local: listener.local,
                    waiting: listener.waiting.len() as u32,
                    backlog: listener.backlog,
                    half_open: listener.half_open,
                    credit: listener.credit,
                }
            }
            1 => {
                let (id, (local, peer), (received, sending)) = self.udp.endpoint_at(index)?;
                ListedSocket::Endpoint { id, local, peer, received, sending }
            }
            2 => {
                let (id, local, remote) = self.tcp.conn_at(index)?;
                ListedSocket::Conn { id, local, remote }
            }
            3 => {
                let (local, remote) = self.tcp.half_open_at(index)?;
                ListedSocket::HalfOpen { local, remote }
            }
            _ => {
                let ((local, remote), ends_at) = self.tcp.time_wait_at(index, self.now)?;
                ListedSocket::TimeWait { local, remote, ends_at }
            }
        })
    }
}
