//! Fall-back to the kernel: recorded sockets go on there if the stack cannot serve them
//! (`--fall-back`).
//!
//! Read first: `records.rs`. The kernel's socket of a record has its options and is in the
//! program's sets; where the stack alone would have been bound, it is bound here.
//!
//! Invariant: each socket that moves is a line of the report, and the first failure is a line on
//! standard error.

use std::ffi::c_int;
use std::net::SocketAddr;

use libc::socklen_t;
use megapipe_marshal::write_address;
use megapipe_sockets::Error;

use crate::raw::system_call;
use crate::records::{RecordedSockets, SocketRecord, give_sets_to_kernel};
use crate::report;
use crate::rules::SocketPath;

impl RecordedSockets {
    /// Gives all sockets that wait for the stack to the kernel, because it cannot start.
    pub(crate) fn fall_back(&mut self) {
        for fd in self.waiting_numbers() {
            self.fall_back_one(fd);
        }
        give_sets_to_kernel();
    }

    /// Gives a socket that the stack does not serve to the kernel.
    pub(crate) fn fall_back_one(&mut self, fd: c_int) {
        let Some(record) = self.of(fd).map(|record| record.clone()) else { return };
        let Some(path) = record.path else { return };
        self.give_to_kernel(fd);
        report::move_to_kernel(path);
        let bound = bind_in_kernel(fd, path, &record);
        let address = record.bound.map_or_else(|| "a socket".to_owned(), |it| it.to_string());
        match bound {
            Ok(()) => report::note(format_args!("{address}: kernel (--fall-back)")),
            Err(error) => report::complain(format_args!(
                "{address}: neither on the stack nor in the kernel (--fall-back): {error}"
            )),
        }
    }
}

/// Binds the kernel's socket where the stack's would have been.
fn bind_in_kernel(fd: c_int, path: SocketPath, record: &SocketRecord) -> Result<(), Error> {
    if path != SocketPath::Stack || record.is_reserved {
        return Ok(());
    }
    if let Some(address) = record.bound {
        bind(fd, address)?;
    }
    match record.backlog {
        Some(backlog) => {
            let arguments = [fd as usize, backlog as usize, 0, 0, 0, 0];
            // SAFETY: takes integers.
            checked(unsafe { system_call(libc::SYS_listen, arguments) })
        }
        None => Ok(()),
    }
}

fn bind(fd: c_int, address: SocketAddr) -> Result<(), Error> {
    let mut room = [0_u64; 16];
    let mut len = size_of_val(&room) as socklen_t;
    // SAFETY: both are locals, and the length is that of the room.
    unsafe { write_address(room.as_mut_ptr().cast(), &raw mut len, Some(address)) };
    let arguments = [fd as usize, room.as_ptr() as usize, len as usize, 0, 0, 0];
    // SAFETY: the address is a local.
    checked(unsafe { system_call(libc::SYS_bind, arguments) })
}

fn checked(result: isize) -> Result<(), Error> {
    match result {
        0.. => Ok(()),
        _ => Err(Error::from_raw_os_error(-result as c_int)),
    }
}
