//! Benchmark: compares megapipe with epoll, io_uring, nginx and memcached on this machine.
//!
//! In: an experiment of the MegaPipe report, or a promise of ours. Out: points in JSON, tables, and
//! a report with plots.
//!
//! - `baseline/` are the servers that channels are measured against; `server.rs` starts those,
//!   channels, nginx and memcached alike.
//! - `layout.rs` is what lies between server and load, `load.rs` the load, `measure.rs` one run.
//! - `profile.rs` finds out where a server's time goes.
//! - `stack_link.rs` runs servers and loads on the stack; `accept_reset.rs`, `stack_idle.rs`,
//!   `shard_idle.rs`, `service_attach.rs` and `instructions.rs` are separate measurements.
//!   `service_bars/` has those of programs that share a daemon, `preload_bars/` those of
//!   unmodified programs.
//! - `experiments.rs`, `bars.rs`, `stack_bars.rs`, `shard_bars.rs`, `service_bars.rs` and
//!   `preload_bars.rs` are what to measure; `run.rs` does it, in turn and repeatedly.
//! - `scaling.rs` is what more cores than the machine has would do: a simulation with costs that it
//!   measures before.
//! - `pika.rs` is the PIKA paper: experiments of the service's connection management, simulated
//!   in the same way.
//! - `point.rs` is the result, `report/` the page.
//!
//! Start with `experiments.rs`, then `measure.rs`.
//!
//! Invariants
//! - Servers to be compared run in the same minute, on the same cores, under the same load, each
//!   in a process of its own.
//! - A missing measurement is reported, never left out silently or estimated.
//! - No process, namespace or directory outlives a run, however it ends.

mod accept_reset;
mod answer_server;
mod bars;
mod baseline;
mod c_overhead;
mod command;
mod cpu_time;
mod debian;
mod demo;
mod error;
mod experiments;
mod features;
mod figure;
mod files;
mod idle_memory;
mod instructions;
mod keeper;
mod layout;
mod limits;
mod link_name;
mod load;
mod load_process;
mod measure;
mod output;
mod peer_channel;
mod pika;
mod point;
mod preload_bars;
mod preload_library;
mod process;
mod profile;
mod progress;
mod promise;
mod report;
mod run;
mod run_args;
mod scaling;
mod scratch;
mod server;
mod service_attach;
mod service_bars;
mod shard_bars;
mod shard_idle;
mod stack_bars;
mod stack_idle;
mod stack_link;
mod table;
mod trial;
mod wakes;

pub use accept_reset::{AcceptArgs, AcceptError, AcceptLoadArgs};
pub use answer_server::AnswerArgs;
pub use baseline::{Baseline, BaselineArgs, BaselineError, Stop, serve as serve_baseline};
pub use command::{BarsArgs, BenchArgs, ReportArgs, RpcRunArgs, bench};
pub use demo::{DemoArgs, demo};
pub use error::BenchError;
pub use figure::{
    Figure, FigureAxis, FigureCurve, FigurePlot, FigureRow, FigureSource, FigureTable,
};
pub use instructions::{InstructionsError, SegmentKind};
pub use keeper::KeepArgs;
pub use layout::{LayoutError, LinkChoice, MeasuredLink};
pub use link_name::LinkName;
pub use load_process::{LoadProcessArgs, LoadProcessError};
pub use peer_channel::PeerError;
pub use pika::PikaArgs;
pub use point::{
    Bar, BarServer, CpuShares, CpuSplit, Latency, Machine, Point, Results, Saturated, Sense,
    Simulated,
};
pub use preload_bars::NullReadArgs;
pub use process::{AwaitArgs, ExecArgs};
pub use run_args::RunArgs;
pub use scaling::costs::{CostError, FrameKind};
pub use service_bars::{NeighbourArgs, NeighbourError, NeighbourKind};
