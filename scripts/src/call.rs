//! From a call in a script to a call of a system, and from what it returned to a verdict.
//!
//! In: a `CallLine` and the descriptors known so far. Out: a `Call` with all arguments resolved,
//! and afterwards whether the results are those of the script.
//!
//! Invariants: `...` stands for the settings' addresses, for zeros to send and for anything that is
//! received. A call, option or name that is not known is refused by name, never skipped.

mod arguments;
mod verdict;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::call::arguments::CallArguments;
pub(crate) use crate::call::verdict::verdict;
use crate::limits::CALL_BYTES_MAX;
use crate::script::{CallLine, Expression};
use crate::settings::ScriptSettings;
use crate::symbols;
use crate::system::{Call, Fd, Form};

/// Why a call of a script cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScriptCallError {
    #[error("not supported: the call {0}")]
    UnknownCall(String),
    #[error("not supported: the name {0}")]
    UnknownName(String),
    #[error("{call} needs {what} as argument {position}")]
    BadArgument { call: String, position: usize, what: &'static str },
    #[error("not supported: {0}")]
    Unsupported(&'static str),
}

/// The script's descriptors and the system's.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptDescriptors(BTreeMap<i64, Fd>);

impl ScriptDescriptors {
    pub(crate) fn open(&mut self, script_fd: i64, live: Fd) {
        self.0.insert(script_fd, live);
    }

    pub(crate) fn close(&mut self, script_fd: i64) {
        self.0.remove(&script_fd);
    }

    /// The system's descriptor. One that is not open in the script is none there either, though
    /// the system may use its number for something else.
    pub(crate) fn live(&self, script_fd: i64) -> Fd {
        self.0.get(&script_fd).copied().unwrap_or(-1)
    }
}

/// Resolves a call.
pub(crate) fn prepare(
    line: &CallLine,
    descriptors: &ScriptDescriptors,
    settings: &ScriptSettings,
) -> Result<Call, ScriptCallError> {
    let arguments = CallArguments { line, descriptors, settings };
    match line.name.as_str() {
        "socket" | "bind" | "listen" | "accept" | "accept4" | "connect" | "shutdown" | "close" => {
            connection_call(&arguments)
        }
        "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => receive_call(&arguments),
        "write" | "writev" | "send" | "sendto" | "sendmsg" => send_call(&arguments),
        "setsockopt" | "getsockopt" | "fcntl" | "ioctl" => option_call(&arguments),
        "poll" | "epoll_create" | "epoll_create1" | "epoll_ctl" | "epoll_wait" => {
            wait_call(&arguments)
        }
        "pipe" => Ok(Call::Pipe { flags: 0 }),
        "pipe2" => Ok(Call::Pipe { flags: arguments.int(1)? }),
        "splice" => Ok(Call::Splice {
            from: arguments.fd(0)?,
            to: arguments.fd(2)?,
            len: arguments.size(4)?,
            flags: arguments.unsigned(5)?,
        }),
        other => Err(ScriptCallError::UnknownCall(other.to_owned())),
    }
}

fn connection_call(arguments: &CallArguments<'_>) -> Result<Call, ScriptCallError> {
    Ok(match arguments.line.name.as_str() {
        "socket" => Call::Socket {
            domain: match arguments.at(0)? {
                Expression::Ellipsis => arguments.settings.domain(),
                _ => arguments.int(0)?,
            },
            kind: arguments.int(1)?,
            protocol: arguments.int(2)?,
        },
        "bind" => Call::Bind {
            fd: arguments.fd(0)?,
            address: arguments
                .address(1, arguments.settings.bind_address())?
                .ok_or_else(|| arguments.bad(1, "an address"))?,
        },
        "connect" => Call::Connect {
            fd: arguments.fd(0)?,
            address: arguments.address(1, arguments.settings.connect_address())?,
        },
        "listen" => Call::Listen { fd: arguments.fd(0)?, backlog: arguments.int(1)? },
        "accept" => Call::Accept { fd: arguments.fd(0)?, flags: 0 },
        "accept4" => Call::Accept { fd: arguments.fd(0)?, flags: arguments.int(3)? },
        "shutdown" => Call::Shutdown { fd: arguments.fd(0)?, how: arguments.int(1)? },
        _ => Call::Close { fd: arguments.fd(0)? },
    })
}

/// `write(4, NULL, 1000)`: no memory is where the call looks.
fn is_nowhere(arguments: &CallArguments<'_>) -> bool {
    let is_null = matches!(arguments.at(1), Ok(Expression::Word(word)) if word == "NULL");
    is_null && arguments.size(2).is_ok_and(|size| size > 0)
}

fn receive_call(arguments: &CallArguments<'_>) -> Result<Call, ScriptCallError> {
    let fd = arguments.fd(0)?;
    if is_nowhere(arguments) {
        return Ok(Call::Nowhere { fd });
    }
    let mut takes_control = false;
    let (sizes, flags, form) = match arguments.line.name.as_str() {
        "read" => (vec![arguments.size(2)?], 0, Form::File),
        "readv" => (arguments.sizes(arguments.at(1)?)?, 0, Form::Vector),
        "recvmsg" => {
            let message = arguments.at(1)?;
            let control = arguments.field(message, "msg_control");
            takes_control = control.is_some_and(|it| !is_empty_list(it));
            let parts = arguments.field(message, "msg_iov");
            let parts = parts.ok_or_else(|| arguments.bad(1, "a message with msg_iov"))?;
            (arguments.sizes(parts)?, arguments.int(2)?, Form::Message)
        }
        _ => (vec![arguments.size(2)?], arguments.int(3)?, Form::Socket),
    };
    check_size(sizes.iter().sum())?;
    Ok(Call::Receive { fd, sizes, flags, form, takes_control })
}

fn send_call(arguments: &CallArguments<'_>) -> Result<Call, ScriptCallError> {
    let fd = arguments.fd(0)?;
    if is_nowhere(arguments) {
        return Ok(Call::Nowhere { fd });
    }
    let name = arguments.line.name.as_str();
    let mut to = None;
    let (parts, flags, form) = match name {
        "write" => (vec![arguments.data(1, 2)?], 0, Form::File),
        "writev" => (arguments.parts(arguments.at(1)?)?, 0, Form::Vector),
        "sendmsg" => {
            let message = arguments.at(1)?;
            if arguments.field(message, "msg_control").is_some_and(|it| !is_empty_list(it)) {
                return Err(ScriptCallError::Unsupported("control messages"));
            }
            let parts = arguments.field(message, "msg_iov");
            let parts = parts.ok_or_else(|| arguments.bad(1, "a message with msg_iov"))?;
            (arguments.parts(parts)?, arguments.int(2)?, Form::Message)
        }
        _ => (vec![arguments.data(1, 2)?], arguments.int(3)?, Form::Socket),
    };
    if name == "sendto" {
        to = match arguments.line.arguments.get(4) {
            None | Some(Expression::Integer(0)) => None,
            Some(Expression::Word(word)) if word == "NULL" => None,
            Some(_) => arguments.address(4, arguments.settings.connect_address())?,
        };
    }
    check_size(parts.iter().map(Vec::len).sum())?;
    Ok(Call::Send { fd, parts, flags, to, form })
}

fn option_call(arguments: &CallArguments<'_>) -> Result<Call, ScriptCallError> {
    let fd = arguments.fd(0)?;
    Ok(match arguments.line.name.as_str() {
        "setsockopt" => Call::SetOption {
            fd,
            level: arguments.int(1)?,
            name: arguments.int(2)?,
            value: arguments.option_value(3, 4)?,
        },
        "getsockopt" => {
            let bytes = arguments.option_bytes(4)?;
            check_size(bytes)?;
            Call::GetOption { fd, level: arguments.int(1)?, name: arguments.int(2)?, bytes }
        }
        "fcntl" => {
            let argument = if arguments.line.arguments.len() > 2 { arguments.int(2)? } else { 0 };
            Call::Fcntl { fd, command: arguments.int(1)?, argument }
        }
        _ => {
            let argument = match arguments.line.arguments.get(2) {
                Some(Expression::List(list)) => match &list[..] {
                    [value @ Expression::Integer(_)] => arguments.evaluate(value)?,
                    _ => 0,
                },
                _ => 0,
            };
            Call::Ioctl {
                fd,
                request: arguments.evaluate(arguments.at(1)?)?,
                argument: i32::try_from(argument).unwrap_or(0),
            }
        }
    })
}

fn wait_call(arguments: &CallArguments<'_>) -> Result<Call, ScriptCallError> {
    Ok(match arguments.line.name.as_str() {
        "poll" => {
            let Expression::List(list) = arguments.at(0)? else {
                return Err(arguments.bad(0, "a list of descriptors"));
            };
            let fds = list.iter().map(|one| arguments.poll_entry(one)).collect::<Result<_, _>>()?;
            Call::Poll { fds, timeout_ms: arguments.int(2)? }
        }
        "epoll_create" => Call::EpollCreate { flags: 0 },
        "epoll_create1" => Call::EpollCreate { flags: arguments.int(0)? },
        "epoll_ctl" => {
            let (events, data) = match arguments.line.arguments.get(3) {
                Some(Expression::Structure(_)) => arguments.epoll_event(3)?,
                _ => (0, 0),
            };
            Call::EpollControl {
                epoll: arguments.fd(0)?,
                operation: arguments.int(1)?,
                fd: arguments.fd(2)?,
                events,
                data,
            }
        }
        _ => {
            let count = arguments.size(2)?;
            check_size(count)?;
            Call::EpollWait { epoll: arguments.fd(0)?, count, timeout_ms: arguments.int(3)? }
        }
    })
}

fn is_empty_list(expression: &Expression) -> bool {
    matches!(expression, Expression::List(list) if list.is_empty())
}

fn check_size(bytes: usize) -> Result<(), ScriptCallError> {
    if bytes > CALL_BYTES_MAX {
        return Err(ScriptCallError::Unsupported("a call with more than 64 MiB"));
    }
    Ok(())
}

/// The value of an expression that is a number.
pub(crate) fn evaluate(expression: &Expression) -> Result<i64, ScriptCallError> {
    let numeric = || ScriptCallError::Unsupported("this expression where a number has to be");
    match expression {
        Expression::Integer(value) => Ok(*value),
        Expression::Word(word) if word == "NULL" => Ok(0),
        Expression::Word(word) => {
            symbols::value(word).ok_or_else(|| ScriptCallError::UnknownName(word.clone()))
        }
        Expression::Or(left, right) => Ok(evaluate(left)? | evaluate(right)?),
        Expression::Function(name, arguments) => {
            let [argument] = &arguments[..] else { return Err(numeric()) };
            match (name.as_str(), argument) {
                ("htons", _) => {
                    let value = u16::try_from(evaluate(argument)?).map_err(|_| numeric())?;
                    Ok(i64::from(value.to_be()))
                }
                ("htonl", _) => {
                    let value = u32::try_from(evaluate(argument)?).map_err(|_| numeric())?;
                    Ok(i64::from(value.to_be()))
                }
                _ => Err(ScriptCallError::UnknownName(name.clone())),
            }
        }
        _ => Err(numeric()),
    }
}
