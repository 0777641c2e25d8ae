//! Captures, pcapng and classic: any bytes are frames of that file, an error, or both in turn.
#![no_main]

use libfuzzer_sys::fuzz_target;
use megapipe_link::capture::Reader;

fuzz_target!(|file: &[u8]| {
    let Ok(reader) = Reader::new(file) else { return };
    let within = file.as_ptr_range();
    let mut frames = 0_usize;
    let mut is_over = false;
    for frame in reader {
        assert!(!is_over, "a frame after an error");
        let Ok(frame) = frame else {
            is_over = true;
            continue;
        };
        frames += 1;
        let range = frame.bytes.as_ptr_range();
        assert!(within.start <= range.start && range.end <= within.end);
    }
    // The smallest block with a frame is a dozen bytes: reading goes forward.
    assert!(frames <= file.len() / 12);
});
