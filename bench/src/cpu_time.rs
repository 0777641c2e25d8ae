//! CPU time and interrupts of the server's cores: differences of `/proc/stat` and
//! `/proc/interrupts`.
//!
//! Busy is what is neither idle nor steal. Idle is idle + iowait, because a thread that waits in
//! `io_uring_enter` is booked as waiting for I/O; steal is what the hypervisor gave to others. The
//! kernel measures both by the clock (NO_HZ: get_cpu_idle_time_us). What it says about user,
//! system, irq and softirq it only samples, at each tick of its timer (250 times a second as most
//! kernels are built: 1 to 2 % off in three seconds): these say how the busy time divides. Guest
//! time is inside user time already. One tick of the file is 10 ms (`USER_HZ` = 100, part of the
//! ABI), so windows shorter than two seconds are too coarse.
//!
//! A core calls another by an interrupt, to hand it a packet (RPS) or to wake a thread. Under a
//! hypervisor each may cost more than the transaction that it is for, so they are counted.
//!
//! What one process ran is read from the kernel's scheduler, in nanoseconds and whatever else its
//! cores did: [`run_time`].
//!
//! Pure but for [`CoreTimes::read`], [`run_time`] and what stands on it.

use megapipe_apps::serve::CpuList;
use serde::{Deserialize, Serialize};
use std::{fs, io, ops::Sub, time::Duration};

/// Microseconds in one tick of `/proc/stat`.
pub(crate) const TICK_US: f64 = 10_000.0;

/// Ticks that some cores have spent, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CoreTimes {
    /// How many cores.
    #[serde(default)]
    pub(crate) cores: u64,
    /// `user`, `system` and `softirq` together, as sampled.
    pub(crate) busy_ticks: u64,
    /// Programs, niced ones too.
    pub(crate) user_ticks: u64,
    /// The kernel on behalf of programs.
    pub(crate) system_ticks: u64,
    /// Interrupts and softirqs: where packets are received.
    pub(crate) softirq_ticks: u64,
    pub(crate) idle_ticks: u64,
    pub(crate) steal_ticks: u64,
    /// Interrupts from other cores.
    pub(crate) calls: u64,
}

/// How `/proc/interrupts` names interrupts from other cores on x86: rescheduling, function calls.
const CALL_NAMES: [&str; 2] = ["RES:", "CAL:"];

impl CoreTimes {
    /// The times of `cpus` now.
    pub(crate) fn read(cpus: &CpuList) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let times = Self::parse(&text, cpus).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat does not list the cores")
        })?;
        let text = fs::read_to_string("/proc/interrupts").unwrap_or_default();
        Ok(Self { calls: count_calls(&text, cpus), ..times })
    }

    /// The times of `cpus` in the text of `/proc/stat`; none if one of them is missing.
    fn parse(text: &str, cpus: &CpuList) -> Option<Self> {
        let mut sum = Self::default();
        for cpu in cpus.as_slice() {
            let name = format!("cpu{cpu}");
            let line = text.lines().find(|line| line.split(' ').next() == Some(&name))?;
            let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<u64>);
            let mut next = || fields.next()?.ok();
            let (user, nice, system, idle) = (next()?, next()?, next()?, next()?);
            let (iowait, irq, softirq) = (next()?, next()?, next()?);
            sum.cores += 1;
            sum.busy_ticks += user + nice + system + irq + softirq;
            sum.user_ticks += user + nice;
            sum.system_ticks += system;
            sum.softirq_ticks += irq + softirq;
            sum.idle_ticks += idle + iowait;
            sum.steal_ticks += next()?;
        }
        Some(sum)
    }

    /// The share of the time that the cores had nothing to do, 0 to 1.
    pub(crate) fn idle_share(self) -> f64 {
        let all = self.busy_ticks + self.idle_ticks;
        if all == 0 { 0.0 } else { self.idle_ticks as f64 / all as f64 }
    }

    /// Microseconds of work of all cores together, in a window of this many seconds.
    pub(crate) fn busy_us(self, seconds: f64) -> f64 {
        let rest_us = (self.idle_ticks + self.steal_ticks) as f64 * TICK_US;
        (self.cores as f64 * seconds * 1e6 - rest_us).max(0.0)
    }
}

/// Interrupts from other cores that `cpus` took, by the text of `/proc/interrupts`; 0 where the
/// machine names them otherwise.
fn count_calls(text: &str, cpus: &CpuList) -> u64 {
    let mut lines = text.lines();
    let heading: Vec<&str> = lines.next().unwrap_or_default().split_ascii_whitespace().collect();
    let columns: Vec<usize> = cpus
        .as_slice()
        .iter()
        .filter_map(|cpu| heading.iter().position(|name| *name == format!("CPU{cpu}")))
        .collect();
    let mut calls = 0;
    for line in lines {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if words.first().is_some_and(|name| CALL_NAMES.contains(name)) {
            let count = |column: &usize| words.get(column + 1)?.parse::<u64>().ok();
            calls += columns.iter().filter_map(count).sum::<u64>();
        }
    }
    calls
}

impl Sub for CoreTimes {
    type Output = Self;

    /// From an earlier reading to this one. Idle and iowait may step back by a tick now and then
    /// (proc(5)), which counts as none.
    fn sub(self, earlier: Self) -> Self {
        Self {
            cores: self.cores,
            busy_ticks: self.busy_ticks.saturating_sub(earlier.busy_ticks),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
            softirq_ticks: self.softirq_ticks.saturating_sub(earlier.softirq_ticks),
            calls: self.calls.saturating_sub(earlier.calls),
            idle_ticks: self.idle_ticks.saturating_sub(earlier.idle_ticks),
            steal_ticks: self.steal_ticks.saturating_sub(earlier.steal_ticks),
        }
    }
}

/// How long all threads of a process have run.
pub(crate) fn run_time(pid: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread that has just ended has nothing to add.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += run_time_of(&text).ok_or(io::ErrorKind::InvalidData)?;
    }
    Ok(sum)
}

/// How long all threads of a process and of its descendants have run, those that run still.
pub(crate) fn run_time_with_children(pid: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for (depth, pid) in process_and_descendants(pid)?.into_iter().enumerate() {
        match run_time(pid) {
            Ok(time) => sum += time,
            // A child that has ended in between.
            Err(_) if depth > 0 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// A process, first, and its descendants, by the parents that the kernel names: its lists of
/// children are an option (CONFIG_PROC_CHILDREN).
pub(crate) fn process_and_descendants(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that has just ended is no child.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        parents.extend(parent_of(&stat).map(|parent| (child, parent)));
    }
    Ok(descendants(pid, &parents))
}

/// Pure: a process and all below it, by pairs of a process and its parent.
fn descendants(pid: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![pid];
    let mut index = 0;
    while let Some(&parent) = found.get(index) {
        for &(child, _) in parents.iter().filter(|(_, its)| *its == parent) {
            if !found.contains(&child) {
                found.push(child);
            }
        }
        index += 1;
    }
    found
}

/// Pure: the parent in a process's `stat`, after its name, which may have spaces and parentheses,
/// and its state.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The first number of a task's `schedstat`: time on a processor, in nanoseconds.
fn run_time_of(schedstat: &str) -> Option<Duration> {
    schedstat.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::{
        CoreTimes, CpuList, count_calls, descendants, parent_of, process_and_descendants, run_time,
        run_time_of, run_time_with_children,
    };
    use std::time::{Duration, Instant};

    #[test]
    fn the_first_number_is_the_time_on_a_processor() {
        assert_eq!(run_time_of("1500 20 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(run_time_of(""), None);
    }

    #[test]
    fn working_thread_has_cpu_time() {
        let pid = std::process::id();
        let before = run_time(pid).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(run_time(pid).unwrap() > before);
    }

    #[test]
    fn descendants_follow_their_parents() {
        let parents = [(2, 1), (3, 2), (9, 8), (4, 1), (1, 4)];
        assert_eq!(descendants(1, &parents), [1, 2, 4, 3]);
        assert_eq!(descendants(7, &parents), [7]);
        assert_eq!(parent_of("12 (a) b (c) S 34 12 12 0"), Some(34));
        assert_eq!(parent_of("12"), None);
    }

    #[test]
    fn children_are_found_and_their_time_counts() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = std::process::id();
        let found = process_and_descendants(pid).unwrap();
        let time = run_time_with_children(pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found[0], pid);
        assert!(found.contains(&child.id()), "{found:?}");
        assert!(time >= run_time_with_children(child.id()).unwrap_or_default());
        assert!(run_time_with_children(child.id()).is_err(), "it has ended");
    }

    const STAT: &str = "cpu  30 0 30 300 3 3 6 9 0 0\n\
        cpu0 10 1 20 100 2 3 4 5 0 0\ncpu1 20 2 10 200 1 0 2 4 7 0\ncpu10 1 1 1 1 1 1 1 1 0 0\n\
        intr 1 2 3\n";

    #[test]
    fn busy_idle_and_steal_are_separate() {
        let one = CoreTimes::parse(STAT, &CpuList::from(vec![0])).unwrap();
        let ticks = |it: CoreTimes| [it.busy_ticks, it.idle_ticks, it.steal_ticks];
        assert_eq!(ticks(one), [38, 102, 5]);
        assert_eq!([one.user_ticks, one.system_ticks, one.softirq_ticks], [11, 20, 7]);
        let both = CoreTimes::parse(STAT, &CpuList::from(vec![0, 1])).unwrap();
        assert_eq!(ticks(both), [72, 303, 9]);
        assert_eq!([both.user_ticks, both.system_ticks, both.softirq_ticks], [33, 30, 9]);
        assert_eq!(CoreTimes::parse(STAT, &CpuList::from(vec![2])), None);
        assert_eq!(CoreTimes::parse("cpu0 1 2\n", &CpuList::from(vec![0])), None);
    }

    #[test]
    fn function_call_interrupts_are_counted_separately() {
        let text = "           CPU0       CPU2\n 24:   1   5   IO-APIC  5-edge  ACPI\n\
            LOC:  100  200  Local timer interrupts\nRES:  30  7  Rescheduling interrupts\n\
            CAL:  400  2  Function call interrupts\n";
        assert_eq!(count_calls(text, &CpuList::from(vec![0])), 430);
        assert_eq!(count_calls(text, &CpuList::from(vec![0, 2])), 439);
        assert_eq!(count_calls(text, &CpuList::from(vec![1])), 0);
        assert_eq!(count_calls("", &CpuList::from(vec![0])), 0);
    }

    #[test]
    fn differences_never_underflow() {
        let zero = CoreTimes::default();
        let early = CoreTimes { cores: 1, busy_ticks: 10, idle_ticks: 50, calls: 9, ..zero };
        let late = CoreTimes { busy_ticks: 40, idle_ticks: 49, calls: 12, ..early };
        let spent = late - early;
        assert_eq!(spent, CoreTimes { cores: 1, busy_ticks: 30, calls: 3, ..zero });
        assert!(spent.idle_share().abs() < 1e-9);
        assert!(CoreTimes::default().idle_share().abs() < 1e-9);
    }

    #[test]
    fn busy_is_what_is_neither_idle_nor_stolen() {
        let spent = CoreTimes {
            cores: 2,
            busy_ticks: 333,
            idle_ticks: 150,
            steal_ticks: 50,
            ..CoreTimes::default()
        };
        assert!((spent.busy_us(3.0) - 4_000_000.0).abs() < 1e-6, "whatever the samples say");
        assert!(spent.busy_us(0.5).abs() < 1e-9);
        assert_eq!(CoreTimes::parse(STAT, &CpuList::from(vec![0, 1])).unwrap().cores, 2);
    }

    #[test]
    fn this_machine_has_a_core_0() {
        assert!(CoreTimes::read(&CpuList::from(vec![0])).is_ok());
    }
}
