//! Result files: written at the end of a run, checked at its start.
//!
//! Invariants
//! - A run that fails leaves no file behind, and a file that was there before as it was.
//! - A reader never sees a part of the results: they are written to a temporary file in the same
//!   directory, which is renamed then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes sure that a file can be written, so that a path that cannot be does not cost the results
/// of a run. Leaves nothing behind. `-` is standard output.
///
/// Pipes and devices are not tried: opening one can wait for its reader, or end it.
///
/// # Errors
/// As [`OpenOptions::open`]; a directory is an error too.
pub fn check(path: &Path) -> io::Result<()> {
    if path == Path::new("-") {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop),
        // The file itself, so that a name that is too long for it is found too.
        Err(_) => {
            OpenOptions::new().write(true).create_new(true).open(path)?;
            fs::remove_file(path)
        }
    }
}

/// Writes a file in full or not at all. A file that is there keeps its permissions. Pipes and
/// devices, and files in a directory that takes no new ones, are written as they are.
///
/// # Errors
/// As [`fs::write`]; what was there before stays then.
///
/// # Examples
/// ```
/// let path = std::env::temp_dir().join(format!("result-{}", std::process::id()));
/// megapipe_apps::result_file::write(&path, "{}")?;
/// assert_eq!(std::fs::read_to_string(&path)?, "{}");
/// std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    // What a link points to is replaced, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let before = fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return fs::write(target, text);
    }
    let temporary = temporary(&target);
    let Ok(file) = OpenOptions::new().write(true).create_new(true).open(&temporary) else {
        return fs::write(target, text);
    };
    let done = fill(file, text, before.as_ref()).and_then(|()| fs::rename(&temporary, &target));
    if done.is_err() {
        // The reason that is reported is why it could not be written.
        let _ = fs::remove_file(&temporary);
    }
    done
}

fn fill(mut file: File, text: &str, before: Option<&fs::Metadata>) -> io::Result<()> {
    if let Some(before) = before {
        file.set_permissions(before.permissions())?;
    }
    file.write_all(text.as_bytes())
}

/// A temporary name in the same folder, unique to this process.
fn temporary(path: &Path) -> PathBuf {
    path.with_file_name(format!(".megapipe-results-{}.tmp", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn folder(name: &str) -> PathBuf {
        let name = format!("megapipe-results-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn check_finds_bad_paths_and_leaves_nothing_behind() {
        let folder = folder("check");
        let file = folder.join("old.json");
        fs::write(&file, "old").unwrap();
        assert!(check(&file).is_ok() && check(&folder.join("new.json")).is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert!(!folder.join("new.json").exists());
        assert!(check(&folder.join("none/new.json")).is_err());
        assert!(check(&folder.join("n".repeat(300))).is_err());
        assert_eq!(check(&folder).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(check(Path::new("-")).is_ok() && check(Path::new("/dev/null")).is_ok());
        assert!(!Path::new("-").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn write_replaces_the_content_and_keeps_links_and_permissions() {
        let folder = folder("write");
        let (file, link) = (folder.join("file"), folder.join("link"));
        write(&file, "first").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, "second").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "no temporary file is left");
        assert!(write(Path::new("/dev/null"), "text").is_ok());
        fs::remove_dir_all(folder).unwrap();
    }
}
