//! IPv4: any bytes are read, and what was read is written back to the same meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::ipv4::{HEADER_BYTES, Repr, View, set_whole};

fuzz_target!(|input: (Vec<u8>, bool)| {
    let (mut bytes, fix) = input;
    if fix && View::new(&bytes).is_ok() {
        let total = u16::from_be_bytes([bytes[2], bytes[3]]);
        let fragment: [u8; 2] = bytes[6..8].try_into().expect("two bytes");
        set_whole(&mut bytes, total);
        if fragment == [0x40, 0] {
            bytes[6..8].copy_from_slice(&fragment);
        }
    }
    let Ok(view) = View::new(&bytes) else { return };
    assert_eq!(view.header_bytes() + view.payload().len(), view.bytes().len());
    let _ = (view.dscp(), view.is_fragment(), view.check_options());
    let Ok(repr) = Repr::parse(&view) else { return };
    let mut written = vec![0; HEADER_BYTES];
    repr.emit(&mut written);
    written.extend(view.payload());
    let again = View::new(&written).expect("it was just written");
    assert_eq!(Repr::parse(&again), Ok(repr));
});
