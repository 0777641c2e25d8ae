//! Internet addresses of C callers: `struct sockaddr` to [`SocketAddr`] and back.
//!
//! Read first: `sockaddr(3type)`, `ip(7)`, `ipv6(7)`.
//!
//! Invariant: no byte beyond the size that the caller gave is read or written.

use std::net::SocketAddr;

use libc::{sockaddr, socklen_t};
use megapipe::{Address, SOCKADDR_BYTES};
use megapipe_sockets::Error;

use crate::error::ArgumentError;
use crate::memory::memory;

/// Reads an internet address of the program; `None`: AF_UNSPEC.
///
/// # Errors
/// EFAULT, EINVAL, EAFNOSUPPORT.
///
/// # Safety
/// `at` is null or points to `size` readable bytes.
pub unsafe fn read_address(
    at: *const sockaddr,
    size: socklen_t,
) -> Result<Option<SocketAddr>, ArgumentError> {
    if size as usize > SOCKADDR_BYTES {
        return Err(ArgumentError::Invalid("addrlen"));
    }
    // SAFETY: the caller promises the bytes.
    let bytes = unsafe { memory(at.cast(), size as usize, "addr") }?;
    let family = bytes.first_chunk().copied().map(u16::from_ne_bytes);
    match family.ok_or(ArgumentError::Invalid("addrlen"))?.into() {
        libc::AF_UNSPEC => Ok(None),
        libc::AF_INET | libc::AF_INET6 => match Address::from_sockaddr(bytes) {
            Some(Address::Inet(inet)) => Ok(Some(inet)),
            _ => Err(ArgumentError::Invalid("addrlen")),
        },
        _ => Err(Error::FamilyNotSupported.into()),
    }
}

/// Checks that the size of an address buffer is present and valid.
///
/// # Errors
/// EFAULT, EINVAL.
///
/// # Safety
/// `size` is null or points to a size.
pub unsafe fn check_room(size: *const socklen_t) -> Result<(), ArgumentError> {
    if size.is_null() {
        return Err(ArgumentError::Null("addrlen"));
    }
    // SAFETY: the caller promises a readable size. Linux reads an int.
    if unsafe { size.read() }.cast_signed() < 0 {
        return Err(ArgumentError::Invalid("addrlen"));
    }
    Ok(())
}

/// Writes an address as [`write_encoded`] does.
///
/// # Safety
/// As [`write_encoded`].
pub unsafe fn write_address(at: *mut sockaddr, size: *mut socklen_t, address: Option<SocketAddr>) {
    let address = address.map(Address::from);
    // SAFETY: the caller keeps the contract.
    unsafe { write_encoded(at, size, address.as_ref()) };
}

/// Writes an address to the program's buffer as `getsockname(2)` does: truncated to the buffer,
/// with its full size in `*size`.
///
/// # Safety
/// `at` is null or points to `*size` writable bytes, and `size` is null or points to a readable and
/// writable `socklen_t`.
pub unsafe fn write_encoded(at: *mut sockaddr, size: *mut socklen_t, address: Option<&Address>) {
    if size.is_null() {
        return;
    }
    let (bytes, len) = address.map_or(([0; SOCKADDR_BYTES], 0), Address::to_sockaddr);
    // SAFETY: the caller promises a readable size.
    let room = unsafe { size.read() } as usize;
    if !at.is_null() {
        let target = at.cast::<u8>();
        // SAFETY: the caller promises `room` writable bytes; `bytes` is a local.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, len.min(room)) };
    }
    // SAFETY: the caller promises a writable size.
    unsafe { size.write(len as socklen_t) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_truncates_and_returns_the_full_size() {
        let address: Address = "10.1.2.3:258".parse().unwrap();
        let mut room = [0xee_u8; 8];
        let mut size: socklen_t = 6;
        let at = room.as_mut_ptr().cast();
        // SAFETY: `room` has more than 6 bytes and `size` is a local.
        unsafe { write_encoded(at, &raw mut size, Some(&address)) };
        assert_eq!(size as usize, size_of::<libc::sockaddr_in>());
        assert_eq!(room[2..], [1, 2, 10, 1, 0xee, 0xee]);
        // SAFETY: as above.
        unsafe { write_encoded(std::ptr::null_mut(), &raw mut size, None) };
        assert_eq!(size, 0);
    }

    #[test]
    fn address_of_a_wrong_size_or_family_is_rejected() {
        let (bytes, len) = Address::from("10.1.2.3:4".parse::<SocketAddr>().unwrap()).to_sockaddr();
        let read = |len| {
            // SAFETY: the sizes below are within the array.
            unsafe { read_address(bytes.as_ptr().cast(), len) }
        };
        assert_eq!(read(len as socklen_t), Ok(Some("10.1.2.3:4".parse().unwrap())));
        assert_eq!(read(1), Err(ArgumentError::Invalid("addrlen")));
        assert_eq!(read(socklen_t::MAX), Err(ArgumentError::Invalid("addrlen")));
        let unix = [1_u8, 0, b'x', 0];
        // SAFETY: the array has four bytes.
        let family = unsafe { read_address(unix.as_ptr().cast(), 4) };
        assert_eq!(family, Err(Error::FamilyNotSupported.into()));
        // SAFETY: null is allowed.
        let null = unsafe { check_room(std::ptr::null()) };
        assert_eq!(null, Err(ArgumentError::Null("addrlen")));
    }
}
