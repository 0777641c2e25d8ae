//! The load generator against the servers of this project, and against servers that misbehave.

mod faults;
mod rates;
mod servers;
mod setup;
