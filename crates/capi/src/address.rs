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
    // SAFETY: the caller keeps the contract.
    unsafe { marshal::write_encoded(place.address, place.size, address) };
}
