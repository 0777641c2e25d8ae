//! ICMP: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::icmp4::{HEADER_BYTES, Repr, View};

fuzz_target!(|input: (Vec<u8>, bool)| {
    let (mut bytes, fix) = input;
    if let (true, Ok(view)) = (fix, View::new(&bytes)) {
        // With a right checksum the fuzzer gets past the first check.
        let kind = Repr::Other { kind: view.kind(), code: view.code() };
        let by_type: [u8; 4] = bytes[4..8].try_into().expect("four bytes");
        kind.emit(&mut bytes);
        bytes[4..8].copy_from_slice(&by_type);
        bytes[2..4].fill(0);
        let sum = megapipe_stack::wire::checksum::sum(&bytes);
        bytes[2..4].copy_from_slice(&(!sum).to_be_bytes());
    }
    let Ok(view) = View::new(&bytes) else { return };
    assert_eq!(view.payload().len() + HEADER_BYTES, bytes.len());
    let Ok(repr) = Repr::parse(&view) else { return };
    let mut written = vec![0; HEADER_BYTES];
    written.extend(view.payload());
    repr.emit(&mut written);
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), Ok(repr));
});
