//! Messages of C callers: `struct msghdr` and arrays of it.
//!
//! Read first: recvmsg(2), sendmsg(2), recvmmsg(2).

use std::ffi::{c_int, c_uint};
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::time::Instant;

use libc::{mmsghdr, msghdr, timespec};
use megapipe_sockets::{Error, MsgFlags, ReceivedMessage};

use crate::address::{read_address, write_address};
use crate::error::ArgumentError;
use crate::limits::PARTS_MAX;
use crate::memory::{memory, memory_mut, with_parts, with_parts_mut};
use crate::time::{duration, timespec_of};

/// Runs `receive` with the memory of a message to fill, and writes its result to the header.
/// Returns the number of bytes.
///
/// # Errors
/// EFAULT, EMSGSIZE; those of `receive`.
///
/// # Safety
/// `msg` is null or points to a writable header, with pieces of writable memory and buffers for an
/// address and control data, where these are not null.
pub unsafe fn receive_message<E: From<ArgumentError>>(
    msg: *mut msghdr,
    receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [u8]) -> Result<ReceivedMessage, E>,
) -> Result<usize, E> {
    // SAFETY: the caller promises a header, or null.
    let header = unsafe { msg.as_mut() }.ok_or(ArgumentError::Null("msg"))?;
    check_parts(header)?;
    // SAFETY: the caller promises `msg_controllen` writable bytes, or null.
    let control = unsafe { memory_mut(header.msg_control, header.msg_controllen, "msg_control") };
    // Empty if the pointer is null, as in Linux.
    let control = control.unwrap_or_default();
    let receive = |to: &mut [IoSliceMut<'_>]| receive(to, control);
    // SAFETY: the caller promises that the pieces are writable memory.
    let received = unsafe { with_parts_mut(header.msg_iov, Some(header.msg_iovlen), receive) }?;
    if !header.msg_name.is_null() {
        let size = &raw mut header.msg_namelen;
        // SAFETY: the caller promises a buffer for an address with its size.
        unsafe { write_address(header.msg_name.cast(), size, received.from) };
    }
    header.msg_controllen = received.control_len;
    header.msg_flags = received.flags.bits();
    Ok(received.len)
}

/// Runs `send` with the memory, the address and the control data of a message.
///
/// # Errors
/// EFAULT, EMSGSIZE, those of the address; those of `send`.
///
/// # Safety
/// `msg` is null or points to a header with pieces of readable memory, an address and control data,
/// where these are not null.
pub unsafe fn send_message<E: From<ArgumentError>>(
    msg: *const msghdr,
    send: impl FnOnce(&[IoSlice<'_>], Option<SocketAddr>, &[u8]) -> Result<usize, E>,
) -> Result<usize, E> {
    // SAFETY: the caller promises a header, or null.
    let header = unsafe { msg.as_ref() }.ok_or(ArgumentError::Null("msg"))?;
    check_parts(header)?;
    let to = match header.msg_name.is_null() || header.msg_namelen == 0 {
        true => None,
        // SAFETY: the caller promises an address of that size.
        false => unsafe { read_address(header.msg_name.cast(), header.msg_namelen) }?,
    };
    let control_len = header.msg_controllen;
    // SAFETY: the caller promises that many readable bytes, or null.
    let control = unsafe { memory(header.msg_control, control_len, "msg_control") }?;
    let send = |from: &[IoSlice<'_>]| send(from, to, control);
    // SAFETY: the caller promises that the pieces are readable memory.
    unsafe { with_parts(header.msg_iov, Some(header.msg_iovlen), send) }
}

/// Receives one message into pieces of memory and a buffer for control data.
pub trait MessageReceiver<E>:
    FnMut(&mut [IoSliceMut<'_>], &mut [u8], MsgFlags) -> Result<ReceivedMessage, E>
{
}

impl<E, F> MessageReceiver<E> for F where
    F: FnMut(&mut [IoSliceMut<'_>], &mut [u8], MsgFlags) -> Result<ReceivedMessage, E>
{
}

/// recvmmsg(2): runs `receive` for each message with the flags of its call, until the time is over.
/// Returns the number of messages.
///
/// # Errors
/// Those of the time and of the first message.
///
/// # Safety
/// `messages` is null or points to `len` messages, each as for [`receive_message`]; `timeout` is
/// null or points to a writable time.
pub unsafe fn receive_messages<E: From<ArgumentError>>(
    messages: *mut mmsghdr,
    len: c_uint,
    flags: c_int,
    timeout: *mut timespec,
    mut receive: impl MessageReceiver<E>,
) -> Result<usize, E> {
    // SAFETY: the caller promises a time, or null.
    let deadline = unsafe { duration(timeout) }?.map(|left| (Instant::now(), left));
    let mut flags = flags;
    let one = |message: &mut msghdr| {
        let asked = MsgFlags::from_bits_retain(flags & !libc::MSG_WAITFORONE);
        let fill = |to: &mut [IoSliceMut<'_>], control: &mut [u8]| receive(to, control, asked);
        // SAFETY: the caller promises that each message can be filled.
        let received = unsafe { receive_message(message, fill) }?;
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
        let is_over = deadline.is_some_and(|(from, left)| from.elapsed() >= left);
        Ok((received, is_over))
    };
    // SAFETY: it promises `len` messages.
    let received = unsafe { each_message(messages, len, one) };
    received.inspect(|_| {
        if let (Some((from, left)), false) = (deadline, timeout.is_null()) {
            // SAFETY: the caller promises a writable time.
            unsafe { timeout.write(timespec_of(left.saturating_sub(from.elapsed()))) };
        }
    })
}

/// sendmmsg(2): runs `send` for each message. Returns the number of messages.
///
/// # Errors
/// Those of the first message.
///
/// # Safety
/// `messages` is null or points to `len` messages, each as for [`send_message`].
pub unsafe fn send_messages<E: From<ArgumentError>>(
    messages: *mut mmsghdr,
    len: c_uint,
    mut send: impl FnMut(&[IoSlice<'_>], Option<SocketAddr>, &[u8]) -> Result<usize, E>,
) -> Result<usize, E> {
    let one = |message: &mut msghdr| {
        // SAFETY: the caller promises that each message can be sent.
        Ok((unsafe { send_message(message, &mut send) }?, false))
    };
    // SAFETY: it promises `len` messages.
    unsafe { each_message(messages, len, one) }
}

/// Transfers messages one after the other, until `one` reports the last. An error is returned only
/// for the first.
///
/// # Safety
/// `messages` is null or points to `len` messages, each valid for `one`.
unsafe fn each_message<E: From<ArgumentError>>(
    messages: *mut mmsghdr,
    len: c_uint,
    mut one: impl FnMut(&mut msghdr) -> Result<(usize, bool), E>,
) -> Result<usize, E> {
    let len = (len as usize).min(PARTS_MAX);
    if messages.is_null() && len > 0 {
        return Err(ArgumentError::Null("msgvec").into());
    }
    for index in 0..len {
        // SAFETY: the caller promises `len` messages.
        let message = unsafe { &mut *messages.wrapping_add(index) };
        match one(&mut message.msg_hdr) {
            Ok((moved, is_last)) => {
                message.msg_len = moved as c_uint;
                if is_last {
                    return Ok(index + 1);
                }
            }
            Err(refusal) if index == 0 => return Err(refusal),
            Err(_) => return Ok(index),
        }
    }
    Ok(len)
}

/// A message with too many pieces is too long (EMSGSIZE), not invalid.
fn check_parts(header: &msghdr) -> Result<(), ArgumentError> {
    match header.msg_iovlen > PARTS_MAX {
        true => Err(Error::MessageTooLong.into()),
        false => Ok(()),
    }
}
