//! What the tables of a stack cost: how much memory each has set aside, and how much of it was
//! touched.
//!
//! Memory is set aside when the stack is made, and costs addresses alone until it is touched: a
//! table for a million connections that never has more than a thousand stays small. What was
//! touched once stays. Bytes are counted as the tables have them; the system gives whole pages.

/// The tables of a stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Table {
    /// Connections, embryonic ones and those in TIME-WAIT not counted.
    Connections,
    /// Which places of the table of connections are free.
    Places,
    /// Transmit and event lists.
    Lists,
    /// When each has to be looked at.
    Wheel,
    /// Flow table.
    Flows,
    /// Connections of which only the SYN has come.
    HalfOpen,
    /// Connections that wait for their old segments to die.
    TimeWaits,
    /// Chunks in queues.
    Chunks,
    /// What is in flight.
    Records,
    /// What lies behind gaps, of connections that have some.
    Gaps,
    /// Losses and full windows, of connections that have met them.
    Stresses,
    /// What few connections need.
    Rares,
}

/// What a table costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableMemory {
    /// Which one.
    pub table: Table,
    /// Bytes set aside.
    pub reserved_bytes: usize,
    /// Bytes of these that were ever used.
    pub touched_bytes: usize,
}

/// How many tables there are.
pub const TABLES: usize = 12;

/// Most bytes that a connection costs which does nothing, and has met nothing unusual: its share
/// of the tables, if these are full.
pub const IDLE_CONNECTION_BYTES: usize = crate::tcp::IDLE_CONNECTION_BYTES;

impl Table {
    /// Every connection has its share of it; of the others only those that need one.
    #[must_use]
    pub const fn is_everyones(self) -> bool {
        matches!(self, Self::Connections | Self::Places | Self::Lists | Self::Wheel | Self::Flows)
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Places => "places",
            Self::Lists => "lists",
            Self::Wheel => "wheel",
            Self::Flows => "flow table",
            Self::HalfOpen => "half-open",
            Self::TimeWaits => "TIME-WAIT",
            Self::Chunks => "chunks",
            Self::Records => "records",
            Self::Gaps => "gaps",
            Self::Stresses => "stresses",
            Self::Rares => "rares",
        }
    }
}
