//! Recovery by itself. `scenarios`: each test says what was sent, acknowledged and when, and is
//! named after the section that it follows. `network`: whole transfers over a network that loses,
//! duplicates and reorders, with a receiver that keeps RFC 2018 and 2883; every invariant of the
//! scoreboard is checked after every step. `hostile`: the same against a peer that says anything.
//! `ways`: the short ways decide what the full ones would.

mod hostile;
mod network;
mod path;
mod scenarios;
mod transfers;
mod ways;
