//! The C programs of `crates/capi/tests`, on each driver, and under valgrind where it is there.
//!
//! A program runs all its cases and exits with 0, or with 77 where its driver does not work; see
//! `crates/capi/tests/check.h`.

#![forbid(unsafe_code)]

mod capi_prefix;

use std::process::Command;

use capi_prefix::{C11, compile, is_installed, prefix, run, sources};

/// The exit status that means "this driver does not work here".
const SKIPPED: i32 = 77;

#[derive(Clone, Copy)]
enum Under {
    Nothing,
    Valgrind,
}

/// Compiles `crates/capi/tests/PROGRAM.c` and runs it.
fn check(test: &str, program: &str, driver: &str, under: Under) {
    let Some(prefix) = prefix(test) else { return };
    let source = sources().join("tests").join(format!("{program}.c"));
    let file = compile(prefix, &source, &format!("{program}-{driver}-{}", under as u8), C11);
    let mut command = match under {
        Under::Nothing => Command::new(&file),
        Under::Valgrind if !is_installed("valgrind") => {
            println!("skipped: {test}: valgrind is not installed");
            return;
        }
        Under::Valgrind => {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["--quiet", "--error-exitcode=9", "--leak-check=full"]);
            valgrind.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
            let suppressions = sources().join("tests/valgrind.supp");
            valgrind.arg(format!("--suppressions={}", suppressions.display())).arg(&file);
            valgrind.env("MEGAPIPE_VALGRIND", "1");
            valgrind
        }
    };
    let (status, text) = run(command.arg(driver));
    if status.code() == Some(SKIPPED) {
        let why = text.lines().last().unwrap_or_default();
        println!("skipped: {test}: {why}");
        return;
    }
    assert!(status.success(), "{program} {driver}: {status}\n{text}");
}

macro_rules! programs {
    ($($name:ident: $program:literal $driver:literal $under:ident;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), $program, $driver, Under::$under);
        }
    )*};
}

programs! {
    streams_on_uring: "streams" "uring" Nothing;
    streams_on_epoll: "streams" "epoll" Nothing;
    streams_on_uring_under_valgrind: "streams" "uring" Valgrind;
    quiet_on_uring: "quiet" "uring" Nothing;
    quiet_on_epoll: "quiet" "epoll" Nothing;
    quiet_on_uring_under_valgrind: "quiet" "uring" Valgrind;
    messages_on_uring: "messages" "uring" Nothing;
    messages_on_epoll: "messages" "epoll" Nothing;
    messages_on_uring_under_valgrind: "messages" "uring" Valgrind;
    files_on_uring: "files" "uring" Nothing;
    files_on_epoll: "files" "epoll" Nothing;
    files_on_uring_under_valgrind: "files" "uring" Valgrind;
    loops_on_uring: "loops" "uring" Nothing;
    loops_on_epoll: "loops" "epoll" Nothing;
    loops_on_uring_under_valgrind: "loops" "uring" Valgrind;
    misuse_on_uring: "misuse" "uring" Nothing;
    misuse_on_epoll: "misuse" "epoll" Nothing;
    misuse_on_uring_under_valgrind: "misuse" "uring" Valgrind;
}
