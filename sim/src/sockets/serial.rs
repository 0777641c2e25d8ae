//! Programs with one connection at a time, whose calls wait.

use std::time::Duration;

use megapipe_sockets::{Bsd, Error, OpenFlags};

use super::ProgramSetting;
use super::end::{EndStep, SocketEnd};
use super::events::{LOOKS_AT_LEAST, connect, is_connected, listen};
use super::pace::Calls;
use crate::check::Violation;

/// Before a connection is begun again whose handshake failed.
const AGAIN: Duration = Duration::from_millis(100);

/// Accepts connections, one after the other, until all is over.
pub(super) fn serve(calls: &mut Calls, setting: &ProgramSetting) -> Result<(), Violation> {
    let listener = listen(calls, setting, 0)?;
    let time = [LOOKS_AT_LEAST.as_secs(), 0].map(u64::to_ne_bytes).concat();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
    calls.must("setsockopt", |it| it.setsockopt(listener, level, name, &time))?;
    let buffer = setting.scenario.tcp[setting.host].receive_buffer;
    while !calls.is_finished() {
        calls.note_open(0);
        let fd = match calls.call(|it| it.accept4(listener, OpenFlags::empty())) {
            Ok(fd) => fd,
            Err(Error::WouldBlock | Error::Aborted) => continue,
            Err(error) => return Err(calls.failed("accept4", error)),
        };
        calls.note_open(1);
        let mut end = SocketEnd::new(calls, fd, None, buffer)?;
        // All of the request before the first byte of the response: an end that neither reads nor
        // writes while the other waits cannot be the reason why both do.
        let is_whole = read_all(calls, setting, &mut end)?;
        if is_whole {
            write_all(calls, &mut end)?;
        }
        end.close(calls)?;
    }
    Ok(())
}

/// Begins connections, one after the other.
pub(super) fn ask(calls: &mut Calls, setting: &ProgramSetting) -> Result<(), Violation> {
    let mut to_begin = setting.to_begin.clone();
    while let Some((stream, remote)) = to_begin.pop() {
        calls.note_open(to_begin.len() + 1);
        let mut end = connect(calls, setting, (stream, remote), 0)?;
        let fd = end.fd;
        if !is_connected(calls, setting, (fd, remote))? {
            calls.must("close", |it| it.close(fd))?;
            to_begin.push((stream, remote));
            calls.sleep(AGAIN);
            continue;
        }
        set_time_outs(calls, &end)?;
        if write_all(calls, &mut end)? {
            read_all(calls, setting, &mut end)?;
        }
        end.close(calls)?;
    }
    Ok(())
}

/// Calls that wait return empty-handed after a while, on some connections.
fn set_time_outs(calls: &mut Calls, end: &SocketEnd) -> Result<(), Violation> {
    if calls.rng.u32(..3) > 0 {
        return Ok(());
    }
    let micros = calls.rng.u64(1_000..900_000);
    let time = [0, micros].map(u64::to_ne_bytes).concat();
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let fd = end.fd;
        calls.must("setsockopt", |it| it.setsockopt(fd, libc::SOL_SOCKET, name, &time))?;
    }
    Ok(())
}

/// Reads to the end. `false`: it broke.
fn read_all(
    calls: &mut Calls,
    setting: &ProgramSetting,
    end: &mut SocketEnd,
) -> Result<bool, Violation> {
    loop {
        match end.read(calls)? {
            EndStep::Moved | EndStep::WouldWait => {}
            EndStep::Over => return Ok(true),
            EndStep::Broken => return Ok(false),
        }
        if let Some(stall) = SocketEnd::draw_stall(calls, setting.scenario.stall) {
            calls.sleep(stall);
        }
    }
}

/// Writes everything and shuts down. `false`: it broke.
fn write_all(calls: &mut Calls, end: &mut SocketEnd) -> Result<bool, Violation> {
    loop {
        match end.write(calls)? {
            EndStep::Moved | EndStep::WouldWait => {}
            EndStep::Over => return Ok(true),
            EndStep::Broken => return Ok(false),
        }
    }
}
