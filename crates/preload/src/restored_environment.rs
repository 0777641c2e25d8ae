//! The environment of a program that is started, in which the settings and the library stand again.
//!
//! Read first: environ(7); `settings.rs`.
//!
//! Invariant: the memory is freed when the program has started. The child of a vfork(2) leaves it
//! behind in its parent's memory when it executes a program, and the parent frees it
//! ([`free_left_behind`]).

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use crate::foreign_children;
use crate::link;
use crate::stack;

/// The list of strings of an environment or of arguments.
pub(crate) type Strings = *const *const c_char;

/// Variable of the dynamic loader.
const PRELOAD: &str = "LD_PRELOAD";

thread_local! {
    /// The environment with which the child of a vfork(2) executes a program. The child has the
    /// memory of its parent's thread.
    static OF_CHILD: Cell<*mut RestoredEnvironment> = const { Cell::new(ptr::null_mut()) };
}

/// An environment in which the settings stand again.
#[derive(Default)]
pub(crate) struct RestoredEnvironment {
    list: Vec<*const c_char>,
    /// Strings of the list that were made for it.
    made: Vec<CString>,
}

impl RestoredEnvironment {
    /// `turn` is the file of the family, for a program that takes the place of this one. `None`:
    /// nothing is missing.
    ///
    /// # Safety
    /// `given` is null or a list of strings that ends with a null pointer, and outlives this.
    pub(crate) unsafe fn of(given: Strings, turn: Option<c_int>) -> Option<Self> {
        let settings = stack::settings()?;
        let library = settings.library.as_deref()?;
        let mut restored = Self::default();
        let mut at = given;
        // SAFETY: the caller promises the list.
        while !at.is_null() && !unsafe { at.read() }.is_null() {
            // SAFETY: as above.
            restored.list.push(unsafe { at.read() });
            at = at.wrapping_add(1);
        }
        let mut is_changed = turn.is_some();
        if let Some(turn) = turn {
            let name = link::TURN_VARIABLE;
            // SAFETY: the caller promises strings.
            restored.list.retain(|it| unsafe { value_of(*it, name.as_bytes()) }.is_none());
            restored.set(None, CString::new(format!("{name}={turn}")).ok()?);
        }
        for wanted in &settings.restored {
            let name = wanted.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
            // SAFETY: the caller promises strings.
            if !restored.list.iter().any(|it| unsafe { value_of(*it, name) }.is_some()) {
                restored.list.push(wanted.as_ptr());
                is_changed = true;
            }
        }
        let name = PRELOAD.as_bytes();
        // SAFETY: as above.
        let known = restored.list.iter().position(|it| unsafe { value_of(*it, name) }.is_some());
        // SAFETY: as above.
        let before = known.and_then(|place| unsafe { value_of(restored.list[place], name) });
        let before = before.map(String::from_utf8_lossy).unwrap_or_default();
        if !is_in_list(library, &before) {
            let separator = if before.is_empty() { "" } else { ":" };
            let text = CString::new(format!("{PRELOAD}={library}{separator}{before}")).ok()?;
            restored.set(known, text);
            is_changed = true;
        }
        restored.list.push(ptr::null());
        is_changed.then_some(restored)
    }

    /// Puts a string into the list, in the place of another one or at the end.
    fn set(&mut self, place: Option<usize>, text: CString) {
        match place {
            Some(place) => self.list[place] = text.as_ptr(),
            None => self.list.push(text.as_ptr()),
        }
        self.made.push(text);
    }

    /// Starts a program with the environment.
    pub(crate) fn lend(self, start: impl FnOnce(Strings) -> c_int) -> c_int {
        if !foreign_children::is_foreign() {
            return start(self.list.as_ptr());
        }
        let list = self.list.as_ptr();
        OF_CHILD.set(Box::into_raw(Box::new(self)));
        let failed = start(list);
        free_left_behind();
        failed
    }
}

/// Frees what a child of this thread has left behind, which has executed a program.
pub(crate) fn free_left_behind() {
    let left = OF_CHILD.replace(ptr::null_mut());
    if !left.is_null() {
        // SAFETY: `lend` has leaked it, and the exchange gave it to this caller alone. A child that
        // used it has ended or has another memory.
        drop(unsafe { Box::from_raw(left) });
    }
}

/// Whether a program that gets the environment of this process is preloaded.
pub(crate) fn environment_has_library() -> bool {
    let library = stack::settings().and_then(|settings| settings.library.as_deref());
    // SAFETY: the environment of the process ends with a null pointer.
    let list = unsafe { variable_of(environment(), b"LD_PRELOAD") }.unwrap_or_default();
    library.is_some_and(|library| is_in_list(library, &String::from_utf8_lossy(list)))
}

/// Whether LD_PRELOAD names a library.
fn is_in_list(library: &str, list: &str) -> bool {
    list.split([':', ' ']).any(|part| part == library)
}

/// The value of a variable in an environment.
///
/// # Safety
/// `list` is null or a list of strings that ends with a null pointer and lives as long as `'a`.
pub(crate) unsafe fn variable_of<'a>(list: Strings, name: &[u8]) -> Option<&'a [u8]> {
    let mut at = list;
    // SAFETY: the caller promises the list.
    while !at.is_null() && !unsafe { at.read() }.is_null() {
        // SAFETY: as above.
        let text = unsafe { at.read() };
        // SAFETY: the caller promises strings.
        if let Some(value) = unsafe { value_of(text, name) } {
            return Some(value);
        }
        at = at.wrapping_add(1);
    }
    None
}

/// The environment of the process.
pub(crate) fn environment() -> Strings {
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: libc defines it.
    unsafe { environ }
}

/// The value of a variable, if the string is one of this name.
///
/// # Safety
/// `text` is a C string that lives as long as `'a`.
unsafe fn value_of<'a>(text: *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: the caller promises a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    text.strip_prefix(name)?.strip_prefix(b"=")
}
