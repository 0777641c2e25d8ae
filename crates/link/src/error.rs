//! Errors of links.

use std::io;

/// Why a link failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, in words.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The other end is gone: the interface was deleted, the memif peer disconnected.
    #[error("{driver}: the other end is gone")]
    Gone {
        /// The driver's name.
        driver: &'static str,
    },
    /// The link cannot be had on this machine; the text says what is missing.
    #[error("{driver} is unavailable: {why}")]
    Unavailable {
        /// The driver's name.
        driver: &'static str,
        /// What is missing, and how to get it.
        why: String,
    },
    /// Another program has it, which may end.
    #[error("{driver} is unavailable: {why}")]
    InUse {
        /// The driver's name.
        driver: &'static str,
        /// What is in use.
        why: String,
    },
    /// A setting is out of range or contradicts another.
    #[error("{setting}: {why}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl LinkError {
    /// Whether another program has the link, so that a later attempt may succeed.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        use io::ErrorKind::{AddrInUse, ResourceBusy};
        match self {
            Self::InUse { .. } => true,
            Self::Io { source, .. } => matches!(source.kind(), AddrInUse | ResourceBusy),
            Self::Gone { .. } | Self::Unavailable { .. } | Self::Setting { .. } => false,
        }
    }
}
