//! What the server's cores did: `/proc/stat`, read twice.
//!
//! Busy is user + nice + system + irq + softirq; idle is idle + iowait, because a thread that
//! waits in `io_uring_enter` is booked as waiting for I/O; steal, what the hypervisor gave to
//! others, is neither. Guest time is inside user time already. One tick is 10 ms
//! (`USER_HZ` = 100, part of the ABI), so windows shorter than two seconds are too coarse.
//!
//! Pure but for [`CoreTimes::read`].

use megapipe_apps::serve::CpuList;
use serde::{Deserialize, Serialize};
use std::{fs, io, ops::Sub};

/// Microseconds in one tick of `/proc/stat`.
pub(crate) const TICK_US: f64 = 10_000.0;

/// Ticks that some cores have spent, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CoreTimes {
    pub(crate) busy_ticks: u64,
    pub(crate) idle_ticks: u64,
    pub(crate) steal_ticks: u64,
}

impl CoreTimes {
    /// The times of `cpus` now.
    pub(crate) fn read(cpus: &CpuList) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        Self::parse(&text, cpus).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat does not list the cores")
        })
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
            sum.busy_ticks += user + nice + system + irq + softirq;
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

    /// Microseconds of work.
    pub(crate) fn busy_us(self) -> f64 {
        self.busy_ticks as f64 * TICK_US
    }
}

impl Sub for CoreTimes {
    type Output = Self;

    /// From an earlier reading to this one. Idle and iowait may step back by a tick now and then
    /// (proc(5)), which counts as none.
    fn sub(self, earlier: Self) -> Self {
        Self {
            busy_ticks: self.busy_ticks.saturating_sub(earlier.busy_ticks),
            idle_ticks: self.idle_ticks.saturating_sub(earlier.idle_ticks),
            steal_ticks: self.steal_ticks.saturating_sub(earlier.steal_ticks),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CoreTimes, CpuList};

    const STAT: &str = "cpu  30 0 30 300 3 3 6 9 0 0\n\
        cpu0 10 1 20 100 2 3 4 5 0 0\ncpu1 20 2 10 200 1 0 2 4 7 0\ncpu10 1 1 1 1 1 1 1 1 0 0\n\
        intr 1 2 3\n";

    #[test]
    fn busy_idle_and_steal_are_told_apart() {
        let one = CoreTimes::parse(STAT, &CpuList::from(vec![0])).unwrap();
        assert_eq!(one, CoreTimes { busy_ticks: 38, idle_ticks: 102, steal_ticks: 5 });
        let both = CoreTimes::parse(STAT, &CpuList::from(vec![0, 1])).unwrap();
        assert_eq!(both, CoreTimes { busy_ticks: 72, idle_ticks: 303, steal_ticks: 9 });
        assert_eq!(CoreTimes::parse(STAT, &CpuList::from(vec![2])), None);
        assert_eq!(CoreTimes::parse("cpu0 1 2\n", &CpuList::from(vec![0])), None);
    }

    #[test]
    fn differences_never_underflow() {
        let early = CoreTimes { busy_ticks: 10, idle_ticks: 50, steal_ticks: 0 };
        let late = CoreTimes { busy_ticks: 40, idle_ticks: 49, steal_ticks: 0 };
        let spent = late - early;
        assert_eq!(spent, CoreTimes { busy_ticks: 30, idle_ticks: 0, steal_ticks: 0 });
        assert!((spent.busy_us() - 300_000.0).abs() < 1e-6);
        assert!(spent.idle_share().abs() < 1e-9);
        assert!(CoreTimes::default().idle_share().abs() < 1e-9);
    }

    #[test]
    fn this_machine_has_a_core_0() {
        assert!(CoreTimes::read(&CpuList::from(vec![0])).is_ok());
    }
}
