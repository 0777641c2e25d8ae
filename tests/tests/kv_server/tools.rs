//! Clients that others wrote: libmemcached's tools and Redis's.

use std::fs;
use std::process::{Command, Output};

use crate::serving::{args, drivers, is_installed, serve};

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect("the program runs")
}

#[test]
fn memccapable_passes_all_ascii_and_binary_cases() {
    let test = "memccapable_passes_all_ascii_and_binary_cases";
    if !is_installed("memccapable") {
        println!("skipped: {test}: memccapable is not installed");
        return;
    }
    for driver in drivers(test) {
        let (running, address) = serve(&args(driver));
        let port = address.port().to_string();
        for (protocol, cases) in [("-a", 27), ("-b", 27)] {
            let output = run("memccapable", &["-h", "127.0.0.1", "-p", &port, protocol]);
            let text = String::from_utf8_lossy(&output.stdout);
            let passed = text.matches("[pass]").count();
            assert!(output.status.success() && text.contains("All tests passed"), "{text}");
            assert!(passed >= cases && !text.contains("[FAIL]"), "{passed} of {cases}:\n{text}");
        }
        running.stop().expect("a clean end");
    }
}

#[test]
fn files_go_in_and_come_out_by_libmemcacheds_tools() {
    let test = "files_go_in_and_come_out_by_libmemcacheds_tools";
    for program in ["memccp", "memccat", "memcping", "memcrm", "memcexist", "memcstat"] {
        if !is_installed(program) {
            println!("skipped: {test}: {program} is not installed");
            return;
        }
    }
    let folder = std::env::temp_dir().join(format!("megapipe-kv-tools-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("some-file");
    let content = "a line of text\n".repeat(5_000);
    fs::write(&file, &content).expect("a file");
    for driver in drivers(test) {
        for protocol in [None, Some("--binary")] {
            let (running, address) = serve(&args(driver));
            let servers = format!("--servers={address}");
            let tool = |program: &str, argument: &str| {
                let mut arguments = vec![servers.as_str()];
                arguments.extend(protocol);
                arguments.extend((!argument.is_empty()).then_some(argument));
                run(program, &arguments)
            };
            // This one speaks text only.
            assert!(protocol.is_some() || tool("memcping", "").status.success());
            let copied = tool("memccp", &file.to_string_lossy());
            assert!(copied.status.success(), "{copied:?}");
            let shown = tool("memccat", "some-file");
            assert_eq!(String::from_utf8_lossy(&shown.stdout).trim_end(), content.trim_end());
            assert!(tool("memcexist", "some-file").status.success());
            assert!(tool("memcrm", "some-file").status.success());
            assert!(!tool("memcexist", "some-file").status.success());
            let stats = tool("memcstat", "");
            let text = String::from_utf8_lossy(&stats.stdout);
            assert!(text.contains("delete_hits: 1") && text.contains("limit_maxbytes:"), "{text}");
            running.stop().expect("a clean end");
        }
    }
    fs::remove_dir_all(&folder).expect("the folder goes");
}

#[test]
fn redis_cli_gets_what_it_set() {
    let test = "redis_cli_gets_what_it_set";
    if !is_installed("redis-cli") {
        println!("skipped: {test}: redis-cli is not installed");
        return;
    }
    for driver in drivers(test) {
        let (running, address) = serve(&args(driver));
        let port = address.port().to_string();
        let cli = |command: &[&str]| {
            let output = run("redis-cli", &[&["-p", &port][..], command].concat());
            assert!(output.status.success(), "{command:?}: {output:?}");
            String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
        };
        let text = "words and more words ".repeat(2_000);
        assert_eq!(cli(&["set", "some key", text.trim_end(), "ex", "1000"]), "OK");
        assert_eq!(cli(&["get", "some key"]), text.trim_end());
        assert_eq!(cli(&["incrby", "n", "-7"]), "-7");
        assert_eq!(cli(&["mget", "n", "none"]), "-7");
        assert!(cli(&["ttl", "some key"]).parse::<u32>().is_ok_and(|left| left > 900));
        assert!(cli(&["info"]).contains("redis_mode:standalone"));
        assert_eq!(cli(&["del", "n", "some key"]), "2");
        running.stop().expect("a clean end");
    }
}

#[test]
fn redis_benchmark_is_served_without_an_error() {
    let test = "redis_benchmark_is_served_without_an_error";
    if !is_installed("redis-benchmark") {
        println!("skipped: {test}: redis-benchmark is not installed");
        return;
    }
    for driver in drivers(test) {
        let (running, address) = serve(&args(driver));
        let port = address.port().to_string();
        // Without an error, that is: it ends at the first.
        for pipelined in ["1", "16"] {
            let output =
                run(
                    "redis-benchmark",
                    &[
                        &[
                            "-p", &port, "-q", "-n", "5000", "-c", "20", "-r", "1000", "-P",
                            pipelined,
                        ][..],
                        &["-d", "3000", "-t", "ping,set,get,incr,mset"],
                    ]
                    .concat(),
                );
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
            for name in ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"] {
                assert!(text.contains(&format!("{name}: ")), "{name} in {text}");
            }
            assert!(!text.to_lowercase().contains("err"), "{text}");
        }
        running.stop().expect("a clean end");
    }
}

/// The default run goes on to lists, which the server does not have; the program ends at an error.
#[test]
fn redis_benchmark_by_default_ends_at_a_clear_error() {
    let test = "redis_benchmark_by_default_ends_at_a_clear_error";
    if !is_installed("redis-benchmark") {
        println!("skipped: {test}: redis-benchmark is not installed");
        return;
    }
    for driver in drivers(test) {
        let (running, address) = serve(&args(driver));
        let port = address.port().to_string();
        let output = run("redis-benchmark", &["-p", &port, "-q", "-n", "100", "-c", "5"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8_lossy(&output.stdout) + stderr;
        for name in ["PING_INLINE: ", "PING_MBULK: ", "SET: ", "GET: ", "INCR: "] {
            assert!(text.contains(name), "{name} in {text}");
        }
        let error = "ERR unknown command 'LPUSH': this server stores strings only, lists are not";
        assert!(!output.status.success() && text.contains(error), "{text}");
        running.stop().expect("a clean end");
    }
}
