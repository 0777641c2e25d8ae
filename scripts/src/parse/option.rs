//! TCP options: `<mss 1460,nop,wscale 7,sackOK,TS val 1 ecr 0>`, or `<...>` for any.

use super::{Definitions, ParseError, ScriptProblem};
use crate::limits::TCP_OPTION_BYTES_MAX;
use crate::parse::cursor::Cursor;
use crate::parse::number::{integer, unsigned};
use crate::script::TcpOption;

/// Accurate ECN, in the order of EE0B, ECEB, EE1B.
const ACCURATE_ECN_0: u8 = 172;
/// Accurate ECN, in the order of EE1B, ECEB, EE0B.
const ACCURATE_ECN_1: u8 = 174;
/// Experiments (RFC 6994), and the identifiers of those that have names.
const EXPERIMENT: u8 = 254;
const EXPERIMENT_ACCURATE_ECN_0: u16 = 0xacc0;
const EXPERIMENT_ACCURATE_ECN_1: u16 = 0xacc1;
const EXPERIMENT_ACK_RATE: u16 = 0x00ac;
/// Three bytes each.
const COUNTER_MAX: i64 = 0xff_ffff;

/// All options of a segment; none for `<...>`. No brackets: no options.
pub(super) fn options(
    cursor: &mut Cursor<'_>,
    definitions: &Definitions,
) -> Result<Option<Vec<TcpOption>>, ParseError> {
    let mut options = Vec::new();
    if !cursor.take_next("<") {
        return Ok(Some(options));
    }
    if cursor.take_next("...") {
        cursor.expect(">")?;
        return Ok(None);
    }
    let start = cursor.at();
    loop {
        options.push(option(cursor, definitions)?);
        let bytes: usize = options.iter().map(TcpOption::wire_bytes).sum();
        if bytes > TCP_OPTION_BYTES_MAX {
            return Err(cursor.error_at(start, ScriptProblem::TooManyOptions(bytes)));
        }
        if !cursor.take_next(",") {
            break;
        }
    }
    cursor.expect(">")?;
    Ok(Some(options))
}

fn option(cursor: &mut Cursor<'_>, definitions: &Definitions) -> Result<TcpOption, ParseError> {
    cursor.skip_blank();
    let start = cursor.at();
    let name = cursor.take_word().ok_or_else(|| cursor.expected("a TCP option"))?;
    match name.as_str() {
        "nop" => Ok(TcpOption::Nop),
        "eol" => Ok(TcpOption::Eol),
        "mss" => {
            let mss = wild(cursor, "mss", i64::from(u16::MAX))?;
            Ok(TcpOption::Mss(mss.and_then(|mss| u16::try_from(mss).ok())))
        }
        "wscale" => {
            let shift = wild(cursor, "window scale", i64::from(u8::MAX))?;
            Ok(TcpOption::WindowScale(shift.and_then(|shift| u8::try_from(shift).ok())))
        }
        "sackOK" | "sackok" => Ok(TcpOption::SackPermitted),
        "sack" => sack(cursor),
        "TS" | "ts" => timestamps(cursor),
        "md5" => Ok(TcpOption::Md5(hexadecimal(cursor, definitions)?)),
        "FO" => Ok(TcpOption::FastOpen(cookie(cursor, definitions)?)),
        "FOEXP" => Ok(TcpOption::FastOpenExperiment(cookie(cursor, definitions)?)),
        "ECN" => accurate_ecn(cursor),
        "AccECN0" => {
            Ok(TcpOption::AccurateEcn { kind: ACCURATE_ECN_0, counters: counters(cursor)? })
        }
        "AccECN1" => {
            Ok(TcpOption::AccurateEcn { kind: ACCURATE_ECN_1, counters: counters(cursor)? })
        }
        "gen" | "exp" | "EXP" if cursor.take("-") => numbered(cursor, &name, definitions),
        other => {
            let what = format!("TCP option {other}");
            Err(cursor.error_at(start, ScriptProblem::Unsupported(what)))
        }
    }
}

/// The counters after `AccECN0` and `AccECN1`, which the name of the option puts in order:
/// `ee0b 1 eceb 0 ee1b 1`.
fn counters(cursor: &mut Cursor<'_>) -> Result<Vec<u32>, ParseError> {
    let mut counters = Vec::new();
    while counters.len() < 3 {
        let before = cursor.at();
        let name = cursor.take_word().unwrap_or_default().to_ascii_lowercase();
        if !matches!(name.as_str(), "ee0b" | "eceb" | "ee1b") {
            cursor.back_to(before);
            break;
        }
        let counter = unsigned(cursor, "a byte counter", COUNTER_MAX)?;
        counters.push(u32::try_from(counter).unwrap_or(u32::MAX));
    }
    Ok(counters)
}

/// `gen-77 0102`: an option by its number. `exp-00ac 05`: an experiment by its identifier
/// (RFC 6994), for some of which there are names.
fn numbered(
    cursor: &mut Cursor<'_>,
    family: &str,
    definitions: &Definitions,
) -> Result<TcpOption, ParseError> {
    let start = cursor.at();
    let name = cursor.take_while(|byte| byte.is_ascii_alphanumeric()).to_vec();
    let name = String::from_utf8_lossy(&name).into_owned();
    if family == "gen" {
        let kind = name.parse().map_err(|_| cursor.expected("the number of a TCP option"))?;
        return Ok(TcpOption::Other { kind, data: cookie(cursor, definitions)? });
    }
    let (id, data) = match name.to_ascii_lowercase().as_str() {
        "fo" => return Ok(TcpOption::FastOpenExperiment(cookie(cursor, definitions)?)),
        "accecn0" => (EXPERIMENT_ACCURATE_ECN_0, counter_bytes(cursor)?),
        "accecn1" => (EXPERIMENT_ACCURATE_ECN_1, counter_bytes(cursor)?),
        "tarr" => (EXPERIMENT_ACK_RATE, ack_rate(cursor)?),
        digits => match u16::from_str_radix(digits, 16) {
            Ok(id) => (id, cookie(cursor, definitions)?),
            Err(_) => {
                let what = format!("TCP option {family}-{name}");
                return Err(cursor.error_at(start, ScriptProblem::Unsupported(what)));
            }
        },
    };
    Ok(TcpOption::Other { kind: EXPERIMENT, data: [&id.to_be_bytes()[..], &data].concat() })
}

fn counter_bytes(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, ParseError> {
    let counters = counters(cursor)?;
    Ok(counters.iter().flat_map(|counter| counter.to_be_bytes().into_iter().skip(1)).collect())
}

/// A request for ACKs, with or without a rate in the upper seven bits.
fn ack_rate(cursor: &mut Cursor<'_>) -> Result<Vec<u8>, ParseError> {
    cursor.skip_blank();
    if !cursor.peek().is_some_and(|byte| byte.is_ascii_digit()) {
        return Ok(Vec::new());
    }
    let rate = unsigned(cursor, "a rate of ACKs", 0x7f)?;
    Ok(vec![u8::try_from(rate << 1).unwrap_or(u8::MAX)])
}

/// A number, or `*` or `...` for any.
fn wild(cursor: &mut Cursor<'_>, what: &'static str, max: i64) -> Result<Option<i64>, ParseError> {
    if cursor.take_next("*") || cursor.take_next("...") {
        return Ok(None);
    }
    unsigned(cursor, what, max).map(Some)
}

fn sack(cursor: &mut Cursor<'_>) -> Result<TcpOption, ParseError> {
    let mut blocks = Vec::new();
    loop {
        let left = word32(cursor, "the left edge of a block")?;
        cursor.expect(":")?;
        blocks.push((left, word32(cursor, "the right edge of a block")?));
        cursor.skip_blank();
        if !cursor.peek().is_some_and(|byte| byte.is_ascii_digit())
            || blocks.len() * 8 > TCP_OPTION_BYTES_MAX
        {
            return Ok(TcpOption::Sack(blocks));
        }
    }
}

fn timestamps(cursor: &mut Cursor<'_>) -> Result<TcpOption, ParseError> {
    if !cursor.take_keyword("val") {
        return Err(cursor.expected("`val`"));
    }
    let val = wild(cursor, "TSval", i64::from(u32::MAX))?;
    if !cursor.take_keyword("ecr") {
        return Err(cursor.expected("`ecr`"));
    }
    let ecr = wild(cursor, "TSecr", i64::from(u32::MAX))?;
    let absolute_ecr = cursor.take_next("!");
    let word = |value: Option<i64>| value.and_then(|value| u32::try_from(value).ok());
    Ok(TcpOption::Timestamps { val: word(val), ecr: word(ecr), absolute_ecr })
}

/// `ECN e1b 1 ceb 0 e0b 1`: the order of the counters distinguishes the two kinds.
fn accurate_ecn(cursor: &mut Cursor<'_>) -> Result<TcpOption, ParseError> {
    let mut names = Vec::new();
    let mut counters = Vec::new();
    while names.len() < 3 {
        let before = cursor.at();
        let Some(name) = cursor.take_word() else { break };
        if !matches!(name.as_str(), "e0b" | "ceb" | "e1b") {
            cursor.back_to(before);
            break;
        }
        names.push(name);
        let counter = unsigned(cursor, "a byte counter", COUNTER_MAX)?;
        counters.push(u32::try_from(counter).unwrap_or(u32::MAX));
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let kind = match names[..] {
        [] | ["e0b"] | ["e0b", "ceb"] | ["e0b", "ceb", "e1b"] => ACCURATE_ECN_0,
        ["e1b"] | ["e1b", "ceb"] | ["e1b", "ceb", "e0b"] => ACCURATE_ECN_1,
        _ => return Err(cursor.expected("e0b, ceb, e1b in one of their two orders")),
    };
    Ok(TcpOption::AccurateEcn { kind, counters })
}

/// A fast-open cookie, which may be missing.
fn cookie(cursor: &mut Cursor<'_>, definitions: &Definitions) -> Result<Vec<u8>, ParseError> {
    cursor.skip_blank();
    if cursor.peek().is_some_and(|byte| byte.is_ascii_alphanumeric()) {
        hexadecimal(cursor, definitions)
    } else {
        Ok(Vec::new())
    }
}

fn hexadecimal(cursor: &mut Cursor<'_>, definitions: &Definitions) -> Result<Vec<u8>, ParseError> {
    cursor.skip_blank();
    let start = cursor.at();
    let word = cursor.take_while(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let word = String::from_utf8_lossy(word).into_owned();
    let digits = definitions.value(&word).unwrap_or(&word).trim_matches('"');
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    let bytes: Option<Vec<u8>> = digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    bytes
        .filter(|bytes| bytes.len() * 2 == digits.len() && !bytes.is_empty())
        .ok_or_else(|| cursor.error_at(start, ScriptProblem::NotHexadecimal(digits.to_owned())))
}

/// A 32-bit number.
fn word32(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u32, ParseError> {
    let start = cursor.at();
    let value = integer(cursor, what)?;
    u32::try_from(value).map_err(|_| {
        cursor.error_at(start, ScriptProblem::OutOfRange { what, value, max: i64::from(u32::MAX) })
    })
}

impl TcpOption {
    /// Its number.
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Eol => 0,
            Self::Nop => 1,
            Self::Mss(_) => 2,
            Self::WindowScale(_) => 3,
            Self::SackPermitted => 4,
            Self::Sack(_) => 5,
            Self::Timestamps { .. } => 8,
            Self::Md5(_) => 19,
            Self::FastOpen(_) => 34,
            Self::FastOpenExperiment(_) => 254,
            Self::AccurateEcn { kind, .. } | Self::Other { kind, .. } => *kind,
        }
    }

    /// How many bytes it takes in a header, without padding.
    pub(crate) fn wire_bytes(&self) -> usize {
        match self {
            Self::Eol | Self::Nop => 1,
            Self::SackPermitted => 2,
            Self::WindowScale(_) => 3,
            Self::Mss(_) => 4,
            Self::Timestamps { .. } => 10,
            Self::Sack(blocks) => 2 + 8 * blocks.len(),
            Self::Md5(data) | Self::FastOpen(data) | Self::Other { data, .. } => 2 + data.len(),
            Self::FastOpenExperiment(cookie) => 4 + cookie.len(),
            Self::AccurateEcn { counters, .. } => 2 + 3 * counters.len(),
        }
    }
}
