//! What an installation is made of.

use super::*;

#[test]
fn the_archive_is_found_among_cargos_messages() {
    let messages = concat!(
        "not json\n",
        r#"{"reason":"compiler-artifact","filenames":["/t/libmegapipe.rlib"]}"#,
        "\n",
        r#"{"reason":"compiler-artifact","filenames":["/t/x.d","/t/libmegapipe.a"]}"#,
        "\n",
        r#"{"reason":"build-finished","success":true}"#,
    );
    assert_eq!(archive_in(messages), Some(PathBuf::from("/t/libmegapipe.a")));
    assert_eq!(archive_in(r#"{"filenames":["/t/libmegapipe.so"]}"#), None);
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
        Err(Error::Failed { command: "cc".to_owned(), output: String::new() })
    });
    assert!(failed.is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    replace(&path, |new| fs::write(new, "new").map_err(Error::file(new))).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut open, &mut text).unwrap();
    assert_eq!(text, "old", "who has it open keeps it");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
    fs::remove_dir_all(&folder).unwrap();
}
