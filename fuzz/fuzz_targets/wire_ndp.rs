//! Neighbour discovery: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::ndp::{Repr, View};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    let Ok(repr) = Repr::parse(&view) else { return };
    let mut written = vec![0; repr.header_bytes()];
    repr.emit(&mut written, 0);
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), Ok(repr));
});
