//! What does an application see? A [`Channel`]: asynchronous operations in, completions out.
//!
//! One channel per thread. A program puts sockets, pipes, files and timers into it
//! ([`Channel::register`], [`Channel::listen`], [`Channel::connect`], …), asks for operations
//! ([`Channel::accept`], [`Channel::read`], [`Channel::write`], …) and takes completions
//! ([`Channel::dispatch`]). Operations of all handles are gathered and handed to the kernel in
//! batches, without the program noticing. The model is MegaPipe's \[MP\]: partitioned accept
//! queues, lightweight sockets without file descriptors, transparent batching.
//!
//! ```no_run
//! use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut channel = Channel::create(Config::default())?;
//! let listener = channel.listen(&"127.0.0.1:7000".parse()?, &ListenOptions::default(), 0)?;
//! channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(4096))?;
//! loop {
//!     let Some(done) = channel.dispatch(None)? else { continue };
//!     match done.event {
//!         Event::Read(Ok(data)) if !data.is_empty() => channel.write(done.handle, data)?,
//!         Event::Write(Ok(_)) => channel.read(done.handle, 4096)?,
//!         Event::Read(_) | Event::Write(_) => drop(channel.unregister(done.handle)?),
//!         _ => {}
//!     }
//! }
//! # }
//! ```
//!
//! **What goes in**: descriptors, addresses, [`Payload`]s. **What comes out**: [`Completion`]s,
//! whose [`ReadBuf`]s lend the received bytes.
//!
//! **Invariants.** Every operation gives exactly one completion unless its handle is unregistered
//! first. Memory belongs to the channel from submission to completion. A stale handle, a handle
//! of another channel, use after `fork` are errors by name ([`Misuse`]), apart from limits that a
//! slow peer can reach ([`Limit`]); use from another thread does not compile.
//!
//! **Where to start reading**: `channel.rs`, `endpoints.rs`, `operations.rs`, `dispatch.rs` (the
//! calls), `state.rs` (what an operation means), `driver.rs` (what a driver does), `any_driver.rs`
//! (which one is chosen), `kernel/uring/` and `kernel/epoll/` (how each does it).
//!
//! \[MP\]: Han, Marshall, Chun, Ratnasamy, "MegaPipe: A New Programming Interface for Scalable
//! Network I/O".

// The process and its terminal belong to the program.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::exit)]

mod address;
mod any_driver;
mod arena;
mod buffer;
mod channel;
mod completion;
mod completion_queue;
mod config;
mod counters;
mod cpu_mask;
mod dispatch;
mod driver;
mod endpoints;
mod error;
mod error_chain;
mod file_operations;
mod handle;
mod inspect;
mod kernel;
mod kind;
pub mod limits;
mod listener_handover;
#[cfg(feature = "local")]
mod local;
mod operations;
mod options;
mod park;
mod partition;
mod report;
mod setters;
mod sharing;
mod slot;
mod state;
mod timers;
mod waker;

pub use address::sockaddr::SOCKADDR_BYTES;
pub use address::{Address, AddressError, UnixAddress};
pub use buffer::{Payload, ReadBuf, WriteBuf};
pub use channel::{Channel, OneThread};
pub use completion::{
    Accepted, Arrival, Completion, Connection, Datagram, Event, Notice, ToFd, Undelivered,
    Unregistered,
};
pub use config::{Backend, Config, DriverChoice, Placement};
pub use counters::Counters;
pub use cpu_mask::CpuMask;
pub use driver::Park;
pub use error::{
    ConnectError, CreateError, DispatchError, Limit, ListenError, Misuse, MoveError, NotConnected,
    NotTaken, OpError, RegisterError, ServiceQuota, ShareError, SubmitError, errno_of,
};
pub use error_chain::ErrorChain;
pub use handle::{FIRST_LWSOCKET, Handle};
pub use kernel::movable::{MovableChannel, ThreadsInTurn};
#[cfg(feature = "local")]
pub use local::{
    AdoptedDatagramSocket, Daemon, DaemonError, LocalNetwork, NetworkError, Prefixed,
    PrefixedError, ServiceAddress,
};
#[cfg(feature = "local")]
pub use megapipe_link::BoundPath;
#[cfg(feature = "local")]
pub use megapipe_service::{
    Clock, LoopbackOwner, ServerConfig, SharedConn, SharedEndpoint, UnknownLoopbackOwner,
    copy_token, is_token, policy, release_shared, release_shared_endpoints,
};
#[cfg(feature = "local")]
pub use megapipe_stack::{
    AwaitedListener, ConnInfo, ConnOption, DatagramOwner, DatagramSharing, Departure, Holder,
    Reuse, TcpState,
};
pub use options::{
    Accept, AcceptAs, ConnectOptions, Disconnect, ListenOptions, OpenOptions, SocketKind,
};
pub use report::{DriverKind, DriverReport, Explain, Feature};
pub use waker::Waker;
