//! Rows of the daemon's bars that are measured with a scene: a daemon, programs, and a client.
//!
//! A run gives one value for each promise of its row. With `--quick` there are fewer connections.

use super::{
    accepts,
    balance::{self, Selecting},
    claim, daemon_costs, deaths, hostile, instructions,
    scene::{SceneError, SceneStage},
    stopped,
};
use crate::{
    layout::LayoutError,
    limits,
    promise::{BarResult, Promise, PromisedBound},
    run::Bench,
};

/// Values of a run, one for each promise.
type RunValues = Result<Vec<f64>, SceneError>;

/// Promises that one measurement answers.
pub(super) struct SceneRow {
    pub(super) promises: &'static [Promise],
    measure: fn(SceneStage<'_>, bool) -> RunValues,
}

const fn promise(
    name: &'static str,
    what: &'static str,
    bound: PromisedBound,
    (unit, digits): (&'static str, usize),
) -> Promise {
    Promise { name, what, bound, unit, digits }
}

const MICROSECONDS: (&str, usize) = (" µs", 1);
const MILLISECONDS: (&str, usize) = (" ms", 2);
const RATIO: (&str, usize) = ("", 3);
const COUNT: (&str, usize) = ("", 0);

/// In the order in which they are measured.
pub(super) const SCENE_ROWS: &[SceneRow] = &[
    SceneRow {
        promises: &[
            promise(
                "stopped",
                "connections of a stopped acceptor, answered by another: p99",
                PromisedBound::AtMost(7.0),
                MILLISECONDS,
            ),
            promise("stopped", "the same: median", PromisedBound::Floor, MILLISECONDS),
            promise(
                "stopped",
                "the same: connections lost, of 10,000",
                PromisedBound::AtMost(0.0),
                COUNT,
            ),
        ],
        measure: |stage, is_quick| {
            let outcome = stopped::measure(stage, part(limits::STOPPED_CONNECTIONS, is_quick))?;
            Ok(vec![outcome.p99_ms, outcome.median_ms, outcome.lost as f64])
        },
    },
    SceneRow {
        promises: &[
            promise(
                "claim",
                "from an offer to its confirmed claim, acceptor awake: median",
                PromisedBound::AtMost(5.0),
                MICROSECONDS,
            ),
            promise(
                "claim",
                "the same, acceptor asleep: median",
                PromisedBound::AtMost(40.0),
                MICROSECONDS,
            ),
        ],
        measure: |stage, is_quick| {
            let awake = claim::awake_us(stage, part(limits::CLAIMED_AWAKE, is_quick))?;
            Ok(vec![awake, claim::asleep_us(stage, part(limits::CLAIMED_ASLEEP, is_quick))?])
        },
    },
    SceneRow {
        promises: &[
            promise(
                "killed",
                "kill -9 of a program with 1,000 connections: errors at others",
                PromisedBound::AtMost(0.0),
                COUNT,
            ),
            promise(
                "killed",
                "the same: p99 of others in the second after, over that before",
                PromisedBound::AtMost(1.5),
                RATIO,
            ),
        ],
        measure: |stage, is_quick| {
            let connections = part(limits::KILLED_CONNECTIONS as u64, is_quick) as usize;
            let outcome = deaths::killed(stage, connections)?;
            Ok(vec![outcome.errors as f64, outcome.p99_ratio])
        },
    },
    SceneRow {
        promises: &[promise(
            "reclaim",
            "from the end of a program to all its buffers, ports and quotas back",
            PromisedBound::AtMost(50.0),
            MILLISECONDS,
        )],
        measure: |stage, is_quick| {
            let connections = part(limits::KILLED_CONNECTIONS as u64, is_quick) as usize;
            Ok(vec![deaths::reclaim(stage, connections)?])
        },
    },
    SceneRow {
        promises: &[
            promise(
                "daemon-killed",
                "kill -9 of the daemon with 10,000 connections: programs notified",
                PromisedBound::AtMost(20.0),
                MILLISECONDS,
            ),
            promise(
                "daemon-killed",
                "the same: all serve again after a new one is ready",
                PromisedBound::AtMost(100.0),
                MILLISECONDS,
            ),
        ],
        measure: |stage, is_quick| {
            let connections = part(limits::DAEMON_KILLED_CONNECTIONS as u64, is_quick) as usize;
            let programs = limits::DAEMON_KILLED_PROGRAMS;
            let outcome = deaths::daemon_killed(stage, connections, programs)?;
            Ok(vec![outcome.notified_ms, outcome.served_ms])
        },
    },
    SceneRow {
        promises: &[
            promise(
                "hostile",
                "p99 beside operations without end, over an honest neighbour",
                PromisedBound::AtMost(1.5),
                RATIO,
            ),
            promise(
                "hostile",
                "the same: doorbells without end",
                PromisedBound::AtMost(1.5),
                RATIO,
            ),
            promise("hostile", "the same: events never read", PromisedBound::AtMost(1.5), RATIO),
            promise(
                "hostile",
                "p99 beside the honest neighbour",
                PromisedBound::Floor,
                MILLISECONDS,
            ),
        ],
        measure: |stage, is_quick| {
            let quick = limits::HOSTILE_WINDOW_QUICK;
            hostile::measure(stage, if is_quick { quick } else { limits::HOSTILE_WINDOW })
        },
    },
    SceneRow {
        promises: &[promise(
            "fair",
            "four equal programs: Jain's index of 100,000 connections",
            PromisedBound::AtLeast(0.95),
            ("", 4),
        )],
        measure: |stage, is_quick| {
            Ok(vec![balance::fair(stage, part(limits::FAIR_SHARED, is_quick))?])
        },
    },
    SceneRow {
        promises: &[
            slow("one of four sleeps 20 ms: p95 over a run without it", Some(2.0)),
            slow("the same: p99", Some(3.0)),
            slow("the same, scheme hash: p95", None),
            slow("the same, scheme hash: p99", None),
            slow("the same, the kernel's SO_REUSEPORT: p95", None),
            slow("the same, the kernel's SO_REUSEPORT: p99", None),
        ],
        measure: |stage, is_quick| {
            let window = if is_quick { limits::SLOW_WINDOW_QUICK } else { limits::SLOW_WINDOW };
            let ways = [Selecting::Daemon("tournament:2"), Selecting::Daemon("hash")];
            let ways = ways.into_iter().chain([Selecting::Kernel]);
            let mut values = Vec::new();
            for selecting in ways {
                values.extend(balance::slow(stage, selecting, window)?);
            }
            Ok(values)
        },
    },
    SceneRow {
        promises: &[
            promise(
                "accept",
                "accepted and reset: CPU of the daemon over all of inline's",
                PromisedBound::AtMost(1.3),
                RATIO,
            ),
            promise("accept", "the same: 8 programs over 1", PromisedBound::AtMost(1.25), RATIO),
            promise(
                "accept",
                "the same: beside 256 idle programs over none",
                PromisedBound::AtMost(1.05),
                RATIO,
            ),
        ],
        measure: |stage, is_quick| {
            let (programs, idle) = if is_quick { (2, 8) } else { limits::ACCEPTING };
            let ratios = accepts::ratios(stage, programs, idle, limits::ACCEPTED_WINDOW)?;
            Ok(vec![ratios.over_inline, ratios.with_programs, ratios.with_idle])
        },
    },
    SceneRow {
        promises: &[promise(
            "instructions",
            "instructions of daemon and program for a transaction, over inline",
            PromisedBound::AtMost(1.6),
            RATIO,
        )],
        measure: |stage, _| Ok(vec![instructions::over_inline(stage, limits::TRACED_CONNECTIONS)?]),
    },
    SceneRow {
        promises: &[promise(
            "syscalls",
            "system calls per transaction of daemon and program, 256 connections",
            PromisedBound::AtMost(0.05),
            ("", 4),
        )],
        measure: |stage, _| {
            let (connections, window) = (limits::TRACED_CONNECTIONS, limits::TRACED_WINDOW);
            Ok(vec![daemon_costs::system_calls(stage, connections, window)?])
        },
    },
    SceneRow {
        promises: &[promise(
            "memory",
            "resident memory of the daemon for an idle connection",
            PromisedBound::AtMost(512.0),
            (" B", 0),
        )],
        measure: |stage, is_quick| {
            let each = part(limits::IDLE_EACH as u64, is_quick) as usize;
            Ok(vec![daemon_costs::idle_connection_bytes(stage, each)?])
        },
    },
];

const fn slow(what: &'static str, bound: Option<f64>) -> Promise {
    let bound = match bound {
        Some(bound) => PromisedBound::AtMost(bound),
        None => PromisedBound::Floor,
    };
    promise("slow", what, bound, RATIO)
}

/// A twentieth with `--quick`.
const fn part(count: u64, is_quick: bool) -> u64 {
    if is_quick { count / 20 } else { count }
}

impl SceneRow {
    /// As `--only` takes it.
    pub(super) fn name(&self) -> &'static str {
        self.promises.first().map_or("", |promise| promise.name)
    }

    /// Measures all runs.
    pub(super) fn bars(
        &self,
        bench: &mut Bench,
        is_quick: bool,
    ) -> Result<Vec<BarResult>, LayoutError> {
        let (runs, why) = bench.repeat(self.name(), |bench| {
            let scratch = bench.scratch.path().to_owned();
            let stage = SceneStage { layout: bench.layout(1)?, scratch: &scratch };
            Ok((self.measure)(stage, is_quick))
        })?;
        let values = |index: usize| runs.iter().filter_map(|run| run.get(index).copied()).collect();
        let bars = self.promises.iter().enumerate();
        Ok(bars.map(|(index, promise)| promise.result(values(index), why.clone())).collect())
    }
}
