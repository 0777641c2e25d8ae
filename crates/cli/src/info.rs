//! What does this machine offer? The driver that a channel gets here and why, each feature that was
//! tried, what a server's channels would be, and the settings that bound it.
//!
//! Settings are read from `/proc` and `/sys` and judged by pure functions of their text, so that
//! the judgement can be tested for machines that are not there. The drivers are tried, as always.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use megapipe::{Channel, Config, DriverChoice, DriverReport};
use megapipe_apps::backend::BackendArgs;
use megapipe_apps::limits::CHANNELS_MAX;
use megapipe_apps::serve::{CpuList, ServeArgs, ServeError, Survey, Surveyed, survey};
use serde::Serialize;

mod settings;

use settings::Setting;

/// Why a driver is available that was asked for by name.
const WORKS: &str = "a channel with it was created and its features were tried";

/// How long a link may take to be there.
const LINK_PATIENCE: Duration = Duration::from_secs(3);

/// Options of `megapipe info`.
///
/// With the options of a server it says what the server's channels would be: which link, how many
/// queues and shards, who steers connections to them, and on which cores.
#[derive(Clone, Debug, Args)]
pub(crate) struct InfoArgs {
    /// As JSON
    #[arg(long)]
    json: bool,

    /// Channels that a server would have
    #[arg(long, value_name = "N",
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=CHANNELS_MAX as u64))]
    channels: Option<usize>,

    /// Processors that they would be pinned to, in order, such as 0,2-5
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,

    /// Who would do TCP.
    #[command(flatten)]
    backend: BackendArgs,
}

/// Why nothing could be said.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InfoError {
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Survey(#[from] ServeError),
    #[error("--link: nobody has come to its other end in {} s", LINK_PATIENCE.as_secs())]
    NoLink,
}

/// What one driver's trial gave.
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

/// Everything that is said.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    kernel: String,
    /// The driver that a channel gets unasked.
    chosen: Trial,
    /// Each driver, asked for by name.
    drivers: Vec<Trial>,
    /// What a server's channels would be.
    server: Survey,
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
        server: surveyed(args)?,
        settings: settings::all(&read, &interfaces()),
    };
    let text = if args.json { serde_json::to_string_pretty(&info)? + "\n" } else { info.table() };
    write_to_stdout(text.as_bytes())
}

/// What a server with these options would have. A link may wait for its other end, as a memif's
/// server does, which is not what somebody wants who only asks.
fn surveyed(args: &InfoArgs) -> Result<Survey, InfoError> {
    let serve = ServeArgs {
        channels: args.channels,
        cpus: args.cpus.clone(),
        backend: args.backend.clone(),
        ..ServeArgs::on([])
    };
    let (sender, receiver) = mpsc::channel();
    // A thread that still waits for the link ends with the process, and nobody listens to it.
    thread::spawn(move || drop(sender.send(survey(&serve))));
    let surveyed = receiver.recv_timeout(LINK_PATIENCE);
    Ok(surveyed.map_err(|_| InfoError::NoLink)??)
}

/// Writes everything; a reader that has gone away has seen enough.
pub(crate) fn write_to_stdout(bytes: &[u8]) -> Result<(), InfoError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A small channel is enough to learn what a large one would be.
fn try_driver(name: &'static str, choice: DriverChoice) -> Trial {
    let config = Config::default().driver(choice).max_lwsockets(16).buffer_count(16);
    match Channel::create(config) {
        Ok(channel) => match choice {
            DriverChoice::Auto => Trial::of(channel.report()),
            // That it was asked for by name is this program's own doing.
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
        out.push(format!("{:<10}{answer:<5}{}", self.driver, self.reason));
        let width = self.features.iter().map(|feature| feature.name.len()).max().unwrap_or(0);
        for FeatureLine { name, available, consequence } in &self.features {
            let answer = if *available { "yes" } else { "no" };
            out.push(format!("  {name:<width$}  {answer:<4} {consequence}"));
        }
    }
}

impl Info {
    fn table(&self) -> String {
        let mut lines = vec![
            format!("megapipe {} on Linux {}", self.version, self.kernel),
            String::new(),
            format!("A channel gets the driver {}: {}", self.chosen.driver, self.chosen.reason),
            String::new(),
        ];
        self.drivers.iter().for_each(|trial| trial.lines(&mut lines));
        lines.push(String::new());
        lines.extend(server_lines(&self.server));
        lines.push(String::new());
        lines.extend(settings::lines(&self.settings));
        lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

/// What a server's channels would be.
fn server_lines(server: &Survey) -> Vec<String> {
    let Survey { backend, link, queues, shards, steering, placement, channels } = server;
    let plural = if channels.len() == 1 { "" } else { "s" };
    let mut lines =
        vec![format!("A server with {} channel{plural} on the {backend} back end", channels.len())];
    let mut line = |name: &str, text: &str| lines.push(format!("  {name:<10} {text}"));
    if let Some(link) = link {
        line("link", link);
    }
    if let (Some(queues), Some(shards)) = (queues, shards) {
        line("queues", &queues.to_string());
        line("shards", &format!("{shards}, one for each channel"));
    }
    line("steering", &format!("{}: {}", steering.name, steering.why));
    line("placement", &format!("{}: {}", placement.name, placement.why));
    for Surveyed { index, core, takes_cores, driver, place } in channels {
        let core = core.map_or_else(|| "not pinned".to_owned(), |core| format!("on core {core}"));
        let takes = takes_cores.as_ref().map(|cores| format!(", takes connections of {cores}"));
        let stack = place.as_ref().map(|place| format!(", its stack {place}"));
        let rest = [takes, stack].into_iter().flatten().collect::<String>();
        line(&format!("channel {index}"), &format!("{core}, driver {driver}{rest}"));
    }
    lines
}

/// A small file's text without the blanks around it and with blanks for tabs; none if it cannot be
/// read.
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
