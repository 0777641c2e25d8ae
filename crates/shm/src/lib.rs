//! What can two cores, or two processes, both see?
//!
//! | type | what it is |
//! |---|---|
//! | [`Region`] | memory: on the heap, or a sealed memfd that another process maps |
//! | [`RegionParts`] | hands out the parts of a region: each once, so that none overlap |
//! | [`BufferArea`] | buffers of one size in a region, as bytes that both ends copy |
//! | [`Pool`] | buffers of one size in a region, with an owner who alone knows which are free |
//! | [`Producer`], [`Consumer`] | the ends of a ring of records in a region |
//! | [`BipProducer`], [`BipConsumer`] | the ends of a bip buffer: strings of bytes |
//! | [`BiasOwner`], [`Revoker`] | the ends of a lock that is cheap for one of two threads |
//! | [`ThreadBinding`] | the thread that changes data without locked instructions |
//! | [`Sleeper`], [`Ringer`] | the ends of a doorbell, for when one of them has nothing to do |
//! | [`record`] | what those records say, checked once at the border |
//!
//! Threads that a library starts to be at the other end take no signals ([`without_signals`]).
//!
//! Bytes go in and come out by copies ([`copy_in`], [`copy_out`]); records go through rings, in
//! batches.
//!
//! Read first: `region.rs`, then `ring.rs`; `docs/UNSAFE.md`, "Memory that another process writes".
//!
//! Invariants
//! - Whatever the other end writes into shared memory, at any time, it gets no panic, no access out
//!   of bounds and no undefined behaviour out of us: at worst an error that names what is wrong and
//!   ends the session with it.
//! - What must be right (which buffers are free, an end's own index) lies in private memory.
//! - Nothing allocates after a region, pool or ring was made.
//! - This crate is the only home of atomics that two cores share, and depends on no other of ours.

#![cfg_attr(loom, allow(dead_code, reason = "the models use a part of the crate"))]

#[cfg(not(loom))]
mod area;
mod atomics;
mod bias;
#[cfg(not(loom))]
mod biased_cell;
mod biased_lock;
#[cfg(not(loom))]
mod biased_mutex;
#[cfg(not(loom))]
mod bip_buffer;
mod bytes;
mod cursor;
#[cfg(not(loom))]
mod doorbell;
pub mod limits;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
pub mod record;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod signals;
mod thread_binding;
mod wakeup;

#[cfg(not(loom))]
pub use area::{BufferArea, PoolError, PoolLayout};
#[cfg(not(loom))]
pub use biased_cell::{BiasOwner, Owned, Revoked, Revoker, biased};
#[cfg(not(loom))]
pub use biased_mutex::{BiasedGuard, BiasedMutex};
#[cfg(not(loom))]
pub use bip_buffer::{BipConsumer, BipError, BipProducer, bip_buffer};
pub use bytes::{Plain, copy_in, copy_out, expect_line, expect_line_to_write};
pub use cursor::RingFault;
#[cfg(not(loom))]
pub use doorbell::{DoorbellError, Ringer, Sleeper, bell_sockets, doorbell};
#[cfg(not(loom))]
pub use pool::{BufError, BufId, Pool};
#[cfg(not(loom))]
pub use region::{OutOfRegion, Region, RegionError, RegionParts, seal_region};
#[cfg(not(loom))]
pub use ring::{Consumer, Producer, RingError, RingFull, ring, ring_bytes};
#[cfg(not(loom))]
pub use signals::without_signals;
pub use thread_binding::ThreadBinding;
