//! Scripts put together at random from the lines of real ones: whatever happens, it ends in a
//! verdict, and never in a panic of the interpreter or of the stack.

use std::path::Path;

use megapipe_scripts::report::ScriptVerdict;
use megapipe_scripts::{Invocation, On, prepare};
use proptest::prelude::*;

/// Every line of every script in the tree.
fn lines() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pkt"))
        .collect();
    paths.sort();
    let texts = paths.iter().map(|path| std::fs::read_to_string(path).expect("a script"));
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| !line.starts_with("//") && !line.trim().is_empty()).collect()
}

/// The beginning of most scripts, so that the rest meets a connection.
const OPENED: &str = "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3\n\
     +0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
     +0 < S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>\n+0 > S. 0:0(0) ack 1 <...>\n\
     +.1 < . 1:1(0) ack 1 win 257\n+0 accept(3, ..., ...) = 4\n";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn lines_in_any_order_end_in_a_verdict(
        chosen in prop::collection::vec(prop::sample::select(lines()), 1..25),
        is_opened in any::<bool>(),
        expects_nothing in any::<bool>(),
    ) {
        let kept = chosen.iter().filter(|line| !expects_nothing || !line.contains(" > "));
        let mut text = if is_opened { OPENED.to_owned() } else { String::new() };
        for line in kept {
            text.push_str(line);
            text.push('\n');
        }
        if let Ok(prepared) = prepare(text.as_bytes(), &Invocation::default()) {
            let outcome = prepared.run(On::Stack);
            prop_assert!(!matches!(outcome.verdict, ScriptVerdict::Skipped(_)), "{:?}", outcome);
            if let ScriptVerdict::Failed(failure) = outcome.verdict {
                prop_assert!(!failure.what.contains("checksum"), "{failure}");
                prop_assert!(!failure.what.starts_with("the stack:"), "{failure}");
            }
        }
    }
}
