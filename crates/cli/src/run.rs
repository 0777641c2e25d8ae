//! `megapipe run`: starts an unmodified program on megapipe's sockets, by the preload library.
//!
//! In: options and a command line. Out: the program in the place of this process, with `LD_PRELOAD`
//! and the settings in its environment. A program that the dynamic loader would start without the
//! library is refused (`run/program.rs`).
//!
//! Exit status: 125 for an error of `run`, 126 for a program that cannot be preloaded, 127 for one
//! that is not found, else the program's own.

mod check_table;
mod private_daemon;
mod program;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use megapipe::{LoopbackOwner, ServiceAddress};
use megapipe_apps::backend::SERVICE_VARIABLE;
use megapipe_preload::rules::{PathRule, RuleError};
use megapipe_preload::{LIBRARY, LOOPBACK, PreloadSettingError, PreloadSettings, TOKEN, VARIABLES};
use megapipe_service::attach::{ServiceObserver, ServiceQueryError};

use crate::info::InfoError;
use private_daemon::PrivateDaemonError;
use program::{Program, ProgramError};

/// The library below a prefix, and its folder beside a program in `bin/`.
const LIBRARY_FILE: &str = "lib/megapipe/libmegapipe-preload.so";
/// Exit status of invalid arguments of the other commands.
const USAGE: u8 = 2;

/// Run an unmodified program on megapipe's sockets
///
/// TCP and UDP sockets that belong to the stack leave the kernel; files, pipes and all other
/// sockets stay there. A listener on any address accepts from both. The exit status is 125 for an
/// error of `run` itself, 126 for a program that cannot be preloaded, 127 for one that is not
/// found, else the program's own.
#[derive(Debug, Args)]
#[command(
    after_help = "Rules: stack|kernel|both listen|connect|udp ADDRESS[/BITS]|*:PORT[-PORT]|*. \
    The first that matches decides.\n\n\
    Example: megapipe run --backend local --link memif:/tmp/mp.sock,role=server \
    --address 10.9.0.1/24 -- redis-server --port 6379"
)]
pub(crate) struct RunProgramArgs {
    /// The stack behind the sockets
    #[arg(long, value_enum, default_value = "service")]
    backend: RunBackend,
    /// The path of the daemon's control socket
    ///
    /// Without it the path in MEGAPIPE_SERVICE, else /run/megapipe/megapiped.sock.
    #[arg(long, value_name = "PATH")]
    service: Option<PathBuf>,
    /// The link of the back end local: memif:SOCKET[,role=server], tap:DEVICE, packet:INTERFACE or
    /// xdp:INTERFACE
    ///
    /// With the back end service, and where no daemon runs: the link of a private daemon for the
    /// program and its children, which ends with them.
    #[arg(long)]
    link: Option<String>,
    /// Addresses of the stack, as 10.0.0.2/24, with commas between
    #[arg(long)]
    address: Option<String>,
    /// Gateways of the stack, with commas between
    #[arg(long)]
    gateway: Option<String>,
    /// Which TCP/IP has 127.0.0.0/8 and ::1 [default: kernel]
    ///
    /// With `stack` they connect the program's own sockets, inside the stack; on the back end
    /// service those of all programs of the daemon, which has to have the same option.
    #[arg(long, value_name = "kernel|stack")]
    loopback: Option<LoopbackOwner>,
    /// Where the stack runs [default: thread]
    #[arg(long, value_name = "inline|thread|core")]
    placement: Option<String>,
    /// A rule that selects the path of sockets; may be repeated
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// A file with a rule in each line; # begins a comment
    #[arg(long = "rules", value_name = "FILE")]
    rules_file: Option<PathBuf>,
    /// If the stack cannot start, its sockets go on in the kernel
    ///
    /// A line on standard error and the report name the reason. Without this option their calls
    /// fail with ENETDOWN. MEGAPIPE_FALL_BACK=1 does the same.
    #[arg(long)]
    fall_back: bool,
    /// Refuses TCP sockets that would go to the kernel without a rule that names them (ENETUNREACH)
    #[arg(long, value_name = "stack", conflicts_with = "fall_back")]
    require: Option<String>,
    /// Lists the path of each socket with its reason in a file, or on standard error
    #[arg(long, value_name = "FILE|stderr")]
    report: Option<String>,
    /// Adds the stack's addresses to those that getifaddrs(3) returns, as interface megapipe0
    #[arg(long)]
    show_addresses: bool,
    /// Leaves programs alone that the program starts with a new environment
    ///
    /// Otherwise exec restores LD_PRELOAD and the settings there.
    #[arg(long)]
    no_follow: bool,
    /// Prints which functions of libc the program and its libraries import, and which of them are
    /// interposed, passed through or refused, with the reason. Starts nothing
    #[arg(long)]
    check: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RunBackend {
    /// Linux's TCP, by the library's sockets
    Kernel,
    /// The stack in the process, on a link of its own
    Local,
    /// The stack of a daemon
    Service,
}

/// Why `run` did not start the program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunProgramError {
    #[error("unexpected argument '{0}': no option of run, whose command follows behind --")]
    NoOption(String),
    #[error(transparent)]
    Service(#[from] ServiceQueryError),
    #[error(
        "{0}: start `megapiped`, or add --link memif:SOCKET[,role=server] or --link tap:DEVICE, \
         and --address ADDRESS/BITS, for a private one; --backend local and --backend kernel need \
         none"
    )]
    NoService(ServiceQueryError),
    #[error(transparent)]
    Private(#[from] PrivateDaemonError),
    #[error(
        "the service at {0} shares the host's addresses (packet, xdp), which unmodified programs \
         cannot use yet; start it on tap or memif"
    )]
    SharedAddress(String),
    #[error(
        "the service at {0} leaves 127.0.0.0/8 and ::1 to the kernel; start it with --loopback \
         stack, or leave out --loopback"
    )]
    NoLoopback(String),
    #[error(transparent)]
    Setting(#[from] PreloadSettingError),
    #[error("--rule: {0}")]
    RuleInOption(RuleError),
    #[error("--report: {path}: {source}")]
    Report { path: String, source: io::Error },
    #[error("{path}:{line}: {source}")]
    RuleInFile { path: String, line: usize, source: RuleError },
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("{0} is missing: install it with `cargo xtask install`, or set MEGAPIPE_PRELOAD")]
    NoLibrary(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("{program}: {source}")]
    Exec { program: String, source: io::Error },
    #[error(transparent)]
    Output(#[from] InfoError),
}

impl RunProgramError {
    /// Whether the program could run, with the kernel alone.
    fn is_without_stack(&self) -> bool {
        matches!(self, Self::NoService(_) | Self::Private(_))
    }

    /// Returns the exit status.
    pub(crate) fn status(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Program(ProgramError::NotFound { .. }) => 127,
            Self::Program(_) => 126,
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 125,
        })
    }
}

/// Prints what is wrong with a command line. Returns the exit status: that of `run` is 125.
pub(crate) fn usage_status(error: &clap::Error) -> ExitCode {
    // A closed standard error is no reason for another status.
    let _ = error.print();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return ExitCode::SUCCESS;
    }
    let is_run = std::env::args_os().nth(1).is_some_and(|name| name == "run");
    ExitCode::from(if is_run { 125 } else { USAGE })
}

/// Checks everything, then becomes the program.
pub(crate) fn run(args: &RunProgramArgs) -> Result<ExitCode, RunProgramError> {
    let name = args.command.first().cloned().unwrap_or_default();
    if name.as_encoded_bytes().starts_with(b"-") {
        // Options of a command may have any name, so the parser takes this for the command.
        return Err(RunProgramError::NoOption(name.to_string_lossy().into_owned()));
    }
    let stack = RunStack::of(args);
    // A daemon starts last, when nothing else is wrong.
    let rules = rules(args)?;
    args.check_report()?;
    let known = stack.is_known().then(|| variables(args, &stack, &rules)).transpose()?;
    let library = library()?;
    let program = Program::find(&name)?;
    if args.check {
        crate::info::write_to_stdout(check_table::table(&program)?.as_bytes())?;
        program.check()?;
        return Ok(ExitCode::SUCCESS);
    }
    program.check()?;
    let mut command = Command::new(&program.path);
    command.arg0(&name).args(&args.command[1..]);
    for name in VARIABLES {
        command.env_remove(name);
    }
    let variables = match known {
        Some(variables) => Some(variables),
        None => match stack.with_service(args) {
            Ok(stack) => Some(variables(args, &stack, &rules)?),
            Err(why) if why.is_without_stack() && falls_back(args)? => {
                note_fall_back(args, &why);
                None
            }
            Err(why) => return Err(why),
        },
    };
    if let Some(variables) = variables {
        command
            .envs(variables)
            .env(LIBRARY, &library)
            .env("LD_PRELOAD", preload(&library, &program));
    }
    let source = command.exec();
    Err(RunProgramError::Exec { program: program.path.display().to_string(), source })
}

/// What the options say of the stack, and what its daemon does.
#[derive(Debug, Clone)]
struct RunStack {
    backend: RunBackend,
    /// The path of the daemon; empty: there is none.
    service: String,
    /// The number of the daemon's token.
    token: String,
    link: String,
    address: String,
    gateway: String,
    loopback: Option<LoopbackOwner>,
}

impl RunStack {
    fn of(args: &RunProgramArgs) -> Self {
        let of = |value: &Option<String>| value.clone().unwrap_or_default();
        Self {
            backend: args.backend,
            service: String::new(),
            token: String::new(),
            link: of(&args.link),
            address: of(&args.address),
            gateway: of(&args.gateway),
            loopback: args.loopback,
        }
    }

    /// Whether the options say it all.
    fn is_known(&self) -> bool {
        self.backend != RunBackend::Service
    }

    /// Asks the daemon for the networks of its stack. Where none runs, a private one is started.
    fn with_service(self, args: &RunProgramArgs) -> Result<Self, RunProgramError> {
        let path = args.service_path();
        let (mut observer, path, token) = match ServiceObserver::connect(&path) {
            Ok(observer) => (observer, path, String::new()),
            Err(absent @ ServiceQueryError::Absent { .. }) if self.link.is_empty() => {
                return Err(RunProgramError::NoService(absent));
            }
            Err(ServiceQueryError::Absent { .. }) => {
                let (path, token) = private_daemon::start(&self)?;
                (ServiceObserver::connect(&path)?, path, token.to_string())
            }
            Err(error) => return Err(error.into()),
        };
        let networks = observer.networks()?;
        let service = path.display().to_string();
        if networks.shares_host_address {
            return Err(RunProgramError::SharedAddress(service));
        }
        let (loopback, addresses): (Vec<_>, Vec<_>) =
            networks.networks.iter().partition(|(address, _)| address.is_loopback());
        if self.loopback == Some(LoopbackOwner::Stack) && loopback.is_empty() {
            return Err(RunProgramError::NoLoopback(service));
        }
        let addresses = addresses.iter().map(|(address, bits)| format!("{address}/{bits}"));
        let gateways = networks.gateways.iter().map(ToString::to_string);
        Ok(Self {
            service,
            token,
            link: String::new(),
            address: addresses.collect::<Vec<_>>().join(","),
            gateway: gateways.collect::<Vec<_>>().join(","),
            ..self
        })
    }
}

/// The value of a variable for an option without a value.
fn is_set(option: bool) -> String {
    if option { "1".to_owned() } else { String::new() }
}

/// The rules of the options, in their order.
fn rules(args: &RunProgramArgs) -> Result<Vec<String>, RunProgramError> {
    let mut rules = args.rules.clone();
    for rule in &rules {
        rule.parse::<PathRule>().map_err(RunProgramError::RuleInOption)?;
    }
    if let Some(path) = &args.rules_file {
        rules.extend(rules_of(path)?);
    }
    Ok(rules)
}

/// The settings as variables, checked as the library does.
fn variables(
    args: &RunProgramArgs,
    stack: &RunStack,
    rules: &[String],
) -> Result<Vec<(&'static str, String)>, RunProgramError> {
    let backend = match stack.backend {
        RunBackend::Kernel => "kernel",
        RunBackend::Local => "local",
        RunBackend::Service => "service",
    };
    let of = |value: &Option<String>| value.clone().unwrap_or_default();
    let all = [
        ("MEGAPIPE_BACKEND", backend.to_owned()),
        ("MEGAPIPE_SERVICE", stack.service.clone()),
        (TOKEN, stack.token.clone()),
        ("MEGAPIPE_LINK", stack.link.clone()),
        ("MEGAPIPE_ADDRESS", stack.address.clone()),
        ("MEGAPIPE_GATEWAY", stack.gateway.clone()),
        (LOOPBACK, stack.loopback.map(LoopbackOwner::name).unwrap_or_default().to_owned()),
        ("MEGAPIPE_PLACEMENT", of(&args.placement)),
        ("MEGAPIPE_RULES", rules.join("; ")),
        ("MEGAPIPE_REPORT", of(&args.report)),
        ("MEGAPIPE_FALL_BACK", fall_back(args)),
        ("MEGAPIPE_REQUIRE", of(&args.require)),
        ("MEGAPIPE_NO_FOLLOW", is_set(args.no_follow)),
        ("MEGAPIPE_SHOW_ADDRESSES", is_set(args.show_addresses)),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>();
    PreloadSettings::read(|name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    })?;
    Ok(set)
}

/// Whether sockets go on in the kernel, as a variable: by option, or by the environment.
fn fall_back(args: &RunProgramArgs) -> String {
    match args.fall_back {
        true => "1".to_owned(),
        false if args.require.is_some() => String::new(),
        false => std::env::var("MEGAPIPE_FALL_BACK").unwrap_or_default(),
    }
}

fn falls_back(args: &RunProgramArgs) -> Result<bool, PreloadSettingError> {
    megapipe_preload::falls_back(|_| Some(fall_back(args)))
}

/// Notes that the program runs without the library.
fn note_fall_back(args: &RunProgramArgs, why: &RunProgramError) {
    let line = format!("megapipe: {why}; the program runs in the kernel (--fall-back)\n");
    // Neither a closed standard error nor a full disk keeps the program from running.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = args.report.as_deref().filter(|path| *path != "stderr") {
        let file = fs::File::options().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

impl RunProgramArgs {
    /// Checks that the report can be written.
    fn check_report(&self) -> Result<(), RunProgramError> {
        let Some(path) = self.report.as_deref().filter(|path| *path != "stderr") else {
            return Ok(());
        };
        let opened = fs::File::options().append(true).create(true).open(path);
        opened.map(drop).map_err(|source| RunProgramError::Report { path: path.to_owned(), source })
    }

    /// The path of the daemon's control socket.
    fn service_path(&self) -> PathBuf {
        let by_environment = || std::env::var_os(SERVICE_VARIABLE).filter(|path| !path.is_empty());
        let path = self.service.clone().or_else(|| by_environment().map(PathBuf::from));
        path.unwrap_or_else(|| ServiceAddress::default().path().to_owned())
    }
}

fn rules_of(path: &Path) -> Result<Vec<String>, RunProgramError> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|source| RunProgramError::File { path: shown.clone(), source })?;
    let mut rules = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let rule = line.split('#').next().unwrap_or_default().trim();
        if rule.is_empty() {
            continue;
        }
        rule.parse::<PathRule>().map_err(|source| RunProgramError::RuleInFile {
            path: shown.clone(),
            line: index + 1,
            source,
        })?;
        rules.push(rule.to_owned());
    }
    Ok(rules)
}

/// The library: the one that MEGAPIPE_PRELOAD names, or the one of this program's prefix.
fn library() -> Result<PathBuf, RunProgramError> {
    let named = std::env::var_os(LIBRARY).filter(|path| !path.is_empty()).map(PathBuf::from);
    let installed = || {
        let program = std::env::current_exe().ok()?;
        Some(program.parent()?.parent()?.join(LIBRARY_FILE))
    };
    let path = named.or_else(installed).unwrap_or_else(|| PathBuf::from(LIBRARY_FILE));
    match path.is_file() {
        true => Ok(path),
        false => Err(RunProgramError::NoLibrary(path.display().to_string())),
    }
}

/// LD_PRELOAD with the library first; what stands there stays. The runtime of AddressSanitizer
/// refuses a place after others.
fn preload(library: &Path, program: &Program) -> OsString {
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let words = before.as_bytes().split(|byte| matches!(byte, b':' | b' '));
    let words =
        words.filter(|word| !word.is_empty()).map(|word| OsStr::from_bytes(word).to_owned());
    let (mut list, after): (Vec<_>, Vec<_>) =
        words.partition(|word| program::is_address_sanitizer(Path::new(word)));
    if list.is_empty() {
        list.extend(program.address_sanitizer().map(PathBuf::into_os_string));
    }
    list.push(library.as_os_str().to_owned());
    list.extend(after);
    list.join(OsStr::new(":"))
}
