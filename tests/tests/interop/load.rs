//! Our HTTP load, on our stack, against nginx on Linux's.

use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::host::{Host, LINUXES, LOSSES, PATIENCE, Running, at};

fn nginx(host: &Host) -> Running {
    let top = host.folder().display().to_string();
    host.random_file("site/30k.bin", 30_000);
    let [v4, v6] = LINUXES.map(|address| at(address, 80));
    let configuration = format!(
        "daemon off; master_process off; user root; pid {top}/pid; error_log {top}/error;
        events {{ worker_connections 256; }}
        http {{
            access_log off; client_body_temp_path {top}/body; proxy_temp_path {top}/proxy;
            fastcgi_temp_path {top}/fastcgi; uwsgi_temp_path {top}/uwsgi;
            scgi_temp_path {top}/scgi;
            server {{ listen {v4}; listen {v6}; root {top}/site; }}
        }}"
    );
    let file = host.folder().join("nginx.conf");
    fs::write(&file, configuration).expect("a file");
    let file = file.to_str().expect("a path of ours");
    let nginx = host.spawn("nginx", &["-e", &format!("{top}/error"), "-c", file]);
    for address in [v4, v6] {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nginx does not listen");
            thread::sleep(Duration::from_millis(20));
        }
    }
    nginx
}

pub(crate) fn our_load_gets_files_from_nginx(host: &Host) {
    let _nginx = nginx(host);
    for loss in LOSSES {
        for (address, close) in LINUXES.into_iter().zip(["fin", "rst"]) {
            let json = host.folder().join("load.json");
            let server = at(address, 80).to_string();
            let json_path = json.to_str().expect("a path of ours");
            let load = host.start(
                loss,
                &[
                    "load",
                    &server,
                    "--path",
                    "/30k.bin",
                    "--total",
                    "300",
                    "-c",
                    "16",
                    "-n",
                    "10",
                    "--close",
                    close,
                    "--timeout",
                    "20",
                    "-q",
                    "--json",
                    json_path,
                ],
            );
            let verdict = load.finish();
            verdict.expect_segments_above(300);
            let text = fs::read_to_string(&json).expect("a result");
            let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert!(result["completed"].as_u64() >= Some(300), "{text}");
            assert_eq!(result["failed"].as_u64(), Some(0), "{text}");
        }
    }
}
