//! Bulk over a TAP device with offloads: the kernel's TCP at one end, a few hand-made segments at
//! the other, and tshark's word on the capture.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use megapipe_link::capture::{Capture, Direction, Reader};
use megapipe_link::tap::{self, Tap, TapConfig};
use megapipe_link::{Link, LinkMedium, Pcap, RxChecksum, TxMetadata};

use crate::wire::{enter_own_namespace, ip, until_active};

const KERNEL: [&str; 2] = ["10.97.0.1", "fd97::1"];
const PEER: [&str; 2] = ["10.97.0.2", "fd97::2"];
const PORT: u16 = 7;
const SEGMENT_BYTES: u16 = 1_400;
/// What the kernel sends, and what it is sent in one frame.
const THERE_BYTES: usize = 300_000;
const BACK_BYTES: usize = 40_000;

const SYN: u8 = 0x02;
const FIN: u8 = 0x01;
const ACK: u8 = 0x10;
const PSH: u8 = 0x08;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// A segment that was received.
struct Segment {
    flags: u8,
    sequence: u32,
    port: u16,
    payload: Vec<u8>,
}

/// The hand-made end: it answers with what the test says, and counts what it sees.
struct Peer {
    link: Pcap<Tap>,
    kernel_mac: [u8; 6],
    is_ipv6: bool,
    kernel_port: u16,
    largest: usize,
    merged: usize,
}

impl Peer {
    fn parse(&self, frame: &[u8]) -> Option<Segment> {
        let start = match (&frame[12..14], self.is_ipv6) {
            ([0x08, 0x00], false) if frame[23] == 6 => 34,
            ([0x86, 0xdd], true) if frame[20] == 6 => 54,
            _ => return None,
        };
        let tcp = &frame[start..];
        Some(Segment {
            flags: tcp[13],
            sequence: u32::from_be_bytes(tcp[4..8].try_into().expect("four")),
            port: u16::from_be_bytes([tcp[0], tcp[1]]),
            payload: tcp[usize::from(tcp[12] >> 4) * 4..].to_vec(),
        })
    }

    fn receive(&mut self) -> Vec<Segment> {
        let mut frames = Vec::new();
        self.link.wait(Some(Duration::from_millis(100))).expect("wait");
        let take = &mut |frame: &[u8], received| frames.push((frame.to_vec(), received));
        self.link.rx_burst(64, take).expect("received");
        let mut segments = Vec::new();
        for (frame, received) in frames {
            let Some(segment) = self.parse(&frame) else { continue };
            assert_eq!(received.checksums, RxChecksum::Verified, "no checksums within one machine");
            self.largest = self.largest.max(segment.payload.len());
            self.merged += usize::from(received.segment_bytes > 0);
            segments.push(segment);
        }
        segments
    }

    /// Sends one segment, however long, with the checksum left to the link.
    fn send(&mut self, flags: u8, sequence: u32, acknowledgement: u32, payload: &[u8]) {
        let mut frame = [&self.kernel_mac[..], &self.link.caps().mac].concat();
        let options: &[u8] = if flags & SYN != 0 { &[2, 4, 5, 0x78] } else { &[] };
        let header = 20 + options.len();
        let len = u16::try_from(header + payload.len()).expect("one packet");
        let [from, to] = [PEER, KERNEL]
            .map(|side| side[usize::from(self.is_ipv6)].parse::<IpAddr>().expect("an address"));
        if self.is_ipv6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([6, 64]);
        } else {
            frame.extend([0x08, 0x00, 0x45, 0]);
            frame.extend((len + 20).to_be_bytes());
            frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0]);
        }
        let mut pseudo = Vec::new();
        for address in [from, to] {
            match address {
                IpAddr::V4(address) => pseudo.extend(address.octets()),
                IpAddr::V6(address) => pseudo.extend(address.octets()),
            }
        }
        frame.extend(&pseudo);
        if !self.is_ipv6 {
            let sum = !folded(&frame[14..34]);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        pseudo.extend([0, 6]);
        pseudo.extend(len.to_be_bytes());
        let start = frame.len();
        frame.extend(PORT.to_be_bytes());
        frame.extend(self.kernel_port.to_be_bytes());
        frame.extend(sequence.to_be_bytes());
        frame.extend(acknowledgement.to_be_bytes());
        frame.extend([(header as u8 / 4) << 4, flags, 0xff, 0xff]);
        frame.extend(folded(&pseudo).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(options);
        frame.extend(payload);
        let is_large = payload.len() > usize::from(SEGMENT_BYTES);
        let transmit = TxMetadata {
            len: frame.len(),
            checksum_start: start as u16,
            checksum_field: 16,
            segment_bytes: if is_large { SEGMENT_BYTES } else { 0 },
            header_bytes: if is_large { (start + header) as u16 } else { 0 },
        };
        let sent = self.link.tx_burst(1, &mut |room| {
            room[..frame.len()].copy_from_slice(&frame);
            Some(transmit)
        });
        assert_eq!(sent.expect("sent"), 1);
    }

    /// Takes a connection, receives `THERE_BYTES`, sends `BACK_BYTES` in one frame, and ends.
    fn serve(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + Duration::from_secs(20);
        let (mut next, mut got) = (None, Vec::new());
        let mut sent = 1_000_u32;
        loop {
            assert!(Instant::now() < deadline, "{} of {THERE_BYTES}", got.len());
            for segment in self.receive() {
                if segment.flags & SYN != 0 {
                    self.kernel_port = segment.port;
                    next = Some(segment.sequence.wrapping_add(1));
                    self.send(SYN | ACK, 999, segment.sequence.wrapping_add(1), &[]);
                    continue;
                }
                let Some(expected) = next else { continue };
                if segment.sequence != expected {
                    continue;
                }
                let fin = u32::from(segment.flags & FIN);
                let after = expected.wrapping_add(segment.payload.len() as u32).wrapping_add(fin);
                next = Some(after);
                let had = got.len();
                got.extend(segment.payload);
                if had < THERE_BYTES && got.len() >= THERE_BYTES {
                    self.send(ACK | PSH, sent, after, &pattern(BACK_BYTES));
                    sent += BACK_BYTES as u32;
                } else if fin == 1 {
                    self.send(ACK | FIN, sent, after, &[]);
                    return got;
                } else if after != expected {
                    self.send(ACK, sent, after, &[]);
                }
            }
        }
    }
}

/// The folded sum of an even number of bytes.
fn folded(bytes: &[u8]) -> u16 {
    let halves = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = halves.sum();
    let once = (sum & 0xffff) + (sum >> 16);
    (once + (once >> 16)) as u16
}

fn set_up(file: &Path) -> Result<Pcap<Tap>, String> {
    enter_own_namespace()?;
    let mut queues = tap::open(&TapConfig::new("mp-tap", LinkMedium::Ethernet))
        .map_err(|error| error.to_string())?;
    let link = queues.pop().expect("a queue");
    std::fs::write("/proc/sys/net/ipv6/conf/mp-tap/disable_ipv6", "0")
        .map_err(|error| error.to_string())?;
    ip("addr add 10.97.0.1/24 dev mp-tap")?;
    ip("addr add fd97::1/64 dev mp-tap nodad")?;
    let [a, b, c, d, e, f] = link.caps().mac;
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    for address in PEER {
        ip(&format!("neigh add {address} lladdr {mac} dev mp-tap nud permanent"))?;
    }
    until_active("mp-tap")?;
    let capture = Capture::create(file).map_err(|error| error.to_string())?;
    Ok(Pcap::new(link, capture))
}

/// The kernel's end: sends, is answered, and tells what it got.
fn talk(to: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.write_all(&pattern(THERE_BYTES)).expect("sent");
    let mut got = vec![0; BACK_BYTES];
    stream.read_exact(&mut got).expect("answered");
    got
}

/// No frame in `file` that tshark finds fault with.
fn judge(file: &Path) -> Result<(), String> {
    let bad = "_ws.malformed || tcp.checksum.status == 0 || ip.checksum.status == 0";
    let tshark = |filter: &str| {
        let checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"];
        let mut command = Command::new("tshark");
        command.args(["-n", "-r"]).arg(file).args(checks).args(["-Y", filter]);
        let output = command.output();
        let output = output.map_err(|error| format!("tshark is not installed: {error}"))?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok::<_, String>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(tshark(bad)?, "");
    let good = tshark("tcp.checksum.status == 1")?.lines().count();
    assert!(good > BACK_BYTES / usize::from(SEGMENT_BYTES), "{good} good ones");
    Ok(())
}

#[test]
fn bulk_moves_in_large_frames_and_the_capture_is_clean() {
    const NAME: &str = "offload::bulk_moves_in_large_frames_and_the_capture_is_clean";
    let file = std::env::temp_dir().join(format!("mp-link-{}.pcapng", std::process::id()));
    let link = match set_up(&file) {
        Ok(link) => link,
        Err(why) => return println!("skipped: {NAME}: {why}"),
    };
    // Ours is the kernel's with its last bit turned over.
    let mut kernel_mac = link.caps().mac;
    kernel_mac[5] ^= 1;
    let mut peer = Peer { link, kernel_mac, is_ipv6: false, kernel_port: 0, largest: 0, merged: 0 };
    for (index, address) in PEER.iter().enumerate() {
        peer.is_ipv6 = index == 1;
        (peer.largest, peer.merged) = (0, 0);
        let to = SocketAddr::new(address.parse().expect("an address"), PORT);
        let talking = thread::spawn(move || talk(to));
        assert!(peer.serve() == pattern(THERE_BYTES), "what the kernel sent");
        assert!(talking.join().expect("no panic") == pattern(BACK_BYTES), "what it was sent");
        assert!(peer.largest > 10_000 && peer.merged > 0, "largest: {} bytes", peer.largest);
    }
    drop(peer);
    let bytes = std::fs::read(&file).expect("the capture");
    let frames: Vec<_> = Reader::new(&bytes).expect("a capture").map(Result::unwrap).collect();
    let out = frames.iter().filter(|frame| frame.direction == Some(Direction::Outward));
    assert!(out.clone().count() > 2 * BACK_BYTES / usize::from(SEGMENT_BYTES));
    assert!(out.clone().all(|frame| frame.bytes.len() <= 1_514), "cut as on the wire");
    if let Err(why) = judge(&file) {
        println!("skipped: {NAME} by tshark: {why}");
    }
    std::fs::remove_file(&file).expect("our own file");
}
