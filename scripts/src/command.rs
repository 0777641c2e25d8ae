//! `megapipe script`: runs script files and reports the outcome of each.
//!
//! Invariants: one line per file, with what differs below it; the exit code is the worst of all
//! files: 0 passed, 1 failed, 2 not understood or not supported.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::parse::Definitions;
use crate::report::{ScriptOutcome, ScriptVerdict};
use crate::script::ScriptSetting;
use crate::{Invocation, On, prepare};

/// Run packet scripts in packetdrill's language
///
/// Exit codes: 0 all passed, 1 one failed, 2 one is not understood or needs something that is not
/// supported. A script that cannot run here is skipped, and says why.
#[derive(Debug, Args)]
pub struct ScriptArgs {
    /// The system under test
    #[arg(long, value_enum, default_value_t = On::Stack)]
    on: On,
    /// A word of the script and what stands for it
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE")]
    definitions: Vec<String>,
    /// An option as a script may begin with, without its dashes: `ip_version=ipv6`
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Only check whether the files can be parsed
    #[arg(long)]
    parse_only: bool,
    /// The scripts
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Why scripts could not be run at all.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// `-D` without a value.
    #[error("-D {0}: expected NAME=VALUE")]
    BadDefinition(String),
    /// The reader of the report has gone.
    #[error("write the report: {0}")]
    Unwritable(#[from] std::io::Error),
}

impl ScriptError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Unreadable { .. } | Self::BadDefinition(_))
    }
}

/// Runs the files one after the other. Blocks until all are done.
pub fn run(args: &ScriptArgs) -> Result<ExitCode, ScriptError> {
    let invocation = invocation(args)?;
    let mut worst = 0;
    for path in &args.files {
        let shown = path.display().to_string();
        let text = std::fs::read(path)
            .map_err(|source| ScriptError::Unreadable { path: shown, source })?;
        worst = worst.max(run_one(path, &text, args, &invocation)?);
    }
    Ok(ExitCode::from(worst))
}

fn invocation(args: &ScriptArgs) -> Result<Invocation, ScriptError> {
    let mut definitions = Definitions::default();
    for definition in &args.definitions {
        if !definitions.define(definition) {
            return Err(ScriptError::BadDefinition(definition.clone()));
        }
    }
    let settings = args.settings.iter().map(|text| {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        ScriptSetting { line: 0, name: name.to_owned(), value: value.to_owned() }
    });
    Ok(Invocation { settings: settings.collect(), definitions })
}

fn run_one(
    path: &Path,
    text: &[u8],
    args: &ScriptArgs,
    invocation: &Invocation,
) -> Result<u8, ScriptError> {
    let mut out = std::io::stdout().lock();
    let path = path.display();
    let prepared = match prepare(text, invocation) {
        Ok(prepared) => prepared,
        Err(error) => {
            writeln!(out, "not understood: {path}:{error}")?;
            return Ok(2);
        }
    };
    if args.parse_only {
        writeln!(out, "understood: {path}")?;
        return Ok(0);
    }
    let outcome = prepared.run(args.on);
    let remark = prepared.difference(args.on);
    if let (Some(reason), ScriptVerdict::Failed(_) | ScriptVerdict::Unsupported { .. }) =
        (remark, &outcome.verdict)
    {
        writeln!(out, "differs: {path}: {reason}")?;
        return Ok(0);
    }
    report(&mut out, &path.to_string(), &outcome)?;
    if let (Some(reason), ScriptVerdict::Passed) = (remark, &outcome.verdict) {
        writeln!(out, "    remark no longer true: {reason}")?;
    }
    Ok(outcome.verdict.exit_code())
}

/// One line, and more for details.
fn report(out: &mut impl Write, path: &str, outcome: &ScriptOutcome) -> Result<(), std::io::Error> {
    match &outcome.verdict {
        ScriptVerdict::Passed => writeln!(out, "passed: {path} ({} events)", outcome.event_count)?,
        ScriptVerdict::Failed(failure) => writeln!(out, "failed: {path}:{failure}")?,
        ScriptVerdict::Unsupported { line, what } => {
            writeln!(out, "not run: {path}:{line}: {what}")?
        }
        ScriptVerdict::Skipped(why) => writeln!(out, "skipped: {path}: {why}")?,
    }
    if outcome.code_count > 0 {
        writeln!(out, "    {} blocks of code not run", outcome.code_count)?;
    }
    outcome.notes.iter().try_for_each(|note| writeln!(out, "    {note}"))
}
