//! Cost of waking a thread on the same core and on another.
//!
//! The part of a server's CPU time that no server can avoid: a packet that the other side's core
//! hands over (RPS), and a thread that is woken there, are an interrupt from core to core. On bare
//! metal that is about a microsecond. Under a hypervisor it may be many times the rest of a
//! transaction, and then servers that differ in everything else cost nearly the same.

use crate::{limits, measure::median, process};
use megapipe_apps::{serve::CpuList, threads};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    io,
    os::fd::OwnedFd,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// There and back between two threads on these cores, in microseconds; one number for each of
/// `runs`. Takes some milliseconds for each.
pub(crate) fn round_trips_us(here: &CpuList, there: &CpuList, runs: usize) -> io::Result<Vec<f64>> {
    (0..runs).map(|_| round_trip_us(here, there)).collect()
}

fn round_trip_us(here: &CpuList, there: &CpuList) -> io::Result<f64> {
    let make = || eventfd(0, EventfdFlags::CLOEXEC);
    let (ping, pong) = (make()?, make()?);
    thread::scope(|scope| {
        // The caller waits for the echo's start, and ends where the echo cannot be started.
        let (started, echo_started) = mpsc::channel::<()>();
        let ends = (&ping, &pong);
        let round_trips = move || -> io::Result<Vec<Duration>> {
            let (ping, pong) = ends;
            echo_started.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            process::pin(here)?;
            let round = || -> io::Result<Duration> {
                let begin = Instant::now();
                give(ping)?;
                take(pong)?;
                Ok(begin.elapsed())
            };
            // The first one waits until the other thread has come up.
            round()?;
            (0..limits::WAKE_ROUNDS).map(|_| round()).collect()
        };
        let call = threads::spawn_scoped(scope, "call", round_trips)?;
        let echo = threads::spawn_scoped(scope, "echo", || -> io::Result<()> {
            process::pin(there)?;
            (0..=limits::WAKE_ROUNDS).try_for_each(|_| {
                take(&ping)?;
                give(&pong)
            })
        })?;
        let _ = started.send(());
        let times = call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(median(times.iter().map(|time| time.as_secs_f64() * 1e6)))
    })
}

fn give(event: &OwnedFd) -> io::Result<()> {
    rustix::io::write(event, &1u64.to_ne_bytes())?;
    Ok(())
}

fn take(event: &OwnedFd) -> io::Result<()> {
    rustix::io::read(event, &mut [0; 8])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::round_trips_us;
    use crate::layout;

    #[test]
    fn threads_wake_each_other_in_some_time() {
        let cpus = layout::online_cpus().unwrap();
        let core = |index: usize| vec![cpus[index]].into();
        let last = cpus.len() - 1;
        let trips = round_trips_us(&core(0), &core(last), 2).unwrap();
        assert!(trips.len() == 2 && trips.iter().all(|&us| us > 0.1 && us < 1e6), "{trips:?}");
    }
}
