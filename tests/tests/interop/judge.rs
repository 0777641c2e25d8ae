//! What is held against a capture: tshark dissects it with all checksums verified, and the rows
//! are gone through here.
//!
//! No frame of ours may be malformed, have a wrong checksum or be an expert error. No segment of
//! ours may
//! - carry bytes beyond the window that the peer offered (RFC 9293 §3.4), but for the one byte of a
//!   probe (§3.8.6.1),
//! - acknowledge what the peer has not sent (§3.10.7.4),
//! - take back window that was offered (§3.8.6), while the peer may still send.
//!
//! Pure but for running tshark: rows in, a verdict out.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::host::{Loss, MAC};

const FIELDS: [&str; 17] = [
    "frame.number",
    "eth.src",
    "_ws.malformed",
    "_ws.expert.severity",
    "ip.checksum.status",
    "tcp.checksum.status",
    "udp.checksum.status",
    "icmp.checksum.status",
    "icmpv6.checksum.status",
    "tcp.stream",
    "tcp.seq",
    "tcp.len",
    "tcp.ack",
    "tcp.window_size",
    "tcp.window_size_scalefactor",
    "tcp.flags",
    "_ws.expert.message",
];
const CHECKSUMS: std::ops::Range<usize> = 4..9;
/// Where TCP begins in a row; the expert's words come last.
const TCP: std::ops::Range<usize> = 9..16;
/// What tshark is to dissect: these, and what belongs to them by name.
const PROTOCOLS: [&str; 11] =
    ["frame", "eth", "ethertype", "arp", "ip", "ipv6", "icmp", "icmpv6", "tcp", "udp", "data"];
const FAMILIES: [&str; 3] = ["_ws.", "ipv6.", "tcp.options."];
/// Wireshark's PI_ERROR.
const SEVERITY_ERROR: u32 = 0x0080_0000;
const CHECKSUM_GOOD: &str = "1";
const FIN: u32 = 1;
const SYN: u32 = 2;
const RST: u32 = 4;
const ACK: u32 = 16;

/// Whose frames are judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    /// Their address on the wire.
    pub(crate) mac: &'static str,
    /// What came from the peer may have been damaged on its way, and say what it never said.
    pub(crate) has_damaged_peer: bool,
}

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// tshark has read the capture; without it nothing was seen, and nothing is expected.
    pub(crate) was_read: bool,
    /// Frames that we sent.
    pub(crate) frames: usize,
    /// TCP segments among them.
    pub(crate) segments: usize,
    /// Resets among those, without those of connections that had ended on both sides: a peer that
    /// got bytes twice, by a spurious tail loss probe (RFC 8985 §7), sends a late ACK to a closed
    /// connection (RFC 9293 §3.10.7.1). Also without those in SYN-SENT: a peer in TIME-WAIT answers
    /// the SYN of a port that is used again by an old ACK (RFC 9293 §3.10.7.3).
    pub(crate) resets: usize,
}

impl Verdict {
    /// Nothing was reset. With loss something may be in order: what a peer repeats because our last
    /// answer was lost finds a connection that is over (RFC 9293 §3.5.2), maybe the one of the
    /// program before.
    pub(crate) fn expect_no_reset(&self, loss: Loss) {
        assert!(self.resets == 0 || loss != Loss(0), "{self:?}");
    }

    /// We sent more than `count` segments.
    pub(crate) fn expect_segments_above(&self, count: usize) {
        assert!(self.segments > count || !self.was_read, "more than {count}: {self:?}");
    }

    /// We reset something.
    pub(crate) fn expect_reset(&self) {
        assert!(self.resets > 0 || !self.was_read, "{self:?}");
    }
}

/// One segment, as tshark counts: sequence numbers from 0, windows scaled.
#[derive(Debug, Clone, Copy)]
struct Segment {
    stream: u32,
    seq: i64,
    len: i64,
    ack: i64,
    window: i64,
    /// What the window is counted in.
    scale: i64,
    flags: u32,
}

impl Segment {
    fn from_row(row: &[&str]) -> Option<Self> {
        let [stream, seq, len, ack, window, scale, flags] = row else { return None };
        let number = |text: &str| text.parse::<i64>().ok();
        Some(Self {
            stream: stream.parse().ok()?,
            seq: number(seq)?,
            len: number(len)?,
            ack: number(ack)?,
            window: number(window)?,
            // Absent or below one: not scaled, or not known.
            scale: number(scale).unwrap_or(1).max(1),
            flags: u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?,
        })
    }

    const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The number after the last that it takes.
    fn end(&self) -> i64 {
        self.seq + self.len + i64::from(self.has(SYN)) + i64::from(self.has(FIN))
    }
}

/// What is known of a connection whose handshake was seen.
#[derive(Debug, Default)]
struct Stream {
    /// We have sent a SYN.
    has_our_syn: bool,
    /// The end of what the peer has sent; `None`: nothing yet.
    peer_end: Option<i64>,
    peer_has_ended: bool,
    /// The end of what we have sent, with our FIN.
    our_end: Option<i64>,
    /// Up to where the peer has acknowledged.
    acknowledged: i64,
    /// Up to where the peer lets us send.
    limit: Option<i64>,
    /// Up to where we let the peer send.
    offered: Option<i64>,
}

impl Stream {
    fn on_peers(&mut self, segment: &Segment) {
        if segment.has(RST) {
            return;
        }
        // The rules are held against us from the peer's SYN on.
        if segment.has(SYN) || self.peer_end.is_some() {
            self.peer_end = self.peer_end.max(Some(segment.end()));
        }
        self.peer_has_ended |= segment.has(FIN);
        if segment.has(ACK) {
            self.limit = self.limit.max(Some(segment.ack + segment.window));
            self.acknowledged = self.acknowledged.max(segment.ack);
        }
    }

    /// Both sides have ended it, and the peer knows.
    fn is_over(&self) -> bool {
        self.peer_has_ended && self.our_end.is_some_and(|end| self.acknowledged >= end)
    }

    /// Our SYN has no answer that begins a connection.
    const fn is_in_syn_sent(&self) -> bool {
        self.has_our_syn && self.peer_end.is_none()
    }

    /// What is wrong with a segment of ours.
    fn on_ours(&mut self, segment: &Segment) -> Option<String> {
        self.has_our_syn |= segment.has(SYN);
        let peer_end = self.peer_end?;
        if segment.has(RST) {
            return None;
        }
        if segment.has(FIN) {
            self.our_end = Some(segment.end());
        }
        if let Some(limit) = self.limit {
            let last = segment.seq + segment.len;
            let is_probe = segment.len == 1 && last == limit + 1;
            if segment.len > 0 && last > limit && !is_probe {
                return Some(format!("ends at {last}, beyond the window's end {limit}"));
            }
        }
        if !segment.has(ACK) {
            return None;
        }
        if segment.ack > peer_end {
            return Some(format!("acknowledges {}, but the peer is at {peer_end}", segment.ack));
        }
        let offer = segment.ack + segment.window;
        let offered = self.offered.replace(offer).unwrap_or(offer);
        // Rounding to the scale is no taking back; nor is there anything left to offer after a FIN.
        let is_less = offer + segment.scale <= offered;
        (is_less && !self.peer_has_ended && !segment.has(SYN))
            .then(|| format!("offers up to {offer} after {offered}"))
    }
}

/// What is wrong with a frame by itself.
fn wrong_in_itself(row: &[&str]) -> Option<&'static str> {
    if !row[2].is_empty() {
        return Some("is malformed");
    }
    let is_error = |severity: &str| severity.parse().is_ok_and(|it: u32| it >= SEVERITY_ERROR);
    if row[3].split(',').any(is_error) {
        return Some("is an expert error");
    }
    // Behind the first there may be those of a packet that an ICMP error quotes.
    let is_wrong = |status: &&str| {
        let first = status.split(',').next().unwrap_or_default();
        !first.is_empty() && first != CHECKSUM_GOOD
    };
    row[CHECKSUMS].iter().any(is_wrong).then_some("has a wrong or an unverified checksum")
}

/// Goes through what tshark printed; what is wrong, with the row.
fn examine(mac: &str, rows: &str) -> Result<Verdict, String> {
    let mut verdict = Verdict { was_read: true, ..Verdict::default() };
    let mut streams: HashMap<u32, Stream> = HashMap::new();
    for line in rows.lines() {
        let row: Vec<&str> = line.split('\t').collect();
        if row.len() != FIELDS.len() {
            return Err(format!("tshark printed {line:?}"));
        }
        let is_ours = row[1] == mac;
        let segment = Segment::from_row(&row[TCP]);
        let mut wrong = None;
        if is_ours {
            verdict.frames += 1;
            wrong = wrong_in_itself(&row).map(str::to_owned);
        }
        if let Some(segment) = segment {
            let stream = streams.entry(segment.stream).or_default();
            if is_ours {
                verdict.segments += 1;
                let is_expected = stream.is_over() || stream.is_in_syn_sent();
                verdict.resets += usize::from(segment.has(RST) && !is_expected);
                wrong = wrong.or_else(|| stream.on_ours(&segment));
            } else {
                stream.on_peers(&segment);
            }
        }
        if let Some(wrong) = wrong {
            return Err(format!("frame {} {wrong}: {line}", row[0]));
        }
    }
    Ok(verdict)
}

/// Writes tshark settings that enable only the stack's protocols: random bytes sometimes look like
/// another protocol, and then like a malformed packet.
fn leave_payload_alone(settings: &Path) -> Result<(), String> {
    let file = settings.join("disabled_protos");
    if file.exists() {
        return Ok(());
    }
    let mut command = Command::new("tshark");
    let listed = command.args(["-G", "protocols"]).stdin(Stdio::null()).output();
    let listed = listed.map_err(|_| "tshark is not installed".to_owned())?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names = listed.lines().filter_map(|line| line.split('\t').nth(2));
    let is_ours = |name: &&str| {
        PROTOCOLS.contains(name) || FAMILIES.iter().any(|family| name.starts_with(family))
    };
    let disabled: Vec<&str> = names.filter(|name| !is_ours(name)).collect();
    assert!(disabled.len() > PROTOCOLS.len(), "tshark lists its protocols: {listed}");
    fs::create_dir_all(settings).expect("a folder");
    fs::write(file, disabled.join("\n") + "\n").expect("a file");
    Ok(())
}

/// Our frames, and those of others that arrived as they were sent.
fn undamaged(mac: &str) -> String {
    let bad = FIELDS[CHECKSUMS].iter().map(|field| format!("{field} == 0"));
    format!("eth.src == {mac} or not ({})", bad.collect::<Vec<_>>().join(" or "))
}

/// tshark on `capture`, with settings of ours.
fn tshark(capture: &Path, settings: &Path) -> Command {
    let mut command = Command::new("tshark");
    command.arg("-n").env("WIRESHARK_CONFIG_DIR", settings).stdin(Stdio::null());
    for preference in ["ip", "tcp", "udp"] {
        command.args(["-o", &format!("{preference}.check_checksum:TRUE")]);
    }
    command.arg("-r").arg(capture);
    command
}

/// Has tshark read the capture, and fails for what is wrong in it, or if nothing of ours is there.
pub(crate) fn judge(test: &str, capture: &Path, sender: Sender) -> Verdict {
    let verdict = look_through(test, capture, sender);
    let Some(verdict) = verdict else { return Verdict::default() };
    assert!(verdict.frames > 0, "{}: no frame of ours", capture.display());
    verdict
}

/// The same, where we may have been silent. `None`: tshark is not there.
pub(crate) fn look_through(test: &str, capture: &Path, sender: Sender) -> Option<Verdict> {
    let settings = capture.with_file_name("wireshark");
    if let Err(why) = leave_payload_alone(&settings) {
        println!("skipped: {test} on its capture: {why}");
        return None;
    }
    let mut capture = capture.to_path_buf();
    if sender.has_damaged_peer {
        let whole = capture.with_extension("undamaged.pcapng");
        let mut command = tshark(&capture, &settings);
        let output = command.args(["-Y", &undamaged(sender.mac), "-w"]).arg(&whole).output();
        let output = output.expect("tshark ran before");
        assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
        capture = whole;
    }
    let mut command = tshark(&capture, &settings);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"]);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark ran before");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {said}");
    let rows = String::from_utf8_lossy(&output.stdout);
    Some(
        examine(sender.mac, &rows).unwrap_or_else(|wrong| panic!("{}: {wrong}", capture.display())),
    )
}

/// A row as tshark prints it; `tcp` is what stands from `tcp.stream` on.
fn row(source: &str, malformed: &str, severity: &str, checksums: &str, tcp: &str) -> String {
    ["9", source, malformed, severity, checksums, tcp, ""].join("\t")
}

const PEER: &str = "02:00:00:00:00:01";
const GOOD: &str = "1\t1\t\t\t";

/// A segment of a connection: sequence number, length, acknowledgment, window, flags.
fn segment(source: &str, [seq, len, ack, window, flags]: [u32; 5]) -> String {
    let tcp = format!("0\t{seq}\t{len}\t{ack}\t{window}\t1\t0x{flags:04x}");
    row(source, "", "", GOOD, &tcp)
}

#[test]
fn the_judge_sees_what_is_wrong_in_one_frame() {
    let arp = "\t\t\t\t";
    let none = "\t\t\t\t\t\t";
    let examine_row = |malformed, severity, checksums| {
        examine(MAC, &row(MAC, malformed, severity, checksums, none)).map(|verdict| verdict.frames)
    };
    assert_eq!(examine_row("", "", arp), Ok(1));
    assert_eq!(examine_row("", "2097152,6291456", GOOD), Ok(1));
    assert!(examine_row("1", "", GOOD).is_err());
    assert!(examine_row("", "2097152,8388608", GOOD).is_err());
    // Bad, and not looked at.
    assert!(examine_row("", "", "1\t0\t\t\t").is_err());
    assert!(examine_row("", "", "1\t2\t\t\t").is_err());
    // An ICMP error quotes what was broken before it reached us.
    assert_eq!(examine_row("", "", "1,0\t\t\t1\t"), Ok(1));
    // What the peer does wrong is not held against us.
    assert_eq!(examine(MAC, &row(PEER, "1", "", GOOD, none)).map(|it| it.frames), Ok(0));
    assert!(examine(MAC, "what is this").is_err());
}

#[test]
fn the_judge_counts_resets_of_connections_that_go_on() {
    let resets = |segments: &[(&str, [u32; 5])]| {
        let rows: Vec<String> = segments.iter().map(|(mac, it)| segment(mac, *it)).collect();
        examine(MAC, &rows.join("\n")).map(|verdict| verdict.resets)
    };
    let open = [
        (PEER, [0, 0, 0, 1_000, SYN]),
        (MAC, [0, 0, 1, 500, SYN | ACK]),
        (PEER, [1, 0, 1, 1_000, FIN | ACK]),
        (MAC, [1, 10, 2, 500, FIN | ACK]),
    ];
    let reset = (MAC, [12, 0, 0, 0, RST]);
    let with = |more: &[(&'static str, [u32; 5])]| resets(&[&open[..], more].concat());
    assert_eq!(with(&[reset]), Ok(1), "our end is not acknowledged");
    assert_eq!(with(&[(PEER, [2, 0, 11, 1_000, ACK]), reset]), Ok(1), "only the bytes are");
    assert_eq!(with(&[(PEER, [2, 0, 12, 1_000, ACK]), reset]), Ok(0), "all is");
    let half = [open[0], open[1], (MAC, [1, 10, 1, 500, FIN | ACK])];
    let half = [&half[..], &[(PEER, [1, 0, 12, 1_000, ACK]), reset]].concat();
    assert_eq!(resets(&half), Ok(1), "the peer has not ended");
    let old = [(MAC, [0, 0, 0, 500, SYN]), (PEER, [1, 0, 900, 1_000, ACK]), reset];
    assert_eq!(resets(&old), Ok(0), "an old ACK answers our SYN");
    let begun = [old[0], (PEER, [0, 0, 1, 1_000, SYN | ACK]), reset];
    assert_eq!(resets(&begun), Ok(1), "a SYN-ACK does");
}

#[test]
fn the_judge_sees_segments_outside_the_window() {
    let handshake = [
        segment(PEER, [0, 0, 0, 1_000, SYN]),
        segment(MAC, [0, 0, 1, 500, SYN | ACK]),
        segment(PEER, [1, 100, 1, 1_000, ACK]),
    ];
    let after = |segments: &[[u32; 5]]| {
        let ours = segments.iter().map(|it| segment(MAC, *it));
        let rows: Vec<String> = handshake.iter().cloned().chain(ours).collect();
        examine(MAC, &rows.join("\n")).map(|verdict| verdict.segments)
    };
    assert_eq!(after(&[[1, 1_000, 101, 500, ACK]]), Ok(2), "up to the edge");
    assert!(after(&[[1, 1_001, 101, 500, ACK]]).is_err(), "beyond it by one");
    assert_eq!(after(&[[1_001, 1, 101, 500, ACK]]), Ok(2), "a probe");
    assert!(after(&[[1, 0, 102, 500, ACK]]).is_err(), "never sent");
    assert_eq!(after(&[[1, 0, 101, 400, ACK]]), Ok(2), "used up");
    assert!(after(&[[1, 0, 101, 399, ACK]]).is_err(), "taken back");
    assert_eq!(after(&[[1, 0, 9_999, 0, ACK | RST]]), Ok(2), "a reset");
}
