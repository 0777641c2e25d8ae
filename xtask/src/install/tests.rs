//! Contents of an installation.

use super::*;

#[test]
fn built_files_are_found_among_cargos_messages() {
    let messages = concat!(
        "not json\n",
        r#"{"reason":"compiler-artifact","filenames":["/t/libmegapipe.rlib"]}"#,
        "\n",
        r#"{"reason":"compiler-artifact","filenames":["/t/x.d","/t/libmegapipe.a"]}"#,
        "\n",
        r#"{"reason":"build-finished","success":true}"#,
    );
    assert_eq!(file_in(messages, "libmegapipe.a"), Some(PathBuf::from("/t/libmegapipe.a")));
    assert_eq!(file_in(messages, "megapipe"), None);
}

#[test]
fn command_is_installed_with_its_manual_and_completions() {
    let folder = std::env::temp_dir().join(format!("megapipe-command-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // What the command itself writes is tested with the command.
    let megapipe = folder.join("megapipe");
    let script = "#!/bin/sh\nset -e\ncase $1 in\n\
                  manual) mkdir -p \"$2\"; echo page >\"$2/${0##*/}.${2##*man}\" ;;\n\
                  completions) echo \"for $2\" ;;\nesac\n";
    let text = folder.join("script");
    fs::write(&text, script).unwrap();
    // By another process: a file that this one, or its child, has open for writing cannot be run.
    let megapiped = folder.join("megapiped");
    for program in [&megapipe, &megapiped] {
        let mut install = Command::new("install");
        process::output_of(install.args(["-m", "755"]).arg(&text).arg(program)).unwrap();
    }
    let prefix = folder.join("prefix");
    install_command(&megapipe, &prefix, true).unwrap();
    install_daemon(&megapiped, &prefix, true).unwrap();
    for name in ["megapipe", "megapiped"] {
        assert!(prefix.join("bin").join(name).is_file());
    }
    for (path, text) in [
        ("man/man1/megapipe.1", "page\n"),
        ("man/man8/megapiped.8", "page\n"),
        ("bash-completion/completions/megapipe", "for bash\n"),
        ("zsh/site-functions/_megapipe", "for zsh\n"),
        ("fish/vendor_completions.d/megapipe.fish", "for fish\n"),
    ] {
        assert_eq!(fs::read_to_string(prefix.join("share").join(path)).expect(path), text);
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// The static symbols of a library, or `None` where there are no tools.
fn symbols(library: &Path) -> Option<String> {
    let output = Command::new("nm").arg(library).output().ok()?;
    Some([&output.stdout[..], &output.stderr[..]].concat().escape_ascii().to_string())
}

#[test]
fn installed_library_is_stripped_except_in_the_profile_for_debugging() {
    let test = "installed_library_is_stripped_except_in_the_profile_for_debugging";
    let folder = std::env::temp_dir().join(format!("megapipe-strip-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let source = folder.join("call.c");
    fs::write(
        &source,
        "static int hidden(int x) { return x * x; }\n\
                        int mp_call(int x) { return hidden(x); }\n",
    )
    .unwrap();
    let object = folder.join("call.o");
    let mut cc = Command::new("cc");
    let compiled = cc.args(["-g", "-O0", "-fPIC", "-c", "-o"]).arg(&object).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) || symbols(&object).is_none() {
        println!("skipped: {test}: no cc or no nm");
        return;
    }
    let versions = folder.join("map");
    fs::write(&versions, "V { global: mp_*; local: *; };\n").unwrap();
    let linked = |keeps_symbols| {
        link(&object, &versions, &folder, keeps_symbols).unwrap();
        symbols(&folder.join("libmegapipe.so")).unwrap()
    };
    assert!(linked(true).contains("hidden"));
    assert!(linked(false).contains("no symbols"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn installed_command_is_stripped_and_can_be_run() {
    let test = "installed_command_is_stripped_and_can_be_run";
    let folder = std::env::temp_dir().join(format!("megapipe-strip-bin-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("main.c"), folder.join("program"));
    fs::write(&source, "int hidden(void) { return 0; }\nint main(void) { return hidden(); }\n")
        .unwrap();
    let compiled = Command::new("cc").args(["-g", "-O0", "-o"]).arg(&program).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) || symbols(&program).is_none() {
        println!("skipped: {test}: no cc or no nm");
        return;
    }
    assert!(symbols(&program).unwrap().contains("hidden"));
    copy_stripped(&program, &folder.join("bin")).unwrap();
    let installed = folder.join("bin/program");
    assert!(symbols(&installed).unwrap().contains("no symbols"));
    assert!(Command::new(&installed).status().unwrap().success());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_link_is_replaced() {
    let folder = std::env::temp_dir().join(format!("megapipe-install-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("libmegapipe.so");
    point(&path, "one").unwrap();
    point(&path, "two").unwrap();
    assert_eq!(fs::read_link(&path).unwrap(), Path::new("two"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = std::env::temp_dir().join(format!("megapipe-replace-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("libmegapipe.a");
    fs::write(&path, "old").unwrap();
    let mut open = fs::File::open(&path).unwrap();
    let failed = replace(&path, |new| {
        fs::write(new, "half").unwrap();
        Err(ToolError::Failed { command: "cc".to_owned(), output: String::new() })
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    replace(&path, |new| fs::write(new, "new").map_err(ToolError::file(new))).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut open, &mut text).unwrap();
    assert_eq!(text, "old", "open descriptors keep the old file");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
    fs::remove_dir_all(&folder).unwrap();
}
