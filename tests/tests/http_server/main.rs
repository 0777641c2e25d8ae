//! The HTTP server from outside: sockets that behave and sockets that do not, and the programs that
//! people use.
//!
//! Every test of the server's behaviour runs on each driver that works here. `fixture.rs` has the
//! server and the raw client; then by subject.

mod clients;
mod connections;
mod files;
mod fixture;
mod lint;
mod nginx;
mod requests;
