//! Sets of files for web workloads: made on disk for a server, and known to the load.
//!
//! A set is a distribution of sizes and a number of files; both sides compute the same names,
//! sizes and contents from these two. File `i` is `set/NNNNNN.bin`, its content the rpc protocol's
//! pattern from place `i` on.
//!
//! Read first: `distribution.rs` for the workloads of MegaPipe's figure 5.5.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

use crate::limits::load::PATHS_MAX;
use crate::rpc::protocol::{PATTERN, PATTERN_LEN};

use super::distribution::{Distribution, DistributionError, whole};

/// The files of a set, unless a number is given.
const FILES_DEFAULT: usize = 1_000;

/// A set of files, by their sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct FileSet {
    sizes: Distribution,
    lens: Vec<u64>,
}

/// Why a text is no set of files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileSetError {
    /// The sizes are no distribution.
    #[error(transparent)]
    Sizes(#[from] DistributionError),
    /// The number of files is out of range.
    #[error("a set has 1 to {PATHS_MAX} files")]
    Count,
    /// There is no memory for the sizes of so many files.
    #[error("memory for the sizes of {0} files: Cannot allocate memory")]
    NoMemory(usize),
}

impl FileSet {
    /// `count` files whose sizes represent a distribution.
    ///
    /// # Errors
    /// A count of zero or beyond the limit; no memory for the sizes of so many files.
    pub fn new(sizes: Distribution, count: usize) -> Result<Self, FileSetError> {
        if count == 0 || count > PATHS_MAX {
            return Err(FileSetError::Count);
        }
        let lens = sizes.representatives(count).map_err(|_| FileSetError::NoMemory(count))?;
        Ok(Self { sizes, lens })
    }

    /// Bytes of each file, in the order of their numbers.
    #[must_use]
    pub fn lens(&self) -> &[u64] {
        &self.lens
    }

    /// The path of a file under the server's root, with a leading slash.
    #[must_use]
    pub fn path(index: usize) -> String {
        format!("/set/{index:06}.bin")
    }

    /// A piece of a file's content: from `offset` on, at most up to `end`; empty only at the end.
    #[must_use]
    pub fn content(index: usize, offset: u64, end: u64) -> &'static [u8] {
        let start = (index as u64 + offset) % PATTERN_LEN as u64;
        let len = (PATTERN_LEN as u64 - start).min(end.saturating_sub(offset));
        &PATTERN[start as usize..(start + len) as usize]
    }

    /// Writes the files below a directory, which is made if it is missing. Blocks.
    ///
    /// # Errors
    /// Whatever keeps a file from being written.
    pub fn write_below(&self, root: &Path) -> io::Result<()> {
        fs::create_dir_all(root.join("set"))?;
        for (index, &len) in self.lens.iter().enumerate() {
            let path = root.join(Self::path(index).trim_start_matches('/'));
            let mut file = io::BufWriter::new(fs::File::create(path)?);
            let mut offset = 0;
            while offset < len {
                let piece = Self::content(index, offset, len);
                file.write_all(piece)?;
                offset += piece.len() as u64;
            }
            file.flush()?;
        }
        Ok(())
    }
}

impl FromStr for FileSet {
    type Err = FileSetError;

    /// `SIZES` or `SIZES@COUNT`.
    fn from_str(text: &str) -> Result<Self, FileSetError> {
        let (sizes, count) = match text.split_once('@') {
            Some((sizes, count)) => {
                (sizes, usize::try_from(whole(count)?).map_err(|_| FileSetError::Count)?)
            }
            None => (text, FILES_DEFAULT),
        };
        Self::new(sizes.parse()?, count)
    }
}

impl fmt::Display for FileSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.sizes, self.lens.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_the_same_wherever_it_is_computed() {
        let set: FileSet = "specweb@200".parse().expect("a set");
        assert_eq!(set.lens().len(), 200);
        assert_eq!(set.to_string().parse(), Ok(set));
        let thousand = "64".parse::<FileSet>().expect("a set");
        assert_eq!(thousand.lens(), vec![64; 1_000]);
        assert_eq!("64@0".parse::<FileSet>(), Err(FileSetError::Count));
        assert!("nothing@5".parse::<FileSet>().is_err());
    }

    #[test]
    fn files_on_disk_match_computed_sizes() {
        let root = std::env::temp_dir().join(format!("megapipe-file-set-{}", std::process::id()));
        let set: FileSet = "uniform:1-200K@5".parse().expect("a set");
        set.write_below(&root).expect("writing");
        for (index, &len) in set.lens().iter().enumerate() {
            let path = root.join(FileSet::path(index).trim_start_matches('/'));
            let bytes = fs::read(path).expect("reading");
            assert_eq!(bytes.len() as u64, len);
            let middle = len / 2;
            let expected = FileSet::content(index, middle, len);
            assert!(bytes[middle as usize..].starts_with(expected) && !expected.is_empty());
        }
        fs::remove_dir_all(root).expect("tidying up");
    }
}
