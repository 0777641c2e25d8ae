//! The TCP header and its options (RFC 9293, sections 3.1 and 3.2).

use super::{WireError, be16, be32};
use crate::script::TcpOption;

const HEADER_BYTES: usize = 20;
/// The magic number of fast open as an experiment (RFC 6994).
const FAST_OPEN_MAGIC: [u8; 2] = [0xf9, 0x89];

/// A segment. Timestamps and numbers are as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpHeader {
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// The low nine bits; AE is 0x100.
    pub(crate) flags: u16,
    /// The three reserved bits.
    pub(crate) reserved: u8,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    pub(crate) options: Vec<TcpOption>,
    pub(crate) payload: Vec<u8>,
}

impl TcpHeader {
    /// Reads a segment. Its checksum is the caller's to check.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let header = bytes.get(..HEADER_BYTES).ok_or(WireError::Truncated)?;
        let offset = usize::from(header[12] >> 4) * 4;
        let options = bytes.get(HEADER_BYTES..offset).ok_or(WireError::Truncated)?;
        Ok(Self {
            source_port: be16(header, 0),
            destination_port: be16(header, 2),
            seq: be32(header, 4),
            ack: be32(header, 8),
            flags: be16(header, 12) & 0x1ff,
            reserved: (header[12] >> 1) & 0x7,
            window: be16(header, 14),
            urgent: be16(header, 18),
            options: parse_options(options)?,
            payload: bytes[offset..].to_vec(),
        })
    }

    /// Writes a segment with a checksum of zero.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut options = Vec::new();
        for option in &self.options {
            emit_option(option, &mut options);
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let offset = u16::try_from((HEADER_BYTES + options.len()) / 4).unwrap_or(15);
        let control = (offset << 12) | (u16::from(self.reserved) << 9) | self.flags;
        let mut bytes = Vec::with_capacity(HEADER_BYTES + options.len() + self.payload.len());
        bytes.extend_from_slice(&self.source_port.to_be_bytes());
        bytes.extend_from_slice(&self.destination_port.to_be_bytes());
        bytes.extend_from_slice(&self.seq.to_be_bytes());
        bytes.extend_from_slice(&self.ack.to_be_bytes());
        bytes.extend_from_slice(&control.to_be_bytes());
        bytes.extend_from_slice(&self.window.to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&self.urgent.to_be_bytes());
        bytes.extend_from_slice(&options);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// All options up to the end of the list. Padding of zeros after it is no option of its own.
fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, WireError> {
    let mut options = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        match kind {
            0 => {
                options.push(TcpOption::Eol);
                return Ok(options);
            }
            1 => {
                options.push(TcpOption::Nop);
                bytes = rest;
            }
            _ => {
                let len = usize::from(*rest.first().ok_or(WireError::BadOption)?);
                let data = bytes.get(2..len).ok_or(WireError::BadOption)?;
                options.push(parse_option(kind, data)?);
                bytes = &bytes[len..];
            }
        }
    }
    Ok(options)
}

fn parse_option(kind: u8, data: &[u8]) -> Result<TcpOption, WireError> {
    let words = || data.chunks(4).map(|word| be32(word, 0)).collect::<Vec<u32>>();
    Ok(match (kind, data.len()) {
        (2, 2) => TcpOption::Mss(Some(be16(data, 0))),
        (3, 1) => TcpOption::WindowScale(Some(data[0])),
        (4, 0) => TcpOption::SackPermitted,
        (5, len) if len % 8 == 0 && len > 0 => {
            TcpOption::Sack(words().chunks(2).map(|edge| (edge[0], edge[1])).collect())
        }
        (8, 8) => {
            let (val, ecr) = (Some(be32(data, 0)), Some(be32(data, 4)));
            TcpOption::Timestamps { val, ecr, absolute_ecr: false }
        }
        (19, 16) => TcpOption::Md5(data.to_vec()),
        (34, _) => TcpOption::FastOpen(data.to_vec()),
        (172 | 174, len) if len % 3 == 0 && len <= 9 => {
            let counter = |bytes: &[u8]| u32::from(bytes[0]) << 16 | u32::from(be16(bytes, 1));
            TcpOption::AccurateEcn { kind, counters: data.chunks(3).map(counter).collect() }
        }
        (254, _) if data.starts_with(&FAST_OPEN_MAGIC) => {
            TcpOption::FastOpenExperiment(data[2..].to_vec())
        }
        (2..=5 | 8, _) => return Err(WireError::BadOption),
        _ => TcpOption::Other { kind, data: data.to_vec() },
    })
}

/// Values that a script leaves open are written as zero.
fn emit_option(option: &TcpOption, bytes: &mut Vec<u8>) {
    let (kind, data): (u8, Vec<u8>) = match option {
        TcpOption::Eol => return bytes.push(0),
        TcpOption::Nop => return bytes.push(1),
        TcpOption::Mss(mss) => (2, mss.unwrap_or(0).to_be_bytes().to_vec()),
        TcpOption::WindowScale(shift) => (3, vec![shift.unwrap_or(0)]),
        TcpOption::SackPermitted => (4, Vec::new()),
        TcpOption::Sack(blocks) => {
            let edges = blocks.iter().flat_map(|&(left, right)| [left, right]);
            (5, edges.flat_map(u32::to_be_bytes).collect())
        }
        TcpOption::Timestamps { val, ecr, .. } => {
            let words = [val.unwrap_or(0), ecr.unwrap_or(0)];
            (8, words.into_iter().flat_map(u32::to_be_bytes).collect())
        }
        TcpOption::Md5(digest) => (19, digest.clone()),
        TcpOption::FastOpen(cookie) => (34, cookie.clone()),
        TcpOption::FastOpenExperiment(cookie) => (254, [&FAST_OPEN_MAGIC, &cookie[..]].concat()),
        TcpOption::AccurateEcn { kind, counters } => {
            let counters =
                counters.iter().flat_map(|counter| counter.to_be_bytes().into_iter().skip(1));
            (*kind, counters.collect())
        }
        TcpOption::Other { kind, data } => (*kind, data.clone()),
    };
    bytes.push(kind);
    bytes.push(u8::try_from(data.len() + 2).unwrap_or(u8::MAX));
    bytes.extend_from_slice(&data);
}
