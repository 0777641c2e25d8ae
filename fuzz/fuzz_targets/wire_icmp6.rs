//! ICMPv6: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::icmp6::{HEADER_BYTES, Repr, View, write_checksum};

fuzz_target!(|input: (Vec<u8>, u16, bool)| {
    let (mut bytes, pseudo_header, fix) = input;
    if fix && bytes.len() >= HEADER_BYTES {
        write_checksum(&mut bytes, pseudo_header);
    }
    let Ok(view) = View::new(&bytes) else { return };
    let Ok(repr) = Repr::parse(&view, pseudo_header) else { return };
    let _ = repr.is_error();
    let mut written = vec![0; HEADER_BYTES];
    written.extend(view.payload());
    repr.emit(&mut written, pseudo_header);
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again, pseudo_header), Ok(repr));
});
