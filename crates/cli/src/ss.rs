//! `megapipe ss`: the sockets of a running `megapiped`, with the options and columns of ss(8).
//!
//! Read first: ss(8). `filter.rs` parses states and expressions, `table.rs` and `words.rs` make the
//! text, `json.rs` the JSON; all of these are pure.

mod filter;
mod json;
mod table;
mod words;

use clap::Args;

use crate::info::{InfoError, write_to_stdout};
use crate::observed::{ObserveError, ObservedArgs, ObservedService};
use filter::{FilterError, SocketFilter};
use megapipe_service::observe::ServiceSocket;

pub(crate) use json::TcpInfoReport;
pub(crate) use words::{state_name, tcp_words};

/// Show the sockets of a running megapiped, as ss(8) shows Linux's
///
/// Options, columns and filters are those of ss(8); numbers are never resolved to names. A filter
/// is `[state STATE] [EXPRESSION]`, such as `state established '( sport = :80 or dport = :80 )'`
/// or `dst 10.0.0.0/8`. Other users' sockets, and those that no program has (handshakes,
/// TIME-WAIT), are shown to root and the daemon's user only.
#[derive(Clone, Debug, Args)]
pub(crate) struct SsArgs {
    #[command(flatten)]
    observed: ObservedArgs,

    #[command(flatten)]
    kinds: SocketKinds,

    #[command(flatten)]
    columns: SocketColumns,

    /// State and expression, as in ss(8)
    #[arg(value_name = "FILTER")]
    filter: Vec<String>,
}

/// Which sockets are shown.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct SocketKinds {
    /// TCP sockets
    #[arg(short, long)]
    tcp: bool,

    /// UDP sockets
    #[arg(short, long)]
    udp: bool,

    /// Listening sockets only
    #[arg(short, long)]
    listening: bool,

    /// Sockets in all states
    #[arg(short, long)]
    all: bool,

    /// IPv4 only
    #[arg(short = '4', long)]
    ipv4: bool,

    /// IPv6 only
    #[arg(short = '6', long)]
    ipv6: bool,
}

/// What is shown of each.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct SocketColumns {
    /// Numbers in place of names: always so
    #[arg(short, long)]
    numeric: bool,

    /// The process that has it
    #[arg(short, long)]
    processes: bool,

    /// What TCP knows of it
    #[arg(short, long)]
    info: bool,

    /// The timer that expires next
    #[arg(short, long)]
    options: bool,

    /// User, shard and number
    #[arg(short, long)]
    extended: bool,

    /// No header line
    #[arg(short = 'H', long)]
    no_header: bool,

    /// One line for each socket
    #[arg(short = 'O', long)]
    oneline: bool,
}

/// Cause of a failed `megapipe ss`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SsError {
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Output(#[from] InfoError),
}

impl SsError {
    /// Whether the arguments are invalid.
    pub(crate) const fn is_usage(&self) -> bool {
        matches!(self, Self::Filter(_))
    }
}

/// Asks the daemon, and prints what was asked for.
pub(crate) fn print(args: &SsArgs) -> Result<(), SsError> {
    let filter = SocketFilter::parse(&args.filter, args.kinds)?;
    let observed = args.observed.observe(args.columns.info)?;
    let sockets = selected(&observed, &filter);
    let text = if args.observed.json {
        let report = json::report(&observed, &sockets);
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        table::text(&observed, &sockets, args.kinds, args.columns)
    };
    Ok(write_to_stdout(text.as_bytes())?)
}

/// The sockets that pass a filter, in order: by protocol, state and addresses.
fn selected<'it>(
    observed: &'it ObservedService,
    filter: &SocketFilter,
) -> Vec<(u16, &'it ServiceSocket)> {
    let all = observed.sockets.iter().map(|(shard, socket)| (*shard, socket));
    let mut sockets: Vec<_> = all.filter(|(_, socket)| filter.takes(socket)).collect();
    sockets
        .sort_by_key(|(shard, it)| (it.is_datagram, it.state.index(), it.local, it.peer, *shard));
    sockets
}
