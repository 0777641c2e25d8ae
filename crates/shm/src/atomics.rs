//! The atomics that the ring and the doorbell are built on: the standard ones, or loom's.
//!
//! With `--cfg loom` the same code runs under loom, which tries every order of threads and every
//! value that a load may return under the orderings that the code asks for.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
