//! A process for each core, each with a listener of its own: the multi-process version of the
//! `SO_REUSEPORT` server [MT 5.1, figure 8].
//!
//! Threads of one process share its table of descriptors, and with it a lock that every accept and
//! every close takes. Here no two cores share one: each process is an `epoll-reuseport` server of
//! one thread, in the same group of listeners, on its own core. This process starts them, one after
//! another, and then sleeps.
//!
//! Invariant: no server outlives this process (PR_SET_PDEATHSIG).

use super::{Baseline, BaselineArgs, BaselineError, Stop};
use crate::process::{ChildProcess, ProcessPlace};
use megapipe_apps::{serve::CpuList, threads};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io::{self, BufRead, BufReader, Read},
    net::SocketAddr,
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
};

/// One of the servers.
struct ServerProcess {
    /// Ends it on drop.
    process: ChildProcess,
    /// Readable when it has ended.
    ended: OwnedFd,
    address: SocketAddr,
}

/// Serves until `stop`; `ready` is called with the address once all accept. Blocks.
pub(super) fn run(
    args: &BaselineArgs,
    cpus: &[usize],
    stop: &Stop,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), BaselineError> {
    let program = args.program.clone().map_or_else(std::env::current_exe, Ok)?;
    let mut servers: Vec<ServerProcess> = Vec::new();
    for index in 0..args.threads.get() {
        // Port 0 means any: the others join the port that the first was given.
        let listen = servers.first().map_or(args.listen, |first| first.address);
        let cpus = cpus.get(index).map_or_else(allowed_cpus, |cpu| Ok(vec![*cpu].into()))?;
        servers.push(start(args, &program, listen, cpus)?);
    }
    ready(servers.first().map_or(args.listen, |first| first.address));
    wait(&servers, stop)?;
    // A process that ended before the signal has failed.
    for server in &mut servers {
        if let Some(status) = server.process.ended()? {
            return Err(BaselineError::Process(status.to_string()));
        }
    }
    Ok(())
}

/// The cores that this process may use.
fn allowed_cpus() -> io::Result<CpuList> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|it| set.is_set(*it)).collect();
    Ok(cpus.into())
}

fn start(
    args: &BaselineArgs,
    program: &Path,
    listen: SocketAddr,
    cpus: CpuList,
) -> Result<ServerProcess, BaselineError> {
    let pinned = args.cpus.as_ref().map(|_| ["--cpus".to_owned(), cpus.to_string()]);
    let mut words =
        ["bench", "server", Baseline::EpollReuseport.name()].map(str::to_owned).to_vec();
    let numbers = [
        ("--listen", listen.to_string()),
        ("--request-bytes", args.request_bytes.to_string()),
        ("--response-bytes", args.response_bytes.to_string()),
    ];
    words.extend(numbers.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    words.extend(pinned.into_iter().flatten());
    words.extend(args.reset.then(|| "--reset".to_owned()));
    let place = ProcessPlace { program: program.to_owned(), netns: None, cpus };
    let mut command = place.command(program, words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = ChildProcess::start(&mut command)?;
    let (output, errors) = process.streams();
    let mut said = String::new();
    if let Some(output) = output {
        BufReader::new(output).read_line(&mut said)?;
    }
    let Some(address) = address_in(&said) else {
        // It has closed its output, and so it has ended or is about to.
        process.stop();
        if let Some(mut errors) = errors {
            errors.read_to_string(&mut said)?;
        }
        return Err(BaselineError::Process(said.trim().to_owned()));
    };
    // Later output is discarded, so that the process does not block.
    let discard = move || errors.map(|mut errors| io::copy(&mut errors, &mut io::sink()));
    threads::spawn("discard", discard).map_err(BaselineError::Thread)?;
    let pid = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    Ok(ServerProcess { process, ended, address })
}

/// The address in a server's `listening on` line.
fn address_in(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("listening on ")?.split(',').next()?.trim().parse().ok()
}

/// Sleeps until it is time to stop, or a server has ended.
fn wait(servers: &[ServerProcess], stop: &Stop) -> Result<(), BaselineError> {
    let stop = stop.as_fd();
    let mut fds = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
    fds.extend(servers.iter().map(|server| PollFd::new(&server.ended, PollFlags::IN)));
    loop {
        match poll(&mut fds, None) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(BaselineError::Loop(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::address_in;

    #[test]
    fn server_prints_its_address() {
        let address = address_in("listening on 127.0.0.1:7000, epoll-reuseport\n");
        assert_eq!(address, Some(([127, 0, 0, 1], 7000).into()));
        assert_eq!(address_in("listening on [::1]:80, epoll-reuseport\n"), "[::1]:80".parse().ok());
        assert_eq!(address_in(""), None);
        assert_eq!(address_in("error: cannot listen on 127.0.0.1:7000\n"), None);
    }
}
