//! One thread of a load: a channel, its connections, and a protocol on each of them.
//!
//! Read first: `client_protocol.rs` (requests), `ramp_up.rs` (connecting), `pacing.rs` (when to
//! start), `window.rs` (what counts). This file puts them on a channel and reads the clock.
//!
//! Invariants
//! - A slot is one connection at a time; its number is the cookie of the connection's handle.
//! - One transaction at a time per connection, one read outstanding per open connection.
//! - With a fixed rate, transactions start in the order in which they are due, on whichever
//!   connection has been free longest.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use megapipe::{
    Address, Channel, ConnectError, ConnectOptions, Event, Handle, OpError, Payload, ReadBuf,
};
use rustix::time::{ClockId, clock_gettime};

use super::LoadError;
use super::client_protocol::{ClientProtocol, RequestBuilder, ResponseProgress};
use super::control::{LoadControl, ThreadOutcome};
use super::distribution::Distribution;
use super::fault::TransactionFault;
use super::latency::Times;
use super::pacing::Pacer;
use super::ramp_up::RampUp;
use super::rng::Rng;
use super::window::{Count, MeasuredWindow};
use crate::limits::load::{DRAIN_NS_MAX, TICK};

const TICK_COOKIE: u64 = u64::MAX;

/// Completions that came together for which the clock is read once, at most, in a closed loop: the
/// time of the last of them is off by what handling the others took, a few microseconds.
const COMPLETIONS_PER_CLOCK: u32 = 16;

/// Looking for what has taken too long touches every connection, so it is done now and then.
const TICKS_PER_TIME_OUT: u32 = 16;

/// What a thread is to do.
#[derive(Debug)]
pub(crate) struct WorkerPlan {
    pub(crate) index: usize,
    pub(crate) server: Address,
    /// Local addresses to connect from, round-robin; without one the kernel chooses.
    pub(crate) sources: Vec<Address>,
    pub(crate) connections: u32,
    pub(crate) connecting_max: u32,
    /// Transactions per connection; None for ever.
    pub(crate) transactions: Option<Distribution>,
    pub(crate) reset: bool,
    /// Whether a connection's first transaction began when connecting did.
    pub(crate) with_connect: bool,
    pub(crate) timeout: Duration,
    /// Transactions per 1,000 seconds with a fixed rate; None in a closed loop.
    pub(crate) rate_milli: Option<u64>,
    /// Transactions to start in all, if that is what ends the run.
    pub(crate) total: Option<u64>,
    pub(crate) read_len: usize,
    pub(crate) rng: Rng,
    pub(crate) control: Arc<LoadControl>,
}

/// The results of a thread.
#[derive(Debug)]
pub(crate) struct WorkerResult {
    pub(crate) count: Count,
    pub(crate) details: Vec<(&'static str, u64)>,
    /// The first wrong response.
    pub(crate) unexpected: Option<String>,
    /// The share of the window in which the thread was on a processor.
    pub(crate) busy: f64,
}

/// Nanoseconds on the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    nanos(clock_gettime(ClockId::Monotonic))
}

fn thread_cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
}

fn nanos(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum SlotState {
    /// No socket; `ramp_up` knows when to open one.
    Closed,
    Connecting,
    /// Open, with nothing under way.
    Free,
    /// A request is under way.
    Busy,
}

#[derive(Debug)]
struct ConnectionSlot<E> {
    handle: Handle,
    state: SlotState,
    /// Whether the first attempt to connect is still to end.
    untried: bool,
    /// Transactions that this connection may still start.
    left: u64,
    /// When connecting began, or when the transaction was meant to start.
    intended_ns: u64,
    sent_ns: u64,
    /// When connecting began, if the first transaction is to count from there.
    connecting_ns: Option<u64>,
    /// Received in the window, by whichever connection was open here.
    received: u64,
    exchange: E,
}

/// A thread at work.
pub(crate) struct Worker<D: ClientProtocol> {
    plan: WorkerPlan,
    protocol: D,
    slots: Vec<ConnectionSlot<D::Exchange>>,
    ramp_up: RampUp,
    free: VecDeque<u32>,
    pacer: Option<Pacer>,
    window: MeasuredWindow,
    started_total: u64,
    under_way: u32,
    opened: usize,
    /// Whether any connection was ever open.
    connected: bool,
    /// Whether the load has begun; before, connections are opened and caches filled.
    gone: bool,
    ticks: u32,
    last_done_ns: u64,
    now_ns: u64,
    tail: Vec<&'static [u8]>,
    cpu: CpuShare,
}

/// The thread's processor time over the window.
#[derive(Copy, Clone, Debug, Default)]
struct CpuShare {
    begin: Option<(u64, u64)>,
    end: Option<(u64, u64)>,
}

impl CpuShare {
    fn share(&self) -> f64 {
        let (Some(begin), Some(end)) = (self.begin, self.end) else { return 0.0 };
        let (wall, cpu) = (end.0.saturating_sub(begin.0), end.1.saturating_sub(begin.1));
        if wall == 0 { 0.0 } else { cpu as f64 / wall as f64 }
    }
}

impl<D: ClientProtocol> Worker<D> {
    pub(crate) fn new(plan: WorkerPlan, protocol: D) -> Self {
        let slot = |_| ConnectionSlot {
            handle: Handle::NONE,
            state: SlotState::Closed,
            untried: true,
            left: 0,
            intended_ns: 0,
            sent_ns: 0,
            connecting_ns: None,
            received: 0,
            exchange: D::Exchange::default(),
        };
        Self {
            slots: (0..plan.connections).map(slot).collect(),
            ramp_up: RampUp::new(plan.connections, plan.connecting_max),
            free: VecDeque::with_capacity(plan.connections as usize),
            pacer: None,
            window: MeasuredWindow::unset(),
            started_total: 0,
            under_way: 0,
            opened: 0,
            connected: false,
            gone: false,
            ticks: 0,
            last_done_ns: 0,
            now_ns: now_ns(),
            tail: Vec::new(),
            cpu: CpuShare::default(),
            protocol,
            plan,
        }
    }

    /// Runs until the window is over and what was under way in it has ended.
    pub(crate) fn run(mut self, channel: &mut Channel) -> Result<WorkerResult, LoadError> {
        if self.plan.control.is_given_up() {
            // Often for want of memory: nothing may be allocated.
            return Ok(self.finish());
        }
        let index = self.plan.index;
        let broken = |source| LoadError::Dispatch { index, source };
        let timer = channel.timer(TICK, Some(TICK), TICK_COOKIE);
        timer.map_err(|source| LoadError::SetUp { index, source })?;
        self.pump(channel);
        let mut timed = 0;
        loop {
            let ready = if timed > 0 { channel.dispatch_ready() } else { None };
            let done = match ready {
                Some(done) => Some(done),
                None => {
                    let done = channel.dispatch(self.wait()).map_err(broken)?;
                    self.now_ns = now_ns();
                    timed = if self.pacer.is_some() { 1 } else { COMPLETIONS_PER_CLOCK };
                    done
                }
            };
            timed -= 1;
            let Some(done) = done else {
                self.start_due(channel);
                timed = 0;
                continue;
            };
            let slot = done.cookie as u32;
            match done.event {
                Event::Read(Ok(data)) => self.on_read(channel, slot, &data),
                Event::Write(Ok(_)) => {}
                Event::Connect(Ok(())) => self.on_connected(channel, slot),
                Event::Connect(Err(error)) => self.on_connect_failed(channel, slot, error),
                Event::Read(Err(error)) | Event::Write(Err(error)) => {
                    self.on_fault(channel, slot, error.into());
                }
                Event::Timer { .. } | Event::Wake if self.on_tick(channel) => {
                    return Ok(self.finish());
                }
                _ => {}
            }
            self.start_due(channel);
        }
    }

    /// How long nothing needs to be done unless something completes.
    fn wait(&self) -> Option<Duration> {
        let due_ns = self.due_ns()?;
        Some(Duration::from_nanos(due_ns.saturating_sub(self.now_ns)))
    }

    /// With a fixed rate: when the next transaction is due, if a connection is free for it.
    fn due_ns(&self) -> Option<u64> {
        let due_ns = self.pacer.as_ref()?.next_ns();
        let possible = !self.free.is_empty() && !self.spent() && due_ns < self.window.end_ns();
        possible.then_some(due_ns)
    }

    /// Whether all transactions have been started.
    fn spent(&self) -> bool {
        self.plan.total.is_some_and(|total| self.started_total >= total)
    }

    /// Opens connections as far as that is allowed now.
    fn pump(&mut self, channel: &mut Channel) {
        while let Some(slot) = self.ramp_up.next(self.now_ns) {
            let mut options = ConnectOptions::default()
                .timeout(self.plan.timeout)
                .reset_on_close(self.plan.reset);
            if !self.plan.sources.is_empty() {
                let source = &self.plan.sources[self.opened % self.plan.sources.len()];
                options = options.bind(source.clone());
            }
            self.opened = self.opened.wrapping_add(1);
            let entry = &mut self.slots[slot as usize];
            entry.intended_ns = self.now_ns;
            match channel.connect(&self.plan.server, &options, u64::from(slot)) {
                Ok(handle) => (entry.handle, entry.state) = (handle, SlotState::Connecting),
                Err(error) => {
                    let first = std::mem::take(&mut entry.untried);
                    self.ramp_up.failed(slot, first, self.now_ns);
                    self.window.on_fault(fault_of(&error), None, self.now_ns);
                }
            }
        }
    }

    fn on_connected(&mut self, channel: &mut Channel, slot: u32) {
        let read_len = self.plan.read_len;
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let first = std::mem::take(&mut entry.untried);
        self.connected = true;
        self.ramp_up.opened(slot, first);
        self.window.on_connected(entry.intended_ns, self.now_ns);
        // A connection that was opened beforehand has waited for the load to begin.
        let counts = self.plan.with_connect && self.gone;
        entry.connecting_ns = counts.then_some(entry.intended_ns);
        entry.left = match &self.plan.transactions {
            Some(transactions) => transactions.sample(&mut self.plan.rng).max(1),
            None => u64::MAX,
        };
        entry.state = SlotState::Free;
        if channel.read(entry.handle, read_len).is_err() {
            return self.on_fault(channel, slot, TransactionFault::Other);
        }
        self.go_on(channel, slot);
        self.pump(channel);
    }

    fn on_connect_failed(&mut self, channel: &mut Channel, slot: u32, error: OpError) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let first = std::mem::take(&mut entry.untried);
        entry.state = SlotState::Closed;
        // Only to give the handle back; it has no connection.
        let _ = channel.unregister(entry.handle);
        self.ramp_up.failed(slot, first, self.now_ns);
        self.window.on_fault(error.into(), None, self.now_ns);
        self.pump(channel);
    }

    /// A connection is free: starts a transaction on it, now or when it is time.
    fn go_on(&mut self, channel: &mut Channel, slot: u32) {
        let now = match self.gone {
            // What has to be in place beforehand is put there as fast as possible.
            false => self.protocol.preparing(),
            true => self.pacer.is_none() && !self.spent() && !self.window.over(self.now_ns),
        };
        match now {
            true => self.start(channel, slot, self.now_ns),
            false => self.free.push_back(slot),
        }
    }

    /// The load begins: the connections that have waited for it start.
    fn go(&mut self, channel: &mut Channel, go_ns: u64) {
        self.gone = true;
        self.pacer = self.plan.rate_milli.map(|rate_milli| Pacer::new(go_ns, rate_milli));
        for slot in std::mem::take(&mut self.free) {
            self.go_on(channel, slot);
        }
    }

    /// With a fixed rate: starts what is due, as far as there are free connections.
    fn start_due(&mut self, channel: &mut Channel) {
        while let Some(due_ns) = self.due_ns()
            && due_ns <= self.now_ns
        {
            let Some(pacer) = &mut self.pacer else { return };
            // Several due at once means that connections were missing, not the load late.
            let alone = pacer.backlog(self.now_ns) == 1;
            let Some(intended_ns) = pacer.take(self.now_ns) else { return };
            let Some(slot) = self.free.pop_front() else { return };
            if alone && self.window.contains(intended_ns) {
                self.window.count.lateness.record(self.now_ns.saturating_sub(intended_ns));
            }
            self.start(channel, slot, intended_ns);
        }
    }

    fn start(&mut self, channel: &mut Channel, slot: u32, intended_ns: u64) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let mut head = channel.alloc(super::REQUEST_HEAD_LEN);
        self.tail.clear();
        let mut request = RequestBuilder { head: &mut head, tail: &mut self.tail };
        self.protocol.request(&mut entry.exchange, &mut request);
        let len = head.len() + self.tail.iter().map(|piece| piece.len()).sum::<usize>();
        entry.state = SlotState::Busy;
        entry.left -= 1;
        let intended_ns = entry.connecting_ns.take().unwrap_or(intended_ns);
        (entry.intended_ns, entry.sent_ns) = (intended_ns, self.now_ns);
        self.started_total += u64::from(self.gone);
        self.under_way += 1;
        self.window.on_start(intended_ns, self.now_ns, len);
        let sent = if self.tail.is_empty() {
            channel.write_quiet(entry.handle, head).map(drop)
        } else {
            let tail = self.tail.iter().map(|&piece| Payload::from(piece));
            channel.writev(entry.handle, std::iter::once(Payload::from(head)).chain(tail))
        };
        if sent.is_err() {
            self.on_fault(channel, slot, TransactionFault::Other);
        }
    }

    fn on_read(&mut self, channel: &mut Channel, slot: u32, data: &ReadBuf) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let answer = match (entry.state, data.is_empty()) {
            (SlotState::Busy, false) => self.protocol.response(&mut entry.exchange, data),
            (SlotState::Busy, true) => match self.protocol.end_of_stream(&mut entry.exchange) {
                ResponseProgress::Done { .. } => ResponseProgress::Done { reusable: false },
                _ => return self.on_fault(channel, slot, TransactionFault::Closed),
            },
            // The server may end a connection that it has nothing to answer on.
            (_, true) => {
                self.free.retain(|&free| free != slot);
                self.close(channel, slot);
                self.ramp_up.again(slot);
                return self.pump(channel);
            }
            (_, false) => ResponseProgress::Wrong,
        };
        if self.window.contains(self.now_ns) {
            entry.received += data.len() as u64;
        }
        self.window.on_bytes(self.now_ns, data.len());
        match answer {
            ResponseProgress::More => self.read_on(channel, slot),
            ResponseProgress::Done { reusable } => self.on_done(channel, slot, reusable),
            ResponseProgress::Wrong => {
                self.on_fault(channel, slot, TransactionFault::WrongResponse)
            }
        }
    }

    fn on_done(&mut self, channel: &mut Channel, slot: u32, reusable: bool) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let ConnectionSlot { intended_ns, sent_ns, .. } = *entry;
        self.window.on_done(Times { intended_ns, sent_ns, done_ns: self.now_ns });
        entry.state = SlotState::Free;
        self.under_way -= 1;
        self.last_done_ns = self.now_ns;
        if entry.left == 0 || !reusable {
            self.close(channel, slot);
            self.ramp_up.again(slot);
            return self.pump(channel);
        }
        self.read_on(channel, slot);
        if self.slots[slot as usize].state == SlotState::Free {
            self.go_on(channel, slot);
        }
    }

    fn read_on(&mut self, channel: &mut Channel, slot: u32) {
        if channel.read(self.slots[slot as usize].handle, self.plan.read_len).is_err() {
            self.on_fault(channel, slot, TransactionFault::Other);
        }
    }

    /// A connection is of no more use: what it was busy with has failed.
    fn on_fault(&mut self, channel: &mut Channel, slot: u32, fault: TransactionFault) {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return };
        let lost = (entry.state == SlotState::Busy).then_some(entry.intended_ns);
        if lost.is_some() {
            self.under_way -= 1;
            self.protocol.abandoned(&mut entry.exchange);
        } else {
            self.free.retain(|&free| free != slot);
        }
        self.window.on_fault(fault, lost, self.now_ns);
        self.close(channel, slot);
        self.ramp_up.broke(slot, self.now_ns);
        self.pump(channel);
    }

    fn close(&mut self, channel: &mut Channel, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.state = SlotState::Closed;
        // A handle that is gone already is what was wanted.
        let _ = channel.unregister(entry.handle);
    }

    /// Looks at everything that is not a completion. True if the thread is done.
    fn on_tick(&mut self, channel: &mut Channel) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        if self.ticks.is_multiple_of(TICKS_PER_TIME_OUT) {
            self.time_out(channel);
        }
        self.pump(channel);
        let control = Arc::clone(&self.plan.control);
        let ready = self.ramp_up.all_tried() && self.protocol.prepared();
        control.publish(self.plan.index, &self.window.count, ready, self.outcome());
        let go_ns = control.go_ns();
        self.window.set(control.window());
        if let Some(go_ns) = go_ns
            && !self.gone
            && go_ns <= self.now_ns
        {
            self.go(channel, go_ns);
        }
        if self.window.begun(self.now_ns) && self.cpu.begin.is_none() {
            self.cpu.begin = Some((self.now_ns, thread_cpu_ns()));
        }
        if self.gone && self.spent() && self.under_way == 0 {
            control.spent(self.plan.index, self.last_done_ns);
        }
        if !self.window.over(self.now_ns) {
            return false;
        }
        if self.cpu.end.is_none() {
            self.cpu.end = Some((self.now_ns, thread_cpu_ns()));
        }
        let due = self.pacer.as_ref().is_some_and(|pacer| pacer.next_ns() < self.window.end_ns());
        let owed = self.under_way > 0 || (due && !self.spent());
        !owed || self.now_ns >= self.drain_end_ns()
    }

    /// Results so far.
    fn outcome(&self) -> ThreadOutcome {
        let Count { faults, faults_before, .. } = &self.window.count;
        let wrong = faults.wrong_response + faults_before.wrong_response;
        let refused = faults.refused + faults_before.refused;
        ThreadOutcome {
            succeeded: self.last_done_ns > 0,
            rejected: wrong > 0 || refused > 0 && !self.connected,
        }
    }

    /// How long to wait after the window for what was under way in it.
    fn drain_end_ns(&self) -> u64 {
        let timeout_ns = u64::try_from(self.plan.timeout.as_nanos()).unwrap_or(u64::MAX);
        self.window.end_ns().saturating_add(timeout_ns.min(DRAIN_NS_MAX))
    }

    /// Ends transactions that have been under way for too long.
    fn time_out(&mut self, channel: &mut Channel) {
        let timeout_ns = u64::try_from(self.plan.timeout.as_nanos()).unwrap_or(u64::MAX);
        for slot in 0..self.plan.connections {
            let entry = &self.slots[slot as usize];
            let age_ns = self.now_ns.saturating_sub(entry.sent_ns);
            if entry.state == SlotState::Busy && age_ns > timeout_ns {
                self.on_fault(channel, slot, TransactionFault::TimedOut);
            }
        }
    }

    /// Accounts for open transactions and returns the counts.
    fn finish(mut self) -> WorkerResult {
        let kept = self.plan.transactions.is_none();
        for slot in &self.slots {
            if kept {
                self.window.count.shares.record(slot.received);
            }
            if slot.state == SlotState::Busy {
                self.window.on_unfinished(slot.intended_ns, self.now_ns, true);
            }
        }
        let total = self.plan.total.unwrap_or(u64::MAX);
        let mut never_started = total.saturating_sub(self.started_total);
        while let Some(pacer) = &mut self.pacer
            && pacer.next_ns() < self.window.end_ns()
            && never_started > 0
            && let Some(intended_ns) = pacer.take(u64::MAX)
        {
            never_started -= 1;
            self.window.on_unfinished(intended_ns, self.now_ns, false);
        }
        WorkerResult {
            details: self.protocol.details(),
            unexpected: self.protocol.unexpected().map(str::to_owned),
            busy: self.cpu.share(),
            count: self.window.count,
        }
    }
}

fn fault_of(error: &ConnectError) -> TransactionFault {
    match error {
        ConnectError::Kernel { source, .. } => source
            .raw_os_error()
            .map_or(TransactionFault::Other, |errno| OpError::from_raw_os_error(errno).into()),
        _ => TransactionFault::Other,
    }
}
