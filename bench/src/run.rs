//! Runs a plan: the groups in order, the servers of a group in turn, several times.
//!
//! A trial that belongs to two experiments is measured once. A server that is missing or fails
//! costs its own points and a note, never the run.

use crate::{
    cpu_time::CoreTimes,
    experiments::{Experiment, TrialGroup},
    keeper::KeeperProcess,
    layout::{self, BenchLayout, LayoutError, LinkChoice},
    limits,
    measure::{self, MeasureError, Sample},
    point::Point,
    process,
    progress::PlanProgress,
    scratch::Scratch,
    server::{ServiceKind, TestedServer},
    stack_link::{StackLink, StackPlacement},
    trial::{BenchTrial, Effort},
};
use megapipe_apps::{rpc::Api, serve::CpuList};
use std::{fmt, io, path::PathBuf, thread};

/// Whose servers are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSelection {
    /// On the kernel's TCP: channels, baselines, nginx and memcached.
    pub(crate) kernel: bool,
    /// Channels on the stack, over these links.
    pub(crate) links: Vec<StackLink>,
    /// Which of the two rpc programs.
    pub(crate) programs: RpcPrograms,
    /// How many rpc servers share the stack of a daemon; 0: there is no daemon.
    pub(crate) sharing: u8,
}

/// The rpc programs to run, and the placements of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpcPrograms {
    pub(crate) apis: Vec<Api>,
    /// `None`: inside the server's own calls.
    pub(crate) placements: Vec<Option<StackPlacement>>,
}

impl Default for RpcPrograms {
    fn default() -> Self {
        Self { apis: vec![Api::Channel], placements: vec![None] }
    }
}

impl RpcPrograms {
    /// The servers over a link, for a service.
    fn over(&self, link: StackLink, service: ServiceKind) -> impl Iterator<Item = TestedServer> {
        self.of(service).flat_map(move |api| {
            self.placements.iter().map(move |placement| match (api, *placement) {
                (Api::Channel, None) => TestedServer::Local(link),
                (Api::Channel, Some(placement)) => TestedServer::Placed(link, placement),
                (Api::Sockets, placement) => TestedServer::Sockets(link, placement),
            })
        })
    }

    /// The programs that there are for a service: only rpc is written twice.
    fn of(&self, service: ServiceKind) -> impl Iterator<Item = Api> {
        let is_twice = service == ServiceKind::Rpc;
        self.apis.iter().copied().filter(move |api| is_twice || *api == Api::Channel)
    }
}

impl ServerSelection {
    /// A group with our own stack's servers added, and the kernel's taken away if they are not
    /// wanted. Our own stack takes part with many shards over a memif, which has a queue for each,
    /// with one over other links, and not where what varies is the kernel's part of a channel.
    fn of(&self, mut group: TrialGroup) -> TrialGroup {
        let Some(first) = group.trials.first().cloned() else { return group };
        let is_ablation = group.trials.iter().any(|it| !it.server.variant().is_empty());
        let service = first.service;
        let on = |server| BenchTrial { server, ..first.clone() };
        let unmodified = self.unmodified(&group);
        if !self.kernel {
            group.trials.clear();
        } else if !is_ablation {
            let sockets = group.trials.iter().filter_map(|trial| trial.server.on_sockets());
            let sockets: Vec<BenchTrial> = sockets.map(on).collect();
            let has = |api| self.programs.of(service).any(|it| it == api);
            let is_channel = |trial: &BenchTrial| matches!(trial.server, TestedServer::Channel(..));
            group.trials.retain(|trial| has(Api::Channel) || !is_channel(trial));
            group.trials.extend(sockets.into_iter().filter(|_| has(Api::Sockets)));
        }
        if !is_ablation {
            let cores = group.server_cores;
            let fit = self.links.iter().filter(|link| cores == 1 || link.is_memif());
            group.trials.extend(fit.flat_map(|link| self.programs.over(*link, service)).map(on));
            group.trials.extend(unmodified.into_iter().map(on));
            let is_shared = self.sharing > 0 && service == ServiceKind::Rpc && cores == 1;
            let shared = TestedServer::Shared(StackLink::Memif, self.sharing);
            group.trials.extend(is_shared.then(|| on(shared)));
        }
        group
    }
}

impl ServerSelection {
    /// The group's programs of Debian's, unmodified, on our own stack over a memif: in the program
    /// where it has one core, and in a daemon.
    fn unmodified(&self, group: &TrialGroup) -> Vec<TestedServer> {
        if !self.links.contains(&StackLink::Memif) {
            return Vec::new();
        }
        let both = group.trials.iter().filter_map(|it| it.server.preloaded(StackLink::Memif));
        let fits = |it: &TestedServer| group.server_cores == 1 || it.backend() == "service";
        both.flatten().filter(fits).collect()
    }
}

/// The samples of each trial that worked, and the points that they come to.
pub(crate) type ComparedServers = (Vec<(BenchTrial, Vec<Sample>)>, Vec<Point>);

/// Context of a run in addition to its plan.
#[derive(Debug)]
pub(crate) struct Bench {
    /// The `megapipe` executable.
    pub(crate) program: PathBuf,
    pub(crate) link: LinkChoice,
    pub(crate) columns: ServerSelection,
    pub(crate) effort: Effort,
    pub(crate) scratch: Scratch,
    /// Notes for the results, without duplicates.
    pub(crate) notes: Vec<String>,
    /// Whether a trial failed that should not have.
    pub(crate) failed: bool,
    /// Leave out servers that need io_uring.
    pub(crate) without_io_uring: bool,
    /// Cores of the load, if it is not to have all that the server leaves.
    pub(crate) load_cores: Option<usize>,
    /// The cores that server and load may have, before this process left the server's.
    cpus: CpuList,
    layout: Option<BenchLayout>,
    /// Last, so that it finds everything tidied up.
    _keeper: KeeperProcess,
}

impl Bench {
    pub(crate) fn new(program: PathBuf, link: LinkChoice, effort: Effort) -> io::Result<Self> {
        let keeper = KeeperProcess::start(&program)?;
        let (scratch, notes) = (Scratch::new()?, Vec::new());
        let cpus = CpuList::from(layout::online_cpus()?);
        let (failed, without_io_uring, layout) = (false, false, None);
        let columns = ServerSelection {
            kernel: true,
            links: Vec::new(),
            programs: RpcPrograms::default(),
            sharing: 0,
        };
        let mut bench = Self {
            program,
            link,
            columns,
            effort,
            scratch,
            notes,
            failed,
            without_io_uring,
            load_cores: None,
            cpus,
            layout,
            _keeper: keeper,
        };
        bench.note_company()?;
        Ok(bench)
    }

    /// Notes it if others use the machine: what they do on the server's cores is charged to it.
    fn note_company(&mut self) -> io::Result<()> {
        let before = CoreTimes::read(&self.cpus)?;
        thread::sleep(limits::QUIET_CHECK);
        let busy_share = 1.0 - (CoreTimes::read(&self.cpus)? - before).idle_share();
        if busy_share > limits::QUIET_BUSY_SHARE_MAX {
            self.note(format!(
                "the machine was not quiet when the benchmark began (its cores were {:.0} % \
                 busy): what others do on the server's core is charged to the server",
                busy_share * 100.0
            ));
        }
        Ok(())
    }

    /// Cores that server and load may have together.
    pub(crate) fn cores(&self) -> usize {
        self.cpus.as_slice().len()
    }

    /// The layout with so many server cores, set up unless it is there already. At most one
    /// exists at a time.
    pub(crate) fn layout(&mut self, server_cores: usize) -> Result<&BenchLayout, LayoutError> {
        let all = self.cpus.as_slice();
        let cores = self.load_cores.map_or(all.len(), |load| (server_cores + load).min(all.len()));
        let fits = |layout: &BenchLayout| {
            let load = layout.load.cpus.as_slice().len();
            layout.server.cpus.as_slice().len() == server_cores
                && load == cores.saturating_sub(server_cores)
        };
        let layout = match self.layout.take().filter(fits) {
            Some(layout) => layout,
            None => {
                let layout =
                    BenchLayout::new(self.link, &self.program, &all[..cores], server_cores)?;
                // What this process does itself is not to be charged to the server.
                process::pin(&layout.load.cpus)?;
                if let Some(why) = &layout.note {
                    self.note(format!("measured over loopback, not veth: {why}"));
                }
                layout
            }
        };
        Ok(self.layout.insert(layout))
    }

    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Measures the experiments' groups; the points in their order.
    pub(crate) fn run(
        &mut self,
        experiments: &[&Experiment],
        quick: bool,
        cores_max: usize,
    ) -> Result<Vec<Point>, LayoutError> {
        let mut groups: Vec<TrialGroup> =
            experiments.iter().flat_map(|it| it.groups(quick, cores_max)).collect();
        groups = groups.into_iter().map(|group| self.columns.of(group)).collect();
        if self.without_io_uring {
            for group in &mut groups {
                group.trials.retain(|trial| trial.server.driver() != "uring");
            }
        }
        let mut progress = PlanProgress::new(self.steps_of_groups(&groups));
        let mut done: Vec<(usize, BenchTrial, Point)> = Vec::new();
        let mut points = Vec::new();
        for group in groups {
            for point in self.run_group(&group, &mut done, &mut progress)? {
                points.push(point);
            }
        }
        progress.finish();
        Ok(points)
    }

    fn run_group(
        &mut self,
        group: &TrialGroup,
        done: &mut Vec<(usize, BenchTrial, Point)>,
        progress: &mut PlanProgress,
    ) -> Result<Vec<Point>, LayoutError> {
        let cores = group.server_cores;
        let earlier = |trial: &BenchTrial, done: &[(usize, BenchTrial, Point)]| {
            let same = |it: &&(usize, BenchTrial, Point)| it.0 == cores && it.1.is_same_run(trial);
            done.iter().find(same).map(|it| it.2.clone())
        };
        let new: Vec<BenchTrial> =
            group.trials.iter().filter(|it| earlier(it, done).is_none()).cloned().collect();
        for (trial, samples) in self.compare(&new, cores, progress)? {
            let point = measure::summarise(&trial, &samples, self.layout(cores)?);
            done.push((cores, trial, point));
        }
        let points = group.trials.iter().filter_map(|trial| {
            let mut point = earlier(trial, done)?;
            trial.experiment.clone_into(&mut point.experiment);
            point.variant = trial.server.variant();
            Some(point)
        });
        Ok(points.collect())
    }

    /// Number of runs that `compare` makes of these trials: none of a server that is missing.
    pub(crate) fn steps(&self, trials: &[BenchTrial]) -> usize {
        let present = trials.iter().filter(|trial| trial.server.missing().is_none());
        present.count() * self.effort.runs
    }

    /// Number of runs of all groups; a trial that belongs to several groups runs once.
    fn steps_of_groups(&self, groups: &[TrialGroup]) -> usize {
        let mut distinct: Vec<(usize, BenchTrial)> = Vec::new();
        for group in groups {
            for trial in &group.trials {
                let is_known = |it: &(usize, BenchTrial)| {
                    it.0 == group.server_cores && it.1.is_same_run(trial)
                };
                if !distinct.iter().any(is_known) {
                    distinct.push((group.server_cores, trial.clone()));
                }
            }
        }
        let trials: Vec<BenchTrial> = distinct.into_iter().map(|(_, trial)| trial).collect();
        self.steps(&trials)
    }

    /// The samples of each trial that worked, measured in turn and back.
    pub(crate) fn compare(
        &mut self,
        trials: &[BenchTrial],
        server_cores: usize,
        progress: &mut PlanProgress,
    ) -> Result<Vec<(BenchTrial, Vec<Sample>)>, LayoutError> {
        let mut results: Vec<(BenchTrial, Vec<Sample>)> = Vec::new();
        for trial in trials {
            match trial.server.missing() {
                Some(why) => {
                    self.note(format!("{} was not measured: {why}", trial.server.label()));
                }
                None => results.push((trial.clone(), Vec::new())),
            }
        }
        for run in 1..=self.effort.runs {
            for index in round(run, results.len()) {
                let trial = results[index].0.clone();
                progress.step(&describe(&trial, run, self.effort.runs));
                match self.sample(&trial, server_cores)? {
                    Ok(sample) => results[index].1.push(sample),
                    Err(error) => {
                        self.failed = true;
                        let (label, experiment) = (trial.server.label(), trial.experiment);
                        self.note(format!(
                            "{experiment}: {label} failed and was left out: {error}"
                        ));
                        progress.pass(self.effort.runs - run);
                    }
                }
            }
            results.retain(|(_, samples)| samples.len() == run);
        }
        Ok(results)
    }

    /// Compares servers of one core each, and shows how far that is: their samples and points.
    pub(crate) fn compare_servers(
        &mut self,
        trials: &[BenchTrial],
    ) -> Result<ComparedServers, LayoutError> {
        let mut progress = PlanProgress::new(self.steps(trials));
        let results = self.compare(trials, 1, &mut progress)?;
        progress.finish();
        let layout = self.layout(1)?;
        let point = |(trial, samples): &(BenchTrial, Vec<Sample>)| {
            measure::summarise(trial, samples, layout)
        };
        let points = results.iter().map(point).collect();
        Ok((results, points))
    }

    /// Measures once for each run, and shows how far that is. Ends at a run that fails: returns
    /// what came of those before it, and why it failed.
    pub(crate) fn repeat<T, E: fmt::Display>(
        &mut self,
        what: &str,
        mut measure: impl FnMut(&mut Self) -> Result<Result<T, E>, LayoutError>,
    ) -> Result<(Vec<T>, Option<String>), LayoutError> {
        let runs = self.effort.runs;
        let mut progress = PlanProgress::new(runs);
        let (mut values, mut why) = (Vec::with_capacity(runs), None);
        for run in 1..=runs {
            progress.step(&format!("{what} · run {run} of {runs}"));
            match measure(self)? {
                Ok(value) => values.push(value),
                Err(error) => {
                    self.failed = true;
                    self.note(format!("{what}: run {run} failed: {error}"));
                    why = Some(error.to_string());
                    break;
                }
            }
        }
        progress.finish();
        Ok((values, why))
    }

    /// One run of a trial.
    pub(crate) fn sample(
        &mut self,
        trial: &BenchTrial,
        server_cores: usize,
    ) -> Result<Result<Sample, MeasureError>, LayoutError> {
        let window = self.effort.window;
        self.layout(server_cores)?;
        let (Some(layout), scratch) = (&self.layout, &self.scratch) else {
            return Err(LayoutError::System(io::ErrorKind::NotFound.into()));
        };
        Ok(measure::sample(trial, window, layout, scratch.path()))
    }
}

/// In which order the trials of a round are measured: every other time backwards.
pub(crate) fn round(run: usize, trials: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..trials).collect();
    if run.is_multiple_of(2) {
        order.reverse();
    }
    order
}

fn describe(trial: &BenchTrial, run: usize, runs: usize) -> String {
    let load = &trial.load;
    let length = match load.transactions_per_connection {
        Some(transactions) => format!("{transactions} per connection"),
        None => "persistent".to_owned(),
    };
    format!(
        "{} · {} · {length} · {} B · {} connections · run {run} of {runs}",
        trial.experiment,
        trial.server.label(),
        load.message_bytes(),
        load.connections,
    )
}

#[cfg(test)]
mod tests {
    use super::{RpcPrograms, ServerSelection, TrialGroup, round};
    use crate::{
        experiments::Experiment,
        server::TestedServer,
        stack_link::{
            StackLink::{self, Memif, Tap},
            StackPlacement,
        },
    };
    use megapipe_apps::rpc::Api;

    fn columns(kernel: bool, links: &[StackLink]) -> ServerSelection {
        let programs = RpcPrograms::default();
        ServerSelection { kernel, links: links.to_vec(), programs, sharing: 0 }
    }

    fn groups(name: &str) -> Vec<TrialGroup> {
        Experiment::named(name).unwrap().groups(true, 2)
    }

    #[test]
    fn every_other_round_goes_backwards() {
        let rounds: Vec<usize> = (1..=3).flat_map(|run| round(run, 3)).collect();
        assert_eq!(rounds, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
    }

    #[test]
    fn our_own_stack_stands_beside_the_kernel_or_alone() {
        let both = columns(true, &[Memif, Tap]);
        for group in groups("fig2.1a") {
            let kernels = group.trials.len();
            let group = both.of(group);
            let servers: Vec<TestedServer> =
                group.trials[kernels..].iter().map(|it| it.server).collect();
            assert_eq!(servers, [TestedServer::Local(Memif), TestedServer::Local(Tap)]);
        }
        let alone = columns(false, &[Memif]);
        for group in groups("accept") {
            assert_eq!(alone.of(group).trials.len(), 1);
        }
    }

    #[test]
    fn programs_of_debians_are_measured_unmodified_on_our_own_stack() {
        let backends = |name: &str, selection: &ServerSelection, cores: usize| {
            let group = groups(name).into_iter().find(|it| it.server_cores == cores).unwrap();
            let of = |it: &crate::trial::BenchTrial| match it.server {
                TestedServer::Debian(program, _) => Some((program.name(), it.server.backend())),
                _ => None,
            };
            selection.of(group).trials.iter().filter_map(of).collect::<Vec<_>>()
        };
        let both = columns(true, &[Memif]);
        let memcached = ["kernel", "local", "service"].map(|backend| ("memcached", backend));
        assert_eq!(backends("fig5.3", &both, 1), memcached);
        assert_eq!(backends("fig5.3", &columns(true, &[Tap]), 1), memcached[..1]);
        assert_eq!(backends("fig5.4", &columns(false, &[Memif]), 1), memcached[1..]);
        assert_eq!(backends("fig5.5", &both, 2), [("nginx", "kernel"), ("nginx", "service")]);
        assert_eq!(backends("mt-fig9", &both, 1).len(), 6);
    }

    #[test]
    fn both_programs_take_part_in_every_placement_where_there_are_two() {
        let programs = RpcPrograms {
            apis: vec![Api::Channel, Api::Sockets],
            placements: vec![None, Some(StackPlacement::Thread)],
        };
        let all = ServerSelection { programs, ..columns(true, &[Memif]) };
        for group in groups("fig2.1a") {
            let channels = group.trials.iter().filter(|it| it.server.on_sockets().is_some());
            let (channels, kernels) = (channels.count(), group.trials.len());
            let group = all.of(group);
            let servers: Vec<TestedServer> =
                group.trials[kernels + channels..].iter().map(|it| it.server).collect();
            let expected = [
                TestedServer::Local(Memif),
                TestedServer::Placed(Memif, StackPlacement::Thread),
                TestedServer::Sockets(Memif, None),
                TestedServer::Sockets(Memif, Some(StackPlacement::Thread)),
            ];
            assert_eq!(servers, expected);
            assert!(channels > 0);
        }
        let sockets = RpcPrograms { apis: vec![Api::Sockets], ..RpcPrograms::default() };
        let alone = ServerSelection { programs: sockets, ..columns(true, &[]) };
        for group in groups("fig2.1a") {
            let group = alone.of(group);
            let names: Vec<&str> = group.trials.iter().map(|it| it.server.name()).collect();
            assert!(names.contains(&"sockets") && !names.contains(&"channel"), "{names:?}");
        }
    }

    #[test]
    fn programs_that_share_a_daemon_are_rpc_servers_on_one_core() {
        let shared = ServerSelection { sharing: 2, ..columns(true, &[Memif]) };
        let last = |name: &str| {
            let groups = groups(name).into_iter().map(|group| shared.of(group));
            groups.map(|group| (group.server_cores, group.trials.last().unwrap().server)).collect()
        };
        let of_rpc: Vec<(usize, TestedServer)> = last("demo-rpc");
        assert!(of_rpc.iter().all(|it| *it == (1, TestedServer::Shared(Memif, 2))), "{of_rpc:?}");
        for group in groups("demo-kv").into_iter().map(|group| shared.of(group)) {
            let servers: Vec<TestedServer> = group.trials.iter().map(|it| it.server).collect();
            let is_shared = |server: &TestedServer| matches!(server, TestedServer::Shared(..));
            assert!(!servers.iter().any(is_shared), "{servers:?}");
            assert!(servers.contains(&TestedServer::Local(Memif)), "{servers:?}");
        }
    }

    #[test]
    fn it_takes_no_part_in_what_is_the_kernels() {
        let both = columns(true, &[Memif]);
        for group in groups("table5.1") {
            let kernels = group.trials.len();
            assert_eq!(both.of(group).trials.len(), kernels);
        }
    }

    #[test]
    fn on_many_cores_it_takes_part_where_each_shard_has_a_queue() {
        let both = columns(true, &[Memif, Tap]);
        for group in groups("mt-fig7a").into_iter().filter(|it| it.server_cores == 2) {
            let kernels = group.trials.len();
            let group = both.of(group);
            let servers: Vec<TestedServer> =
                group.trials[kernels..].iter().map(|it| it.server).collect();
            assert_eq!(servers, [TestedServer::Local(Memif)]);
        }
    }
}
