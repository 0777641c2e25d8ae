//! Linux pings us: packets that fit a frame, and packets that come in fragments.

use super::host::{Host, Loss, OURS, with_host};

#[test]
fn we_answer_pings_whole_and_in_fragments() {
    with_host("we_answer_pings_whole_and_in_fragments", &["ping"], |host| {
        // Answering is the stack's business; the server only has it.
        let server = host.serve(Loss(0), &["kv"]);
        for address in OURS {
            for bytes in ["0", "56", "1452"] {
                assert!(!ping(host, address, bytes).contains("truncated"));
            }
        }
        // What comes in fragments is put together. We send none: RFC 1122 §3.2.2.6 lets the answer
        // be shortened then. RFC 4443 §4.2 does not, so that nothing answers such a ping of IPv6.
        for bytes in ["1473", "4000"] {
            assert!(ping(host, OURS[0], bytes).contains("truncated"));
        }
        let verdict = server.stop();
        assert!(verdict.segments == 0 && verdict.frames >= 16, "{verdict:?}");
    });
}

/// Two pings, which have to be answered. ping compares what comes back with what it sent.
fn ping(host: &Host, address: &str, bytes: &str) -> String {
    let said = host.must_run("ping", &["-c2", "-i0.02", "-W5", "-s", bytes, address]);
    assert!(said.contains(" 0% packet loss") && !said.contains("wrong"), "{said}");
    said
}
