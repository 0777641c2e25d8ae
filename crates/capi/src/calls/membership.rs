//! In and out of the channel: descriptors that the program has already.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use channel::{CpuMask, Misuse, RegisterError};

use crate::abi::{MP_FIRST_LWSOCKET, mp_channel_t, mp_event, mp_handle_t};
use crate::border::{handle as returned, status};
use crate::calls::non_null;
use crate::error::{CallError, Failure};
use crate::limits::MASK_WORDS_MAX;
use crate::object::{Inner, with_channel, with_handle};

/// Makes a handle in the channel for a file descriptor, or gives an lwsocket of the channel its
/// cookie. Bit n of `cpu_mask` stands for core n; 0 is no mask. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_register(
    channel: *mut mp_channel_t,
    fd: c_int,
    cookie: *mut c_void,
    cpu_mask: u64,
) -> mp_handle_t {
    let register = |inner: &mut Inner| {
        if fd >= MP_FIRST_LWSOCKET {
            return register_lwsocket(inner, fd as u32, cookie, cpu_mask);
        }
        let mask = (cpu_mask != 0).then(|| CpuMask::from_bits(cpu_mask));
        Ok(inner.channel.register(duplicate(fd)?, cookie as u64, mask)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_register", unsafe { with_channel(channel, register) })
}

/// Takes an established TCP connection of the kernel's over into the channel's own stack, in the
/// middle of whatever it does; the handle is an lwsocket's. `fd` is no connection any more then,
/// and the program's to close. MP_NO_HANDLE on failure: nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_take_over(
    channel: *mut mp_channel_t,
    fd: c_int,
    cookie: *mut c_void,
) -> mp_handle_t {
    let take_over = |inner: &mut Inner| {
        let taken = inner.channel.take_over(duplicate(fd)?, cookie as u64);
        // The program has its own descriptor of a socket that stays.
        Ok(taken.map_err(|refused| refused.why)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_take_over", unsafe { with_channel(channel, take_over) })
}

/// Takes a handle out of its channel; none of its completions is seen any more. An lwsocket is
/// closed; a descriptor of the program stays open. `rest` may be null; else it tells the bytes
/// that had arrived and were not read, lent until mp_release().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_unregister(handle: mp_handle_t, rest: *mut mp_event) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        let left = inner.channel.unregister(handle)?;
        inner.events.leave(handle);
        if !rest.is_null() {
            let event = inner.events.left(handle, left.unread);
            // SAFETY: the program promises that `rest` is writable.
            unsafe { rest.write(event) };
        }
        // The channel's own descriptor closes here. The program's, if there is one, stays.
        Ok(())
    });
    status("mp_unregister", result)
}

/// Replaces the cookie of a handle.
#[unsafe(no_mangle)]
pub extern "C" fn mp_set_cookie(handle: mp_handle_t, cookie: *mut c_void) -> c_int {
    let result =
        with_handle(handle, |inner, handle| Ok(inner.channel.set_cookie(handle, cookie as u64)?));
    status("mp_set_cookie", result)
}

/// Replaces the cores whose connections a listening handle takes. Bit n of word w stands for core
/// 64 * w + n.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_set_cpu_mask(
    handle: mp_handle_t,
    cpu_mask: *const u64,
    words: usize,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        non_null(cpu_mask, "cpu_mask")?;
        // SAFETY: the program promises `words` readable words.
        let mask = unsafe { read_mask(cpu_mask, words) }?;
        Ok(inner.channel.set_cpu_mask(handle, mask)?)
    });
    status("mp_set_cpu_mask", result)
}

/// The cores that an array of words names.
///
/// # Safety
/// `cpu_mask` points to `words` readable words.
pub(crate) unsafe fn read_mask(cpu_mask: *const u64, words: usize) -> Result<CpuMask, Failure> {
    if words == 0 || words > MASK_WORDS_MAX {
        return Err(CallError::Argument("the number of words in the mask").into());
    }
    // SAFETY: the caller promises the words.
    let words = unsafe { std::slice::from_raw_parts(cpu_mask, words) };
    let cores = (0..words.len() * 64).filter(|core| words[core / 64] >> (core % 64) & 1 == 1);
    Ok(CpuMask::cpus(cores))
}

/// An lwsocket that was accepted as such is in the channel already; what it can get is a cookie.
fn register_lwsocket(
    inner: &mut Inner,
    number: u32,
    cookie: *mut c_void,
    cpu_mask: u64,
) -> Result<channel::Handle, Failure> {
    if cpu_mask != 0 {
        return Err(RegisterError::MaskNotPossible.into());
    }
    let handle = inner.channel.lwsocket(number).ok_or(Misuse::StaleHandle)?;
    inner.channel.set_cookie(handle, cookie as u64)?;
    Ok(handle)
}

/// A descriptor of the channel's own for the same file. The program's stays the program's: it may
/// be registered in other channels too, and be closed whenever the program likes.
fn duplicate(fd: c_int) -> Result<OwnedFd, Failure> {
    // SAFETY: fcntl takes any integer for a descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
