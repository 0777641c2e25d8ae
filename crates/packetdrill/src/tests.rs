//! Runs every script of `tests/scripts` through packetdrill's record, with the project's
//! interpreter.
//!
//! The verdict has to be that of our runner, which drives the same host without the record. Calls
//! and packets go through the record, as packetdrill's do. Time passes on the world itself, in the
//! runner's steps: packetdrill's own clock would add a microsecond to each look.

use std::ffi::{CString, c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use megapipe::Address;
use megapipe_scripts::report::ScriptVerdict;
use megapipe_scripts::system::{
    Call, CallOutput, ChecksumTrust, ControlMessage, Form, Injected, Knob, KnobResult, Returned,
    SentPacket, System, SystemError,
};
use megapipe_scripts::world::ScriptWorld;
use megapipe_scripts::{Invocation, On, ParsedScript, prepare};

use crate::flags::PacketdrillFlags;
use crate::interface::{PacketdrillInterface, packetdrill_interface_init};
use crate::limits::EPOCH_US;

/// The record. Its functions may be called by several threads.
#[derive(Clone, Copy)]
struct Record(*const PacketdrillInterface);

// SAFETY: packetdrill calls the functions from two threads, which is what they are made for, and
// the record lives until both are done: `Running::drop` frees it last.
unsafe impl Send for Record {}

impl Record {
    fn get(&self) -> &PacketdrillInterface {
        // SAFETY: the record was filled by `packetdrill_interface_init` and is not freed yet.
        unsafe { &*self.0 }
    }

    fn world(&self) -> &ScriptWorld {
        // SAFETY: `userdata` is the world that the record was filled with.
        unsafe { &*self.get().userdata.cast::<ScriptWorld>() }
    }
}

type Ended = (Returned, Duration);

struct Running {
    record: Record,
    calls: Option<Sender<Call>>,
    thread: Option<JoinHandle<()>>,
    ended: Arc<Mutex<Option<Ended>>>,
    is_calling: bool,
    began: Duration,
}

/// The plug-in as a system under test.
struct PlugIn {
    /// What follows from the script's options, and its knobs, as packetdrill's `--so_flags`.
    flags: String,
    running: Option<Running>,
}

impl PlugIn {
    fn new(prepared: &ParsedScript) -> Self {
        let ((address, bits), mtu) = prepared.host();
        Self { flags: format!("local_ip={address}/{bits},mtu={mtu}"), running: None }
    }

    fn running(&mut self) -> &mut Running {
        self.running.get_or_insert_with(|| {
            let text = CString::new(self.flags.clone()).expect("no NUL");
            let mut interface: Box<MaybeUninit<PacketdrillInterface>> =
                Box::new(MaybeUninit::uninit());
            // SAFETY: the text ends with a NUL, and the record is writable.
            unsafe { packetdrill_interface_init(text.as_ptr(), interface.as_mut_ptr()) };
            // SAFETY: it was filled just now.
            let interface = unsafe { interface.assume_init() };
            assert!(!interface.userdata.is_null(), "flags {}", self.flags);
            let record = Record(Box::into_raw(interface));
            let (calls, asked) = channel::<Call>();
            let ended = Arc::new(Mutex::new(None));
            let noted = Arc::clone(&ended);
            let thread = thread::spawn(move || {
                let record = record;
                while let Ok(call) = asked.recv() {
                    let returned = make(record.get(), call);
                    let at = record.world().elapsed();
                    *noted.lock().expect("no panic") = Some((returned, at));
                }
            });
            let began = record.world().elapsed();
            Running {
                record,
                calls: Some(calls),
                thread: Some(thread),
                ended,
                is_calling: false,
                began,
            }
        })
    }
}

impl Running {
    /// Waits until the call under way is noted as over, or sleeps.
    fn settle(&self) {
        let world = self.record.world();
        while self.is_calling && self.ended.lock().expect("no panic").is_none() {
            world.advance().expect("the wire stays");
            if world.is_inside() {
                return;
            }
            thread::yield_now();
        }
    }

    fn run_until<T>(&self, end: Duration, mut found: impl FnMut() -> Option<T>) -> Option<T> {
        let world = self.record.world();
        let found = || {
            self.settle();
            found()
        };
        world.run_until(end, found).expect("the wire stays")
    }

    /// A packet that the stack has sent.
    fn receive(&self) -> SentPacket {
        let interface = self.record.get();
        let mut bytes = vec![0_u8; 1 << 16];
        let (mut len, mut time_us) = (bytes.len(), 0);
        // SAFETY: the bytes, the length and the time are writable.
        let received = unsafe {
            let at = bytes.as_mut_ptr().cast();
            (interface.netdev_receive)(interface.userdata, at, &raw mut len, &raw mut time_us)
        };
        assert_eq!(received, 0);
        bytes.truncate(len);
        let at = Duration::from_micros(u64::try_from(time_us).expect("a time") - EPOCH_US);
        SentPacket { at_us: self.to_us(at), bytes }
    }

    fn at(&self, at_us: i64) -> Duration {
        self.began + Duration::from_micros(u64::try_from(at_us).unwrap_or(0))
    }

    fn to_us(&self, at: Duration) -> i64 {
        i64::try_from(at.saturating_sub(self.began).as_micros()).unwrap_or(i64::MAX)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.calls = None;
        let world = self.record.world();
        world.end();
        // A call that still blocks keeps its simulated host, which then stays for the process's
        // life.
        let Some(thread) = self.thread.take().filter(|_| !world.is_inside()) else { return };
        let joined = thread.join();
        let interface = self.record.get();
        (interface.free)(interface.userdata);
        // SAFETY: the record came from `Box::into_raw`, and the other thread is gone.
        drop(unsafe { Box::from_raw(self.record.0.cast_mut()) });
        if !thread::panicking() {
            joined.expect("no panic");
        }
    }
}

impl System for PlugIn {
    fn checksums(&self) -> ChecksumTrust {
        ChecksumTrust::Verified
    }

    fn set_knob(&mut self, knob: &Knob) -> Result<KnobResult, SystemError> {
        let name = if knob.name == "device.mtu" { "mtu" } else { &knob.name };
        let flags = format!("{},{name}={}", self.flags, knob.value);
        if PacketdrillFlags::parse(&flags).is_err() {
            return Ok(KnobResult::Unknown);
        }
        if self.running.is_none() {
            self.flags = flags;
        }
        Ok(KnobResult::Done)
    }

    fn begin(&mut self) -> Result<(), SystemError> {
        Ok(())
    }

    fn now_us(&mut self) -> i64 {
        let running = self.running();
        running.to_us(running.record.world().elapsed())
    }

    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError> {
        let running = self.running();
        running.run_until(running.at(at_us), || None::<()>);
        Ok(())
    }

    fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        let running = self.running();
        *running.ended.lock().expect("no panic") = None;
        running.is_calling = true;
        let calls = running.calls.as_ref().expect("the thread runs");
        calls.send(call).expect("the thread runs");
        running.settle();
        running.record.world().advance().expect("the wire stays");
        Ok(())
    }

    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError> {
        let running = self.running();
        let end = running.at(until_us);
        let ended = running.run_until(end, || running.ended.lock().expect("no panic").take());
        running.is_calling = ended.is_none();
        Ok(ended.map(|(returned, at)| (returned, running.to_us(at))))
    }

    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        assert_eq!(packet.segment_bytes, 0, "the record knows no trains");
        let running = self.running();
        let (interface, bytes) = (running.record.get(), packet.bytes);
        // SAFETY: the bytes are readable.
        let sent = unsafe {
            (interface.netdev_send)(interface.userdata, bytes.as_ptr().cast(), bytes.len())
        };
        assert_eq!(sent, 0);
        running.settle();
        Ok(())
    }

    fn next_sent(&mut self, until_us: i64) -> Result<Option<SentPacket>, SystemError> {
        let running = self.running();
        let world = running.record.world();
        let sent = running.run_until(running.at(until_us), || world.has_sent().then_some(()));
        Ok(sent.map(|()| running.receive()))
    }
}

/// A call through the record. Blocks as the call does.
fn make(interface: &PacketdrillInterface, call: Call) -> Returned {
    let mut output = CallOutput::None;
    let result = made(interface, call, &mut output);
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    match result {
        -1 => Returned::failure(errno),
        result => Returned { output, ..Returned::success(result) },
    }
}

/// A socket address and its length.
fn sockaddr(address: SocketAddr) -> ([u8; megapipe::SOCKADDR_BYTES], libc::socklen_t) {
    let (bytes, len) = Address::from(address).to_sockaddr();
    (bytes, len as libc::socklen_t)
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "each arm makes one call of the record")]
fn made(it: &PacketdrillInterface, call: Call, output: &mut CallOutput) -> i64 {
    let me = it.userdata;
    // SAFETY: all pointers are to locals or to memory of the call, as large as is said.
    unsafe {
        match call {
            Call::Socket { domain, kind, protocol } => {
                (it.socket)(me, domain, kind, protocol).into()
            }
            Call::Bind { fd, address } => {
                let (bytes, len) = sockaddr(address);
                (it.bind)(me, fd, bytes.as_ptr().cast(), len).into()
            }
            Call::Listen { fd, backlog } => (it.listen)(me, fd, backlog).into(),
            Call::Accept { fd, .. } => (it.accept)(me, fd, null_mut(), null_mut()).into(),
            Call::Connect { fd, address } => {
                let (bytes, len) =
                    address.map_or_else(|| ([0; megapipe::SOCKADDR_BYTES], 16), sockaddr);
                (it.connect)(me, fd, bytes.as_ptr().cast(), len).into()
            }
            Call::Receive { fd, sizes, flags, form, takes_control } => {
                receive(it, fd, &sizes, (flags, form, takes_control), output)
            }
            Call::Send { fd, parts, flags, to, form } => send(it, fd, &parts, (flags, form, to)),
            Call::Nowhere { fd } => (it.read)(me, fd, null_mut(), 10) as i64,
            Call::Shutdown { fd, how } => (it.shutdown)(me, fd, how).into(),
            Call::Close { fd } => (it.close)(me, fd).into(),
            Call::SetOption { fd, level, name, value } => {
                let len = value.len() as libc::socklen_t;
                (it.setsockopt)(me, fd, level, name, value.as_ptr().cast(), len).into()
            }
            Call::GetOption { fd, level, name, bytes } => {
                let mut value = vec![0_u8; bytes];
                let mut len = bytes as libc::socklen_t;
                let at = value.as_mut_ptr().cast();
                let result = (it.getsockopt)(me, fd, level, name, at, &raw mut len);
                value.truncate(len as usize);
                *output = CallOutput::Bytes(value);
                result.into()
            }
            Call::Fcntl { fd, command, argument } => {
                (it.fcntl)(me, fd, command, argument as usize).into()
            }
            Call::Ioctl { fd, request, argument } => {
                let mut value: c_int = argument;
                let result = (it.ioctl)(me, fd, request.cast_unsigned(), &raw mut value);
                *output = CallOutput::Integer(value.into());
                result.into()
            }
            other => wait(it, other, output),
        }
    }
}

/// # Safety
/// The record is filled.
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "each arm makes one call of the record")]
unsafe fn wait(it: &PacketdrillInterface, call: Call, output: &mut CallOutput) -> i64 {
    let me = it.userdata;
    // SAFETY: as in `made`.
    unsafe {
        match call {
            Call::Poll { fds, timeout_ms } => {
                let ask = |&(fd, events): &(i32, i16)| libc::pollfd { fd, events, revents: 0 };
                let mut asked: Vec<libc::pollfd> = fds.iter().map(ask).collect();
                let count = asked.len() as libc::nfds_t;
                let result = (it.poll)(me, asked.as_mut_ptr(), count, timeout_ms);
                *output = CallOutput::Ready(asked.iter().map(|fd| fd.revents).collect());
                result.into()
            }
            Call::EpollCreate { .. } => (it.epoll_create)(me, 1).into(),
            Call::EpollControl { epoll, operation, fd, events, data } => {
                let event = libc::epoll_event { events, u64: data };
                (it.epoll_ctl)(me, epoll, operation, fd, &raw const event).into()
            }
            Call::EpollWait { epoll, count, timeout_ms } => {
                let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; count];
                let at = events.as_mut_ptr();
                let found = (it.epoll_wait)(me, epoll, at, count as c_int, timeout_ms);
                events.truncate(usize::try_from(found).unwrap_or(0));
                *output = CallOutput::Events(events.iter().map(|it| (it.events, it.u64)).collect());
                found.into()
            }
            Call::Pipe { .. } => {
                let mut ends: [c_int; 2] = [0; 2];
                let result = (it.pipe)(me, ends.as_mut_ptr());
                *output = CallOutput::Pair(ends[0], ends[1]);
                result.into()
            }
            other => panic!("no script of ours makes it: {other:?}"),
        }
    }
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "each arm makes one call of the record")]
fn receive(
    it: &PacketdrillInterface,
    fd: i32,
    sizes: &[usize],
    (flags, form, takes_control): (i32, Form, bool),
    output: &mut CallOutput,
) -> i64 {
    let me = it.userdata;
    let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0; size]).collect();
    let iovec = |it: &mut Vec<u8>| libc::iovec {
        iov_base: it.as_mut_ptr().cast::<c_void>(),
        iov_len: it.len(),
    };
    let mut parts: Vec<libc::iovec> = buffers.iter_mut().map(iovec).collect();
    let (first, count) = (parts[0], parts.len());
    let mut control = vec![0_u64; if takes_control { 64 } else { 0 }];
    // SAFETY: a header of zeros is one without anything.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), count);
    if takes_control {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control[..]);
    }
    // SAFETY: as in `made`.
    let len = unsafe {
        match form {
            Form::File => (it.read)(me, fd, first.iov_base, first.iov_len),
            Form::Vector => (it.readv)(me, fd, parts.as_ptr(), count as c_int),
            Form::Socket => (it.recv)(me, fd, first.iov_base, first.iov_len, flags),
            Form::Message => (it.recvmsg)(me, fd, &raw mut message, flags),
        }
    };
    let mut bytes = buffers.concat();
    bytes.truncate(usize::try_from(len).unwrap_or(0));
    *output = if form == Form::Message {
        let told: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let told = &told[..message.msg_controllen.min(told.len())];
        CallOutput::Message {
            bytes,
            flags: message.msg_flags,
            control: ControlMessage::parse(told),
        }
    } else {
        CallOutput::Bytes(bytes)
    };
    len as i64
}

#[expect(clippy::multiple_unsafe_ops_per_block, reason = "each arm makes one call of the record")]
fn send(
    it: &PacketdrillInterface,
    fd: i32,
    parts: &[Vec<u8>],
    (flags, form, to): (i32, Form, Option<SocketAddr>),
) -> i64 {
    let me = it.userdata;
    let iovec = |it: &Vec<u8>| libc::iovec {
        iov_base: it.as_ptr().cast::<c_void>().cast_mut(),
        iov_len: it.len(),
    };
    let mut pieces: Vec<libc::iovec> = parts.iter().map(iovec).collect();
    let (first, count) = (pieces[0], pieces.len());
    let to = to.map(sockaddr);
    let (name, name_len) = to.as_ref().map_or((null(), 0), |(bytes, len)| (bytes.as_ptr(), *len));
    // SAFETY: a header of zeros is one without anything.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), count);
    (message.msg_name, message.msg_namelen) = (name.cast_mut().cast(), name_len);
    // SAFETY: as in `made`.
    let len = unsafe {
        match form {
            Form::File => (it.write)(me, fd, first.iov_base, first.iov_len),
            Form::Vector => (it.writev)(me, fd, pieces.as_ptr(), count as c_int),
            Form::Socket if name.is_null() => {
                (it.send)(me, fd, first.iov_base, first.iov_len, flags)
            }
            Form::Socket => {
                let (at, len) = (first.iov_base, first.iov_len);
                (it.sendto)(me, fd, at, len, flags, name.cast(), name_len)
            }
            Form::Message => (it.sendmsg)(me, fd, &raw const message, flags),
        }
    };
    len as i64
}

/// The part of a verdict that packetdrill reports: whether all steps passed, else the first that
/// failed.
fn gist(verdict: ScriptVerdict) -> (u32, String) {
    match verdict {
        ScriptVerdict::Passed => (0, "passed".to_owned()),
        ScriptVerdict::Failed(failure) => (failure.line, failure.what),
        ScriptVerdict::Unsupported { line, what } => (line, what),
        ScriptVerdict::Skipped(why) => (0, why),
    }
}

#[test]
fn scripts_have_the_runner_s_verdict_through_the_record() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let entries = std::fs::read_dir(folder).expect("the folder of scripts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pkt"));
    paths.sort();
    assert!(paths.len() > 30, "scripts are missing");
    for path in paths {
        let text = std::fs::read(&path).expect("a script");
        let prepared = prepare(&text, &Invocation::default()).expect("a script");
        let by_record = prepared.run_on(&mut PlugIn::new(&prepared)).verdict;
        let by_runner = prepared.run(On::Stack).verdict;
        assert_eq!(gist(by_record), gist(by_runner), "{}", path.display());
    }
}
