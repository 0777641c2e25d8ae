//! Debian's servers and clients on the back end `service`, each process with a session of its own.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use megapipe_tests::ReservedPort;

use super::service::ServiceHosts;
use super::tested_programs::located;
use super::{PATIENCE, library, run, said, site, started, tested_programs, without_notes};

/// Runs a client at 10.9.7.2 until it succeeds: the server may not listen yet.
fn until_success(hosts: &ServiceHosts, program: &str, arguments: &[&str]) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (status, text) = run(hosts.program(1, program).args(arguments).env("LC_ALL", "C"));
        if status.success() {
            return without_notes(&text);
        }
        assert!(Instant::now() < deadline, "{program} {arguments:?}: {status}\n{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn redis_saves_in_a_child_on_the_service() {
    let test = "redis_saves_in_a_child_on_the_service";
    let programs = ["redis-server", "redis-cli", "redis-benchmark"];
    let Some(library) = library(test, &programs) else { return };
    let (hosts, (folder, _)) = (ServiceHosts::new(library, "redis"), site("redis"));
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = hosts.program(0, "redis-server");
    server.args(["--port", &port, "--save", "", "--protected-mode", "no", "--bind", "10.9.7.1"]);
    server.current_dir(&folder).stdout(Stdio::null());
    let _server = started(server);
    let to = ["-h", "10.9.7.1", "-p", &port];
    let ask = |words: &[&str]| until_success(&hosts, "redis-cli", &[&to[..], words].concat());
    // redis-cli ends with 0 where it cannot connect, and prints that.
    let until = |words: &[&str], expected: &str| {
        let deadline = Instant::now() + PATIENCE;
        let mut text = ask(words);
        while !text.contains(expected) {
            assert!(Instant::now() < deadline, "{words:?}: {text}");
            std::thread::sleep(Duration::from_millis(50));
            text = ask(words);
        }
    };
    until(&["set", "key", "value"], "OK");
    assert!(ask(&["bgsave"]).contains("started"));
    until(&["info", "persistence"], "rdb_bgsave_in_progress:0");
    assert!(ask(&["info", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    assert!(folder.join("dump.rdb").exists());
    assert_eq!(ask(&["get", "key"]).trim(), "value");
    let load = ["-t", "get,set", "-n", "2000", "-c", "20", "-q", "--csv"];
    let text = until_success(&hosts, "redis-benchmark", &[&to[..], &load].concat());
    assert!(text.contains("\"GET\"") && text.contains("\"SET\""), "{text}");
    tested_programs::record(
        test,
        &[
            ["redis-server", "service", "server", "BGSAVE"],
            ["redis-cli", "service", "client", "GET, SET, INFO"],
            ["redis-benchmark", "service", "client", "GET and SET, 20 connections"],
        ],
    );
}

#[test]
fn lighttpd_runs_cgi_on_the_service() {
    let test = "lighttpd_runs_cgi_on_the_service";
    let Some(library) = library(test, &["lighttpd", "curl"]) else { return };
    let (hosts, (folder, bytes)) = (ServiceHosts::new(library, "lighttpd"), site("cgi"));
    let (reserved, path) = (ReservedPort::new(), folder.display());
    let (port, copy) = (reserved.port(), folder.join("copy"));
    let script = "printf 'Content-Type: text/plain\\r\\n\\r\\n'; echo $QUERY_STRING; cat\n";
    std::fs::write(folder.join("echo.sh"), script).expect("a file");
    let text = format!(
        "server.document-root = \"{path}\"\nserver.bind = \"10.9.7.1\"\nserver.port = {port}\n\
         server.modules = (\"mod_cgi\")\nserver.errorlog = \"{path}/log\"\n\
         cgi.assign = (\".sh\" => \"/bin/sh\")\n"
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut server = hosts.program(0, "lighttpd");
    server.arg("-D").arg("-f").arg(folder.join("conf"));
    let _server = started(server);
    let (file, echo) = (format!("10.9.7.1:{port}/file"), format!("10.9.7.1:{port}/echo.sh?query"));
    let copied = copy.to_str().expect("a path of letters");
    until_success(&hosts, "curl", &["-sSf", "--max-time", "50", "-o", copied, &file]);
    assert!(std::fs::read(&copy).expect("the copy") == bytes, "the bytes differ");
    let post = ["-sSf", "--max-time", "50", "-d", "body", &echo];
    assert_eq!(until_success(&hosts, "curl", &post), "query\nbody");
    tested_programs::record(test, &[["lighttpd", "service", "server", "files and CGI"]]);
}

#[test]
fn haproxy_has_both_sides_on_the_service() {
    let test = "haproxy_has_both_sides_on_the_service";
    let Some(library) = library(test, &["haproxy", "curl", "python3"]) else { return };
    let (hosts, (folder, bytes)) = (ServiceHosts::new(library, "haproxy"), site("both"));
    let (front, back) = (ReservedPort::new(), ReservedPort::new());
    let mut site = hosts.program(1, "python3");
    site.args(["-m", "http.server", &back.port().to_string(), "--bind", "10.9.7.2"]);
    site.current_dir(&folder);
    let _site = started(site);
    let text = format!(
        "defaults\n mode http\n timeout connect 20s\n timeout client 20s\n timeout server 20s\n\
         frontend f\n bind 10.9.7.1:{}\n default_backend b\n\
         backend b\n server s 10.9.7.2:{}\n",
        front.port(),
        back.port()
    );
    std::fs::write(folder.join("conf"), text).expect("a file");
    let mut server = hosts.program(0, "haproxy");
    server.args(["-W", "-db", "-f"]).arg(folder.join("conf"));
    let mut server = started(server);
    let copy = folder.join("copy");
    let copied = copy.to_str().expect("a path of letters");
    let url = format!("10.9.7.1:{}/file", front.port());
    until_success(&hosts, "curl", &["-sSf", "--max-time", "50", "-o", copied, &url]);
    assert!(std::fs::read(&copy).expect("the copy") == bytes, "the bytes differ");
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it runs");
    server.0.wait().expect("its end");
    tested_programs::record(
        test,
        &[
            ["haproxy", "service", "server and client", "`-W`, both sides on the stack"],
            ["python3", "service", "server", "`http.server`"],
        ],
    );
}

#[test]
fn memcached_serves_from_several_threads_on_the_service() {
    let test = "memcached_serves_from_several_threads_on_the_service";
    let Some(library) = library(test, &["memcached", "memccapable"]) else { return };
    let hosts = ServiceHosts::new(library, "memcached");
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let mut server = hosts.program(0, "memcached");
    server.args(["-U", "0", "-t", "4", "-p", &port, "-l", "10.9.7.1"]);
    if rustix::process::getuid().is_root() {
        server.args(["-u", "root"]);
    }
    let _server = started(server);
    let text = until_success(&hosts, "memccapable", &["-h", "10.9.7.1", "-p", &port]);
    assert!(text.contains("[pass]") && !text.contains("[FAIL]"), "{text}");
    tested_programs::record(
        test,
        &[
            ["memcached", "service", "server", "`-t 4`"],
            ["memccapable", "service", "client", "all tests"],
        ],
    );
}

#[test]
fn load_generators_reach_workers_on_the_service() {
    let test = "load_generators_reach_workers_on_the_service";
    let Some(library) = library(test, &["nginx", "curl", "wrk", "ab"]) else { return };
    let (hosts, (folder, _)) = (ServiceHosts::new(library, "load"), site("load"));
    let reserved = ReservedPort::new();
    let port = reserved.port();
    let _server = started(hosts.nginx(&folder, port));
    hosts.until_served(port);
    let url = format!("http://10.9.7.1:{port}/file");
    let text = said(hosts.program(1, "wrk").args([
        "-t",
        "2",
        "-c",
        "8",
        "-d",
        "1s",
        "--timeout",
        "30s",
        &url,
    ]));
    assert!(text.contains(" requests in ") && !text.contains("Socket errors"), "{text}");
    assert!(!text.contains("\n  0 requests in "), "{text}");
    let text = said(hosts.program(1, "ab").args(["-n", "200", "-c", "4", &url]));
    assert!(text.contains("Complete requests:      200"), "{text}");
    assert!(text.contains("Failed requests:        0"), "{text}");
    tested_programs::record(
        test,
        &[
            ["wrk", "service", "client", "two threads"],
            ["ab", "service", "client", "4 connections at a time"],
        ],
    );
}

/// Runs a program as the user `postgres`, where this process is root: PostgreSQL refuses to be.
fn as_postgres(command: Command) -> Command {
    if !rustix::process::getuid().is_root() {
        return command;
    }
    let mut other = Command::new("setpriv");
    other.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    other.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        other.env(name, value.expect("no variable is removed"));
    }
    other
}

/// Where PostgreSQL's server has its files, and the library that it preloads.
struct ServerFiles {
    folder: PathBuf,
    library: PathBuf,
}

impl ServerFiles {
    /// A folder below that of the daemons, for the user that the server runs as, whatever umask
    /// this process has. `Err`: why that user cannot use it.
    fn new(hosts: &ServiceHosts, library: &Path) -> Result<Self, String> {
        let folder = hosts.folder().join("postgresql");
        std::fs::create_dir(&folder).expect("a folder");
        let set_mode = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
        };
        set_mode(hosts.folder(), 0o755);
        set_mode(&folder, 0o755);
        // No such user; or a user namespace that does not map it.
        let owns = !rustix::process::getuid().is_root()
            || run(Command::new("chown").arg("postgres").arg(&folder)).0.success();
        if !owns || !run(&mut as_postgres(Command::new("true"))).0.success() {
            return Err("this process cannot run programs as the user `postgres`".to_owned());
        }
        let mut can_write = Command::new("test");
        can_write.arg("-w").arg(&folder);
        if !run(&mut as_postgres(can_write)).0.success() {
            let folder = folder.display();
            return Err(format!("the user `postgres` cannot write to {folder}: see TMPDIR"));
        }
        let copy = folder.join("library.so");
        std::fs::copy(library, &copy).expect("a copy");
        set_mode(&copy, 0o755);
        // The user may not reach the library itself; the copy may be on a file system without exec.
        let library = [copy.as_path(), library].into_iter().find(|library| can_preload(library));
        match library {
            Some(library) => Ok(Self { library: library.to_owned(), folder }),
            None => Err(format!("the server cannot map the library from {}", folder.display())),
        }
    }
}

/// Whether the loader maps a library into a program of the user `postgres`.
fn can_preload(library: &Path) -> bool {
    let mut program = Command::new("true");
    program.env("LD_PRELOAD", library).env("LC_ALL", "C");
    let (status, text) = run(&mut as_postgres(program));
    status.success() && !text.contains("cannot be preloaded")
}

#[test]
fn postgresql_forks_for_each_connection_on_the_service() {
    let test = "postgresql_forks_for_each_connection_on_the_service";
    let Some(library) = library(test, &["psql", "pgbench", "setpriv"]) else { return };
    let (Some(initdb), Some(postgres)) = (located("initdb"), located("postgres")) else {
        return tested_programs::skip(test, "PostgreSQL's server is not installed");
    };
    let hosts = ServiceHosts::new(library.clone(), "postgresql");
    let ServerFiles { folder, library } = match ServerFiles::new(&hosts, &library) {
        Ok(files) => files,
        Err(why) => return tested_programs::skip(test, &why),
    };
    let reserved = ReservedPort::new();
    let port = reserved.port().to_string();
    let data = folder.join("data");
    let mut make = Command::new(initdb);
    // The environment may name a locale that the machine lacks.
    make.args(["--no-locale", "-E", "UTF8"]).env("LC_ALL", "C");
    make.args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"]).arg(&data);
    said(as_postgres(make).current_dir(&folder));
    std::fs::write(data.join("pg_hba.conf"), "host all all 10.9.7.0/24 trust\n").expect("a file");
    let mut server = hosts.program(0, postgres);
    server.env("LD_PRELOAD", &library).env("MEGAPIPE_PRELOAD", &library).env("LC_ALL", "C");
    server.arg("-D").arg(&data).args(["-h", "10.9.7.1", "-p", &port, "-k", "", "-c", "fsync=off"]);
    let mut server = as_postgres(server);
    server.current_dir(&folder);
    let mut server = started(server);
    let to = ["-h", "10.9.7.1", "-p", &port, "-U", "postgres"];
    let psql = [&to[..], &["-X", "-At", "-c", "select 6 * 7", "postgres"]].concat();
    assert_eq!(until_success(&hosts, "psql", &psql).trim(), "42");
    until_success(&hosts, "pgbench", &[&to[..], &["-i", "-q", "postgres"]].concat());
    // -C: a connection for each transaction.
    for options in [&["-c", "4", "-t", "25"][..], &["-C", "-c", "2", "-t", "10"]] {
        let text =
            until_success(&hosts, "pgbench", &[&to[..], &["-n"], options, &["postgres"]].concat());
        assert!(text.contains("number of failed transactions: 0"), "{text}");
    }
    // A fast shutdown.
    let pid = rustix::process::Pid::from_child(&server.0);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    assert!(server.0.wait().expect("its end").success());
    tested_programs::record(
        test,
        &[
            ["postgres", "service", "server", "a process for each connection"],
            ["psql", "service", "client", "a query"],
            [
                "pgbench",
                "service",
                "client",
                "4 connections, and a connection for each transaction",
            ],
        ],
    );
}
