//! Group membership: any bytes are read as a query, and a report holds the groups it was given.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::mld::{Query, Reason, emit_report, report_bytes};

fuzz_target!(|bytes: &[u8]| {
    let Ok(query) = Query::parse(bytes) else { return };
    // The largest value of the code (RFC 3810 §5.1.3).
    assert!(query.within.as_millis() <= 8_387_584);
    let groups = usize::from(bytes[0]) % 8;
    let mut report = vec![0; report_bytes(groups)];
    let named = std::iter::repeat_n(query.group, groups);
    emit_report(&mut report, Reason::Asked, named, 0);
    assert_eq!(usize::from(report[7]), groups);
    assert!(report[8..].chunks(20).all(|record| record[4..] == query.group.octets()));
});
