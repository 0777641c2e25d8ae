//! The command line of `megapipe`, and the dispatch of its subcommands.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::kv::{self, KvArgs, KvError};
use megapipe_apps::load::{self, HttpLoadArgs, KvLoadArgs, LoadError, RpcLoadArgs};
use megapipe_apps::rpc::{self, RpcArgs, RpcError};
use megapipe_apps::serve::ServeError;
use megapipe_bench::{BenchArgs, BenchError, DemoArgs, bench, demo};
use megapipe_scripts::command::{self as script, ScriptArgs, ScriptError};

use crate::explain::{self, ExplainArgs, ExplainError};
use crate::info::{self, InfoArgs, InfoError};
use crate::manual::{self, ManualError};
use crate::run::{self, RunProgramArgs, RunProgramError};
use crate::ss::{self, SsArgs, SsError};

/// Network I/O for message-oriented servers: asynchronous operations in, completions out.
///
/// Start with `megapipe info`, which shows what this kernel supports. To try a server and its load,
/// use two shells: `megapipe serve rpc` in one, `megapipe load rpc` in the other.
#[derive(Debug, Parser)]
#[command(name = "megapipe", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct CliArguments {
    #[command(subcommand)]
    action: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run a server until SIGINT or SIGTERM
    ///
    /// When the server is ready it prints one line that begins with `listening on`. The first
    /// signal closes connections gracefully, the second one ends the server immediately.
    #[command(subcommand)]
    Serve(Box<Serve>),
    /// Put a server under load and measure it
    ///
    /// Works with any server of the protocol, not only with those of `megapipe serve`.
    #[command(subcommand)]
    Load(Box<Load>),
    /// Compare megapipe with servers on the kernel's own interfaces
    Bench(BenchArgs),
    /// A short version of the benchmark with a table at the end: about two minutes
    Demo(DemoArgs),
    Script(ScriptArgs),
    Run(RunProgramArgs),
    /// Show the features of this kernel and machine, and their consequences
    Info(InfoArgs),
    Ss(SsArgs),
    Explain(ExplainArgs),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of this command into a folder
    Manual(ManualArgs),
}

#[derive(Debug, Subcommand)]
enum Serve {
    /// MegaPipe's ping-pong server: requests and responses of given sizes [port 7000]
    Rpc(RpcArgs),
    /// A web server of the files below a directory [port 8000]
    Http(HttpArgs),
    /// A key-value server for memcached's and Redis's protocols [port 11211]
    Kv(KvArgs),
}

#[derive(Debug, Subcommand)]
enum Load {
    /// Requests and responses of given sizes, to `serve rpc`
    Rpc(RpcLoadArgs),
    /// GET requests, to a web server
    Http(HttpLoadArgs),
    /// Gets and sets, to a memcached server
    Kv(KvLoadArgs),
}

#[derive(Debug, Args)]
struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
struct ManualArgs {
    /// The folder, which is created if it is missing
    folder: PathBuf,
}

/// Cause of a failed command. Each text distinguishes arguments from the machine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    Rpc(#[from] RpcError),
    #[error(transparent)]
    Http(#[from] ServeError),
    #[error(transparent)]
    Kv(#[from] KvError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error(transparent)]
    Info(#[from] InfoError),
    #[error(transparent)]
    Ss(#[from] SsError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error(transparent)]
    Run(#[from] RunProgramError),
    #[error(transparent)]
    Manual(#[from] ManualError),
}

impl CommandError {
    /// Whether the arguments are invalid, rather than this machine unable.
    pub(crate) const fn is_usage(&self) -> bool {
        match self {
            Self::Rpc(error) => error.is_usage(),
            Self::Http(error) => error.is_usage(),
            Self::Kv(error) => error.is_usage(),
            Self::Load(error) => error.is_usage(),
            Self::Bench(error) => error.is_usage(),
            Self::Info(InfoError::Plan(error)) => error.is_usage(),
            Self::Info(_) | Self::Explain(_) => false,
            Self::Ss(error) => error.is_usage(),
            Self::Manual(_) => true,
            Self::Run(_) => false,
            Self::Script(error) => error.is_usage(),
        }
    }
}

impl CliArguments {
    /// Runs the command. Blocks until it is done.
    pub(crate) fn run(self) -> Result<ExitCode, CommandError> {
        match self.action {
            CliCommand::Serve(serve) => run_server(&serve),
            CliCommand::Load(load) => run_load(&load),
            CliCommand::Bench(args) => Ok(bench(&args)?),
            CliCommand::Demo(args) => Ok(demo(&args)?),
            CliCommand::Script(args) => Ok(script::run(&args)?),
            CliCommand::Run(args) => Ok(run::run(&args)?),
            CliCommand::Info(args) => {
                info::print(&args)?;
                Ok(ExitCode::SUCCESS)
            }
            CliCommand::Ss(args) => {
                ss::print(&args)?;
                Ok(ExitCode::SUCCESS)
            }
            CliCommand::Explain(args) => {
                explain::print(&args)?;
                Ok(ExitCode::SUCCESS)
            }
            CliCommand::Manual(ManualArgs { folder }) => {
                manual::write(Self::command(), &folder)?;
                Ok(ExitCode::SUCCESS)
            }
            CliCommand::Completions(CompletionsArgs { shell }) => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "megapipe", &mut script);
                info::write_to_stdout(&script)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

fn run_server(serve: &Serve) -> Result<ExitCode, CommandError> {
    match serve {
        Serve::Rpc(args) => rpc::serve(args)?,
        Serve::Http(args) => http::serve(args)?,
        Serve::Kv(args) => kv::serve(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_load(load: &Load) -> Result<ExitCode, CommandError> {
    Ok(match load {
        Load::Rpc(args) => load::finish(&load::run_rpc(args, &mut |_| {})?, &args.load)?,
        Load::Http(args) if load::prepare(args)? => ExitCode::SUCCESS,
        Load::Http(args) => load::finish(&load::run_http(args, &mut |_| {})?, &args.load)?,
        Load::Kv(args) => load::finish(&load::run_kv(args, &mut |_| {})?, &args.load)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CliArguments::command().debug_assert();
    }

    #[test]
    fn benchmark_command_lines_are_parsed() {
        let line = "megapipe load rpc 127.0.0.1:7000 --connections 256 --transactions 8 \
                    --close rst --warmup 1 --duration 3 --cpus 1 --request-bytes 64 \
                    --response-bytes 64 --json - --quiet";
        assert!(CliArguments::try_parse_from(line.split_whitespace()).is_ok());
        let line = "megapipe load http 127.0.0.1:80 --transactions yahoo-requests --files specweb";
        assert!(CliArguments::try_parse_from(line.split_whitespace()).is_ok());
    }

    #[test]
    fn load_has_channel_and_placement_options() {
        let line = "megapipe load kv --channels 3 --backend local --link tap:x --placement core";
        let command = CliArguments::try_parse_from(line.split_whitespace()).unwrap();
        let CliCommand::Load(load) = command.action else { panic!("another command") };
        let Load::Kv(args) = *load else { panic!("another program") };
        assert_eq!(args.load.threads, Some(3));
    }

    #[test]
    fn invalid_arguments_are_named() {
        for (line, named) in [
            ("megapipe", "Usage"),
            ("megapipe serve rpc --listen nowhere", "expected IP:PORT"),
            ("megapipe serve rpc --cpus 3-1", "ends before it begins"),
            ("megapipe serve rpc --driver kqueue", "possible values: auto, uring, epoll"),
            ("megapipe load rpc --rate 0", "outside"),
            ("megapipe load rpc -n often", "expected a number"),
            ("megapipe load kv --gets 2", "outside 0..=1"),
            ("megapipe load http --prepare x", "--files"),
        ] {
            let error = CliArguments::try_parse_from(line.split_whitespace()).expect_err(line);
            assert!(error.to_string().contains(named), "{line}: {error}");
        }
    }
}
