//! Disk files: opening, reading and writing at offsets and at the file's own position.

use std::fs::{self, File};
use std::path::Path;

use megapipe::{Event, Handle, Misuse, OpError, OpenOptions, Payload, SubmitError};

use crate::scene::{Case, Folder, Scene, on_each_driver, pattern};

on_each_driver![
    a_file_is_written_and_read_at_offsets,
    plain_reads_and_writes_move_the_files_position,
    reading_beyond_the_end_is_empty,
    writing_beyond_the_end_leaves_a_hole,
    many_jobs_are_outstanding_at_once,
    truncate_append_and_create_new_do_what_they_say,
    a_missing_file_is_not_found,
    a_folder_cannot_be_written,
    a_file_opened_for_reading_refuses_writes,
    a_file_vector_of_many_parts_is_one_write,
    a_registered_file_works_like_an_opened_one,
    operations_before_the_file_is_open_are_refused,
    a_path_with_a_nul_is_refused,
    a_large_file_is_written_whole,
    unregister_with_jobs_under_way_is_clean,
];

#[track_caller]
fn open(scene: &mut Scene, path: &Path, options: OpenOptions) -> Result<Handle, OpError> {
    let handle = scene.open(path, &options, 0).unwrap();
    assert!(handle.is_lwsocket());
    match scene.next_of(handle) {
        Event::Open(result) => result.map(|()| handle),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn read_at(scene: &mut Scene, file: Handle, offset: u64, len: usize) -> Result<Vec<u8>, OpError> {
    scene.read_at(file, offset, len).unwrap();
    match scene.next_of(file) {
        Event::Read(read) => read.map(|bytes| bytes.to_vec()),
        other => panic!("{other:?}"),
    }
}

fn a_file_is_written_and_read_at_offsets(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
    scene.write_at(file, 0, pattern(1, 5000)).unwrap();
    scene.expect_written(file, 5000);
    scene.write_at(file, 1000, "overwritten").unwrap();
    scene.expect_written(file, 11);
    scene.fsync(file).unwrap();
    let Event::Fsync(Ok(())) = scene.next_of(file) else { panic!() };
    let mut expected = pattern(1, 5000);
    expected[1000..1011].copy_from_slice(b"overwritten");
    assert_eq!(read_at(&mut scene, file, 990, 40).unwrap(), expected[990..1030]);
    scene.unregister(file).unwrap();
    assert_eq!(fs::read(path).unwrap(), expected);
}

fn plain_reads_and_writes_move_the_files_position(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
    for part in ["one ", "two ", "three"] {
        scene.write(file, part).unwrap();
    }
    for len in [4, 4, 5] {
        scene.expect_written(file, len);
    }
    assert_eq!(fs::read(&path).unwrap(), b"one two three");
    let file = open(&mut scene, &path, OpenOptions::read()).unwrap();
    assert_eq!(&*scene.read_once(file, 4).unwrap(), b"one ");
    assert_eq!(read_at(&mut scene, file, 8, 5).unwrap(), b"three");
    assert_eq!(&*scene.read_once(file, 100).unwrap(), b"two three");
    assert!(scene.read_once(file, 100).unwrap().is_empty());
}

fn reading_beyond_the_end_is_empty(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    fs::write(&path, b"short").unwrap();
    let file = open(&mut scene, &path, OpenOptions::read()).unwrap();
    assert_eq!(read_at(&mut scene, file, 3, 100).unwrap(), b"rt");
    assert_eq!(read_at(&mut scene, file, 5, 100).unwrap(), b"");
    assert_eq!(read_at(&mut scene, file, 1 << 40, 100).unwrap(), b"");
}

fn writing_beyond_the_end_leaves_a_hole(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
    scene.write_at(file, 10_000, "end").unwrap();
    scene.expect_written(file, 3);
    assert_eq!(read_at(&mut scene, file, 9998, 10).unwrap(), b"\0\0end");
}

fn many_jobs_are_outstanding_at_once(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let file = open(&mut scene, &folder.path("file"), OpenOptions::write()).unwrap();
    for block in 0..200u64 {
        scene.write_at(file, block * 100, pattern(block as usize, 100)).unwrap();
    }
    for _ in 0..200 {
        scene.expect_written(file, 100);
    }
    for block in 0..200u64 {
        scene.read_at(file, block * 100, 100).unwrap();
    }
    // They may complete in any order; each block comes once.
    let mut blocks = Vec::new();
    for _ in 0..200 {
        let Event::Read(Ok(bytes)) = scene.next_of(file) else { panic!() };
        blocks.push(bytes.to_vec());
    }
    let mut expected: Vec<_> = (0..200).map(|block| pattern(block, 100)).collect();
    blocks.sort();
    expected.sort();
    assert!(blocks == expected);
}

fn truncate_append_and_create_new_do_what_they_say(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    fs::write(&path, b"old content").unwrap();
    let taken = open(&mut scene, &path, OpenOptions::write().create_new(true));
    assert_eq!(taken.unwrap_err(), OpError::Os(libc::EEXIST));
    let file = open(&mut scene, &path, OpenOptions::write().append(true)).unwrap();
    scene.write(file, ", and more").unwrap();
    scene.expect_written(file, 10);
    assert_eq!(fs::read(&path).unwrap(), b"old content, and more");
    let file = open(&mut scene, &path, OpenOptions::write().truncate(true)).unwrap();
    scene.write(file, "new").unwrap();
    scene.expect_written(file, 3);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    let fresh = folder.path("fresh");
    open(&mut scene, &fresh, OpenOptions::write().create_new(true)).unwrap();
    assert_eq!(fs::read(&fresh).unwrap(), b"");
}

fn a_missing_file_is_not_found(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("missing");
    let handle = scene.open(&path, &OpenOptions::read(), 6).unwrap();
    let done = scene.next();
    assert_eq!((done.handle, done.cookie), (handle, 6));
    assert!(matches!(done.event, Event::Open(Err(OpError::NotFound))), "{done:?}");
    // Nothing can be asked of it, so that nothing waits for ever.
    assert!(matches!(
        scene.read(handle, 1),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "read", .. }))
    ));
    assert!(matches!(
        scene.write(handle, "x"),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "write", .. }))
    ));
    assert!(matches!(
        scene.fsync(handle),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "fsync", .. }))
    ));
    scene.unregister(handle).unwrap();
    assert_eq!(scene.read_at(handle, 0, 1), Err(Misuse::StaleHandle.into()));
}

fn a_folder_cannot_be_written(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let refused = open(&mut scene, &folder.path("."), OpenOptions::write());
    assert_eq!(refused.unwrap_err(), OpError::Os(libc::EISDIR));
    let file = open(&mut scene, &folder.path("."), OpenOptions::read()).unwrap();
    assert_eq!(read_at(&mut scene, file, 0, 10), Err(OpError::Os(libc::EISDIR)));
    let folder = File::open(folder.path(".")).unwrap();
    let error = scene.register(folder.into(), 0, None).unwrap_err();
    assert_eq!(error.to_string(), "a directory cannot be registered");
}

fn a_file_opened_for_reading_refuses_writes(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    fs::write(&path, b"kept").unwrap();
    let file = open(&mut scene, &path, OpenOptions::read()).unwrap();
    scene.write_at(file, 0, "x").unwrap();
    let Event::Write(Err(OpError::BadDescriptor)) = scene.next_of(file) else { panic!() };
    scene.write(file, "x").unwrap();
    let Event::Write(Err(OpError::BadDescriptor)) = scene.next_of(file) else { panic!() };
    assert_eq!(read_at(&mut scene, file, 0, 10).unwrap(), b"kept");
}

fn a_file_vector_of_many_parts_is_one_write(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
    let parts: Vec<_> = (0..500).map(|turn| pattern(turn, 11)).collect();
    let whole = parts.concat();
    scene.writev(file, parts.into_iter().map(Payload::from)).unwrap();
    scene.expect_written(file, 5500);
    assert_eq!(fs::read(path).unwrap(), whole);
}

fn a_registered_file_works_like_an_opened_one(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let options = File::options().read(true).write(true).create(true).clone();
    let file = scene.register(options.open(&path).unwrap().into(), 0, None).unwrap();
    assert!(!file.is_lwsocket());
    assert_eq!(scene.explain(file).unwrap().kind, "disk file");
    scene.write_at(file, 5, "at five").unwrap();
    scene.expect_written(file, 7);
    scene.write(file, "start").unwrap();
    scene.expect_written(file, 5);
    scene.fsync(file).unwrap();
    let Event::Fsync(Ok(())) = scene.next_of(file) else { panic!() };
    assert_eq!(read_at(&mut scene, file, 0, 100).unwrap(), b"startat five");
    assert!(scene.unregister(file).unwrap().fd.is_some());
}

fn operations_before_the_file_is_open_are_refused(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    fs::write(&path, b"content").unwrap();
    let file = scene.open(&path, &OpenOptions::read(), 0).unwrap();
    assert!(matches!(
        scene.read(file, 1),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "read", .. }))
    ));
    assert!(matches!(
        scene.read_at(file, 0, 1),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "read_at", .. }))
    ));
    assert!(matches!(
        scene.write(file, "x"),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "write", .. }))
    ));
    assert!(matches!(
        scene.fsync(file),
        Err(SubmitError::Misuse(Misuse::WrongKind { call: "fsync", .. }))
    ));
    let Event::Open(Ok(())) = scene.next_of(file) else { panic!() };
    assert_eq!(read_at(&mut scene, file, 0, 7).unwrap(), b"content");
}

fn a_path_with_a_nul_is_refused(case: &Case) {
    let mut scene = case.scene();
    for path in ["a\0b".to_owned(), "x".repeat(5000)] {
        let refused = scene.open(Path::new(&path), &OpenOptions::read(), 0);
        assert_eq!(refused, Err(Misuse::InvalidPath.into()));
    }
}

fn a_large_file_is_written_whole(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    let path = folder.path("file");
    let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
    scene.write_at(file, 0, pattern(1, 4 << 20)).unwrap();
    scene.expect_written(file, 4 << 20);
    let back = read_at(&mut scene, file, 0, 4 << 20).unwrap();
    assert!(back == pattern(1, 4 << 20)[..back.len()] && !back.is_empty());
    assert!(fs::read(path).unwrap() == pattern(1, 4 << 20));
}

fn unregister_with_jobs_under_way_is_clean(case: &Case) {
    let mut scene = case.scene();
    let folder = Folder::new();
    for turn in 0..10 {
        let path = folder.path(format!("file{turn}"));
        let file = open(&mut scene, &path, OpenOptions::write()).unwrap();
        for block in 0..20 {
            scene.write_at(file, block * 4096, pattern(1, 4096)).unwrap();
            scene.read_at(file, block * 4096, 4096).unwrap();
            scene.fsync(file).unwrap();
        }
        if turn % 2 == 0 {
            scene.flush().unwrap();
        }
        scene.unregister(file).unwrap();
    }
    // Opening, too, may be given up.
    let file = scene.open(&folder.path("late"), &OpenOptions::write(), 0).unwrap();
    scene.unregister(file).unwrap();
    scene.expect_silence();
    scene.expect_no_strays();
}
