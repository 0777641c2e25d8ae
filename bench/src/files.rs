//! The files that the http servers serve, made from the parameters that the paper gives [MP 5.3].

use megapipe_apps::load::file_set;
use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

/// A set of files and how often each is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServedFileSet {
    /// One file of 1 KiB.
    OneKibibyte,
    /// Six requests per connection, 30 to 5,670 B, 704 B on average.
    SpecWeb,
    /// Zipf-like: 1 to 1,597 requests per connection, 2.3 on average; 12.5 KiB on average.
    Yahoo,
    /// The same with all sizes halved.
    YahooHalf,
    /// One file of this many bytes.
    Sized(u64),
}

impl ServedFileSet {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneKibibyte => "http-1k",
            Self::SpecWeb => "http-specweb",
            Self::Yahoo => "http-yahoo",
            Self::YahooHalf => "http-yahoo2",
            Self::Sized(_) => "http-sized",
        }
    }

    /// The set as `megapipe load http --files` takes it.
    pub(crate) fn argument(self) -> Cow<'static, str> {
        match self {
            Self::OneKibibyte => "1K@1".into(),
            Self::SpecWeb => "specweb".into(),
            Self::Yahoo => "yahoo".into(),
            Self::YahooHalf => "yahoo/2".into(),
            Self::Sized(bytes) => format!("{bytes}@1").into(),
        }
    }

    pub(crate) const fn mean_bytes(self) -> u64 {
        match self {
            Self::OneKibibyte => 1024,
            Self::SpecWeb => 704,
            Self::Yahoo => 12_800,
            Self::YahooHalf => 6_400,
            Self::Sized(bytes) => bytes,
        }
    }

    /// Folder of the files inside the benchmark's scratch directory.
    pub(crate) fn directory(self, scratch: &Path) -> PathBuf {
        match self {
            Self::Sized(bytes) => scratch.join(format!("{}-{bytes}", self.name())),
            _ => scratch.join(self.name()),
        }
    }

    /// Writes the files, unless they are there. Blocks.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn prepare(self, scratch: &Path) -> io::Result<()> {
        let directory = self.directory(scratch);
        if directory.exists() {
            return Ok(());
        }
        let set: file_set::FileSet = self.argument().parse().map_err(io::Error::other)?;
        set.write_below(&directory)
    }
}

#[cfg(test)]
mod tests {
    use super::{ServedFileSet, file_set};

    #[test]
    fn file_sets_match_the_paper() {
        use ServedFileSet::{OneKibibyte, Sized, SpecWeb, Yahoo, YahooHalf};
        for set in [OneKibibyte, SpecWeb, Yahoo, YahooHalf, Sized(64), Sized(8192)] {
            let files: file_set::FileSet = set.argument().parse().unwrap();
            let sum: u64 = files.lens().iter().sum();
            let mean = sum / files.lens().len() as u64;
            let stated = set.mean_bytes();
            assert!(mean.abs_diff(stated) * 10 <= stated, "{set:?}: {mean}, not {stated}");
        }
    }
}
