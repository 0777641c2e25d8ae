//! The megapipe command.

fn main() {}
