//! Drift is found and pointed at.

use super::*;

#[test]
fn equal_texts_have_no_difference() {
    assert_eq!(difference("int a;\n", "int a;\n"), None);
}

#[test]
fn the_first_differing_line_is_named() {
    let text = difference("int a;\nint b;\n", "int a;\nlong b;\n").expect("they differ");
    assert!(text.contains("megapipe.h:2:"), "{text}");
    assert!(text.contains("committed: int b;"), "{text}");
    assert!(text.contains("sources:   long b;"), "{text}");
}

#[test]
fn a_missing_end_is_a_difference() {
    let text = difference("int a;\n", "int a;\nint b;\n").expect("they differ");
    assert!(text.contains("(end of file)"), "{text}");
}
