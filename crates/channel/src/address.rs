//! Where a socket is: IPv4, IPv6 or UNIX.
//!
//! The text forms are those of the command line: `127.0.0.1:80`, `[::1]:80`, `unix:/run/x.sock`,
//! `unix:@abstract`.

pub(crate) mod sockaddr;

use std::ffi::OsStr;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// The longest path or abstract name that fits into a `sockaddr_un`, without its NUL.
pub(crate) const UNIX_NAME_MAX: usize = 107;

/// A socket's address.
///
/// # Examples
/// ```
/// use megapipe::Address;
///
/// let http: Address = "127.0.0.1:80".parse()?;
/// assert_eq!(http.as_inet().map(|inet| inet.port()), Some(80));
/// let local: Address = "unix:/run/megapipe.sock".parse()?;
/// assert_eq!(local, Address::unix("/run/megapipe.sock")?);
/// # Ok::<(), megapipe::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6 address and port.
    Inet(SocketAddr),
    /// A UNIX socket.
    Unix(UnixAddress),
}

/// A UNIX socket's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum UnixAddress {
    /// In the file system.
    Path(PathBuf),
    /// In Linux's abstract name space, without the leading NUL.
    Abstract(Vec<u8>),
    /// Not bound.
    Unnamed,
}

/// Why a text is no address.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum AddressError {
    /// Neither `IP:PORT` nor `unix:…`.
    #[error("expected IP:PORT, [IPv6]:PORT, localhost:PORT, unix:/path or unix:@name")]
    Syntax,
    /// A UNIX name of no or too many bytes.
    #[error("a UNIX socket's name has 1 to 107 bytes, without NUL")]
    UnixName,
}

crate::error_chain::debug_with_causes!(AddressError);

impl Address {
    /// A UNIX socket in the file system.
    ///
    /// # Errors
    /// [`AddressError::UnixName`] if the path is empty, contains a NUL or has over 107 bytes.
    pub fn unix(path: impl AsRef<Path>) -> Result<Self, AddressError> {
        let path = path.as_ref();
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.len() > UNIX_NAME_MAX || bytes.contains(&0) {
            return Err(AddressError::UnixName);
        }
        Ok(Self::Unix(UnixAddress::Path(path.to_owned())))
    }

    /// The IP address and port, if it is one.
    #[must_use]
    pub fn as_inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Inet(address)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(name) => match name.strip_prefix('@') {
                Some(name) if name.is_empty() || name.len() > UNIX_NAME_MAX => {
                    Err(AddressError::UnixName)
                }
                Some(name) => Ok(Self::Unix(UnixAddress::Abstract(name.into()))),
                None => Self::unix(OsStr::new(name)),
            },
            None => {
                let port = text.strip_prefix("localhost:").map(str::parse::<u16>);
                let inet = match port {
                    Some(port) => port.map(|port| (Ipv4Addr::LOCALHOST, port).into()).ok(),
                    None => text.parse().ok(),
                };
                inet.map(Self::Inet).ok_or(AddressError::Syntax)
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(UnixAddress::Path(path)) => write!(f, "unix:{}", path.display()),
            Self::Unix(UnixAddress::Abstract(name)) => {
                write!(f, "unix:@{}", name.escape_ascii())
            }
            Self::Unix(UnixAddress::Unnamed) => f.write_str("unix:(unnamed)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_round_trip() {
        for text in ["127.0.0.1:80", "[::1]:8080", "unix:/run/mp.sock", "unix:@mp"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let localhost: Address = "localhost:80".parse().unwrap();
        assert_eq!(localhost.to_string(), "127.0.0.1:80");
        for wrong in ["", "80", "localhost", "localhost:x", "unix:", "unix:@", "127.0.0.1:70000"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
        let long = format!("unix:/{}", "x".repeat(UNIX_NAME_MAX));
        assert_eq!(long.parse::<Address>(), Err(AddressError::UnixName));
    }
}
