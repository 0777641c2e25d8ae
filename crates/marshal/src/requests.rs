//! ioctl(2): what a request does with the int that its argument points to.
//!
//! Read first: ioctl_list(2), tcp(7).

use libc::c_ulong;
use megapipe_sockets::{SIOCATMARK, SIOCOUTQNSD};

/// The int that an argument of ioctl(2) points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntArgument {
    /// The request has none. An argument that is ignored may have any value.
    Ignored,
    /// It is read.
    Read,
    /// It is written.
    Written,
}

impl IntArgument {
    /// Of a request that sockets of the stack have, or of another one.
    ///
    /// # Examples
    /// ```
    /// use megapipe_marshal::IntArgument;
    ///
    /// assert_eq!(IntArgument::of(libc::FIONBIO), IntArgument::Read);
    /// assert_eq!(IntArgument::of(libc::FIONREAD), IntArgument::Written);
    /// assert_eq!(IntArgument::of(libc::FIOCLEX), IntArgument::Ignored);
    /// ```
    #[must_use]
    pub const fn of(request: c_ulong) -> Self {
        match request {
            libc::FIONBIO => Self::Read,
            libc::FIONREAD | libc::TIOCOUTQ | SIOCATMARK | SIOCOUTQNSD => Self::Written,
            _ => Self::Ignored,
        }
    }
}
