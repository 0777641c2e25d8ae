//! Linux pings our address: packets that fit a frame, and packets that come in fragments.

use super::host::{Host, Loss, OURS, Wire};

pub(crate) fn linux_is_answered(host: &Host) {
    // Answering is the stack's business; the server only has it.
    let server = host.serve(Loss(0), &["kv"]);
    for address in OURS {
        for bytes in ["0", "56", "1452", "1473", "4000", "8000"] {
            ping(host, address, bytes);
        }
    }
    if host.wire != Wire::Tap {
        // The kernel that shares our address answers; from us it would be an answer too many.
        assert_eq!(server.stop_unheard().frames, 0);
        return;
    }
    let verdict = server.stop();
    assert!(verdict.segments == 0 && (verdict.frames >= 24 || !verdict.was_read), "{verdict:?}");
}

/// Two pings, which have to be answered whole. ping compares what comes back with what it sent.
fn ping(host: &Host, address: &str, bytes: &str) {
    // Without a deadline ping waits for the last answer no longer than the others took.
    let said = host.must_run("ping", &["-n", "-c2", "-i0.02", "-w20", "-s", bytes, address]);
    let is_answered = |number| said.contains(&format!("icmp_seq={number} ttl="));
    assert!((1..=2).all(is_answered), "{said}");
    assert!(!said.contains("wrong") && !said.contains("truncated"), "{said}");
}
