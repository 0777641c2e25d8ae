//! Descriptors that the processes of a session pass to each other over the control socket.
//!
//! ```text
//!  client                                     daemon
//!  PASS: cookie, purpose; descriptors -------> control thread: checks them, keeps them by cookie
//!         <------------- PASSED, or NOT_PASSED: errno, sentence
//!  a call with the cookie, over the ring ----> shard: takes what the cookie names
//!  FORGET: cookie ---------------------------> control thread: drops what no shard has taken
//!
//!  a call over the ring ---------------------> shard: makes a socket
//!         <--------------------- GIVE: cookie; the socket
//!         <--------------------- the answer to the call, over the ring, with the cookie
//!
//!  TOKEN: cookie ----------------------------> control thread: makes a pair of sockets
//!         <--------------------- GIVE: the cookie with [`GIVEN_TOKEN`]; one end of it
//!         <--------------------- PASSED
//!  calls with the cookie, over the rings ----> shards: the token owns connections
//!
//!  over a token: TOKEN, answered by GIVE; RELEASE: names of connections
//! ```
//!
//! A client waits for PASSED before it makes the call, and a shard sends GIVE before the answer, so
//! each record finds its descriptors. The path of a message never uses the control socket.
//!
//! Read first: `message.rs`; decision 0047.
//!
//! Invariants
//! - A descriptor that is refused, forgotten, or left when the session ends is closed.
//! - A session has at most [`PASSED_MAX`] cookies that it has not forgotten, each with at most
//!   [`PASSED_SOCKETS_MAX`] descriptors; and its user at most the quota `user.sockets`.
//!
//! [`PASSED_MAX`]: crate::limits::PASSED_MAX
//! [`PASSED_SOCKETS_MAX`]: crate::limits::PASSED_SOCKETS_MAX

mod message;
mod passed_descriptors;
mod session_control;
mod share_token;

pub use message::{PassPurpose, SharedConn, SharedEndpoint};

pub(crate) use message::{GIVEN_TOKEN, SessionMessage};
pub(crate) use passed_descriptors::KeptPort;
pub use passed_descriptors::{PassRefusal, PassedDescriptors};
pub use share_token::{
    ShareToken, TokenRequest, copy_token, is_token, release_shared, release_shared_endpoints,
};

pub(crate) use session_control::{DescriptorPassing, SessionControl};
pub(crate) use share_token::{SocketIdentity, name_token};
