//! Cause of a rejected argument.

use megapipe_sockets::Error;

/// Why an argument of a C caller was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A pointer is null where memory is needed (EFAULT).
    #[error("{0} is a null pointer")]
    Null(&'static str),
    /// A value is out of its range (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The error of a socket call that fits.
    #[error(transparent)]
    Socket(#[from] Error),
}

impl From<ArgumentError> for Error {
    fn from(error: ArgumentError) -> Self {
        match error {
            ArgumentError::Null(_) => Self::Fault,
            ArgumentError::Invalid(_) => Self::InvalidArgument,
            ArgumentError::Socket(error) => error,
        }
    }
}
