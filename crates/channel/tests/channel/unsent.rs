//! What a peer that does not read can hold of the channel's memory: `Config::unsent_bytes_max`,
//! writes that are refused, and `Event::Drained`.

use std::thread;
use std::time::{Duration, Instant};

use megapipe::{
    Address, Channel, Completion, Config, ConnectOptions, Disconnect, Event, Handle, Limit,
    ListenOptions, Misuse, OpError, OpenOptions, Payload, SubmitError,
};
use rustix::net::{AddressFamily, SocketType};

use crate::place::there;
use crate::scene::{
    A_WHILE, Case, Folder, PATIENCE, Peer, Scene, Stream, on_each_driver, pattern, reset,
};

on_each_driver![
    a_broadcaster_to_a_peer_that_never_reads_keeps_its_memory,
    a_write_is_taken_up_to_the_limit_and_not_a_byte_beyond,
    drained_comes_once_when_half_of_the_limit_is_free,
    a_refusal_below_half_is_followed_by_drained_with_the_next_bytes,
    a_write_longer_than_the_limit_goes_alone,
    a_refusal_before_anything_was_handed_over_is_followed_by_drained,
    random_writes_agree_with_the_model,
    a_reset_by_the_peer_comes_without_drained,
    an_end_by_the_channel_comes_without_drained,
    a_handle_that_leaves_takes_its_refusal_along,
    writes_before_the_connection_is_there_count,
    a_connection_that_is_refused_comes_without_drained,
    pipes_and_message_sockets_have_the_limit_too,
    writes_at_offsets_of_files_do_not_count,
    unsent_limit_defaults_to_one_mebibyte,
    notsent_lowat_bounds_what_is_taken_and_not_sent,
];

/// A limit that is not a multiple of the writes here.
const MAX: usize = 300_001;

const REFUSED: Result<(), SubmitError> = Err(SubmitError::Limit(Limit::UnsentBytes { max: MAX }));

fn scene(case: &Case) -> Scene {
    case.scene_with(case.config().unsent_bytes_max(MAX))
}

/// Writes quietly until the network takes no more and `unsent` bytes wait or a few more. Returns
/// what was written.
fn fill(scene: &mut Scene, handle: Handle, unsent: usize) -> Vec<u8> {
    const LEN: usize = 20_000;
    let mut sent = Vec::new();
    loop {
        // Until none of it moves: a socket's buffer may grow while it is being filled.
        scene.expect_silence();
        while scene.unsent_bytes(handle).unwrap() < unsent {
            let bytes = pattern(sent.len(), LEN);
            sent.extend_from_slice(&bytes);
            scene.write_quiet(handle, bytes).unwrap();
            assert!(sent.len() < 64 << 20, "the network takes everything");
        }
        scene.expect_silence();
        if scene.unsent_bytes(handle).unwrap() >= unsent {
            return sent;
        }
    }
}

/// Reads all that the peer was sent so far; returns it, and the completions that came meanwhile.
fn read_all(scene: &mut Scene, peer: &mut Peer, len: usize) -> (Vec<u8>, Vec<Completion>) {
    let mut reader = peer.try_clone().unwrap();
    let reader = thread::spawn(move || crate::scene::receive(&mut reader, len));
    let mut done = Vec::new();
    while !reader.is_finished() {
        done.extend(scene.dispatch(Some(Duration::from_millis(1))).unwrap());
    }
    while let Some(late) = scene.dispatch(Some(A_WHILE)).unwrap() {
        done.push(late);
    }
    (reader.join().unwrap(), done)
}

fn is_drained(done: &Completion) -> bool {
    matches!(done.event, Event::Drained)
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

fn a_broadcaster_to_a_peer_that_never_reads_keeps_its_memory(case: &Case) {
    const LEN: usize = 16 << 10;
    const WRITES: usize = 16 << 10;
    case.alone(|| {
        let mut scene = case.scene();
        let (deaf, _peer) = scene.stream(Stream::Accepted4);
        let (listening, mut reader) = scene.stream(Stream::Accepted4);
        let message: Vec<u8> = pattern(1, LEN);
        let before = resident_bytes();
        let mut refused = 0;
        for turn in 0..WRITES {
            let mut copy = scene.alloc(LEN);
            copy.extend_from_slice(&message);
            refused += u64::from(scene.write_quiet(deaf, copy).is_err());
            if turn % 64 == 0 {
                let _ = scene.dispatch(Some(Duration::ZERO)).unwrap();
                let grown = resident_bytes().saturating_sub(before);
                assert!(grown < 48 << 20, "{grown} bytes after {turn} writes");
                // The others are served all the time.
                scene.write_quiet(listening, &b"here"[..]).unwrap();
                while scene.unsent_bytes(listening).unwrap() > 0 {
                    let _ = scene.dispatch(Some(Duration::from_millis(1))).unwrap();
                }
                assert_eq!(scene.receive(&mut reader, 4), b"here");
            }
        }
        assert!(scene.unsent_bytes(deaf).unwrap() <= 1 << 20);
        assert_eq!(scene.counters().writes_refused, refused);
        assert!(refused > WRITES as u64 / 2, "{refused}");
    });
}

fn a_write_is_taken_up_to_the_limit_and_not_a_byte_beyond(case: &Case) {
    let mut scene = scene(case);
    for kind in [Stream::Accepted4, Stream::RegisteredTcp, Stream::AcceptedUnix] {
        let (handle, mut peer) = scene.stream(kind);
        let mut sent = fill(&mut scene, handle, MAX / 2);
        let room = MAX - scene.unsent_bytes(handle).unwrap();
        let counted = scene.counters();
        let one_more = vec![0; room + 1];
        assert_eq!(scene.write(handle, one_more.clone()), REFUSED, "{kind:?}");
        assert_eq!(scene.write_quiet(handle, one_more.clone()).map(drop), REFUSED);
        assert_eq!(scene.write_copied(handle, &one_more).map(drop), REFUSED);
        let halves = [0, 1].map(|more| Payload::from(vec![0; room / 2 + more]));
        let parts = halves.into_iter().chain([vec![0; room % 2].into()]);
        assert_eq!(scene.writev(handle, parts), REFUSED);
        let refused = scene.counters();
        assert_eq!(refused.writes_refused, counted.writes_refused + 4);
        assert_eq!(refused.operations, counted.operations, "nothing was queued");
        assert_eq!(scene.unsent_bytes(handle), Ok(MAX - room));
        let last = pattern(7, room);
        scene.write_quiet(handle, last.clone()).unwrap();
        sent.extend(last);
        assert_eq!(scene.unsent_bytes(handle), Ok(MAX));
        assert_eq!(scene.write_quiet(handle, "x").map(drop), REFUSED);
        // What is wrong is wrong whatever is unsent.
        let nothing = scene.write(handle, "");
        assert!(matches!(nothing, Err(SubmitError::Misuse(Misuse::InvalidLength { .. }))));
        scene.expect_silence();
        let (got, done) = read_all(&mut scene, &mut peer, sent.len());
        assert!(got == sent, "{kind:?}");
        assert!(matches!(done[..], [ref only] if is_drained(only)), "{kind:?} {done:?}");
        scene.unregister(handle).unwrap();
    }
    scene.expect_no_strays();
}

fn drained_comes_once_when_half_of_the_limit_is_free(case: &Case) {
    let mut scene = scene(case);
    for kind in [Stream::Accepted4, Stream::Connected6, Stream::RegisteredUnix] {
        let (handle, mut peer) = scene.stream(kind);
        for _period in 0..3 {
            let sent = fill(&mut scene, handle, MAX * 3 / 4);
            for _ in 0..3 {
                assert_eq!(scene.write_quiet(handle, vec![0; MAX]).map(drop), REFUSED);
            }
            let mut got = Vec::new();
            let done = loop {
                match scene.dispatch(Some(Duration::from_millis(1))).unwrap() {
                    Some(done) => break done,
                    None => {
                        let unsent = scene.unsent_bytes(handle).unwrap();
                        assert!(unsent > MAX / 2, "{unsent} bytes and no word: {kind:?}");
                        assert!(got.len() < sent.len(), "{kind:?}");
                        let step = (sent.len() - got.len()).min(20_000);
                        got.extend(scene.receive(&mut peer, step));
                    }
                }
            };
            assert!(is_drained(&done) && done.handle == handle, "{done:?}");
            assert!(scene.unsent_bytes(handle).unwrap() <= MAX / 2, "{kind:?}");
            // It is taken again, and nothing more is said of what was refused.
            scene.write_quiet(handle, &b"again"[..]).unwrap();
            let (rest, done) = read_all(&mut scene, &mut peer, sent.len() + 5 - got.len());
            assert!(done.is_empty(), "{kind:?} {done:?}");
            got.extend(rest);
            assert!(got == [sent, b"again".to_vec()].concat(), "{kind:?}");
        }
        scene.unregister(handle).unwrap();
    }
}

fn a_refusal_below_half_is_followed_by_drained_with_the_next_bytes(case: &Case) {
    let mut scene = scene(case);
    let (handle, mut peer) = scene.stream(Stream::Accepted4);
    let sent = fill(&mut scene, handle, 1);
    let unsent = scene.unsent_bytes(handle).unwrap();
    assert!((1..=MAX / 2).contains(&unsent), "{unsent}");
    // It is refused for its own length. To say at once that there is room would be no help.
    assert_eq!(scene.write(handle, vec![0; MAX]), REFUSED);
    let mut all: Vec<_> = scene.dispatch(Some(A_WHILE)).unwrap().into_iter().collect();
    // A window may open by a few bytes although the peer does not read.
    assert!(all.is_empty() || scene.unsent_bytes(handle).unwrap() < unsent, "{all:?}");
    let (got, done) = read_all(&mut scene, &mut peer, sent.len());
    all.extend(done);
    assert!(got == sent);
    assert!(matches!(all[..], [ref only] if is_drained(only)), "{all:?}");
}

fn a_write_longer_than_the_limit_goes_alone(case: &Case) {
    const LEN: usize = 24 << 20;
    let mut scene = scene(case);
    for kind in [Stream::Accepted4, Stream::RegisteredUnix] {
        for is_quiet in [true, false] {
            let (handle, mut peer) = scene.stream(kind);
            let bytes = pattern(3, LEN);
            match is_quiet {
                true => drop(scene.write_quiet(handle, bytes.clone()).unwrap()),
                false => scene.write(handle, bytes.clone()).unwrap(),
            }
            scene.expect_silence();
            assert!(scene.unsent_bytes(handle).unwrap() > MAX);
            assert_eq!(scene.write(handle, "x"), REFUSED);
            assert_eq!(scene.write(handle, vec![0; LEN]), REFUSED);
            let (got, done) = read_all(&mut scene, &mut peer, LEN);
            assert!(got == bytes, "{kind:?}");
            let drained = done.iter().filter(|done| is_drained(done)).count();
            let written = done.iter().filter(|done| matches!(done.event, Event::Write(Ok(LEN))));
            assert_eq!((drained, written.count()), (1, usize::from(!is_quiet)), "{done:?}");
            // With nothing unsent it is taken again.
            scene.write_quiet(handle, vec![0; LEN]).unwrap();
            scene.unregister(handle).unwrap();
        }
    }
}

fn a_refusal_before_anything_was_handed_over_is_followed_by_drained(case: &Case) {
    const LEN: usize = 3000;
    for batch in [1, 32] {
        let config = case.config().unsent_bytes_max(LEN + LEN / 2).batch(batch);
        let mut scene = case.scene_with(config);
        let (handle, mut peer) = scene.stream(Stream::Accepted4);
        let mut sent = 0;
        for turn in 0..100 {
            let mut buffer = scene.alloc(LEN);
            buffer.extend_from_slice(&pattern(turn, LEN));
            match scene.write_quiet(handle, buffer) {
                Ok(_) => sent += LEN,
                // What waits fits into the socket; the peer need not read.
                Err(SubmitError::Limit(Limit::UnsentBytes { .. })) => {
                    assert!(matches!(scene.next_of(handle), Event::Drained));
                }
                Err(other) => panic!("{other}"),
            }
            if turn % 10 == 9 {
                assert_eq!(scene.receive(&mut peer, sent).len(), sent);
                sent = 0;
            }
        }
        scene.expect_silence();
    }
}

/// Numbers from a seed (xorshift64*).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// What a random program knows.
#[derive(Default)]
struct Model {
    sent: Vec<u8>,
    received: usize,
    /// Lengths of writes whose completions are to come.
    aloud: std::collections::VecDeque<usize>,
    /// A write was refused, and `Drained` did not come yet.
    refused: bool,
    /// Unsent bytes at the last refusal.
    unsent_at_refusal: usize,
}

impl Model {
    fn write(&mut self, scene: &mut Scene, handle: Handle, numbers: &mut Numbers) {
        let len = match numbers.below(8) {
            0 => 1 + numbers.below(2 * MAX),
            1..=3 => 1 + numbers.below(MAX / 4),
            _ => 1 + numbers.below(4000),
        };
        let bytes = pattern(self.sent.len(), len);
        let unsent = scene.unsent_bytes(handle).unwrap();
        let fits = unsent == 0 || unsent + len <= MAX;
        let how = numbers.below(4);
        let written = match how {
            0 => scene.write(handle, bytes.clone()),
            1 => {
                let (front, back) = bytes.split_at(len / 2);
                scene.writev(handle, [front, back].map(|part| Payload::from(part.to_vec())))
            }
            2 => scene.write_copied(handle, &bytes).map(drop),
            _ => {
                let mut buffer = scene.alloc(len);
                buffer.extend_from_slice(&bytes);
                scene.write_quiet(handle, buffer).map(drop)
            }
        };
        assert_eq!(written, if fits { Ok(()) } else { REFUSED }, "{unsent} and {len} more");
        if !fits {
            (self.refused, self.unsent_at_refusal) = (true, unsent);
            return;
        }
        self.sent.extend(bytes);
        if how < 2 {
            self.aloud.push_back(len);
        }
    }

    fn dispatch(&mut self, scene: &mut Scene, handle: Handle, timeout: Duration) -> bool {
        let Some(done) = scene.dispatch(Some(timeout)).unwrap() else {
            let unsent = scene.unsent_bytes(handle).unwrap();
            // A long write may be refused below half: then the next bytes that go out count.
            let least = self.unsent_at_refusal.min(MAX / 2 + 1);
            assert!(!self.refused || unsent >= least, "no word of room with {unsent} unsent");
            return false;
        };
        match done.event {
            Event::Write(Ok(len)) => assert_eq!(Some(len), self.aloud.pop_front()),
            Event::Drained => assert!(std::mem::take(&mut self.refused), "nothing was refused"),
            other => panic!("{other:?}"),
        }
        true
    }

    fn receive(&mut self, peer: &mut Peer, len: usize) {
        use std::io::Read;
        let mut bytes = vec![0; len];
        match peer.read(&mut bytes) {
            Ok(len) => {
                let end = self.received + len;
                assert!(bytes[..len] == self.sent[self.received..end], "bytes in order");
                self.received = end;
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

fn random_writes_agree_with_the_model(case: &Case) {
    for seed in 1..=12_u64 {
        let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut scene = scene(case);
        let kinds = [Stream::Accepted4, Stream::Connected6, Stream::AcceptedUnix];
        let (handle, mut peer) = scene.stream(kinds[numbers.below(kinds.len())]);
        peer.set_nonblocking(true).unwrap();
        // A peer that reads seldom fills up, one that reads much does not.
        let reads = 1 + numbers.below(3);
        let mut model = Model::default();
        for _ in 0..400 {
            match numbers.below(8) {
                action if action < reads => {
                    let len = 1 + numbers.below(200_000);
                    model.receive(&mut peer, len);
                }
                7 => drop(model.dispatch(&mut scene, handle, Duration::ZERO)),
                _ => model.write(&mut scene, handle, &mut numbers),
            }
        }
        let start = Instant::now();
        while model.received < model.sent.len() || !model.aloud.is_empty() || model.refused {
            assert!(start.elapsed() < PATIENCE, "seed {seed}: {} bytes", model.received);
            model.dispatch(&mut scene, handle, Duration::from_millis(1));
            if model.received < model.sent.len() {
                model.receive(&mut peer, 1 << 20);
            }
        }
        scene.expect_silence();
        scene.unregister(handle).unwrap();
        scene.expect_no_strays();
    }
}

fn a_reset_by_the_peer_comes_without_drained(case: &Case) {
    let mut scene = scene(case);
    for kind in Stream::TCP {
        let (handle, peer) = scene.stream(kind);
        fill(&mut scene, handle, MAX * 3 / 4);
        scene.write(handle, "the last").unwrap();
        assert_eq!(scene.write(handle, vec![0; MAX]), REFUSED);
        reset(peer);
        let mut failed = 0;
        while let Some(done) = scene.dispatch(Some(A_WHILE * 3)).unwrap() {
            match done.event {
                Event::Write(Err(OpError::Reset | OpError::BrokenPipe)) => failed += 1,
                other => panic!("{kind:?} {other:?}"),
            }
        }
        // Quiet writes fail aloud.
        assert!(failed > 1, "{kind:?}");
        assert_eq!(scene.unsent_bytes(handle), Ok(0));
        // Writes are taken again, and fail as without a limit.
        scene.write(handle, "too late").unwrap();
        assert!(matches!(scene.next_of(handle), Event::Write(Err(_))), "{kind:?}");
        scene.expect_silence();
        scene.unregister(handle).unwrap();
    }
}

fn an_end_by_the_channel_comes_without_drained(case: &Case) {
    let mut scene = scene(case);
    for kind in [Stream::Accepted4, Stream::Connected4, Stream::RegisteredTcp] {
        for how in [Disconnect::Write, Disconnect::Both, Disconnect::Reset] {
            let (handle, mut peer) = scene.stream(kind);
            let sent = fill(&mut scene, handle, MAX / 2);
            assert_eq!(scene.write(handle, vec![0; MAX]), REFUSED);
            scene.disconnect(handle, how).unwrap();
            let done = match how {
                Disconnect::Reset => {
                    let done = |scene: &mut Scene| scene.dispatch(Some(A_WHILE)).unwrap();
                    std::iter::from_fn(|| done(&mut scene)).collect()
                }
                _ => {
                    let (got, done) = read_all(&mut scene, &mut peer, sent.len());
                    assert!(got == sent, "{kind:?} {how:?}");
                    done
                }
            };
            let ended = done.iter().filter(|it| matches!(it.event, Event::Disconnect(Ok(()))));
            assert_eq!(ended.count(), 1, "{kind:?} {how:?} {done:?}");
            assert!(!done.iter().any(is_drained), "{kind:?} {how:?} {done:?}");
            scene.unregister(handle).unwrap();
        }
    }
}

fn a_handle_that_leaves_takes_its_refusal_along(case: &Case) {
    let mut scene = scene(case);
    for kind in [Stream::Accepted4, Stream::AcceptedUnix, Stream::RegisteredUnix] {
        for _ in 0..3 {
            let (handle, mut peer) = scene.stream(kind);
            let sent = fill(&mut scene, handle, MAX / 2).len();
            assert_eq!(scene.write(handle, vec![0; MAX]), REFUSED);
            let left = scene.unregister(handle).unwrap();
            // The slot's next handle was refused nothing.
            let (next, mut reader) = scene.stream(kind);
            scene.write_quiet(next, &b"next"[..]).unwrap();
            scene.flush().unwrap();
            drop(left);
            let got = scene.end_of(&mut peer).map_or(0, |got| got.len());
            assert!(got <= sent, "{kind:?}");
            assert_eq!(scene.receive(&mut reader, 4), b"next");
            scene.expect_silence();
            scene.unregister(next).unwrap();
        }
    }
    scene.expect_no_strays();
}

fn writes_before_the_connection_is_there_count(case: &Case) {
    let mut scene = scene(case);
    let listener = std::net::TcpListener::bind(there("127.0.0.1:0")).unwrap();
    let address: Address = listener.local_addr().unwrap().into();
    let handle = scene.connect(&address, &ConnectOptions::default(), 0).unwrap();
    let sent = pattern(1, MAX - 1);
    scene.write_quiet(handle, sent.clone()).unwrap();
    assert_eq!(scene.write(handle, "xx"), REFUSED);
    scene.write_quiet(handle, "x").unwrap();
    scene.flush().unwrap();
    let mut peer = scene.admit(&listener);
    let (got, done) = read_all(&mut scene, &mut peer, MAX);
    assert!(got[..MAX - 1] == sent[..] && got[MAX - 1] == b'x');
    let count = |wanted: fn(&Event) -> bool| done.iter().filter(|it| wanted(&it.event)).count();
    assert_eq!(count(|event| matches!(event, Event::Connect(Ok(())))), 1, "{done:?}");
    assert_eq!((count(|event| matches!(event, Event::Drained)), done.len()), (1, 2), "{done:?}");
}

fn a_connection_that_is_refused_comes_without_drained(case: &Case) {
    let mut scene = scene(case);
    // Bound and not listening: nothing else gets the port, and connections to it are refused.
    let kind = (AddressFamily::INET, SocketType::STREAM);
    let deaf = rustix::net::socket(kind.0, kind.1, None).unwrap();
    rustix::net::bind(&deaf, &there("127.0.0.1:0")).unwrap();
    let deaf = std::net::TcpListener::from(deaf);
    let address: Address = deaf.local_addr().unwrap().into();
    let handle = scene.connect(&address, &ConnectOptions::default(), 0).unwrap();
    scene.write_quiet(handle, pattern(1, MAX)).unwrap();
    assert_eq!(scene.write(handle, "x"), REFUSED);
    assert!(matches!(scene.next_of(handle), Event::Connect(Err(OpError::Refused))));
    assert!(matches!(scene.next_of(handle), Event::Write(Err(OpError::Refused))));
    scene.expect_silence();
}

/// Writes until something is refused, empties the other side, and expects `Drained`.
fn expect_limit(scene: &mut Scene, handle: Handle, mut empty: impl FnMut() -> bool) {
    const LEN: usize = 4000;
    let (mut refused, start) = (false, Instant::now());
    while !refused {
        assert!(start.elapsed() < PATIENCE);
        // What the other side's buffer takes is no concern of the limit's.
        if scene.unsent_bytes(handle).unwrap() == 0 {
            let _ = scene.dispatch(Some(Duration::from_millis(1))).unwrap();
        }
        let written = scene.write_quiet(handle, vec![0; LEN]);
        refused = written.map(drop) == REFUSED;
    }
    assert!(scene.unsent_bytes(handle).unwrap() > MAX - LEN);
    scene.expect_silence();
    let mut drained = 0;
    while scene.unsent_bytes(handle).unwrap() > 0 || empty() {
        assert!(start.elapsed() < PATIENCE);
        if let Some(done) = scene.dispatch(Some(Duration::from_millis(1))).unwrap() {
            assert!(is_drained(&done), "{done:?}");
            drained += 1;
        }
        empty();
    }
    assert_eq!(drained, 1);
}

fn pipes_and_message_sockets_have_the_limit_too(case: &Case) {
    let mut scene = scene(case);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let handle = scene.register(writer, 0, None).unwrap();
    let mut room = [0; 8192];
    expect_limit(&mut scene, handle, || rustix::io::read(&reader, &mut room).is_ok());
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let handle = scene.register(ours.into(), 0, None).unwrap();
    expect_limit(&mut scene, handle, || theirs.recv(&mut room).is_ok());
}

fn writes_at_offsets_of_files_do_not_count(case: &Case) {
    const LEN: usize = MAX / 2;
    let (mut scene, folder) = (scene(case), Folder::new());
    let file = scene.open(&folder.path("file"), &OpenOptions::write(), 0).unwrap();
    assert!(matches!(scene.next_of(file), Event::Open(Ok(()))));
    for block in 0..8 {
        scene.write_at(file, (block * LEN) as u64, vec![1; LEN]).unwrap();
    }
    for _ in 0..8 {
        assert!(matches!(scene.next_of(file), Event::Write(Ok(LEN))));
    }
    scene.expect_silence();
}

fn unsent_limit_defaults_to_one_mebibyte(case: &Case) {
    const DEFAULT: usize = 1 << 20;
    let over = |max| Err(SubmitError::Limit(Limit::UnsentBytes { max }));
    // Nothing has been handed over when the second is asked for, and the handle is connecting.
    let second = |config: Config, len| {
        let mut channel = Channel::create(config).unwrap();
        let options = ConnectOptions::default();
        let handle = channel.connect(&there("127.0.0.1:9").into(), &options, 0);
        let handle = handle.unwrap();
        channel.write(handle, vec![0; DEFAULT]).unwrap();
        channel.write(handle, vec![0; len])
    };
    assert_eq!(second(case.config(), 1), over(DEFAULT));
    assert_eq!(second(case.config().unsent_bytes_max(DEFAULT + 7), 8), over(DEFAULT + 7));
    assert_eq!(second(case.config().unsent_bytes_max(DEFAULT + 7), 7), Ok(()));
    assert_eq!(second(case.config().unsent_bytes_max(usize::MAX), DEFAULT), Ok(()));
}

/// How many bytes a connection to a peer that does not read takes, with this mark and made by this
/// side or the other; then the peer reads all.
fn taken_with(case: &Case, mark: u32, is_accepted: bool) -> usize {
    const LEN: usize = 16 << 10;
    const WRITES: usize = 256;
    let mut scene = case.scene_without_limit();
    let (handle, mut peer) = if is_accepted {
        let options = ListenOptions::default().notsent_lowat(mark);
        scene.accepted_with("127.0.0.1:0", &options)
    } else {
        let options = ConnectOptions::default().notsent_lowat(mark);
        scene.connected_with("127.0.0.1:0", &options)
    };
    let mut sent = Vec::new();
    for number in 0..WRITES {
        let bytes = pattern(number, LEN);
        sent.extend_from_slice(&bytes);
        // Both kinds of writes wait.
        if number % 2 == 0 {
            scene.write(handle, bytes).unwrap();
        } else {
            scene.write_quiet(handle, bytes).unwrap();
        }
    }
    while scene.dispatch(Some(A_WHILE)).unwrap().is_some() {}
    let taken = sent.len() - scene.unsent_bytes(handle).unwrap();
    let (received, _) = read_all(&mut scene, &mut peer, sent.len());
    assert!(received == sent, "what waited arrives in order");
    taken
}

fn notsent_lowat_bounds_what_is_taken_and_not_sent(case: &Case) {
    for is_accepted in [false, true] {
        let without = taken_with(case, 0, is_accepted);
        let with = taken_with(case, 4_096, is_accepted);
        assert!(with > 0 && with + (128 << 10) <= without, "{with} with, {without} without");
    }
}
