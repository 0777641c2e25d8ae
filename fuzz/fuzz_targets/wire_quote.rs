//! Quoted packets: any bytes are read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::quote::{Quote, TRANSPORT_BYTES};

fuzz_target!(|bytes: &[u8]| {
    for quote in [Quote::v4(bytes), Quote::v6(bytes)].into_iter().flatten() {
        assert!(quote.transport.len() >= TRANSPORT_BYTES);
        assert_eq!(quote.src.is_ipv4(), quote.dst.is_ipv4());
        let _ = (quote.src_port(), quote.dst_port(), quote.seq());
    }
});
