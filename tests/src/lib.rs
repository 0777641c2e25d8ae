//! Tests that need more than one crate, or a program from outside, live in `tests/tests/`.
//!
//! Here: the README's Rust examples, so that they go on compiling.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
