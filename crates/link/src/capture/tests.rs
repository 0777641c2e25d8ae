//! A capture shows what goes over the wire, and reads back as what was written.

use std::sync::mpsc;

use pcap_parser::traits::PcapReaderIterator;
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader};
use proptest::prelude::*;

use super::*;
use crate::checksum::{fold, sum};
use crate::{LinkMedium, Pair, PairConfig, pair};

/// A writer whose bytes can be looked at.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// A TCP or UDP packet whose checksum field holds the pseudo header's part, and its headers'
/// length up to the transport header.
fn packet(is_ipv6: bool, protocol: u8, payload: &[u8]) -> (Vec<u8>, usize) {
    let header = if protocol == 6 { 20 } else { 8 };
    let len = u16::try_from(header + payload.len()).unwrap();
    let mut packet = Vec::new();
    let addresses = if is_ipv6 {
        packet.extend([0x60, 0, 0, 0, 0, 0, protocol, 64]);
        packet[4..6].copy_from_slice(&len.to_be_bytes());
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        8..40
    } else {
        packet.extend([0x45, 0, 0, 0, 0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
        packet[2..4].copy_from_slice(&(len + 20).to_be_bytes());
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        let value = !fold(sum(0, &packet));
        packet[10..12].copy_from_slice(&value.to_be_bytes());
        12..20
    };
    let start = packet.len();
    let pseudo = sum(sum(u32::from(protocol), &packet[addresses]), &len.to_be_bytes());
    packet.extend([0x12, 0x34, 0, 80]);
    if protocol == 6 {
        // Sequence number that runs over, ACK, data offset 5, CWR | ACK | PSH | FIN.
        packet.extend([0xff, 0xff, 0xff, 0x00, 0, 0, 0, 9, 0x50, 0x99, 0x20, 0]);
        packet.extend(fold(pseudo).to_be_bytes());
        packet.extend([0, 0]);
    } else {
        packet.extend(len.to_be_bytes());
        packet.extend(fold(pseudo).to_be_bytes());
    }
    packet.extend(payload);
    (packet, start)
}

/// The sum over pseudo header and segment is all ones when the checksum is right.
fn is_checksum_right(packet: &[u8]) -> bool {
    let (start, addresses, protocol) =
        if packet[0] >> 4 == 4 { (20, 12..20, packet[9]) } else { (40, 8..40, packet[6]) };
    let len = u16::try_from(packet.len() - start).unwrap();
    let pseudo = sum(sum(u32::from(protocol), &packet[addresses]), &len.to_be_bytes());
    let ip_is_right = start == 40 || fold(sum(0, &packet[..20])) == 0xffff;
    ip_is_right && fold(sum(pseudo, &packet[start..])) == 0xffff
}

fn captured_pair(medium: LinkMedium) -> (Pcap<Pair>, Pair, Shared) {
    let config = PairConfig { medium, offloads: true, frames: 16, ..PairConfig::default() };
    let (here, there) = pair(&config).unwrap();
    let file = Shared::default();
    let capture = Capture::new(Box::new(file.clone())).unwrap();
    let mut now = Duration::new(1_700_000_000, 5);
    let clock = Box::new(move || {
        now += Duration::from_nanos(3);
        now
    });
    (Pcap::with_clock(here, capture, clock), there, file)
}

fn send(link: &mut dyn Link, frame: &[u8], transmit: TxMetadata) {
    let sent = link.tx_burst(1, &mut |room| {
        room[..frame.len()].copy_from_slice(frame);
        Some(transmit)
    });
    assert_eq!(sent.unwrap(), 1);
}

fn all(file: &[u8]) -> Vec<Captured<'_>> {
    Reader::new(file).unwrap().map(|frame| frame.unwrap()).collect()
}

#[test]
fn looped_frame_is_written_once_and_not_sent() {
    let (frame, start) = packet(false, 6, b"to ourselves");
    let (link, mut there, file) = captured_pair(LinkMedium::Ip);
    let transmit = TxMetadata {
        len: frame.len(),
        checksum_start: u16::try_from(start).unwrap(),
        checksum_field: 16,
        ..TxMetadata::default()
    };
    let mut link: Box<dyn Link> = Box::new(link);
    link.record_looped(&frame, transmit);
    assert_eq!(there.rx_burst(9, &mut |_, _| ()).unwrap(), 0);
    drop(link);
    let file = file.bytes();
    let captured = all(&file);
    assert_eq!(captured.len(), 1);
    assert_eq!(captured[0].direction, Some(Direction::Outward));
    assert_eq!(captured[0].bytes.len(), frame.len());
    assert_ne!(captured[0].bytes[start + 16..start + 18], frame[start + 16..start + 18]);
}

#[test]
fn a_large_frame_is_written_as_the_segments_that_go_out() {
    for is_ipv6 in [false, true] {
        let payload: Vec<u8> = (0..2_500_u16).map(|byte| byte as u8).collect();
        let (frame, start) = packet(is_ipv6, 6, &payload);
        let (mut link, _there, file) = captured_pair(LinkMedium::Ip);
        let transmit = TxMetadata {
            len: frame.len(),
            checksum_start: u16::try_from(start).unwrap(),
            checksum_field: 16,
            segment_bytes: 1_000,
            header_bytes: u16::try_from(start + 20).unwrap(),
        };
        send(&mut link, &frame, transmit);
        assert_eq!(link.into_inner().counters().tx_frames, 1);
        let file = file.bytes();
        let segments = all(&file);
        assert_eq!(segments.len(), 3);
        let tcp = |index: usize| &segments[index].bytes[start..];
        let flags: Vec<_> = (0..3).map(|index| tcp(index)[13]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x19], "CWR first, PSH and FIN last");
        let sequence = |index: usize| u32::from_be_bytes(tcp(index)[4..8].try_into().unwrap());
        assert_eq!([sequence(0), sequence(1), sequence(2)], [0xffff_ff00, 744, 1_744]);
        let joined: Vec<u8> = (0..3).flat_map(|index| tcp(index)[20..].to_vec()).collect();
        assert_eq!(joined, payload);
        for segment in &segments {
            assert!(is_checksum_right(segment.bytes));
            assert_eq!(segment.direction, Some(Direction::Outward));
            assert_eq!(segment.timestamp_ns, Some(1_700_000_000_000_000_008));
        }
        if !is_ipv6 {
            assert_eq!(segments[2].bytes[4..6], [0x12, 0x36], "identification");
            assert_eq!(segments[2].bytes[2..4], 540_u16.to_be_bytes(), "total length");
        }
    }
}

#[test]
fn checksums_left_to_the_link_are_written_right_on_both_ways() {
    for (is_ipv6, protocol, field) in [(false, 6, 16), (true, 6, 16), (false, 17, 6), (true, 17, 6)]
    {
        for payload in [&b""[..], b"odd", b"even"] {
            let (frame, start) = packet(is_ipv6, protocol, payload);
            let (mut link, mut there, file) = captured_pair(LinkMedium::Ip);
            let transmit = TxMetadata {
                len: frame.len(),
                checksum_start: u16::try_from(start).unwrap(),
                checksum_field: field,
                ..TxMetadata::default()
            };
            send(&mut link, &frame, transmit);
            send(&mut there, &frame, transmit);
            let mut lent = Vec::new();
            link.rx_burst(9, &mut |frame, _| lent.extend_from_slice(frame)).unwrap();
            assert_eq!(lent, frame, "the receiver sees what came");
            drop(link);
            let file = file.bytes();
            let frames = all(&file);
            assert_eq!(frames.len(), 2);
            assert!(frames.iter().all(|frame| is_checksum_right(frame.bytes)));
            assert_eq!(frames[0].bytes, frames[1].bytes);
            assert_eq!(frames[1].direction, Some(Direction::Inward));
        }
    }
}

#[test]
fn inconsistent_frame_is_captured_unchanged() {
    let (frame, _) = packet(false, 6, b"payload");
    let odd = TxMetadata {
        len: frame.len(),
        checksum_start: 20,
        checksum_field: 16,
        segment_bytes: 3,
        header_bytes: 9_999,
    };
    let mut scratch = [0; 200];
    let mut out = Vec::new();
    segments::each(LinkMedium::Ip, &frame, odd, &mut scratch, &mut |f| out.push(f.to_vec()));
    assert_eq!(out.len(), 1);
    assert!(is_checksum_right(&out[0]), "the checksum can be had, the cutting not");
    let beyond = TxMetadata { checksum_start: 9_999, ..odd };
    out.clear();
    segments::each(LinkMedium::Ip, &frame, beyond, &mut scratch, &mut |f| out.push(f.to_vec()));
    assert_eq!(out, std::slice::from_ref(&frame));
    let short = &frame[..30];
    assert_eq!(segments::completed(LinkMedium::Ip, short, &mut scratch), short);
}

/// A file with room for the head of a capture.
struct FullFile(mpsc::Sender<usize>, bool);

impl Write for FullFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.send(bytes.len());
        let is_head = !std::mem::replace(&mut self.1, true);
        if is_head { Ok(bytes.len()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_capture_whose_last_blocks_fail_reports_once() {
    let (reported, reports) = mpsc::channel();
    let report = move |why: &str| reported.send(why.to_owned()).unwrap();
    let file = FullFile(mpsc::channel().0, false);
    let capture = Capture::new(Box::new(file)).unwrap().bounded(4_096, Box::new(report));
    let (here, mut there) = pair(&PairConfig::default()).unwrap();
    let mut link = Pcap::new(here, capture.clone());
    for _ in 0..100 {
        send(&mut link, &[0; 1_000], TxMetadata { len: 1_000, ..TxMetadata::default() });
        assert_eq!(there.rx_burst(9, &mut |_, _| ()).unwrap(), 1);
    }
    drop((link, capture));
    let reports: Vec<String> = reports.iter().collect();
    assert!(reports.len() == 1 && reports[0].starts_with("cannot be written"), "{reports:?}");
}

#[test]
fn a_file_that_cannot_be_written_costs_only_the_capture() {
    let (tell, told) = mpsc::channel();
    let capture = Capture::new(Box::new(FullFile(tell, false))).unwrap();
    let (here, mut there) = pair(&PairConfig::default()).unwrap();
    let mut link = Pcap::new(here, capture.clone());
    let plain = TxMetadata { len: 1_000, ..TxMetadata::default() };
    for _ in 0..500 {
        send(&mut link, &[0; 1_000], plain);
        assert_eq!(there.rx_burst(9, &mut |_, _| ()).unwrap(), 1);
    }
    let CaptureCounts { frames: written, lost, .. } = capture.counts();
    assert_eq!(written + lost, 500);
    assert!(lost > 0, "{written} written");
    assert_eq!(told.try_iter().count(), 2, "after the first failure nothing is tried");
}

#[test]
fn links_share_a_file_and_a_frame_is_there_once_the_link_sleeps() {
    let file = Shared::default();
    let capture = Capture::new(Box::new(file.clone())).unwrap();
    let (here, there) = pair(&PairConfig::default()).unwrap();
    let mut here = Pcap::new(here, capture.clone());
    let mut there = Pcap::new(there, capture);
    send(&mut here, &[1; 60], TxMetadata { len: 60, ..TxMetadata::default() });
    there.rx_burst(9, &mut |_, _| ()).unwrap();
    assert!(here.arm().unwrap());
    let file = file.bytes();
    let seen: Vec<_> = all(&file).iter().map(|f| (f.interface, f.direction)).collect();
    assert_eq!(seen, [(0, Some(Direction::Outward)), (1, Some(Direction::Inward))]);
}

#[test]
fn the_variable_names_a_file() {
    assert_eq!(asked_path("".into(), 7), None);
    assert_eq!(asked_path("/tmp/a-{pid}.pcapng".into(), 7), Some("/tmp/a-7.pcapng".into()));
}

#[test]
fn a_full_capture_ends_with_whole_blocks_and_one_report() {
    let (mut here, there) = pair(&PairConfig::default()).unwrap();
    let file = Shared::default();
    let (reported, reports) = mpsc::channel();
    let report = move |why: &str| reported.send(why.to_owned()).unwrap();
    let capture = Capture::new(Box::new(file.clone())).unwrap().bounded(4_096, Box::new(report));
    let mut link = Pcap::new(there, capture.clone());
    let (frame, _) = packet(false, 6, &[7; 200]);
    for _ in 0..100 {
        send(&mut here, &frame, TxMetadata { len: frame.len(), ..TxMetadata::default() });
        let received = link.rx_burst(1, &mut |_, _| ()).unwrap();
        assert_eq!(received, 1, "the link goes on");
    }
    capture.flush();
    let CaptureCounts { frames, beyond_limit, lost } = capture.counts();
    assert!(frames > 5 && frames + beyond_limit == 100 && lost == 0, "{capture:?}");
    assert!((3_500..=4_096).contains(&file.bytes().len()), "{}", file.bytes().len());
    assert_eq!(all(&file.bytes()).len() as u64, frames);
    assert_eq!(theirs(&file.bytes()).len() as u64, frames);
    assert_eq!(reports.try_iter().collect::<Vec<_>>(), ["has reached its limit and ends here"]);
}

#[test]
fn capture_limits_are_numbers_of_bytes() {
    let of = |text: &str| asked_bytes_max(Some(text.into()));
    assert_eq!(asked_bytes_max(None).unwrap(), CAPTURE_BYTES_MAX_DEFAULT);
    assert_eq!(of("").unwrap(), CAPTURE_BYTES_MAX_DEFAULT);
    assert_eq!(of("4096").unwrap(), 4_096);
    for text in ["4095", "-1", "1M", "many"] {
        let error = of(text).unwrap_err().to_string();
        assert!(error.starts_with(BYTES_MAX_VARIABLE) && error.contains(text), "{error}");
    }
}

proptest! {
    #[test]
    fn another_reader_agrees(
        frames in proptest::collection::vec(
            (any::<bool>(), any::<u64>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..20,
        ),
    ) {
        let mut file = Vec::new();
        pcapng::section_header(&mut file);
        pcapng::interface(&mut file, LinkMedium::Ethernet, "first");
        pcapng::interface(&mut file, LinkMedium::Ip, "second");
        for (is_second, ns, bytes) in &frames {
            let timestamp = Duration::from_nanos(*ns);
            let direction = if *is_second { Direction::Inward } else { Direction::Outward };
            let interface = u32::from(*is_second);
            pcapng::packet(&mut file, &pcapng::Frame { interface, timestamp, direction, bytes });
        }
        let ours = all(&file);
        prop_assert_eq!(ours.len(), frames.len());
        for (ours, (is_second, ns, bytes)) in ours.iter().zip(&frames) {
            prop_assert_eq!(ours.timestamp_ns, Some(*ns));
            prop_assert_eq!(ours.bytes, bytes.as_slice());
            prop_assert_eq!(ours.interface, u32::from(*is_second));
            let medium = if *is_second { LinkMedium::Ip } else { LinkMedium::Ethernet };
            prop_assert_eq!(ours.medium, Some(medium));
        }
        let theirs = theirs(&file);
        let ours: Vec<_> =
            ours.iter().map(|f| (f.interface, f.timestamp_ns.unwrap(), f.bytes.to_vec())).collect();
        prop_assert_eq!(ours, theirs);
    }
}

/// The same file, read by the `pcap-parser` crate.
fn theirs(file: &[u8]) -> Vec<(u32, u64, Vec<u8>)> {
    let mut found = Vec::new();
    let mut reader = PcapNGReader::new(65_536, file).expect("a capture");
    loop {
        match reader.next() {
            Ok((used, block)) => {
                if let PcapBlockOwned::NG(Block::EnhancedPacket(packet)) = block {
                    let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    let bytes = packet.data[..packet.caplen as usize].to_vec();
                    found.push((packet.if_id, ticks, bytes));
                }
                reader.consume(used);
            }
            Err(PcapError::Eof) => return found,
            Err(PcapError::Incomplete(_)) => reader.refill().expect("memory can be read"),
            Err(error) => panic!("{error:?}"),
        }
    }
}
