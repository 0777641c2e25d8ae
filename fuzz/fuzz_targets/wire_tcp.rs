//! TCP: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::checksum;
use megapipe_stack::wire::tcp::{HEADER_BYTES_MAX, Repr, SACK_BLOCKS_MAX, View, write_checksum};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    assert_eq!(view.header_bytes() + view.payload().len(), bytes.len());
    let _ = (view.accurate_ecn(), view.checksum(), view.sequence_len());
    let mut repr = Repr::parse(&view);
    assert!(repr.options.sack().len() <= SACK_BLOCKS_MAX);
    repr.options.malformed = false;
    // Padding may make what was read longer than what fits.
    if repr.header_bytes() > HEADER_BYTES_MAX {
        return;
    }
    let mut written = vec![0; repr.header_bytes()];
    let sum = repr.emit(&mut written);
    written.extend(view.payload());
    write_checksum(&mut written, checksum::combine(sum, checksum::sum(view.payload())));
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), repr);
    assert!(again.checksum_is_right(0));
});
