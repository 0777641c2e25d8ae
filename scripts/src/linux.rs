//! The kernel's own TCP as a system under test, in real time.
//!
//! In: a script. Out: its outcome on Linux. The script runs on a thread of its own in a network
//! namespace of its own, which ends with the thread. Packets go in and out through a TUN device;
//! what the kernel sends is read from a packet socket, which carries the kernel's own times.
//!
//! Read first: tun(4) in the kernel's documentation, packet(7), network_namespaces(7).
//!
//! Invariants
//! - Nothing leaves the namespace: it has a loopback and the TUN device, and no other interface.
//! - One helper thread makes the script's calls, so that a blocking one blocks only that thread.
//! - The TUN device is emptied as it is read from, so that the kernel never drops for lack of room.

mod capture;
mod namespace;
mod program;
#[allow(unsafe_code, reason = "the one file for system calls without a safe wrapper")]
mod sys;

use crate::knobs::Knob;
use crate::linux::capture::NamespaceCapture;
use crate::linux::namespace::Namespace;
use crate::linux::program::LinuxProgram;
use crate::report::ScriptOutcome;
use crate::run::run;
use crate::script::Script;
use crate::settings::ScriptSettings;
use crate::skipped;
use crate::symbols::{FOREIGN_OPTION, option_name};
use crate::system::{
    Call, CallOutput, ControlMessage, Injected, KnobResult, Returned, SentPacket, System,
    SystemError,
};
use crate::wire::ChecksumTrust;

/// Sleeping ends this long before its time; the rest is spent looking at the clock, since the
/// scheduler's wake-up is not exact.
const SPIN_US: i64 = 300;

/// Not a sysctl here but an option of each socket: a namespace may choose only among those that the
/// machine's administrator allows for every user.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";

/// Runs a script on the kernel. Blocks for as long as the script takes.
pub(crate) fn run_script(script: &Script, settings: ScriptSettings) -> ScriptOutcome {
    // A scope, so that the thread may borrow the script; the thread's end is the namespace's.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| match Linux::new(&settings) {
            Ok(mut linux) => run(script, settings.clone(), &mut linux),
            Err(error) => skipped(error.to_string()),
        });
        thread.join().unwrap_or_else(|_| skipped("the runner broke down".to_owned()))
    })
}

/// A namespace with a device, and a program in it.
struct Linux {
    namespace: Namespace,
    capture: NamespaceCapture,
    program: LinuxProgram,
    /// Time zero, in microseconds since 1970: packets carry times of that clock.
    start_us: i64,
}

impl Linux {
    /// Moves the calling thread into a namespace of its own and sets that up.
    fn new(settings: &ScriptSettings) -> Result<Self, SystemError> {
        let namespace = Namespace::new(settings)?;
        let capture = NamespaceCapture::new()?;
        let program = LinuxProgram::start()?;
        // Without it, times are as good as the load of the machine lets them be.
        let _ = sys::take_real_time_priority();
        Ok(Self { namespace, capture, program, start_us: 0 })
    }
}

impl System for Linux {
    fn checksums(&self) -> ChecksumTrust {
        ChecksumTrust::Offloaded
    }

    fn set_knob(&mut self, knob: &Knob) -> Result<KnobResult, SystemError> {
        if knob.name != CONGESTION_CONTROL {
            return Ok(self.namespace.set_knob(knob));
        }
        if !namespace::has_congestion_control(&knob.value) {
            return Ok(KnobResult::Unknown);
        }
        self.program.use_congestion_control(&knob.value);
        Ok(KnobResult::Done)
    }

    fn begin(&mut self) -> Result<(), SystemError> {
        self.start_us = clock_us();
        Ok(())
    }

    fn now_us(&mut self) -> i64 {
        clock_us() - self.start_us
    }

    fn wait_until_us(&mut self, at_us: i64) -> Result<(), SystemError> {
        loop {
            self.namespace.empty_device();
            let left_us = at_us - self.now_us();
            if left_us <= 0 {
                return Ok(());
            }
            let sleep_us = left_us - SPIN_US;
            if sleep_us > 0 {
                self.namespace.wait_for_device(sleep_us);
            }
        }
    }

    fn start_call(&mut self, call: Call) -> Result<(), SystemError> {
        if let Call::SetOption { level, name, .. } | Call::GetOption { level, name, .. } = &call
            && *name >= FOREIGN_OPTION
        {
            return Err(SystemError::Unsupported(option_name(*level, *name)));
        }
        if matches!(call, Call::Nowhere { .. }) {
            return Err(SystemError::Unsupported("a null pointer".to_owned()));
        }
        self.program.start_call(call)
    }

    fn await_call(&mut self, until_us: i64) -> Result<Option<(Returned, i64)>, SystemError> {
        let finished = self.program.await_call(until_us + self.start_us, || {
            self.namespace.empty_device();
        })?;
        Ok(finished.map(|(mut returned, at_us)| {
            if let CallOutput::Message { control, .. } = &mut returned.output {
                control.iter_mut().for_each(|one| since(self.start_us, one));
            }
            (returned, at_us - self.start_us)
        }))
    }

    fn inject(&mut self, packet: &Injected<'_>) -> Result<(), SystemError> {
        self.namespace.inject(packet)
    }

    fn next_sent(&mut self, until_us: i64) -> Result<Option<SentPacket>, SystemError> {
        loop {
            self.namespace.empty_device();
            let left_us = until_us - self.now_us();
            if let Some((at_us, bytes)) = self.capture.next(left_us.max(0))? {
                return Ok(Some(SentPacket { at_us: at_us - self.start_us, bytes }));
            }
            if left_us <= 0 {
                return Ok(None);
            }
        }
    }
}

/// Makes the first time of a `struct scm_timestamping`, which counts from 1970, one that counts
/// from the script's beginning.
fn since(start_us: i64, control: &mut ControlMessage) {
    let is_stamp = (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING);
    let Some((seconds, rest)) = control.data.split_at_mut_checked(8).filter(|_| is_stamp) else {
        return;
    };
    let Some(nanoseconds) = rest.get_mut(..8) else { return };
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, i64::from_ne_bytes);
    let at_us = number(seconds) * 1_000_000 + number(nanoseconds) / 1000 - start_us;
    seconds.copy_from_slice(&at_us.div_euclid(1_000_000).to_ne_bytes());
    nanoseconds.copy_from_slice(&(at_us.rem_euclid(1_000_000) * 1000).to_ne_bytes());
}

/// Microseconds since 1970.
fn clock_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}
