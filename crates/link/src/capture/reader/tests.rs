//! Files of every kind, built byte by byte, and files that are broken.

use proptest::prelude::*;

use super::*;

/// Writes numbers in either byte order.
struct Builder {
    is_big_endian: bool,
    bytes: Vec<u8>,
}

impl Builder {
    fn new(is_big_endian: bool) -> Self {
        Self { is_big_endian, bytes: Vec::new() }
    }

    fn u32(&mut self, value: u32) {
        let bytes = if self.is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        self.bytes.extend(bytes);
    }

    fn u16(&mut self, value: u16) {
        let bytes = if self.is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
        self.bytes.extend(bytes);
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.u32(kind);
        self.u32(0);
        body(self);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        let len = u32::try_from(self.bytes.len() - start + 4).unwrap();
        self.u32(len);
        let order = if self.is_big_endian { u32::to_be_bytes } else { u32::to_le_bytes };
        self.bytes[start + 4..start + 8].copy_from_slice(&order(len));
    }

    fn section(&mut self) {
        self.block(SECTION_HEADER, |b| {
            b.u32(BYTE_ORDER_MAGIC);
            b.u32(1);
            b.u32(u32::MAX);
            b.u32(u32::MAX);
        });
    }

    fn interface(&mut self, link_type: u16, snap_len: u32, options: &[(u16, &[u8])]) {
        self.block(INTERFACE, |b| {
            b.u16(link_type);
            b.u16(0);
            b.u32(snap_len);
            for (code, value) in options {
                b.u16(*code);
                b.u16(u16::try_from(value.len()).unwrap());
                b.bytes.extend_from_slice(value);
                b.bytes.resize(b.bytes.len().next_multiple_of(4), 0);
            }
        });
    }

    fn packet(&mut self, interface: u32, ticks: u64, frame: &[u8]) {
        self.block(ENHANCED_PACKET, |b| {
            b.u32(interface);
            b.u32((ticks >> 32) as u32);
            b.u32(ticks as u32);
            b.u32(u32::try_from(frame.len()).unwrap());
            b.u32(2_000);
            b.bytes.extend_from_slice(frame);
        });
    }
}

fn read(file: &[u8]) -> Result<Vec<Captured<'_>>, ReadError> {
    Reader::new(file)?.collect()
}

#[test]
fn pcapng_of_either_byte_order() {
    for is_big_endian in [false, true] {
        let mut file = Builder::new(is_big_endian);
        file.section();
        let order = if is_big_endian { i64::to_be_bytes } else { i64::to_le_bytes };
        file.interface(LINK_ETHERNET, 3, &[]);
        file.interface(LINK_RAW, 0, &[(IF_TSRESOL, &[0x8a]), (IF_TSOFFSET, &order(-1))]);
        file.interface(113, 0, &[(IF_TSRESOL, &[9])]);
        file.packet(0, 5_000_001, b"abcde");
        file.packet(1, 2_048 + 512, b"");
        file.packet(2, 7, b"x");
        file.block(0x0bad, |b| b.u32(1));
        file.block(SIMPLE_PACKET, |b| {
            b.u32(9);
            b.bytes.extend(b"abc");
        });
        let frames = read(&file.bytes).expect("a good file");
        let short: Vec<_> = frames.iter().map(|f| (f.medium, f.timestamp_ns, f.bytes)).collect();
        assert_eq!(
            short,
            [
                (Some(LinkMedium::Ethernet), Some(5_000_001_000), &b"abcde"[..]),
                (Some(LinkMedium::Ip), Some(1_500_000_000), b""),
                (None, Some(7), b"x"),
                (Some(LinkMedium::Ethernet), None, b"abc"),
            ]
        );
        assert_eq!((frames[0].original_len, frames[3].original_len), (2_000, 9));
    }
}

#[test]
fn a_second_section_starts_anew() {
    let mut file = Builder::new(false);
    file.section();
    file.interface(LINK_ETHERNET, 0, &[]);
    file.packet(0, 1, b"a");
    let mut other = Builder::new(true);
    other.section();
    other.interface(LINK_RAW, 0, &[]);
    other.packet(0, 2, b"b");
    let both = [file.bytes, other.bytes].concat();
    let frames = read(&both).expect("a good file");
    let media: Vec<_> = frames.iter().map(|f| f.medium).collect();
    assert_eq!(media, [Some(LinkMedium::Ethernet), Some(LinkMedium::Ip)]);
}

#[test]
fn classic_pcap_of_either_byte_order_and_resolution() {
    for is_big_endian in [false, true] {
        for (magic, ns) in
            [(PCAP_MICROSECONDS, 3_000_000_007_000), (PCAP_NANOSECONDS, 3_000_000_000_007)]
        {
            let mut file = Builder::new(is_big_endian);
            for word in [magic, 0x0002_0004, 0, 0, 65_535, 1] {
                file.u32(word);
            }
            for word in [3_000, 7, 2, 60] {
                file.u32(word);
            }
            file.bytes.extend(b"hi");
            let frames = read(&file.bytes).expect("a good file");
            assert_eq!(frames.len(), 1);
            assert_eq!((frames[0].timestamp_ns, frames[0].bytes), (Some(ns), &b"hi"[..]));
            assert_eq!(
                (frames[0].original_len, frames[0].medium),
                (60, Some(LinkMedium::Ethernet))
            );
            let cut = &file.bytes[..file.bytes.len() - 1];
            assert_eq!(read(cut), Err(ReadError::CutOff { at: 24 }));
        }
    }
}

#[test]
fn broken_files_are_named_and_end_the_reading() {
    assert_eq!(read(b"").err(), Some(ReadError::NotACapture));
    assert_eq!(read(b"GIF89a..").err(), Some(ReadError::NotACapture));
    let mut file = Builder::new(false);
    file.section();
    file.packet(0, 1, b"a");
    assert!(matches!(read(&file.bytes), Err(ReadError::BadBlock { at: 28, .. })));
    let mut file = Builder::new(false);
    file.section();
    file.interface(LINK_RAW, 0, &[]);
    file.packet(0, 1, b"abcd");
    let last = file.bytes.len() - 4;
    file.bytes[last] ^= 4;
    let mut reader = Reader::new(&file.bytes).expect("a head");
    assert!(matches!(reader.next(), Some(Err(ReadError::BadBlock { .. }))));
    assert_eq!(reader.next(), None);
    let mut many = Builder::new(false);
    many.section();
    for _ in 0..=CAPTURE_INTERFACES_MAX {
        many.interface(LINK_RAW, 0, &[]);
    }
    assert!(matches!(read(&many.bytes), Err(ReadError::BadBlock { .. })));
}

proptest! {
    #[test]
    fn a_changed_file_gives_frames_within_it_or_an_error(
        is_big_endian in any::<bool>(),
        changes in proptest::collection::vec((0..400_usize, any::<u8>()), 0..12),
        cut in 0..500_usize,
    ) {
        let mut file = Builder::new(is_big_endian);
        file.section();
        file.interface(LINK_ETHERNET, 100, &[(IF_TSRESOL, &[6]), (IF_TSOFFSET, &[0; 8])]);
        for number in 0..4 {
            file.packet(0, number, &[7; 33]);
        }
        file.block(SIMPLE_PACKET, |b| b.u32(0));
        let mut bytes = file.bytes;
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.max(4));
        let range = bytes.as_ptr_range();
        for frame in Reader::new(&bytes).into_iter().flatten().flatten() {
            let inner = frame.bytes.as_ptr_range();
            prop_assert!(range.start <= inner.start && inner.end <= range.end);
        }
    }
}
