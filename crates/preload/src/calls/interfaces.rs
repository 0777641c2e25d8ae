//! getifaddrs(3) with the addresses of the stack (`--show-addresses`).
//!
//! Invariant: libc makes its list in one piece and frees it as one. The stack's entries are a piece
//! of their own behind it, which is taken off before libc frees its piece.

use std::ffi::{CStr, c_int, c_uint};
use std::net::IpAddr;
use std::ptr;

use libc::{ifaddrs, sockaddr, sockaddr_storage, socklen_t};
use megapipe_marshal::write_address;

use crate::next::interpose;
use crate::stack;

/// What the stack's interface is called. Its address marks the entries.
static NAME: &CStr = c"megapipe0";
/// Flags of an interface that is up.
const FLAGS: c_uint = (libc::IFF_UP | libc::IFF_RUNNING) as c_uint;

interpose! {
    /// getifaddrs(3).
    fn getifaddrs(list: *mut *mut ifaddrs) -> c_int |pass| {
        let result = pass();
        let settings = stack::settings().filter(|settings| settings.shows_addresses);
        if let Some(settings) = settings.filter(|_| result == 0) {
            let ours = entries(&settings.selector.addresses);
            // SAFETY: libc has written a list there.
            unsafe { append(list, ours) };
        }
        result
    }

    /// freeifaddrs(3).
    fn freeifaddrs(list: *mut ifaddrs) -> c_int |pass| {
        let mut list_head = list;
        // SAFETY: the program promises a list of getifaddrs(3), or null.
        unsafe { free_ours(&raw mut list_head) };
        // A list of the stack's entries alone is gone.
        if list.is_null() || list_head.is_null() { 0 } else { pass() }
    }
}

/// An entry with the memory that it points to.
#[repr(C)]
struct StackInterface {
    entry: ifaddrs,
    address: sockaddr_storage,
    mask: sockaddr_storage,
}

/// The stack's addresses as a list in one piece of memory; null: there are none.
fn entries(addresses: &[(IpAddr, u8)]) -> *mut ifaddrs {
    // SAFETY: zeros are addresses without a family, and null pointers.
    let empty = || unsafe { std::mem::zeroed::<StackInterface>() };
    let piece: Box<[StackInterface]> = addresses.iter().map(|_| empty()).collect();
    let (count, piece) = (piece.len(), Box::into_raw(piece).cast::<StackInterface>());
    for (index, (address, bits)) in addresses.iter().enumerate() {
        // SAFETY: the piece was leaked above, and this index is in it.
        let interface = unsafe { &mut *piece.wrapping_add(index) };
        fill(&mut interface.address, *address);
        fill(&mut interface.mask, mask(*address, *bits));
        interface.entry.ifa_name = NAME.as_ptr().cast_mut();
        interface.entry.ifa_flags = FLAGS;
        interface.entry.ifa_addr = (&raw mut interface.address).cast();
        interface.entry.ifa_netmask = (&raw mut interface.mask).cast();
        if index + 1 < count {
            interface.entry.ifa_next = piece.wrapping_add(index + 1).cast();
        }
    }
    if count == 0 { ptr::null_mut() } else { piece.cast() }
}

/// The mask of a network of so many bits.
fn mask(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::V4(u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0).into()),
        IpAddr::V6(_) => {
            IpAddr::V6(u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0).into())
        }
    }
}

fn fill(room: &mut sockaddr_storage, address: IpAddr) {
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let at = (&raw mut *room).cast::<sockaddr>();
    // SAFETY: the room is one for any address, and the length is its.
    unsafe { write_address(at, &raw mut len, Some((address, 0).into())) };
}

/// Puts our entries behind libc's.
///
/// # Safety
/// `list` points to a list of getifaddrs(3), and `ours` is of [`entries`].
unsafe fn append(list: *mut *mut ifaddrs, ours: *mut ifaddrs) {
    let mut place = list;
    loop {
        // SAFETY: the caller promises the list; each place is that of a pointer to an entry.
        let entry = unsafe { place.read() };
        // SAFETY: the pointer is null, or to an entry of the list.
        let Some(entry) = (unsafe { entry.as_mut() }) else { break };
        place = &raw mut entry.ifa_next;
    }
    // SAFETY: the place is that of the last entry, or of the list.
    unsafe { place.write(ours) };
}

/// Takes our entries off a list, and frees them.
///
/// # Safety
/// `list` points to null or to a list of [`getifaddrs`], of which nothing was freed.
unsafe fn free_ours(list: *mut *mut ifaddrs) {
    let mut place = list;
    loop {
        // SAFETY: the caller promises the list; each place is that of a pointer to an entry.
        let entry = unsafe { place.read() };
        // SAFETY: the pointer is null, or to an entry of the list.
        let Some(entry) = (unsafe { entry.as_mut() }) else { break };
        if entry.ifa_name.cast_const() == NAME.as_ptr() {
            let piece = (&raw mut *entry).cast::<StackInterface>();
            let mut count = 1;
            let mut next = entry.ifa_next;
            // SAFETY: our entries end the list.
            while let Some(entry) = unsafe { next.as_ref() } {
                (count, next) = (count + 1, entry.ifa_next);
            }
            // SAFETY: the place is that of the last entry of libc, or of the list.
            unsafe { place.write(ptr::null_mut()) };
            // SAFETY: `entries` has leaked a piece of that many, which begins here.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(piece, count)) });
            return;
        }
        place = &raw mut entry.ifa_next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_entries_join_a_list_and_leave_it() {
        let addresses: Vec<(IpAddr, u8)> =
            vec![("10.9.0.1".parse().unwrap(), 24), ("fd00::1".parse().unwrap(), 0)];
        // SAFETY: zeros are null pointers.
        let mut of_libc = unsafe { std::mem::zeroed::<ifaddrs>() };
        for has_others in [false, true] {
            let mut list = if has_others { &raw mut of_libc } else { ptr::null_mut() };
            // SAFETY: the list is a local.
            unsafe { append(&raw mut list, entries(&addresses)) };
            let mut found = Vec::new();
            let mut at = list;
            // SAFETY: the list ends with null.
            while let Some(entry) = unsafe { at.as_ref() } {
                found.push(entry.ifa_netmask);
                at = entry.ifa_next;
            }
            assert_eq!(found.len(), 2 + usize::from(has_others));
            // SAFETY: the list is the one of above.
            unsafe { free_ours(&raw mut list) };
            assert_eq!(list.is_null(), !has_others);
            assert!(of_libc.ifa_next.is_null());
        }
        assert_eq!(mask(addresses[0].0, 24), "255.255.255.0".parse::<IpAddr>().unwrap());
        assert_eq!(mask(addresses[1].0, 0), "::".parse::<IpAddr>().unwrap());
        assert_eq!(mask(addresses[0].0, 32), "255.255.255.255".parse::<IpAddr>().unwrap());
    }
}
