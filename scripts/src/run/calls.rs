//! Calls of the program under test, and what they mean for the conversation.

use std::net::{IpAddr, SocketAddr};

use super::{EventError, ScriptRun};
use crate::call::{self, verdict};
use crate::conversation::{Conversation, Stage};
use crate::limits::{BLOCKED_CALL_US, CALL_US_MAX};
use crate::report::seconds;
use crate::script::{CallLine, Expression, ScriptEvent};
use crate::symbols::option_name;
use crate::system::{Call, CallOutput, Fd, Returned, System, SystemError};
use crate::wire;

/// The kind of a socket without its flags.
const SOCKET_KIND_MASK: i32 = 0xf;

/// A call that the script expects to block, under way.
#[derive(Clone, Debug)]
pub(super) struct PendingCall {
    pub(super) line: u32,
    call: Call,
    spec: CallLine,
    end_us: i64,
    tolerance_us: i64,
    /// It has been waited for.
    is_over: bool,
}

impl<S: System> ScriptRun<'_, S> {
    /// The line of a blocking call that turned out wrong while another event was under way.
    pub(super) fn failed_line(&self) -> Option<u32> {
        self.pending.as_ref().filter(|pending| pending.is_over).map(|pending| pending.line)
    }

    /// Makes a call, or begins one that blocks.
    pub(super) fn call(&mut self, line: &CallLine, event: &ScriptEvent) -> Result<(), EventError> {
        let call = call::prepare(line, &self.descriptors, &self.settings)?;
        self.before_call(&call);
        self.system.start_call(call.clone())?;
        let Some(end_us) = line.end_us else {
            let until_us = self.system.now_us() + CALL_US_MAX;
            let Some((returned, _)) = self.system.await_call(until_us)? else {
                return Err(EventError::differs(format!("{} blocks", line.name)));
            };
            return self.returned(&call, line, &returned);
        };
        self.pending = Some(PendingCall {
            line: event.line,
            call,
            spec: line.clone(),
            end_us: self.time.base_us + end_us,
            tolerance_us: self.time.tolerance_us,
            is_over: false,
        });
        Ok(())
    }

    /// Waits for the blocking call under way, if any, and checks it.
    pub(super) fn finish_pending(&mut self) -> Result<(), EventError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        pending.is_over = true;
        let PendingCall { call, spec, end_us, tolerance_us, .. } = pending.clone();
        let until_us = end_us + tolerance_us + BLOCKED_CALL_US;
        let Some((returned, at_us)) = self.system.await_call(until_us)? else {
            return Err(EventError::differs(format!("{} still blocks", spec.name)));
        };
        self.returned(&call, &spec, &returned)?;
        if (at_us - end_us).abs() > tolerance_us {
            return Err(EventError::differs(format!(
                "{} returned at {} s, expected at {} s, tolerance {} s",
                spec.name,
                seconds(at_us),
                seconds(end_us),
                seconds(tolerance_us)
            )));
        }
        self.pending = None;
        Ok(())
    }

    /// What a call means before its first packet.
    fn before_call(&mut self, call: &Call) {
        match call {
            Call::Connect { fd, address: Some(address) } => self.connecting(*fd, *address),
            Call::Send { fd, to, parts, .. } => {
                self.has_sent_text |= parts.iter().flatten().any(|&byte| byte != 0);
                if let Some(to) = to {
                    self.connecting(*fd, *to);
                }
            }
            _ => {}
        }
    }

    fn connecting(&mut self, fd: Fd, address: SocketAddr) {
        let Some(&index) = self.sockets.get(&fd) else { return };
        let conversation = &mut self.conversations[index];
        if matches!(conversation.stage, Stage::New | Stage::Connecting) {
            conversation.stage = Stage::Connecting;
            conversation.remote = on_wire(address);
        }
        self.under_test = Some(index);
    }

    /// Checks what a call returned and what follows from it.
    fn returned(
        &mut self,
        call: &Call,
        line: &CallLine,
        returned: &Returned,
    ) -> Result<(), EventError> {
        let difference = verdict(line, returned, self.time.tolerance_us)?;
        if difference.is_some()
            && let Some(name) = missing_option(call, returned)
        {
            return Err(SystemError::Unsupported(name).into());
        }
        match difference {
            Some(what) if self.settings.is_call_fatal => return Err(EventError::differs(what)),
            Some(what) => self.note(format!("went on after: {what}")),
            None => {}
        }
        if returned.result < 0 {
            return Ok(());
        }
        let live = Fd::try_from(returned.result).unwrap_or(-1);
        let script_fd = match &line.result {
            Expression::Ellipsis => returned.result,
            result => call::evaluate(result)?,
        };
        match call {
            Call::Socket { kind, protocol, .. } => {
                self.descriptors.open(script_fd, live);
                self.socket_opened(live, *kind, *protocol);
            }
            Call::Accept { .. } | Call::EpollCreate { .. } => {
                self.descriptors.open(script_fd, live);
                if let (Call::Accept { .. }, Some(index)) = (call, self.under_test) {
                    self.sockets.insert(live, index);
                }
            }
            Call::Pipe { .. } => self.pipe_opened(line, returned)?,
            Call::Bind { fd, address } => {
                if let Some(&index) = self.sockets.get(fd) {
                    self.bound(index, on_wire(*address));
                }
            }
            Call::Listen { fd, .. } => {
                if let Some(&index) = self.sockets.get(fd) {
                    self.conversations[index].stage = Stage::Listening;
                    self.under_test = Some(index);
                }
            }
            Call::Close { .. } => {
                if let Some(Expression::Integer(script_fd)) = line.arguments.first() {
                    self.descriptors.close(*script_fd);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn socket_opened(&mut self, fd: Fd, kind: i32, protocol: i32) {
        let is_datagram = kind & SOCKET_KIND_MASK == libc::SOCK_DGRAM;
        let number = match u8::try_from(protocol).unwrap_or(0) {
            0 if is_datagram => wire::PROTOCOL_UDP,
            0 => wire::PROTOCOL_TCP,
            number => number,
        };
        let mut conversation =
            Conversation::new(number, &self.settings, self.settings.connect_port);
        conversation.is_local_known = false;
        self.conversations.push(conversation);
        let index = self.conversations.len() - 1;
        self.sockets.insert(fd, index);
        self.under_test = Some(index);
    }

    fn bound(&mut self, index: usize, address: SocketAddr) {
        let conversation = &mut self.conversations[index];
        conversation.is_local_known = address.port() != 0;
        let ip = if address.ip().is_unspecified() { self.settings.local_ip } else { address.ip() };
        conversation.local = SocketAddr::new(ip, address.port());
    }

    /// `pipe([5, 6]) = 0`.
    fn pipe_opened(&mut self, line: &CallLine, returned: &Returned) -> Result<(), EventError> {
        if let (Some(Expression::List(fds)), CallOutput::Pair(read, write)) =
            (line.arguments.first(), &returned.output)
            && let [script_read, script_write] = &fds[..]
        {
            self.descriptors.open(call::evaluate(script_read)?, *read);
            self.descriptors.open(call::evaluate(script_write)?, *write);
        }
        Ok(())
    }
}

/// The option of a call that the system does not have.
fn missing_option(call: &Call, returned: &Returned) -> Option<String> {
    match call {
        Call::SetOption { level, name, .. } | Call::GetOption { level, name, .. }
            if returned.errno == libc::ENOPROTOOPT =>
        {
            Some(option_name(*level, *name))
        }
        _ => None,
    }
}

/// A socket's address as packets have it.
fn on_wire(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(IpAddr::V4(ip), address.port()),
            None => address,
        },
        IpAddr::V4(_) => address,
    }
}
