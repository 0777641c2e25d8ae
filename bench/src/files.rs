//! The files that the http servers serve, made from the parameters that the paper gives [MP 5.3].

use std::{
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A set of files and how they are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileSet {
    /// One file of 1 KiB.
    OneKibibyte,
    /// Six requests per connection, 30 to 5,670 B, 704 B on average.
    SpecWeb,
    /// Zipf-like: 1 to 1,597 requests per connection, 2.3 on average; 12.5 KiB on average.
    Yahoo,
    /// The same with all sizes halved.
    YahooHalf,
}

impl FileSet {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OneKibibyte => "http-1k",
            Self::SpecWeb => "http-specweb",
            Self::Yahoo => "http-yahoo",
            Self::YahooHalf => "http-yahoo2",
        }
    }

    /// The set as `megapipe load http --files` takes it.
    pub(crate) const fn argument(self) -> &'static str {
        match self {
            Self::OneKibibyte => "1K@1",
            Self::SpecWeb => "specweb",
            Self::Yahoo => "yahoo",
            Self::YahooHalf => "yahoo/2",
        }
    }

    pub(crate) const fn mean_bytes(self) -> u64 {
        match self {
            Self::OneKibibyte => 1024,
            Self::SpecWeb => 704,
            Self::Yahoo => 12_800,
            Self::YahooHalf => 6_400,
        }
    }

    /// Where the files lie inside the benchmark's scratch directory.
    pub(crate) fn directory(self, scratch: &Path) -> PathBuf {
        scratch.join(self.name())
    }

    /// Writes the files, unless they are there. Blocks.
    ///
    /// # Errors
    /// If the program cannot be run, or says that it failed.
    pub(crate) fn prepare(self, program: &Path, scratch: &Path) -> io::Result<()> {
        let directory = self.directory(scratch);
        if directory.exists() {
            return Ok(());
        }
        // A load has an address, even if it only writes files.
        let mut command = Command::new(program);
        command.args(["load", "http", "127.0.0.1:1", "--files", self.argument(), "--prepare"]);
        let output = command.arg(&directory).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(io::Error::other(format!("writing the files of {}: {said}", self.name())))
    }
}
