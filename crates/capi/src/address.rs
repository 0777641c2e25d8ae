//! Socket addresses across the border: `struct sockaddr` to [`Address`] and back.
//!
//! Read first: `sockaddr(3type)`, `ip(7)`, `ipv6(7)`, `unix(7)`.
//!
//! The parsing is a function of bytes; only [`read`] and [`write`] touch the program's memory.
//!
//! Invariants
//! - [`encode`] and [`parse`] are inverse for every address that the kernel can give.
//! - No byte beyond the size that the caller gave is read or written.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use channel::{Address, Misuse, UnixAddress};
use libc::{AF_INET, AF_INET6, AF_UNIX, sockaddr, socklen_t};

use crate::error::{CallError, Failure};
use crate::pending::Sender;

/// Bytes of the largest address, `struct sockaddr_storage`.
const ADDRESS_BYTES_MAX: usize = size_of::<libc::sockaddr_storage>();
/// Bytes before the path in `struct sockaddr_un`.
const UNIX_PATH_AT: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);
const INET_BYTES: usize = size_of::<libc::sockaddr_in>();
const INET6_BYTES: usize = size_of::<libc::sockaddr_in6>();

const _: () = assert!(size_of::<libc::sockaddr_un>() <= ADDRESS_BYTES_MAX);

/// Reads an address that the program gave; `name` is the argument's, for the error.
///
/// # Safety
/// `address` is null or points to `size` readable bytes.
pub(crate) unsafe fn read(
    address: *const sockaddr,
    size: socklen_t,
    name: &'static str,
) -> Result<Address, Failure> {
    if address.is_null() {
        return Err(CallError::Null(name).into());
    }
    let size = size as usize;
    if size > ADDRESS_BYTES_MAX {
        return Err(CallError::Argument("the size of the address").into());
    }
    // SAFETY: the caller promises `size` readable bytes; bytes need no alignment.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) };
    parse(bytes).ok_or_else(|| Misuse::InvalidAddress.into())
}

/// Writes an address where the program wants it, as `getsockname(2)` does: cut to the room there
/// is, and with the size that it would have had.
///
/// # Safety
/// `place.address` is null or points to as many writable bytes as `*place.size` says, and
/// `place.size` is null or points to a readable and writable `socklen_t`.
pub(crate) unsafe fn write(place: Sender, address: Option<&Address>) {
    if place.size.is_null() {
        return;
    }
    let (bytes, len) = address.map_or(([0; ADDRESS_BYTES_MAX], 0), encode);
    // SAFETY: the caller promises a readable size.
    let room = unsafe { place.size.read() } as usize;
    if !place.address.is_null() {
        let target = place.address.cast::<u8>();
        // SAFETY: the caller promises `room` writable bytes; `bytes` is memory of our own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, len.min(room)) };
    }
    // SAFETY: the caller promises a writable size.
    unsafe { place.size.write(len as socklen_t) };
}

/// The address in the bytes of a `struct sockaddr` of some family.
fn parse(bytes: &[u8]) -> Option<Address> {
    let family = u16::from_ne_bytes(array(bytes, 0)?);
    match i32::from(family) {
        AF_INET if bytes.len() >= INET_BYTES => {
            let ip = Ipv4Addr::from(array::<4>(bytes, 4)?);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port(bytes)?)).into())
        }
        AF_INET6 if bytes.len() >= INET6_BYTES => {
            let flow = u32::from_ne_bytes(array(bytes, 4)?);
            let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
            let scope = u32::from_ne_bytes(array(bytes, 24)?);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, port(bytes)?, flow, scope)).into())
        }
        AF_UNIX => parse_unix(bytes.get(UNIX_PATH_AT..)?).map(Address::Unix),
        _ => None,
    }
}

fn parse_unix(path: &[u8]) -> Option<UnixAddress> {
    if path.len() > size_of::<libc::sockaddr_un>() - UNIX_PATH_AT {
        return None;
    }
    match path {
        [] => Some(UnixAddress::Unnamed),
        [0, name @ ..] => Some(UnixAddress::Abstract(name.to_vec())),
        _ => {
            let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
            Some(UnixAddress::Path(PathBuf::from(OsStr::from_bytes(&path[..end]))))
        }
    }
}

/// The bytes of the address as a `struct sockaddr`, and how many they are.
fn encode(address: &Address) -> ([u8; ADDRESS_BYTES_MAX], usize) {
    let mut bytes = [0; ADDRESS_BYTES_MAX];
    let len = match address {
        Address::Inet(SocketAddr::V4(inet)) => {
            put(&mut bytes, 0, &(AF_INET as u16).to_ne_bytes());
            put(&mut bytes, 2, &inet.port().to_be_bytes());
            put(&mut bytes, 4, &inet.ip().octets());
            INET_BYTES
        }
        Address::Inet(SocketAddr::V6(inet)) => {
            put(&mut bytes, 0, &(AF_INET6 as u16).to_ne_bytes());
            put(&mut bytes, 2, &inet.port().to_be_bytes());
            put(&mut bytes, 4, &inet.flowinfo().to_ne_bytes());
            put(&mut bytes, 8, &inet.ip().octets());
            put(&mut bytes, 24, &inet.scope_id().to_ne_bytes());
            INET6_BYTES
        }
        Address::Unix(unix) => {
            put(&mut bytes, 0, &(AF_UNIX as u16).to_ne_bytes());
            UNIX_PATH_AT
                + match unix {
                    UnixAddress::Unnamed => 0,
                    UnixAddress::Path(path) => {
                        put(&mut bytes, UNIX_PATH_AT, path.as_os_str().as_bytes()) + 1
                    }
                    UnixAddress::Abstract(name) => put(&mut bytes, UNIX_PATH_AT + 1, name) + 1,
                }
        }
    };
    (bytes, len)
}

fn port(bytes: &[u8]) -> Option<u16> {
    array(bytes, 2).map(u16::from_be_bytes)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// Copies as much of `part` as a `sockaddr_un` has room for; how much that was.
fn put(bytes: &mut [u8], at: usize, part: &[u8]) -> usize {
    let room = size_of::<libc::sockaddr_un>().saturating_sub(at + 1);
    let len = part.len().min(room);
    bytes[at..at + len].copy_from_slice(&part[..len]);
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_survives_the_round_trip() {
        for text in
            ["127.0.0.1:80", "[2001:db8::7]:65535", "unix:/run/megapipe.sock", "unix:@megapipe"]
        {
            let address: Address = text.parse().unwrap();
            let (bytes, len) = encode(&address);
            assert_eq!(parse(&bytes[..len]), Some(address), "{text}");
        }
        let scoped = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 2, 3);
        let (bytes, len) = encode(&SocketAddr::V6(scoped).into());
        assert_eq!(parse(&bytes[..len]), Some(SocketAddr::V6(scoped).into()));
        let unnamed = Address::Unix(UnixAddress::Unnamed);
        let (bytes, len) = encode(&unnamed);
        assert_eq!((len, parse(&bytes[..len])), (2, Some(unnamed)));
    }

    #[test]
    fn short_and_foreign_addresses_are_refused() {
        let (bytes, len) = encode(&"127.0.0.1:80".parse().unwrap());
        for short in 0..len {
            assert_eq!(parse(&bytes[..short]), None, "{short} bytes");
        }
        assert_eq!(parse(&(libc::AF_PACKET as u16).to_ne_bytes()), None);
        let mut long = [b'x'; ADDRESS_BYTES_MAX];
        long[..2].copy_from_slice(&(AF_UNIX as u16).to_ne_bytes());
        assert_eq!(parse(&long), None, "a path longer than sun_path");
    }

    #[test]
    fn a_path_ends_at_its_nul_or_at_the_size() {
        let mut bytes = (AF_UNIX as u16).to_ne_bytes().to_vec();
        bytes.extend_from_slice(b"/a\0garbage");
        let path = |name: &str| Some(Address::Unix(UnixAddress::Path(name.into())));
        assert_eq!(parse(&bytes), path("/a"));
        assert_eq!(parse(&bytes[..4]), path("/a"));
    }

    #[test]
    fn writing_is_cut_to_the_room_and_tells_the_whole_size() {
        let address: Address = "10.1.2.3:258".parse().unwrap();
        let mut room = [0xee_u8; 8];
        let mut size: socklen_t = 6;
        let place = Sender { address: room.as_mut_ptr().cast(), size: &raw mut size };
        // SAFETY: `room` has more than 6 bytes and `size` is a variable of ours.
        unsafe { write(place, Some(&address)) };
        assert_eq!(size as usize, INET_BYTES);
        assert_eq!(room[2..], [1, 2, 10, 1, 0xee, 0xee]);
        // SAFETY: as above.
        unsafe { write(Sender { address: std::ptr::null_mut(), ..place }, None) };
        assert_eq!(size, 0);
    }
}
