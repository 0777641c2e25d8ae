//! Times as explain's JSON has them.

use std::time::Duration;

/// Seconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64()
}

/// Microseconds.
pub(super) fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
