//! Static file server over HTTP on channels: `megapipe serve http`.
//!
//! HTTP/1.1 and 1.0 (RFC 9110, 9112): GET, HEAD and OPTIONS, persistent connections and
//! pipelining, ranges, conditional requests, index files. Small files are kept in memory with
//! their heads before them; larger ones are read in chunks by the channel. There is no directory
//! listing, no content coding, no TLS.
//!
//! Read first: `http/connection.rs`, one connection as a function of (bytes, now); then
//! `http/shard.rs`, which ties connections to a channel. What a request is, is in `request.rs`
//! and `content.rs`; what answers it in `handler.rs`, `conditional.rs`, `range.rs` and
//! `response.rs`; what it names in `path.rs`, `files.rs` and `cache.rs`.
//!
//! Invariants
//! - No bytes of a peer make a connection hold more than `limits::CONNECTION_BYTES_MAX`, outlive
//!   its deadlines, or read a file outside the root.
//! - A request whose length could be read in two ways is refused and its connection closed.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

mod cache;
mod conditional;
mod connection;
mod content;
mod date;
mod document_root;
mod files;
mod handler;
mod limits;
mod media_type;
mod outbox;
mod path;
mod path_resolver;
mod range;
mod representation;
mod request;
mod response;
mod settings;
mod shard;
mod status;
mod stream;

use crate::number::within;
use crate::serve::{Running, ServeArgs, ServeError, ServerProperties, ShardSetup};
use cache::Cache;
use files::{FilesOptions, ServedFiles};
use settings::HttpSettings;
use shard::HttpShard;

/// What the frame has to know about this server.
pub const SERVER: ServerProperties = ServerProperties {
    name: "http",
    listen_default: "127.0.0.1:8000",
    files_per_connection: 1,
    has_statuses: true,
};

/// The options of `megapipe serve http`.
#[derive(Clone, Debug, Args)]
pub struct HttpArgs {
    /// What every server has.
    #[command(flatten)]
    pub serve: ServeArgs,

    /// The directory to serve
    #[arg(long, value_name = "DIRECTORY")]
    pub root: PathBuf,

    /// Name of the file that stands for its directory; may be given several times
    #[arg(help_heading = "Files", long, value_name = "NAME", default_value = "index.html",
          value_parser = parse_index_name)]
    pub index: Vec<String>,

    /// Let symbolic links lead out of the root
    #[arg(help_heading = "Files", long)]
    pub follow_links: bool,

    /// Tell caches that files may be used for so many seconds without asking again
    #[arg(help_heading = "Files", long, value_name = "SECONDS",
          value_parser = within(0..=u32::MAX))]
    pub max_age: Option<u32>,

    /// Bytes of files kept in memory, for each channel
    #[arg(help_heading = "Files",
          long, value_name = "BYTES", default_value_t = limits::CACHE_BYTES_DEFAULT,
          value_parser = within(0..=usize::MAX))]
    pub cache_bytes: usize,

    /// Bytes of the largest file that is read at once and may be kept in memory
    ///
    /// A peer that takes an answer slowly keeps so much in memory; larger files pass in chunks.
    #[arg(help_heading = "Files",
          long, value_name = "BYTES", default_value_t = limits::CACHE_FILE_BYTES_DEFAULT as u64,
          value_parser = within(0..=limits::CACHE_FILE_BYTES_MAX as u64))]
    pub cache_file_bytes: u64,

    /// Files kept in memory, for each channel
    #[arg(help_heading = "Files",
          long, value_name = "N", default_value_t = limits::CACHE_ENTRIES_DEFAULT,
          value_parser = within(0..=usize::MAX))]
    pub cache_entries: usize,

    /// Bytes of a request's head
    #[arg(help_heading = "Limits",
          long, value_name = "BYTES", default_value_t = limits::HEAD_BYTES_DEFAULT as u64,
          value_parser = within(256..=limits::HEAD_BYTES_MAX as u64))]
    pub max_head_bytes: u64,

    /// Bytes of a request's content, which is thrown away
    #[arg(help_heading = "Limits",
          long, value_name = "BYTES", default_value_t = limits::CONTENT_BYTES_DEFAULT,
          value_parser = within(0..=u64::MAX))]
    pub max_content_bytes: u64,

    /// Requests of one connection; 0 for no limit
    #[arg(help_heading = "Limits", long, value_name = "N", default_value_t = 0,
          value_parser = within(0..=u64::MAX))]
    pub max_requests: u64,

    /// Seconds for the head of a request, from its first byte
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::HEAD_TIMEOUT_S_DEFAULT,
          value_parser = within(1..=limits::TIMEOUT_S_MAX))]
    pub head_timeout: u32,

    /// Seconds for the content of a request
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::CONTENT_TIMEOUT_S_DEFAULT,
          value_parser = within(1..=limits::TIMEOUT_S_MAX))]
    pub content_timeout: u32,

    /// Seconds that a connection may be idle between two requests
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::IDLE_TIMEOUT_S_DEFAULT,
          value_parser = within(1..=limits::TIMEOUT_S_MAX))]
    pub idle_timeout: u32,

    /// Seconds for each write: a peer must take about 128 KiB of its answers in this time
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::WRITE_TIMEOUT_S_DEFAULT,
          value_parser = within(1..=limits::TIMEOUT_S_MAX))]
    pub write_timeout: u32,

    /// Seconds to wait for the peer to close after the server has
    #[arg(help_heading = "Limits",
          long, value_name = "SECONDS", default_value_t = limits::LINGER_TIMEOUT_S_DEFAULT,
          value_parser = within(1..=limits::TIMEOUT_S_MAX))]
    pub linger_timeout: u32,
}

impl HttpArgs {
    /// A server of `root` with the default limits.
    #[must_use]
    pub fn new(serve: ServeArgs, root: PathBuf) -> Self {
        Self {
            serve,
            root,
            index: vec!["index.html".to_owned()],
            follow_links: false,
            max_age: None,
            cache_bytes: limits::CACHE_BYTES_DEFAULT,
            cache_file_bytes: limits::CACHE_FILE_BYTES_DEFAULT as u64,
            cache_entries: limits::CACHE_ENTRIES_DEFAULT,
            max_head_bytes: limits::HEAD_BYTES_DEFAULT as u64,
            max_content_bytes: limits::CONTENT_BYTES_DEFAULT,
            max_requests: 0,
            head_timeout: limits::HEAD_TIMEOUT_S_DEFAULT,
            content_timeout: limits::CONTENT_TIMEOUT_S_DEFAULT,
            idle_timeout: limits::IDLE_TIMEOUT_S_DEFAULT,
            write_timeout: limits::WRITE_TIMEOUT_S_DEFAULT,
            linger_timeout: limits::LINGER_TIMEOUT_S_DEFAULT,
        }
    }

    fn settings(&self) -> HttpSettings {
        let ms = |seconds: u32| u64::from(seconds) * 1_000;
        HttpSettings {
            head_bytes_max: self.max_head_bytes as usize,
            content_bytes_max: self.max_content_bytes,
            requests_max: (self.max_requests > 0).then_some(self.max_requests),
            head_timeout_ms: ms(self.head_timeout),
            content_timeout_ms: ms(self.content_timeout),
            idle_timeout_ms: ms(self.idle_timeout),
            write_timeout_ms: ms(self.write_timeout),
            linger_timeout_ms: ms(self.linger_timeout),
        }
    }

    /// The files of one channel.
    fn files(&self) -> Result<ServedFiles, ServeError> {
        let options = FilesOptions {
            root: &self.root,
            follow_links: self.follow_links,
            index_names: &self.index,
            held_bytes_max: self.cache_file_bytes,
            max_age_s: self.max_age,
        };
        ServedFiles::new(&options, Cache::new(self.cache_bytes, self.cache_entries))
            .map_err(|error| ServeError::argument(format!("--root {}", self.root.display()), error))
    }
}

/// Runs the server until a signal ends it. Blocks.
///
/// # Errors
/// A root that cannot be served, and whatever [`crate::serve::serve`] returns.
pub fn serve(args: &HttpArgs) -> Result<(), ServeError> {
    let files = args.files()?;
    if let Some(notice) = files.resolution().notice() {
        // A closed standard error is ignored.
        let _ = writeln!(io::stderr(), "{notice}");
    }
    if !files.has_index() {
        let (names, root) = (args.index.join(" or "), args.root.display());
        let _ = writeln!(io::stderr(), "http: no {names} in {root}: / is answered with 403");
    }
    crate::serve::serve(&args.serve, SERVER, factory(args))
}

/// Starts the server inside this process and returns when it listens.
///
/// # Errors
/// As [`serve`].
pub fn start(args: &HttpArgs) -> Result<Running, ServeError> {
    args.files()?;
    crate::serve::start(&args.serve, SERVER, factory(args))
}

fn factory(
    args: &HttpArgs,
) -> impl Fn(ShardSetup<'_>) -> Result<HttpShard, ServeError> + Send + Sync + 'static {
    let args = args.clone();
    move |setup| {
        let files = args.files()?;
        HttpShard::new(setup, args.settings(), files)
    }
}

/// A name without a path: the file is in the requested directory.
fn parse_index_name(text: &str) -> Result<String, &'static str> {
    match text {
        "" | "." | ".." => Err("not the name of a file"),
        name if name.contains(['/', '\0']) => Err("a name has no slash"),
        name => Ok(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        http: HttpArgs,
    }

    #[test]
    fn the_defaults_of_the_command_line_are_those_of_new() {
        let parsed = Program::try_parse_from(["x", "--root", "/srv"]).unwrap().http;
        let made = HttpArgs::new(parsed.serve.clone(), "/srv".into());
        assert_eq!(format!("{parsed:?}"), format!("{made:?}"));
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for option in [
            "--index=a/b",
            "--index=..",
            "--max-head-bytes=10",
            "--max-head-bytes=1000000000",
            "--cache-file-bytes=100000000000",
            "--idle-timeout=0",
            "--write-timeout=100000",
        ] {
            let parsed = Program::try_parse_from(["x", "--root", "/srv", option]);
            assert!(parsed.is_err(), "{option}");
        }
        assert!(Program::try_parse_from(["x"]).is_err(), "a root must be named");
    }

    #[test]
    fn a_root_that_is_no_directory_is_an_error_of_the_user() {
        let args = HttpArgs::new(ServeArgs::on([]), "/dev/null".into());
        let error = start(&args).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("--root /dev/null: "), "{error}");
    }
}
