//! How long a claim takes: from the offer of a connection to the claim that the daemon confirms.
//!
//! The daemon times each claim itself, from the poll that offers the connection to the poll that
//! confirms the claim, and shows the median. Two acceptors share the port, so each connection is
//! offered and claimed. Connections come one at a time: a claim waits for no other work.
//!
//! An acceptor that is awake polls on another core than the daemon: here, in the thread of the
//! client. One that sleeps is a program on the daemon's core, which the daemon wakes.

use super::{
    loop_client::{AfterAnswer, LoopClient, LoopEvent, LoopOutcome},
    scene::{SceneError, SceneStage, ServiceScene},
};
use crate::{answer_server::AnswerServer, limits, server::control_socket};
use megapipe::{Address, Backend, Config, ServiceAddress};
use megapipe_service::observe::{ServiceHandOver, ServiceListener};
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const ACCEPTORS: usize = 2;
/// Of so many connections, at most one is accepted without a timed claim: those that came while
/// only one acceptor was there, and late claims.
const UNTIMED_SHARE: u64 = 10;

/// The median of so many connections with acceptors that poll, in microseconds.
pub(super) fn awake_us(stage: SceneStage<'_>, connections: u64) -> Result<f64, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(limits::BURST)?;
    scene.await_daemon()?;
    let address = Address::from(scene.address(PORT));
    let open = |_| {
        let backend = Backend::Service(ServiceAddress::new(control_socket(stage.scratch)));
        AnswerServer::open(Config::default().backend(backend), &address)
    };
    let mut acceptors = (0..ACCEPTORS).map(open).collect::<Result<Vec<_>, _>>()?;
    client.add(1, scene.address(PORT), AfterAnswer::Close);
    for _ in 0..connections {
        client.start(0);
        answered(&mut client, Duration::ZERO, || {
            Ok(acceptors.iter_mut().try_for_each(|it| it.poll(Some(Duration::ZERO)))?)
        })?;
    }
    median_us(&mut scene, connections)
}

/// The same with acceptors that sleep when a connection is offered.
pub(super) fn asleep_us(stage: SceneStage<'_>, connections: u64) -> Result<f64, SceneError> {
    let mut scene = ServiceScene::start(stage, &[])?;
    let mut client = scene.client(limits::BURST)?;
    scene.await_daemon()?;
    scene.programs_at(PORT, ACCEPTORS)?;
    client.add(1, scene.address(PORT), AfterAnswer::Close);
    for _ in 0..connections {
        client.start(0);
        answered(&mut client, Duration::from_millis(100), || Ok(()))?;
        client.run_until(Instant::now() + limits::CLAIM_PAUSE, |_, _| ())?;
    }
    median_us(&mut scene, connections)
}

/// Waits until the connection is answered; meanwhile others poll.
fn answered(
    client: &mut LoopClient,
    wait: Duration,
    mut poll_others: impl FnMut() -> Result<(), SceneError>,
) -> Result<(), SceneError> {
    let deadline = Instant::now() + limits::SCENE_PATIENCE;
    loop {
        poll_others()?;
        match client.poll(wait)?.pop() {
            Some(LoopOutcome { event: LoopEvent::Answered { .. }, .. }) => return Ok(()),
            Some(LoopOutcome { event: LoopEvent::Failed(why), .. }) => {
                return Err(SceneError::Unfit(why));
            }
            None if Instant::now() > deadline => {
                return Err(SceneError::Unfit("a connection was not answered".to_owned()));
            }
            None => {}
        }
    }
}

fn median_us(scene: &mut ServiceScene<'_>, connections: u64) -> Result<f64, SceneError> {
    scene.check()?;
    let listeners = scene.observer()?.listeners()?;
    let median = claim_median(&listeners, connections).map_err(SceneError::Unfit)?;
    Ok(median.as_secs_f64() * 1e6)
}

/// Pure: the median of the listener's claims.
///
/// # Errors
/// What was measured is not the claims of so many connections.
fn claim_median(listeners: &[ServiceListener], connections: u64) -> Result<Duration, String> {
    let at_port = |it: &&ServiceListener| it.local.is_some_and(|local| local.port() == PORT);
    let shared = listeners.iter().filter(at_port).find_map(|it| it.hand_over.as_ref());
    let Some(ServiceHandOver { claims, claim_p50, .. }) = shared else {
        return Err("the acceptors do not share the port".to_owned());
    };
    match claim_p50 {
        Some(median) if *claims >= connections - connections / UNTIMED_SHARE => Ok(*median),
        _ => Err(format!("only {claims} of {connections} connections were claimed in time")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_counts_only_if_the_connections_were_claimed() {
        let listener = |port, claims| ServiceListener {
            local: Some(std::net::SocketAddr::from(([10, 0, 0, 1], port))),
            hand_over: Some(ServiceHandOver {
                claims,
                claim_p50: Some(Duration::from_micros(4)),
                ..ServiceHandOver::default()
            }),
            ..ServiceListener::default()
        };
        let listeners = [listener(PORT + 1, 0), listener(PORT, 95)];
        assert_eq!(claim_median(&listeners, 100), Ok(Duration::from_micros(4)));
        claim_median(&listeners, 200).expect_err("too few");
        claim_median(&listeners[..1], 100).expect_err("another port");
        let alone = ServiceListener { hand_over: None, ..listener(PORT, 0) };
        claim_median(&[alone], 1).expect_err("one acceptor");
    }
}
