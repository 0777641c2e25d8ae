//! CPU utilization by `/proc/stat`, with interrupts and all other work on the processors.
//!
//! A thread's own processor time leaves out what the kernel did for it in interrupts, and on
//! loopback that is half of the network. So for pinned threads the processor is looked at as well.
//! The text is parsed by a pure function; the kernel counts in ticks of 10 ms, mostly.

/// Time of one processor since boot, in ticks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreTime {
    busy: u64,
    all: u64,
}

impl CoreTime {
    /// The share of the time since `earlier` in which the processor was busy.
    pub(crate) fn busy_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        if all == 0 {
            return 0.0;
        }
        self.busy.saturating_sub(earlier.busy) as f64 / all as f64
    }
}

/// The times of these processors now; zero for one that `/proc/stat` does not list.
pub(crate) fn read(cpus: &[usize]) -> Vec<CoreTime> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    cpus.iter().map(|&cpu| parse(&text, cpu).unwrap_or_default()).collect()
}

/// One processor's line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal;
/// guest times are part of user and nice.
fn parse(text: &str, cpu: usize) -> Option<CoreTime> {
    let name = format!("cpu{cpu}");
    let mut words = text
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut words| (words.next() == Some(name.as_str())).then_some(words))?;
    let mut times = [0u64; 8];
    for time in &mut times {
        *time = words.next()?.parse().ok()?;
    }
    let all = times.iter().sum();
    let [_, _, _, idle, iowait, ..] = times;
    Some(CoreTime { busy: all - idle - iowait, all })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  30 0 40 900 10 5 15 0 0 0\n\
                        cpu0 10 1 20 450 5 2 12 3 0 0\n\
                        cpu1 20 0 20 450 5 3 3 0 0 0\n\
                        intr 12345\n";

    #[test]
    fn idle_and_waiting_are_not_busy() {
        assert_eq!(parse(STAT, 0), Some(CoreTime { busy: 48, all: 503 }));
        assert_eq!(parse(STAT, 2), None);
        assert_eq!(parse("cpu0 1 2", 0), None);
    }

    #[test]
    fn shares_are_of_the_time_between() {
        let (before, after) = (CoreTime { busy: 10, all: 100 }, CoreTime { busy: 70, all: 180 });
        assert!((after.busy_since(before) - 0.75).abs() < 1e-9);
        assert_eq!(before.busy_since(before), 0.0);
    }

    #[test]
    fn this_machine_has_a_processor() {
        let online: Vec<CoreTime> = read(&[0]);
        assert!(online[0].all > 0, "{online:?}");
    }
}
