//! Errors of the tools. A finding of a tool in the project is not an error: it is
//! printed, and the command answers `false`.

use std::io;
use std::path::{Path, PathBuf};

/// The machine, or the tree, is not as the tool needs it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ToolError {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The program's name.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A program failed.
    #[error("{command} failed:\n{output}")]
    Failed {
        /// The command line.
        command: String,
        /// What it printed.
        output: String,
    },
    /// `cargo metadata` did not answer as documented.
    #[error("cargo metadata: {0}")]
    Metadata(#[from] serde_json::Error),
    /// The C header could not be made from the sources.
    #[error("cbindgen: {0}")]
    Header(String),
    /// A file or a folder is not as it should be.
    #[error("{0}")]
    Wrong(String),
}

impl ToolError {
    /// For `map_err` on an operation on `path`.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }
}
