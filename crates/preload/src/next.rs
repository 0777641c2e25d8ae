//! The functions that the library stands in front of: those of the next library that has them,
//! mostly libc.
//!
//! Read first: dlsym(3) on RTLD_NEXT; decision 0049.
//!
//! Invariant: dlsym(3), which may allocate, runs in the constructor only. Until then calls go to
//! the kernel by number, because an allocator of the program may call before it can be called
//! itself.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function of the next library; null until the constructor has run.
pub(crate) struct NextFunction(AtomicPtr<c_void>);

impl NextFunction {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Looks the function up. It stays null if no library has it.
    pub(crate) fn resolve(&self, name: &CStr) {
        // SAFETY: the name ends with a NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // Relaxed: functions are there before the program is loaded.
        self.0.store(found, Ordering::Relaxed);
    }

    /// Returns the function's address; null: not resolved.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines functions that the program calls in place of libc's. `|pass|` names a closure that
/// passes the call on with the same arguments.
macro_rules! interpose {
    ($($(#[$doc:meta])*
       fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $result:ty |$pass:ident| $body:block
    )*) => {
        #[expect(non_upper_case_globals, reason = "they are named as the functions")]
        mod next {
            use $crate::next::NextFunction;
            $(pub(super) static $name: NextFunction = NextFunction::new();)*
        }

        /// Looks up the functions that calls are passed to.
        pub(crate) fn resolve() {
            $(
                let name = concat!(stringify!($name), "\0").as_bytes();
                if let Ok(name) = std::ffi::CStr::from_bytes_with_nul(name) {
                    next::$name.resolve(name);
                }
            )*
        }

        /// The names of the functions.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            $(#[$doc])*
            #[unsafe(export_name = concat!("mp_preload_", stringify!($name)))]
            #[allow(clippy::missing_safety_doc, non_snake_case, reason = "as the C function")]
            pub(crate) unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
                let $pass = || -> $result {
                    let found = next::$name.get();
                    if found.is_null() {
                        // SAFETY: the program promises what the function asks for.
                        return unsafe { $crate::inner::$name($($argument as usize),*) } as $result;
                    }
                    type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
                    // SAFETY: dlsym(3) found the function by its name, which has this signature.
                    let function: Function = unsafe { std::mem::transmute(found) };
                    // SAFETY: the program promises what the function asks for.
                    unsafe { function($($argument),*) }
                };
                $body
            }
        )*
    };
}

pub(crate) use interpose;
