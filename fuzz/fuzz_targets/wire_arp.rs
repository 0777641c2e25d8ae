//! ARP: any bytes are read, and what was read is written back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::arp::{MESSAGE_BYTES, Repr, View};

fuzz_target!(|bytes: &[u8]| {
    let Ok(view) = View::new(bytes) else { return };
    let _ = (view.operation(), view.target_mac());
    let Ok(repr) = Repr::parse(&view) else { return };
    let mut written = [0; MESSAGE_BYTES];
    repr.emit(&mut written);
    assert_eq!(written, bytes[..MESSAGE_BYTES]);
});
