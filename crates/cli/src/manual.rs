//! Manual pages of the command, made from its command line: `megapipe(1)` and a page for each
//! subcommand, such as `megapipe-serve-http(1)`.
//!
//! `cargo xtask install` writes them below the prefix.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Sections of the first page that are not part of the command line.
const SECTIONS: &str = r#".SH "EXIT STATUS"
.TP
\fB0\fR
Done.
.TP
\fB1\fR
Failed; one line on standard error says why.
.TP
\fB2\fR
A mistake in the arguments; standard error names it.
.TP
\fB3\fR
A load got not one answer.
.SH EXAMPLES
A server and its load, in two shells:
.PP
.nf
megapipe serve rpc
megapipe load rpc 127.0.0.1:7000
.fi
.SH "SEE ALSO"
.BR megapipe (7),
the library
"#;

/// Cause of pages not being written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write manual pages into the folder `{}`", folder.display())]
pub(crate) struct ManualError {
    folder: PathBuf,
    source: io::Error,
}

/// Writes the page of a command and those of its subcommands into a folder.
pub(crate) fn write(command: clap::Command, folder: &Path) -> Result<(), ManualError> {
    let pages = || {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(command, folder)?;
        let first = folder.join("megapipe.1");
        OpenOptions::new().append(true).open(first)?.write_all(SECTIONS.as_bytes())
    };
    pages().map_err(|source| ManualError { folder: folder.to_owned(), source })
}
