//! Causes of failed C calls, and their errno values.
//!
//! A program branches on errno, so each cause has one fixed value (the table in `megapipe(7)`).
//! `mp_last_error()` returns the text of [`set_last`], which names the call and the cause. Text is
//! formatted only if a call fails.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write};
use std::io;

use channel::{
    ConnectError, CreateError, DispatchError, Limit, ListenError, Misuse, MoveError, NetworkError,
    OpError, PrefixedError, RegisterError, ShareError, SubmitError, errno_of,
};
use libc::{
    EAFNOSUPPORT, EAGAIN, EBADF, EBUSY, ECHILD, EDEADLK, EEXIST, EFAULT, EINVAL, EIO, ENFILE,
    ENOBUFS, ENODEV, ENOMEM, ENOSYS, ENOTRECOVERABLE, EOPNOTSUPP, EPERM, ESHUTDOWN, EXDEV,
};
use marshal::ArgumentError;
use thiserror::Error;

use crate::limits::{KERNEL_TEXT_BYTES, LAST_ERROR_BYTES};

/// A failed call with its cause.
///
/// Invariant: creating one and reading its errno and text allocate nothing ([`CallError`] is stored
/// inline). So a call fails correctly without memory, and in a signal handler that interrupted
/// malloc(3).
#[derive(Debug)]
pub(crate) struct CallFailure(CallError);

// The result of a call that succeeds has space for one.
const _: () = assert!(size_of::<CallFailure>() <= 96);

impl CallFailure {
    /// The cause.
    pub(crate) fn why(&self) -> &CallError {
        &self.0
    }
}

impl<E: Into<CallError>> From<E> for CallFailure {
    #[cold]
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

/// Cause of a failed call: the C interface's own checks, and the channel's errors.
#[derive(Debug, Error)]
pub(crate) enum CallError {
    #[error("{0} is a null pointer")]
    Null(&'static str),
    #[error("the channel belongs to another thread")]
    WrongThread,
    #[error("a signal handler called into the channel while the thread was inside a call")]
    Reentered,
    #[error("an internal error happened in this channel before; destroy it")]
    Poisoned,
    #[error("no channel has this handle")]
    NoChannel,
    #[error("the lent buffer was released before, or the event lends none")]
    NotLent,
    #[error("{0} has a value that is not allowed")]
    Argument(&'static str),
    #[error("{name} = {value}: {allowed}")]
    Setting { name: &'static str, value: String, allowed: &'static str },
    #[error("{0} is not set: {1}")]
    Missing(&'static str, &'static str),
    #[error("the descriptor belongs to another thread's sockets")]
    OtherThreads,
    #[error("there are sockets already: this comes first, or after mps_destroy()")]
    InUse,
    #[error("the process may have descriptors of the kernel up to {0}: lower RLIMIT_NOFILE to 512")]
    NumbersOverlap(u64),
    #[error("more threads have sockets of their own than may have")]
    TooManyThreads,
    #[error("the process has as many channels as it may have")]
    TooManyChannels,
    #[error("there is no such context")]
    NoContext,
    #[error("core {0} has a context already")]
    Occupied(usize),
    #[error("mtcp_init() was not called, or failed")]
    NotInitialised,
    #[error("{path}: {reason}")]
    File { path: String, reason: String },
    #[error("configuration: {0}")]
    Unusable(String),
    #[error(transparent)]
    Socket(#[from] sockets::Error),
    #[error(transparent)]
    Sockets(#[from] sockets::CreateError),
    #[error(transparent)]
    Misuse(#[from] Misuse),
    #[error(transparent)]
    Limit(#[from] Limit),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    #[error(transparent)]
    Operation(#[from] OpError),
    #[error("{name} = {link}")]
    Network { name: &'static str, link: String, source: Box<NetworkError> },
    #[error("{name}")]
    Address { name: &'static str, source: PrefixedError },
    #[error(transparent)]
    Move(#[from] MoveError),
    #[error(transparent)]
    Share(#[from] ShareError),
    #[error(transparent)]
    Kernel(#[from] io::Error),
}

impl From<ArgumentError> for CallError {
    fn from(error: ArgumentError) -> Self {
        match error {
            ArgumentError::Null(name) => Self::Null(name),
            ArgumentError::Invalid(name) => Self::Argument(name),
            ArgumentError::Socket(error) => Self::Socket(error),
            // A new kind has the text of its own.
            error => Self::Socket(error.into()),
        }
    }
}

impl CallError {
    /// A field of a configuration or a variable of the environment has a value that is not
    /// `allowed`.
    pub(crate) fn setting(
        name: &'static str,
        value: impl fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Setting { name, value: value.to_string(), allowed }
    }

    /// The errno value that names this cause.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Self::Null(_) => EFAULT,
            Self::WrongThread => EPERM,
            Self::Reentered => EDEADLK,
            Self::Poisoned => ENOTRECOVERABLE,
            Self::NoChannel | Self::NoContext | Self::OtherThreads => EBADF,
            Self::InUse => EBUSY,
            Self::NumbersOverlap(_) => EINVAL,
            Self::NotLent | Self::Argument(_) | Self::Setting { .. } | Self::Missing(..) => EINVAL,
            Self::File { .. } | Self::Unusable(_) => EINVAL,
            Self::Occupied(_) => EEXIST,
            Self::NotInitialised => ENODEV,
            Self::Socket(error) => error.raw_os_error(),
            Self::Sockets(sockets::CreateError::Channel(error)) => create_errno(error),
            Self::Sockets(_) => EINVAL,
            Self::TooManyChannels | Self::TooManyThreads => ENFILE,
            Self::Misuse(misuse) | Self::Submit(SubmitError::Misuse(misuse)) => {
                misuse_errno(misuse)
            }
            Self::Limit(limit) | Self::Submit(SubmitError::Limit(limit)) => limit_errno(*limit),
            // A new kind of cause is not an invalid argument.
            Self::Submit(_) => EAGAIN,
            Self::Create(error) => create_errno(error),
            Self::Register(error) => register_errno(error),
            Self::Listen(ListenError::Register(error)) => register_errno(error),
            Self::Listen(ListenError::Misuse(misuse))
            | Self::Connect(ConnectError::Misuse(misuse)) => misuse_errno(misuse),
            Self::Listen(ListenError::Limit(limit)) | Self::Connect(ConnectError::Limit(limit)) => {
                limit_errno(*limit)
            }
            Self::Listen(ListenError::Kernel { source, .. })
            | Self::Connect(ConnectError::Kernel { source, .. })
            | Self::Dispatch(DispatchError::Kernel(source))
            | Self::Kernel(source) => errno_of(source),
            Self::Dispatch(DispatchError::Forked) => ECHILD,
            Self::Operation(error) => error.raw_os_error(),
            Self::Network { source, .. } => source.raw_os_error(),
            Self::Address { .. } => EINVAL,
            Self::Move(MoveError::Misuse(misuse)) => misuse_errno(misuse),
            Self::Move(MoveError::Limit(limit)) => limit_errno(*limit),
            Self::Move(error) => error.raw_os_error(),
            Self::Share(ShareError::Misuse(misuse)) => misuse_errno(misuse),
            Self::Share(ShareError::Limit(limit)) => limit_errno(*limit),
            Self::Share(error) => error.raw_os_error(),
            // The channel may get new causes; until they have a value here they are EIO.
            Self::Listen(_) | Self::Connect(_) | Self::Dispatch(_) => EIO,
        }
    }
}

/// The errno value of a limit that was reached.
fn limit_errno(limit: Limit) -> c_int {
    match limit {
        Limit::Handles => ENFILE,
        Limit::Memory => ENOMEM,
        Limit::UnsentBytes { .. } => ENOBUFS,
        // Limits of operations, present and future: a later call may succeed.
        _ => EAGAIN,
    }
}

/// The errno value of an API misuse.
fn misuse_errno(misuse: &Misuse) -> c_int {
    match misuse {
        Misuse::StaleHandle => EBADF,
        Misuse::ForeignHandle => EXDEV,
        Misuse::WrongKind { .. } | Misuse::CannotMove { .. } => EOPNOTSUPP,
        Misuse::Forked => ECHILD,
        Misuse::InvalidLength { .. }
        | Misuse::InvalidDuration
        | Misuse::InvalidPath
        | Misuse::InvalidCount => EINVAL,
        Misuse::InvalidAddress => EAFNOSUPPORT,
        Misuse::Closing => ESHUTDOWN,
        _ => EINVAL,
    }
}

fn create_errno(error: &CreateError) -> c_int {
    match error {
        CreateError::Local(error) if error.is_out_of_memory() => ENOMEM,
        CreateError::Config { .. } | CreateError::Local(_) | CreateError::Placement { .. } => {
            EINVAL
        }
        CreateError::NoQueue => EBUSY,
        CreateError::Service(error) => error.raw_os_error(),
        CreateError::DriverUnavailable { .. } => ENOSYS,
        // For example a server thread that cannot be pinned to its core.
        error => kernel_cause(error).map_or(EIO, errno_of),
    }
}

/// The error of the kernel, if it is a cause of the error.
fn kernel_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref()).next()
}

fn register_errno(error: &RegisterError) -> c_int {
    match error {
        RegisterError::Misuse(misuse) => misuse_errno(misuse),
        RegisterError::Limit(limit) => limit_errno(*limit),
        RegisterError::Unsupported { .. } => EOPNOTSUPP,
        RegisterError::AlreadyRegistered => EEXIST,
        RegisterError::MaskOverlaps { .. } => EBUSY,
        RegisterError::MaskNotPossible => EINVAL,
        RegisterError::Kernel { source, .. } => errno_of(source),
        _ => EIO,
    }
}

/// A cause with its sources, in one line.
pub(crate) struct WithCauses<'a>(pub(crate) &'a CallError);

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CallError::Kernel(error) => write!(f, "{}", Cause(error))?,
            error => write!(f, "{error}")?,
        }
        let mut cause = std::error::Error::source(self.0);
        while let Some(source) = cause {
            write!(f, ": {}", Cause(source))?;
            cause = source.source();
        }
        Ok(())
    }
}

/// Prints a line on standard error, for programs that do not call `mp_last_error()`.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let errno = Errno::now();
    // A closed standard error is ignored.
    let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("megapipe: {text}\n"));
    errno.put_back();
}

/// The text of a cause, formatted without allocating: that of an [`io::Error`] is otherwise a
/// `String`.
struct Cause<'a>(&'a (dyn std::error::Error + 'static));

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.downcast_ref().and_then(io::Error::raw_os_error);
        let Some(number) = number else { return write!(f, "{}", self.0) };
        let mut text = [0_u8; KERNEL_TEXT_BYTES];
        // SAFETY: `text` has that many writable bytes, and nothing else uses them.
        let failed = unsafe { libc::strerror_r(number, text.as_mut_ptr().cast(), text.len()) } != 0;
        let text = CStr::from_bytes_until_nul(&text).ok().and_then(|text| text.to_str().ok());
        let text = text.filter(|_| !failed).unwrap_or("unknown error");
        write!(f, "{text} (os error {number})")
    }
}

/// Remembers the failure for `mp_last_error()` and sets errno.
#[cold]
pub(crate) fn set_last(call: &str, error: &CallError) {
    let mut text = LastError::EMPTY;
    // A text that does not fit is truncated; the writer never fails.
    let _ = write!(text, "{call}: {}", WithCauses(error));
    LAST.set(text);
    UNFORMATTED.set(None);
    set_errno(error.errno());
}

/// As [`set_last`], for an error of a socket. The text is formatted on demand, because programs get
/// EAGAIN once for each message.
#[inline]
pub(crate) fn set_last_of_socket(call: &'static str, error: sockets::Error) {
    UNFORMATTED.set(Some((call, error)));
    set_errno(error.raw_os_error());
}

/// This thread's last failure, as C text; empty if no call has failed. Never null.
pub(crate) fn last() -> *const c_char {
    if let Some((call, error)) = UNFORMATTED.take() {
        let mut text = LastError::EMPTY;
        // As above.
        let _ = write!(text, "{call}: {error}");
        LAST.set(text);
    }
    LAST.with(|last| last.as_ptr().cast::<c_char>().cast_const())
}

fn set_errno(errno: c_int) {
    Errno { value: errno, ..Errno::now() }.put_back();
}

/// The calling thread's errno on entry to a call. A call that succeeds restores it, because a
/// system call inside may have failed (a wait that timed out, a trial).
#[derive(Clone, Copy)]
pub(crate) struct Errno {
    location: *mut c_int,
    value: c_int,
}

impl Errno {
    /// Reads the current value.
    #[inline]
    pub(crate) fn now() -> Self {
        // SAFETY: errno has an address in every thread, for the thread's whole life.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: the address is valid and aligned, and only this thread uses it.
        let value = unsafe { location.read() };
        Self { location, value }
    }

    /// Restores the value. The record stays on its thread because it contains a pointer.
    #[inline]
    pub(crate) fn put_back(self) {
        // SAFETY: the address is this thread's errno, as in `now`.
        unsafe { self.location.write(self.value) };
    }
}

thread_local! {
    static LAST: Cell<LastError> = const { Cell::new(LastError::EMPTY) };
    /// The failure that is newer than the text in `LAST`, if there is one.
    static UNFORMATTED: Cell<Option<(&'static str, sockets::Error)>> = const { Cell::new(None) };
}

/// Text of bounded length, always followed by a NUL. The text is the first field: see [`last`].
#[derive(Clone, Copy)]
#[repr(C)]
struct LastError {
    text: [u8; LAST_ERROR_BYTES],
    len: usize,
}

impl LastError {
    const EMPTY: Self = Self { text: [0; LAST_ERROR_BYTES], len: 0 };
}

impl Write for LastError {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        // One byte stays for the NUL.
        let room = LAST_ERROR_BYTES - 1 - self.len;
        let mut len = part.len().min(room);
        while !part.is_char_boundary(len) {
            len -= 1;
        }
        self.text[self.len..self.len + len].copy_from_slice(&part.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        // SAFETY: `last` points to text of this thread that ends with a NUL.
        unsafe { CStr::from_ptr(last()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn causes_have_the_errno_values_of_the_man_page() {
        let table = [
            (CallError::Null("channel"), EFAULT),
            (CallError::WrongThread, EPERM),
            (CallError::Reentered, EDEADLK),
            (CallError::Poisoned, ENOTRECOVERABLE),
            (CallError::NoChannel, EBADF),
            (CallError::NotLent, EINVAL),
            (Misuse::StaleHandle.into(), EBADF),
            (Misuse::ForeignHandle.into(), EXDEV),
            (Misuse::WrongKind { call: "accept", kind: "timer" }.into(), EOPNOTSUPP),
            (Misuse::Forked.into(), ECHILD),
            (Limit::Operations.into(), EAGAIN),
            (Limit::Handles.into(), ENFILE),
            (Limit::Memory.into(), ENOMEM),
            (Limit::UnsentBytes { max: 1 }.into(), ENOBUFS),
            (Misuse::InvalidLength { len: 0, max: 1 }.into(), EINVAL),
            (Misuse::InvalidAddress.into(), EAFNOSUPPORT),
            (Misuse::Closing.into(), ESHUTDOWN),
            (RegisterError::AlreadyRegistered.into(), EEXIST),
            (RegisterError::MaskOverlaps { core: 1 }.into(), EBUSY),
            (RegisterError::MaskNotPossible.into(), EINVAL),
            (OpError::Reset.into(), libc::ECONNRESET),
            (DispatchError::Forked.into(), ECHILD),
            (io::Error::from_raw_os_error(libc::EMFILE).into(), libc::EMFILE),
        ];
        for (error, errno) in table {
            assert_eq!(error.errno(), errno, "{error}");
        }
    }

    #[test]
    fn the_last_error_names_the_call_and_the_whole_cause() {
        let source = io::Error::from_raw_os_error(EINVAL);
        let error = CallError::from(CreateError::Pin { core: 900, source });
        set_last("mp_create", &error);
        assert!(last_text().starts_with("mp_create: cannot pin this thread to core 900: Invalid"));
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(EINVAL));
    }

    #[test]
    fn socket_error_text_is_formatted_on_demand() {
        set_last("mp_create", &CallError::Poisoned);
        set_last_of_socket("mps_read", sockets::Error::WouldBlock);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(EAGAIN));
        assert_eq!(last_text(), "mps_read: the call would have to wait");
        assert_eq!(last_text(), "mps_read: the call would have to wait");
        set_last_of_socket("mps_read", sockets::Error::WouldBlock);
        set_last("mp_create", &CallError::Poisoned);
        assert!(last_text().starts_with("mp_create: "));
    }

    #[test]
    fn long_text_is_truncated_at_a_character() {
        let reason = "é".repeat(LAST_ERROR_BYTES);
        set_last("x", &CreateError::DriverUnavailable { driver: "uring", reason }.into());
        let text = last_text();
        assert!(text.len() < LAST_ERROR_BYTES && text.ends_with('é'));
    }
}
