//! UDP: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::checksum;
use megapipe_stack::wire::udp::{HEADER_BYTES, Repr, View, write_checksum};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    assert_eq!(HEADER_BYTES + view.payload().len(), view.bytes().len());
    let repr = Repr::parse(&view);
    let mut written = vec![0; HEADER_BYTES];
    let sum = repr.emit(&mut written);
    written.extend(view.payload());
    write_checksum(&mut written, checksum::combine(sum, checksum::sum(view.payload())));
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), repr);
    assert!(again.checksum_is_right(0));
});
