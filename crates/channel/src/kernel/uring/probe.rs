//! What io_uring can do on this kernel, in this sandbox, found out by doing it.
//!
//! Versions lie (back-ports, seccomp filters, `io_uring_disabled`), so each thing that the driver
//! relies on is tried once per process, on a small ring of its own and sockets that no other thread
//! sees. Takes well under a millisecond; needs no privilege and no network.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use io_uring::types::{BufRingEntry, CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::capabilities::{Capabilities, TaskWork};
use super::ring;
use crate::config::Config;
use crate::kernel::pool::PoolOwner;
use crate::kernel::sys;
use crate::kernel::{Refusal, found_once, has_worked, is_exhausted};

/// The answer for this process; tried at the first call.
///
/// # Errors
/// [`Refusal`] if something is missing, or there is no memory or descriptor to try it with.
pub(super) fn capabilities() -> Result<&'static Capabilities, Refusal> {
    static FOUND: OnceLock<Result<Capabilities, String>> = OnceLock::new();
    found_once(&FOUND, find)
}

const TRIAL_ENTRIES: u32 = 8;
/// More than a socket of the trial takes at once.
const TRIAL_SEND_BYTES: usize = 64 << 10;
const TRIAL_PATIENCE: Duration = Duration::from_secs(1);

fn find() -> Result<Capabilities, Refusal> {
    use TaskWork::{Cooperative, Deferred, DeferredDirect, Interrupting};
    let flavours = [DeferredDirect, Deferred, Cooperative, Interrupting];
    let mut refusal = None;
    for task_work in flavours {
        let tried = ring::set_up(TRIAL_ENTRIES, 2 * TRIAL_ENTRIES, task_work);
        match tried {
            Ok(ring) => return ProbeTrial { ring }.run(task_work),
            Err(source) if is_exhausted(&source) => {
                return Err(Refusal::Exhausted { what: "a ring of io_uring", source });
            }
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    let refusal = refusal.map_or_else(String::new, |error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a sandbox hides it".to_owned(),
        Some(libc::EPERM) => {
            "io_uring is forbidden here (seccomp filter or kernel.io_uring_disabled)".to_owned()
        }
        _ => format!("io_uring_setup: {error}"),
    });
    Err(Refusal::Missing(refusal))
}

struct ProbeTrial {
    ring: IoUring,
}

impl ProbeTrial {
    fn run(mut self, task_work: TaskWork) -> Result<Capabilities, Refusal> {
        if !self.ring.params().is_feature_ext_arg() {
            let reason = "waiting takes no time-out (EXT_ARG, Linux 5.11)";
            return Err(Refusal::Missing(reason.to_owned()));
        }
        self.multishot_receive()
            .map_err(|error| Refusal::of("multishot receive with a buffer ring", error))?;
        let table = self.ring.submitter().register_files_sparse(TRIAL_ENTRIES);
        let direct = match has_worked("a table of direct descriptors", table)? {
            Some(()) => has_worked("a direct descriptor", self.direct_accept())?,
            None => None,
        };
        let fd_install = match direct {
            Some(index) => has_worked("a file descriptor", self.fd_install(index))?.is_some(),
            None => false,
        };
        let silent_send = has_worked("a send", self.silent_send())?.is_some();
        Ok(Capabilities { task_work, direct_accept: direct.is_some(), fd_install, silent_send })
    }

    fn ask(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the trial's entries name static memory or none.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| io::Error::other("submission queue full"))?;
        self.ring.submit().map(drop)
    }

    /// The next answer to a request of the trial.
    fn answer(&mut self, user_data: u64) -> io::Result<cqueue::Entry> {
        let timespec = Timespec::from(TRIAL_PATIENCE);
        loop {
            let next = self.ring.completion().next();
            match next {
                Some(answer) if answer.user_data() == user_data => return Ok(answer),
                Some(_) => continue,
                None => {}
            }
            let args = SubmitArgs::new().timespec(&timespec);
            self.ring.submitter().submit_with_args(1, &args)?;
        }
    }

    /// A byte through a socket pair into a provided buffer, twice by one request, and the end of
    /// that request by cancelling its descriptor.
    fn multishot_receive(&mut self) -> io::Result<()> {
        let config = Config::default().buffer_len(64).buffer_count(4);
        let pool = PoolOwner::new(config.buffer_len, config.buffer_count)?;
        let mut buffers = ring::trial_buffers(&self.ring, &config)?;
        buffers.lend(&pool);
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let receive = opcode::RecvMulti::new(Fd(ours.as_raw_fd()), ring::BUFFER_GROUP).build();
        self.ask(&receive.user_data(1))?;
        for _ in 0..2 {
            rustix::io::write(&theirs, &[7])?;
            let answer = self.answer(1)?;
            let worked = answer.result() == 1
                && cqueue::buffer_select(answer.flags()).is_some()
                && cqueue::more(answer.flags());
            if !worked {
                return Err(unexpected(&answer));
            }
        }
        let cancel = CancelBuilder::fd(Fd(ours.as_raw_fd())).all();
        self.ask(&opcode::AsyncCancel2::new(cancel).build().user_data(2))?;
        let last = self.answer(1)?;
        if last.result() != -libc::ECANCELED || cqueue::more(last.flags()) {
            return Err(unexpected(&last));
        }
        self.ring.submitter().unregister_buf_ring(ring::BUFFER_GROUP)
    }

    /// A connection accepted into a direct descriptor of the kernel's choice.
    fn direct_accept(&mut self) -> io::Result<u32> {
        let listener = sys::socket(AddressFamily::UNIX, SocketType::STREAM, false)?;
        // An address of the kernel's choice in the abstract name space.
        rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new_unnamed())?;
        rustix::net::listen(&listener, 1)?;
        let client = sys::socket(AddressFamily::UNIX, SocketType::STREAM, false)?;
        let address = rustix::net::getsockname(listener.as_fd())?;
        rustix::net::connect(&client, &address)?;
        let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd())).allocate_file_index(true);
        self.ask(&accept.build().user_data(3))?;
        let answer = self.answer(3)?;
        if answer.result() < 0 || !cqueue::more(answer.flags()) {
            return Err(unexpected(&answer));
        }
        Ok(answer.result() as u32)
    }

    /// A send that succeeds says nothing and is over when it is submitted; one that finds no room
    /// for all of its bytes says at once how many went out.
    fn silent_send(&mut self) -> io::Result<()> {
        static BYTES: [u8; TRIAL_SEND_BYTES] = [0; TRIAL_SEND_BYTES];
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        set_socket_send_buffer_size(&ours, TRIAL_SEND_BYTES / 8)?;
        let send = |len: usize| {
            let send = opcode::Send::new(Fd(ours.as_raw_fd()), BYTES.as_ptr(), len as u32);
            send.flags(FLAGS).build().flags(squeue::Flags::SKIP_SUCCESS)
        };
        self.ask(&send(1).user_data(5))?;
        let mut arrived = [0; 2];
        let (count, _) = rustix::net::recv(&theirs, &mut arrived, RecvFlags::DONTWAIT)?;
        if count != 1 {
            return Err(io::Error::other("the send was not over when it was submitted"));
        }
        if let Some(answer) = self.ring.completion().next() {
            return Err(unexpected(&answer));
        }
        self.ask(&send(TRIAL_SEND_BYTES).user_data(6))?;
        let answer = self.answer(6)?;
        let partial = (1..TRIAL_SEND_BYTES as i32).contains(&answer.result());
        if partial || answer.result() == -libc::EAGAIN { Ok(()) } else { Err(unexpected(&answer)) }
    }

    fn fd_install(&mut self, direct: u32) -> io::Result<()> {
        let install = opcode::FixedFdInstall::new(Fixed(direct), 0).build();
        self.ask(&install.user_data(4))?;
        let answer = self.answer(4)?;
        if answer.result() < 0 {
            return Err(unexpected(&answer));
        }
        // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(answer.result()) });
        Ok(())
    }
}

fn unexpected(answer: &cqueue::Entry) -> io::Error {
    if answer.result() < 0 {
        return io::Error::from_raw_os_error(-answer.result());
    }
    io::Error::other(format!("result {}, flags {:#x}", answer.result(), answer.flags()))
}

const _: () = assert!(size_of::<BufRingEntry>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trial_gives_one_answer_per_process() {
        match capabilities() {
            Ok(found) => assert!(!found.features().is_empty()),
            Err(why) => {
                println!("skipped: the_trial_gives_one_answer_per_process: {why:?}");
                return;
            }
        }
        let again = || capabilities().expect("it worked a moment ago");
        assert!(std::ptr::eq(again(), again()));
    }
}
