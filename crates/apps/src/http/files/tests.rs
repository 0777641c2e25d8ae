//! What is found and, above all, what is not, by each way of resolving paths.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::super::date;
use super::*;

const NOW_S: i64 = 2_000_000_000;

/// A directory tree that is removed again: `site/` is the root, `secret` lies beside it.
struct Tree {
    top: PathBuf,
}

impl Tree {
    fn new(name: &str) -> Self {
        let top = std::env::temp_dir().join(format!("mp-http-files-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(top.join("site/dir/sub")).unwrap();
        let tree = Self { top };
        tree.write("secret", b"secret");
        tree.write("site/index.html", b"home");
        tree.write("site/a.txt", b"hello");
        tree.write("site/a%20b", b"percent");
        tree.write("site/dir/index.htm", b"old index");
        tree.write("site/dir/sub/b.bin", &[7; 5000]);
        let links = [
            ("a.txt", "inside"),
            ("dir/sub/../../a.txt", "inside-up"),
            ("dir", "dirlink"),
            ("../secret", "outside"),
            ("dir/../../secret", "outside-up"),
            ("..", "parent"),
            ("loop", "loop"),
            ("missing", "dangling"),
        ];
        for (target, name) in links {
            symlink(target, tree.top.join("site").join(name)).unwrap();
        }
        symlink(tree.top.join("secret"), tree.top.join("site/absolute")).unwrap();
        symlink(tree.top.join("site/a.txt"), tree.top.join("site/absolute-inside")).unwrap();
        tree
    }

    /// Writes a file as if long ago.
    fn write(&self, name: &str, content: &[u8]) {
        let path = self.top.join(name);
        fs::write(&path, content).unwrap();
        self.set_modified(name, 1_000_000_000);
    }

    fn set_modified(&self, name: &str, unix_s: u64) {
        let file = fs::File::options().write(true).open(self.top.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s)).unwrap();
    }

    fn files(&self, resolution: Resolution) -> ServedFiles {
        let index_names = ["index.html".to_owned(), "index.htm".to_owned()];
        let root = self.top.join("site");
        let options = FilesOptions {
            root: &root,
            follow_links: resolution == Resolution::Unrestricted,
            index_names: &index_names,
            held_bytes_max: 1000,
            max_age_s: None,
        };
        let mut files = ServedFiles::new(&options, Cache::new(1 << 20, 100)).unwrap();
        files.resolution = resolution;
        files
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.top);
    }
}

fn now(unix_s: i64) -> Now {
    Now { ms: 0, unix_s, date: date::format(unix_s) }
}

/// What was found, in a word, with the body of what is held.
fn found(files: &mut ServedFiles, raw: &str) -> String {
    found_at(files, raw, NOW_S)
}

fn found_at(files: &mut ServedFiles, raw: &str, unix_s: i64) -> String {
    match files.find(raw.as_bytes(), &now(unix_s)) {
        PathLookup::Held(entry) => {
            let body = &entry.prepared.memory[entry.prepared.body_at..];
            format!("held {}", String::from_utf8_lossy(body))
        }
        PathLookup::Open(representation, _) => format!("open {}", representation.len()),
        PathLookup::Directory(path) => format!("directory {}", String::from_utf8_lossy(&path)),
        PathLookup::Missing => "missing".into(),
        PathLookup::Forbidden => "forbidden".into(),
        PathLookup::Malformed => "malformed".into(),
        PathLookup::Exhausted => "exhausted".into(),
        PathLookup::Failed => "failed".into(),
    }
}

const EVERYWHERE: [(&str, &str); 22] = [
    ("/", "held home"),
    ("/index.html", "held home"),
    ("/a.txt", "held hello"),
    ("/%61.txt", "held hello"),
    ("/dir/../a.txt", "held hello"),
    ("/a.txt/", "missing"),
    ("/a.txt/b", "missing"),
    ("/dir", "directory /dir/"),
    ("/dir/", "held old index"),
    ("/dir/sub/", "forbidden"),
    ("/dir/sub/b.bin", "open 5000"),
    ("/nothing", "missing"),
    ("/nothing/", "missing"),
    ("/a%2520b", "held percent"),
    ("/inside", "held hello"),
    ("/inside-up", "held hello"),
    ("/dirlink", "directory /dirlink/"),
    ("/dirlink/", "held old index"),
    ("/loop", "forbidden"),
    ("/dangling", "missing"),
    ("/../secret", "malformed"),
    ("/..%2fsecret", "missing"),
];

const WAYS_OUT: [&str; 5] =
    ["/outside", "/outside-up", "/parent/secret", "/absolute", "/dirlink/../parent/secret"];

#[test]
fn every_way_of_resolving_finds_the_same_and_stays_inside() {
    let tree = Tree::new("same");
    for resolution in [Resolution::Openat2, Resolution::Stepwise] {
        let mut files = tree.files(resolution);
        for (raw, expected) in EVERYWHERE {
            assert_eq!(found(&mut files, raw), expected, "{resolution:?} {raw}");
        }
        for raw in WAYS_OUT {
            assert_eq!(found(&mut files, raw), "forbidden", "{resolution:?} {raw}");
        }
        let absolute = found(&mut files, "/absolute-inside");
        assert_eq!(absolute, "forbidden", "{resolution:?}: absolute links lead out of the root");
    }
}

#[test]
fn links_may_leave_where_that_is_allowed_but_letters_may_not() {
    let tree = Tree::new("follow");
    let mut files = tree.files(Resolution::Unrestricted);
    for (raw, expected) in EVERYWHERE {
        assert_eq!(found(&mut files, raw), expected, "{raw}");
    }
    assert_eq!(found(&mut files, "/outside"), "held secret");
    assert_eq!(found(&mut files, "/absolute-inside"), "held hello");
    assert_eq!(found(&mut files, "/../secret"), "malformed");
}

#[test]
fn resolve_beneath_works_or_is_unsupported() {
    let tree = Tree::new("probe");
    let open = |name: &str| {
        let root = tree.top.join(name);
        let options = FilesOptions {
            root: &root,
            follow_links: false,
            index_names: &[],
            held_bytes_max: 0,
            max_age_s: None,
        };
        ServedFiles::new(&options, Cache::new(0, 0)).map(|files| files.resolution())
    };
    assert!(matches!(open("site"), Ok(Resolution::Openat2 | Resolution::Stepwise)));
    assert_eq!(open("none"), Err(Errno::NOENT));
    assert_eq!(open("secret"), Err(Errno::NOTDIR));
}

#[test]
fn special_file_is_not_served_and_does_not_block() {
    let tree = Tree::new("kinds");
    let root = rustix::fs::open(tree.top.join("site"), OFlags::RDONLY, Mode::empty()).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(&root, "fifo", FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.top.join("site/socket")).unwrap();
    for resolution in [Resolution::Openat2, Resolution::Stepwise] {
        let mut files = tree.files(resolution);
        for name in ["/fifo", "/socket"] {
            assert_eq!(found(&mut files, name), "forbidden", "{resolution:?} {name}");
        }
    }
}

#[test]
fn names_that_are_too_long_are_missing() {
    let tree = Tree::new("long");
    for resolution in [Resolution::Openat2, Resolution::Stepwise] {
        let mut files = tree.files(resolution);
        for path in [format!("/{}", "x".repeat(300)), "/x".repeat(3000)] {
            assert_eq!(found(&mut files, &path), "missing", "{resolution:?}");
        }
    }
}

#[test]
fn a_change_is_seen_in_the_next_second_and_not_before() {
    let tree = Tree::new("change");
    let mut files = tree.files(Resolution::Openat2);
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S), "held hello");
    tree.write("site/a.txt", b"changed");
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S), "held hello");
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S + 1), "held changed");
    fs::remove_file(tree.top.join("site/a.txt")).unwrap();
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S + 1), "held changed");
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S + 2), "missing");
    fs::create_dir(tree.top.join("site/a.txt")).unwrap();
    assert_eq!(found_at(&mut files, "/a.txt", NOW_S + 2), "directory /a.txt/");
}

#[test]
fn a_change_within_one_tick_of_the_time_stamp_is_seen() {
    let tree = Tree::new("racy");
    let mut files = tree.files(Resolution::Openat2);
    let young_s = 1_000_000_001;
    assert_eq!(found_at(&mut files, "/a.txt", young_s), "held hello");
    // Same length, same inode, same time stamp.
    tree.write("site/a.txt", b"HELLO");
    assert_eq!(found_at(&mut files, "/a.txt", young_s + 1), "held HELLO");
    // Now the stamp is old enough to be trusted.
    tree.write("site/a.txt", b"olleh");
    assert_eq!(found_at(&mut files, "/a.txt", young_s + 2), "held HELLO");
}

#[test]
fn a_path_with_a_percent_sign_is_not_mixed_up_with_an_encoded_one() {
    let tree = Tree::new("percent");
    tree.write("site/a b", b"space");
    let mut files = tree.files(Resolution::Openat2);
    for _ in 0..2 {
        assert_eq!(found(&mut files, "/a%2520b"), "held percent");
        assert_eq!(found(&mut files, "/a%20b"), "held space");
    }
}
