//! Where the daemon of the back end `service` listens.

use std::path::{Path, PathBuf};

use megapipe_service::attach::SERVICE_PATH;

/// The path of the daemon's control socket.
///
/// ```
/// use megapipe::ServiceAddress;
///
/// let address = ServiceAddress::new("/run/user/1000/megapiped.sock");
/// assert_eq!(address.path().to_str(), Some("/run/user/1000/megapiped.sock"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAddress(PathBuf);

impl ServiceAddress {
    /// The daemon that listens at a path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// The path of a daemon that is started without another one: `/run/megapipe/megapiped.sock`.
impl Default for ServiceAddress {
    fn default() -> Self {
        Self::new(SERVICE_PATH)
    }
}
