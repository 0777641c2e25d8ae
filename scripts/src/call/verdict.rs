//! Compares the results of a call with those of the script.

use super::arguments::{encode, epoll_event, field};
use super::{ScriptCallError, evaluate};
use crate::report::seconds;
use crate::script::{CallLine, Expression};
use crate::symbols;
use crate::system::{CallOutput, ControlMessage, Returned};

/// None when all is as expected, else what differs.
///
/// Times in a call's result may differ by `tolerance_us`.
pub(crate) fn verdict(
    line: &CallLine,
    returned: &Returned,
    tolerance_us: i64,
) -> Result<Option<String>, ScriptCallError> {
    if let Some(difference) = result(line, returned)? {
        return Ok(Some(difference));
    }
    if returned.result < 0 {
        return Ok(None);
    }
    match (&returned.output, line.name.as_str()) {
        (CallOutput::Bytes(bytes), "getsockopt") => option_value(line, bytes),
        (CallOutput::Bytes(bytes), _) => data(line.arguments.get(1), bytes),
        (CallOutput::Message { bytes, flags, control }, _) => match message(line, bytes, *flags)? {
            Some(difference) => Ok(Some(difference)),
            None => control_messages(line, control, tolerance_us),
        },
        (CallOutput::Integer(value), _) => integer(line, *value),
        (CallOutput::Ready(ready), _) => poll(line, ready),
        (CallOutput::Events(events), _) => epoll(line, events),
        (CallOutput::None | CallOutput::Pair(..), _) => Ok(None),
    }
}

fn result(line: &CallLine, returned: &Returned) -> Result<Option<String>, ScriptCallError> {
    if line.result == Expression::Ellipsis {
        return Ok(None);
    }
    let expected = evaluate(&line.result)?;
    let name = &line.name;
    // A descriptor's number is the script's to choose.
    let makes_descriptor =
        matches!(name.as_str(), "socket" | "accept" | "accept4" | "epoll_create" | "epoll_create1");
    let expected_errno = line.errno.as_deref().unwrap_or_default();
    let is_same = match returned.result {
        -1 => {
            let errno = symbols::errno(expected_errno);
            expected == -1 && (expected_errno.is_empty() || errno == Some(returned.errno))
        }
        result => result == expected || (makes_descriptor && expected >= 0),
    };
    if is_same {
        return Ok(None);
    }
    if !expected_errno.is_empty() && symbols::errno(expected_errno).is_none() {
        return Err(ScriptCallError::UnknownName(expected_errno.to_owned()));
    }
    let live = match returned.result {
        -1 => format!("-1 {}", symbols::errno_name(returned.errno)),
        result => result.to_string(),
    };
    let errno = if expected == -1 { format!(" {expected_errno}") } else { String::new() };
    Ok(Some(format!("{name} returned {live}, expected {expected}{errno}")))
}

/// `getsockopt(4, SOL_SOCKET, SO_ERROR, [0], [4])`.
fn option_value(line: &CallLine, bytes: &[u8]) -> Result<Option<String>, ScriptCallError> {
    let Some(expected) = line.arguments.get(3) else { return Ok(None) };
    let is_any = |it: &Expression| match it {
        Expression::Ellipsis => true,
        Expression::Field(_, value) => **value == Expression::Ellipsis,
        _ => false,
    };
    let expected = match expected {
        Expression::Ellipsis => return Ok(None),
        Expression::List(list) | Expression::Structure(list) if list.iter().any(is_any) => {
            return each(list, bytes);
        }
        Expression::Text(text) => {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            let live = String::from_utf8_lossy(&bytes[..end]);
            let is_same = bytes[..end] == text[..];
            let expected = String::from_utf8_lossy(text);
            return Ok(
                (!is_same).then(|| format!("the option is \"{live}\", expected \"{expected}\""))
            );
        }
        expected => encode(expected, bytes.len())?,
    };
    let Some(expected) = expected else { return Ok(None) };
    Ok((expected != bytes)
        .then(|| format!("the option is {}, expected {}", number(bytes), number(&expected))))
}

/// Elements of four bytes, of which some may be anything.
fn each(list: &[Expression], bytes: &[u8]) -> Result<Option<String>, ScriptCallError> {
    for (expected, live) in list.iter().zip(bytes.chunks(4)) {
        let expected = if let Expression::Field(_, value) = expected { value } else { expected };
        if *expected == Expression::Ellipsis {
            continue;
        }
        if let Some(expected) = encode(expected, live.len())?
            && expected != live
        {
            let (live, expected) = (number(live), number(&expected));
            return Ok(Some(format!("the option has {live}, expected {expected}")));
        }
    }
    Ok(None)
}

/// Bytes as a number where they can be one.
fn number(bytes: &[u8]) -> String {
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => i32::from_ne_bytes(bytes).to_string(),
        Err(_) => format!("{bytes:02x?}"),
    }
}

/// What was received, where the script spells it out.
fn data(expected: Option<&Expression>, bytes: &[u8]) -> Result<Option<String>, ScriptCallError> {
    let Some(Expression::Text(text)) = expected else { return Ok(None) };
    let is_same = text.starts_with(bytes) || bytes.starts_with(text) && !text.is_empty();
    Ok((!is_same).then(|| {
        let (live, expected) = (String::from_utf8_lossy(bytes), String::from_utf8_lossy(text));
        format!("received \"{live}\", expected \"{expected}\"")
    }))
}

fn message(line: &CallLine, bytes: &[u8], flags: i32) -> Result<Option<String>, ScriptCallError> {
    let Some(message) = line.arguments.get(1) else { return Ok(None) };
    if let Some(expected) = field(message, "msg_flags").filter(|it| **it != Expression::Ellipsis) {
        let expected = evaluate(expected)?;
        if line.name == "recvmsg" && expected != i64::from(flags) {
            return Ok(Some(format!("msg_flags is {flags:#x}, expected {expected:#x}")));
        }
    }
    data(None, bytes)
}

/// `msg_control=[{cmsg_level=SOL_TCP, cmsg_type=TCP_CM_INQ, cmsg_data=8000}]`.
fn control_messages(
    line: &CallLine,
    live: &[ControlMessage],
    tolerance_us: i64,
) -> Result<Option<String>, ScriptCallError> {
    let control = line.arguments.get(1).and_then(|message| field(message, "msg_control"));
    let Some(Expression::List(expected)) = control else { return Ok(None) };
    if expected.len() != live.len() {
        let (live, expected) = (live.len(), expected.len());
        return Ok(Some(format!("{live} control messages came, expected {expected}")));
    }
    for (expected, live) in expected.iter().zip(live) {
        for (name, actual) in [("cmsg_level", live.level), ("cmsg_type", live.kind)] {
            let Some(value) = field(expected, name) else { continue };
            let value = evaluate(value)?;
            if value != i64::from(actual) {
                return Ok(Some(format!("{name} is {actual}, expected {value}")));
            }
        }
        let Some(data) = field(expected, "cmsg_data").filter(|it| **it != Expression::Ellipsis)
        else {
            continue;
        };
        if let Expression::Structure(fields) = data {
            if let Some(what) = fields_of_control(fields, &live.data, tolerance_us)? {
                return Ok(Some(what));
            }
            continue;
        }
        let what = ScriptCallError::Unsupported("this kind of cmsg_data");
        let data = encode(data, live.data.len())?.ok_or(what)?;
        if data != live.data {
            let (live, expected) = (number(&live.data), number(&data));
            return Ok(Some(format!("cmsg_data is {live}, expected {expected}")));
        }
    }
    Ok(None)
}

/// The fields of `struct sock_extended_err` that scripts have: where they are, and how long.
const EXTENDED_ERROR: [(&str, usize, usize); 6] = [
    ("ee_errno", 0, 4),
    ("ee_origin", 4, 1),
    ("ee_type", 5, 1),
    ("ee_code", 6, 1),
    ("ee_info", 8, 4),
    ("ee_data", 12, 4),
];

/// `cmsg_data={ee_errno=0, ee_origin=SO_EE_ORIGIN_ZEROCOPY, …}` or
/// `{scm_sec=0, scm_nsec=10000000}`.
fn fields_of_control(
    fields: &[Expression],
    live: &[u8],
    tolerance_us: i64,
) -> Result<Option<String>, ScriptCallError> {
    let mut time_us = None;
    for field in fields {
        let Expression::Field(name, value) = field else {
            return Err(ScriptCallError::Unsupported("fields without names in cmsg_data"));
        };
        if **value == Expression::Ellipsis {
            continue;
        }
        let value = evaluate(value)?;
        match name.as_str() {
            "scm_sec" => *time_us.get_or_insert(0) += value.saturating_mul(1_000_000),
            "scm_nsec" => *time_us.get_or_insert(0) += value / 1000,
            name => {
                let known = EXTENDED_ERROR.iter().find(|(known, ..)| *known == name);
                let known = known.ok_or_else(|| ScriptCallError::UnknownName(name.to_owned()))?;
                let actual = native(live, known.1, known.2);
                if actual != Some(value) {
                    let actual = actual.unwrap_or(-1);
                    return Ok(Some(format!("{name} is {actual}, expected {value}")));
                }
            }
        }
    }
    let Some(expected_us) = time_us else { return Ok(None) };
    let part = |from: usize| native(live, from, 8).unwrap_or(0);
    let actual_us = part(0).saturating_mul(1_000_000).saturating_add(part(8) / 1000);
    let is_close = (actual_us - expected_us).abs() <= tolerance_us;
    Ok((!is_close).then(|| {
        let (actual, expected) = (seconds(actual_us), seconds(expected_us));
        format!("the time is {actual} s, expected {expected} s")
    }))
}

/// A number of `len` bytes in the machine's order, if it is there.
fn native(bytes: &[u8], from: usize, len: usize) -> Option<i64> {
    let bytes = bytes.get(from..from + len)?;
    Some(match len {
        1 => bytes[0].into(),
        4 => u32::from_ne_bytes(bytes.try_into().ok()?).into(),
        _ => i64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

/// `ioctl(4, SIOCINQ, [1000])`.
fn integer(line: &CallLine, live: i64) -> Result<Option<String>, ScriptCallError> {
    let Some(Expression::List(list)) = line.arguments.get(2) else { return Ok(None) };
    let [expected] = &list[..] else { return Ok(None) };
    if *expected == Expression::Ellipsis {
        return Ok(None);
    }
    let expected = evaluate(expected)?;
    Ok((expected != live).then(|| format!("{} gave {live}, expected {expected}", line.name)))
}

fn poll(line: &CallLine, ready: &[i16]) -> Result<Option<String>, ScriptCallError> {
    let Some(Expression::List(list)) = line.arguments.first() else { return Ok(None) };
    for (entry, &live) in list.iter().zip(ready) {
        let expected = match field(entry, "revents") {
            Some(Expression::Ellipsis) => continue,
            Some(revents) => evaluate(revents)?,
            None => 0,
        };
        if expected != i64::from(live) {
            return Ok(Some(format!("revents is {live:#x}, expected {expected:#x}")));
        }
    }
    Ok(None)
}

fn epoll(line: &CallLine, events: &[(u32, u64)]) -> Result<Option<String>, ScriptCallError> {
    let list = match line.arguments.get(1) {
        Some(Expression::List(list)) => &list[..],
        Some(one @ Expression::Structure(_)) => std::slice::from_ref(one),
        _ => return Ok(None),
    };
    for (expected, &(live, data)) in list.iter().zip(events) {
        let Some((events, expected_data)) = epoll_event(expected)? else { continue };
        if (events, expected_data) != (live, data) {
            return Ok(Some(format!(
                "epoll_wait gave events {live:#x} with {data}, expected {events:#x} with \
                 {expected_data}"
            )));
        }
    }
    Ok(None)
}
