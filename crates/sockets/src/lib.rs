//! How does a readiness-based program use a channel? BSD calls and epoll on top of completions.
//!
//! In: the calls of [`Bsd`], with Linux's numbers and meanings. Out: what Linux's would answer, to
//! the error number ([`Error`]) and the bits of epoll ([`Events`]). Beneath lies a
//! [`megapipe::Channel`], on the kernel's TCP or on our own stack.
//!
//! A [`Context`] belongs to one thread, which drives its sockets by its calls, without a lock. Its
//! descriptors are its own: small numbers, the lowest that is free, without meaning to the process
//! or to another context [MT 3.3]. A [`SharedContext`] is for threads that share sockets, and for
//! who drives them himself, in virtual time if need be.
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
//! **Invariants.** What a call means is decided without waiting, in one place ([`Bsd`] tells how it
//! waits); an error number stands in `error.rs` and nowhere else; bytes are copied once on the way
//! to the caller's memory and once from there.
//!
//! **Where to start reading**: `sockets.rs` (objects, turns), `readiness.rs` (when is a socket
//! ready), `stream.rs`, `listener.rs`, `epoll.rs`; `calls.rs` and `context.rs` for waiting;
//! `process.rs` for what is the kernel's in a set.
//!
//! \[MT\]: Jeong, Woo, Jamshed, Jeong, Ihm, Han, Park, "mTCP: a Highly Scalable User-level TCP
//! Stack for Multicore Systems".
#![deny(unsafe_code)]

mod calls;
mod context;
mod control;
mod datagram;
mod descriptors;
mod door;
mod ending;
mod epoll;
mod error;
mod error_queue;
mod family;
mod flags;
mod gather;
mod kernel;
pub mod limits;
mod listener;
mod options;
mod pipe;
mod poll;
mod ports;
mod process;
mod readiness;
mod segments;
mod shared;
mod signal;
mod sockets;
mod sockopt;
mod stream;
mod urgent;

pub use calls::{Bsd, Run};
pub use context::{Config, Context, CreateError};
pub use datagram::Received;
pub use descriptors::Fd;
pub use epoll::{EpollEvent, EpollOp};
pub use error::Error;
pub use flags::{Events, MsgFlags, OpenFlags};
pub use poll::{FdSet, PollFd};
pub use process::AnyFd;
pub use shared::{Driving, SharedContext};
pub use signal::SignalMask;
pub use sockets::{Attempt, Sockets, Wait};
pub use stream::Shutdown;
