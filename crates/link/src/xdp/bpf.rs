//! bpf(2): maps, programs and links, as far as we need them.
//!
//! Read first: bpf(2), and `union bpf_attr` in the kernel's `include/uapi/linux/bpf.h`. Each
//! command has a struct of its own here, with the fields up to the last one that we set; the
//! kernel takes those behind as zero.
//!
//! Invariants
//! - Everything is a descriptor: a map, a program and its attachment to an interface go when the
//!   last descriptor goes, also when we are killed.
//! - A key and a value have the length that their map was made with; [`Map`] checks it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::assembler::BpfInstruction;
use crate::spec::XdpMode;

// `enum bpf_cmd`.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const OBJECT_PIN: libc::c_int = 6;
const OBJECT_GET: libc::c_int = 7;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_int = 10;
const INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;

/// `BPF_PROG_TYPE_XDP`.
const PROGRAM_XDP: u32 = 6;
/// `BPF_XDP`, of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program takes frames of several buffers. It sees the first.
const PROGRAM_HAS_PIECES: u32 = 1 << 5;
/// Bytes of the verifier's log that are kept for an error.
const LOG_BYTES: usize = 64 * 1024;

/// What kind of map (`enum bpf_map_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MapKind {
    /// Any key, allocated beforehand.
    Hash = 1,
    /// Index to value, all zero at first.
    Array = 2,
    /// Queue to AF_XDP socket.
    Sockets = 17,
}

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`.
fn mode_flag(mode: XdpMode) -> u32 {
    match mode {
        XdpMode::Generic => 2,
        XdpMode::Native => 4,
    }
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entry_count_max: u32,
    flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// Of both OBJECT_PIN and OBJECT_GET.
#[repr(C)]
struct PinnedObject {
    path: u64,
    fd: u32,
    flags: u32,
}

#[cfg(test)]
#[repr(C)]
struct TestRun {
    program_fd: u32,
    answer: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
}

#[repr(C)]
struct InfoByFd {
    fd: u32,
    info_bytes: u32,
    info: u64,
}

/// `struct bpf_map_info`, its start.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entry_count_max: u32,
    flags: u32,
}

#[repr(C)]
struct LinkCreate {
    program_fd: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// One bpf(2) call.
///
/// # Safety
/// `attribute` is the struct of `command`, and each address in it leads to memory that is as long
/// as the kernel will read or write for this command, during the call.
unsafe fn bpf<T>(command: libc::c_int, attribute: &mut T) -> io::Result<libc::c_long> {
    let pointer = std::ptr::from_mut(attribute);
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of the attribute, which is a
    // reference; the addresses in it are the caller's word.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

/// The descriptor that a command answered with.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel has just created this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    // A descriptor that is open is no negative number.
    fd.as_raw_fd().unsigned_abs()
}

fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let len = text.len().min(15);
    name[..len].copy_from_slice(&text.as_bytes()[..len]);
    name
}

/// A map.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl Map {
    /// A new map.
    pub(super) fn new(
        kind: MapKind,
        (key_bytes, value_bytes): (usize, usize),
        entry_count_max: u32,
        called: &str,
    ) -> io::Result<Self> {
        let mut attribute = MapCreate {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            entry_count_max,
            flags: 0,
            inner_map_fd: 0,
            numa_node: 0,
            name: name(called),
        };
        // SAFETY: MAP_CREATE's struct, without addresses.
        let fd = unsafe { bpf(MAP_CREATE, &mut attribute) }?;
        Ok(Self { fd: owned(fd)?, key_bytes, value_bytes })
    }

    /// Adopts an XSKMAP of another program. Other kinds of maps are refused.
    pub(super) fn adopt_sockets(fd: OwnedFd) -> io::Result<Self> {
        let mut info = MapInfo::default();
        let mut attribute = InfoByFd {
            fd: raw(fd.as_fd()),
            info_bytes: size_of::<MapInfo>() as u32,
            info: address(&raw mut info),
        };
        // SAFETY: the command's struct; `info` is as long as it says and written during the call.
        unsafe { bpf(INFO_BY_FD, &mut attribute) }?;
        if (info.kind, info.key_bytes, info.value_bytes) != (MapKind::Sockets as u32, 4, 4) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self { fd, key_bytes: 4, value_bytes: 4 })
    }

    /// Opens an XSKMAP that another program pinned in a BPF file system.
    pub(super) fn pinned_sockets(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let mut attribute = PinnedObject { path: address(path.as_ptr()), fd: 0, flags: 0 };
        // SAFETY: OBJ_GET's struct; `path` is a C string and alive.
        let fd = unsafe { bpf(OBJECT_GET, &mut attribute) }?;
        Self::adopt_sockets(owned(fd)?)
    }

    /// Gives it a name in a BPF file system.
    pub(super) fn pin(&self, path: &Path) -> io::Result<()> {
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let fd = raw(self.fd.as_fd());
        let mut attribute = PinnedObject { path: address(path.as_ptr()), fd, flags: 0 };
        // SAFETY: OBJ_PIN's struct; `path` is a C string and alive.
        unsafe { bpf(OBJECT_PIN, &mut attribute) }.map(drop)
    }

    /// Sets the value of a key.
    pub(super) fn set(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.element(MAP_UPDATE, key, Some(value))
    }

    /// Removes a key. One that is not there is no error.
    pub(super) fn remove(&self, key: &[u8]) -> io::Result<()> {
        match self.element(MAP_DELETE, key, None) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            outcome => outcome,
        }
    }

    fn element(&self, command: libc::c_int, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let is_value_right = value.is_none_or(|value| value.len() == self.value_bytes);
        if key.len() != self.key_bytes || !is_value_right {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut attribute = MapElement {
            map_fd: raw(self.fd.as_fd()),
            padding: 0,
            key: address(key.as_ptr()),
            value: value.map_or(0, |value| address(value.as_ptr())),
            flags: 0,
        };
        // SAFETY: the struct of both commands; key and value are as long as the map's, checked
        // above, and only read.
        unsafe { bpf(command, &mut attribute) }.map(drop)
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A loaded XDP program.
#[derive(Debug)]
pub(super) struct XdpProgram {
    fd: OwnedFd,
}

impl XdpProgram {
    /// Has the kernel verify and load `code`. An error of the verifier's comes with the end of its
    /// log.
    /// `has_pieces`: it is run for frames of several buffers, too.
    pub(super) fn load(
        code: &[BpfInstruction],
        called: &str,
        has_pieces: bool,
    ) -> io::Result<Self> {
        let flags = if has_pieces { PROGRAM_HAS_PIECES } else { 0 };
        let outcome = Self::try_load(code, (called, flags), &mut []);
        let Err(error) = &outcome else { return outcome };
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) {
            return outcome;
        }
        // Once more, only to hear why.
        let mut log = vec![0; LOG_BYTES];
        Self::try_load(code, (called, flags), &mut log).map_err(|error| {
            let len = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let text = String::from_utf8_lossy(&log[len.saturating_sub(400)..len]).into_owned();
            io::Error::new(error.kind(), format!("{error}; the verifier says: {text}"))
        })
    }

    fn try_load(
        code: &[BpfInstruction],
        (called, flags): (&str, u32),
        log: &mut [u8],
    ) -> io::Result<Self> {
        // The helpers that are called are open to every licence but the GPL's own; this names ours.
        let license = c"Dual MIT/GPL";
        let mut attribute = ProgramLoad {
            kind: PROGRAM_XDP,
            instruction_count: code.len() as u32,
            instructions: address(code.as_ptr()),
            license: address(license.as_ptr()),
            log_level: u32::from(!log.is_empty()),
            log_bytes: log.len() as u32,
            log: if log.is_empty() { 0 } else { address(log.as_mut_ptr()) },
            kernel_version: 0,
            flags,
            name: name(called),
        };
        // SAFETY: PROG_LOAD's struct; the instructions are as many as it says, the licence a C
        // string, the log writable and as long as it says; all alive.
        let fd = unsafe { bpf(PROG_LOAD, &mut attribute) }?;
        Ok(Self { fd: owned(fd)? })
    }

    /// Lets the program run at an interface until the descriptor that comes back is closed.
    pub(super) fn attach(&self, interface: u32, mode: XdpMode) -> io::Result<OwnedFd> {
        let mut attribute = LinkCreate {
            program_fd: raw(self.fd.as_fd()),
            interface,
            attach_type: ATTACH_XDP,
            flags: mode_flag(mode),
        };
        // SAFETY: LINK_CREATE's struct, without addresses.
        owned(unsafe { bpf(LINK_CREATE, &mut attribute) }?)
    }

    /// Runs the program once on `frame`, without any interface, and gives its answer.
    #[cfg(test)]
    pub(super) fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut attribute = TestRun {
            program_fd: raw(self.fd.as_fd()),
            answer: 0,
            data_in_bytes: frame.len() as u32,
            data_out_bytes: 0,
            data_in: address(frame.as_ptr()),
            data_out: 0,
            repeat: 1,
            duration_ns: 0,
        };
        // SAFETY: PROG_TEST_RUN's struct; the frame is as long as it says and only read; nothing is
        // written back.
        unsafe { bpf(PROG_TEST_RUN, &mut attribute) }?;
        Ok(attribute.answer)
    }
}
