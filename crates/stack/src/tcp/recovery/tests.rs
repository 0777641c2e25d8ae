//! Recovery by itself: each test is a table of what was sent, acknowledged and when.

mod path;
mod scenarios;
