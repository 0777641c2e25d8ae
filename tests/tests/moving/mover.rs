//! A program that sends and receives on one connection, and moves it every now and then.
//!
//! Invariant: one read and one write at most are under way.

use std::time::{Duration, Instant};

use megapipe::{Channel, Event, Handle};
use megapipe_tests::transfer::Pattern;

use super::hosts::PATIENCE;

/// Bytes of a write and of a read.
const CHUNK_LEN: usize = 48 << 10;

/// Back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Stack,
    Kernel,
}

/// One end of a transfer in both directions at once.
pub(crate) struct Mover<'a> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) handle: Handle,
    pub(crate) side: Side,
    /// What is still to be sent, and to be received.
    pub(crate) outward: Pattern,
    pub(crate) inward: Pattern,
    /// How often it moved.
    pub(crate) moves: usize,
    is_writing: bool,
    is_reading: bool,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(
        channel: &'a mut Channel,
        (handle, side): (Handle, Side),
        outward: Pattern,
        inward: Pattern,
    ) -> Self {
        let (is_writing, is_reading, moves) = (false, false, 0);
        Self { channel, handle, side, outward, inward, moves, is_writing, is_reading }
    }

    /// Sends and receives all of it, and moves whenever another `len / moves` bytes have come.
    pub(crate) fn run(&mut self, moves: usize) {
        let step = self.inward.left() / (moves as u64 + 1);
        let mut next_move = self.inward.left() - step;
        let start = Instant::now();
        while self.inward.left() > 0 || self.outward.left() > 0 || self.is_writing {
            assert!(
                start.elapsed() < PATIENCE,
                "{} left, {} moves",
                self.inward.left(),
                self.moves
            );
            if self.inward.left() <= next_move && self.moves < moves {
                self.change_sides();
                next_move = next_move.saturating_sub(step);
            }
            self.ask_for_more();
            self.take_one();
        }
        assert_eq!(self.moves, moves);
    }

    /// Sends and receives all of it, and tries to move after each read and write, which is always
    /// refused. How often.
    pub(crate) fn run_refused(&mut self) -> usize {
        let (mut attempts, mut is_asked) = (0, false);
        let start = Instant::now();
        while self.inward.left() > 0 || self.outward.left() > 0 || self.is_writing || is_asked {
            assert!(start.elapsed() < PATIENCE, "{} left", self.inward.left());
            // Nothing can be written behind a move.
            if !is_asked {
                self.ask_for_more();
            }
            match self.take_one() {
                Some(Event::ToFd(Err(_))) => (attempts, is_asked) = (attempts + 1, false),
                Some(other) => panic!("{other:?}"),
                None if !is_asked && self.inward.left() > 0 => {
                    self.channel.to_fd(self.handle).expect("it is asked for");
                    is_asked = true;
                }
                None => {}
            }
        }
        attempts
    }

    fn ask_for_more(&mut self) {
        if !self.is_writing && self.outward.left() > 0 {
            let bytes = self.outward.take(CHUNK_LEN);
            self.channel.write(self.handle, bytes).expect("a connection");
            self.is_writing = true;
        }
        if !self.is_reading && self.inward.left() > 0 {
            self.channel.read(self.handle, CHUNK_LEN).expect("a connection");
            self.is_reading = true;
        }
    }

    /// Takes one completion.
    fn take_one(&mut self) -> Option<Event> {
        let done = self.channel.dispatch(Some(Duration::from_millis(100))).expect("dispatch");
        let done = done?;
        assert_eq!(done.handle, self.handle, "{done:?}");
        match done.event {
            Event::Read(Ok(bytes)) => {
                self.is_reading = false;
                assert!(!bytes.is_empty(), "an end with {} bytes left", self.inward.left());
                assert!(self.inward.matches(&bytes), "other bytes, {} left", self.inward.left());
                None
            }
            Event::Write(Ok(_)) => {
                self.is_writing = false;
                None
            }
            other => Some(other),
        }
    }

    /// From the stack to the kernel or back.
    pub(crate) fn change_sides(&mut self) {
        match self.side {
            Side::Stack => self.go_to_kernel(),
            Side::Kernel => self.go_to_stack(),
        }
        self.moves += 1;
    }

    fn go_to_kernel(&mut self) {
        self.channel.to_fd(self.handle).expect("it can move");
        let start = Instant::now();
        let moved = loop {
            assert!(start.elapsed() < PATIENCE, "it does not move");
            match self.take_one() {
                Some(Event::Read(Err(megapipe::OpError::Cancelled))) => self.is_reading = false,
                Some(Event::ToFd(moved)) => break moved,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        };
        let moved = moved.expect("it moves");
        assert!(moved.unread.is_empty(), "the socket has them");
        assert!(!self.is_writing && !self.is_reading);
        self.handle = self.channel.register(moved.fd, 0, None).expect("a socket");
        self.side = Side::Kernel;
    }

    fn go_to_stack(&mut self) {
        let start = Instant::now();
        // A write that is cancelled may have been half done.
        while self.is_writing {
            assert!(start.elapsed() < PATIENCE, "it is not written");
            let other = self.take_one();
            assert!(other.is_none(), "{other:?}");
        }
        let left = self.channel.unregister(self.handle).expect("a handle");
        self.is_reading = false;
        for bytes in &left.unread {
            assert!(self.inward.matches(bytes));
        }
        let fd = left.fd.expect("the descriptor comes back");
        self.handle = self.channel.take_over(fd, 0).expect("it can move");
        self.side = Side::Stack;
    }
}
