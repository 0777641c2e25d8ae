//! The environment of a program that is started, in which the settings and the library stand again.
//!
//! Read first: environ(7); `settings.rs`.
//!
//! Invariants
//! - An environment that is complete takes no memory: the functions of exec(3) may be called by
//!   handlers of signals and by children of processes with threads.
//! - The memory is freed when the program has started. The child of a vfork(2) leaves it behind in
//!   its parent's memory when it executes a program, and the parent frees it
//!   ([`free_left_behind`]).

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
        let (restored, library) = kept()?;
        // SAFETY: the caller promises the list.
        if turn.is_none() && unsafe { is_complete(given, restored, library) } {
            return None;
        }
        let complete = || {
            // SAFETY: as above.
            unsafe { Self::completed(given, turn, (restored, library)) }
        };
        foreign_children::keeping_locks(complete)
    }

    /// As [`RestoredEnvironment::of`], which has found that something is missing.
    ///
    /// # Safety
    /// As [`RestoredEnvironment::of`].
    unsafe fn completed(
        given: Strings,
        turn: Option<c_int>,
        (wanted, library): (&'static [CString], &str),
    ) -> Option<Self> {
        let mut restored = Self::default();
        let mut at = given;
        // SAFETY: the caller promises the list.
        while !at.is_null() && !unsafe { at.read() }.is_null() {
            // SAFETY: as above.
            restored.list.push(unsafe { at.read() });
            at = at.wrapping_add(1);
        }
        if let Some(turn) = turn {
            let name = link::TURN_VARIABLE;
            // SAFETY: the caller promises strings.
            restored.list.retain(|it| unsafe { value_of(*it, name.as_bytes()) }.is_none());
            restored.set(None, CString::new(format!("{name}={turn}")).ok()?);
        }
        for wanted in wanted {
            let name = name_of(wanted);
            // SAFETY: the caller promises strings.
            if !restored.list.iter().any(|it| unsafe { value_of(*it, name) }.is_some()) {
                restored.list.push(wanted.as_ptr());
            }
        }
        let name = PRELOAD.as_bytes();
        // SAFETY: as above.
        let known = restored.list.iter().position(|it| unsafe { value_of(*it, name) }.is_some());
        // SAFETY: as above.
        let before = known.and_then(|place| unsafe { value_of(restored.list[place], name) });
        let before = before.unwrap_or_default();
        if !is_in_list(library, before) {
            let separator: &[u8] = if before.is_empty() { b"" } else { b":" };
            let text = [name, b"=", library.as_bytes(), separator, before].concat();
            restored.set(known, CString::new(text).ok()?);
        }
        restored.list.push(ptr::null());
        Some(restored)
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
        OF_CHILD.set(foreign_children::keeping_locks(|| Box::into_raw(Box::new(self))));
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
        let left = unsafe { Box::from_raw(left) };
        foreign_children::keeping_locks(|| drop(left));
    }
}

/// Whether a program that gets the environment of this process is preloaded, with its settings.
pub(crate) fn environment_is_complete() -> bool {
    // SAFETY: the environment of the process ends with a null pointer.
    kept()
        .is_some_and(|(restored, library)| unsafe { is_complete(environment(), restored, library) })
}

/// The variables that stand in each environment again, and the library's file; `None`: programs
/// are not preloaded (`--no-follow`).
fn kept() -> Option<(&'static [CString], &'static str)> {
    let settings = stack::settings()?;
    Some((&settings.restored, settings.library.as_deref()?))
}

/// Whether nothing is missing in an environment. Takes no memory.
///
/// # Safety
/// As [`RestoredEnvironment::of`].
unsafe fn is_complete(given: Strings, restored: &[CString], library: &str) -> bool {
    // SAFETY: the caller promises the list.
    let value = |name: &[u8]| unsafe { variable_of(given, name) };
    let has_library = value(PRELOAD.as_bytes()).is_some_and(|list| is_in_list(library, list));
    has_library && restored.iter().all(|wanted| value(name_of(wanted)).is_some())
}

/// The name of a variable in its string.
fn name_of(variable: &CStr) -> &[u8] {
    variable.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// Whether LD_PRELOAD names a library.
fn is_in_list(library: &str, list: &[u8]) -> bool {
    list.split(|byte| matches!(byte, b':' | b' ')).any(|part| part == library.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_environment_is_recognized() {
        const LIBRARY: &str = "/lib/ours.so";
        let restored = [c"MEGAPIPE_ONE=1".to_owned(), c"MEGAPIPE_TWO=2".to_owned()];
        let is_complete = |environment: &[&CStr]| {
            let strings = environment.iter().map(|text| text.as_ptr());
            let list: Vec<*const c_char> = strings.chain([ptr::null()]).collect();
            // SAFETY: the list ends with a null pointer.
            unsafe { is_complete(list.as_ptr(), &restored, LIBRARY) }
        };
        // The program has changed a setting, which stays.
        let [one, two] = [c"MEGAPIPE_ONE=other", c"MEGAPIPE_TWO="];
        assert!(is_complete(&[one, two, c"LD_PRELOAD=/lib/ours.so"]));
        assert!(is_complete(&[c"LD_PRELOAD=/lib/first.so /lib/ours.so:x", c"PATH=/", two, one]));
        assert!(!is_complete(&[one, c"LD_PRELOAD=/lib/ours.so"]));
        assert!(!is_complete(&[one, two]));
        assert!(!is_complete(&[one, two, c"LD_PRELOAD=/lib/ours.so.1"]));
        assert!(!is_complete(&[]));
        // SAFETY: null is no list.
        assert!(!unsafe { super::is_complete(ptr::null(), &restored, LIBRARY) });
    }
}
