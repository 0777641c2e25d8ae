//! The key-value server in this process: beside memcached, under its tools, and against clients of
//! ill will. Runs on each driver that works here.

mod binary;
mod clients;
mod serving;
mod tools;
mod transcripts;
