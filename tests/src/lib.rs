//! Tests of several crates together, and tests with external programs, in `tests/tests/`.
//!
//! This library has the protocol of the interoperation tests ([`transfer`]), and ports that stay
//! free for a test ([`ReservedPort`]). It also compiles the README's Rust example;
//! `tests/readme.rs` compiles those in C.

#![forbid(unsafe_code)]

mod reserved_port;
pub mod transfer;

pub use reserved_port::ReservedPort;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
