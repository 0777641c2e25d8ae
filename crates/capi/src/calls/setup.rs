//! Calls that create handles: listening, connecting, datagram sockets, files and timers.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use channel::{ConnectOptions, ListenOptions, Misuse, OpenOptions, SocketKind};
use libc::{
    AF_INET, AF_INET6, AF_UNIX, O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_LARGEFILE,
    O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, sockaddr, socklen_t,
};

use crate::abi::{
    MP_EXCLUSIVE, MP_FAST_OPEN, MP_GATHER, MP_ONLY_V6, MP_RESET_ON_CLOSE, mp_connect_options,
    mp_handle_t, mp_listen_options,
};
use crate::address;
use crate::border::handle as returned;
use crate::calls::membership::read_mask;
use crate::calls::{non_null, read_sized};
use crate::error::{CallError, CallFailure};
use crate::object::{ChannelInner, mp_channel_t, with_channel};

/// Creates a listening socket. `options` may be null. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_listen(
    channel: *mut mp_channel_t,
    address: *const sockaddr,
    address_size: socklen_t,
    options: *const mp_listen_options,
    cookie: *mut c_void,
) -> mp_handle_t {
    let listen = |inner: &mut ChannelInner| {
        // SAFETY: the program promises an address of that size, or null.
        let address = unsafe { address::read(address, address_size, "address") }?;
        // SAFETY: the program promises a record that begins with its size, or null.
        let options = unsafe { listen_options(options) }?;
        Ok(inner.channel.listen(&address, &options, cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_listen", unsafe { with_channel(channel, listen) })
}

/// Starts a connection; MP_CONNECT reports the result. `options` may be null. MP_NO_HANDLE on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_connect(
    channel: *mut mp_channel_t,
    address: *const sockaddr,
    address_size: socklen_t,
    options: *const mp_connect_options,
    cookie: *mut c_void,
) -> mp_handle_t {
    let connect = |inner: &mut ChannelInner| {
        // SAFETY: the program promises an address of that size, or null.
        let address = unsafe { address::read(address, address_size, "address") }?;
        // SAFETY: the program promises a record that begins with its size, or null.
        let options = unsafe { connect_options(options) }?;
        Ok(inner.channel.connect(&address, &options, cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_connect", unsafe { with_channel(channel, connect) })
}

/// Creates a datagram socket: AF_INET, AF_INET6 or AF_UNIX. `address` is the address to bind, or
/// null. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_socket(
    channel: *mut mp_channel_t,
    family: c_int,
    address: *const sockaddr,
    address_size: socklen_t,
    cookie: *mut c_void,
) -> mp_handle_t {
    let socket = |inner: &mut ChannelInner| {
        let kind = match family {
            AF_INET => SocketKind::Udp4,
            AF_INET6 => SocketKind::Udp6,
            AF_UNIX => SocketKind::UnixDatagram,
            _ => return Err(Misuse::InvalidAddress.into()),
        };
        let bind = if address.is_null() {
            None
        } else {
            // SAFETY: the program promises an address of that size.
            Some(unsafe { address::read(address, address_size, "address") }?)
        };
        Ok(inner.channel.socket(kind, bind.as_ref(), cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_socket", unsafe { with_channel(channel, socket) })
}

/// Opens a disk file with the flags of open(2); MP_OPEN reports the result. MP_NO_HANDLE on
/// failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_open(
    channel: *mut mp_channel_t,
    path: *const c_char,
    flags: c_int,
    cookie: *mut c_void,
) -> mp_handle_t {
    let open = |inner: &mut ChannelInner| {
        non_null(path, "path")?;
        let options = open_options(flags)?;
        // SAFETY: the program promises text that ends with a NUL.
        let path = unsafe { CStr::from_ptr(path) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        Ok(inner.channel.open(path, &options, cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_open", unsafe { with_channel(channel, open) })
}

/// Starts a timer: MP_TIMER after `after_ns` nanoseconds, and then every `period_ns` if that is not
/// 0. mp_unregister() cancels it. MP_NO_HANDLE on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_timer(
    channel: *mut mp_channel_t,
    after_ns: u64,
    period_ns: u64,
    cookie: *mut c_void,
) -> mp_handle_t {
    let timer = |inner: &mut ChannelInner| {
        let after = Duration::from_nanos(after_ns);
        let period = (period_ns != 0).then(|| Duration::from_nanos(period_ns));
        Ok(inner.channel.timer(after, period, cookie as u64)?)
    };
    // SAFETY: the program promises a channel that it has not destroyed.
    returned("mp_timer", unsafe { with_channel(channel, timer) })
}

/// # Safety
/// `options` is null or points to a record that begins with its size; `cpu_mask` in it is null or
/// points to `cpu_mask_words` words.
unsafe fn listen_options(options: *const mp_listen_options) -> Result<ListenOptions, CallFailure> {
    let mut listen = ListenOptions::default();
    if options.is_null() {
        return Ok(listen);
    }
    // SAFETY: the caller keeps the contract; any bytes are a valid record of integers and pointers.
    let options: mp_listen_options = unsafe { read_sized(options, "options") }?;
    if options.flags & !(MP_EXCLUSIVE | MP_ONLY_V6) != 0 {
        return Err(CallError::Argument("options->flags").into());
    }
    if options.backlog != 0 {
        listen = listen.backlog(options.backlog);
    }
    if !options.cpu_mask.is_null() {
        // SAFETY: the caller promises the words.
        let mask = unsafe { read_mask(options.cpu_mask, options.cpu_mask_words) }?;
        listen = listen.cpu_mask(mask);
    }
    if options.flags & MP_EXCLUSIVE != 0 {
        listen = listen.share(false);
    }
    Ok(listen
        .only_v6(options.flags & MP_ONLY_V6 != 0)
        .fast_open(options.fast_open)
        .notsent_lowat(options.notsent_lowat))
}

/// # Safety
/// `options` is null or points to a record that begins with its size; `bind` in it is null or
/// points to `bind_size` bytes.
unsafe fn connect_options(
    options: *const mp_connect_options,
) -> Result<ConnectOptions, CallFailure> {
    let mut connect = ConnectOptions::default();
    if options.is_null() {
        return Ok(connect);
    }
    // SAFETY: the caller keeps the contract; any bytes are a valid record of integers and pointers.
    let options: mp_connect_options = unsafe { read_sized(options, "options") }?;
    if options.flags & !(MP_GATHER | MP_RESET_ON_CLOSE | MP_FAST_OPEN) != 0 {
        return Err(CallError::Argument("options->flags").into());
    }
    if options.reserved != 0 {
        return Err(CallError::Argument("options->reserved").into());
    }
    if options.timeout_ns != 0 {
        connect = connect.timeout(Duration::from_nanos(options.timeout_ns));
    }
    if !options.bind.is_null() {
        // SAFETY: the caller promises an address of that size.
        let bind = unsafe { address::read(options.bind, options.bind_size, "options->bind") }?;
        connect = connect.bind(bind);
    }
    Ok(connect
        .nodelay(options.flags & MP_GATHER == 0)
        .reset_on_close(options.flags & MP_RESET_ON_CLOSE != 0)
        .fast_open(options.flags & MP_FAST_OPEN != 0)
        .notsent_lowat(options.notsent_lowat))
}

/// Translates the flags of open(2) that a channel supports.
fn open_options(flags: c_int) -> Result<OpenOptions, CallFailure> {
    const KNOWN: c_int =
        O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_CLOEXEC | O_LARGEFILE;
    if flags & !KNOWN != 0 {
        return Err(CallError::Argument("flags").into());
    }
    let mut options = OpenOptions::default();
    (options.read, options.write) = match flags & O_ACCMODE {
        O_RDONLY => (true, false),
        O_WRONLY => (false, true),
        O_RDWR => (true, true),
        _ => return Err(CallError::Argument("flags").into()),
    };
    options.create = flags & O_CREAT != 0;
    options.create_new = flags & O_CREAT != 0 && flags & O_EXCL != 0;
    options.truncate = flags & O_TRUNC != 0;
    options.append = flags & O_APPEND != 0;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_are_translated() {
        let options = open_options(O_RDONLY | O_CLOEXEC).unwrap();
        assert_eq!(options, OpenOptions::read());
        let options = open_options(O_RDWR | O_CREAT).unwrap();
        assert_eq!(options, OpenOptions::write());
        let options = open_options(O_WRONLY | O_CREAT | O_EXCL | O_APPEND).unwrap();
        assert!(!options.read && options.write && options.create_new && options.append);
        assert!(open_options(libc::O_DIRECTORY).is_err());
        assert!(open_options(O_ACCMODE).is_err());
    }
}
