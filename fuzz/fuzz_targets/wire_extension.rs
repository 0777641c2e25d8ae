//! Extension headers: any bytes are followed to an end within them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_stack::wire::extension::{FRAGMENT_BYTES, Fragment, remove_fragment_header, walk};

fuzz_target!(|input: (u8, bool, Vec<u8>)| {
    let (first, directly, mut bytes) = input;
    match walk(first, &bytes, directly) {
        Ok(chain) => {
            assert!(chain.offset <= bytes.len());
            assert!(chain.named_at.is_none_or(|at| bytes[at] == chain.protocol));
            if let Some(fragment) = Fragment::parse(&bytes[chain.offset..]) {
                let mut written = [0; FRAGMENT_BYTES];
                fragment.emit(&mut written);
                assert_eq!(Fragment::parse(&written), Some(fragment));
            }
        }
        Err(problem) => {
            let pointer = problem.report.and_then(|report| report.pointer);
            assert!(pointer.is_none_or(|at| at < bytes.len()));
        }
    }
    let len = bytes.len();
    let header_bytes = usize::from(first).min(len);
    if let Some((whole, _)) = remove_fragment_header(&mut bytes, header_bytes) {
        assert_eq!(whole.len(), len - FRAGMENT_BYTES);
    }
});
