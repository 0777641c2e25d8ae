//! Tests of several crates together, and tests with external programs, in `tests/tests/`.
//!
//! This library has the protocol of the interoperation tests ([`transfer`]). It also compiles the
//! README's Rust example; `tests/readme.rs` compiles those in C.

#![forbid(unsafe_code)]

pub mod transfer;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
