//! Copies between private memory and memory that another process writes at will.
//!
//! In Rust's memory model a plain copy of bytes that another process is writing is a data race. So
//! no plain copy is made here. On x86-64 the loads and stores on the shared side
//! are inline assembly, which the compiler can neither see into nor repeat: each shared byte is
//! loaded or stored once, and a race means only that the bytes are old, new or mixed. Elsewhere
//! the same is done by relaxed atomic bytes.
//!
//! Invariants
//! - Each shared byte is touched once by a copy, none outside the range given.
//! - The copied bytes are arbitrary; the caller checks the private copy.

/// Copies `private.len()` bytes from shared memory.
///
/// # Safety
/// `shared` points at `private.len()` mapped readable bytes that stay mapped during the call, and
/// none of them lies in `private`.
pub(super) unsafe fn from_shared(private: &mut [u8], shared: *const u8) {
    // SAFETY: the caller vouches for `shared`; `private` is a slice, so its bytes are writable and
    // its length is the count.
    unsafe { copy(private.as_mut_ptr(), shared, private.len()) }
}

/// Copies `private` into shared memory.
///
/// # Safety
/// `shared` points at `private.len()` mapped writable bytes that stay mapped during the call, and
/// none of them lies in `private`.
pub(super) unsafe fn to_shared(shared: *mut u8, private: &[u8]) {
    // SAFETY: the caller vouches for `shared`; `private` is a slice, so its bytes are readable and
    // its length is the count.
    unsafe { copy(shared, private.as_ptr(), private.len()) }
}

/// Asks for the cache line at `shared`, which another core wrote last. A hint: any address will do.
#[inline]
pub(super) fn prefetch(shared: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault, wherever it points; SSE is part of
        // x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(shared.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}

/// Asks for the cache line at `shared` for writing: the other core's copy goes meanwhile. A hint:
/// any address will do.
#[inline]
pub(super) fn prefetch_to_write(shared: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: PREFETCHW reads and writes nothing and cannot fault, wherever it points; a processor
    // that does not have it takes it for a NOP (all of x86-64 know the opcode). No register and no
    // flag is changed.
    unsafe {
        core::arch::asm!(
            "prefetchw [{shared}]",
            shared = in(reg) shared,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}

/// Copies `len` bytes: blocks of 64, then of 16, then what is left.
///
/// # Safety
/// Both sides are mapped for `len` bytes, `from` for reading and `to` for writing, and do not
/// overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    while len - at >= 64 {
        // SAFETY: `at + 64 <= len`, so 64 bytes from `at` are mapped on both sides; SSE2 is part of
        // x86-64, and the unaligned forms ask for no alignment. Nothing but xmm0-3 is changed.
        unsafe {
            core::arch::asm!(
                "movdqu xmm0, [{from} + {at}]",
                "movdqu xmm1, [{from} + {at} + 16]",
                "movdqu xmm2, [{from} + {at} + 32]",
                "movdqu xmm3, [{from} + {at} + 48]",
                "movdqu [{to} + {at}], xmm0",
                "movdqu [{to} + {at} + 16], xmm1",
                "movdqu [{to} + {at} + 32], xmm2",
                "movdqu [{to} + {at} + 48], xmm3",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                options(nostack, preserves_flags),
            );
        }
        at += 64;
    }
    while len - at >= 16 {
        // SAFETY: as above, for 16 bytes and xmm0.
        unsafe {
            core::arch::asm!(
                "movdqu xmm0, [{from} + {at}]",
                "movdqu [{to} + {at}], xmm0",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                out("xmm0") _,
                options(nostack, preserves_flags),
            );
        }
        at += 16;
    }
    // SAFETY: `at <= len`, so what is left is mapped on both sides, and it is fewer than 16 bytes.
    unsafe { copy_tail(to.wrapping_add(at), from.wrapping_add(at), len - at) };
}

/// Copies `len` bytes, fewer than 16: each power of two once at most.
///
/// # Safety
/// As for `copy`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_tail(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0_usize;
    if len & 8 != 0 {
        // SAFETY: the bits of `len` add up to it, so `at + 8 <= len` here; no alignment is asked
        // for; the register named is changed and declared so.
        unsafe {
            core::arch::asm!(
                "mov {bytes:r}, qword ptr [{from} + {at}]",
                "mov qword ptr [{to} + {at}], {bytes:r}",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                bytes = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        at += 8;
    }
    if len & 4 != 0 {
        // SAFETY: as above, for 4 bytes.
        unsafe {
            core::arch::asm!(
                "mov {bytes:e}, dword ptr [{from} + {at}]",
                "mov dword ptr [{to} + {at}], {bytes:e}",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                bytes = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        at += 4;
    }
    if len & 2 != 0 {
        // SAFETY: as above, for 2 bytes.
        unsafe {
            core::arch::asm!(
                "movzx {bytes:e}, word ptr [{from} + {at}]",
                "mov word ptr [{to} + {at}], {bytes:x}",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                bytes = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
        at += 2;
    }
    if len & 1 != 0 {
        // SAFETY: as above, for one byte.
        unsafe {
            core::arch::asm!(
                "movzx {byte:e}, byte ptr [{from} + {at}]",
                "mov byte ptr [{to} + {at}], {byte:l}",
                from = in(reg) from,
                to = in(reg) to,
                at = in(reg) at,
                byte = out(reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `len` bytes one at a time, by relaxed atomic access on both sides: which of them is the
/// shared one is not known here, and private bytes bear it.
///
/// # Safety
/// Both sides are mapped for `len` bytes, `from` for reading and `to` for writing, and do not
/// overlap.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    use core::sync::atomic::{AtomicU8, Ordering};
    for at in 0..len {
        // SAFETY: `at < len`, so the byte is inside the range that the caller vouches for.
        let from = unsafe { from.add(at) };
        // SAFETY: as above.
        let to = unsafe { to.add(at) };
        // SAFETY: an atomic byte has the size and alignment of a byte, and every access to the
        // shared side is atomic; only a load is made, so a read-only byte is enough.
        let from = unsafe { AtomicU8::from_ptr(from.cast_mut()) };
        // SAFETY: as above; the byte is writable.
        let to = unsafe { AtomicU8::from_ptr(to) };
        // Relaxed: the order against the ring's indices is kept by their own acquire and release.
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
