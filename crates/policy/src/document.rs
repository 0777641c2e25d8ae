//! Sections and values of a policy file, with the lines that they are at.
//!
//! Read first: <https://toml.io>.

use std::net::IpAddr;

use megapipe_service::policy::{PortSpan, QuotaKind, Quotas};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::PolicyMistake;

/// The line of a byte, from 1.
fn line_of(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Parses a text as TOML.
///
/// # Errors
/// The mistake in the words of the parser.
pub(crate) fn root(text: &str) -> Result<Spanned<DeTable<'_>>, PolicyMistake> {
    DeTable::parse(text).map_err(|error| {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        PolicyMistake { line, mistake: error.message().replace('\n', "; ") }
    })
}

/// A table of the file, by its name.
#[derive(Clone)]
pub(crate) struct Section<'file, 'text> {
    text: &'text str,
    name: String,
    /// Its first byte.
    at: usize,
    table: &'file DeTable<'text>,
}

type Value<'file, 'text> = &'file Spanned<DeValue<'text>>;

impl<'file, 'text> Section<'file, 'text> {
    /// The whole file.
    pub(crate) const fn top(text: &'text str, table: &'file DeTable<'text>) -> Self {
        Self { text, name: String::new(), at: 0, table }
    }

    pub(crate) fn line(&self) -> usize {
        line_of(self.text, self.at)
    }

    /// A mistake of the section as a whole.
    pub(crate) fn mistake(&self, mistake: String) -> PolicyMistake {
        PolicyMistake { line: self.line(), mistake }
    }

    fn mistake_at(&self, at: usize, mistake: String) -> PolicyMistake {
        PolicyMistake { line: line_of(self.text, at), mistake }
    }

    /// The name of a key for errors.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn wrong(&self, key: &str, value: Value<'_, '_>, wanted: &str) -> PolicyMistake {
        let found = match value.get_ref() {
            DeValue::Integer(number) => number.to_string(),
            DeValue::String(text) => format!("{text:?}"),
            other => other.type_str().to_owned(),
        };
        let text = format!("{} = {found} must be {wanted}", self.path(key));
        self.mistake_at(value.span().start, text)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &'file str> {
        self.table.keys().map(|key| &**key.get_ref())
    }

    /// Checks that all keys are known.
    ///
    /// # Errors
    /// [`PolicyMistake`] names the first that is not.
    pub(crate) fn check_keys(&self, known: &[&str]) -> Result<(), PolicyMistake> {
        for key in self.table.keys() {
            if !known.contains(&&**key.get_ref()) {
                let (path, known) = (self.path(key.get_ref()), known.join(", "));
                let text = format!("unknown key {path:?}; there are {known}");
                return Err(self.mistake_at(key.span().start, text));
            }
        }
        Ok(())
    }

    fn value(&self, key: &str) -> Option<Value<'file, 'text>> {
        self.table.get(key)
    }

    /// The section that is the value of a key.
    ///
    /// # Errors
    /// [`PolicyMistake`]: it is something else.
    pub(crate) fn section(&self, key: &str) -> Result<Option<Self>, PolicyMistake> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let table = value.get_ref().as_table().ok_or_else(|| self.wrong(key, value, "a table"))?;
        // A table that no header names alone begins at its first key.
        let first = table.keys().map(|key| key.span().start).min();
        let at = match value.span() {
            span if span.is_empty() => first.unwrap_or(span.start),
            span => span.start,
        };
        Ok(Some(Self { text: self.text, name: self.path(key), at, table }))
    }

    pub(crate) fn truth(&self, key: &str) -> Result<Option<bool>, PolicyMistake> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let truth = value.get_ref().as_bool();
        truth.map(Some).ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    pub(crate) fn number(
        &self,
        key: &str,
        min: u32,
        max: u32,
    ) -> Result<Option<u32>, PolicyMistake> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = integer(value).filter(|number| (min..=max).contains(number));
        let wanted = || self.wrong(key, value, &format!("a number from {min} to {max}"));
        number.map(Some).ok_or_else(wanted)
    }

    /// The values of a list, none if the key is missing.
    fn list(&self, key: &str) -> Result<Vec<Value<'file, 'text>>, PolicyMistake> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let list = value.get_ref().as_array().ok_or_else(|| self.wrong(key, value, "a list"))?;
        Ok(list.iter().collect())
    }

    /// Numbers of users or groups, which are listed by number or by name.
    pub(crate) fn ids(
        &self,
        key: &str,
        kind: &str,
        find: impl Fn(&str) -> Option<u32>,
    ) -> Result<Vec<u32>, PolicyMistake> {
        let id = |value: Value<'_, '_>| match value.get_ref() {
            DeValue::Integer(_) => {
                // The kernel uses the largest as "none".
                let number = integer(value).filter(|number| *number < u32::MAX);
                number.ok_or_else(|| self.wrong(key, value, "a number of 32 bits"))
            }
            DeValue::String(name) => find(name).ok_or_else(|| {
                let text = format!("unknown {kind} {name:?} in {}", self.path(key));
                self.mistake_at(value.span().start, text)
            }),
            _ => Err(self.wrong(key, value, "a list of names and numbers")),
        };
        self.list(key)?.into_iter().map(id).collect()
    }

    pub(crate) fn ports(&self, key: &str) -> Result<Option<Vec<PortSpan>>, PolicyMistake> {
        if self.value(key).is_none() {
            return Ok(None);
        }
        let span = |value: Value<'_, '_>| {
            let wanted = "a list of ports 1 to 65535, such as 80, or spans, such as \"8000-8099\"";
            port_span(value).ok_or_else(|| self.wrong(key, value, wanted))
        };
        self.list(key)?.into_iter().map(span).collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn addresses(&self, key: &str) -> Result<Vec<IpAddr>, PolicyMistake> {
        let address = |value: Value<'_, '_>| {
            let parsed = value.get_ref().as_str().and_then(|text| text.parse::<IpAddr>().ok());
            let address = parsed.filter(|address| !address.is_unspecified());
            address
                .ok_or_else(|| self.wrong(key, value, "a list of addresses, such as \"10.0.0.2\""))
        };
        self.list(key)?.into_iter().map(address).collect()
    }

    /// Reads the sections with quotas.
    pub(crate) fn quotas(&self, quotas: &mut Quotas<Option<u32>>) -> Result<(), PolicyMistake> {
        for scope in ["channel", "user"] {
            let Some(section) = self.section(scope)? else { continue };
            let all = QuotaKind::ALL.iter().map(|kind| (*kind, kind.key()));
            let its: Vec<_> = all.filter(|(_, (its, _))| *its == scope).collect();
            section.check_keys(&its.iter().map(|(_, (_, name))| *name).collect::<Vec<_>>())?;
            for (kind, (_, name)) in its {
                if let Some(limit) = section.number(name, 0, u32::MAX)? {
                    quotas.set(kind, Some(limit));
                }
            }
        }
        Ok(())
    }
}

fn integer(value: Value<'_, '_>) -> Option<u32> {
    let number = value.get_ref().as_integer()?;
    u32::from_str_radix(number.as_str(), number.radix()).ok()
}

fn port_span(value: Value<'_, '_>) -> Option<PortSpan> {
    let (first, last) = match value.get_ref() {
        DeValue::Integer(_) => {
            let port = u16::try_from(integer(value)?).ok()?;
            (port, port)
        }
        DeValue::String(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            (decimal(first)?, decimal(last)?)
        }
        _ => return None,
    };
    (0 < first && first <= last).then_some(PortSpan { first, last })
}

/// A number of digits alone.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
