//! TCP/IP stack as a pure function of frames, commands and time.
//!
//! Frames, commands and time go in; frames and events come out. Nothing here knows a clock, a
//! thread, a system call or a source of randomness: `now`, memory and secrets are arguments. That
//! is what lets one program run the real stack on a NIC, in a simulation of many hosts, under a
//! packet script in virtual time and under a fuzzer.
//!
//! Where to start reading: [`Stack`] (its documentation lists the calls and their order), then
//! `tcp/mod.rs` for the life of a connection, `ip/mod.rs` for what carries it, `wire/mod.rs` for
//! the formats.
//!
//! Invariants
//! - A shard owns its connections, timers, pools and counters. Nothing is shared.
//! - What a peer sends never panics and never grows anything without bound: what cannot be used is
//!   dropped and counted in [`Counters`], by reason.
//! - After [`Stack::new`] nothing allocates on the way of a frame.
//! - Bytes of an application lie in its own memory, behind [`Memory`]: the stack copies each once
//!   on the way in and once on the way out, with the checksum in the same pass.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod chunk;
mod config;
mod context;
mod counters;
mod error;
mod event;
mod flow_table;
mod frame;
mod heap;
mod host_address;
mod id;
mod ip;
pub mod limits;
mod memory;
mod rate;
mod seq;
pub mod siphash;
mod slab;
mod stack;
mod table_memory;
mod tcp;
mod time;
mod udp;
mod wheel;
pub mod wire;

pub use chunk::Chunk;
pub use config::{
    AwaitedListener, Config, Congestion, LOOPBACK_ADDRESSES, Route, SynCookies, TcpConfig,
};
pub use counters::{Counters, Drop, Totals};
pub use error::{BindError, CloseReason, ConfigError, ConnectError, ListenError, OperationError};
pub use event::{Arrival, Departure, Event, Notice, Undelivered};
pub use frame::{Checksums, Medium, Received, Transmit};
pub use heap::HeapMemory;
pub use id::{BufId, ConnId, DatagramId, ListenerGroupId, ListenerId, PoolId};
pub use ip::local_peers::{LocalPeer, LocalPeerFilter};
pub use memory::Memory;
pub use seq::{SeqNum, SeqRange};
pub use stack::{ListedSocket, ListingCursor, Stack};
pub use table_memory::{IDLE_CONNECTION_BYTES, TABLES, Table, TableMemory};
pub use tcp::{
    Clocks, ConnInfo, ConnOption, ConnTimer, ConnTimerKind, Handover, Holder, ListenerGroupLimits,
    ListenerGroupUse, Reuse, Snapshot, TcpState, TcpUsage,
};
pub use time::Instant;
pub use udp::{DatagramOwner, DatagramSharing};
