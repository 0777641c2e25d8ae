//! What can two cores, or two processes, both see?
#![deny(unsafe_code)]
