//! `megapiped`: our own TCP/IP stack in a daemon, which many unprivileged processes share.
//!
//! In: a command line and a policy file. Out: shards on threads, and a control socket that channels
//! with `--backend service` attach to. Everything but options, signals and reading the policy file
//! (`megapipe_policy`) is `megapipe::Daemon`.
//!
//! Invariants
//! - It prints `ready at PATH` when clients can attach.
//! - SIGTERM and SIGINT end it: sessions end, and the socket is removed.
//! - SIGHUP reads the policy file again. A file with a mistake changes nothing.
//! - A policy file that others than root and the daemon's user may write is not used.
//! - Exit codes: 0 ended by a signal, 1 failed, 2 invalid arguments or policy file.
//! - `megapiped manual FOLDER` writes the page `megapiped.8`, for `cargo xtask install`.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{CommandFactory, Parser};
use megapipe::policy::ServicePolicy;
use megapipe::{
    Daemon, DaemonError, LocalNetwork, LoopbackOwner, NetworkError, Prefixed, PrefixedError,
    ServerConfig,
};
use megapipe_apps::backend::SERVICE_VARIABLE;
use megapipe_apps::number::{parse_or_exit, within};
use megapipe_apps::reason::{exit_code, reason};
use megapipe_apps::serve::CpuList;
use megapipe_apps::threads::allowed_cpus;
use megapipe_policy::{PolicyMistake, UserDatabase};
use megapipe_service::balancer::Scheme;
use megapipe_service::layout::{Component, ServerLayout};
use megapipe_service::policy::QuotaKind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How long a private daemon waits for a link that another program has: longer than a daemon goes
/// on without its program.
const IN_USE_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two attempts.
const IN_USE_PAUSE: Duration = Duration::from_millis(10);

/// The policy file of a daemon without `--policy`, if it is there.
const POLICY_PATH: &str = "/etc/megapipe/megapiped.toml";

/// A TCP/IP stack on cores of its own, shared by many processes
///
/// Processes attach with `--backend service` (or MEGAPIPE_BACKEND=service) and need no privilege.
/// The daemon needs those of its link: CAP_NET_ADMIN and CAP_NET_RAW for tap:, packet: and xdp:,
/// none for memif: at a path that it may use.
#[derive(Debug, Parser)]
#[command(name = "megapiped", version, max_term_width = 100)]
struct DaemonArgs {
    /// The link, such as packet:eth0, xdp:eth0, tap:tap0 or memif:/run/memif.sock
    #[arg(long, value_name = "LINK", required_unless_present = "check")]
    link: Option<String>,

    /// An address on the link, ADDRESS/BITS; may be given several times
    ///
    /// May be left out where the link shares the host's addresses (packet:, xdp:).
    #[arg(long, value_name = "ADDRESS/BITS", value_parser = host_address)]
    address: Vec<Prefixed>,

    /// The next hop for everything that is not on the link
    #[arg(long, value_name = "IP")]
    gateway: Vec<IpAddr>,

    /// Which TCP/IP has 127.0.0.0/8 and ::1 for the processes that attach: kernel or stack
    #[arg(long, value_name = "kernel|stack", default_value = "kernel")]
    loopback: LoopbackOwner,

    /// Largest IP packet in bytes, if smaller than the link's
    #[arg(long, value_name = "BYTES", value_parser = within(576..=u16::MAX))]
    mtu: Option<u16>,

    /// The path of the control socket
    ///
    /// Without it the path in MEGAPIPE_SERVICE, else /run/megapipe/megapiped.sock.
    #[arg(long, value_name = "PATH")]
    service: Option<PathBuf>,

    /// The policy file: ports, addresses and quotas of users and groups
    ///
    /// Without it /etc/megapipe/megapiped.toml, if that is there. SIGHUP reads the file again.
    #[arg(long, value_name = "PATH")]
    policy: Option<PathBuf>,

    /// Serve the holders of the other end of the socket on standard input, and end with them
    #[arg(long, hide = true)]
    private: bool,

    /// Start a daemon in the background, and end when it is ready
    #[arg(long, hide = true)]
    detach: bool,

    /// Check the policy file, print what it gives, and end
    #[arg(long)]
    check: bool,

    /// Number of shards, each on a thread; without it one for each of --cpus, else for each queue
    ///
    /// A channel is served by all of them: each connection by the one that its flow hash selects.
    #[arg(long, value_name = "COUNT", value_parser = within(1..=128_u16))]
    shards: Option<u16>,

    /// Which servers run together, such as TS8LS8CM8; without it as many of each as --shards
    ///
    /// TS are transport servers (flows), LS link servers (frames), CM connection managers (new
    /// connections). TS8LS8CM8: eight servers have all three. TS8LS8CM2: the first two of them have
    /// a CM. TS8LS8+CM1: the CM is on a server of its own. TS8+LS2+CM1: two link servers read the
    /// link's queues, of which there are at least two, for all TS.
    #[arg(long, value_name = "LAYOUT", conflicts_with = "shards")]
    layout: Option<ServerLayout>,

    /// Processors for the servers in the layout's order, such as 2,3
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,

    /// Most connections of a shard
    #[arg(long, value_name = "COUNT", default_value_t = 65_536,
          value_parser = within(1..=1_048_576_u32))]
    connections: u32,

    /// Microseconds that a shard polls after the last work before it sleeps, at most
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50,
          value_parser = within(0..=1_000_000_u32))]
    spin: u32,

    /// Microseconds in which a process that shares a port accepts a connection: then another has it
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 5_000,
          value_parser = within(100..=1_000_000_u32))]
    claim_time: u32,

    /// How a connection's process is selected, where several share a port
    ///
    /// tournament:T, filtered:T and unfiltered:T by service time, where T is the factor by which
    /// those of another shard must be faster; naive; hash, as Linux does.
    #[arg(long, value_name = "SCHEME", default_value_t = Scheme::default())]
    balance: Scheme,
}

/// Why the daemon failed.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("--link {link}")]
    Link {
        link: String,
        #[source]
        source: NetworkError,
    },
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(transparent)]
    Policy(#[from] PolicyFileError),
    #[error("--cpus: processor {cpu} is not among those that this process may use ({allowed})")]
    Cpu { cpu: usize, allowed: String },
    #[error("--cpus: {cpus} processors for {servers} servers; name one for each")]
    Cpus { cpus: usize, servers: usize },
    #[error("cannot catch signals")]
    Signals(#[source] std::io::Error),
    #[error("cannot start in the background")]
    Detach(#[source] std::io::Error),
    #[error("the daemon did not start ({0})")]
    NotReady(ExitStatus),
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    #[error("cannot write the manual page into the folder `{}`", folder.display())]
    Manual {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl RunError {
    const fn is_usage(&self) -> bool {
        match self {
            Self::Link { source, .. } => source.is_configuration(),
            Self::Policy(_) | Self::Cpu { .. } | Self::Cpus { .. } => true,
            _ => false,
        }
    }
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
enum PolicyFileError {
    #[error("cannot read the policy file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the policy file {} is no regular file", path.display())]
    NotFile { path: PathBuf },
    #[error("{}:{}: {}", path.display(), mistake.line, mistake.mistake)]
    Mistake { path: PathBuf, mistake: PolicyMistake },
    #[error(
        "the policy file {} has owner {owner} and mode {mode:04o}; only root and the daemon's user \
         may write it",
        path.display()
    )]
    Writable { path: PathBuf, owner: u32, mode: u32 },
}

/// Parses an address that a host can have on a link.
fn host_address(text: &str) -> Result<Prefixed, String> {
    let parsed: Prefixed = text.parse().map_err(|error: PrefixedError| error.to_string())?;
    let is_host = match parsed.address {
        // 0/8 is no host's, and 224/3 are groups, reserved, and broadcast.
        IpAddr::V4(ip) => !ip.is_loopback() && (1..224).contains(&ip.octets()[0]),
        IpAddr::V6(ip) => {
            let is_special = ip.is_loopback() || ip.is_multicast() || ip.is_unspecified();
            !is_special && ip.to_ipv4_mapped().is_none()
        }
    };
    let why = "expected an address of one host, not of loopback, a group, or none";
    is_host.then_some(parsed).ok_or_else(|| why.to_owned())
}

/// Whether only root and the user of this process may write a file.
fn is_safe(owner: u32, mode: u32) -> bool {
    (owner == 0 || owner == rustix::process::geteuid().as_raw()) && mode & 0o022 == 0
}

/// The names of this machine's users and groups.
fn user_database() -> UserDatabase {
    // A machine without these files has numbers only.
    let text = |path| std::fs::read(path).unwrap_or_default();
    let (passwd, group) = (text("/etc/passwd"), text("/etc/group"));
    UserDatabase::parse(&String::from_utf8_lossy(&passwd), &String::from_utf8_lossy(&group))
}

impl DaemonArgs {
    /// Opens the link. A private daemon may follow another one, which ends soon after its program.
    fn open(&self, link: &str) -> Result<LocalNetwork, NetworkError> {
        let began = Instant::now();
        loop {
            match LocalNetwork::open_noting(link, self.settings(), &mut notice) {
                Err(error)
                    if self.private && error.is_in_use() && began.elapsed() < IN_USE_PATIENCE =>
                {
                    std::thread::sleep(IN_USE_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    fn path(&self) -> PathBuf {
        let by_environment = || std::env::var_os(SERVICE_VARIABLE).filter(|path| !path.is_empty());
        let path = self.service.clone().or_else(|| by_environment().map(PathBuf::from));
        path.unwrap_or_else(|| megapipe::ServiceAddress::default().path().to_owned())
    }

    fn policy_path(&self) -> &Path {
        self.policy.as_deref().unwrap_or_else(|| Path::new(POLICY_PATH))
    }

    /// The policy, and whether it is that of the file: without one at the usual path it is the
    /// default one.
    fn read_policy(&self, users: &UserDatabase) -> Result<(ServicePolicy, bool), PolicyFileError> {
        let path = self.policy_path().to_owned();
        // Opening a FIFO for reading does not wait for a writer.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut file = match File::options().read(true).custom_flags(flags).open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.policy.is_none() => {
                return Ok((ServicePolicy::default(), false));
            }
            file => file.map_err(|source| PolicyFileError::Read { path: path.clone(), source })?,
        };
        let (mut text, read) =
            (String::new(), |source| PolicyFileError::Read { path: path.clone(), source });
        // Of the file that is read, whatever the path names meanwhile.
        let metadata = file.metadata().map_err(read)?;
        if !metadata.is_file() {
            return Err(PolicyFileError::NotFile { path });
        }
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        if !is_safe(owner, mode) {
            return Err(PolicyFileError::Writable { path, owner, mode });
        }
        file.read_to_string(&mut text).map_err(read)?;
        let policy = megapipe_policy::parse(&text, users);
        let policy = policy.map_err(|mistake| PolicyFileError::Mistake { path, mistake })?;
        Ok((policy, true))
    }

    /// Checks the processors: each is one that this process may use, and none is left over.
    fn check_cpus(&self, allowed: &[usize]) -> Result<(), RunError> {
        let Some(cpus) = self.cpus.as_ref().map(CpuList::as_slice) else { return Ok(()) };
        if let Some(&cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) {
            return Err(RunError::Cpu {
                cpu,
                allowed: CpuList::from(allowed.to_vec()).to_string(),
            });
        }
        let servers = self.layout.as_ref().map(|it| it.servers().len());
        let servers = servers.or_else(|| self.shards.map(usize::from));
        match servers {
            Some(servers) if cpus.len() > servers => {
                Err(RunError::Cpus { cpus: cpus.len(), servers })
            }
            _ => Ok(()),
        }
    }

    fn settings(&self) -> ServerConfig {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.as_slice().len());
        let by_cpus = cpus.and_then(|count| u16::try_from(count).ok());
        let of_layout = self.layout.as_ref().map(|layout| layout.count(Component::Transport));
        let mut settings = ServerConfig {
            addresses: self.address.iter().map(|it| (it.address, it.prefix_bits)).collect(),
            gateways: self.gateway.clone(),
            loopback: self.loopback,
            mtu: self.mtu,
            connections: self.connections,
            shards: self.shards.or(of_layout).or(by_cpus),
            layout: self.layout.clone(),
            ..ServerConfig::default()
        };
        settings.waits.spin = Duration::from_micros(self.spin.into());
        let shared = &mut settings.hand_over.usual;
        shared.hand_over.claim_time = Duration::from_micros(self.claim_time.into());
        shared.balancer.scheme = self.balance;
        settings
    }
}

/// Shows a line to the administrator.
fn notice(line: &str) {
    // Standard error that is closed is no reason to fail.
    let _ = writeln!(std::io::stderr(), "megapiped: {line}");
}

/// The signals that came.
struct Signals {
    /// Readable after a signal.
    woken: UnixStream,
    ends: Arc<AtomicBool>,
    reloads: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> std::io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let (ends, reloads) = (Arc::default(), Arc::default());
        for (signal, flag) in [(SIGTERM, &ends), (SIGINT, &ends), (SIGHUP, &reloads)] {
            // The flag is set before the byte is written.
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, waker.try_clone()?)?;
        }
        Ok(Self { woken, ends, reloads })
    }

    /// Forgets the bytes of signals that came. Look at the flags afterwards.
    fn clear(&self) {
        while matches!((&self.woken).read(&mut [0; 64]), Ok(1..)) {}
    }
}

fn run(args: &DaemonArgs) -> Result<(), RunError> {
    let users = user_database();
    let (policy, _) = args.read_policy(&users)?;
    let mut output = std::io::stdout();
    if args.check {
        let table = megapipe_policy::table(&policy, &users);
        return output.write_all(table.as_bytes()).map_err(RunError::Output);
    }
    args.check_cpus(&allowed_cpus())?;
    // Before threads exist and before clients are served: no signal is missed.
    let signals = Signals::catch().map_err(RunError::Signals)?;
    // Without `--check` there is one.
    let link = args.link.clone().unwrap_or_default();
    let network = args.open(&link).map_err(|source| RunError::Link { link, source })?;
    let cores = args.cpus.as_ref().map_or(&[][..], CpuList::as_slice);
    let path = args.path();
    let mut daemon = Daemon::start(&network, &path, cores, notice)?;
    daemon.set_policy(policy);
    if args.private {
        // The terminal's signals are for the program.
        let _ = rustix::process::setsid();
        let token = std::io::stdin().as_fd().try_clone_to_owned();
        daemon.add_token(token.map_err(RunError::Signals)?)?;
    }
    writeln!(output, "ready at {}: {}", path.display(), network.description())
        .and_then(|()| output.flush())
        .map_err(RunError::Output)?;
    loop {
        daemon.run(signals.woken.as_fd())?;
        signals.clear();
        if daemon.has_ended() || signals.ends.load(Ordering::SeqCst) {
            return Ok(());
        }
        if signals.reloads.swap(false, Ordering::SeqCst) {
            reload(args, &mut daemon);
        }
    }
}

/// Starts this command again as a process of no parent, and waits until it is ready.
fn detach() -> Result<(), RunError> {
    let program = std::env::current_exe().map_err(RunError::Detach)?;
    let words = std::env::args_os().skip(1).filter(|word| word != "--detach");
    let mut command = std::process::Command::new(program);
    command.args(words).stdout(Stdio::piped());
    let mut daemon = command.spawn().map_err(RunError::Detach)?;
    let mut first = String::new();
    if let Some(output) = daemon.stdout.take() {
        BufReader::new(output).read_line(&mut first).map_err(RunError::Detach)?;
    }
    match first.starts_with("ready at") {
        true => Ok(()),
        // It has said why on standard error.
        false => Err(RunError::NotReady(daemon.wait().map_err(RunError::Detach)?)),
    }
}

/// Reads the policy file again. What channels have stays.
fn reload(args: &DaemonArgs, daemon: &mut Daemon) {
    match args.read_policy(&user_database()) {
        Ok((policy, is_from_file)) => {
            daemon.set_policy(policy);
            let path = args.policy_path().display();
            match is_from_file {
                true => notice(&format!("the policy is that of {path} now")),
                false => notice(&format!("the default policy holds: there is no {path}")),
            }
        }
        Err(error) => notice(&format!("the policy stays as it was: {}", reason(&error))),
    }
}

/// The section of the manual page about the policy file, up to its quotas.
const POLICY_SECTION: &str = r#".SH "POLICY FILE"
A TOML file. \fB[default]\fR holds for every user, and each \fB[rules.NAME]\fR for the users and
groups that it names. A user has the ports of the default and of all its rules. Of a quota and
of the weight it
has the largest value of its rules, and that of the default if none has one. A mistake is reported
with its line (\fB\-\-check\fR). Keys of a rule:
.TP
\fBusers\fR, \fBgroups\fR
Lists of names or numbers. The default has none.
.TP
.B ports
A list of ports for TCP and UDP: 80, "8000\-8099".
.TP
.B addresses
The addresses at which the rule gives the ports; all without it.
.TP
.B exclusive
true: no other user has these ports there. Not in the default.
.TP
.B weight
1 to 1000: the share of a channel in the operations of a poll.
.TP
\fBchannel\fR, \fBuser\fR
Tables of quotas, of a channel and of all channels of a user.
.PP
A rule:
.PP
.nf
[rules.web]
users = ["www\-data"]
ports = [80, 443]
exclusive = true
channel = { listeners = 4 }
user = { connections = 100000 }
.fi
.PP
The quotas, from 0 to 4294967295, which is none. \fBmegapipe explain\fR shows their use, and how
often each was reached.
"#;

/// Sections of the manual page that are not part of the command line.
const SECTIONS: &str = r#".SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
The daemon ends: its connections end, its socket is removed, and programs attach again when a
daemon is back.
.TP
.B SIGHUP
The daemon reads the policy file again. A file with a mistake changes nothing, and the daemon writes
its line to standard error. What channels have stays.
.SH "EXIT STATUS"
.TP
\fB0\fR
Ended by a signal.
.TP
\fB1\fR
Failed; one line on standard error says why.
.TP
\fB2\fR
A mistake in the arguments or in the policy file; standard error names it.
.SH ENVIRONMENT
.TP
.B MEGAPIPE_SERVICE
The path of the control socket, for the daemon and for programs.
.TP
.B MEGAPIPE_CAPTURE
A file for all frames, as for programs with a stack of their own.
.SH FILES
.TP
.I /run/megapipe/megapiped.sock
The control socket. Its folder is made if only it is missing. Any user may connect.
.TP
.I /etc/megapipe/megapiped.toml
The policy file. Without it every user has the ports from 1024 and the quotas above; root and the
daemon's user have all ports and no quotas.
.SH EXAMPLES
A daemon, a web server of any user, and what the daemon has:
.PP
.nf
megapiped \-\-link tap:tap0 \-\-address 10.0.0.2/24 &
megapipe serve http \-\-backend service \-\-listen 10.0.0.2:8080 &
megapipe ss \-tln
.fi
.SH "SEE ALSO"
.BR megapipe (1),
.BR megapipe (7),
.BR mtcp (7)
"#;

/// The section of the manual page about the policy file, with each quota.
fn policy_section() -> String {
    let mut section = POLICY_SECTION.to_owned();
    for kind in QuotaKind::ALL {
        let (limit, description) = (kind.default_limit(), kind.description().trim());
        section.push_str(&format!(".TP\n\\fB{kind}\\fR (default {limit})\n{description}\n"));
    }
    section
}

/// Writes the manual page into a folder.
fn write_manual(folder: PathBuf) -> Result<(), RunError> {
    let write = || {
        std::fs::create_dir_all(&folder)?;
        let mut page = File::create(folder.join("megapiped.8"))?;
        clap_mangen::Man::new(DaemonArgs::command()).section("8").render(&mut page)?;
        page.write_all(policy_section().as_bytes())?;
        page.write_all(SECTIONS.as_bytes())
    };
    write().map_err(|source| RunError::Manual { folder: folder.clone(), source })
}

/// The folder of `megapiped manual FOLDER`. A daemon has no positional arguments.
fn manual_folder() -> Option<PathBuf> {
    let mut words = std::env::args_os().skip(1);
    let folder = words.next().filter(|word| word == "manual").and_then(|_| words.next())?;
    words.next().is_none().then(|| folder.into())
}

fn main() -> ExitCode {
    let done = match manual_folder() {
        Some(folder) => write_manual(folder),
        None => match parse_or_exit::<DaemonArgs>() {
            args if args.detach => detach(),
            args => run(&args),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            notice(&reason(&error));
            exit_code(error.is_usage())
        }
    }
}

#[cfg(test)]
mod tests {
    use megapipe_apps::number::parse_words;
    use megapipe_service::hand_over::HandOverSettings;

    use super::*;

    #[test]
    fn negative_numbers_are_refused_by_range() {
        for (option, range) in [
            ("--mtu", "576..=65535"),
            ("--shards", "1..=128"),
            ("--connections", "1..=1048576"),
            ("--spin", "0..=1000000"),
            ("--claim-time", "100..=1000000"),
        ] {
            let words = ["megapiped", "--link", "tap:x", option, "-1"];
            let text = parse_words::<DaemonArgs>(words).expect_err(option).to_string();
            assert!(text.contains(option) && text.contains(&format!("not in {range}")), "{text}");
        }
    }

    #[test]
    fn cpus_that_are_not_allowed_or_left_over_are_refused() {
        let check = |options: &str| {
            let line = format!("megapiped --link tap:x {options}");
            let args = DaemonArgs::try_parse_from(line.split_whitespace()).expect("it is valid");
            args.check_cpus(&[0, 1, 2]).map_err(|error| (error.is_usage(), error.to_string()))
        };
        for right in ["", "--cpus 0,2", "--cpus 1 --shards 2", "--cpus 0,1 --layout TS1LS1+CM1"] {
            assert_eq!(check(right), Ok(()), "{right}");
        }
        let (is_usage, why) = check("--cpus 1,9").expect_err("not one of ours");
        assert!(is_usage && why.starts_with("--cpus: processor 9 ") && why.contains("(0-2)"));
        for wrong in ["--cpus 0,1 --shards 1", "--cpus 0,1,2 --layout TS1LS1+CM1"] {
            let (is_usage, why) = check(wrong).expect_err(wrong);
            assert!(is_usage && why.contains(" servers; name one for each"), "{why}");
        }
        let line = "megapiped --link tap:x --claim-time foo";
        let refused = DaemonArgs::try_parse_from(line.split_whitespace()).expect_err("no number");
        assert!(refused.to_string().contains("100..=1000000"), "{refused}");
    }

    #[test]
    fn command_line_is_consistent() {
        DaemonArgs::command().debug_assert();
        let line = "megapiped --link tap:x --address 10.0.0.2/24 --cpus 1,2 --service /tmp/x";
        let args = DaemonArgs::try_parse_from(line.split_whitespace()).expect("it is valid");
        assert_eq!(args.settings().shards, Some(2));
        assert_eq!(args.path(), PathBuf::from("/tmp/x"));
        assert_eq!(args.settings().hand_over, HandOverSettings::default());
        let line = format!("{line} --claim-time 100 --balance hash");
        let args = DaemonArgs::try_parse_from(line.split_whitespace()).expect("it is valid");
        let settings = args.settings();
        settings.check().expect("the ranges are those of the settings");
        assert_eq!(settings.hand_over.usual.balancer.scheme, Scheme::Hash);
        let line = "megapiped --link tap:x --address 10.0.0.2/24 --layout TS2LS2+CM1 --cpus 1,2,3";
        let args = DaemonArgs::try_parse_from(line.split_whitespace()).expect("it is valid");
        let settings = args.settings();
        settings.check().expect("it is built");
        assert_eq!(settings.shards, Some(2));
        assert_eq!(settings.layout.map(|it| it.to_string()), Some("TS2LS2+CM1".to_owned()));
        for wrong in ["--layout TS2", "--layout TS2LS2CM3", "--layout TS2LS2CM2 --shards 2"] {
            let line = format!("megapiped --link tap:x {wrong}");
            assert!(DaemonArgs::try_parse_from(line.split_whitespace()).is_err(), "{wrong}");
        }
        for wrong in ["--mtu 5", "--mtu x", "--address 127.0.0.1/8", "--address 224.1.1.1/24"] {
            let line = format!("megapiped --link tap:x {wrong}");
            let refused = DaemonArgs::try_parse_from(line.split_whitespace());
            let (option, value) = wrong.split_once(' ').expect("two words");
            let text = refused.expect_err(wrong).to_string();
            assert!(text.contains(option) && text.contains(value), "{text}");
            assert!(text.contains("576..=65535") || text.contains("of one host"), "{text}");
        }
        for wrong in ["--claim-time 99", "--balance random", "--balance filtered:0"] {
            let line = format!("megapiped --link tap:x {wrong}");
            assert!(DaemonArgs::try_parse_from(line.split_whitespace()).is_err(), "{wrong}");
        }
    }
}
