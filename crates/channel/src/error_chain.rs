//! Error text with all causes: [`ErrorChain`], and `{:?}` of the errors of this crate.
//!
//! `{}` of an error is its own text, without its causes, as is usual in Rust. A program whose
//! `main` returns a `Result` prints `{:?}`, so that is the text with all causes too, and not the
//! name of a variant.

use std::error::Error;
use std::fmt::{self, Write};

/// Displays an error and all its causes in one line, separated by colons.
///
/// A cause that the text ends with already is not repeated.
///
/// ```
/// use megapipe::{CreateError, ErrorChain};
///
/// let source = std::io::Error::from_raw_os_error(12);
/// let error = CreateError::Kernel { what: "a ring", source };
/// assert_eq!(error.to_string(), "cannot get a ring");
/// let whole = "cannot get a ring: Cannot allocate memory (os error 12)";
/// assert_eq!(ErrorChain(&error).to_string(), whole);
/// assert_eq!(format!("{error:?}"), whole);
/// ```
#[derive(Clone, Copy)]
pub struct ErrorChain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(source) = cause {
            let why = source.to_string();
            if !text.ends_with(&why) {
                write!(text, ": {why}")?;
            }
            cause = source.source();
        }
        f.write_str(&text)
    }
}

impl fmt::Debug for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Implements `{:?}` of errors as their text with all causes.
macro_rules! debug_with_causes {
    ($($error:ty),* $(,)?) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&$crate::ErrorChain(self), f)
            }
        }
    )*};
}

pub(crate) use debug_with_causes;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::address::Address;
    use crate::error::{CreateError, ListenError, Misuse, OpError};

    /// What Rust prints for a `main` that returns this error.
    fn printed(error: impl Into<Box<dyn Error>>) -> String {
        format!("Error: {:?}", error.into())
    }

    #[test]
    fn main_that_returns_an_error_prints_all_causes() {
        let refused = || io::Error::from_raw_os_error(libc::EADDRINUSE);
        let listen = ListenError::Kernel { what: "bind", source: refused() };
        assert_eq!(printed(listen), "Error: cannot bind: Address already in use (os error 98)");
        let pin = CreateError::Pin { core: 9, source: refused() };
        assert!(printed(pin).starts_with("Error: cannot pin this thread to core 9: Address al"));
        assert_eq!(printed(Misuse::InvalidCount), "Error: the count must be at least one");
        assert_eq!(printed(OpError::Reset), "Error: connection reset by peer");
        let address = "localhorst:80".parse::<Address>().unwrap_err();
        assert!(printed(address).starts_with("Error: expected IP:PORT"));
    }

    #[cfg(feature = "local")]
    #[test]
    fn errors_of_the_local_back_end_print_all_causes() {
        let shape = "10.0.0.2".parse::<crate::Prefixed>().unwrap_err();
        let expected = "Error: \"10.0.0.2\" is not ADDRESS/BITS, as 10.0.0.2/24 or fd00::2/64";
        assert_eq!(printed(shape), expected);
        let network = crate::LocalNetwork::open("pigeon", Default::default()).unwrap_err();
        assert!(printed(network).starts_with("Error: \"pigeon\" is no link: pair, tap"));
    }

    #[test]
    fn causes_are_printed_once_and_to_the_last() {
        let source = io::Error::other(OpError::TimedOut);
        let error = ListenError::Kernel { what: "wait", source };
        assert_eq!(ErrorChain(&error).to_string(), "cannot wait: timed out");
    }
}
