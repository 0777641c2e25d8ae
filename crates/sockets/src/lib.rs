//! How does a readiness-based program use a channel? BSD calls and epoll on top of completions.
//!
//! In: the calls of [`Bsd`], with Linux's numbers and meanings. Out: what Linux's would answer, to
//! the error number ([`Error`]) and the bits of epoll ([`Events`]). Beneath lies a
//! [`megapipe::Channel`], on the kernel's TCP or on our own stack.
//!
//! A [`Context`] belongs to one thread, which drives its sockets by its calls, without a lock. Its
//! descriptors are its own: small numbers, the lowest that is free, without meaning to the process
//! or to another context [MT 3.3]. A [`SharedContext`] is for threads that share sockets, and for
//! programs that drive them from outside, for example in virtual time.
//!
//! Sets, `poll` and `select` take descriptors of the process as well ([`AnyFd`]): pipes, timers,
//! signals, sockets and sets of the kernel's, beside the context's own.
//!
//! ```no_run
//! use megapipe_sockets::{Bsd, Config, Context, EpollEvent, EpollOp, Events, OpenFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut context = Context::create(Config::default())?;
//! let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)?;
//! context.bind(listener, "127.0.0.1:7000".parse()?)?;
//! context.listen(listener, 128)?;
//! let epoll = context.epoll_create1(OpenFlags::empty())?;
//! let watch = |fd: i32| EpollOp::Add(EpollEvent { events: Events::IN, data: fd as u64 });
//! context.epoll_ctl(epoll, watch(listener), listener)?;
//! let (mut events, mut bytes) = ([EpollEvent::default(); 64], [0; 4096]);
//! loop {
//!     let count = context.epoll_wait(epoll, &mut events, None)?;
//!     for event in &events[..count] {
//!         let fd = event.data as i32;
//!         if fd == listener {
//!             let connection = context.accept4(listener, OpenFlags::NONBLOCK)?;
//!             context.epoll_ctl(epoll, watch(connection), connection)?;
//!             continue;
//!         }
//!         match context.read(fd, &mut bytes) {
//!             Ok(len) if len > 0 => drop(context.write(fd, &bytes[..len])?),
//!             _ => context.close(fd)?,
//!         }
//!     }
//! }
//! # }
//! ```
//!
//! **Invariants.** A call is decided by attempts that do not wait ([`Bsd`] repeats them); an error
//! number stands in `error.rs` and nowhere else; bytes are copied once on the way to the caller's
//! memory and once from there.
//!
//! **Layers**, each of which uses those below it:
//!
//! 1. `context.rs`, `shared_context.rs`: which thread waits, and how;
//! 2. `calls/`: one attempt of each call;
//! 3. `table.rs`: descriptors, objects, and the effects of one on others;
//! 4. `stream.rs`, `listener.rs`, `datagram.rs`, `pipe.rs`, `counter.rs`, `epoll_set.rs`,
//!    `foreign_fds.rs`: values that know neither the table nor each other;
//! 5. `transport.rs`: what they submit to the channel; `polled_channel.rs` implements it;
//! 6. `readiness.rs`, `options.rs`, `control_data.rs`, `error_queue.rs`, `ports.rs`,
//!    `dual_stack.rs`.
//!
//! Start with `readiness.rs`, `stream.rs` and `table.rs`.
//!
//! \[MT\]: Jeong, Woo, Jamshed, Jeong, Ihm, Han, Park, "mTCP: a Highly Scalable User-level TCP
//! Stack for Multicore Systems".
#![deny(unsafe_code)]

mod attempt;
mod call_runner;
mod calls;
mod config;
mod context;
mod control_data;
mod counter;
mod datagram;
mod descriptors;
mod dual_stack;
mod effects;
mod epoll_set;
mod error;
mod error_queue;
mod fallible_box;
mod flags;
mod foreign_fds;
mod fork_sharing;
mod gather;
mod index_table;
mod kernel;
mod kernel_options;
mod lead;
pub mod limits;
mod listener;
mod options;
mod pipe;
mod polled_channel;
mod ports;
mod readiness;
mod reuseport_group;
mod shared_context;
mod signal;
mod sleeper_bells;
mod stream;
mod table;
mod transport;

pub use attempt::{Attempt, Wait};
pub use call_runner::CallRunner;
pub use calls::{Bsd, FdSet, PollFd};
pub use config::{Config, CreateError};
pub use context::Context;
pub use datagram::InheritedDatagram;
pub use descriptors::Fd;
pub use error::Error;
pub use flags::{EpollEvent, EpollOp, Events, MsgFlags, OpenFlags};
pub use foreign_fds::AnyFd;
pub use fork_sharing::{InheritedSocket, SharedSockets};
pub use gather::ReceivedMessage;
pub use kernel::{SIOCATMARK, SIOCOUTQNSD, SignalHooks, set_signal_hooks};
pub use shared_context::{Driving, SharedContext};
pub use signal::SignalMask;
pub use stream::{InheritedStream, Shutdown};
pub use table::Sockets;
