//! Files that results are written to at the end of a run, and that are tried at its start.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

/// Makes sure that a file can be written, so that a path that cannot be does not cost the results
/// of a run. Creates the file if there is none. `-` is standard output.
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
        _ => OpenOptions::new().append(true).create(true).open(path).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_an_error_and_what_is_there_stays() {
        let folder = std::env::temp_dir().join(format!("megapipe-results-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("old.json");
        fs::write(&file, "old").unwrap();
        assert!(check(&file).is_ok() && check(&folder.join("new.json")).is_ok());
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        assert!(check(&folder.join("none/new.json")).is_err());
        assert_eq!(check(&folder).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert!(check(Path::new("-")).is_ok() && check(Path::new("/dev/null")).is_ok());
        assert!(!Path::new("-").exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
