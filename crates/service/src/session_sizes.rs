//! Sizes of a session's region, which both ends agree on and compute every offset from.
//!
//! Read first: `remote/session_region.rs`, for what lies in the region.
//!
//! Invariant: sizes that pass [`SessionSizes::check`] fit a region, and no sum of them overflows.

use megapipe_shm::limits::{BELL_BYTES, BUF_BYTES_MAX, BUF_BYTES_MIN};
use megapipe_shm::record::Record;
use megapipe_shm::{PoolLayout, ring_bytes};

use crate::limits::{
    CALL_BYTES, COMPLETIONS_MAX, FIRST_BUFFER_BYTES, LANES_MAX, LARGE_SEND_BYTES, LARGE_SENDS,
    OPS_MAX, RECEIVE_BUFFERS_MAX, SESSION_BYTES_MAX, SESSION_EVENTS, SESSION_OPS, SMALL_SEND_BYTES,
    SMALL_SENDS,
};

/// Tags of the pools in a session's region.
pub(crate) const RECEIVES: u16 = 0;
pub(crate) const SMALL: u16 = 1;
pub(crate) const LARGE: u16 = 2;
pub(crate) const CALLS: u16 = 3;

/// What two ends agree on when a session begins: records of its rings, and buffers of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionSizes {
    /// Records of the ring of ops, a power of two.
    pub ops: u32,
    /// Records of the ring of events, a power of two.
    pub events: u32,
    /// Bytes of a receive buffer.
    pub receive_bytes: u32,
    /// Receive buffers.
    pub receive_buffers: u32,
    /// Send buffers of [`SMALL_SEND_BYTES`].
    pub small_sends: u32,
    /// Send buffers of [`LARGE_SEND_BYTES`].
    pub large_sends: u32,
}

/// A size of a session that is out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{name} = {value} is outside {min}..={max}")]
pub struct SizeOutOfRange {
    /// The size's name.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The least that is allowed.
    pub min: u64,
    /// The most.
    pub max: u64,
}

impl SessionSizes {
    /// The least of everything.
    pub const LEAST: Self = Self {
        ops: SESSION_OPS.0,
        events: SESSION_EVENTS.0,
        receive_bytes: BUF_BYTES_MIN as u32,
        receive_buffers: 1,
        small_sends: 1,
        large_sends: 1,
    };

    /// Those of a session between two threads: the most of everything but receive buffers.
    #[must_use]
    pub const fn of(receive_bytes: usize, receive_buffers: u32) -> Self {
        let count = receive_buffers;
        Self {
            ops: OPS_MAX,
            events: COMPLETIONS_MAX,
            receive_bytes: receive_bytes as u32,
            receive_buffers: if count < RECEIVE_BUFFERS_MAX { count } else { RECEIVE_BUFFERS_MAX },
            small_sends: SMALL_SENDS,
            large_sends: LARGE_SENDS,
        }
    }

    /// Checks each size, and those of a region of one lane.
    ///
    /// # Errors
    /// [`SizeOutOfRange`] names the first that is out of range.
    pub fn check(&self) -> Result<(), SizeOutOfRange> {
        self.check_lanes(1)
    }

    /// Checks each size, the number of lanes, and the size of their region.
    ///
    /// # Errors
    /// As [`SessionSizes::check`].
    pub fn check_lanes(&self, lanes: u16) -> Result<(), SizeOutOfRange> {
        let bytes = (BUF_BYTES_MIN as u64, BUF_BYTES_MAX as u64);
        let rings = [("ops", self.ops, SESSION_OPS), ("events", self.events, SESSION_EVENTS)];
        for (name, value, (min, max)) in rings {
            if !value.is_power_of_two() || value < min || value > max {
                let (value, min, max) = (value.into(), min.into(), max.into());
                return Err(SizeOutOfRange { name, value, min, max });
            }
        }
        for (name, value, (min, max)) in [
            ("lanes", lanes.into(), (1, LANES_MAX.into())),
            ("receive_bytes", self.receive_bytes.into(), bytes),
            ("receive_buffers", self.receive_buffers.into(), (1, RECEIVE_BUFFERS_MAX.into())),
            ("small_sends", self.small_sends.into(), (1, SMALL_SENDS.into())),
            ("large_sends", self.large_sends.into(), (1, LARGE_SENDS.into())),
        ] {
            if value < min || value > max {
                return Err(SizeOutOfRange { name, value, min, max });
            }
        }
        // No sum overflows: each factor is in its range.
        let (value, max) = (self.bytes_of(lanes) as u64, SESSION_BYTES_MAX as u64);
        if value > max {
            return Err(SizeOutOfRange { name: "bytes", value, min: 0, max });
        }
        Ok(())
    }

    pub(crate) const fn receives(&self) -> PoolLayout {
        let buf_bytes = self.receive_bytes as usize;
        PoolLayout { buf_bytes, count: self.receive_buffers, tag: RECEIVES }
    }

    pub(crate) const fn small(&self) -> PoolLayout {
        PoolLayout { buf_bytes: SMALL_SEND_BYTES, count: self.small_sends, tag: SMALL }
    }

    pub(crate) const fn large(&self) -> PoolLayout {
        PoolLayout { buf_bytes: LARGE_SEND_BYTES, count: self.large_sends, tag: LARGE }
    }

    pub(crate) const fn calls() -> PoolLayout {
        PoolLayout { buf_bytes: CALL_BYTES, count: 1, tag: CALLS }
    }

    /// Bytes that are touched when the region is created: rings, bells, and the first of the
    /// receive buffers behind them.
    pub(crate) const fn touched_bytes(&self) -> usize {
        self.rings_bytes() + FIRST_BUFFER_BYTES
    }

    const fn rings_bytes(&self) -> usize {
        ring_bytes::<Record>(self.ops) + ring_bytes::<Record>(self.events) + 2 * BELL_BYTES
    }

    /// Bytes of the region.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes_of(1)
    }

    /// Where a lane begins in the region. The first one has the bell of the application.
    pub(crate) const fn lane_offset(&self, lane: u16) -> usize {
        if lane == 0 { 0 } else { self.bytes_of(lane) }
    }

    /// Bytes of the region of so many lanes, at least 1.
    pub(crate) const fn bytes_of(&self, lanes: u16) -> usize {
        let sends = self.small().bytes() + self.large().bytes();
        let lane = self.rings_bytes() + self.receives().bytes() + sends + Self::calls().bytes();
        lane + (lane - BELL_BYTES) * (lanes as usize - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_out_of_range_are_named() {
        assert_eq!(SessionSizes::LEAST.check(), Ok(()));
        let good = SessionSizes::LEAST;
        for (sizes, name) in [
            (SessionSizes { ops: 0, ..good }, "ops"),
            (SessionSizes { ops: SESSION_OPS.1 - 1, ..good }, "ops"),
            (SessionSizes { ops: SESSION_OPS.1 * 2, ..good }, "ops"),
            (SessionSizes { events: 1 << 31, ..good }, "events"),
            (SessionSizes { receive_bytes: 63, ..good }, "receive_bytes"),
            (SessionSizes { receive_bytes: u32::MAX, ..good }, "receive_bytes"),
            (SessionSizes { receive_buffers: 0, ..good }, "receive_buffers"),
            (SessionSizes { receive_buffers: u32::MAX, ..good }, "receive_buffers"),
            (SessionSizes { small_sends: 0, ..good }, "small_sends"),
            (SessionSizes { large_sends: LARGE_SENDS + 1, ..good }, "large_sends"),
            (SessionSizes { receive_bytes: 1 << 24, receive_buffers: 1 << 20, ..good }, "bytes"),
        ] {
            let refused = sizes.check().expect_err("out of range");
            assert_eq!(refused.name, name, "{sizes:?}");
            assert!(refused.to_string().contains(name));
        }
    }
}
