//! What socket options are kept here, because they say how calls on the socket behave.
//!
//! Read first: socket(7), tcp(7).

use std::time::Duration;

use crate::ports::Sharing;

/// The options of a socket that are not the stack's; a connection starts with its listener's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// SO_REUSEADDR and SO_REUSEPORT.
    pub(crate) sharing: Sharing,
    /// SO_LINGER: `None`: off.
    pub(crate) linger: Option<Duration>,
    /// SO_RCVTIMEO.
    pub(crate) receive_timeout: Option<Duration>,
    /// SO_SNDTIMEO.
    pub(crate) send_timeout: Option<Duration>,
    /// SO_RCVLOWAT in bytes, at least 1.
    pub(crate) low_water: u32,
    /// TCP_NODELAY.
    pub(crate) no_delay: bool,
}

impl Options {
    pub(crate) const DEFAULT: Self = Self {
        sharing: Sharing { address: false, port: false },
        linger: None,
        receive_timeout: None,
        send_timeout: None,
        low_water: 1,
        no_delay: false,
    };

    pub(crate) const fn low_water(&self) -> usize {
        self.low_water as usize
    }
}
