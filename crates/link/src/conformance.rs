//! Conformance suite for all link drivers.
//!
//! A driver's test implements [`TestedLink`] (how to open the link, and what stands at its other
//! end) and calls [`all`]. The frames are UDP datagrams over IPv4 with a mark and a number in them;
//! what else comes (a kernel's router solicitations) is passed over, but counted.
//!
//! Every check opens the link anew. A check that fails panics and names the driver.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Link, LinkError, LinkMedium, RxMetadata, TxMetadata};

/// What stands at the other end of the link under test.
pub trait FarEnd: Send {
    /// Sends `frame` into the link. `false`: there is no room now.
    fn inject(&mut self, frame: &[u8]) -> bool;
    /// The next frame that the link sent, waiting for it until `deadline`.
    fn capture(&mut self, deadline: Instant) -> Option<Vec<u8>>;
    /// Goes away, so that the link cannot reach anybody any more.
    fn leave(self: Box<Self>);
}

/// A link, and what stands at its other end.
pub type Opened = (Box<dyn Link>, Box<dyn FarEnd>);

/// How a driver is tested.
pub trait TestedLink {
    /// Opens the link and its other end.
    ///
    /// # Errors
    /// Why this machine cannot have it; the suite is then skipped.
    fn open(&self) -> Result<Opened, String>;

    /// The Ethernet header of frames to the link, and of frames from it; not read for
    /// [`LinkMedium::Ip`].
    fn ethernet_headers(&self, link: &dyn Link) -> [[u8; 14]; 2] {
        let mac = link.caps().mac;
        let other = [2, 0, 0, 0, 0xff, 1];
        [header(mac, other), header(other, mac)]
    }

    /// IPv4 addresses and UDP ports in frames to the link: source and destination. Swapped in
    /// frames from it.
    fn addresses(&self) -> [([u8; 4], u16); 2] {
        [([10, 99, 0, 2], 4_000), ([10, 99, 0, 1], 4_001)]
    }

    /// Frames that may be injected before the link takes one.
    fn backlog(&self) -> usize {
        64
    }

    /// Whether the transmit queue becomes full while the other end does not receive.
    fn fills(&self) -> bool;

    /// The link notices when the other end goes.
    fn notices_leaving(&self) -> bool {
        true
    }

    /// Allocations that this thread has made, if the test counts them.
    fn allocations(&self) -> Option<u64> {
        None
    }
}

/// Runs every check. `Err`: skipped, and why.
///
/// # Errors
/// What [`TestedLink::open`] said.
///
/// # Panics
/// When a check fails.
pub fn all(bench: &dyn TestedLink) -> Result<(), String> {
    let checks: [fn(&dyn TestedLink, Opened); 9] = [
        frames_of_every_size,
        order_and_bursts,
        nothing_to_do,
        a_refused_frame_is_counted,
        a_full_queue_loses_nothing_counted,
        sleep_is_woken,
        no_wake_up_is_lost,
        nothing_is_allocated,
        the_other_end_gone,
    ];
    for check in checks {
        check(bench, bench.open()?);
    }
    Ok(())
}

/// Longest wait for something that has to come.
const SOON: Duration = Duration::from_secs(10);
/// In every frame of the suite, before its number.
const MARK: [u8; 8] = *b"megapipe";
/// IPv4 header, UDP header, mark and number.
const HEADERS_BYTES: usize = 28;
const FRAME_BYTES_MIN: usize = 60;

fn header(to: [u8; 6], from: [u8; 6]) -> [u8; 14] {
    let mut header = [0; 14];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12] = 8;
    header
}

/// Builds the suite's frames for one link.
struct SuiteFrames {
    headers: Option<[[u8; 14]; 2]>,
    addresses: [([u8; 4], u16); 2],
    bytes_max: usize,
    bytes_min: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum FrameWay {
    In,
    Out,
}

impl SuiteFrames {
    fn new(bench: &dyn TestedLink, link: &dyn Link) -> Self {
        let caps = link.caps();
        let is_ethernet = caps.medium == LinkMedium::Ethernet;
        let headers = is_ethernet.then(|| bench.ethernet_headers(link));
        let header_bytes = if is_ethernet { 14 } else { 0 };
        Self {
            headers,
            addresses: bench.addresses(),
            bytes_max: caps.mtu + header_bytes,
            bytes_min: FRAME_BYTES_MIN - 14 + header_bytes,
        }
    }

    /// Frame `number`, `len` bytes long.
    fn make(&self, way: FrameWay, number: u32, len: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(len);
        if let Some([to_link, from_link]) = &self.headers {
            frame.extend(if way == FrameWay::In { to_link } else { from_link });
        }
        let packet_bytes = u16::try_from(len - frame.len()).expect("an IP packet");
        let [mut source, mut destination] = self.addresses;
        if way == FrameWay::Out {
            std::mem::swap(&mut source, &mut destination);
        }
        let mut ip = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        ip[2..4].copy_from_slice(&packet_bytes.to_be_bytes());
        ip[12..16].copy_from_slice(&source.0);
        ip[16..20].copy_from_slice(&destination.0);
        let sum = !crate::checksum::fold(crate::checksum::sum(0, &ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        for half in [source.1, destination.1, packet_bytes - 20, 0] {
            frame.extend(half.to_be_bytes());
        }
        frame.extend(MARK);
        frame.extend(number.to_be_bytes());
        let start = frame.len();
        frame
            .extend((start..len).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number) as u8));
        frame
    }

    /// Returns the number of a frame of the suite, or `None` for any other frame.
    fn number(&self, frame: &[u8]) -> Option<u32> {
        let at = HEADERS_BYTES + if self.headers.is_some() { 14 } else { 0 };
        let is_ours = frame.get(at..at + 8)? == MARK;
        let number = frame.get(at + 8..at + 12)?.try_into().ok()?;
        is_ours.then(|| u32::from_be_bytes(number))
    }
}

/// The link under test, with what it should have counted.
struct Tested {
    link: Box<dyn Link>,
    frames: SuiteFrames,
    rx: (u64, u64),
    tx: (u64, u64),
}

impl Tested {
    fn new(bench: &dyn TestedLink, link: Box<dyn Link>) -> Self {
        let frames = SuiteFrames::new(bench, &*link);
        Self { link, frames, rx: (0, 0), tx: (0, 0) }
    }

    fn driver(&self) -> &'static str {
        self.link.caps().driver
    }

    /// One burst; the suite's frames among what was lent.
    fn receive(&mut self, max: usize, into: &mut Vec<Vec<u8>>) -> usize {
        let (frames, rx) = (&self.frames, &mut self.rx);
        let mut lent = 0;
        let count = self.link.rx_burst(max, &mut |frame, _: RxMetadata| {
            lent += 1;
            rx.0 += 1;
            rx.1 += frame.len() as u64;
            if frames.number(frame).is_some() {
                into.push(frame.to_vec());
            }
        });
        let count = count.expect("rx_burst");
        assert_eq!(count, lent, "{}: the answer counts the calls", self.driver());
        assert!(count <= max, "{}: a burst of {count} is over {max}", self.driver());
        count
    }

    /// Receives until there are `count` frames of the suite, sleeping between bursts.
    fn receive_all(&mut self, count: usize, max: usize) -> Vec<Vec<u8>> {
        let deadline = Instant::now() + SOON;
        let mut all = Vec::new();
        while all.len() < count {
            assert!(Instant::now() < deadline, "{}: {} of {count}", self.driver(), all.len());
            if self.receive(max, &mut all) == 0 {
                self.link.wait(Some(Duration::from_secs(1))).expect("wait");
            }
        }
        all
    }

    /// Sends frames in one burst; how many were filled.
    fn send(&mut self, frames: &[Vec<u8>]) -> usize {
        let mut next = frames.iter();
        let tx = &mut self.tx;
        let count = self.link.tx_burst(frames.len(), &mut |room| {
            let frame = next.next()?;
            room[..frame.len()].copy_from_slice(frame);
            tx.0 += 1;
            tx.1 += frame.len() as u64;
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        let count = count.expect("tx_burst");
        assert_eq!(frames.len() - next.len(), count, "{}: one call a frame", self.driver());
        count
    }

    /// Counters are what we counted.
    fn check_counters(&self) {
        let counters = self.link.counters();
        assert_eq!((counters.rx_frames, counters.rx_bytes), self.rx, "{}", self.driver());
        assert_eq!((counters.tx_frames, counters.tx_bytes), self.tx, "{}", self.driver());
    }

    /// The next of the suite's frames at the other end.
    fn capture(&self, outside: &mut dyn FarEnd) -> Vec<u8> {
        let deadline = Instant::now() + SOON;
        loop {
            let frame = outside.capture(deadline);
            let frame = frame.unwrap_or_else(|| panic!("{}: nothing captured", self.driver()));
            if self.frames.number(&frame).is_some() {
                return frame;
            }
        }
    }

    fn is_readable(&self, patience: Duration) -> bool {
        let timeout = Timespec::try_from(patience).expect("short");
        let mut fds = [PollFd::from_borrowed_fd(self.link.wait_fd(), PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).expect("poll") > 0
    }

    /// Takes what comes unasked, and arms.
    fn arm_quietly(&mut self) {
        let deadline = Instant::now() + SOON;
        while !self.link.arm().expect("arm") {
            assert!(Instant::now() < deadline, "{}: never idle", self.driver());
            self.receive(16, &mut Vec::new());
        }
    }
}

fn frames_of_every_size(bench: &dyn TestedLink, (link, mut outside): Opened) {
    let mut tested = Tested::new(bench, link);
    for len in tested.frames.bytes_min..=tested.frames.bytes_max {
        let number = u32::try_from(len).expect("small");
        let frame = tested.frames.make(FrameWay::In, number, len);
        assert!(outside.inject(&frame), "{}: room for one", tested.driver());
        let got = tested.receive_all(1, 8);
        assert!(got[0] == frame, "{}: received frame of {len} bytes", tested.driver());
        let frame = tested.frames.make(FrameWay::Out, number, len);
        assert_eq!(tested.send(std::slice::from_ref(&frame)), 1, "{}", tested.driver());
        let got = tested.capture(&mut *outside);
        assert!(got == frame, "{}: sent frame of {len} bytes", tested.driver());
    }
    tested.check_counters();
}

fn order_and_bursts(bench: &dyn TestedLink, (link, mut outside): Opened) {
    let mut tested = Tested::new(bench, link);
    let count = bench.backlog();
    for round in 0..8_u32 {
        let first = round * 1_000;
        let numbers = first..first + u32::try_from(count).expect("small");
        for number in numbers.clone() {
            let len = 80 + (number as usize * 97) % 1_200;
            assert!(outside.inject(&tested.frames.make(FrameWay::In, number, len)), "backlog");
        }
        let max = [1, 7, 32, 1_000][round as usize % 4];
        let got = tested.receive_all(count, max);
        let got: Vec<_> = got.iter().filter_map(|frame| tested.frames.number(frame)).collect();
        assert_eq!(got, numbers.clone().collect::<Vec<_>>(), "{}: order in", tested.driver());

        let make = |number| tested.frames.make(FrameWay::Out, number, 60 + number as usize % 900);
        let out: Vec<_> = numbers.clone().map(make).collect();
        let mut sent = 0;
        let mut got = Vec::new();
        while got.len() < out.len() {
            sent += tested.send(&out[sent..]);
            while got.len() < sent {
                got.push(tested.capture(&mut *outside));
            }
        }
        assert!(got == out, "{}: order out", tested.driver());
    }
    tested.check_counters();
}

fn nothing_to_do(bench: &dyn TestedLink, (link, outside): Opened) {
    let mut tested = Tested::new(bench, link);
    tested.arm_quietly();
    let before = tested.link.counters();
    let mut calls = 0;
    let count = tested.link.tx_burst(32, &mut |room| {
        calls += 1;
        assert!(!room.is_empty());
        None
    });
    assert_eq!((count.expect("tx_burst"), calls), (0, 1), "{}", tested.driver());
    let count = tested.link.tx_burst(0, &mut |_| panic!("max is 0"));
    assert_eq!(count.expect("tx_burst"), 0);
    assert_eq!(tested.receive(0, &mut Vec::new()), 0);
    let after = tested.link.counters();
    assert_eq!(before.tx_frames, after.tx_frames);
    tested.check_counters();
    drop(outside);
}

fn a_refused_frame_is_counted(bench: &dyn TestedLink, (link, mut outside): Opened) {
    let mut tested = Tested::new(bench, link);
    for len in [0, usize::MAX] {
        let mut offered = false;
        let count = tested.link.tx_burst(1, &mut |_| {
            let is_first = !std::mem::replace(&mut offered, true);
            is_first.then_some(TxMetadata { len, ..TxMetadata::default() })
        });
        assert_eq!(count.expect("tx_burst"), 1, "{}: it was filled", tested.driver());
    }
    assert_eq!(tested.link.counters().tx_dropped_refused, 2, "{}", tested.driver());
    tested.check_counters();
    let frame = tested.frames.make(FrameWay::Out, 1, 100);
    tested.send(std::slice::from_ref(&frame));
    assert!(tested.capture(&mut *outside) == frame, "{}: the next one goes", tested.driver());
}

fn a_full_queue_loses_nothing_counted(bench: &dyn TestedLink, (link, mut outside): Opened) {
    if !bench.fills() {
        return;
    }
    let mut tested = Tested::new(bench, link);
    let mut sent = 0_u32;
    loop {
        let make = |number| tested.frames.make(FrameWay::Out, number, 200);
        let burst: Vec<_> = (sent..sent + 16).map(make).collect();
        let count = tested.send(&burst);
        sent += u32::try_from(count).expect("small");
        assert!(sent < 1 << 20, "{}: no end to the queue", tested.driver());
        if count < burst.len() {
            break;
        }
    }
    assert!(tested.link.counters().tx_full > 0, "{}: full is counted", tested.driver());
    for number in 0..sent {
        let got = tested.capture(&mut *outside);
        assert_eq!(tested.frames.number(&got), Some(number), "{}: counted", tested.driver());
        if number == 0 {
            // Asleep for want of room: the first frame taken makes some.
            assert!(tested.link.wait(Some(SOON)).expect("wait"), "{}: room", tested.driver());
        }
    }
    let frame = tested.frames.make(FrameWay::Out, sent, 200);
    let deadline = Instant::now() + SOON;
    while tested.send(std::slice::from_ref(&frame)) == 0 {
        assert!(Instant::now() < deadline, "{}: room again", tested.driver());
        tested.link.wait(Some(Duration::from_millis(10))).expect("wait");
    }
    assert!(tested.capture(&mut *outside) == frame, "{}: room again", tested.driver());
    tested.check_counters();
}

fn sleep_is_woken(bench: &dyn TestedLink, (link, mut outside): Opened) {
    let mut tested = Tested::new(bench, link);
    for number in 0..20 {
        tested.arm_quietly();
        let frame = tested.frames.make(FrameWay::In, number, 120);
        assert!(outside.inject(&frame), "{}: room for one", tested.driver());
        assert!(tested.is_readable(SOON), "{}: wait_fd after arm", tested.driver());
        assert_eq!(tested.receive_all(1, 1).len(), 1);
        // What waits already: no sleep.
        assert!(outside.inject(&frame), "{}: room for one", tested.driver());
        let deadline = Instant::now() + SOON;
        while tested.link.arm().expect("arm") && !tested.is_readable(SOON) {
            assert!(Instant::now() < deadline, "{}: arm with a frame waiting", tested.driver());
        }
        assert!(tested.link.wait(Some(SOON)).expect("wait"), "{}", tested.driver());
        tested.receive_all(1, 8);
    }
    tested.check_counters();
}

fn no_wake_up_is_lost(bench: &dyn TestedLink, (link, mut outside): Opened) {
    const COUNT: u32 = 2_000;
    let mut tested = Tested::new(bench, link);
    let frames: Vec<_> = (0..COUNT).map(|n| tested.frames.make(FrameWay::In, n, 100)).collect();
    let (taken, wait_taken) = mpsc::channel::<()>();
    let sender = thread::spawn(move || {
        let mut random = 0x2545_f491_u32;
        for frame in &frames {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // The receiver is now between its last look and its sleep, or somewhere near.
            for _ in 0..random >> 20 {
                std::hint::spin_loop();
            }
            assert!(outside.inject(frame), "the frame before was taken");
            if wait_taken.recv_timeout(SOON).is_err() {
                break;
            }
        }
        outside
    });
    let mut got = Vec::with_capacity(1);
    for number in 0..COUNT {
        got.clear();
        while got.is_empty() {
            if tested.receive(4, &mut got) == 0 {
                let is_woken = tested.link.wait(Some(SOON)).expect("wait");
                assert!(is_woken, "{}: lost the wake-up of {number}", tested.driver());
            }
        }
        assert_eq!(tested.frames.number(&got[0]), Some(number), "{}", tested.driver());
        if taken.send(()).is_err() {
            break;
        }
    }
    let outside = sender.join().expect("the sender's own checks");
    tested.check_counters();
    drop(outside);
}

fn nothing_is_allocated(bench: &dyn TestedLink, (link, mut outside): Opened) {
    let mut tested = Tested::new(bench, link);
    let frame = tested.frames.make(FrameWay::Out, 1, 700);
    let inward = tested.frames.make(FrameWay::In, 1, 700);
    for _ in 0..50 {
        assert!(outside.inject(&inward), "{}: room for one", tested.driver());
        let before = bench.allocations();
        let mut count = 0;
        let deadline = Instant::now() + SOON;
        while count == 0 && Instant::now() < deadline {
            let burst = tested.link.rx_burst(32, &mut |_, _| ());
            count = burst.expect("rx_burst");
            if count == 0 {
                tested.link.wait(Some(Duration::from_secs(1))).expect("wait");
            }
        }
        let mut is_filled = false;
        let sent = tested.link.tx_burst(32, &mut |room| {
            if std::mem::replace(&mut is_filled, true) {
                return None;
            }
            room[..frame.len()].copy_from_slice(&frame);
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        tested.link.wait(Some(Duration::ZERO)).expect("wait");
        assert_eq!(sent.expect("tx_burst"), 1, "{}", tested.driver());
        assert_eq!(bench.allocations(), before, "{}: allocated", tested.driver());
        tested.capture(&mut *outside);
    }
}

fn the_other_end_gone(bench: &dyn TestedLink, (link, outside): Opened) {
    if !bench.notices_leaving() {
        return;
    }
    let mut tested = Tested::new(bench, link);
    let driver = tested.driver();
    tested.arm_quietly();
    outside.leave();
    let deadline = Instant::now() + SOON;
    loop {
        assert!(Instant::now() < deadline, "{driver}: the loss of the other end was not reported");
        match tested.link.rx_burst(16, &mut |_, _| ()) {
            Err(LinkError::Gone { driver: named }) => break assert_eq!(named, driver),
            Err(error) => panic!("{driver}: {error} instead of Gone"),
            Ok(_) => match tested.link.wait(Some(Duration::from_secs(1))) {
                Ok(_) | Err(LinkError::Gone { .. }) => {}
                Err(error) => panic!("{driver}: {error} instead of Gone"),
            },
        }
    }
    let frame = tested.frames.make(FrameWay::Out, 1, 100);
    let sent = tested.link.tx_burst(1, &mut |room| {
        room[..frame.len()].copy_from_slice(&frame);
        Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
    });
    assert!(
        matches!(sent, Err(LinkError::Gone { .. })),
        "{driver}: sent {sent:?} without a receiver"
    );
}

/// Two ends in one process, each the other's outside: how `pair` is tested, and what a test of a
/// wrapper can stand on.
pub struct OtherEnd<L>(pub L);

impl<L: Link> FarEnd for OtherEnd<L> {
    fn inject(&mut self, frame: &[u8]) -> bool {
        let sent = self.0.tx_burst(1, &mut |room| {
            room[..frame.len()].copy_from_slice(frame);
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        sent.expect("the link under test is open") == 1
    }

    fn capture(&mut self, deadline: Instant) -> Option<Vec<u8>> {
        let mut captured = None;
        loop {
            let taken = self.0.rx_burst(1, &mut |frame, _| captured = Some(frame.to_vec()));
            if taken.expect("the link under test is open") == 1 {
                return captured;
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            self.0.wait(Some(left)).expect("the link under test is open");
        }
    }

    fn leave(self: Box<Self>) {
        drop(self);
    }
}
