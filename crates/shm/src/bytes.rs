//! Copying bytes that the other end may be writing meanwhile.
//!
//! Read first: the Rust reference, "Rules for inline assembly"; `docs/UNSAFE.md`, "Memory that
//! another process writes".
//!
//! Invariants
//! - A byte of shared memory is loaded once per copy as far as the program can tell: the copy's
//!   result is in private memory, and no later step looks at the shared memory again.
//! - The compiler never sees an ordinary load or store of shared memory.

#[cfg(miri)]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values that may be taken from shared memory as they are.
///
/// # Safety
/// Every pattern of bytes is a value of the type (no references, no `bool`, no enum), it has no
/// padding, its size is a multiple of 8 and not 0, and its alignment divides 8.
pub unsafe trait Plain: Copy + Send + 'static {}

// SAFETY: an integer without padding; 8 bytes.
unsafe impl Plain for u64 {}
// SAFETY: an array of the above has no padding; an array of none is refused where it would be used
// (`words_of`).
unsafe impl<const COUNT: usize> Plain for [u64; COUNT] {}

/// The 64-bit words in a `T`.
pub(crate) const fn words_of<T: Plain>() -> usize {
    let bytes = size_of::<T>();
    assert!(bytes > 0 && bytes.is_multiple_of(8) && align_of::<T>() <= 8, "not a Plain type");
    bytes / 8
}

/// Takes a `T` out of shared words, one relaxed load per word.
///
/// The value is whatever the words held; if the other end writes meanwhile, a mixture. Relaxed is
/// enough: the order against the writer comes from the index that announced these words.
///
/// # Safety
/// `words` points to `words_of::<T>()` words, aligned and mapped for the length of the call.
#[inline]
pub(crate) unsafe fn load<T: Plain>(words: *const AtomicU64) -> T {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let out = value.as_mut_ptr().cast::<u64>();
    for index in 0..words_of::<T>() {
        // SAFETY: `index` is below the count that the caller vouches for.
        let place = unsafe { words.add(index) };
        // SAFETY: mapped and aligned by the caller's promise; atomics may be shared with anybody.
        let word = unsafe { &*place }.load(Ordering::Relaxed);
        // SAFETY: `index` words fit into a `T`, whose size is that many words.
        let to = unsafe { out.add(index) };
        // SAFETY: `to` lies in `value`; a `T` may be aligned to less than a word.
        unsafe { to.write_unaligned(word) };
    }
    // SAFETY: all of its bytes were written, and a `Plain` type takes any bytes.
    unsafe { value.assume_init() }
}

/// Puts a `T` into shared words, one relaxed store per word.
///
/// # Safety
/// As for [`load`].
#[inline]
pub(crate) unsafe fn store<T: Plain>(words: *const AtomicU64, value: &T) {
    let from = std::ptr::from_ref(value).cast::<u64>();
    for index in 0..words_of::<T>() {
        // SAFETY: `index` words fit into a `T`, whose size is that many words.
        let source = unsafe { from.add(index) };
        // SAFETY: in `value`, which has no padding and so is initialised throughout.
        let word = unsafe { source.read_unaligned() };
        // SAFETY: `index` is below the count that the caller vouches for.
        let place = unsafe { words.add(index) };
        // SAFETY: mapped and aligned by the caller's promise; atomics may be shared with anybody.
        unsafe { &*place }.store(word, Ordering::Relaxed);
    }
}

/// Copies the program's own bytes into shared memory.
///
/// # Safety
/// `to` may be written for `from.len()` bytes and lies elsewhere than `from`; nothing refers to it
/// but atomics and raw pointers.
#[inline]
pub unsafe fn copy_in(from: &[u8], to: *mut u8) {
    #[cfg(not(miri))]
    // SAFETY: `from` may be read for its length; the rest is the caller's promise.
    unsafe {
        copy(from.as_ptr(), to, from.len());
    }
    #[cfg(miri)]
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: within the bytes that the caller vouches for.
        let place = unsafe { to.add(index) };
        // SAFETY: as above, and shared with nothing but atomics.
        unsafe { AtomicU8::from_ptr(place) }.store(*byte, Ordering::Relaxed);
    }
}

/// Copies bytes of shared memory into the program's own.
///
/// # Safety
/// `from` may be read for `to.len()` bytes and lies elsewhere than `to`; nothing refers to it but
/// atomics, raw pointers and shared references.
#[inline]
pub unsafe fn copy_out(from: *const u8, to: &mut [u8]) {
    #[cfg(not(miri))]
    // SAFETY: `to` may be written for its length; the rest is the caller's promise.
    unsafe {
        copy(from, to.as_mut_ptr(), to.len());
    }
    #[cfg(miri)]
    for (index, byte) in to.iter_mut().enumerate() {
        // SAFETY: within the bytes that the caller vouches for.
        let place = unsafe { from.add(index) }.cast_mut();
        // SAFETY: as above.
        *byte = unsafe { AtomicU8::from_ptr(place) }.load(Ordering::Relaxed);
    }
}

/// Asks for the cache line at `shared`, which another core wrote last. A hint: any address will do.
#[inline]
pub fn expect_line(shared: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
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
pub fn expect_line_to_write(shared: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: PREFETCHW reads and writes nothing and cannot fault, wherever it points; a processor
    // that does not have it takes it for a NOP (all of x86-64 know the opcode). No register and no
    // flag is changed.
    unsafe {
        std::arch::asm!(
            "prefetchw [{shared}]",
            shared = in(reg) shared,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}

/// Copies `len` bytes, either side of which may be shared memory that is written meanwhile.
///
/// In the language's terms this is a relaxed atomic access to each byte. The standard library has
/// no such copy, and a loop over atomics moves a few bytes per cycle at best. So the C library's
/// copy is called through a pointer that the compiler cannot see through: what it does is then
/// machine code like any other instruction sequence in `asm!`, about which the compiler may assume
/// nothing but what it might do. An ordinary call to `memcpy` would not do: the compiler knows it,
/// may read the source a second time instead of the copy, and a check of the copy would then say
/// nothing about what is used. Miri, which runs no machine code, takes the loop.
///
/// # Safety
/// `from` may be read and `to` written for `len` bytes, and the two do not overlap.
#[cfg(not(miri))]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    type Copy =
        unsafe extern "C" fn(*mut libc::c_void, *const libc::c_void, usize) -> *mut libc::c_void;
    let mut opaque: Copy = libc::memcpy;
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "there is no instruction in it")]
    // SAFETY: no instruction. It hands a register through, and `memcpy` stays in it.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) opaque,
            options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: `opaque` is `memcpy`; the caller vouches for both sides and for no overlap.
    unsafe { opaque(to.cast(), from.cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_length_and_alignment_stay_in_their_range() {
        let source: Vec<u8> = (0..400_u32).map(|n| (n * 7 + 3) as u8).collect();
        for len in (0..200).chain([255, 256, 300]) {
            for offset in [0, 1, 3, 8, 15] {
                let mut there = vec![0xee; len + 32];
                // SAFETY: `16 + len` is within the vector, which nothing else refers to.
                unsafe { copy_in(&source[offset..offset + len], there[16..].as_mut_ptr()) };
                assert_eq!(there[16..16 + len], source[offset..offset + len]);
                assert!(there[..16].iter().chain(&there[16 + len..]).all(|&byte| byte == 0xee));
                let mut back = vec![0xdd; len];
                // SAFETY: `there` holds `len` bytes from 16 on.
                unsafe { copy_out(there[16..].as_mut_ptr().cast_const(), &mut back) };
                assert_eq!(back, source[offset..offset + len]);
            }
        }
    }
}
