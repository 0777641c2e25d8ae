//! What programs do rarely and what has broken other stacks, with the output that it has on Linux:
//! issue 16, "Bad input" and "Known traps".

use std::path::{Path, PathBuf};
use std::process::Command;

use super::service::ServiceHosts;
use super::{
    C11, Hosts, ReservedPort, compile, library, prefix, preloaded, said, site, sources, started,
    with_peer_of,
};

/// The program, and the library.
fn installed(test: &str) -> Option<(PathBuf, PathBuf)> {
    let (library, prefix) = (library(test, &[])?, prefix(test)?);
    let source = sources().join("../preload/tests/traps.c");
    Some((compile(prefix, &source, "preload-traps", C11), library))
}

/// `command`, whose program may open 16 files.
fn with_few_files(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 16; exec \"$@\"", "sh"]).arg(command.get_program());
    shell.args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell
}

/// All parts at an address, and the one with few files.
fn commands(start: impl Fn() -> Command, address: &str) -> [Command; 2] {
    let mut few = start();
    few.args([address, "few"]);
    let mut all = start();
    all.arg(address);
    [all, with_few_files(&few)]
}

fn expected(program: &Path) -> [String; 2] {
    let expected =
        commands(|| Command::new(program), "127.0.0.1").map(|mut command| said(&mut command));
    assert!(expected.iter().all(|text| text.ends_with("end\n")), "{expected:?}");
    expected
}

#[test]
fn rare_calls_of_programs_end_as_on_linux() {
    let Some((program, library)) = installed("rare_calls_of_programs_end_as_on_linux") else {
        return;
    };
    let expected = expected(&program);
    // A socket of this back end needs two files of the process, so that few are too few.
    let [mut on_kernel, _] = commands(|| preloaded(&program, &library, "kernel"), "127.0.0.1");
    assert_eq!(said(&mut on_kernel), expected[0]);
    let hosts = [(); 2].map(|()| Hosts::new(library.clone()));
    let on_local = [0, 1].map(|at| {
        let [all, few] = commands(|| hosts[at].server(&program), "10.9.8.1");
        with_peer_of(&hosts[at], if at == 0 { all } else { few }, &program)
    });
    assert_eq!(on_local, expected);
}

#[test]
fn rare_calls_of_programs_of_a_daemon_end_as_on_linux() {
    let test = "rare_calls_of_programs_of_a_daemon_end_as_on_linux";
    let Some((program, library)) = installed(test) else { return };
    let hosts = ServiceHosts::new(library, "traps");
    let on_service = commands(|| hosts.program(0, &program), "10.9.7.1");
    assert_eq!(on_service.map(|mut command| said(&mut command)), expected(&program));
}

/// Serves at 10.9.8.1 until it is killed.
const SERVER: &str = "\
import socket
server = socket.create_server(('10.9.8.1', 7))
while True: server.accept()[0].sendall(b'from the first')
";

/// A program that needs the stack of another one, and has sockets of the kernel.
const SECOND: &str = "\
import errno, socket
kernel = socket.create_server(('127.0.0.1', 0))
server = socket.create_server(('10.9.8.1', 8))
try: server.accept()
except OSError as error: print(errno.errorcode[error.errno])
client = socket.create_connection(kernel.getsockname(), 20)
kernel.accept()[0].sendall(b'from the kernel')
print(client.recv(100).decode())
";

#[test]
fn second_program_of_a_link_gets_one_line() {
    let test = "second_program_of_a_link_gets_one_line";
    let Some(library) = library(test, &["python3"]) else { return };
    let hosts = Hosts::new(library);
    let mut first = hosts.server("python3");
    first.args(["-c", SERVER]);
    let _first = started(first);
    let ask = "import socket; print(socket.create_connection(('10.9.8.1', 7), 5).recv(100))";
    hosts.wait();
    let asks = |client: &mut Command| {
        client.args(["-c", ask]);
    };
    hosts.until_success(asks, "python3");
    let text = said(hosts.server("python3").args(["-c", SECOND]));
    let (lines, results): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| line.starts_with("megapipe: "));
    assert_eq!(results, ["ENETDOWN", "from the kernel"], "{text}");
    let link = hosts.socket.display().to_string();
    assert!(lines.len() == 1 && lines[0].contains(&link) && lines[0].contains("in use"), "{text}");
    assert!(hosts.until_success(asks, "python3").contains("from the first"));
}

#[test]
fn configuration_is_checked_without_a_peer_of_the_link() {
    let test = "configuration_is_checked_without_a_peer_of_the_link";
    let Some(library) = library(test, &["nginx"]) else { return };
    let (hosts, (folder, _)) = (Hosts::new(library), site("check"));
    let (path, port) = (folder.display(), ReservedPort::new());
    let text = format!(
        "error_log stderr; pid {path}/pid; events {{ }}\n\
         http {{ access_log off; client_body_temp_path {path}/a; proxy_temp_path {path}/b;\n\
         fastcgi_temp_path {path}/c; uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;\n\
         server {{ listen 10.9.8.1:{}; }} }}\n",
        port.port()
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut nginx = hosts.server("nginx");
    nginx.args(["-t", "-c"]).arg(folder.join("conf")).arg("-p").arg(&folder);
    let text = said(&mut nginx);
    assert!(text.contains("test is successful"), "{text}");
    std::fs::remove_dir_all(folder).expect("it is there");
}

/// A debugger and an emulator of the processor look at a program on our stack.
#[test]
fn programs_run_under_gdb_and_valgrind() {
    let test = "programs_run_under_gdb_and_valgrind";
    let Some((program, library)) = installed(test) else { return };
    let mut plain = Command::new(&program);
    let expected = said(plain.args(["127.0.0.1", "bound"]));
    let program = program.to_str().unwrap();
    let cases = [
        ("gdb", &["-batch", "-ex", "run", "--args", program][..]),
        ("valgrind", &["-q", "--error-exitcode=9", program]),
    ];
    for (tool, arguments) in cases {
        if !super::is_installed(tool) {
            println!("skipped: {test}: {tool} is not installed");
            continue;
        }
        let hosts = Hosts::new(library.clone());
        let link = format!("memif:{},role=server,wait=0", hosts.socket.display());
        let mut command = hosts.server(tool);
        command.args(arguments).args(["10.9.8.1", "bound"]).env("MEGAPIPE_LINK", link);
        let text = said(&mut command);
        // Between lines of the tool's own.
        let lines: Vec<&str> = text.lines().collect();
        let mut rest = &lines[..];
        for line in expected.lines() {
            let at = rest.iter().position(|it| *it == line);
            let at = at.unwrap_or_else(|| panic!("{tool}: no {line:?} in\n{text}"));
            rest = &rest[at + 1..];
        }
    }
}

/// In the order that `megapipe run` makes: AddressSanitizer's runtime ends programs in which it is
/// not the first library.
#[test]
fn program_with_address_sanitizer_runs() {
    let test = "program_with_address_sanitizer_runs";
    let (Some(library), Some(prefix)) = (library(test, &[]), prefix(test)) else { return };
    let source = sources().join("../preload/tests/traps.c");
    let flags = [C11[0], "-fsanitize=address"];
    let program = compile(prefix, &source, "preload-traps-asan", &flags);
    let expected = said(Command::new(&program).args(["127.0.0.1", "bound"]));
    let hosts = ServiceHosts::new(library.clone(), "asan");
    let runtime = said(Command::new("gcc").arg("-print-file-name=libasan.so"));
    let mut command = hosts.program(0, &program);
    command.env("LD_PRELOAD", format!("{}:{}", runtime.trim(), library.display()));
    assert_eq!(said(command.args(["10.9.7.1", "bound"])), expected);
}
