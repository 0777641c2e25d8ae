//! Identifiers of connections, listeners, endpoints, buffers and pools.
//!
//! Invariant: an id with a generation never names a later object in the same place.

/// A connection. `index` is dense, from 0; an application may keep an array by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Place in the shard's table.
    pub index: u32,
    /// Which of the connections that ever were in that place.
    pub generation: u32,
}

/// A listener. `index` is dense, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId {
    /// Place in the shard's table.
    pub index: u32,
    /// Which of the listeners that ever were in that place.
    pub generation: u32,
}

/// Listeners that share limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerGroupId(pub(crate) u16);

/// A UDP endpoint. `index` is dense, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatagramId {
    /// Place in the shard's table.
    pub index: u32,
    /// Which of the endpoints that ever were in that place.
    pub generation: u32,
}

/// A buffer of some application's memory; only [`crate::Memory`] knows where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufId(pub u32);

/// Pool for received bytes: one of each application, and one of each listener for connections that
/// are not yet accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PoolId(pub u16);
