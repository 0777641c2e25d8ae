//! Operations on a handle: queued, submitted in batches, each completed by one event. A quiet write
//! that succeeds has none.

use std::ffi::{c_int, c_void};

use channel::limits::{READ_LEN_MAX, WRITE_LEN_MAX};
use channel::{Accept, Disconnect, Handle, Misuse, Payload};
use libc::{iovec, sockaddr, socklen_t};

use crate::abi::{mp_accept_options, mp_as, mp_handle_t, mp_how};
use crate::address;
use crate::border::status;
use crate::calls::{non_null, read_sized};
use crate::error::{CallError, CallFailure};
use crate::limits::PARTS_MAX;
use crate::object::{ChannelInner, with_handle};
use crate::pending::{PendingOp, QueuedRead, ReadDestination, Sender};

/// Accepts `count` connections (MP_ALWAYS: no limit) on a listening handle, each with an event.
/// `kind` is an enum mp_as: MP_AS_LWSOCKET or MP_AS_FD.
#[unsafe(no_mangle)]
pub extern "C" fn mp_accept(handle: mp_handle_t, count: u32, kind: u32) -> c_int {
    let result = with_handle(handle, |inner, listener| {
        accept(inner, listener, accept_kind(count, kind, "kind")?)
    });
    status("mp_accept", result)
}

/// As mp_accept(), with a cookie and a first read for the new lwsockets, so that data right after
/// the handshake is delivered without another call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_accept_with(
    handle: mp_handle_t,
    options: *const mp_accept_options,
) -> c_int {
    let result = with_handle(handle, |inner, listener| {
        // SAFETY: the program promises a record that begins with its size; it holds only integers
        // and a pointer that is passed on.
        let options = unsafe { read_sized(options, "options") }?;
        let mut wanted = accept_kind(options.count, options.kind, "options->kind")?
            .cookie(options.cookie as u64);
        if options.first_read != 0 {
            wanted = wanted.first_read(options.first_read);
        }
        accept(inner, listener, wanted)
    });
    status("mp_accept_with", result)
}

/// Reads up to `size` bytes into `buf`, which must stay valid until the event. If `buf` is null,
/// the event lends a buffer of the channel, until mp_release().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_read(handle: mp_handle_t, buf: *mut c_void, size: usize) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        read(inner, handle, place(buf, size), QueuedRead { len: size, offset: None })
    });
    status("mp_read", result)
}

/// Reads into several parts in order. The array and its parts must stay valid until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_readv(
    handle: mp_handle_t,
    parts: *const iovec,
    parts_count: c_int,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises `parts_count` parts.
        let (count, len) = unsafe { measure(parts, parts_count) }?;
        read(
            inner,
            handle,
            ReadDestination::Scatter(parts, count),
            QueuedRead { len, offset: None },
        )
    });
    status("mp_readv", result)
}

/// Reads up to `size` bytes of a disk file from `offset` on; else as mp_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_read_at(
    handle: mp_handle_t,
    buf: *mut c_void,
    size: usize,
    offset: u64,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        let request = QueuedRead { len: size, offset: Some(offset) };
        read(inner, handle, place(buf, size), request)
    });
    status("mp_read_at", result)
}

/// Writes all `size` bytes or fails. The bytes are copied: the program may reuse `buf` when the
/// call returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write(handle: mp_handle_t, buf: *const c_void, size: usize) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises `size` readable bytes.
        let data = unsafe { copy_in(inner, buf, size) }?;
        Ok(inner.channel.write(handle, data)?)
    });
    status("mp_write", result)
}

/// As mp_write(), with an event only if the write fails. The bytes are copied as well;
/// mp_unsent_bytes() returns how many are still with the channel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write_quiet(
    handle: mp_handle_t,
    buf: *const c_void,
    size: usize,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises `size` readable bytes.
        let data = unsafe { copy_in(inner, buf, size) }?;
        Ok(inner.channel.write_quiet(handle, data).map(drop)?)
    });
    status("mp_write_quiet", result)
}

/// Writes several parts with one event; else as mp_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_writev(
    handle: mp_handle_t,
    parts: *const iovec,
    parts_count: c_int,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises `parts_count` parts.
        let (count, len) = unsafe { measure(parts, parts_count) }?;
        // SAFETY: the parts were measured, and are the program's to keep valid.
        let data = unsafe { gather(inner, parts, count, len) }?;
        Ok(inner.channel.write(handle, data)?)
    });
    status("mp_writev", result)
}

/// Writes all `size` bytes of a disk file at `offset`; else as mp_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write_at(
    handle: mp_handle_t,
    buf: *const c_void,
    size: usize,
    offset: u64,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises `size` readable bytes.
        let data = unsafe { copy_in(inner, buf, size) }?;
        Ok(inner.channel.write_at(handle, offset, data)?)
    });
    status("mp_write_at", result)
}

/// Receives a message, as mp_read(). `from` and `from_size` are as in recvfrom(2) and are filled
/// when the event is dispatched; both may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_recvfrom(
    handle: mp_handle_t,
    buf: *mut c_void,
    size: usize,
    from: *mut sockaddr,
    from_size: *mut socklen_t,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        if !from.is_null() {
            non_null(from_size, "from_size")?;
        }
        inner.channel.recvfrom(handle, size)?;
        let sender = Sender { address: from, size: from_size };
        push(inner, handle, PendingOp::Message(place(buf, size), sender));
        Ok(())
    });
    status("mp_recvfrom", result)
}

/// Sends a message to an address; else as mp_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sendto(
    handle: mp_handle_t,
    buf: *const c_void,
    size: usize,
    to: *const sockaddr,
    to_size: socklen_t,
) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        // SAFETY: the program promises an address of that size, or null.
        let to = unsafe { address::read(to, to_size, "to") }?;
        // SAFETY: the program promises `size` readable bytes.
        let data = unsafe { copy_in(inner, buf, size) }?;
        Ok(inner.channel.sendto(handle, data, &to)?)
    });
    status("mp_sendto", result)
}

/// Writes a disk file's data to its device.
#[unsafe(no_mangle)]
pub extern "C" fn mp_fsync(handle: mp_handle_t) -> c_int {
    let result = with_handle(handle, |inner, handle| Ok(inner.channel.fsync(handle)?));
    status("mp_fsync", result)
}

/// Closes a connection; the handle stays registered. `how` is an enum mp_how: MP_BOTH,
/// MP_WRITING or MP_RESET.
#[unsafe(no_mangle)]
pub extern "C" fn mp_disconnect(handle: mp_handle_t, how: u32) -> c_int {
    let result = with_handle(handle, |inner, handle| {
        let how = match how {
            how if how == mp_how::MP_BOTH as u32 => Disconnect::Both,
            how if how == mp_how::MP_WRITING as u32 => Disconnect::Write,
            how if how == mp_how::MP_RESET as u32 => Disconnect::Reset,
            _ => return Err(CallError::Argument("how").into()),
        };
        Ok(inner.channel.disconnect(handle, how)?)
    });
    status("mp_disconnect", result)
}

/// Requests an event when a connection has ended in both directions, by close or reset.
#[unsafe(no_mangle)]
pub extern "C" fn mp_await_end(handle: mp_handle_t) -> c_int {
    let result = with_handle(handle, |inner, handle| Ok(inner.channel.await_end(handle)?));
    status("mp_await_end", result)
}

/// Requests an event when the peer has acknowledged all bytes written to a connection of the
/// library's own stack, and the FIN if the sending direction was closed.
#[unsafe(no_mangle)]
pub extern "C" fn mp_await_delivery(handle: mp_handle_t) -> c_int {
    let result = with_handle(handle, |inner, handle| Ok(inner.channel.await_delivery(handle)?));
    status("mp_await_delivery", result)
}

/// Turns an lwsocket into a file descriptor; MP_TO_FD carries it, with the received bytes that were
/// not read.
#[unsafe(no_mangle)]
pub extern "C" fn mp_to_fd(handle: mp_handle_t) -> c_int {
    let result = with_handle(handle, |inner, handle| Ok(inner.channel.to_fd(handle)?));
    status("mp_to_fd", result)
}

fn accept_kind(count: u32, kind: u32, name: &'static str) -> Result<Accept, CallFailure> {
    match kind {
        kind if kind == mp_as::MP_AS_FD as u32 => Ok(Accept::fd(count)),
        kind if kind == mp_as::MP_AS_LWSOCKET as u32 => Ok(Accept::lwsocket(count)),
        _ => Err(CallError::Argument(name).into()),
    }
}

fn accept(inner: &mut ChannelInner, listener: Handle, accept: Accept) -> Result<(), CallFailure> {
    inner.channel.accept(listener, accept)?;
    let first_read = accept.first_read.is_some();
    push(inner, listener, PendingOp::Accept { remaining: accept.count, first_read });
    Ok(())
}

/// Records an operation that the channel has accepted.
fn push(inner: &mut ChannelInner, handle: Handle, pending: PendingOp) {
    let queue = inner.events.pending.enter(handle);
    inner.events.pending.push(queue, pending);
}

fn place(buf: *mut c_void, size: usize) -> ReadDestination {
    if buf.is_null() { ReadDestination::Lend } else { ReadDestination::Copy(buf, size) }
}

/// Submits a read to the channel now, or when the reads before it have completed.
// Inlined, so that the destination and request of `mp_read` stay in registers.
#[inline(always)]
fn read(
    inner: &mut ChannelInner,
    handle: Handle,
    place: ReadDestination,
    request: QueuedRead,
) -> Result<(), CallFailure> {
    let ChannelInner { channel, events, .. } = inner;
    let QueuedRead { len, offset } = request;
    let queue = events.pending.find(handle);
    if queue.is_some_and(|queue| events.pending.must_wait(queue, offset.is_some())) {
        // An invalid read is rejected now, not when it is submitted.
        if len == 0 || len > READ_LEN_MAX {
            return Err(Misuse::InvalidLength { len, max: READ_LEN_MAX }.into());
        }
        push(inner, handle, PendingOp::Waiting(place, request));
        return Ok(());
    }
    match offset {
        Some(offset) => {
            channel.read_at(handle, offset, len)?;
            push(inner, handle, PendingOp::ReadAt(place));
        }
        None => {
            channel.read(handle, len)?;
            let queue = queue.unwrap_or_else(|| events.pending.enter(handle));
            events.pending.push_read(queue, place);
        }
    }
    Ok(())
}

/// Counts the parts and their total length.
///
/// # Safety
/// `parts` is null or points to `count` parts.
unsafe fn measure(parts: *const iovec, count: c_int) -> Result<(usize, usize), CallFailure> {
    non_null(parts, "parts")?;
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || count > PARTS_MAX {
        return Err(CallError::Argument("parts_count").into());
    }
    let mut total = 0_usize;
    for index in 0..count {
        // SAFETY: the index is below the count that the caller promises.
        let part = unsafe { parts.add(index) };
        // SAFETY: the same.
        let part = unsafe { part.read() };
        if part.iov_len > 0 {
            non_null(part.iov_base, "iov_base")?;
        }
        total = total.saturating_add(part.iov_len);
    }
    Ok((count, total))
}

/// Copies the program's bytes into memory of the channel.
///
/// # Safety
/// `buf` is null or points to `size` readable bytes.
unsafe fn copy_in(
    inner: &mut ChannelInner,
    buf: *const c_void,
    size: usize,
) -> Result<Payload, CallFailure> {
    if size > 0 {
        non_null(buf, "buf")?;
    }
    let part = iovec { iov_base: buf.cast_mut(), iov_len: size };
    // SAFETY: the caller promises the part.
    unsafe { gather(inner, &raw const part, 1, size) }
}

/// Copies all parts into one piece: in a buffer of the channel if they fit into one.
///
/// # Safety
/// `parts` points to `count` parts that have `len` readable bytes together.
unsafe fn gather(
    inner: &mut ChannelInner,
    parts: *const iovec,
    count: usize,
    len: usize,
) -> Result<Payload, CallFailure> {
    let max = WRITE_LEN_MAX;
    if len > max {
        return Err(Misuse::InvalidLength { len, max }.into());
    }
    let mut buffer = inner.channel.try_alloc(len).map_err(|_| channel::OpError::NoMemory)?;
    // SAFETY: the caller keeps the contract.
    unsafe { each_part(parts, count, |part| buffer.extend_from_slice(part)) };
    Ok(Payload::from(buffer))
}

/// Calls `show` with the bytes of each part that is not empty.
///
/// # Safety
/// `parts` points to `count` parts of readable bytes.
unsafe fn each_part(parts: *const iovec, count: usize, mut show: impl FnMut(&[u8])) {
    for index in 0..count {
        // SAFETY: the index is below the count that the caller promises.
        let part = unsafe { parts.add(index) };
        // SAFETY: the same.
        let part = unsafe { part.read() };
        if part.iov_len > 0 {
            let base = part.iov_base.cast::<u8>().cast_const();
            // SAFETY: the caller promises the part's bytes, which nothing writes meanwhile.
            show(unsafe { std::slice::from_raw_parts(base, part.iov_len) });
        }
    }
}
