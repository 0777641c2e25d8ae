//! Cost of messages between two cores, measured just before it is used: [PIKA table 2].
//!
//! Two threads on two cores exchange words and records over the real rings. A round trip is
//! synchronous (one message at a time) or concurrent (many in flight); with dispatch the receiver
//! parses the record and calls by its kind. Bursts give what sending and taking cost each core.
//!
//! Invariant: each number is the median of rounds that ran in turn, so that a moment in which one
//! of the cores was taken away does not count.

use super::costs::CostError;
use crate::{limits, measure::median, process};
use megapipe_apps::{serve::CpuList, threads};
use megapipe_shm::{
    Consumer, Producer, Region,
    record::{ConnRef, Message, MessageSubject, Record},
    ring, ring_bytes,
};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

/// Nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MessageCosts {
    /// A word there and back by atomic instructions.
    pub(crate) words_ns: f64,
    /// A record there and back, one at a time; and with dispatch at both ends.
    pub(crate) synchronous_ns: f64,
    pub(crate) dispatched_ns: f64,
    /// A record there and back, many in flight; and with dispatch.
    pub(crate) concurrent_ns: f64,
    pub(crate) concurrent_dispatched_ns: f64,
    /// A record of a burst at the core that sends it, and at the core that takes it.
    pub(crate) send_ns: f64,
    pub(crate) take_ns: f64,
}

impl MessageCosts {
    /// Delay of a message that is neither sending nor taking it: half of a synchronous round trip.
    pub(crate) fn delay_ns(&self) -> f64 {
        (self.synchronous_ns / 2.0 - self.send_ns - self.take_ns).max(0.0)
    }
}

/// What the other core does with each record of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EchoKind {
    Words,
    Records,
    Dispatched,
}

/// One end of two rings.
struct RingPair {
    to: Producer<Record>,
    from: Consumer<Record>,
}

fn ends() -> Result<(RingPair, RingPair), CostError> {
    let entries = limits::MESSAGE_RING;
    let mut parts = Region::heap(2 * ring_bytes::<Record>(entries))?.into_parts();
    let (to, there) = ring::<Record>(&mut parts, entries)?;
    let (back, from) = ring::<Record>(&mut parts, entries)?;
    Ok((RingPair { to, from }, RingPair { to: back, from: there }))
}

/// Waits without sleeping; a core that others need too is given up from time to time.
fn spin_until(mut is_ready: impl FnMut() -> bool) {
    let mut tries = 0_u32;
    while !is_ready() {
        tries += 1;
        if tries.is_multiple_of(limits::STEERED_SPINS) {
            thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

fn message(number: u32) -> Record {
    let listener = SocketAddr::from(([10, 0, 0, 1], 80));
    let conn = ConnRef { transport: 1, id: number.into(), flow_hash: number };
    Message { listener, subject: MessageSubject::Established { conn } }.record()
}

/// Parses a record and calls by its kind, as a server does.
fn dispatch(record: &Record) -> u64 {
    match Message::parse(record).map(|message| message.subject) {
        Ok(MessageSubject::Established { conn }) => conn.id,
        Ok(MessageSubject::Accept { credit, .. }) => u64::from(credit),
        Ok(MessageSubject::Assign { conn, .. }) => conn.id << 8,
        Ok(MessageSubject::Offer { service_time_ns, .. }) => service_time_ns,
        _ => 0,
    }
}

impl RingPair {
    fn take(&mut self) -> Record {
        let mut record = [Record::default()];
        // The rings are whole: both ends are in this process.
        spin_until(|| self.from.receive(&mut record).is_ok_and(|count| count == 1));
        record[0]
    }

    fn send(&mut self, record: Record) {
        spin_until(|| self.to.send(&[record]).is_ok_and(|count| count == 1));
    }
}

/// Two words on cache lines of their own.
#[derive(Debug, Default)]
struct Words {
    there: PaddedWord,
    back: PaddedWord,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedWord(AtomicU64);

/// The other core: echoes each of `count` messages.
fn echo(kind: EchoKind, end: &mut RingPair, words: &Words, count: u64) {
    let mut sum = 0;
    for number in 1..=count {
        match kind {
            EchoKind::Words => {
                spin_until(|| words.there.0.load(Ordering::Acquire) == number);
                words.back.0.store(number, Ordering::Release);
            }
            EchoKind::Records => {
                let record = end.take();
                end.send(record);
            }
            EchoKind::Dispatched => {
                let record = end.take();
                sum += dispatch(&record);
                end.send(record);
            }
        }
    }
    std::hint::black_box(sum);
}

/// This core: `count` round trips, `in_flight` at a time. Nanoseconds of one: the median of short
/// spans, since others may use the cores for longer ones.
fn call(kind: EchoKind, end: &mut RingPair, words: &Words, count: u64, in_flight: u64) -> f64 {
    let (mut sum, mut spans, mut start) = (0, Vec::new(), Instant::now());
    let mut on_answer = |answered: u64| {
        if answered.is_multiple_of(limits::MESSAGE_SPAN) {
            let spent = start.elapsed().as_nanos() as f64;
            spans.push(spent / limits::MESSAGE_SPAN as f64);
            start = Instant::now();
        }
    };
    if kind == EchoKind::Words {
        for number in 1..=count {
            words.there.0.store(number, Ordering::Release);
            spin_until(|| words.back.0.load(Ordering::Acquire) == number);
            on_answer(number);
        }
    } else {
        let mut sent = 0;
        for answered in 0..count {
            while sent < count && sent < answered + in_flight {
                end.send(message(sent as u32));
                sent += 1;
            }
            let record = end.take();
            if kind == EchoKind::Dispatched {
                sum += dispatch(&record);
            }
            on_answer(answered + 1);
        }
    }
    std::hint::black_box(sum);
    median(spans)
}

/// Runs one round of a kind on two cores.
fn round(
    here: &CpuList,
    there: &CpuList,
    kind: EchoKind,
    in_flight: u64,
) -> Result<f64, CostError> {
    let count = limits::MESSAGE_ROUND_TRIPS;
    let (mut near, mut far) = ends()?;
    let words = Arc::new(Words::default());
    let far_words = Arc::clone(&words);
    thread::scope(|scope| {
        let caller = move || {
            process::pin(here)?;
            Ok::<f64, io::Error>(call(kind, &mut near, &words, count, in_flight))
        };
        let other = threads::spawn_scoped(scope, "echo", move || {
            // Where it runs is a wish: an echo that never comes would be worse.
            let _ = process::pin(there);
            echo(kind, &mut far, &far_words, count);
        })?;
        let near = threads::spawn_scoped(scope, "call", caller)?;
        let spent = near.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(spent?)
    })
}

/// A burst from one core, taken by the other one: what a record costs each of them.
fn burst_round(here: &CpuList, there: &CpuList) -> Result<(f64, f64), CostError> {
    let (mut near, mut far) = ends()?;
    let burst: Vec<Record> = (0..limits::MESSAGE_BURST).map(message).collect();
    let bursts = limits::MESSAGE_BURSTS;
    thread::scope(|scope| {
        let taking = threads::spawn_scoped(scope, "take", move || {
            let _ = process::pin(there);
            let mut room = vec![Record::default(); limits::MESSAGE_BURST as usize];
            let mut spent = Vec::new();
            for _ in 0..bursts {
                // The burst is complete before it is taken, so that only taking counts.
                let signal = far.take();
                let start = Instant::now();
                let count = far.from.receive(&mut room).unwrap_or(0);
                spent.push(start.elapsed().as_nanos() as f64 / count.max(1) as f64);
                far.send(signal);
            }
            median(spent)
        })?;
        let sending = threads::spawn_scoped(scope, "send", move || {
            process::pin(here)?;
            let mut spent = Vec::new();
            for number in 0..bursts as u32 {
                let start = Instant::now();
                // The signal is first in the ring, and the burst is published with it.
                let _ = near.to.put(&message(number));
                let sent = near.to.send(&burst).unwrap_or(0);
                spent.push(start.elapsed().as_nanos() as f64 / (sent + 1) as f64);
                near.take();
            }
            Ok::<f64, io::Error>(median(spent))
        })?;
        let send_ns = sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let take_ns = taking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((send_ns, take_ns))
    })
}

/// Measures messages between a core of `here` and one of `there`; medians of `rounds`.
///
/// # Errors
/// [`CostError`]: no memory, no ring, no thread, or a core that cannot be had.
pub(crate) fn message_costs(
    here: &CpuList,
    there: &CpuList,
    rounds: usize,
) -> Result<MessageCosts, CostError> {
    let many = u64::from(limits::MESSAGE_BURST);
    let kinds = [
        (EchoKind::Words, 1),
        (EchoKind::Records, 1),
        (EchoKind::Dispatched, 1),
        (EchoKind::Records, many),
        (EchoKind::Dispatched, many),
    ];
    let mut spent: [Vec<f64>; 5] = Default::default();
    let (mut sends, mut takes) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for ((kind, in_flight), all) in kinds.iter().zip(&mut spent) {
            all.push(round(here, there, *kind, *in_flight)?);
        }
        let (send_ns, take_ns) = burst_round(here, there)?;
        sends.push(send_ns);
        takes.push(take_ns);
    }
    let [words_ns, synchronous_ns, dispatched_ns, concurrent_ns, concurrent_dispatched_ns] =
        spent.map(median);
    Ok(MessageCosts {
        words_ns,
        synchronous_ns,
        dispatched_ns,
        concurrent_ns,
        concurrent_dispatched_ns,
        send_ns: median(sends),
        take_ns: median(takes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;

    #[test]
    fn each_message_cost_is_measured() {
        let cpus = layout::online_cpus().unwrap();
        let core = |index: usize| vec![cpus[index]].into();
        let costs = message_costs(&core(0), &core(cpus.len() - 1), 1).unwrap();
        let all = [
            costs.words_ns,
            costs.synchronous_ns,
            costs.dispatched_ns,
            costs.concurrent_ns,
            costs.concurrent_dispatched_ns,
            costs.send_ns,
            costs.take_ns,
        ];
        assert!(all.iter().all(|&ns| ns > 0.1 && ns < 1e9), "{costs:?}");
        assert!(costs.delay_ns() >= 0.0);
    }

    #[test]
    fn dispatch_reads_what_was_sent() {
        assert_eq!(dispatch(&message(77)), 77);
        assert_eq!(dispatch(&Record::default()), 0);
    }
}
