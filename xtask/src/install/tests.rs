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
