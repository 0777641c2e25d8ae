//! Which driver serves a channel, why, and what it found on this kernel; and the same for one
//! handle. Nothing falls back silently: what is said here is what happens.

use std::fmt;

use crate::address::Address;
use crate::cpu_mask::CpuMask;
use crate::handle::Handle;

/// A driver of the `kernel` back end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring.
    Uring,
    /// epoll and non-blocking calls.
    Epoll,
}

impl DriverKind {
    /// `uring` or `epoll`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Epoll => "epoll",
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One feature that was probed on this kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Name of the feature.
    pub name: &'static str,
    /// The probe succeeded.
    pub available: bool,
    /// What the channel does with the feature, or without it.
    pub consequence: &'static str,
}

/// The driver of a channel, the reason, and the features found on this kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverReport {
    /// The back end: `kernel` or `local`.
    pub backend: &'static str,
    /// The driver in use; with the `local` back end, for what is the kernel's.
    pub driver: DriverKind,
    /// Why this one.
    pub reason: String,
    /// Where our own stack runs, if it serves the channel: the placement, the shard, the cores.
    pub place: Option<String>,
    /// The preferred driver, if it does not work here.
    pub fallen_back_from: Option<DriverKind>,
    /// Why the daemon of the back end `service` gave no session, if the kernel serves in place of
    /// it ([`crate::Config::fall_back`]).
    pub fallen_back_from_service: Option<String>,
    /// The probed features.
    pub features: Vec<Feature>,
}

impl DriverReport {
    pub(crate) const fn new(driver: DriverKind, features: Vec<Feature>) -> Self {
        let reason = String::new();
        Self {
            backend: "kernel",
            driver,
            reason,
            place: None,
            fallen_back_from: None,
            fallen_back_from_service: None,
            features,
        }
    }

    pub(crate) fn chosen(mut self, reason: &str) -> Self {
        reason.clone_into(&mut self.reason);
        self
    }

    #[cfg(feature = "local")]
    pub(crate) fn without_service(mut self, why: String) -> Self {
        self.reason = format!("{}; the kernel serves in place of the service: {why}", self.reason);
        self.fallen_back_from_service = Some(why);
        self
    }

    pub(crate) fn fallen_back(mut self, from: DriverKind, reason: &str) -> Self {
        self.fallen_back_from = Some(from);
        self.chosen(reason)
    }
}

impl fmt::Display for DriverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "driver {}: {}", self.driver, self.reason)?;
        let width = self.features.iter().map(|feature| feature.name.len()).max().unwrap_or(0);
        for Feature { name, available, consequence } in &self.features {
            let answer = if *available { "yes" } else { "no " };
            writeln!(f, "  {name:width$}  {answer}  {consequence}")?;
        }
        Ok(())
    }
}

/// The path of one handle through the channel, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explain {
    /// The handle.
    pub handle: Handle,
    /// What it is, in words.
    pub kind: &'static str,
    /// The back end that serves it: `kernel` or `local`.
    pub backend: &'static str,
    /// The driver.
    pub driver: DriverKind,
    /// The handle's descriptor: a file descriptor or a direct descriptor. On our own stack: the
    /// link, and the options that the connection has negotiated.
    pub path: String,
    /// Where our own stack runs, if it serves the handle: the placement, the shard, the cores.
    pub place: Option<String>,
    /// The local address, if it has one.
    pub local: Option<Address>,
    /// The peer's address, if it is connected.
    pub peer: Option<Address>,
    /// The cores whose connections a listener takes.
    pub cpu_mask: Option<CpuMask>,
    /// The core that last processed packets of this socket (SO_INCOMING_CPU).
    pub incoming_cpu: Option<u32>,
    /// Bytes received and not yet read by the program.
    pub unread_bytes: u64,
    /// Reads that wait.
    pub reads: usize,
    /// Writes that wait or are with the kernel.
    pub writes: usize,
    /// Requests that were not fulfilled, or otherwise than requested, each with the reason.
    pub remarks: Vec<String>,
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {}", self.handle, self.kind)?;
        writeln!(f, "  path      {} / {}: {}", self.backend, self.driver, self.path)?;
        if let Some(place) = &self.place {
            writeln!(f, "  runs      {place}")?;
        }
        if let Some(local) = &self.local {
            writeln!(f, "  local     {local}")?;
        }
        if let Some(peer) = &self.peer {
            writeln!(f, "  peer      {peer}")?;
        }
        if let Some(mask) = &self.cpu_mask {
            writeln!(f, "  cores     {mask}")?;
        }
        if let Some(cpu) = self.incoming_cpu {
            writeln!(f, "  last core {cpu}")?;
        }
        writeln!(
            f,
            "  waiting   {} reads, {} writes, {} bytes unread",
            self.reads, self.writes, self.unread_bytes
        )?;
        for remark in &self.remarks {
            writeln!(f, "  remark    {remark}")?;
        }
        Ok(())
    }
}
