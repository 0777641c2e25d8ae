//! Converts the C arguments of BSD socket calls: pointers to slices, addresses, times and messages.
//!
//! In: the pointers and sizes of a C caller. Out: the arguments of [`megapipe_sockets::Bsd`], and
//! its results in the caller's memory. `libmegapipe`,
//! `libmegapipe-preload` and the plug-in for packetdrill share it.
//!
//! - `memory.rs`: memory by address and length, and arrays of it.
//! - `address.rs`: socket addresses. `time.rs`: times and signal masks.
//! - `message.rs`: `struct msghdr` and arrays of it. `pipe_signal.rs`: SIGPIPE.
//! - `requests.rs`: what ioctl(2) does with its argument.
//!
//! Invariants
//! - A null pointer, or a length beyond any address space, is an error and is not followed.
//! - A call with few pieces allocates nothing.

mod address;
mod error;
pub mod limits;
mod memory;
mod message;
mod pipe_signal;
mod requests;
mod time;

pub use address::{check_room, read_address, write_address, write_encoded};
pub use error::ArgumentError;
pub use memory::{memory, memory_mut, with_parts, with_parts_mut};
pub use message::{
    MessageReceiver, receive_message, receive_messages, send_message, send_messages,
};
pub use pipe_signal::{is_stream, raise_pipe};
pub use requests::IntArgument;
pub use time::{duration, mask_of, milliseconds, timespec_of, with_time_left};
