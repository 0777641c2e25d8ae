//! Formats an error with all its causes in one line.
//!
//! In: an error. Out: its text, then those of its causes that it does not end with already: some
//! errors of ours say their cause themselves, those of the crates beneath leave it to the chain.

use std::error::Error;
use std::process::ExitCode;

use megapipe::ErrorChain;

/// The whole reason.
///
/// ```
/// use megapipe_apps::reason::reason;
///
/// let error = megapipe::CreateError::Kernel {
///     what: "a ring",
///     source: std::io::Error::from_raw_os_error(12),
/// };
/// assert_eq!(reason(&error), "cannot get a ring: Cannot allocate memory (os error 12)");
/// ```
#[must_use]
pub fn reason(error: &(dyn Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

/// How a program ends that failed: with 2 if its arguments are at fault, else with 1.
#[must_use]
pub fn exit_code(is_usage: bool) -> ExitCode {
    ExitCode::from(if is_usage { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use std::io;

    use megapipe::{CreateError, ListenError};

    use super::*;
    use crate::serve::ServeError;

    #[test]
    fn each_cause_is_printed_once() {
        let source = CreateError::Pin { core: 9, source: io::ErrorKind::InvalidInput.into() };
        let error = ServeError::Create { index: 1, source };
        assert_eq!(
            reason(&error),
            "channel 1: cannot pin this thread to core 9: invalid input parameter"
        );
        let source = ListenError::Kernel { what: "bind", source: io::ErrorKind::AddrInUse.into() };
        let address = "127.0.0.1:80".parse().unwrap();
        let text = reason(&ServeError::Listen { address, source });
        assert_eq!(text, "cannot listen on 127.0.0.1:80: cannot bind: address in use");
        let error = ServeError::resource("--root x", io::ErrorKind::NotFound);
        assert_eq!(reason(&error), "--root x: entity not found");
    }
}
