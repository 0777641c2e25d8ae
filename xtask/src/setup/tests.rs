//! Setup installs only what is missing.

use std::collections::BTreeSet;

use super::*;

#[test]
fn installed_program_is_not_requested() {
    assert!(missing(WANTED, |_| true).is_empty());
    assert_eq!(missing(WANTED, |program| program != "ab"), ["apache2-utils"]);
}

#[test]
fn each_package_is_named_once() {
    let all = missing(WANTED, |_| false);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}
