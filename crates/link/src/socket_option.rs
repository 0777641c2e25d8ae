//! setsockopt(2) for options without a safe wrapper, for plain data.
//!
//! Read first: setsockopt(2).
//!
//! Invariant: the kernel reads and writes values of types that implement [`SocketOptionValue`] and
//! no others, so that no option can make an invalid value or reach memory through one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Missing in the libc crate.
const SO_BINDTOIFINDEX: libc::c_int = 62;

/// Values of socket options.
///
/// # Safety
/// Every pattern of bytes is a value of the type, it has no padding, and none of it is an address.
pub(crate) unsafe trait SocketOptionValue: Copy {}

// SAFETY: an integer.
unsafe impl SocketOptionValue for libc::c_int {}
// SAFETY: an integer.
unsafe impl SocketOptionValue for u32 {}
// SAFETY: an integer.
unsafe impl SocketOptionValue for u64 {}

/// Sets a socket option.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn set_option<T: SocketOptionValue>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: a value of plain data names no memory, and all of its bytes are initialised.
    unsafe { set_option_with_memory(socket, level, option, value) }
}

/// As [`set_option`], for a value that names memory.
///
/// # Errors
/// What the kernel answers.
///
/// # Safety
/// All bytes of the value that the kernel looks at are initialised, and the memory that it names
/// may be used as the option says, for as long as it says.
pub(crate) unsafe fn set_option_with_memory<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let (pointer, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `setsockopt` reads `len` bytes at the pointer during the call, which are the value's,
    // and uses the memory that it names as the caller allows.
    let done = unsafe { libc::setsockopt(fd, level, option, pointer, len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads a socket option. What the kernel leaves out of it is zero.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn option<T: SocketOptionValue>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
) -> io::Result<T> {
    let fd = socket.as_fd().as_raw_fd();
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: `getsockopt` writes at most `len` bytes at the pointer, which are the value's.
    let done = unsafe { libc::getsockopt(fd, level, option, pointer, &raw mut len) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every byte is zero or the kernel's, and any bytes are a value (`SocketOptionValue`).
    Ok(unsafe { value.assume_init() })
}

/// Attaches a classic BPF program to a socket, in the place of one that is there.
///
/// # Errors
/// `InvalidInput` for a program of too many instructions; what the kernel answers.
pub(crate) fn attach_filter(
    socket: impl AsFd,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: `sock_fprog` names the instructions, which are read during the call; they are alive,
    // and as many as it says. Its padding is not read.
    unsafe { set_option_with_memory(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Reads as much of a socket option as fits in `into`, and returns how many bytes that is.
///
/// # Errors
/// What the kernel answers.
pub(crate) fn option_bytes(
    socket: BorrowedFd<'_>,
    (level, option): (libc::c_int, libc::c_int),
    into: &mut [u8],
) -> io::Result<usize> {
    let mut len = into.len() as libc::socklen_t;
    let pointer = into.as_mut_ptr().cast();
    // SAFETY: `getsockopt` writes at most `len` bytes to the slice, which is that long, alive and
    // exclusively borrowed, and the length to `len`. It keeps neither pointer.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, pointer, &raw mut len) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(len as usize) }
}

/// Whether a socket filter is attached. A filter that is not classic BPF cannot be read.
pub(crate) fn has_filter(socket: BorrowedFd<'_>) -> bool {
    let filter = option_bytes(socket, (libc::SOL_SOCKET, libc::SO_GET_FILTER), &mut []);
    match filter {
        Ok(len) => len > 0,
        Err(error) => error.raw_os_error() == Some(libc::EACCES),
    }
}

/// Returns the index of the interface that the socket is bound to; 0: none.
pub(crate) fn bound_interface(socket: BorrowedFd<'_>) -> io::Result<u32> {
    option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX)
}

/// Binds the socket to the frames of one interface; 0: of all.
pub(crate) fn bind_to_interface(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, SO_BINDTOIFINDEX, &index)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn options_of_plain_data_are_set_and_read() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("binds");
        let (level, reuse) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        set_option(&socket, level, reuse, &1_i32).expect("an option of all sockets");
        assert_eq!(option::<libc::c_int>(&socket, level, reuse).expect("the same"), 1);
        let refused = option::<u32>(&socket, level, -1).expect_err("there is no such option");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOPROTOOPT));
    }
}
