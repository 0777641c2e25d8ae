//! Messages of the handshake with a daemon, and of queries to it: whatever is accepted is written
//! back as the same bytes, and no length leads to a large allocation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_service::attach::{AttachHello, HelloAnswer, VERSIONS, decode_ready, encode_ready};
use megapipe_service::observe::{AnswerPage, QUERY_VERSIONS, ServiceQuery};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = AttachHello::decode(bytes) {
        // What a newer client adds is not kept.
        if hello.versions.1 <= VERSIONS.1 {
            assert_eq!(hello.encode(), bytes);
        }
        let _ = hello.negotiate();
    }
    match HelloAnswer::decode(bytes) {
        Ok(HelloAnswer::Welcome(welcome)) => assert_eq!(welcome.encode(), bytes),
        // A code of a newer daemon is not kept.
        Ok(HelloAnswer::Refused(refused)) => assert_eq!(refused.encode().len(), bytes.len()),
        Err(_) => {}
    }
    if let Some(query) = ServiceQuery::decode(bytes) {
        assert_eq!(query.encode(), bytes);
        let _ = query.version();
    }
    if let Some(page) = AnswerPage::decode(bytes) {
        let named = QUERY_VERSIONS.0..=QUERY_VERSIONS.1;
        assert!(named.into_iter().any(|version| page.encode(version) == bytes), "{bytes:?}");
    }
    if decode_ready(bytes, 1).is_ok() {
        assert_eq!(encode_ready(1), bytes);
    }
});
