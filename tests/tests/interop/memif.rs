//! Two of our own stacks, each in a process of its own, over a memif: the link that stands for a
//! NIC. There is no kernel at either end, so both captures are judged.

use std::fs;

use rustix::process::Signal;

use super::host::{Faults, Host, LINUXES, LOSSES, Loss, MAC, OURS, at};

/// The other stack's address on the wire.
const OTHER_MAC: &str = "02:00:00:00:77:01";
const COUNT: u64 = 60;

fn faults() -> impl Iterator<Item = Faults> {
    let all = Faults { loss: 2, duplication: 5, reordering: 5, corruption: 1, seed: 3 };
    LOSSES.into_iter().map(Faults::from).chain([all])
}

/// A client and a server: their links, on one socket.
fn links(host: &Host, number: usize) -> [String; 2] {
    let socket = host.folder().join(format!("memif-{number}"));
    let socket = socket.display();
    [format!("memif:{socket},mac={OTHER_MAC}"), format!("memif:{socket},role=server,mac={MAC}")]
}

pub(crate) fn our_stacks_transfer_among_themselves(host: &Host) {
    for (number, faults) in faults().enumerate() {
        let [client_link, server_link] = links(host, number);
        let count = COUNT.to_string();
        let to = OURS.map(|address| at(address, 80).to_string());
        let listen = ["--listen", &to[0], "--listen", &to[1], "--count", &count];
        let place = (&*server_link, MAC, OURS);
        let mut server = host.start_at(place, faults, &[&["accept"], &listen[..]].concat());
        let place = (&*client_link, OTHER_MAC, LINUXES);
        let ask = ["connect", "--to", &to[0], "--to", &to[1], "--count", &count];
        // Each side's faults befall what it receives, too: the same seed would choose the same.
        let mut client = host.start_at(place, Faults { seed: faults.seed + 9, ..faults }, &ask);
        assert_eq!(client.line("ended "), format!("{COUNT} good 0 wrong"), "{faults:?}");
        assert_eq!(server.line("ended "), format!("{COUNT} good 0 wrong"), "{faults:?}");
        for verdict in [client.finish(), server.end_with_link()] {
            verdict.expect_segments_above(COUNT as usize);
        }
    }
}

pub(crate) fn our_load_gets_files_from_our_server(host: &Host) {
    host.random_file("site/30k.bin", 30_000);
    let root = host.folder().join("site");
    let root = root.to_str().expect("a path of ours");
    for (number, loss) in LOSSES.into_iter().enumerate() {
        let [client_link, server_link] = links(host, 10 + number);
        let json = host.folder().join("load.json");
        let json = json.to_str().expect("a path of ours");
        let address = at(OURS[number % 2], 80).to_string();
        let place = (&*server_link, MAC, OURS);
        let server = host.start_at(place, loss, &["http", "--root", root, "--listen", &address]);
        let total = if loss == Loss(5) { "60" } else { "300" };
        let ask = ["load", &address, "--path", "/30k.bin", "--total", total, "-c", "16", "-n", "5"];
        let more = ["--timeout", "20", "-q", "--json", json];
        let place = (&*client_link, OTHER_MAC, LINUXES);
        let client = host.start_at(place, loss, &[&ask[..], &more].concat());
        client.finish();
        let text = fs::read_to_string(json).expect("a result");
        let result: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(result["completed"].as_u64() >= total.parse().ok(), "{text}");
        assert_eq!(result["failed"].as_u64(), Some(0), "{text}");
        server.running.signal(Signal::INT);
        server.end_with_link().expect_segments_above(300);
    }
}
