//! A server on a memif is served by one client after another.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

/// The program, ended with the test whatever happens.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A load from an address of its own, until so many transactions were answered.
fn load(link: &str, last: u8, total: &str) -> Program {
    let address = format!("10.9.0.{last}/24");
    let link = format!("{link},role=client");
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe-load"));
    command.args(["rpc", "10.9.0.1:7000", "--backend", "local", "--link", &link]);
    command.args(["--address", &address, "--connections", "8", "--transactions", "4"]);
    command.args(["--total", total, "--verify", "1"]);
    command.args(["--json", "-", "--quiet"]);
    Program(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the load"))
}

fn ended(mut program: Program) -> String {
    let deadline = Instant::now() + PATIENCE;
    while program.0.try_wait().expect("a child of ours").is_none() {
        assert!(Instant::now() < deadline, "the load does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let read = |pipe: Option<&mut dyn std::io::Read>| {
        let mut text = String::new();
        pipe.expect("piped").read_to_string(&mut text).expect("text");
        text
    };
    let said = read(program.0.stdout.as_mut().map(|pipe| pipe as _));
    let complaint = read(program.0.stderr.as_mut().map(|pipe| pipe as _));
    assert!(program.0.wait().expect("it has ended").success(), "{said}{complaint}");
    said
}

#[test]
fn a_server_on_a_memif_goes_on_with_the_next_client() {
    let link = format!("memif:@mp-clients-{}", std::process::id());
    let serving = format!("{link},role=server");
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe-rpc"));
    command.args(["--listen", "10.9.0.1:7000", "--backend", "local", "--link", &serving]);
    command.args(["--address", "10.9.0.1/24"]).stdout(Stdio::null());
    let mut server = Program(command.spawn().expect("the server"));
    for last in 2..5 {
        let result = ended(load(&link, last, "1000"));
        let result: serde_json::Value = serde_json::from_str(&result).expect("JSON");
        assert!(result["transactions"].as_u64().expect("a count") > 0, "{result}");
        assert_eq!(server.0.try_wait().expect("a child of ours"), None, "the server goes on");
    }
    // A client that is killed in the middle of it all is no different.
    drop(load(&link, 9, "1000000000"));
    let killed = load(&link, 10, "1000000000");
    std::thread::sleep(Duration::from_millis(150));
    drop(killed);
    ended(load(&link, 11, "1000"));
}
