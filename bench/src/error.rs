//! Why a benchmark did not run to its end.

use crate::{
    accept_reset::AcceptError, baseline::BaselineError, instructions::InstructionsError,
    layout::LayoutError, load_process::LoadProcessError, scaling::costs::CostError,
    service_bars::NeighbourError,
};
use std::{io, path::PathBuf};

/// Why a benchmark did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// No place to measure in.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A baseline server failed.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// A load failed.
    #[error(transparent)]
    Load(#[from] LoadProcessError),
    /// A side of the accept benchmark failed.
    #[error(transparent)]
    Accept(#[from] AcceptError),
    /// A program that keeps a daemon busy has ended.
    #[error(transparent)]
    Neighbour(#[from] NeighbourError),
    /// The segments that callgrind counts were not carried.
    #[error(transparent)]
    Segments(#[from] InstructionsError),
    /// Frames did not go where they belong.
    #[error(transparent)]
    Frames(#[from] CostError),
    /// `--only` names nothing.
    #[error("there is no experiment '{name}' here; there are: {known}")]
    UnknownExperiment {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// `--placement` with the kernel back end.
    #[error("--placement: only --backend local has a stack to place")]
    NoStack,
    /// A back end with a link that is another back end's.
    #[error("--link {link}: it takes --backend {backend}")]
    Link {
        /// The link given.
        link: &'static str,
        /// The back end whose link it is.
        backend: &'static str,
    },
    /// `--seconds` is not a usable length.
    #[error("a window of {seconds} s is outside of 2 to 600 s: /proc/stat counts 10 ms ticks")]
    Window {
        /// The length given.
        seconds: f64,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of results could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Results of two machines do not belong into one report.
    #[error("{path} was measured on another machine or by another version than {first}")]
    Mixed {
        /// The first file.
        first: PathBuf,
        /// The file that does not fit.
        path: PathBuf,
    },
    /// Something else that the operating system refused.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl BenchError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::UnknownExperiment { .. }
                | Self::NoStack
                | Self::Link { .. }
                | Self::Window { .. }
                | Self::Write { .. }
                | Self::Read { .. }
                | Self::Mixed { .. }
        )
    }
}
