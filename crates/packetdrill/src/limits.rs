//! Every bound of the plug-in, in one place.

use std::time::Duration;

/// Virtual time after which `netdev_receive` fails.
pub(crate) const RECEIVE_TIME: Duration = Duration::from_secs(10);
/// Real time that the program gets to note when a call of its second thread was over.
pub(crate) const NOTE_TIME: Duration = Duration::from_millis(1);
/// What the world's clock shows in the beginning, in microseconds since 1970: any time will do, as
/// long as a difference to another of its times is a length.
pub(crate) const EPOCH_US: u64 = 1_700_000_000_000_000;
