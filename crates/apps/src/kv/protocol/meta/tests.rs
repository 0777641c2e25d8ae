//! What the meta parser says of single lines.

use super::*;

fn command(line: &str) -> Result<MetaCommand<'_>, CommandFault> {
    let (name, rest) = line.split_at(2);
    parse(name.as_bytes(), rest.as_bytes())
}

#[test]
fn flags_become_options_and_keep_their_order() {
    let command = command("mg key t T-5 Oab v C7 N0 R30 q u").expect("all are known");
    assert_eq!(command.key(&mut key_scratch()), b"key");
    let options = MetaOptions {
        value: true,
        quiet: true,
        no_bump: true,
        vivify: Some(0),
        touch: Some(-5),
        recache: Some(30),
        cas: Some(7),
        ..MetaOptions::default()
    };
    assert_eq!(command.options, options);
    let flags: Vec<_> = command.flags().collect();
    assert_eq!(flags[..3], [&b"t"[..], b"T-5", b"Oab"]);
}

#[test]
fn modes_choose_the_verb() {
    for (mode, verb) in [
        ("", StoreVerb::Set),
        ("MS", StoreVerb::Set),
        ("ME", StoreVerb::Add),
        ("MA", StoreVerb::Append),
        ("MP", StoreVerb::Prepend),
        ("MR", StoreVerb::Replace),
    ] {
        let line = format!("ms key 5 {mode}");
        let command = command(&line).expect("a known mode");
        assert_eq!((command.store_verb(), command.value_len), (verb, 5), "{mode}");
    }
    for (mode, down) in [("", false), ("MI", false), ("M+", false), ("MD", true), ("M-", true)] {
        let line = format!("ma key {mode}");
        assert_eq!(command(&line).map(|command| command.down()), Ok(down), "{mode}");
    }
}

#[test]
fn a_set_is_refused_only_after_its_block() {
    let refused = command("ms key 5 Tx").expect("the block can be passed over");
    assert_eq!((refused.refused, refused.value_len), (Some(CommandFault::BadToken), 5));
    assert_eq!(command("mg key Tx"), Err(CommandFault::BadToken));
    assert_eq!(command("md key Tx"), Err(CommandFault::InvalidOrDuplicateFlag));
    assert_eq!(command("ms key x"), Err(CommandFault::BadLine));
}

#[test]
fn base64_keys_are_decoded_strictly() {
    let decoded = |text: &str| {
        let line = format!("mg {text} b");
        command(&line).map(|command| command.key(&mut key_scratch()).to_vec())
    };
    assert_eq!(decoded("YQ=="), Ok(b"a".to_vec()));
    assert_eq!(decoded("YWI="), Ok(b"ab".to_vec()));
    assert_eq!(decoded("YWJj"), Ok(b"abc".to_vec()));
    assert_eq!(decoded("+/+/"), Ok(vec![0xfb, 0xff, 0xbf]));
    let longest = "A".repeat(KEY_BYTES_MAX - KEY_BYTES_MAX % 4);
    assert_eq!(decoded(&longest), Ok(vec![0; longest.len() / 4 * 3]));
    for bad in ["YQ=", "YQ", "Y", "====", "Y===", "YQ==YQ==", "Y=Q=", "YQ=x", "!!!!"] {
        assert_eq!(decoded(bad), Err(CommandFault::BadBase64Key), "{bad}");
    }
}

#[test]
fn a_letter_beyond_ascii_is_no_flag() {
    assert_eq!(parse(b"mg", b" key \xff"), Err(CommandFault::DuplicateFlag));
    assert_eq!(parse(b"mg", b" key \x7f"), Err(CommandFault::InvalidFlag));
}
