//! IPv6: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::ipv6::{HEADER_BYTES, Repr, View};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    assert_eq!(HEADER_BYTES + view.payload().len(), view.bytes().len());
    assert!(view.flow_label() < 1 << 20);
    let repr = Repr::parse(&view);
    let mut written = vec![0; HEADER_BYTES];
    repr.emit(&mut written);
    written.extend(view.payload());
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), repr);
});
