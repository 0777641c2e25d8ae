//! The servers that channels are measured against: the same RPC ping-pong as
//! `megapipe serve rpc`, by hand on the kernel's own interfaces, as well as we know how.
//!
//! Read [`Baseline`] for what each is; `epoll.rs` and `uring.rs` are the two loops, `socket.rs`
//! opens and pins, `framing.rs` is a connection's side of the protocol. Each server runs in a
//! process of its own (`megapipe bench server …`), one thread per core, nothing shared but, where
//! the paper's baseline asks for it, the listening socket; `processes.rs` starts one for each core.
//!
//! Unsafe code lives here only (`buffer_ring.rs`, and pushing to the submission queue in
//! `uring.rs`): io_uring shares memory with the kernel.

mod buffer_ring;
mod epoll;
mod framing;
mod processes;
mod socket;
mod uring;

pub use socket::Stop;

use crate::limits;
use megapipe_apps::{
    rpc::protocol::{LengthError, Lengths, MESSAGE_LEN_DEFAULT},
    serve::CpuList,
    threads,
};
use std::{
    io,
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    sync::{PoisonError, RwLock},
    thread,
};

/// Which hand-written server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Baseline {
    /// One listening socket shared by all threads, epoll: the paper's baseline [MP 2.2].
    EpollShared,
    /// A `SO_REUSEPORT` listener per pinned thread, edge-triggered epoll.
    EpollReuseport,
    /// The same with a process for each thread: no two share a table of descriptors [MT 5.1].
    EpollProcesses,
    /// io_uring: deferred task work, multishot accept and receive, direct descriptors.
    #[value(name = "io_uring")]
    IoUring,
}

impl Baseline {
    /// The name used on the command line, in points and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EpollShared => "epoll-shared",
            Self::EpollReuseport => "epoll-reuseport",
            Self::EpollProcesses => "epoll-processes",
            Self::IoUring => "io_uring",
        }
    }
}

/// Options of `megapipe bench server`.
#[derive(Clone, Debug, clap::Args)]
pub struct BaselineArgs {
    /// Which server to run
    #[arg(value_enum)]
    pub baseline: Baseline,
    /// Where to listen
    #[arg(long, default_value = "127.0.0.1:7000")]
    pub listen: SocketAddr,
    /// Number of threads, each with its own event loop
    #[arg(long, default_value = "1")]
    pub threads: NonZeroUsize,
    /// Cores to pin the threads to, one each, in order (e.g. 0,1 or 0-3)
    #[arg(long)]
    pub cpus: Option<CpuList>,
    /// Size of requests that do not say their own
    #[arg(long, default_value_t = MESSAGE_LEN_DEFAULT)]
    pub request_bytes: u32,
    /// Size of responses to them
    #[arg(long, default_value_t = MESSAGE_LEN_DEFAULT)]
    pub response_bytes: u32,
    /// Accept and reset, and serve nothing [MT figure 8]
    #[arg(long)]
    pub reset: bool,
    /// The megapipe executable that the processes of epoll-processes run
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// Why a baseline server could not run.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// The listening socket could not be made.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Fewer cores were named than threads were asked for.
    #[error("{threads} threads cannot be pinned to {cpus} cores")]
    TooFewCpus {
        /// Threads asked for.
        threads: usize,
        /// Cores named.
        cpus: usize,
    },
    /// Only the epoll servers accept and reset.
    #[error("io_uring does not accept and reset: the channel on it does")]
    ResetUnfit,
    /// A message size that the protocol does not allow.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The kernel refuses io_uring or one of the features that make it worth measuring.
    #[error("io_uring: {step}: {source}")]
    Ring {
        /// What was asked of the kernel.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread for a loop could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// One of several processes ended by itself.
    #[error("a server process ended: {0}")]
    Process(String),
    /// The event loop itself failed.
    #[error("event loop: {0}")]
    Loop(#[from] io::Error),
}

/// Runs a baseline server until `stop` is triggered; `ready` is called with the listening address
/// once connections are accepted.
///
/// # Errors
/// [`BaselineError`] if a socket, a ring or a pinning is refused; the first failing thread's.
pub fn serve(
    args: &BaselineArgs,
    stop: &Stop,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), BaselineError> {
    let defaults =
        Lengths { request: args.request_bytes, response: args.response_bytes }.checked()?;
    let threads = args.threads.get();
    let cpus = cpus(args)?;
    let listen_failed = |source| BaselineError::Listen { address: args.listen, source };
    if args.reset && args.baseline == Baseline::IoUring {
        return Err(BaselineError::ResetUnfit);
    }
    if args.baseline == Baseline::EpollProcesses {
        return processes::run(args, &cpus, stop, ready);
    }
    let listeners =
        socket::listeners(args.listen, threads, args.baseline, &cpus).map_err(listen_failed)?;
    if args.reset {
        listeners.iter().try_for_each(socket::reset_on_close).map_err(listen_failed)?;
    }
    let address = socket::local_address(&listeners[0]).map_err(listen_failed)?;
    // Until all have started, none takes memory: what is asked for to see whether a thread can be
    // started is not there for others meanwhile.
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Ok(());
        let mut loops = Vec::with_capacity(listeners.len());
        for (index, listener) in listeners.into_iter().enumerate() {
            let cpu = cpus.get(index).copied();
            let (baseline, reset, gate) = (args.baseline, args.reset, &gate);
            let body = move || {
                drop(gate.read().unwrap_or_else(PoisonError::into_inner));
                if let Some(cpu) = cpu {
                    socket::pin_this_thread(cpu)?;
                }
                let serve =
                    epoll::EpollServerKind { shared: baseline == Baseline::EpollShared, reset };
                match baseline {
                    Baseline::IoUring => uring::run(&listener, defaults, stop),
                    _ => epoll::run(listener, serve, defaults, stop),
                }
            };
            match threads::spawn_scoped(scope, format!("loop-{index}"), body) {
                Ok(running) => loops.push(running),
                Err(source) => {
                    outcome = Err(BaselineError::Thread(source));
                    break;
                }
            }
        }
        if outcome.is_ok() {
            let spare = room::<u8>(limits::BASELINE_SPARE_BYTES);
            outcome = spare.map(drop).map_err(BaselineError::Thread);
        }
        if outcome.is_ok() {
            ready(address);
        } else {
            // The loops that were started return, so that this error can be reported.
            outcome = stop.trigger().map_err(BaselineError::from).and(outcome);
        }
        drop(closed);
        for running in loops {
            let result = running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            if outcome.is_ok() {
                outcome = result;
            }
        }
        outcome
    })
}

/// An empty vector with room for so many. Threads that start take memory: a lack of it is an error,
/// and not the end of the process.
fn room<T>(count: usize) -> io::Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(count).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(room)
}

fn cpus(args: &BaselineArgs) -> Result<Vec<usize>, BaselineError> {
    let Some(list) = &args.cpus else { return Ok(Vec::new()) };
    let (threads, cpus) = (args.threads.get(), list.as_slice().to_vec());
    if cpus.len() < threads {
        return Err(BaselineError::TooFewCpus { threads, cpus: cpus.len() });
    }
    Ok(cpus)
}
