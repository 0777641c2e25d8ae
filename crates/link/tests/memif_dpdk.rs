//! memif against DPDK's own driver: `dpdk-testpmd` at the other end of the cable, in both roles.
//!
//! Needs Debian's `dpdk` package, and root (its files in `/var/run`); skips itself and says so
//! where they are missing.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use megapipe_link::memif::{self, Memif, MemifRole, MemifSettings};
use megapipe_link::{Link, LinkError, TxMetadata};

/// How long nothing may happen. All of it takes as long as it takes: DPDK takes long to begin, and
/// its threads spin on a core that others may want as well.
const PATIENCE: Duration = Duration::from_secs(60);

/// One at a time: each testpmd keeps a core busy.
static TURN: Mutex<()> = Mutex::new(());

/// How many instances of DPDK were started.
static STARTS: AtomicU32 = AtomicU32::new(0);

/// DPDK at the other end. Killed when dropped.
struct Testpmd {
    child: Child,
    socket: PathBuf,
    printed: Arc<Printed>,
    readers: Vec<JoinHandle<()>>,
}

/// Reads what a child prints into `printed`, until both ends are closed: no pipe of it ever fills.
fn read_to_end(from: impl Read + Send + 'static, printed: &Arc<Printed>) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    std::thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            let mut text = printed.text.lock().expect("no panic");
            text.push_str(&String::from_utf8_lossy(&line));
            text.push('\n');
            printed.grown.notify_all();
        }
    })
}

#[derive(Default)]
struct Printed {
    text: Mutex<String>,
    grown: Condvar,
}

impl Testpmd {
    /// Starts it in `role` with arguments for the device and for the application.
    fn start(role: &str, socket: PathBuf, device: &str, application: &[&str]) -> Self {
        let device = format!(
            "--vdev=net_memif0,role={role},socket={},socket-abstract=no,id=3,{device}",
            socket.display()
        );
        // Its own: what an instance before this one has left behind may still be locked.
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("--file-prefix=mp-memif-{}-{number}", std::process::id());
        // Both of its threads share one CPU: the other one is ours.
        let arguments =
            ["--no-huge", "-m", "256", "--lcores", "0@1,1@1", "--no-pci", "--no-telemetry"];
        // Each line comes when it is printed.
        let mut child = Command::new("timeout")
            .args(["--signal=KILL", "300", "stdbuf", "--output=L", "dpdk-testpmd"])
            .args(arguments)
            .args([&prefix, &device, "--", "-i", "--disable-link-check"])
            .args(["--total-num-mbufs=8192", "--port-topology=loop", "--no-flush-rx"])
            .args(application)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("dpdk-testpmd starts");
        let printed = Arc::default();
        let readers = vec![
            read_to_end(child.stdout.take().expect("piped"), &printed),
            read_to_end(child.stderr.take().expect("piped"), &printed),
        ];
        Self { child, socket, printed, readers }
    }

    /// What it has printed, once it has ended.
    fn printed(&mut self) -> String {
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        std::mem::take(&mut self.printed.text.lock().expect("no panic"))
    }

    /// Types `command` until it has printed `answer`, for a minute at most: one that does not start
    /// or has crashed is reported by what is done with it next.
    fn ask_until(&mut self, command: &str, answer: &str) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            let _ = writeln!(self.child.stdin.as_mut().expect("piped"), "{command}");
            let text = self.printed.text.lock().expect("no panic");
            let pause = Duration::from_millis(100);
            let is_missing = |text: &mut String| !text.contains(answer);
            let (_text, waited) =
                self.printed.grown.wait_timeout_while(text, pause, is_missing).expect("no panic");
            if !waited.timed_out() {
                return;
            }
        }
    }

    /// Waits until its port is started. A client that DPDK 22.11 sends away before that can end it:
    /// its interrupt thread panics if a socket that it is about to watch was closed meanwhile.
    fn wait_until_started(&mut self) {
        self.ask_until("show port summary 0", "net_memif");
    }

    /// Lets it forward, now that both ends are connected. DPDK 22.11 reads its ring's address
    /// before it looks whether it is connected: a thread that forwards while the rings are mapped
    /// can crash it.
    fn begin(&mut self) {
        self.ask_until("show port summary 0", " up ");
        let stdin = self.child.stdin.as_mut().expect("piped");
        let _ = writeln!(stdin, "start");
    }

    /// Ends it, and fails with what it has printed.
    fn fail(mut self, error: &dyn std::fmt::Debug) -> ! {
        // One that has crashed closes its sockets before `timeout` reports it.
        std::thread::sleep(Duration::from_secs(1));
        let before = self.child.try_wait().expect("a child of ours");
        self.end();
        panic!("{error:?}; DPDK (ended before: {before:?}) printed:\n{}", self.printed());
    }

    /// `echo`, which fails with what it has printed.
    fn echoes(self, link: &mut Memif, count: u32, check: &dyn Fn(u32, &[u8])) -> Self {
        match echo(link, count, check) {
            Ok(()) => self,
            Err(error) => self.fail(&(error, link.gone_reason(), link.counters())),
        }
    }

    fn end(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // `timeout` passes a TERM on to its child; a child that is gone already is as good.
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }

    /// Types `commands`, ends the program, and returns what it has printed.
    fn finish(mut self, commands: &str) -> String {
        let mut stdin = self.child.stdin.take().expect("piped");
        write!(stdin, "{commands}\nstop\nquit\n").expect("testpmd listens");
        drop(stdin);
        self.printed()
    }
}

impl Drop for Testpmd {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// `None`: skipped, with a word about why.
fn is_possible() -> bool {
    let has_testpmd = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join("dpdk-testpmd").is_file())
    });
    if !has_testpmd {
        eprintln!("skipped: dpdk-testpmd is missing (apt-get install dpdk-dev)");
    } else if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: dpdk-testpmd needs root");
        return false;
    }
    has_testpmd
}

fn settings(name: &str, queue_count: u16) -> MemifSettings {
    let socket = std::env::temp_dir().join(format!("mp-memif-{}-{name}", std::process::id()));
    MemifSettings { id: 3, queue_count, ..MemifSettings::new(socket, [2, 0, 0, 0, 0, 1]) }
}

/// Opens our end in `role`, with DPDK in the other.
fn joined(
    role: MemifRole,
    settings: &MemifSettings,
    device: &str,
    app: &[&str],
) -> (Testpmd, Vec<Memif>) {
    let socket = settings.socket.clone();
    match role {
        MemifRole::Client => {
            let mut testpmd = Testpmd::start("server", socket, device, app);
            testpmd.wait_until_started();
            match memif::connect(settings, PATIENCE) {
                Ok(links) => {
                    testpmd.begin();
                    (testpmd, links)
                }
                Err(error) => testpmd.fail(&error),
            }
        }
        MemifRole::Server => {
            let mut listener = memif::Listener::bind(settings).expect("listener");
            let mut testpmd = Testpmd::start("client", socket, device, app);
            match listener.accept(PATIENCE) {
                Ok(links) => {
                    testpmd.begin();
                    (testpmd, links)
                }
                Err(error) => testpmd.fail(&error),
            }
        }
    }
}

fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend(number.to_be_bytes());
    frame.extend((frame.len()..len).map(|at| at as u8 ^ number as u8));
    frame
}

/// Frames on their way at a time: testpmd drops what does not fit into the ring back to us, and a
/// frame takes up to six slots of 512.
const WINDOW: u32 = 64;

/// Sends `count` frames, a few on their way at a time, and takes all of them back in order.
fn echo(link: &mut Memif, count: u32, check: &dyn Fn(u32, &[u8])) -> Result<(), LinkError> {
    let mut moved = Instant::now();
    let (mut sent, mut back) = (0, 0);
    while back < count {
        assert!(
            moved.elapsed() < PATIENCE,
            "{back} of {count} came back, {sent} were sent: {link:?}"
        );
        let room = (back + WINDOW).min(count).saturating_sub(sent);
        let filled = link.tx_burst(room as usize, &mut |room| {
            let frame = frame(sent, length(sent));
            room[..frame.len()].copy_from_slice(&frame);
            sent += 1;
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        filled?;
        let lent = link.rx_burst(64, &mut |frame, _| {
            check(back, frame);
            back += 1;
        });
        if lent? == 0 {
            link.wait(Some(Duration::from_millis(100)))?;
        } else {
            moved = Instant::now();
        }
    }
    let counters = link.counters();
    assert_eq!((counters.rx_frames, counters.tx_frames), (count.into(), count.into()));
    assert_eq!((counters.rx_dropped_malformed, counters.rx_dropped_too_long), (0, 0));
    Ok(())
}

fn length(number: u32) -> usize {
    60 + (number as usize * 131) % 1_440
}

/// The peer gets a message, or sees the end of its control channel.
fn wait_until_gone(link: &mut Memif) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match link.wait(Some(Duration::from_secs(1))) {
            Err(LinkError::Gone { .. }) => return,
            Err(error) => panic!("{error} instead of Gone"),
            Ok(_) => drop(link.rx_burst(64, &mut |_, _| ())),
        }
        assert!(Instant::now() < deadline, "the end of DPDK was not reported");
    }
}

#[test]
fn dpdk_gives_back_what_it_got_in_both_roles() {
    let _turn = TURN.lock();
    if !is_possible() {
        return;
    }
    for (role, name) in [(MemifRole::Client, "io-client"), (MemifRole::Server, "io-server")] {
        let settings = settings(name, 1);
        let app = ["--forward-mode=io"];
        let (testpmd, mut links) = joined(role, &settings, "rsize=9", &app);
        assert_eq!(links.len(), 1);
        assert!(links[0].caps().notes[0].contains("DPDK"), "{:?}", links[0].caps().notes);
        let testpmd = testpmd.echoes(&mut links[0], 20_000, &|number, got| {
            assert!(got == frame(number, length(number)), "{role:?}: frame {number}");
        });
        drop(testpmd);
        wait_until_gone(&mut links[0]);
    }
}

/// Buffers of 256 bytes: long frames are chained by us and by DPDK.
#[test]
fn chains_pass_both_ways() {
    let _turn = TURN.lock();
    if !is_possible() {
        return;
    }
    for (role, name) in [(MemifRole::Client, "chain-client"), (MemifRole::Server, "chain-server")] {
        let settings = MemifSettings { buffer_bytes: 256, ..settings(name, 1) };
        let app = ["--forward-mode=macswap"];
        let (testpmd, mut links) = joined(role, &settings, "bsize=256,rsize=9", &app);
        testpmd.echoes(&mut links[0], 5_000, &|number, got| {
            let mut swapped = frame(number, length(number));
            swapped[..12].rotate_left(6);
            assert!(got == swapped, "{role:?}: frame {number} of {} bytes", got.len());
        });
    }
}

#[test]
fn two_queues_are_two_links() {
    let _turn = TURN.lock();
    if !is_possible() {
        return;
    }
    for (role, name) in [(MemifRole::Client, "two-client"), (MemifRole::Server, "two-server")] {
        let settings = settings(name, 2);
        let app = ["--forward-mode=io", "--rxq=2", "--txq=2"];
        let (mut testpmd, mut links) = joined(role, &settings, "rsize=8", &app);
        assert_eq!(links.len(), 2);
        for link in &mut links {
            testpmd = testpmd.echoes(link, 2_000, &|number, got| {
                assert!(got == frame(number, length(number)), "{role:?}: frame {number}");
            });
        }
    }
}

#[test]
fn a_flood_from_dpdk_arrives_whole() {
    let _turn = TURN.lock();
    if !is_possible() {
        return;
    }
    for (role, name) in [(MemifRole::Client, "tx-client"), (MemifRole::Server, "tx-server")] {
        let settings = settings(name, 1);
        let app = ["--forward-mode=txonly", "--txpkts=64"];
        let (_testpmd, mut links) = joined(role, &settings, "rsize=10", &app);
        let (mut count, mut lengths_wrong) = (0, 0);
        let mut moved = Instant::now();
        while count < 300_000 && moved.elapsed() < PATIENCE {
            let lent = links[0].rx_burst(64, &mut |frame, _| {
                // testpmd's own frames: IPv4 and UDP in 64 bytes.
                lengths_wrong += u32::from(frame.len() != 64 || frame[12..14] != [8, 0]);
            });
            let lent = lent.expect("rx_burst");
            if lent > 0 {
                (count, moved) = (count + lent, Instant::now());
            }
        }
        assert!(count >= 300_000, "{role:?}: {count} frames only");
        assert_eq!(lengths_wrong, 0, "{role:?}");
        assert_eq!(links[0].counters().rx_dropped_malformed, 0, "{role:?}");
    }
}

#[test]
fn dpdk_counts_every_frame_that_we_sent() {
    const COUNT: u64 = 50_000;
    let _turn = TURN.lock();
    if !is_possible() {
        return;
    }
    for (role, name) in [(MemifRole::Client, "rx-client"), (MemifRole::Server, "rx-server")] {
        let settings = settings(name, 1);
        let (testpmd, mut links) = joined(role, &settings, "rsize=10", &["--forward-mode=rxonly"]);
        let (mut sent, mut moved) = (0, Instant::now());
        while sent < COUNT {
            assert!(moved.elapsed() < PATIENCE, "{role:?}: {sent} frames only");
            let burst = usize::try_from((COUNT - sent).min(64)).expect("small");
            let filled = links[0]
                .tx_burst(burst, &mut |room| {
                    room[..60].copy_from_slice(&frame(1, 60));
                    Some(TxMetadata { len: 60, ..TxMetadata::default() })
                })
                .expect("tx_burst") as u64;
            if filled > 0 {
                (sent, moved) = (sent + filled, Instant::now());
            }
        }
        // DPDK accepts at most one more ring of frames, and counts them without an error.
        std::thread::sleep(Duration::from_secs(2));
        let printed = testpmd.finish("show port stats 0");
        let expected = format!("RX-packets: {COUNT}");
        assert!(printed.contains(&expected), "{role:?}: no \"{expected}\" in\n{printed}");
    }
}
