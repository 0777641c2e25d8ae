//! Values in the call buffer: written one after the other, native-endian, without padding.
//!
//! Invariant: reading accepts exactly what writing makes. Truth values are 0 or 1, and a reader
//! that has not reached the end has not read its value.

use std::net::IpAddr;
use std::time::Duration;

/// Writes values.
#[derive(Debug, Default)]
pub(crate) struct ValueWriter(Vec<u8>);

/// Reads what a [`ValueWriter`] wrote. Each method returns `None` if the bytes are no such value.
#[derive(Debug)]
pub(crate) struct ValueReader<'bytes>(&'bytes [u8]);

macro_rules! integers {
    ($($name:ident)*) => {
        impl ValueWriter {
            $(pub(crate) fn $name(&mut self, value: $name) {
                self.0.extend(value.to_ne_bytes());
            })*
        }

        impl ValueReader<'_> {
            $(pub(crate) fn $name(&mut self) -> Option<$name> {
                let (value, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                Some($name::from_ne_bytes(*value))
            })*
        }
    };
}

integers!(u8 u16 u32 u64);

impl ValueWriter {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.u8(value.into());
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Durations of more than 584 years are that long.
    pub(crate) fn duration(&mut self, value: Duration) {
        self.u64(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn ip(&mut self, value: IpAddr) {
        self.bool(value.is_ipv6());
        match value {
            IpAddr::V4(ip) => self.0.extend(ip.octets()),
            IpAddr::V6(ip) => self.0.extend(ip.octets()),
        }
    }

    /// At most 65,535 bytes, after their number.
    pub(crate) fn bytes(&mut self, value: &[u8]) {
        let len = value.len().min(u16::MAX.into());
        self.u16(len as u16);
        self.0.extend(&value[..len]);
    }

    /// At most 65,535 bytes of a text.
    pub(crate) fn text(&mut self, value: &str) {
        let end = value.floor_char_boundary(u16::MAX.into());
        self.bytes(&value.as_bytes()[..end]);
    }
}

impl<'bytes> ValueReader<'bytes> {
    pub(crate) const fn new(bytes: &'bytes [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) const fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// The value, if it was all there is.
    pub(crate) fn end<T>(self, value: T) -> Option<T> {
        self.is_at_end().then_some(value)
    }

    pub(crate) fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<Option<T>> {
        Some(if self.bool()? { Some(read(self)?) } else { None })
    }

    pub(crate) fn duration(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_nanos)
    }

    pub(crate) fn ip(&mut self) -> Option<IpAddr> {
        Some(if self.bool()? {
            IpAddr::from(self.octets::<16>()?)
        } else {
            IpAddr::from(self.octets::<4>()?)
        })
    }

    pub(crate) fn octets<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (octets, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*octets)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'bytes [u8]> {
        let len = usize::from(self.u16()?);
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}
