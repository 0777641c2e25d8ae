//! Ethernet: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::ethernet::{Repr, VLAN, View};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    assert!(view.payload().len() < bytes.len());
    let repr = Repr::parse(&view);
    // A tag within a tag is an unknown EtherType; it cannot be written without one.
    if repr.ethertype == VLAN {
        return;
    }
    let mut written = [0; 18];
    repr.emit(&mut written);
    let again = View::new(&written[..repr.header_bytes()]).expect("it was just written");
    assert_eq!(Repr::parse(&again), repr);
});
