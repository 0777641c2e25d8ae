//! Tests that need more than one crate, or a program from outside, live in `tests/tests/`.
//!
//! Here: what the two ends of an interoperation test agree on ([`transfer`]), and the README's
//! Rust example, so that it goes on compiling; `tests/readme.rs` sees to the one in C.

#![forbid(unsafe_code)]

pub mod transfer;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
