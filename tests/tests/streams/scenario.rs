//! What a seed decides: addresses, faults, settings of both stacks, and the streams.
//!
//! Pure: the same seed is the same world.

use std::ops::RangeInclusive;
use std::time::Duration;

use megapipe_link::fault::Faults;
use megapipe_stack::Congestion;
use megapipe_tests::transfer::{Header, Mode, Pattern};

/// Longest stream in one direction, as a power of two.
const LEN_BITS_MAX: u32 = 18;
/// Largest buffer of either stack, as a power of two.
const BUFFER_BITS_MAX: u32 = 18;
/// The same in bytes.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << BUFFER_BITS_MAX;
/// Longest time that an application does not read.
pub(crate) const PAUSE_MS_MAX: u64 = 200;
/// Connections of a world at most: our stack takes a listener for each.
const STREAMS_MAX: usize = 6;

/// Which direction may only begin when the other one has ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Neither waits.
    Together,
    /// We send once smoltcp has closed its direction.
    OursLast,
    /// smoltcp sends once we have closed ours.
    TheirsLast,
}

/// One connection: so many bytes in each direction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) ours_len: u64,
    pub(crate) theirs_len: u64,
    pub(crate) order: Order,
    seed: u64,
}

impl Exchange {
    /// The bytes that we send, and those that smoltcp does.
    pub(crate) fn patterns(&self) -> (Pattern, Pattern) {
        let of = |len, seed| Header { mode: Mode::Echo, len, seed }.from_server();
        (of(self.ours_len, self.seed), of(self.theirs_len, !self.seed))
    }
}

/// Settings of our stack.
#[derive(Clone, Debug)]
pub(crate) struct Ours {
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    /// Bytes of one buffer of the application's memory.
    pub(crate) buf_bytes: u32,
    pub(crate) window_scaling: bool,
    pub(crate) timestamps: bool,
    pub(crate) nagle: bool,
    pub(crate) congestion: Congestion,
    /// The application reads again no earlier than this after it has read.
    pub(crate) read_pause: Duration,
}

/// Settings of smoltcp.
#[derive(Clone, Debug)]
pub(crate) struct Theirs {
    pub(crate) receive_buffer: usize,
    pub(crate) send_buffer: usize,
    pub(crate) timestamps: bool,
    pub(crate) nagle: bool,
    pub(crate) ack_delay: Option<Duration>,
    pub(crate) read_pause: Duration,
}

/// A world.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) is_ipv6: bool,
    pub(crate) is_ethernet: bool,
    /// We connect, and smoltcp listens.
    pub(crate) we_connect: bool,
    pub(crate) mtu: u16,
    /// What befalls frames to us, and frames from us.
    pub(crate) inward: Faults,
    pub(crate) outward: Faults,
    pub(crate) ours: Ours,
    pub(crate) theirs: Theirs,
    pub(crate) exchanges: Vec<Exchange>,
}

impl Scenario {
    /// What `seed` decides.
    pub(crate) fn of(seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let is_ipv6 = chance.bool();
        let mtus = if is_ipv6 { [1_280, 1_400, 1_500, 1_500] } else { [576, 1_006, 1_500, 1_500] };
        // A third of the worlds has one kind of fault alone, so that none hides behind another.
        let only = chance.u32(..18);
        Self {
            seed,
            is_ipv6,
            is_ethernet: chance.bool(),
            we_connect: chance.bool(),
            mtu: mtus[chance.usize(..mtus.len())],
            inward: faults(&mut chance, only),
            outward: faults(&mut chance, only),
            ours: Ours {
                receive_buffer: power(&mut chance, 11..=BUFFER_BITS_MAX),
                send_buffer: power(&mut chance, 12..=BUFFER_BITS_MAX),
                buf_bytes: power(&mut chance, 8..=12),
                window_scaling: chance.u32(..4) > 0,
                timestamps: chance.u32(..4) > 0,
                nagle: chance.bool(),
                congestion: if chance.bool() { Congestion::Cubic } else { Congestion::NewReno },
                read_pause: pause(&mut chance),
            },
            theirs: Theirs {
                receive_buffer: power(&mut chance, 11..=BUFFER_BITS_MAX) as usize,
                send_buffer: power(&mut chance, 10..=BUFFER_BITS_MAX) as usize,
                timestamps: chance.bool(),
                nagle: chance.bool(),
                ack_delay: chance.bool().then(|| Duration::from_millis(chance.u64(1..=40))),
                read_pause: pause(&mut chance),
            },
            exchanges: (0..chance.usize(1..=STREAMS_MAX)).map(|_| exchange(&mut chance)).collect(),
        }
    }
}

/// A power of two.
fn power(chance: &mut fastrand::Rng, bits: RangeInclusive<u32>) -> u32 {
    1 << chance.u32(bits)
}

/// Mostly none; else so long that windows close.
fn pause(chance: &mut fastrand::Rng) -> Duration {
    match chance.u32(..4) {
        0 => Duration::from_micros(chance.u64(1..=1_000 * PAUSE_MS_MAX)),
        _ => Duration::ZERO,
    }
}

/// Faults of one direction. `only`: of 0 to 4 that one alone, 5: none at all, else several.
fn faults(chance: &mut fastrand::Rng, only: u32) -> Faults {
    let mut ppm = |number: u32, ppm_max: u32| {
        let drawn = if chance.bool() { chance.u32(..=ppm_max) } else { 0 };
        match only {
            0..5 if only == number => ppm_max,
            0..6 => 0,
            _ => drawn,
        }
    };
    let (loss_ppm, duplication_ppm) = (ppm(0, 100_000), ppm(1, 200_000));
    let (reordering_ppm, corruption_ppm) = (ppm(2, 200_000), ppm(3, 50_000));
    let has_jitter = ppm(4, 1) > 0;
    let micros =
        |chance: &mut fastrand::Rng, bits: u32| Duration::from_micros(chance.u64(..1_u64 << bits));
    Faults {
        loss_ppm,
        duplication_ppm,
        reordering_ppm,
        reordering_delay: micros(chance, 16),
        corruption_ppm,
        delay: micros(chance, 15),
        jitter: if has_jitter { micros(chance, 14) } else { Duration::ZERO },
    }
}

/// Lengths of every size, small ones as often as large ones.
fn exchange(chance: &mut fastrand::Rng) -> Exchange {
    let orders = [Order::Together, Order::Together, Order::OursLast, Order::TheirsLast];
    let len = |chance: &mut fastrand::Rng| {
        let bits = chance.u32(..=LEN_BITS_MAX);
        chance.u64(..1_u64 << bits)
    };
    Exchange {
        ours_len: len(chance),
        theirs_len: len(chance),
        order: orders[chance.usize(..orders.len())],
        seed: chance.u64(..),
    }
}

#[test]
fn seeds_cover_every_kind_of_world() {
    let worlds: Vec<Scenario> = (0..200).map(Scenario::of).collect();
    let has = |what: &dyn Fn(&Scenario) -> bool| {
        let count = worlds.iter().filter(|world| what(world)).count();
        assert!(count >= 3, "{count} of 200");
    };
    for is_ipv6 in [false, true] {
        for we_connect in [false, true] {
            for is_ethernet in [false, true] {
                let cell = (is_ipv6, we_connect, is_ethernet);
                has(&|it| (it.is_ipv6, it.we_connect, it.is_ethernet) == cell);
            }
        }
    }
    let of = |pick: fn(&Faults) -> u32| {
        move |it: &Scenario| pick(&it.inward) > 0 && pick(&it.outward) > 0
    };
    has(&of(|it| it.loss_ppm));
    has(&of(|it| it.duplication_ppm));
    has(&of(|it| it.reordering_ppm));
    has(&of(|it| it.corruption_ppm));
    has(&of(|it| it.jitter.as_micros() as u32));
    for order in [Order::Together, Order::OursLast, Order::TheirsLast] {
        has(&|it| it.exchanges.iter().any(|exchange| exchange.order == order));
    }
}
