//! TCP (RFC 9293).

mod chunks;
pub(crate) mod congestion;
mod receive_queue;
pub(crate) mod recovery;
mod send_queue;
