//! Web clients of others against `serve http` on our stack.

use std::fs;

use super::host::{Host, LOSSES, Loss, OURS, Program, at};

/// Bytes of the large file: less where losses make it slow.
fn large_len(loss: Loss) -> usize {
    match loss.0 {
        0 => 4_000_000,
        1 => 1_500_000,
        _ => 400_000,
    }
}

fn serve(host: &Host, loss: Loss) -> Program<'_> {
    host.random_file("site/large.bin", large_len(loss));
    host.random_file("site/1k.bin", 1_024);
    fs::write(host.folder().join("site/hello.txt"), "hello, world\n").expect("a file");
    let root = host.folder().join("site");
    host.serve(loss, &["http", "--root", root.to_str().expect("a path of ours")])
}

pub(crate) fn curl_gets_files_ranges_and_several_on_one_connection(host: &Host) {
    for loss in LOSSES {
        let server = serve(host, loss);
        for address in OURS {
            curl(host, &format!("http://{}", at(address, 80)));
        }
        server.stop().expect_no_reset(loss);
    }
}

fn curl(host: &Host, url: &str) {
    let curl = |arguments: &[&str]| host.must_run("curl", &[&["-gsS"], arguments].concat());
    let (hello, large) = (format!("{url}/hello.txt"), format!("{url}/large.bin"));
    let site = host.folder().join("site");
    assert_eq!(curl(&[&hello]), "hello, world\n");

    let into = host.folder().join("large.bin");
    let path = into.to_str().expect("a path of ours");
    curl(&["-o", path, &large]);
    assert_eq!(host.sha256(&into), host.sha256(&site.join("large.bin")));

    let code = curl(&["-r", "100001-300000", "-o", path, "-w", "%{http_code}", &large]);
    let whole = fs::read(site.join("large.bin")).expect("a file");
    assert_eq!(code, "206");
    assert!(fs::read(&into).expect("a file") == whole[100_001..=300_000], "another range");

    let count = curl(&[&hello, &hello, &hello, "-w", "%{num_connects}\\n"]);
    let kept = ["hello, world", "1", "hello, world", "0", "hello, world", "0"];
    assert_eq!(count.lines().collect::<Vec<_>>(), kept, "connections made for each request");
}

pub(crate) fn wrk_and_ab_get_small_files(host: &Host) {
    for loss in LOSSES {
        let server = serve(host, loss);
        for address in OURS {
            let url = format!("http://{}/1k.bin", at(address, 80));
            let said = host.must_run("wrk", &["-t1", "-c8", "-d1", "--timeout", "20", &url]);
            assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
            let requests = said.lines().find_map(|line| line.trim().split_once(" requests in"));
            let requests: u32 = requests.expect("a count").0.parse().expect("a count");
            assert!(requests > 20, "{said}");

            let said = host.must_run("ab", &["-q", "-n", "100", "-c", "16", &url]);
            let figure = |name: &str| {
                let line = said.lines().find_map(|line| line.strip_prefix(name));
                line.map(str::trim).map(str::to_owned)
            };
            assert_eq!(figure("Complete requests:").as_deref(), Some("100"), "{said}");
            assert_eq!(figure("Failed requests:").as_deref(), Some("0"), "{said}");
        }
        server.stop();
    }
}
