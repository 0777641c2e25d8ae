//! What does a TCP do when this happens? Packet scripts, run against Linux and against our stack.
//!
//! In: a file in packetdrill's language: system calls of a program, the packets that a peer sends,
//! the packets that have to come back, and when. Out: an `ScriptOutcome`, which says whether all of
//! it came true, and if not, what came first that did not.
//!
//! The same file runs on two systems: `System::Linux` is the kernel, in a network namespace over a
//! TUN device and in real time; `System::Stack` is
//! `megapipe-sockets` over our stack, in virtual time (`world.rs`).
//!
//! Read first: `script`, the language as a tree; then `run.rs`, what the tree means.
//!
//! Invariants
//! - `parse` and the evaluation around it never panic, whatever a script contains.
//! - Nothing of a script is ever run by a shell or an interpreter: commands become knobs or are
//!   noted, code is counted.
//! - Real packets stay in a namespace that has no way out.

#![deny(unsafe_code)]

mod call;
pub mod command;
mod conversation;
mod dialect;
mod difference;
mod display;
mod icmp;
mod knobs;
mod limits;
mod linux;
pub mod parse;
pub mod report;
mod run;
pub mod script;
mod settings;
mod stack;
mod symbols;
pub mod system;
mod wire;
pub mod world;

use std::net::IpAddr;

use crate::dialect::Dialect;
use crate::parse::{Definitions, ParseError};
use crate::report::{ScriptOutcome, ScriptVerdict};
use crate::script::{Script, ScriptSetting};
use crate::settings::ScriptSettings;
use crate::system::System;
use crate::world::WorldStack;

pub use crate::settings::DEFAULT_ADDRESSES;
pub use crate::stack::{UnknownKnob, tcp_for_scripts};

/// What a script can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum On {
    /// Our stack, in virtual time.
    Stack,
    /// Our stack in a daemon of the back end `service`, in virtual time.
    Service,
    /// The kernel, in its own network namespace; needs root.
    Linux,
}

impl On {
    /// Its name in scripts' remarks and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stack => "stack",
            Self::Service => "service",
            Self::Linux => "linux",
        }
    }
}

/// Settings of a script from outside: packetdrill's options and definitions.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// `--name=value`; a script's own come after them.
    pub settings: Vec<ScriptSetting>,
    /// `-D NAME=value`.
    pub definitions: Definitions,
}

/// A script that has been understood.
#[derive(Clone, Debug)]
pub struct ParsedScript {
    script: Script,
    settings: ScriptSettings,
}

/// Reads a script. Pure: nothing happens yet.
pub fn prepare(text: &[u8], invocation: &Invocation) -> Result<ParsedScript, ParseError> {
    let mut definitions = predefined(text, invocation);
    let script = parse::parse(text, &mut definitions)?;
    let mut all = invocation.settings.clone();
    all.extend(script.settings.iter().cloned());
    let settings = ScriptSettings::new(&all, Dialect::of(&script)).map_err(|(line, error)| {
        ParseError { line, column: 1, problem: parse::ScriptProblem::BadSetting(error.to_string()) }
    })?;
    Ok(ParsedScript { script, settings })
}

/// The names that the runner of Linux's own tests defines, by the version of IP, and after them
/// what an invocation does. The cookies of Fast Open are those of that runner's addresses and of
/// the two keys that its scripts set.
fn predefined(text: &[u8], invocation: &Invocation) -> Definitions {
    let is_version = |setting: &&ScriptSetting| setting.name == "ip_version";
    let outside = invocation.settings.iter().rfind(is_version).map(|it| it.value.as_bytes());
    let mut own = text
        .split(|&byte| byte == b'\n')
        .filter_map(|line| line.trim_ascii().strip_prefix(b"--ip_version="));
    let version = own.next_back().or(outside).unwrap_or_default();
    let has_ipv6_sockets = version.ends_with(b"ipv6");
    let of_version = if has_ipv6_sockets {
        ["CMSG_LEVEL_IP=SOL_IPV6", "CMSG_TYPE_RECVERR=IPV6_RECVERR"]
    } else {
        ["CMSG_LEVEL_IP=SOL_IP", "CMSG_TYPE_RECVERR=IP_RECVERR"]
    };
    let cookies = match version {
        b"ipv6" => ["TFO_COOKIE=c1d1e9742a47a9bc", "TFO_COOKIE_ZERO=82af1a8f9a205c34"],
        _ => ["TFO_COOKIE=3021b9d889017eeb", "TFO_COOKIE_ZERO=b7c12350a90dc8f5"],
    };
    let mut definitions = Definitions::default();
    for definition in of_version.iter().chain(&cookies) {
        definitions.define(definition);
    }
    definitions.extend(&invocation.definitions);
    definitions
}

impl ParsedScript {
    /// Runs it. Blocks until the end: on Linux for the duration of the script.
    pub fn run(&self, on: On) -> ScriptOutcome {
        match on {
            On::Stack => self.run_on_stack(WorldStack::Local),
            On::Service => self.run_on_stack(WorldStack::Service),
            On::Linux => linux::run_script(&self.script, self.settings.clone()),
        }
    }

    fn run_on_stack(&self, stack: WorldStack) -> ScriptOutcome {
        stack::run_script(&self.script, self.settings.clone(), stack)
    }

    /// Runs it on another system than those of [`On`]. Blocks until it is over.
    pub fn run_on(&self, system: &mut impl System) -> ScriptOutcome {
        run::run(&self.script, self.settings.clone(), system)
    }

    /// The address of the host under test with the bits of its prefix, and the MTU of its wire.
    pub fn host(&self) -> ((IpAddr, u8), u16) {
        let ScriptSettings { local_ip, local_prefix_len, mtu, .. } = self.settings;
        ((local_ip, local_prefix_len), mtu)
    }

    /// Why the script is expected to fail on a system, from its own remark. What holds of our stack
    /// holds of it in a daemon.
    pub fn difference(&self, on: On) -> Option<&str> {
        let is_stack = |system: &str| on == On::Service && system == On::Stack.name();
        let mut remarks = self.script.remarks.iter();
        let remark = remarks.find(|it| it.system == on.name() || is_stack(&it.system));
        remark.map(|it| it.reason.as_str())
    }
}

/// An outcome for what never began: this machine lacks something.
fn skipped(why: String) -> ScriptOutcome {
    not_begun(ScriptVerdict::Skipped(why))
}

/// An outcome for what never began: the system lacks something.
fn refused(line: u32, what: String) -> ScriptOutcome {
    not_begun(ScriptVerdict::Unsupported { line, what })
}

fn not_begun(verdict: ScriptVerdict) -> ScriptOutcome {
    ScriptOutcome { verdict, event_count: 0, code_count: 0, notes: Vec::new() }
}
