//! Trials: what is measured, how long and how often.

use crate::{
    load::LoadPlan,
    server::{ServiceKind, TestedServer},
};
use std::time::Duration;

/// One server under one load: what becomes a point.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BenchTrial {
    pub(crate) experiment: &'static str,
    pub(crate) server: TestedServer,
    pub(crate) service: ServiceKind,
    pub(crate) load: LoadPlan,
}

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    pub(crate) runs: usize,
    pub(crate) window: Duration,
}
