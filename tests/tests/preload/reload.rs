//! A reload of nginx on the back end `local`: the new worker waits for the stack of the old one,
//! and SYNs wait for the new worker.
//!
//! The server has a TAP device in a network namespace of its own; the clients are the kernel's.

use std::process::Command;

use megapipe_tests::ReservedPort;

use super::{library, run, site};

/// Starts the server `$2` (a command) with the device mp0, then the clients `$1` (a script).
const NAMESPACE: &str = r#"
ip link set lo up
$2 &
server=$!
tries=0
until ip link show mp0 > /dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || exit 1
    sleep 0.1
done
ip addr add 10.9.8.2/24 dev mp0 && ip link set mp0 up || exit 1
python3 -c "$1" $server "$3"
status=$?
kill -QUIT $server
wait $server
exit $status
"#;

/// Connects again and again while the server reloads twice. A connection that the old worker had
/// not accepted may be reset; none is refused.
const CLIENTS: &str = r#"
import os, signal, socket, sys, time
server, port = map(int, sys.argv[1:])
served, resets, deadline = 0, 0, time.monotonic() + 100
def request():
    with socket.create_connection(("10.9.8.1", port), 40) as client:
        client.sendall(b"GET /file HTTP/1.0\r\n\r\n")
        length = 0
        while part := client.recv(1 << 16): length += len(part)
        return length > 300000
while True:
    try:
        if request(): break
    except ConnectionRefusedError:
        # The server has not started.
        assert time.monotonic() < deadline
        time.sleep(0.05)
for _ in range(2):
    os.kill(server, signal.SIGHUP)
    begin = time.monotonic()
    while time.monotonic() < begin + 2 or served < 20:
        assert time.monotonic() < deadline, (served, resets)
        try:
            served += request()
        except ConnectionResetError:
            resets += 1
            assert resets < 5, served
print("served", served >= 20)
"#;

#[test]
fn reload_of_nginx_refuses_no_connection() {
    let test = "reload_of_nginx_refuses_no_connection";
    let Some(library) = library(test, &["nginx", "python3", "unshare", "ip"]) else { return };
    let has_rights = Command::new("unshare")
        .args(["-n", "ip", "tuntap", "add", "mp0", "mode", "tap"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_rights {
        println!("skipped: {test}: no right to make a network namespace with a TAP device");
        return;
    }
    let ((folder, _), reserved) = (site("reload"), ReservedPort::new());
    let (port, path) = (reserved.port(), folder.display());
    let text = format!(
        "user root; worker_processes 1; daemon off; error_log stderr; pid {path}/pid;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b;\n\
         fastcgi_temp_path {path}/c; uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;\n\
         sendfile on; server {{ listen {port}; root {path}; }} }}\n"
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut settings = format!("env LD_PRELOAD={0} MEGAPIPE_PRELOAD={0}", library.display());
    settings.push_str(" MEGAPIPE_BACKEND=local MEGAPIPE_LINK=tap:mp0 MEGAPIPE_ADDRESS=10.9.8.1/24");
    let server = format!("{settings} nginx -c {path}/conf -p {path}");
    let mut shell = Command::new("unshare");
    shell.args(["-n", "sh", "-c", NAMESPACE, "sh", CLIENTS, &server, &port.to_string()]);
    let (status, text) = run(&mut shell);
    std::fs::remove_dir_all(&folder).expect("the folder");
    assert!(status.success() && text.contains("served True"), "{status}\n{text}");
}
