//! Simulation of larger core counts, with costs measured in the same run.
//!
//! In: a load on our own stack over memif, measured with one core on each side. Out: points for 1
//! to 16 cores, marked as simulated. `scaling/costs.rs` measures what goes into it besides,
//! `scaling/model.rs` is the simulation; `docs/SCALING.md` says what it has, what it leaves out,
//! and how far it was from measured points.
//!
//! Invariant: nothing that was simulated looks like a measurement: each such point carries
//! `simulated`, and each note says so.

pub(crate) mod clock;
pub(crate) mod costs;
mod flows;
pub(crate) mod message_costs;
pub(crate) mod model;
pub(crate) mod service;
pub(crate) mod service_costs;

use crate::{
    experiments::Experiment,
    layout::{BenchLayout, LayoutError},
    limits,
    load::LoadPlan,
    measure::{self, Sample, median},
    point::{CpuSplit, Point, Saturated, Simulated},
    progress::PlanProgress,
    run::Bench,
    server::{ServiceKind, TestedServer},
    stack_link::{LinkSide, StackLink},
    trial::BenchTrial,
};
use costs::{CostError, Extent};
use model::{Costs, FrameCosts, QueueCount, ScalingModel, SimulationOutcome};

/// Servers whose runs show what a transaction costs: a side that polls is charged for its waiting,
/// one that sleeps for its waking, and the lower of the two is nearer to the truth.
const MEASURED: [TestedServer; 3] = [
    TestedServer::Local(StackLink::Memif),
    TestedServer::Local(StackLink::MemifAsleep(LinkSide::Server)),
    TestedServer::Local(StackLink::MemifAsleep(LinkSide::Load)),
];

/// Costs that were measured in one go, with what they were measured by.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredCosts {
    pub(crate) costs: Costs,
    /// Transactions a second with one core on each side, both polling.
    pub(crate) one_core_per_s: f64,
    checked: Checked,
    /// One run of each of [`MEASURED`].
    samples: [Sample; 3],
}

/// Two shards of the real code on one queue, all on one thread, and the simulation of them from the
/// costs of one shard on that thread: nanoseconds of the server's time for a transaction. What the
/// switch adds is in it, but nothing that two cores do at once.
#[derive(Clone, Copy, Debug, Default)]
struct Checked {
    measured_ns: f64,
    simulated_ns: f64,
}

/// The experiment and its numbers of cores.
#[derive(Clone, Debug)]
pub(crate) struct ScalingSituation {
    pub(crate) experiment: &'static str,
    pub(crate) service: ServiceKind,
    pub(crate) load: LoadPlan,
}

impl ScalingSituation {
    /// Parameters of an experiment's first group; `None` if it has none.
    pub(crate) fn of(experiment: &Experiment) -> Option<Self> {
        let trials = experiment.groups(true, 1).into_iter().flat_map(|group| group.trials);
        let BenchTrial { experiment, service, load, .. } = { trials }.next()?;
        Some(Self { experiment, service, load })
    }

    fn trials(&self) -> [BenchTrial; 3] {
        let Self { experiment, service, load } = self;
        MEASURED.map(|server| BenchTrial {
            experiment,
            server,
            service: *service,
            load: load.clone(),
        })
    }

    /// Measures costs, one core on each side. `None` if that failed, with a note.
    pub(crate) fn measure(
        &self,
        bench: &mut Bench,
        progress: &mut PlanProgress,
    ) -> Result<Option<MeasuredCosts>, LayoutError> {
        let before = bench.load_cores.replace(1);
        let measured = self.measure_on_one_core(bench, progress);
        bench.load_cores = before;
        let measured = measured?;
        Ok(match measured {
            Ok(measured) => Some(measured),
            Err(why) => {
                bench.failed = true;
                let experiment = self.experiment;
                bench.note(format!("{experiment}: costs could not be measured: {why}"));
                None
            }
        })
    }

    fn measure_on_one_core(
        &self,
        bench: &mut Bench,
        progress: &mut PlanProgress,
    ) -> Result<Result<MeasuredCosts, String>, LayoutError> {
        let mut samples = [Sample::default(); 3];
        for (trial, place) in self.trials().iter().zip(&mut samples) {
            progress.step(&format!("{} · costs · {}", self.experiment, trial.server.label()));
            match bench.sample(trial, 1)? {
                Ok(sample) => *place = sample,
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        let layout = bench.layout(1)?;
        let parts = self.parts(layout);
        Ok(parts.map_err(|error| error.to_string()).map(|parts| together(parts, samples)))
    }

    /// What is measured in this process: costs of frames, and what a transaction consists of.
    fn parts(&self, layout: &BenchLayout) -> Result<(Costs, Checked), CostError> {
        let (here, there) = (&layout.server.cpus, &layout.load.cpus);
        let frame = costs::frame_costs(here, there, limits::STEERED_ROUNDS)?;
        let stays = self.load.transactions_per_connection.is_none();
        let one = costs::exchange_shape(1, stays, Extent::default())?;
        let two = costs::exchange_shape(2, stays, Extent::default())?;
        let costs = Costs {
            input_share: one.input_share,
            output_share: one.output_share,
            frames_in: one.frames_in,
            frames_out: one.frames_out,
            frame,
            ..Costs::default()
        };
        let alone = costs::frame_costs(here, here, limits::STEERED_ROUNDS)?;
        let costs_here = Costs { server_ns: one.server_ns, frame: alone, ..costs };
        let simulated = model::simulate(&costs_here, &self.world(2, 1, QueueCount::One));
        let simulated_ns = simulated.server_us_per_transaction * 1e3;
        Ok((costs, Checked { measured_ns: two.server_ns, simulated_ns }))
    }

    /// The simulated system of this load with these cores.
    fn world(&self, shards: u16, load_cores: u16, queues: QueueCount) -> ScalingModel {
        ScalingModel {
            shards,
            load_cores,
            connections: u32::try_from(self.load.connections).unwrap_or(u32::MAX),
            queues,
            length: self.load.transactions_per_connection,
            transactions: limits::SIMULATED_TRANSACTIONS,
        }
    }
}

/// Pure: costs of a whole transaction from the runs.
fn together((parts, checked): (Costs, Checked), samples: [Sample; 3]) -> MeasuredCosts {
    let [polling, server_asleep, load_asleep] = &samples;
    let lower_ns = |one: f64, other: f64| one.min(other) * 1e3;
    let costs = Costs {
        server_ns: lower_ns(polling.server_cost_us(), server_asleep.server_cost_us()),
        load_ns: lower_ns(polling.load_cost_us(), load_asleep.load_cost_us()),
        ..parts
    };
    MeasuredCosts { costs, one_core_per_s: polling.transactions_per_s, checked, samples }
}

/// Of several measurements, field by field, the medians.
fn median_costs(all: &[MeasuredCosts]) -> Costs {
    let each = |field: fn(&Costs) -> f64| median(all.iter().map(|it| field(&it.costs)));
    Costs {
        server_ns: each(|it| it.server_ns),
        load_ns: each(|it| it.load_ns),
        input_share: each(|it| it.input_share),
        output_share: each(|it| it.output_share),
        frames_in: each(|it| it.frames_in),
        frames_out: each(|it| it.frames_out),
        frame: FrameCosts::median(&all.iter().map(|it| it.costs.frame).collect::<Vec<_>>()),
    }
}

/// How many times one shard's throughput two shards have, each with a core of the load and a
/// queue.
pub(crate) fn two_shards_over_one(situation: &ScalingSituation, costs: &Costs) -> f64 {
    let at = |cores| {
        let world = situation.world(cores, cores, QueueCount::PerShard);
        model::simulate(costs, &world).transactions_per_s
    };
    at(2) / at(1)
}

/// What of an experiment is continued beyond the machine's cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continued {
    /// The server's cores, with as many of the load.
    Both,
    /// The load's costs, with enough shards that the load is the limit.
    Load,
}

fn continued(experiment: &str) -> Option<Continued> {
    match experiment {
        "mt-fig7a" => Some(Continued::Both),
        "mt-fig10" => Some(Continued::Load),
        _ => None,
    }
}

impl Continued {
    /// Shards, and cores of the load.
    fn cores(self, costs: &Costs, cores: u16) -> (u16, u16) {
        match self {
            Self::Both => (cores, cores),
            Self::Load => {
                let least = (costs.server_ns / costs.load_ns.max(1.0)).max(1.0) * f64::from(cores);
                ((least * limits::SIMULATED_ROOM).ceil() as u16, cores)
            }
        }
    }
}

/// The points of `experiments` for more cores than there are, if memif takes part in them.
pub(crate) fn points(
    bench: &mut Bench,
    experiments: &[&Experiment],
) -> Result<Vec<Point>, LayoutError> {
    let mut points = Vec::new();
    if !bench.columns.links.contains(&StackLink::Memif) {
        return Ok(points);
    }
    for experiment in experiments {
        if continued(experiment.name).is_none() {
            continue;
        }
        let Some(situation) = ScalingSituation::of(experiment) else { continue };
        let mut progress = PlanProgress::new(bench.effort.runs * MEASURED.len());
        let mut all = Vec::new();
        for _ in 0..bench.effort.runs {
            all.extend(situation.measure(bench, &mut progress)?);
        }
        progress.finish();
        if !all.is_empty() {
            let cores_max = limits::SIMULATED_CORES_MAX;
            points.extend(simulated_points(bench, &situation, &all, cores_max));
        }
    }
    Ok(points)
}

/// Points for 1 to `cores_max` cores, from the medians of what was measured.
pub(crate) fn simulated_points(
    bench: &mut Bench,
    situation: &ScalingSituation,
    all: &[MeasuredCosts],
    cores_max: u16,
) -> Vec<Point> {
    let costs = median_costs(all);
    let mut points = Vec::new();
    let Some(axis) = continued(situation.experiment) else { return points };
    let queues = match axis {
        Continued::Both => &[QueueCount::PerShard, QueueCount::One][..],
        Continued::Load => &[QueueCount::PerShard],
    };
    for &queues in queues {
        for cores in 1..=cores_max {
            let (shards, load_cores) = axis.cores(&costs, cores);
            let world = situation.world(shards, load_cores, queues);
            let outcome = model::simulate(&costs, &world);
            points.push(point(situation, &costs, &world, &outcome, all.len()));
        }
    }
    let measured = median(all.iter().map(|it| it.one_core_per_s));
    bench.note(note(situation, &costs, measured));
    bench.note(check_note(situation, all));
    points
}

/// How near the simulation of two shards comes to two real ones that take turns.
fn check_note(situation: &ScalingSituation, all: &[MeasuredCosts]) -> String {
    let each = |field: fn(&Checked) -> f64| median(all.iter().map(|it| field(&it.checked)));
    let (measured, simulated) = (each(|it| it.measured_ns), each(|it| it.simulated_ns));
    format!(
        "{}: two shards on one queue in one thread take {:.2} µs of the server's time for a \
         transaction, and the simulation has {:.2} ({:+.1} %)",
        situation.experiment,
        measured / 1e3,
        simulated / 1e3,
        (simulated / measured - 1.0) * 100.0
    )
}

/// What was measured, and how near the simulation comes to the one point that can be checked on
/// any machine.
fn note(situation: &ScalingSituation, costs: &Costs, measured_per_s: f64) -> String {
    let world = situation.world(1, 1, QueueCount::PerShard);
    let simulated = model::simulate(costs, &world).transactions_per_s;
    let Costs { server_ns, load_ns, frames_in, frames_out, frame, .. } = costs;
    format!(
        "{}: points marked as simulated come from costs measured in this run: a transaction {:.2} \
         µs at the server and {:.2} at the load, {frames_in:.1} frames in and {frames_out:.1} out, \
         a frame {:.0} ns alone, {:.0} through the switch, {:.0} steered; with one core on each \
         side the simulation has {:.0} transactions a second, and {measured_per_s:.0} were \
         measured ({:+.1} %)",
        situation.experiment,
        server_ns / 1e3,
        load_ns / 1e3,
        frame.plain_ns,
        frame.kept_ns,
        frame.steered_ns + frame.taken_ns,
        simulated,
        (simulated / measured_per_s - 1.0) * 100.0
    )
}

fn point(
    situation: &ScalingSituation,
    costs: &Costs,
    world: &ScalingModel,
    outcome: &SimulationOutcome,
    runs: usize,
) -> Point {
    let server = TestedServer::Local(StackLink::Memif);
    let is_busy = |share: f64| 1.0 - share < limits::SATURATED_IDLE_SHARE_MAX;
    let us = outcome.server_us_per_transaction;
    let (queues, variant) = match world.queues {
        QueueCount::PerShard => (usize::from(world.shards), ""),
        QueueCount::One => (1, "one queue"),
    };
    let rate = outcome.transactions_per_s;
    Point {
        experiment: situation.experiment.to_owned(),
        server: server.name().to_owned(),
        backend: server.backend().to_owned(),
        driver: server.driver().to_owned(),
        link: StackLink::Memif.link(),
        placement: server.placement().to_owned(),
        shards: world.shards.into(),
        transactions_per_connection: world.length,
        message_bytes: situation.load.message_bytes(),
        connections: situation.load.connections,
        transactions_per_s: rate,
        server_cpu_us_per_transaction: us,
        latency_us: outcome.latency_us,
        saturated: Saturated::of(is_busy(outcome.server_busy), is_busy(outcome.load_busy)),
        runs,
        variant: variant.to_owned(),
        workload: situation.load.workload_name().to_owned(),
        transactions_per_s_range: [rate; 2],
        server_cpu_us_range: [us; 2],
        server_idle_share: 1.0 - outcome.server_busy,
        errors: 0,
        server_cpu_us: CpuSplit { user: us, ..CpuSplit::default() },
        server_calls_per_transaction: 0.0,
        load_cores: world.load_cores.into(),
        load_cpu_us_per_transaction: outcome.load_us_per_transaction,
        fairness: None,
        cpu_shares: None,
        connect_us: None,
        processing_us: None,
        server_process_us_per_transaction: None,
        load_process_us_per_transaction: None,
        simulated: Some(Simulated {
            queues,
            measured_server_us: costs.server_ns / 1e3,
            measured_load_us: costs.load_ns / 1e3,
            measured_steering_ns: costs.frame.added_ns(),
            server_busy: outcome.server_busy,
            load_busy: outcome.load_busy,
            imbalance: outcome.imbalance,
            steered_share: outcome.steered,
            lock_wait_share: outcome.lock_wait,
        }),
        events_per_wakeup: None,
    }
}

impl MeasuredCosts {
    /// The points of the runs that costs were taken from.
    pub(crate) fn points(
        situation: &ScalingSituation,
        all: &[Self],
        layout: &BenchLayout,
    ) -> Vec<Point> {
        let of = |index: usize| all.iter().map(|it| it.samples[index]).collect::<Vec<Sample>>();
        let trials = situation.trials();
        let each = trials.iter().enumerate();
        each.map(|(index, trial)| measure::summarise(trial, &of(index), layout)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{EXPERIMENTS, rpc};

    const PARTS: Costs = Costs {
        server_ns: 0.0,
        load_ns: 0.0,
        input_share: 0.3,
        output_share: 0.2,
        frames_in: 3.0,
        frames_out: 2.0,
        frame: FrameCosts { plain_ns: 20.0, kept_ns: 45.0, steered_ns: 60.0, taken_ns: 30.0 },
    };

    fn sample(server_us: f64, load_us: f64) -> Sample {
        Sample {
            transactions_per_s: 1e6 / server_us.max(load_us),
            server_cpu_us_per_transaction: server_us,
            load_cpu_us_per_transaction: load_us,
            ..Sample::default()
        }
    }

    fn situation() -> ScalingSituation {
        ScalingSituation { experiment: "mt-fig7a", service: ServiceKind::Rpc, load: rpc(1, 64) }
    }

    #[test]
    fn the_lower_of_waiting_and_waking_is_the_cost() {
        let samples = [sample(3.0, 3.0), sample(3.4, 3.2), sample(3.3, 2.5)];
        let MeasuredCosts { costs, one_core_per_s, .. } =
            together((PARTS, Checked::default()), samples);
        assert!((costs.server_ns - 3_000.0).abs() < 1e-6 && (costs.load_ns - 2_500.0).abs() < 1e-6);
        assert!((one_core_per_s - 1e6 / 3.0).abs() < 1e-3 && (costs.frames_in - 3.0).abs() < 1e-9);
    }

    #[test]
    fn two_shards_are_less_than_twice_one_by_what_the_switch_costs() {
        let costs = Costs { server_ns: 3_000.0, load_ns: 2_000.0, ..PARTS };
        let ratio = two_shards_over_one(&situation(), &costs);
        // Three frames at 25 ns more, of 3 µs.
        let expected = 2.0 / (1.0 + 3.0 * 25.0 / 3_000.0);
        assert!((ratio - expected).abs() < 0.03, "{ratio}, not {expected}");
    }

    #[test]
    fn a_simulated_point_says_what_it_is() {
        let costs = Costs { server_ns: 3_000.0, load_ns: 2_000.0, ..PARTS };
        let (situation, world) = (situation(), situation().world(2, 2, QueueCount::One));
        let world = ScalingModel { transactions: 2_000, ..world };
        let point = point(&situation, &costs, &world, &model::simulate(&costs, &world), 3);
        let simulated = point.simulated.unwrap();
        assert_eq!((simulated.queues, point.shards, point.load_cores), (1, 2, 2));
        assert_eq!(point.variant, "one queue");
        assert!((simulated.measured_steering_ns - 70.0).abs() < 1e-9);
        assert!(note(&situation, &costs, 300_000.0).contains("simulated"));
    }

    #[test]
    fn only_axes_of_cores_are_continued() {
        let names: Vec<&str> =
            EXPERIMENTS.iter().map(|it| it.name).filter(|it| continued(it).is_some()).collect();
        assert_eq!(names, ["mt-fig7a", "mt-fig10"]);
        let costs = Costs { server_ns: 3_000.0, load_ns: 1_000.0, ..PARTS };
        assert_eq!(Continued::Both.cores(&costs, 4), (4, 4));
        assert_eq!(Continued::Load.cores(&costs, 4), (18, 4));
    }
}
