//! vfork(2): the child has the memory of its parent, and descriptors of its own.
//!
//! On the back end `service` the program that the child executes goes on with the connections that
//! the child's numbers name. The tables are the parent's, so the child has a view of them
//! (`child_views.rs`).
//!
//! Read first: `foreign_children.rs`; `exec_sharing.rs`.

use crate::foreign_children::{POSSIBLE, is_foreign};
use crate::fork_sharing;
use crate::numbers::child_views::{self, NO_VIEW};
use crate::numbers::{self, NumberEntry};
use crate::raw::set_errno;
use crate::records::anchor;
use crate::restored_environment::free_left_behind;
use crate::stack;

/// The names of the functions.
pub(crate) const NAMES: &[&str] = &["vfork"];

/// vfork(2). The caller's frame is the child's first, so it has no code in Rust: the parent goes on
/// when the child has ended or executes another program, and there is one child less.
///
/// # Safety
/// As vfork(2).
#[unsafe(naked)]
#[unsafe(export_name = "mp_preload_vfork")]
pub(crate) unsafe extern "C" fn vfork() -> libc::pid_t {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 16",
        "call {prepare}",
        "add rsp, 8",
        ".cfi_def_cfa_offset 8",
        "lock inc dword ptr [rip + {possible}]",
        // The kernel keeps both for the parent: the view, and the return address, because the child
        // may write over its place before the parent uses it.
        "mov esi, eax",
        "pop rdi",
        ".cfi_def_cfa_offset 0",
        // The return address is in rdi (5 in DWARF).
        ".cfi_register 16, 5",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        ".cfi_def_cfa_offset 8",
        ".cfi_offset 16, -8",
        "test eax, eax",
        "jz 2f",
        "push rax",
        ".cfi_def_cfa_offset 16",
        "mov edi, esi",
        "call {conclude}",
        "pop rax",
        ".cfi_def_cfa_offset 8",
        "lock dec dword ptr [rip + {possible}]",
        "test eax, eax",
        "js 3f",
        "2:",
        "ret",
        "3:",
        "mov edi, eax",
        "neg edi",
        "sub rsp, 8",
        ".cfi_def_cfa_offset 16",
        "call {failed}",
        "add rsp, 8",
        ".cfi_def_cfa_offset 8",
        "mov eax, -1",
        "ret",
        ".cfi_endproc",
        prepare = sym prepare,
        possible = sym POSSIBLE,
        number = const libc::SYS_vfork,
        conclude = sym conclude,
        failed = sym failed,
    )
}

/// Before vfork(2). Returns the view of the child.
extern "C" fn prepare() -> u32 {
    let is_connection = |entry| matches!(entry, NumberEntry::Stack(_) | NumberEntry::Inherited(_));
    if !stack::is_shared() || !numbers::known(0, u32::MAX).any(|(_, it)| is_connection(it)) {
        return NO_VIEW;
    }
    if is_foreign() {
        return if child_views::has_current() { child_views::begin() } else { NO_VIEW };
    }
    // The child can make no anchor and start no stack: their descriptors would be the child's, and
    // their memory the parent's.
    if anchor().is_err() {
        return NO_VIEW;
    }
    for (fd, entry) in numbers::known(0, u32::MAX) {
        if let NumberEntry::Inherited(_) = entry {
            // One that has ended is not passed on.
            let _ = fork_sharing::resolved(fd);
        }
    }
    child_views::begin()
}

/// After vfork(2), in the parent.
extern "C" fn conclude(view: u32) {
    free_left_behind();
    if view != NO_VIEW {
        child_views::end(view);
    }
}

/// vfork(2) has failed.
extern "C" fn failed(errno: std::ffi::c_int) {
    set_errno(errno);
}
