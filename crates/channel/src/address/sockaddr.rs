//! Addresses as `struct sockaddr` has them, built and read byte by byte.
//!
//! Read first: ip(7), ipv6(7), unix(7) for the layouts.
//!
//! Invariants
//! - What is written is read back as the same address, for every address that the kernel can give.
//! - No byte beyond those given is looked at.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Address, UnixAddress};

/// The size of `struct sockaddr_storage`, which has room for every address.
pub const SOCKADDR_BYTES: usize = size_of::<libc::sockaddr_storage>();
/// Bytes before the name in `struct sockaddr_un`.
const UNIX_NAME_AT: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);
const UNIX_BYTES: usize = size_of::<libc::sockaddr_un>();
const INET_BYTES: usize = size_of::<libc::sockaddr_in>();
const INET6_BYTES: usize = size_of::<libc::sockaddr_in6>();

const _: () = assert!(UNIX_BYTES < SOCKADDR_BYTES && INET6_BYTES < SOCKADDR_BYTES);

impl Address {
    /// The address in the bytes of a `struct sockaddr` of its family. `None`: another family, or
    /// too few bytes for this one.
    #[must_use]
    pub fn from_sockaddr(bytes: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(array(bytes, 0)?);
        match i32::from(family) {
            libc::AF_INET if bytes.len() >= INET_BYTES => {
                let ip = Ipv4Addr::from(array::<4>(bytes, 4)?);
                Some(SocketAddr::V4(SocketAddrV4::new(ip, port(bytes)?)).into())
            }
            libc::AF_INET6 if bytes.len() >= INET6_BYTES => {
                // As the standard library has it: the field's own bytes.
                let flow = u32::from_ne_bytes(array(bytes, 4)?);
                let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
                let scope = u32::from_ne_bytes(array(bytes, 24)?);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port(bytes)?, flow, scope)).into())
            }
            libc::AF_UNIX if bytes.len() <= UNIX_BYTES => {
                bytes.get(UNIX_NAME_AT..).map(|name| Self::Unix(unix_name(name)))
            }
            _ => None,
        }
    }

    /// The bytes of the address as a `struct sockaddr` of its family, and how many they are. A UNIX
    /// name that is longer than such a structure takes is cut.
    #[must_use]
    pub fn to_sockaddr(&self) -> ([u8; SOCKADDR_BYTES], usize) {
        let mut bytes = [0; SOCKADDR_BYTES];
        let len = match self {
            Self::Inet(SocketAddr::V4(inet)) => {
                put(&mut bytes, 0, &(libc::AF_INET as u16).to_ne_bytes());
                put(&mut bytes, 2, &inet.port().to_be_bytes());
                put(&mut bytes, 4, &inet.ip().octets());
                INET_BYTES
            }
            Self::Inet(SocketAddr::V6(inet)) => {
                put(&mut bytes, 0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(&mut bytes, 2, &inet.port().to_be_bytes());
                put(&mut bytes, 4, &inet.flowinfo().to_ne_bytes());
                put(&mut bytes, 8, &inet.ip().octets());
                put(&mut bytes, 24, &inet.scope_id().to_ne_bytes());
                INET6_BYTES
            }
            Self::Unix(unix) => {
                put(&mut bytes, 0, &(libc::AF_UNIX as u16).to_ne_bytes());
                UNIX_NAME_AT + put_unix_name(&mut bytes, unix)
            }
        };
        (bytes, len)
    }
}

/// The terminating NUL of a path counts, and so does the one in front of an abstract name.
fn put_unix_name(bytes: &mut [u8; SOCKADDR_BYTES], unix: &UnixAddress) -> usize {
    match unix {
        UnixAddress::Unnamed => 0,
        UnixAddress::Path(path) => put(bytes, UNIX_NAME_AT, path.as_os_str().as_bytes()) + 1,
        UnixAddress::Abstract(name) => put(bytes, UNIX_NAME_AT + 1, name) + 1,
    }
}

fn unix_name(name: &[u8]) -> UnixAddress {
    match name {
        [] | [0] => UnixAddress::Unnamed,
        [0, name @ ..] => UnixAddress::Abstract(name.to_vec()),
        _ => {
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            UnixAddress::Path(PathBuf::from(OsStr::from_bytes(&name[..end])))
        }
    }
}

fn port(bytes: &[u8]) -> Option<u16> {
    array(bytes, 2).map(u16::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Copies as much of `part` as a `struct sockaddr_un` has room for; how much that was.
fn put(bytes: &mut [u8; SOCKADDR_BYTES], at: usize, part: &[u8]) -> usize {
    let room = (UNIX_BYTES - 1).saturating_sub(at);
    let len = part.len().min(room);
    bytes[at..at + len].copy_from_slice(&part[..len]);
    len
}

/// A `struct sockaddr_storage` with its length, as the kernel reads and writes it.
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
        let (bytes, len) = address.to_sockaddr();
        Self { bytes, len: len as u32 }
    }

    /// The address that the kernel wrote; `None` for no address or a family not known here.
    pub(crate) fn to_address(self) -> Option<Address> {
        let len = (self.len as usize).min(SOCKADDR_BYTES);
        Address::from_sockaddr(&self.bytes[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_back(address: &Address) -> Option<Address> {
        let (bytes, len) = address.to_sockaddr();
        Address::from_sockaddr(&bytes[..len])
    }

    #[test]
    fn sockaddr_round_trips() {
        let texts =
            ["10.0.0.1:65535", "[fe80::1]:1", "unix:/tmp/x", "unix:@name", "[2001:db8::7]:65535"];
        for text in texts {
            let address: Address = text.parse().unwrap();
            assert_eq!(read_back(&address), Some(address.clone()), "{text}");
            assert_eq!(RawAddress::new(&address).to_address(), Some(address), "{text}");
        }
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 5, 7, 3);
        let address = Address::Inet(SocketAddr::V6(scoped));
        assert_eq!(read_back(&address), Some(address));
        let unnamed = Address::Unix(UnixAddress::Unnamed);
        assert_eq!((unnamed.to_sockaddr().1, read_back(&unnamed)), (2, Some(unnamed)));
    }

    #[test]
    fn the_longest_unix_name_fits() {
        let path = format!("/{}", "x".repeat(106));
        let address = Address::unix(&path).unwrap();
        assert_eq!((address.to_sockaddr().1, read_back(&address)), (110, Some(address)));
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        for text in ["127.0.0.1:80", "[::1]:80"] {
            let (bytes, len) = text.parse::<Address>().unwrap().to_sockaddr();
            for short in 0..len {
                assert_eq!(Address::from_sockaddr(&bytes[..short]), None, "{short} of {text}");
            }
        }
        assert_eq!(Address::from_sockaddr(&(libc::AF_PACKET as u16).to_ne_bytes()), None);
        let mut long = [b'x'; SOCKADDR_BYTES];
        long[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        assert_eq!(Address::from_sockaddr(&long), None, "a path longer than sun_path");
        assert_eq!(RawAddress::EMPTY.to_address(), None);
        assert_eq!(RawAddress::UNSPECIFIED.to_address(), None);
    }

    #[test]
    fn a_path_ends_at_its_nul_or_at_the_size() {
        let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(b"/a\0garbage");
        let path = |name: &str| Some(Address::Unix(UnixAddress::Path(name.into())));
        assert_eq!(Address::from_sockaddr(&bytes), path("/a"));
        assert_eq!(Address::from_sockaddr(&bytes[..4]), path("/a"));
    }
}
