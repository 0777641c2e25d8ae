//! Settings of loss recovery that all connections of a shard have in common.

use crate::config::Congestion;

/// What all connections of a shard have in common, in the units used here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    pub(super) rto_initial_us: u32,
    pub(super) rto_min_us: u32,
    pub(super) rto_max_us: u32,
    /// No RTO is less.
    pub(super) rto_least_us: u32,
    pub(super) initial_window: u32,
    pub(super) congestion: Congestion,
    pub(super) rack: bool,
    pub(super) tail_loss_probes: bool,
    pub(super) frto: bool,
    pub(super) slow_start_after_idle: bool,
    pub(super) slow_start_limits: bool,
}
