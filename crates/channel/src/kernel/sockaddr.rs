//! Addresses as the kernel writes them, built and read byte by byte.
//!
//! Read first: ip(7), ipv6(7), unix(7) for the layouts.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::address::{Address, UnixAddress};

/// The size of `sockaddr_storage`.
pub(crate) const SOCKADDR_BYTES: usize = 128;

const FAMILY_BYTES: usize = 2;

/// A `sockaddr_storage` with its length.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct RawAddress {
    pub(crate) bytes: [u8; SOCKADDR_BYTES],
    pub(crate) len: u32,
}

impl RawAddress {
    /// Room for an address that the kernel writes.
    pub(crate) const EMPTY: Self = Self { bytes: [0; SOCKADDR_BYTES], len: SOCKADDR_BYTES as u32 };

    /// `AF_UNSPEC`: connecting to it dissolves a connection (connect(2)).
    pub(crate) const UNSPECIFIED: Self = Self { bytes: [0; SOCKADDR_BYTES], len: 16 };

    pub(crate) fn new(address: &Address) -> Self {
        let mut raw = Self::EMPTY;
        match address {
            Address::Inet(SocketAddr::V4(v4)) => {
                raw.put(0, &(libc::AF_INET as u16).to_ne_bytes());
                raw.put(2, &v4.port().to_be_bytes());
                raw.put(4, &v4.ip().octets());
                raw.len = 16;
            }
            Address::Inet(SocketAddr::V6(v6)) => {
                raw.put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                raw.put(2, &v6.port().to_be_bytes());
                raw.put(4, &v6.flowinfo().to_be_bytes());
                raw.put(8, &v6.ip().octets());
                raw.put(24, &v6.scope_id().to_ne_bytes());
                raw.len = 28;
            }
            Address::Unix(unix) => {
                raw.put(0, &(libc::AF_UNIX as u16).to_ne_bytes());
                raw.len = FAMILY_BYTES as u32 + raw.put_unix_name(unix);
            }
        }
        raw
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_unix_name(&mut self, unix: &UnixAddress) -> u32 {
        match unix {
            UnixAddress::Path(path) => {
                let name = path.as_os_str().as_bytes();
                self.put(FAMILY_BYTES, name);
                // The terminating NUL counts.
                name.len() as u32 + 1
            }
            UnixAddress::Abstract(name) => {
                self.put(FAMILY_BYTES + 1, name);
                name.len() as u32 + 1
            }
            UnixAddress::Unnamed => 0,
        }
    }

    /// The address that the kernel wrote; `None` for no address or a family not known here.
    pub(crate) fn to_address(self) -> Option<Address> {
        let len = (self.len as usize).min(SOCKADDR_BYTES);
        let family = i32::from(u16::from_ne_bytes(self.array::<2>(0)));
        match family {
            libc::AF_INET if len >= 8 => {
                let port = u16::from_be_bytes(self.array(2));
                let ip = IpAddr::V4(Ipv4Addr::from(self.array::<4>(4)));
                Some(Address::Inet(SocketAddr::new(ip, port)))
            }
            libc::AF_INET6 if len >= 28 => Some(Address::Inet(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(self.array::<16>(8)),
                u16::from_be_bytes(self.array(2)),
                u32::from_be_bytes(self.array(4)),
                u32::from_ne_bytes(self.array(24)),
            )))),
            libc::AF_UNIX if len >= FAMILY_BYTES => {
                Some(Address::Unix(unix_name(&self.bytes[FAMILY_BYTES..len])))
            }
            _ => None,
        }
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.bytes[at..at + N]);
        bytes
    }
}

fn unix_name(name: &[u8]) -> UnixAddress {
    match name {
        [] => UnixAddress::Unnamed,
        [0] => UnixAddress::Unnamed,
        [0, rest @ ..] => UnixAddress::Abstract(rest.to_vec()),
        path => {
            let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
            UnixAddress::Path(PathBuf::from(OsStr::from_bytes(&path[..end])))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let texts = ["10.0.0.1:65535", "[fe80::1]:1", "unix:/tmp/x", "unix:@name"];
        for text in texts {
            let address: Address = text.parse().unwrap();
            assert_eq!(RawAddress::new(&address).to_address(), Some(address), "{text}");
        }
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 7, 3);
        let address = Address::Inet(SocketAddr::V6(scoped));
        assert_eq!(RawAddress::new(&address).to_address(), Some(address));
    }

    #[test]
    fn the_longest_unix_name_fits() {
        let path = format!("/{}", "x".repeat(106));
        let address = Address::unix(&path).unwrap();
        let raw = RawAddress::new(&address);
        assert_eq!((raw.len, raw.to_address()), (110, Some(address)));
    }

    #[test]
    fn nonsense_is_no_address() {
        assert_eq!(RawAddress::EMPTY.to_address(), None);
        assert_eq!(RawAddress::UNSPECIFIED.to_address(), None);
        let short = RawAddress { len: 3, ..RawAddress::new(&"1.2.3.4:5".parse().unwrap()) };
        assert_eq!(short.to_address(), None);
    }
}
