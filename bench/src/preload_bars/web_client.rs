//! wrk and ab as the programs that are measured: preloaded, against nginx that is preloaded as
//! well. And wrk as the load of a server.

use super::{
    client::{CoreWatch, client, printed_by},
    programs::WebClient,
    stage::{PreloadBarError, ProgramSample, ProgramStack, ProgramStage, ServingProgram},
    unfit,
};
use crate::{cpu_time::run_time, limits};
use std::{io, net::SocketAddr, time::Duration};

/// Measures a client's CPU time of a request, and how idle its core was. Blocks for about the
/// window.
pub(super) fn sample(
    stage: ProgramStage<'_>,
    serving: &mut ServingProgram,
    (program, stack): (WebClient, ProgramStack),
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    serving.retried(|serving| run(stage, serving.address, (program, stack), window))
}

fn run(
    stage: ProgramStage<'_>,
    address: SocketAddr,
    (program, stack): (WebClient, ProgramStack),
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    let words = program.words(address, limits::LOAD_WARM_UP + window);
    let command = client(stage, stack, program.name(), words);
    let mut watch = CoreWatch::new(&stage.layout.load.cpus);
    let is_good = |text: &str| rate_in(text).is_some();
    let text = printed_by(stage, command, is_good, |pid| watch.look(|| run_time(pid)))?;
    let (requests_per_s, [first, last]) = rate_in(&text)
        .zip(watch.window())
        .ok_or_else(|| unfit(format!("{} ended before it was observed", program.name())))?;
    let (core, seconds) = (last.core - first.core, (last.at - first.at).as_secs_f64());
    let cpu_us = match stack.link() {
        Some(_) => last.ran.saturating_sub(first.ran).as_secs_f64() * 1e6,
        None => core.busy_us(seconds),
    };
    let cpu_us = cpu_us / (requests_per_s * seconds);
    Ok(ProgramSample { requests_per_s, cpu_us, idle_share: core.idle_share() })
}

/// Measures a server under wrk, preloaded as the server is. Blocks for about the window.
pub(super) fn of_server(
    stage: ProgramStage<'_>,
    serving: &mut ServingProgram,
    stack: ProgramStack,
    window: Duration,
) -> Result<ProgramSample, PreloadBarError> {
    let pids = serving.pids();
    let ran = || pids.iter().map(|pid| run_time(*pid)).sum::<io::Result<Duration>>();
    serving.retried(|serving| {
        let (address, time) = (serving.address, limits::LOAD_WARM_UP + window);
        let words = WebClient::Wrk.words(address, time);
        let command = client(stage, stack, WebClient::Wrk.name(), words);
        let mut watch = CoreWatch::new(&stage.layout.server.cpus);
        let is_good = |text: &str| rate_in(text).is_some();
        let text = printed_by(stage, command, is_good, |_| watch.look(ran))?;
        let (requests_per_s, [first, last]) = rate_in(&text)
            .zip(watch.window())
            .ok_or_else(|| unfit("wrk ended before its server could be observed"))?;
        let (core, seconds) = (last.core - first.core, (last.at - first.at).as_secs_f64());
        let cpu_us = last.ran.saturating_sub(first.ran).as_secs_f64() * 1e6;
        let cpu_us = cpu_us / (requests_per_s * seconds);
        Ok(ProgramSample { requests_per_s, cpu_us, idle_share: core.idle_share() })
    })
}

impl WebClient {
    /// As Debian installs it.
    const fn name(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::Ab(_) => "ab",
        }
    }

    /// Its arguments. Both take whole seconds; ab also ends after a number of requests, for each of
    /// which it has memory.
    fn words(self, address: SocketAddr, time: Duration) -> Vec<String> {
        let seconds = time.as_secs_f64().ceil();
        let connections = limits::PRELOAD_CONNECTIONS;
        let url = format!("http://{address}/set/000000.bin");
        match self {
            Self::Wrk => {
                vec!["-t1".to_owned(), format!("-c{connections}"), format!("-d{seconds}s"), url]
            }
            Self::Ab(_) => {
                let requests = limits::PRELOAD_AB_REQUESTS;
                let words = ["-q".to_owned(), format!("-t{seconds}"), format!("-n{requests}")];
                words.into_iter().chain([format!("-c{connections}"), url]).collect()
            }
        }
    }
}

/// Pure: the requests per second that wrk or ab prints; none if it had none.
fn rate_in(text: &str) -> Option<f64> {
    let of = |line: &str, name| line.trim().strip_prefix(name).map(str::to_owned);
    let found = |name| text.lines().find_map(|line| of(line, name));
    let rate = found("Requests/sec:").or_else(|| found("Requests per second:"))?;
    rate.split_whitespace().next()?.parse::<f64>().ok().filter(|rate| *rate > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_of_wrk_is_read() {
        let text =
            "  9 requests in 2.00s, 5.40MB read\nRequests/sec:  50123.45\nTransfer/sec: 9MB\n";
        assert_eq!(rate_in(text), Some(50_123.45));
        assert_eq!(rate_in("Requests/sec:      0.00\n"), None);
        let text = "Complete requests: 9\nRequests per second:    41.50 [#/sec] (mean)\n";
        assert_eq!(rate_in(text), Some(41.5));
        assert_eq!(rate_in("unable to connect to 192.0.2.1:7100 Connection refused\n"), None);
    }

    #[test]
    fn clients_have_64_connections_and_whole_seconds() {
        let address = "192.0.2.1:7100".parse().unwrap();
        let words = |it: WebClient| it.words(address, Duration::from_millis(2500)).join(" ");
        assert_eq!(words(WebClient::Wrk), "-t1 -c64 -d3s http://192.0.2.1:7100/set/000000.bin");
        let ab = "-q -t3 -n4000000 -c64 http://192.0.2.1:7100/set/000000.bin";
        assert_eq!(words(WebClient::Ab(64)), ab);
    }
}
