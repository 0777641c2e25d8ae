//! Paths of sockets under the preload library: a stack that cannot start, `--fall-back`, and
//! `--require stack`.

use std::path::Path;
use std::process::Command;

use super::{C11, compile, library, prefix, preloaded, run, said};

/// Prints the result of calls on sockets of a stack at 10.9.8.1.
const CALLS: &str = r#"
import errno, select, socket
def show(name, call):
    try: print(name, call() and "works")
    except OSError as error: print(name, errno.errorcode[error.errno])
def served(listener, at):
    client = socket.create_connection(at, 10)
    accepted = listener.accept()[0]
    client.sendall(b"text")
    return accepted.recv(4) == b"text"
any = socket.create_server(("", 0))
show("accept", lambda: served(any, ("127.0.0.1", any.getsockname()[1])))
watched, queue = socket.create_server(("", 0)), select.epoll()
queue.register(watched, select.EPOLLIN)
client = socket.create_connection(("127.0.0.1", watched.getsockname()[1]), 10)
show("epoll", lambda: queue.poll(10))
def dial():
    sock = socket.socket()
    sock.setblocking(False)
    return sock.connect_ex(("10.9.8.2", 1)) != errno.ENETDOWN or sock.connect(("10.9.8.2", 1))
show("connect", dial)
def datagram():
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("10.9.8.1", 0))
        return sock.sendto(b"x", ("10.9.8.2", 9))
show("sendto", datagram)
"#;

/// A program whose link cannot be opened.
fn without_link(library: &Path) -> Command {
    let mut command = preloaded("python3", library, "local");
    command.env("MEGAPIPE_LINK", "memif:/nonexistent/socket,role=server");
    command.env("MEGAPIPE_ADDRESS", "10.9.8.1/24");
    command
}

fn lines<'a>(text: &'a str, part: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.contains(part)).collect()
}

#[test]
fn calls_without_a_stack_fail_with_one_line() {
    let test = "calls_without_a_stack_fail_with_one_line";
    let Some(library) = library(test, &["python3"]) else { return };
    let text = said(without_link(&library).args(["-c", CALLS]));
    for call in ["accept", "connect"] {
        assert!(text.contains(&format!("{call} ENETDOWN\n")), "{text}");
    }
    // The first call has told; what the kernel has of a listener goes on.
    assert!(text.contains("epoll works\n"), "{text}");
    let line = lines(&text, "megapipe: ");
    assert!(line.len() == 1 && line[0].contains("memif:/nonexistent/socket"), "{text}");
    assert!(line[0].contains("ENETDOWN"), "{text}");
}

#[test]
fn fall_back_serves_from_the_kernel_and_reports_it() {
    let test = "fall_back_serves_from_the_kernel_and_reports_it";
    let Some(library) = library(test, &["python3"]) else { return };
    let mut command = without_link(&library);
    command.env("MEGAPIPE_FALL_BACK", "1").env("MEGAPIPE_REPORT", "stderr");
    let text = said(command.args(["-c", CALLS]));
    for call in ["accept", "epoll", "connect"] {
        assert!(text.contains(&format!("{call} works\n")), "{text}");
    }
    let line = lines(&text, "memif:/nonexistent/socket");
    assert!(line.len() == 1 && line[0].contains("go on in the kernel (--fall-back)"), "{text}");
    assert!(!lines(&text, ": kernel (--fall-back)").is_empty(), "{text}");
    assert!(text.contains("(--fall-back: the stack cannot start)"), "{text}");
    assert!(text.contains("sockets: 0 on the stack"), "{text}");
}

#[test]
fn required_stack_refuses_sockets_of_the_kernel() {
    let test = "required_stack_refuses_sockets_of_the_kernel";
    let Some(library) = library(test, &["python3"]) else { return };
    let script = "import errno, socket, sys\n\
                  for kind, name, to in ((1, 'bind', '127.0.0.1'), (1, 'connect', '127.0.0.1'),\n\
                  \x20       (1, 'connect', '10.7.7.7'), (1, 'bind', '0.0.0.0'),\n\
                  \x20       (2, 'bind', '127.0.0.1'), (1, 'bind', '127.0.0.2')):\n\
                  \x20   try: getattr(socket.socket(type=kind), name)((to, 0)); print('done')\n\
                  \x20   except OSError as error: print(errno.errorcode[error.errno])\n";
    let mut command = without_link(&library);
    command.env("MEGAPIPE_REQUIRE", "stack");
    command.env("MEGAPIPE_RULES", "kernel listen 127.0.0.2:*");
    let (status, text) = run(command.args(["-c", script]));
    assert!(status.success(), "{text}");
    let line = lines(&text, "--require stack");
    assert!(line.len() == 1 && line[0].contains("listen 127.0.0.1:0 would go to"), "{text}");
    let results: Vec<&str> = text.lines().filter(|line| !line.starts_with("megapipe: ")).collect();
    let refused = "ENETUNREACH";
    assert_eq!(results, [refused, refused, refused, "done", "done", "done"], "{text}");
}

/// Prints the interfaces of getifaddrs(3) with their networks.
const INTERFACES: &str = r#"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
static const void *bytes(const struct sockaddr *a) {
    if (a->sa_family == AF_INET) return &((const struct sockaddr_in *)a)->sin_addr;
    return &((const struct sockaddr_in6 *)a)->sin6_addr;
}
int main(void) {
    for (int round = 0; round < 100; round++) {
        struct ifaddrs *list, *at;
        if (getifaddrs(&list)) return 1;
        for (at = list; at; at = at->ifa_next) {
            char address[64], mask[64];
            if (round || !at->ifa_addr || !at->ifa_netmask) continue;
            if (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6) continue;
            inet_ntop(at->ifa_addr->sa_family, bytes(at->ifa_addr), address, 64);
            inet_ntop(at->ifa_addr->sa_family, bytes(at->ifa_netmask), mask, 64);
            printf("%s %s %s\n", at->ifa_name, address, mask);
        }
        freeifaddrs(list);
    }
    return 0;
}
"#;

#[test]
fn addresses_of_the_stack_are_shown_if_wanted() {
    let test = "addresses_of_the_stack_are_shown_if_wanted";
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = std::env::temp_dir().join(format!("mp-interfaces-{}.c", std::process::id()));
    std::fs::write(&source, INTERFACES).expect("a file");
    let program = compile(prefix, &source, "preload-interfaces", C11);
    std::fs::remove_file(&source).expect("it is there");
    let plain = said(&mut Command::new(&program));
    let shown = |value: &str| {
        let mut command = preloaded(&program, &library, "local");
        command.env("MEGAPIPE_LINK", "memif:/nonexistent/socket,role=server");
        command.env("MEGAPIPE_ADDRESS", "10.9.8.1/24,fd00::1/64");
        said(command.env("MEGAPIPE_SHOW_ADDRESSES", value))
    };
    assert_eq!(shown("0"), plain);
    let ours = "megapipe0 10.9.8.1 255.255.255.0\nmegapipe0 fd00::1 ffff:ffff:ffff:ffff::\n";
    assert_eq!(shown("1"), plain + ours);
}
