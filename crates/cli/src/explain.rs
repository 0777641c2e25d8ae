//! `megapipe explain`: what a running `megapiped` does with a port, a connection or a process, and
//! why.
//!
//! `target.rs` parses what is to be explained, `report.rs` selects it (its types are the JSON,
//! too), `text.rs` makes the text; all of these are pure. `process_start.rs` reads when a process
//! began.

mod link_servers;
mod managers;
mod process_start;
mod report;
mod target;
mod text;
mod times;

use clap::Args;

use crate::info::{InfoError, write_to_stdout};
use crate::observed::{ObserveError, ObservedArgs};
use report::Explanation;
use target::ExplainTarget;

/// Explain what a running megapiped does with a port, a connection or a process
///
/// Shows the shard, its link and its CPU time; the listener with its acceptors; and the sessions of
/// the programs with their limits, use and CPU time. What belongs to other users is shown to root
/// and the daemon's user only.
#[derive(Clone, Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    observed: ObservedArgs,

    /// A port such as :80, an end of a connection such as 10.0.0.1:43210, or the number of a
    /// process; without it the whole daemon
    #[arg(value_name = "PORT|CONN|PID")]
    target: Option<ExplainTarget>,
}

/// Cause of a failed `megapipe explain`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExplainError {
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error("the service at {service} has nothing {target}{restriction}")]
    Nothing { service: String, target: ExplainTarget, restriction: &'static str },
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Output(#[from] InfoError),
}

/// Asks the daemon, and prints what was asked for.
pub(crate) fn print(args: &ExplainArgs) -> Result<(), ExplainError> {
    let target = args.target.unwrap_or(ExplainTarget::Daemon);
    let observed = args.observed.observe(matches!(target, ExplainTarget::End(_)))?;
    let explanation = Explanation::of(&observed, target, &process_start::read);
    if target != ExplainTarget::Daemon && explanation.is_empty() {
        let service = observed.path.display().to_string();
        let restriction = if observed.daemon.sees_all { "" } else { " that this user may see" };
        return Err(ExplainError::Nothing { service, target, restriction });
    }
    let text = if args.observed.json {
        serde_json::to_string_pretty(&explanation)? + "\n"
    } else {
        text::text(&explanation)
    };
    Ok(write_to_stdout(text.as_bytes())?)
}
