//! The arguments of a call, by position and by expected type.

use std::net::{IpAddr, SocketAddr};

use super::{ScriptCallError, ScriptDescriptors, evaluate};
use crate::limits::CALL_BYTES_MAX;
use crate::script::{CallLine, Expression};
use crate::settings::ScriptSettings;
use crate::system::Fd;

/// What an option without a given length takes.
const INT_BYTES: usize = 4;

/// A call's arguments and what resolves them.
pub(super) struct CallArguments<'a> {
    pub(super) line: &'a CallLine,
    pub(super) descriptors: &'a ScriptDescriptors,
    pub(super) settings: &'a ScriptSettings,
}

impl<'a> CallArguments<'a> {
    /// The expression at a position, from 0.
    pub(super) fn at(&self, position: usize) -> Result<&'a Expression, ScriptCallError> {
        let found = self.line.arguments.get(position);
        found.ok_or_else(|| self.bad(position, "something"))
    }

    pub(super) fn bad(&self, position: usize, what: &'static str) -> ScriptCallError {
        ScriptCallError::BadArgument { call: self.line.name.clone(), position: position + 1, what }
    }

    pub(super) fn evaluate(&self, expression: &Expression) -> Result<i64, ScriptCallError> {
        evaluate(expression)
    }

    pub(super) fn int(&self, position: usize) -> Result<i32, ScriptCallError> {
        let value = evaluate(self.at(position)?)?;
        // Masks with the highest bit set are written as positive numbers.
        i32::try_from(value)
            .or_else(|_| u32::try_from(value).map(u32::cast_signed))
            .map_err(|_| self.bad(position, "a number of 32 bits"))
    }

    pub(super) fn unsigned(&self, position: usize) -> Result<u32, ScriptCallError> {
        self.int(position).map(i32::cast_unsigned)
    }

    pub(super) fn size(&self, position: usize) -> Result<usize, ScriptCallError> {
        let value = evaluate(self.at(position)?)?;
        usize::try_from(value).map_err(|_| self.bad(position, "a size"))
    }

    pub(super) fn fd(&self, position: usize) -> Result<Fd, ScriptCallError> {
        Ok(self.descriptors.live(evaluate(self.at(position)?)?))
    }

    /// An address: `...` for the default, none for AF_UNSPEC.
    pub(super) fn address(
        &self,
        position: usize,
        default: SocketAddr,
    ) -> Result<Option<SocketAddr>, ScriptCallError> {
        let structure = match self.at(position)? {
            Expression::Ellipsis => return Ok(Some(default)),
            structure @ Expression::Structure(_) => structure,
            _ => return Err(self.bad(position, "an address")),
        };
        let bad = || self.bad(position, "an address with sa_family, sin_port and sin_addr");
        let family = self.field(structure, "sa_family").ok_or_else(bad)?;
        if evaluate(family)? == i64::from(libc::AF_UNSPEC) {
            return Ok(None);
        }
        let port = self.field(structure, "sin_port").ok_or_else(bad)?;
        let port = u16::try_from(evaluate(port)?).map_err(|_| bad())?;
        let ip = match self.field(structure, "sin_addr") {
            Some(Expression::Function(_, arguments)) => match &arguments[..] {
                [Expression::Text(text)] => {
                    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok())
                }
                _ => None,
            },
            Some(Expression::Ellipsis) => Some(default.ip()),
            Some(other) => {
                let bits = u32::try_from(evaluate(other)?).map_err(|_| bad())?;
                Some(IpAddr::from(u32::from_be(bits).to_be_bytes()))
            }
            None => None,
        };
        Ok(Some(SocketAddr::new(ip.ok_or_else(bad)?, u16::from_be(port))))
    }

    /// The value of a named field of a structure.
    pub(super) fn field(&self, structure: &'a Expression, name: &str) -> Option<&'a Expression> {
        field(structure, name)
    }

    /// The sizes of a list of `{..., 1000}`.
    pub(super) fn sizes(&self, list: &Expression) -> Result<Vec<usize>, ScriptCallError> {
        let Expression::List(list) = list else { return Err(self.bad(1, "a list of buffers")) };
        list.iter().map(|part| self.part(part).map(|(_, bytes)| bytes)).collect()
    }

    /// The bytes of a list of `{..., 1000}`.
    pub(super) fn parts(&self, list: &Expression) -> Result<Vec<Vec<u8>>, ScriptCallError> {
        let Expression::List(list) = list else { return Err(self.bad(1, "a list of buffers")) };
        list.iter()
            .map(|part| {
                let (base, bytes) = self.part(part)?;
                contents(base, bytes)
            })
            .collect()
    }

    /// Base and length of one buffer, with or without the names of the fields.
    fn part<'e>(&self, part: &'e Expression) -> Result<(&'e Expression, usize), ScriptCallError> {
        let bad = || self.bad(1, "buffers of the form {..., 1000}");
        let Expression::Structure(fields) = part else { return Err(bad()) };
        let [base, len] = &fields[..] else { return Err(bad()) };
        let value = |it: &'e Expression| match it {
            Expression::Field(_, value) => value,
            it => it,
        };
        let len = evaluate(value(len))?;
        Ok((value(base), usize::try_from(len).map_err(|_| bad())?))
    }

    /// The bytes of a `write`: the text, or this many zeros.
    pub(super) fn data(&self, position: usize, size_at: usize) -> Result<Vec<u8>, ScriptCallError> {
        contents(self.at(position)?, self.size(size_at)?)
    }

    /// An option's value as bytes: in the width of the call's length.
    pub(super) fn option_value(
        &self,
        position: usize,
        size_at: usize,
    ) -> Result<Vec<u8>, ScriptCallError> {
        let bytes = match self.line.arguments.get(size_at) {
            Some(Expression::Ellipsis) | None => INT_BYTES,
            Some(_) => self.size(size_at)?,
        };
        super::check_size(bytes)?;
        encode(self.at(position)?, bytes)?.ok_or_else(|| self.bad(position, "an option's value"))
    }

    /// Buffer size of a `getsockopt`: `[4]`, `4` or `...`.
    pub(super) fn option_bytes(&self, position: usize) -> Result<usize, ScriptCallError> {
        let size = match self.line.arguments.get(position) {
            None | Some(Expression::Ellipsis) => return Ok(INT_BYTES),
            Some(Expression::List(list)) => match &list[..] {
                [size] => evaluate(size)?,
                _ => return Err(self.bad(position, "one length")),
            },
            Some(other) => evaluate(other)?,
        };
        usize::try_from(size).map_err(|_| self.bad(position, "a length"))
    }

    /// `{fd=4, events=POLLIN, revents=POLLIN}`.
    pub(super) fn poll_entry(&self, entry: &Expression) -> Result<(Fd, i16), ScriptCallError> {
        let bad = || self.bad(0, "entries of the form {fd=4, events=POLLIN}");
        let fd = evaluate(field(entry, "fd").ok_or_else(bad)?)?;
        let events = evaluate(field(entry, "events").ok_or_else(bad)?)?;
        Ok((self.descriptors.live(fd), i16::try_from(events).map_err(|_| bad())?))
    }

    /// `{events=EPOLLIN, fd=4}`, also with `ptr`, `u32` or `u64`.
    pub(super) fn epoll_event(&self, position: usize) -> Result<(u32, u64), ScriptCallError> {
        epoll_event(self.at(position)?)?.ok_or_else(|| self.bad(position, "an epoll event"))
    }
}

/// The value of a named field of a structure.
pub(super) fn field<'e>(structure: &'e Expression, name: &str) -> Option<&'e Expression> {
    let Expression::Structure(fields) = structure else { return None };
    fields.iter().find_map(|field| match field {
        Expression::Field(known, value) if known == name => Some(&**value),
        _ => None,
    })
}

/// Mask and data of an epoll event. The data is the script's own number, a descriptor too.
pub(super) fn epoll_event(structure: &Expression) -> Result<Option<(u32, u64)>, ScriptCallError> {
    let Some(events) = field(structure, "events") else { return Ok(None) };
    let data = ["fd", "ptr", "u32", "u64"].iter().find_map(|name| field(structure, name));
    let data = data.map_or(Ok(0), evaluate)?;
    let mask = evaluate(events)? & i64::from(u32::MAX);
    Ok(Some((u32::try_from(mask).unwrap_or(0), data.cast_unsigned())))
}

/// A text, cut or filled up with zeros to its length.
fn contents(base: &Expression, bytes: usize) -> Result<Vec<u8>, ScriptCallError> {
    if bytes > CALL_BYTES_MAX {
        return Err(ScriptCallError::Unsupported("a call with more than 64 MiB"));
    }
    let mut contents = match base {
        Expression::Text(text) => text.clone(),
        _ => Vec::new(),
    };
    contents.resize(bytes, 0);
    Ok(contents)
}

/// An option's value in the machine's byte order; none when it has no such form.
pub(super) fn encode(value: &Expression, bytes: usize) -> Result<Option<Vec<u8>>, ScriptCallError> {
    let width = |value: i64, bytes: usize| value.to_ne_bytes()[..bytes.min(8)].to_vec();
    Ok(Some(match value {
        Expression::List(list) => {
            let each = bytes.checked_div(list.len()).unwrap_or(INT_BYTES);
            let mut encoded = Vec::new();
            for one in list {
                encoded.extend(width(evaluate(one)?, each));
            }
            encoded
        }
        Expression::Text(text) => {
            let mut encoded = text.clone();
            encoded.resize(bytes, 0);
            encoded
        }
        Expression::Structure(fields) => {
            let mut encoded = Vec::new();
            for one in fields {
                let one = if let Expression::Field(_, value) = one { value } else { one };
                encoded.extend(width(evaluate(one)?, INT_BYTES));
            }
            encoded
        }
        Expression::Ellipsis => vec![0; bytes],
        Expression::Integer(_) | Expression::Word(_) | Expression::Or(..) => {
            width(evaluate(value)?, bytes)
        }
        Expression::Field(..) | Expression::Function(..) => return Ok(None),
    }))
}
