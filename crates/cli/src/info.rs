//! `megapipe info`: the driver that a channel gets here and why, each feature that was tried, what
//! a server's channels would be, and the settings that limit it.
//!
//! Settings are read from `/proc` and `/sys` and judged by pure functions of their text, so that
//! tests can cover other machines. The drivers are always tried.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use megapipe::{Channel, Config, DriverChoice, DriverReport};
use megapipe_apps::backend::BackendArgs;
use megapipe_apps::limits::CHANNELS_MAX;
use megapipe_apps::number::within;
use megapipe_apps::serve::{ChannelPlan, CpuList, ServeArgs, ServeError, ServerPlan, plan_server};
use megapipe_apps::terminal::{COLUMNS, wrap};
use megapipe_apps::threads;
use serde::Serialize;

mod settings;

use settings::Setting;

/// Reason why a driver that was selected by name is available.
const WORKS: &str = "a channel with it was created and its features were tried";

/// Time to wait for a link.
const LINK_PATIENCE: Duration = Duration::from_secs(3);

/// Options of `megapipe info`.
///
/// With the options of a server it also shows the server's channels: the link, the number of queues
/// and shards, the steering, and the cores.
#[derive(Clone, Debug, Args)]
pub(crate) struct InfoArgs {
    /// As JSON
    #[arg(long)]
    json: bool,

    /// Channels that a server would have
    #[arg(long, value_name = "N",
          value_parser = within(1..=CHANNELS_MAX))]
    channels: Option<usize>,

    /// Processors that they would be pinned to, in order, such as 0,2-5
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,

    /// The TCP implementation.
    #[command(flatten)]
    backend: BackendArgs,
}

/// Cause of a failed `megapipe info`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InfoError {
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Plan(#[from] ServeError),
    #[error("a thread for the trial of a server: {0}")]
    Thread(#[source] io::Error),
    #[error("--link: its other end did not connect within {} s", 2 * LINK_PATIENCE.as_secs())]
    NoLink,
}

/// The result of one driver's trial.
#[derive(Debug, Serialize)]
struct Trial {
    driver: &'static str,
    available: bool,
    /// Why it works, or why it does not.
    reason: String,
    features: Vec<FeatureLine>,
}

#[derive(Debug, Serialize)]
struct FeatureLine {
    name: &'static str,
    available: bool,
    consequence: &'static str,
}

/// The report.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    kernel: String,
    /// The driver that a channel gets by default.
    chosen: Trial,
    /// Each driver, selected by name.
    drivers: Vec<Trial>,
    /// The channels of a server with these options.
    server: ServerPlan,
    settings: Vec<Setting>,
}

/// Tries and reads everything, and prints it.
pub(crate) fn print(args: &InfoArgs) -> Result<(), InfoError> {
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        kernel: read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
        chosen: try_driver("auto", DriverChoice::Auto),
        drivers: vec![
            try_driver("uring", DriverChoice::Uring),
            try_driver("epoll", DriverChoice::Epoll),
        ],
        server: server_plan(args)?,
        settings: settings::all(&read, &interfaces()),
    };
    let text = if args.json { serde_json::to_string_pretty(&info)? + "\n" } else { info.table() };
    write_to_stdout(text.as_bytes())
}

/// The channels of a server with these options. A link may wait for its other end, such as the
/// server side of a memif, so the wait is limited.
fn server_plan(args: &InfoArgs) -> Result<ServerPlan, InfoError> {
    let mut backend = args.backend.clone();
    if let Some(link) = &mut backend.link
        && link.starts_with("memif:")
        && !link.contains(",wait=")
    {
        // The link gives up first, and removes the socket of a server.
        link.push_str(&format!(",wait={}", LINK_PATIENCE.as_secs()));
    }
    let serve = ServeArgs {
        channels: args.channels,
        cpus: args.cpus.clone(),
        backend,
        ..ServeArgs::on([])
    };
    let (sender, receiver) = mpsc::channel();
    // A thread that still waits for the link ends with the process.
    let trial = move || drop(sender.send(plan_server(&serve)));
    threads::spawn("info", trial).map_err(InfoError::Thread)?;
    let plan = receiver.recv_timeout(LINK_PATIENCE + LINK_PATIENCE);
    Ok(plan.map_err(|_| InfoError::NoLink)??)
}

/// Writes everything to standard output; a closed pipe is not an error.
pub(crate) fn write_to_stdout(bytes: &[u8]) -> Result<(), InfoError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A small channel has the same driver as a large one.
fn try_driver(name: &'static str, choice: DriverChoice) -> Trial {
    let config = Config::default().driver(choice).max_lwsockets(16).buffer_count(16);
    match Channel::create(config) {
        Ok(channel) => match choice {
            DriverChoice::Auto => Trial::of(channel.report()),
            // Selecting it by name is part of the trial.
            _ => Trial { reason: WORKS.to_owned(), ..Trial::of(channel.report()) },
        },
        Err(error) => Trial {
            driver: name,
            available: false,
            reason: error.to_string(),
            features: Vec::new(),
        },
    }
}

impl Trial {
    fn of(report: &DriverReport) -> Self {
        let features = report.features.iter().map(|feature| FeatureLine {
            name: feature.name,
            available: feature.available,
            consequence: feature.consequence,
        });
        Self {
            driver: report.driver.name(),
            available: true,
            reason: report.reason.clone(),
            features: features.collect(),
        }
    }

    fn lines(&self, out: &mut Vec<String>) {
        let answer = if self.available { "yes" } else { "no" };
        let head = format!("{:<10}{answer:<5}", self.driver);
        out.extend(wrap(&head, &self.reason, COLUMNS));
        let width = self.features.iter().map(|feature| feature.name.len()).max().unwrap_or(0);
        for FeatureLine { name, available, consequence } in &self.features {
            let answer = if *available { "yes" } else { "no" };
            let head = format!("  {name:<width$}  {answer:<4} ");
            out.extend(wrap(&head, consequence, COLUMNS));
        }
    }
}

impl Info {
    fn table(&self) -> String {
        let mut lines =
            vec![format!("megapipe {} on Linux {}", self.version, self.kernel), String::new()];
        let head = format!("A channel gets the driver {}: ", self.chosen.driver);
        lines.extend(wrap(&head, &self.chosen.reason, COLUMNS));
        lines.push(String::new());
        self.drivers.iter().for_each(|trial| trial.lines(&mut lines));
        lines.push(String::new());
        lines.extend(server_lines(&self.server));
        lines.push(String::new());
        lines.extend(settings::lines(&self.settings));
        lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// What a server's channels would be.
fn server_lines(server: &ServerPlan) -> Vec<String> {
    let ServerPlan { backend, link, queues, shards, steering, placement, channels } = server;
    let plural = if channels.len() == 1 { "" } else { "s" };
    let mut lines =
        vec![format!("A server with {} channel{plural} on the {backend} back end", channels.len())];
    let mut line =
        |name: &str, text: &str| lines.extend(wrap(&format!("  {name:<10} "), text, COLUMNS));
    if let Some(link) = link {
        line("link", link);
    }
    if let (Some(queues), Some(shards)) = (queues, shards) {
        line("queues", &queues.to_string());
        line("shards", &format!("{shards}, one for each channel"));
    }
    line("steering", &format!("{}: {}", steering.name, steering.why));
    line("placement", &format!("{}: {}", placement.name, placement.why));
    for ChannelPlan { index, core, takes_cores, driver, place } in channels {
        let core = core.map_or_else(|| "not pinned".to_owned(), |core| format!("on core {core}"));
        let takes = takes_cores.as_ref().map(|cores| format!(", takes connections of {cores}"));
        let stack = place.as_ref().map(|place| format!(", its stack {place}"));
        let rest = [takes, stack].into_iter().flatten().collect::<String>();
        line(&format!("channel {index}"), &format!("{core}, driver {driver}{rest}"));
    }
    lines
}

/// The trimmed text of a small file with spaces for tabs; `None` if it cannot be read.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().replace('\t', " "))
}

/// The names of the network interfaces, in order.
fn interfaces() -> Vec<String> {
    let entries = std::fs::read_dir(PathBuf::from("/sys/class/net"));
    let names = entries.into_iter().flatten().flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
