//! Where the daemon of the back end `service` listens.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use megapipe_service::attach::SERVICE_PATH;

/// The path of the daemon's control socket.
///
/// ```
/// use megapipe::ServiceAddress;
///
/// let address = ServiceAddress::new("/run/user/1000/megapiped.sock");
/// assert_eq!(address.path().to_str(), Some("/run/user/1000/megapiped.sock"));
/// ```
#[derive(Debug, Clone)]
pub struct ServiceAddress {
    path: PathBuf,
    token: Option<Arc<OwnedFd>>,
}

impl PartialEq for ServiceAddress {
    fn eq(&self, other: &Self) -> bool {
        let number = |it: &Self| it.token.as_ref().map(|token| token.as_raw_fd());
        self.path == other.path && number(self) == number(other)
    }
}

impl Eq for ServiceAddress {}

impl ServiceAddress {
    /// The daemon that listens at a path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), token: None }
    }

    /// Attaches by a token: the other end of a socket that the daemon was given
    /// ([`crate::Daemon::add_token`]). The path is for messages then.
    #[must_use]
    pub fn with_token(self, token: OwnedFd) -> Self {
        Self { token: Some(Arc::new(token)), ..self }
    }

    pub(super) fn token(&self) -> Option<BorrowedFd<'_>> {
        self.token.as_deref().map(AsFd::as_fd)
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The path of a daemon that is started without another one: `/run/megapipe/megapiped.sock`.
impl Default for ServiceAddress {
    fn default() -> Self {
        Self::new(SERVICE_PATH)
    }
}
