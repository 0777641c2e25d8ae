//! The manual of the C library: a page for each call and none besides, each with all its sections,
//! each prototype as in the header, each example in C, and nothing that groff complains about.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use capi_prefix::{is_installed, sources, text_of};

/// The sections of a page of section 3; `NOTES` may be missing.
const SECTIONS: [&str; 8] = [
    "NAME",
    "SYNOPSIS",
    "DESCRIPTION",
    "RETURN VALUE",
    "ERRORS",
    "VERSIONS",
    "EXAMPLE",
    "SEE ALSO",
];

/// Each call of the header with its prototype, on one line and without doubled blanks.
fn prototypes() -> BTreeMap<String, String> {
    let header = fs::read_to_string(sources().join("include/megapipe.h")).unwrap();
    let code: Vec<&str> = header.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let code = code.join("\n");
    let statements = code.split(';').filter(|statement| statement.contains('('));
    let mut found = BTreeMap::new();
    for statement in statements {
        let Some(paragraph) = statement.split("\n\n").last() else { continue };
        let prototype = squeezed(paragraph);
        let Some((before, _)) = prototype.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("mp_") {
            found.insert(name.to_owned(), format!("{prototype};"));
        }
    }
    found
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The pages by name, with their text.
fn pages(section: &str) -> BTreeMap<String, String> {
    let folder = fs::read_dir(sources().join("man")).unwrap();
    let paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    let mut found = BTreeMap::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|it| it == section)) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        found.insert(name, fs::read_to_string(path).unwrap());
    }
    found
}

/// The lines of one section of a page.
fn section<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let start = page.find(&format!(".SH {name}\n"))? + name.len() + 5;
    let rest = &page[start..];
    Some(rest.find("\n.SH ").map_or(rest, |end| &rest[..end]))
}

#[test]
fn each_call_has_a_page_and_each_page_a_call() {
    let calls: Vec<String> = prototypes().into_keys().collect();
    assert!(calls.len() > 30, "the header was not understood: {calls:?}");
    assert_eq!(calls, pages("3").into_keys().collect::<Vec<_>>());
    assert_eq!(
        pages("7").into_keys().collect::<Vec<_>>(),
        ["megapipe", "megapipe_sockets", "mtcp"]
    );
}

#[test]
fn each_page_has_all_sections_in_their_order() {
    for (name, page) in pages("3") {
        let mut after = 0;
        for section in SECTIONS {
            let at = page.find(&format!("\n.SH {section}\n"));
            let at = at.unwrap_or_else(|| panic!("{name}.3 has no {section}"));
            assert!(at >= after, "{name}.3: {section} is out of order");
            after = at;
        }
        assert!(page.starts_with(".\\\" SPDX-License-Identifier: Apache-2.0 OR MIT\n"), "{name}");
    }
}

#[test]
fn each_prototype_is_that_of_the_header() {
    let prototypes = prototypes();
    for (name, page) in pages("3") {
        let synopsis = section(&page, "SYNOPSIS").unwrap();
        let lines = synopsis.lines().filter_map(|line| line.strip_prefix(".BI "));
        // `.BI "int mp_flush(mp_channel_t *" "channel" ");"` is text without its quotation marks.
        let text: Vec<String> =
            lines.map(|line| line.split('"').skip(1).step_by(2).collect()).collect();
        assert_eq!(squeezed(&text.join(" ")), prototypes[&name], "{name}.3");
    }
}

#[test]
fn the_overview_names_every_call_and_every_error() {
    let overview = &pages("7")["megapipe"];
    let calls = prototypes().into_keys();
    let missing: Vec<String> =
        calls.filter(|call| !overview.contains(&format!("\\fB{call}\\fP(3)"))).collect();
    assert!(missing.is_empty(), "megapipe.7 does not name {missing:?}");
    let errors = section(overview, "ERRORS").unwrap();
    for (name, page) in pages("3") {
        let text = section(&page, "ERRORS").unwrap();
        let tagged = text.split(".TP\n").skip(1).filter_map(|item| item.lines().next());
        for errno in tagged.flat_map(|line| line.split(", ")) {
            let errno = errno.trim_start_matches("\\fB").trim_end_matches("\\fP");
            let by_the_kernel = ["EADDRINUSE", "EADDRNOTAVAIL", "EACCES", "ENOTCONN"];
            if errno.starts_with('E') && !by_the_kernel.contains(&errno) {
                assert!(errors.contains(errno), "megapipe.7 does not explain {errno} of {name}");
            }
        }
    }
}

#[test]
fn overview_agrees_with_the_pages_it_summarises() {
    let (overview, pages) = (&pages("7")["megapipe"], pages("3"));
    let text = section(overview, "DESCRIPTION").unwrap();
    // `mp_write_at(3)` keeps no order, so the promise of an order has to except it.
    assert!(pages["mp_write_at"].contains("completed in any order"));
    let order = text.split(".SS ").find(|part| part.starts_with("Operations and completions"));
    assert!(order.unwrap().contains("The exception is\n.BR mp_write_at (3)"));
    // `mp_config_init(3)` lets a program choose the back end and the placement.
    let back_end = text.split(".SS ").find(|part| part.starts_with("Back end")).unwrap();
    for choice in ["MP_BACKEND_KERNEL", "MP_BACKEND_LOCAL", "mp_config_init (3)", "placement"] {
        assert!(pages["mp_config_init"].contains(choice.trim_end_matches(" (3)")), "{choice}");
        assert!(back_end.contains(choice), "{choice}");
    }
}

#[test]
fn references_lead_somewhere() {
    let pages: BTreeMap<String, String> = pages("3").into_iter().chain(pages("7")).collect();
    for (name, page) in &pages {
        let references = page.lines().filter_map(|line| line.strip_prefix(".BR "));
        let ours = references.filter(|line| line.starts_with("mp_"));
        for reference in ours {
            let called = reference.split(' ').next().unwrap();
            assert!(pages.contains_key(called), "{name} refers to {called}");
        }
    }
}

#[test]
fn groff_has_nothing_to_say() {
    if !is_installed("groff") {
        println!("skipped: groff_has_nothing_to_say: groff is not installed");
        return;
    }
    for (section, pages) in [("3", pages("3")), ("7", pages("7"))] {
        for name in pages.keys() {
            let path = sources().join("man").join(format!("{name}.{section}"));
            let arguments = ["-t", "-man", "-ww", "-b", "-z", "-Tutf8", "-rLL=100n"];
            let output = Command::new("groff").args(arguments).arg(path).output().unwrap();
            let said = text_of(&output);
            assert!(output.status.success() && said.is_empty(), "{name}.{section}: {said}");
        }
    }
}

#[test]
fn the_overviews_example_is_a_program() {
    let test = "the_overviews_example_is_a_program";
    if !is_installed("gcc") {
        println!("skipped: {test}: gcc is not installed");
        return;
    }
    let overview = &pages("7")["megapipe"];
    let (_, from) = overview.split_once(".EX\n").unwrap();
    let program = from.split_once("\n.EE").unwrap().0.replace("\\en", "\\n").replace("\\-", "-");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join("megapipe-7.c");
    fs::write(&source, program).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
    let output = gcc.arg(sources().join("include")).arg(&source).output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
}
