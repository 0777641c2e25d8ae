//! Registers and unregisters descriptors.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

use channel::{CpuMask, Misuse, RegisterError};

use crate::abi::{MP_FIRST_LWSOCKET, mp_event, mp_handle_t};
use crate::border::{finish, handle as returned, status};
use crate::calls::non_null;
use crate::error::{CallError, CallFailure};
use crate::limits::MASK_WORDS_MAX;
use crate::object::{ChannelInner, mp_channel_t, with_channel, with_handle};

/// Registers a file descriptor and returns its handle, or sets the cookie of an lwsocket. Bit n of
/// `cpu_mask` stands for core n; 0 is no mask. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_register(
    channel: *mut mp_channel_t,
    fd: c_int,
    cookie: *mut c_void,
    cpu_mask: u64,
) -> mp_handle_t {
    let register = |inner: &mut ChannelInner| {
        if fd >= MP_FIRST_LWSOCKET {
            return register_lwsocket(inner, fd as u32, cookie, cpu_mask);
        }
        let mask = (cpu_mask != 0).then(|| CpuMask::from_bits(cpu_mask));
        Ok(inner.channel.register(duplicate(fd)?, cookie as u64, mask)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_register", unsafe { with_channel(channel, register) })
}

/// Moves an established TCP connection from the kernel to the channel's own stack, in any state of
/// its transfer; the handle is that of an lwsocket. `fd` is no longer connected, and the program
/// closes it. On failure (MP_NO_HANDLE) nothing has changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_take_over(
    channel: *mut mp_channel_t,
    fd: c_int,
    cookie: *mut c_void,
) -> mp_handle_t {
    let take_over = |inner: &mut ChannelInner| {
        let taken = inner.channel.take_over(duplicate(fd)?, cookie as u64);
        // A socket that stays with the kernel is still open in the program.
        Ok(taken.map_err(|refused| refused.why)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_take_over", unsafe { with_channel(channel, take_over) })
}

/// Shares a connection or listener of the service: returns a token, a descriptor (close-on-exec)
/// that any process may pass to mp_adopt(). The channel keeps what it shares. -1 on failure.
#[unsafe(no_mangle)]
pub extern "C" fn mp_share(handle: mp_handle_t) -> c_int {
    let shared = with_handle(handle, |inner, handle| {
        let token = inner.channel.share(handle)?;
        Ok(token.into_raw_fd())
    });
    finish("mp_share", shared)
}

/// Adopts the connection or listener that a token of mp_share() stands for: the channel is one more
/// owner of it. The token stays the program's, and stays an owner until its last descriptor is
/// closed. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_adopt(
    channel: *mut mp_channel_t,
    token: c_int,
    cookie: *mut c_void,
) -> mp_handle_t {
    let adopt = |inner: &mut ChannelInner| {
        let token = duplicate(token)?;
        Ok(inner.channel.adopt(token.as_fd(), cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_adopt", unsafe { with_channel(channel, adopt) })
}

/// Unregisters a handle; its completions are no longer dispatched. An lwsocket is closed; a
/// descriptor of the program stays open. `rest` may be null; otherwise it is filled with the
/// received bytes that were not read, lent until mp_release().
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
        // Closes the channel's own descriptor. The program's, if there is one, stays open.
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

/// Replaces the cores whose connections a listening handle accepts. Bit n of word w stands for core
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

/// Reads a CPU mask from an array of words.
///
/// # Safety
/// `cpu_mask` points to `words` readable words.
pub(crate) unsafe fn read_mask(cpu_mask: *const u64, words: usize) -> Result<CpuMask, CallFailure> {
    if words == 0 || words > MASK_WORDS_MAX {
        return Err(CallError::Argument("the number of words in the mask").into());
    }
    // SAFETY: the caller promises the words.
    let words = unsafe { std::slice::from_raw_parts(cpu_mask, words) };
    let cores = (0..words.len() * 64).filter(|core| words[core / 64] >> (core % 64) & 1 == 1);
    Ok(CpuMask::cpus(cores))
}

/// An accepted lwsocket is registered already; only its cookie can be set.
fn register_lwsocket(
    inner: &mut ChannelInner,
    number: u32,
    cookie: *mut c_void,
    cpu_mask: u64,
) -> Result<channel::Handle, CallFailure> {
    if cpu_mask != 0 {
        return Err(RegisterError::MaskNotPossible.into());
    }
    let handle = inner.channel.lwsocket(number).ok_or(Misuse::StaleHandle)?;
    inner.channel.set_cookie(handle, cookie as u64)?;
    Ok(handle)
}

/// Duplicates a descriptor for the channel. The program keeps its own: it may register it in other
/// channels too, and close it at any time.
fn duplicate(fd: c_int) -> Result<OwnedFd, CallFailure> {
    // SAFETY: fcntl takes any integer for a descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
