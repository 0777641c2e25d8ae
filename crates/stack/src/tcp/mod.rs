//! TCP (RFC 9293).

mod chunks;
mod receive_queue;
mod send_queue;
