//! The programs that people use: curl, wrk, ab.

use std::process::{Command, Output};

use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::serve::ServeArgs;

use super::fixture::{LARGE_LEN, MODIFIED, Server, content, drivers, is_installed, site};

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn curl(arguments: &[&str]) -> Vec<u8> {
    run("curl", &[&["--silent", "--show-error", "--max-time", "20"], arguments].concat()).stdout
}

#[test]
fn with_curl() {
    if !is_installed("with_curl", "curl") {
        return;
    }
    for driver in drivers("with_curl") {
        let server = Server::start(driver, |_| {});
        let (hello, large) = (server.url("/hello.txt"), server.url("/large.bin"));
        let code = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        let status = |more: &[&str]| String::from_utf8(curl(&[&code[..], more].concat())).unwrap();
        assert_eq!(curl(&[&hello]), b"hello, world\n");
        assert!(curl(&[&large]) == content(LARGE_LEN));
        assert_eq!(curl(&["--http1.0", &hello]), b"hello, world\n");
        assert_eq!(curl(&["--range", "0-4", &hello]), b"hello");
        assert!(curl(&["--range", "999990-", &large]) == content(LARGE_LEN)[999_990..]);
        let two = String::from_utf8(curl(&["--range", "0-1,5-6", &hello])).unwrap();
        assert!(
            two.contains("\r\n\r\nhe\r\n--megapipe-") && two.contains("\r\n\r\n, \r\n--megapipe-")
        );
        assert_eq!(status(&["--head", &hello]), "200");
        assert_eq!(status(&["--time-cond", MODIFIED, &hello]), "304");
        assert_eq!(status(&["--time-cond", "Sun, 09 Sep 2001 01:46:39 GMT", &hello]), "200");
        assert_eq!(status(&["--path-as-is", &server.url("/../secret.txt")]), "400");
        assert_eq!(status(&["--location", &server.url("/dir")]), "200");
        assert_eq!(status(&["--data", "content=1", &hello]), "405");
        let chunked =
            ["--request", "GET", "--header", "Transfer-Encoding: chunked", "--data", "abc"];
        assert_eq!(status(&[&chunked[..], &[hello.as_str()]].concat()), "200");
        let expecting = ["--request", "GET", "--header", "Expect: 100-continue", "--data", "abc"];
        assert_eq!(status(&[&expecting[..], &[hello.as_str()]].concat()), "200");

        // Three transfers, one connection.
        let reused = ["--write-out", "%{num_connects} ", "--output", "/dev/null"];
        let thrice: Vec<&str> = [&hello, &hello, &hello]
            .iter()
            .flat_map(|url| [reused[2], reused[3], url.as_str()])
            .collect();
        let connects = curl(&[&reused[..2], &thrice[..]].concat());
        assert_eq!(connects, b"1 0 0 ");

        // A transfer that was cut off goes on where it ended.
        let part = server.folder.0.join("part");
        std::fs::write(&part, &content(LARGE_LEN)[..400_000]).unwrap();
        curl(&["--continue-at", "-", "--output", part.to_str().unwrap(), &large]);
        assert!(std::fs::read(&part).unwrap() == content(LARGE_LEN));

        let tag_file = server.folder.0.join("tag");
        let tag_file = tag_file.to_str().unwrap();
        assert_eq!(status(&["--etag-save", tag_file, &hello]), "200");
        assert_eq!(status(&["--etag-compare", tag_file, &hello]), "304");
    }
}

#[test]
fn with_curl_over_a_unix_socket() {
    if !is_installed("with_curl_over_a_unix_socket", "curl") {
        return;
    }
    for driver in drivers("with_curl_over_a_unix_socket") {
        let folder = site("unix");
        let socket = folder.0.join("socket");
        let address = format!("unix:{}", socket.display()).parse().unwrap();
        let mut serve = ServeArgs::on([address]);
        serve.driver = driver;
        let running = http::start(&HttpArgs::new(serve, folder.0.join("site"))).unwrap();
        let socket = socket.to_str().unwrap();
        let url = "http://localhost/large.bin";
        assert!(curl(&["--unix-socket", socket, url]) == content(LARGE_LEN), "{driver}");
        assert_eq!(running.stop().unwrap().requests, 1);
    }
}

#[test]
fn with_wrk() {
    if !is_installed("with_wrk", "wrk") {
        return;
    }
    for driver in drivers("with_wrk") {
        let mut server = Server::start(driver, |_| {});
        for path in ["/1k.bin", "/300k.bin", "/large.bin"] {
            let output =
                run("wrk", &["-t1", "-c32", "-d1s", "--timeout", "20s", &server.url(path)]);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.contains("Requests/sec"), "{text}");
            for fault in ["Socket errors", "Non-2xx"] {
                assert!(!text.contains(fault), "{driver} {path}: {text}");
            }
        }
        let tally = server.stop();
        assert!(tally.requests > 100 && tally.rejected == 0, "{tally:?}");
    }
}

#[test]
fn with_ab() {
    if !is_installed("with_ab", "ab") {
        return;
    }
    for driver in drivers("with_ab") {
        let server = Server::start(driver, |_| {});
        for (keep_alive, path) in [(true, "/1k.bin"), (false, "/1k.bin"), (true, "/large.bin")] {
            let keep_alive = if keep_alive { &["-k"][..] } else { &[] };
            let url = server.url(path);
            let arguments =
                [&["-q", "-n", "500", "-c", "16"], keep_alive, &[url.as_str()]].concat();
            let text = String::from_utf8(run("ab", &arguments).stdout).unwrap();
            let count = |label: &str| {
                let line = text.lines().find(|line| line.starts_with(label));
                line.and_then(|line| line.split_whitespace().last()?.parse::<u32>().ok())
            };
            assert_eq!(count("Complete requests:"), Some(500), "{driver}: {text}");
            assert_eq!(count("Failed requests:"), Some(0), "{driver}: {text}");
            assert_eq!(count("Non-2xx responses:"), None, "{driver}: {text}");
            if !keep_alive.is_empty() {
                assert_eq!(count("Keep-Alive requests:"), Some(500), "{driver}: {text}");
            }
        }
    }
}
