//! A program of datagrams: it answers those of others, and sends its own until they are answered.
//!
//! Every datagram is written down before it is sent (`check/datagrams.rs`), so each that arrives
//! is known.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use megapipe_sockets::{Bsd, Error, Events, Fd, MsgFlags, PollFd};

use super::ProgramSetting;
use super::events::LOOKS_AT_LEAST;
use super::pace::Calls;
use crate::check::Violation;
use crate::check::datagrams::{CheckedDatagram, Ledger, NUMBER_BYTES};
use crate::host::address;
use crate::program::PORT;

/// A port without a receiver.
const CLOSED_PORT: u16 = 9;
/// How often a datagram is sent until it is answered. Most ways lose a few of hundred.
const TRIES: u32 = 100;
/// The first of the times between them; it grows to the last.
const PATIENCE: Duration = Duration::from_millis(300);
const PATIENCE_MAX: Duration = Duration::from_secs(8);
/// Headers of the largest kind.
const HEADER_BYTES: u16 = 48;
const ROOM: usize = 10_000;

/// What one exchange is.
#[derive(Debug, Clone, Copy)]
struct Exchange {
    to: SocketAddr,
    len: usize,
    is_connected: bool,
}

struct Talk<'a> {
    setting: &'a ProgramSetting,
    here: IpAddr,
    server: Fd,
}

/// Answers until all is over, and makes its exchanges.
pub(super) fn run(calls: &mut Calls, setting: &ProgramSetting) -> Result<(), Violation> {
    let here = address(&setting.scenario, setting.host);
    let server = socket(calls, setting)?;
    calls.must("bind", |it| it.bind(server, SocketAddr::new(here, PORT)))?;
    let talk = Talk { setting, here, server };
    for number in 0..setting.scenario.connections {
        calls.note_open(setting.scenario.connections - number);
        talk.exchange(calls)?;
        calls.count(|counts| counts.datagrams += 1);
    }
    calls.note_open(0);
    while !calls.is_finished() {
        talk.await_any(calls, None, LOOKS_AT_LEAST)?;
    }
    Ok(())
}

fn socket(calls: &mut Calls, setting: &ProgramSetting) -> Result<Fd, Violation> {
    let family = if setting.scenario.v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
    calls.must("socket", |it| it.socket(family, kind, 0))
}

impl Talk<'_> {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // An entry is whole when the lock is free.
        self.setting.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self, calls: &mut Calls) -> Exchange {
        let (rng, scenario) = (&mut calls.rng, &self.setting.scenario);
        let to = (self.setting.host + rng.usize(1..scenario.hosts)) % scenario.hosts;
        let is_closed = rng.u32(..8) == 0;
        Exchange {
            to: SocketAddr::new(address(scenario, to), if is_closed { CLOSED_PORT } else { PORT }),
            len: self.draw_len(rng),
            // Only those hear that the port has no receiver.
            is_connected: is_closed || rng.bool(),
        }
    }

    fn draw_len(&self, rng: &mut fastrand::Rng) -> usize {
        let most = usize::from(self.setting.scenario.mtu[self.setting.host] - HEADER_BYTES);
        if rng.bool() { rng.usize(NUMBER_BYTES..=most) } else { rng.usize(NUMBER_BYTES..200) }
    }

    /// One exchange with another host.
    fn exchange(&self, calls: &mut Calls) -> Result<(), Violation> {
        let exchange = self.draw(calls);
        let fd = socket(calls, self.setting)?;
        calls.must("bind", |it| it.bind(fd, SocketAddr::new(self.here, 0)))?;
        if exchange.is_connected {
            calls.must("connect", |it| it.connect(fd, Some(exchange.to)))?;
        }
        self.refuse_too_large(calls, fd, exchange.to)?;
        let mut numbers = Vec::new();
        let mut patience = PATIENCE;
        for _ in 0..TRIES {
            let is_done = self.send(calls, fd, exchange, &mut numbers)?
                || self.await_answer(calls, fd, exchange, (&numbers, patience))?;
            if is_done {
                return calls.must("close", |it| it.close(fd));
            }
            patience = (patience * 2).min(PATIENCE_MAX);
        }
        let what = format!("no answer to {exchange:?}, sent {TRIES} times");
        Err(Violation::Call { host: self.setting.host, call: "recvfrom", what })
    }

    /// Sends the datagram of an exchange. Whether it has come to its end: a refusal.
    fn send(
        &self,
        calls: &mut Calls,
        fd: Fd,
        exchange: Exchange,
        numbers: &mut Vec<u64>,
    ) -> Result<bool, Violation> {
        let from = calls.must("getsockname", |it| it.getsockname(fd))?;
        let Exchange { to, len, is_connected } = exchange;
        let (number, bytes) = self.ledger().send((from, to), len, None);
        numbers.push(number);
        let pieces = [IoSlice::new(&bytes)];
        let to = (!is_connected).then_some(to);
        match calls.call(|it| it.sendto(fd, &pieces, to, MsgFlags::empty())) {
            Ok(_) => Ok(false),
            Err(error) => self.fails(calls, exchange, "sendto", error),
        }
    }

    /// Whether an error ends an exchange: the port has no receiver, where that is so.
    fn fails(
        &self,
        calls: &Calls,
        exchange: Exchange,
        call: &'static str,
        error: Error,
    ) -> Result<bool, Violation> {
        let is_closed = exchange.to.port() == CLOSED_PORT && exchange.is_connected;
        let is_cut = self.setting.scenario.ethernet && !self.setting.scenario.outages.is_empty();
        match error {
            Error::Refused if is_closed => Ok(true),
            Error::WouldBlock | Error::NoBuffers => Ok(false),
            Error::HostUnreachable if is_cut => Ok(false),
            _ => Err(calls.failed(call, error)),
        }
    }

    /// What is larger than a packet may be is refused: we cut nothing.
    fn refuse_too_large(&self, calls: &mut Calls, fd: Fd, to: SocketAddr) -> Result<(), Violation> {
        let len = usize::from(self.setting.scenario.mtu[self.setting.host]);
        let bytes = vec![0; len];
        let pieces = [IoSlice::new(&bytes)];
        match calls.call(|it| it.sendto(fd, &pieces, Some(to), MsgFlags::empty())) {
            Err(Error::MessageTooLong) => Ok(()),
            answer => {
                let what = format!("{len} bytes, which fit into no packet: {answer:?}");
                Err(Violation::Call { host: self.setting.host, call: "sendto", what })
            }
        }
    }

    /// Waits for the answer to one of `numbers`, and answers others meanwhile. Whether it is over.
    fn await_answer(
        &self,
        calls: &mut Calls,
        fd: Fd,
        exchange: Exchange,
        (numbers, patience): (&[u64], Duration),
    ) -> Result<bool, Violation> {
        let until = calls.now() + patience;
        loop {
            let now = calls.now();
            if now >= until {
                return Ok(false);
            }
            if !self.await_any(calls, Some(fd), until.since(now))? {
                continue;
            }
            match self.receive(calls, fd)? {
                Ok((_, _, Some(answered))) if numbers.contains(&answered) => return Ok(true),
                Ok(_) => {}
                Err(error) => {
                    if self.fails(calls, exchange, "recvfrom", error)? {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// Waits for something to come, and answers what comes to the server. Whether something came
    /// to `fd`.
    fn await_any(
        &self,
        calls: &mut Calls,
        fd: Option<Fd>,
        timeout: Duration,
    ) -> Result<bool, Violation> {
        let mut fds: Vec<PollFd<'_>> = [Some(self.server), fd]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, Events::IN))
            .collect();
        calls.must("poll", |it| it.poll(&mut fds, Some(timeout)))?;
        let [is_asked, has_come] =
            [0, 1].map(|place| fds.get(place).is_some_and(|it| !it.revents.is_empty()));
        if is_asked && let Ok((from, number, _)) = self.receive(calls, self.server)? {
            let local = SocketAddr::new(self.here, PORT);
            let len = self.draw_len(&mut calls.rng);
            let (_, bytes) = self.ledger().send((local, from), len, Some(number));
            let pieces = [IoSlice::new(&bytes)];
            let server = self.server;
            // An answer that is lost is asked for again.
            let _ = calls.call(|it| it.sendto(server, &pieces, Some(from), MsgFlags::empty()));
        }
        Ok(has_come)
    }

    /// Receives a datagram: where from, its number, and that of the one that it answers.
    #[expect(clippy::type_complexity, reason = "one caller takes apart all of it")]
    fn receive(
        &self,
        calls: &mut Calls,
        fd: Fd,
    ) -> Result<Result<(SocketAddr, u64, Option<u64>), Error>, Violation> {
        let room = if calls.rng.u32(..8) == 0 { calls.rng.usize(NUMBER_BYTES..64) } else { ROOM };
        let mut bytes = vec![0; room];
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let received = match calls.call(|it| it.recvfrom(fd, &mut pieces, MsgFlags::empty())) {
            Ok(received) => received,
            Err(error) => return Ok(Err(error)),
        };
        let at = calls.must("getsockname", |it| it.getsockname(fd))?;
        let Some(from) = received.from else { return Ok(Err(Error::WouldBlock)) };
        let is_cut = received.flags.contains(MsgFlags::TRUNC);
        let arrived = CheckedDatagram { at, from, bytes: &bytes[..received.len], is_cut };
        let (number, answers) = self.ledger().receive(&arrived)?;
        Ok(Ok((from, number, answers)))
    }
}
