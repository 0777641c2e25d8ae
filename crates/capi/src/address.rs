//! Socket addresses across the C interface: `struct sockaddr` to [`Address`] and back.
//!
//! Read first: `sockaddr(3type)`, `ip(7)`, `ipv6(7)`, `unix(7)`.
//!
//! The channel decodes the bytes ([`Address::from_sockaddr`]).
//!
//! Invariant: no byte beyond the size that the caller gave is read or written.

use channel::{Address, Misuse, SOCKADDR_BYTES};
use libc::{sockaddr, socklen_t};

use crate::error::{CallError, CallFailure};
use crate::pending::Sender;

/// Reads an address that the program passed; `name` is the argument's, for the error.
///
/// # Safety
/// `address` is null or points to `size` readable bytes.
pub(crate) unsafe fn read(
    address: *const sockaddr,
    size: socklen_t,
    name: &'static str,
) -> Result<Address, CallFailure> {
    if address.is_null() {
        return Err(CallError::Null(name).into());
    }
    let size = size as usize;
    if size > SOCKADDR_BYTES {
        return Err(CallError::Argument("the size of the address").into());
    }
    // SAFETY: the caller promises `size` readable bytes; bytes need no alignment.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), size) };
    Address::from_sockaddr(bytes).ok_or_else(|| Misuse::InvalidAddress.into())
}

/// Writes an address to the program's buffer as `getsockname(2)` does: truncated to the buffer,
/// with its full size in `*place.size`.
///
/// # Safety
/// `place.address` is null or points to `*place.size` writable bytes, and `place.size` is null or
/// points to a readable and writable `socklen_t`.
pub(crate) unsafe fn write(place: Sender, address: Option<&Address>) {
    if place.size.is_null() {
        return;
    }
    let (bytes, len) = address.map_or(([0; SOCKADDR_BYTES], 0), Address::to_sockaddr);
    // SAFETY: the caller promises a readable size.
    let room = unsafe { place.size.read() } as usize;
    if !place.address.is_null() {
        let target = place.address.cast::<u8>();
        // SAFETY: the caller promises `room` writable bytes; `bytes` is a local.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, len.min(room)) };
    }
    // SAFETY: the caller promises a writable size.
    unsafe { place.size.write(len as socklen_t) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_truncates_and_returns_the_full_size() {
        let address: Address = "10.1.2.3:258".parse().unwrap();
        let mut room = [0xee_u8; 8];
        let mut size: socklen_t = 6;
        let place = Sender { address: room.as_mut_ptr().cast(), size: &raw mut size };
        // SAFETY: `room` has more than 6 bytes and `size` is a local.
        unsafe { write(place, Some(&address)) };
        assert_eq!(size as usize, size_of::<libc::sockaddr_in>());
        assert_eq!(room[2..], [1, 2, 10, 1, 0xee, 0xee]);
        // SAFETY: as above.
        unsafe { write(Sender { address: std::ptr::null_mut(), ..place }, None) };
        assert_eq!(size, 0);
    }
}
