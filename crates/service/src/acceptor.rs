//! Names of acceptors and connection managers, as messages between servers carry them.

use std::fmt;

/// Identifies an acceptor (a handle of some channel) within its connection manager. The server's
/// users choose the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcceptorId(pub u64);

/// Identifies a connection manager: its index among those of the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ManagerId(pub u16);

/// Identifies an acceptor among those of all connection managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AcceptorName {
    /// The connection manager that the acceptor enlisted with.
    pub manager: ManagerId,
    /// Its number there.
    pub id: AcceptorId,
    /// How many times that manager had enlisted an acceptor before this one. A message about an
    /// earlier enlistment of the same acceptor thus changes nothing.
    pub enlistment: u32,
}

impl AcceptorName {
    /// Whether both names are of one acceptor, of whichever enlistment.
    #[must_use]
    pub fn is_same(self, other: Self) -> bool {
        (self.manager, self.id) == (other.manager, other.id)
    }
}

impl fmt::Display for AcceptorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}#{}", self.manager.0, self.id.0, self.enlistment)
    }
}
