//! Values of entries as bytes, and back.
//!
//! Invariant: reading accepts exactly what writing makes, and allocates no more than a small
//! multiple of the bytes that are there.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::remote::{ValueReader, ValueWriter};

/// A value with a form in bytes.
pub(super) trait WireValue: Sized {
    fn put(&self, to: &mut ValueWriter);

    /// `None`: the bytes are no such value.
    fn get(from: &mut ValueReader<'_>) -> Option<Self>;
}

macro_rules! plain {
    ($($type:ident)*) => {
        $(impl WireValue for $type {
            fn put(&self, to: &mut ValueWriter) {
                to.$type(*self);
            }

            fn get(from: &mut ValueReader<'_>) -> Option<Self> {
                from.$type()
            }
        })*
    };
}

plain!(u8 u16 u32 u64 bool);

impl WireValue for Duration {
    fn put(&self, to: &mut ValueWriter) {
        to.duration(*self);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        from.duration()
    }
}

impl WireValue for IpAddr {
    fn put(&self, to: &mut ValueWriter) {
        to.ip(*self);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        from.ip()
    }
}

impl WireValue for SocketAddr {
    fn put(&self, to: &mut ValueWriter) {
        to.ip(self.ip());
        to.u16(self.port());
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        Some(Self::new(from.ip()?, from.u16()?))
    }
}

/// Control characters, which a terminal would obey, are no text.
impl WireValue for String {
    fn put(&self, to: &mut ValueWriter) {
        let text: Self = self.chars().filter(|it| !it.is_control()).collect();
        to.text(&text);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        from.text().filter(|text| !text.chars().any(char::is_control))
    }
}

impl<T: WireValue> WireValue for Option<T> {
    fn put(&self, to: &mut ValueWriter) {
        to.option(self.as_ref(), |to, value| value.put(to));
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        from.option(T::get)
    }
}

impl<A: WireValue, B: WireValue> WireValue for (A, B) {
    fn put(&self, to: &mut ValueWriter) {
        self.0.put(to);
        self.1.put(to);
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        Some((A::get(from)?, B::get(from)?))
    }
}

/// At most 65,535 values. Each has at least one byte, so their number is bounded by what is read.
impl<T: WireValue> WireValue for Vec<T> {
    fn put(&self, to: &mut ValueWriter) {
        let count = self.len().min(u16::MAX.into());
        to.u16(count as u16);
        self[..count].iter().for_each(|value| value.put(to));
    }

    fn get(from: &mut ValueReader<'_>) -> Option<Self> {
        let count = from.u16()?;
        let mut values = Self::new();
        for _ in 0..count {
            values.push(T::get(from)?);
        }
        Some(values)
    }
}
