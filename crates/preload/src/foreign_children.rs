//! Children that libc does not prepare for: those of vfork(2), clone(2) and _Fork(3) have the
//! tables of their parent, and descriptors of their own.
//!
//! Read first: vfork(2); `stack.rs` on the process that owns the tables.
//!
//! Only such a child has another number than the owner, and to ask the kernel for it would be a
//! third of the price of closing a connection. So the calls that make such children say so before
//! ([`POSSIBLE`]), and while there is none a call need not ask.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many such children may run now, as far as the process knows. One of which the end is not
/// seen counts for ever. The memory is common to a vfork's child and its parent.
static POSSIBLE: AtomicU32 = AtomicU32::new(AT_FIRST);
/// Where vfork(2) is not interposed there may always be one.
const AT_FIRST: u32 = if cfg!(target_arch = "x86_64") { 0 } else { 1 };

/// Whether the caller may be such a child.
#[inline]
pub(crate) fn may_be_foreign() -> bool {
    // Acquire: pairs with `note_new`, by the thread that makes the child.
    POSSIBLE.load(Ordering::Acquire) != 0
}

/// A child is about to be made, of which the end is not seen.
pub(crate) fn note_new() {
    POSSIBLE.fetch_add(1, Ordering::Release);
}

/// In the child of a fork(2), which has its own tables and no child yet.
pub(crate) fn forget() {
    POSSIBLE.store(AT_FIRST, Ordering::Relaxed);
}

/// vfork(2). The caller's frame is the child's first, so it has no code in Rust: the parent goes on
/// when the child has ended or executes another program, and there is one child less.
///
/// # Safety
/// As vfork(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(export_name = "mp_preload_vfork")]
pub(crate) unsafe extern "C" fn vfork() -> libc::pid_t {
    std::arch::naked_asm!(
        "lock inc dword ptr [rip + {possible}]",
        // The child may write over the place of the return address before the parent uses it.
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test eax, eax",
        "jz 2f",
        "lock dec dword ptr [rip + {possible}]",
        "test eax, eax",
        "js 3f",
        "2:",
        "ret",
        "3:",
        "mov edi, eax",
        "neg edi",
        "sub rsp, 8",
        "call {failed}",
        "add rsp, 8",
        "mov eax, -1",
        "ret",
        possible = sym POSSIBLE,
        number = const libc::SYS_vfork,
        failed = sym failed,
    )
}

/// vfork(2) has failed.
#[cfg(target_arch = "x86_64")]
extern "C" fn failed(errno: std::ffi::c_int) {
    crate::raw::set_errno(errno);
}
