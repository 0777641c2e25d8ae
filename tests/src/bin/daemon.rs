//! A daemon of the back end `service` for tests: `megapiped` without its policy and its signals.
//!
//! In: a link, its addresses and the path of the control socket. Out: `ready` on standard output
//! when clients can attach. It ends when its standard input does.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Parser;
use megapipe::{Daemon, LocalNetwork, Prefixed, ServerConfig};

#[derive(Parser)]
struct Args {
    /// The link, as `megapiped` has it
    #[arg(long)]
    link: String,

    /// An address on the link, ADDRESS/BITS
    #[arg(long)]
    address: Vec<Prefixed>,

    /// The path of the control socket
    #[arg(long)]
    service: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let settings = ServerConfig {
        addresses: args.address.iter().map(|it| (it.address, it.prefix_bits)).collect(),
        ..ServerConfig::default()
    };
    let network = LocalNetwork::open(&args.link, settings)?;
    let notice = |line: &str| eprintln!("daemon: {line}");
    let mut daemon = Daemon::start(&network, &args.service, &[], notice)?;
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    output.flush()?;
    daemon.run(std::io::stdin().as_fd())?;
    Ok(())
}
