//! The unmodified programs: command lines, configurations and loads. Pure but for the files that a
//! configuration needs.

use crate::{
    debian::lighttpd_config,
    files::ServedFileSet,
    limits,
    load::{LoadPlan, Workload},
    process,
};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// A program and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestedProgram {
    Redis,
    NginxPersistent,
    NginxShort,
    Memcached,
    /// 8 requests per connection.
    Lighttpd,
    /// One thread that passes requests on to a server at the load's end, kept connections.
    Haproxy,
    /// A client, against nginx.
    Client(WebClient),
}

/// A client whose CPU time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WebClient {
    /// Kept connections, a file of 1 KiB.
    Wrk,
    /// A connection for each request, a file of so many bytes.
    Ab(u64),
}

impl WebClient {
    pub(super) const fn files(self) -> ServedFileSet {
        match self {
            Self::Wrk => FILES,
            Self::Ab(bytes) => ServedFileSet::Sized(bytes),
        }
    }
}

/// The load of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PreloadedLoad {
    /// redis-benchmark, preloaded where the program is: ours does not speak RESP.
    RedisBenchmark,
    Megapipe(LoadPlan),
    /// What is measured is the load.
    Client(WebClient),
}

pub(super) const FILES: ServedFileSet = ServedFileSet::OneKibibyte;

impl TestedProgram {
    /// Debian's programs that it takes.
    const fn executables(self) -> &'static [&'static str] {
        match self {
            Self::Redis => &["redis-server", "redis-benchmark", "redis-cli"],
            Self::NginxPersistent | Self::NginxShort => &["nginx"],
            Self::Memcached => &["memcached"],
            Self::Lighttpd => &["lighttpd"],
            Self::Haproxy => &["haproxy"],
            Self::Client(WebClient::Wrk) => &["nginx", "wrk"],
            Self::Client(WebClient::Ab(_)) => &["nginx", "ab"],
        }
    }

    /// Why it cannot be measured here, if so.
    pub(super) fn missing(self) -> Option<String> {
        let mut names = self.executables().iter();
        let missing = names.find(|name| process::find_program(name).is_none());
        missing.map(|name| format!("{name} is not installed (cargo xtask setup)"))
    }

    pub(super) fn load(self) -> PreloadedLoad {
        let plan = |workload, transactions_per_connection| {
            let connections = limits::PRELOAD_CONNECTIONS;
            PreloadedLoad::Megapipe(LoadPlan {
                workload,
                connections,
                transactions_per_connection,
                with_connect: false,
            })
        };
        match self {
            Self::Redis => PreloadedLoad::RedisBenchmark,
            Self::NginxPersistent | Self::Haproxy => plan(Workload::Http(FILES), None),
            Self::NginxShort => plan(Workload::Http(FILES), Some(1)),
            Self::Memcached => plan(Workload::Kv, None),
            Self::Lighttpd => plan(Workload::Http(FILES), Some(8)),
            Self::Client(client) => PreloadedLoad::Client(client),
        }
    }

    /// Whether it connects to a server of its own.
    pub(super) const fn is_proxy(self) -> bool {
        matches!(self, Self::Haproxy)
    }

    /// The program and its arguments, to serve at an address; `workers` of a program with
    /// processes; `origin`: the server of a proxy. Writes its configuration and what it serves.
    pub(super) fn command_line(
        self,
        [address, origin]: [SocketAddr; 2],
        workers: usize,
        scratch: &Path,
    ) -> io::Result<(PathBuf, Vec<String>)> {
        let name = self.executables()[0];
        let program = process::find_program(name).unwrap_or_else(|| PathBuf::from(name));
        let is_root = rustix::process::geteuid().is_root();
        let words = match self {
            Self::Redis => redis_words(address, scratch),
            Self::Memcached => memcached_words(address, is_root),
            Self::Lighttpd => {
                FILES.prepare(scratch)?;
                let path = scratch.join("preloaded-lighttpd.conf");
                fs::write(&path, lighttpd_config(FILES, address, scratch))?;
                owned(["-D", "-f", &path.to_string_lossy()])
            }
            Self::Haproxy => {
                let path = scratch.join("preloaded-haproxy.cfg");
                fs::write(&path, haproxy_config(address, origin))?;
                owned(["-db", "-f", &path.to_string_lossy()])
            }
            Self::NginxPersistent | Self::NginxShort | Self::Client(_) => {
                let files = match self {
                    Self::Client(client) => client.files(),
                    _ => FILES,
                };
                files.prepare(scratch)?;
                let path = scratch.join("preloaded-nginx.conf");
                let root = files.directory(scratch);
                fs::write(&path, nginx_config(address, workers, (scratch, &root), is_root))?;
                let words = ["-e", "stderr", "-p", &scratch.to_string_lossy(), "-c"];
                let words = words.map(str::to_owned).into_iter();
                words.chain([path.to_string_lossy().into_owned()]).collect()
            }
        };
        Ok((program, words))
    }
}

fn owned<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// As Debian's file, but without snapshots, and for any client.
fn redis_words(address: SocketAddr, scratch: &Path) -> Vec<String> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let folder = scratch.to_string_lossy();
    let mut words = owned(["--bind", &ip, "--port", &port, "--protected-mode", "no"]);
    words.extend(owned(["--save", "", "--appendonly", "no", "--dir", &folder]));
    words
}

fn memcached_words(address: SocketAddr, is_root: bool) -> Vec<String> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let mut words = owned(["-l", &ip, "-p", &port, "-U", "0", "-t", "1", "-m", "1024"]);
    words.extend(owned(["-o", "hashpower=20"]));
    if is_root {
        words.extend(owned(["-u", "root"]));
    }
    words
}

/// Clients and servers keep their connections, and any client's request takes any server's.
fn haproxy_config(address: SocketAddr, origin: SocketAddr) -> String {
    // It takes two descriptors for each, and more of them than the limit end it.
    let connections = limits::PRELOAD_CONNECTIONS * 2;
    format!(
        "global\n  nbthread 1\n  maxconn {connections}\n\
         defaults\n  mode http\n  http-reuse always\n  timeout connect 10s\n\
         \x20 timeout client 600s\n  timeout server 600s\n\
         listen web\n  bind {address} backlog {}\n  server origin {origin}\n",
        limits::LISTEN_BACKLOG
    )
}

/// A master and its workers, tuned for static files as its documentation does.
fn nginx_config(
    address: SocketAddr,
    workers: usize,
    (scratch, root): (&Path, &Path),
    is_root: bool,
) -> String {
    let folder = scratch.to_string_lossy();
    let user = if is_root { "user root;\n" } else { "" };
    let connections = limits::COMPARED_CONNECTIONS_MAX;
    let backlog = limits::LISTEN_BACKLOG;
    let root = root.display();
    format!(
        "daemon off;\nmaster_process on;\nworker_processes {workers};\n{user}\
         error_log stderr crit;\npid {folder}/preloaded-nginx.pid;\n\
         worker_rlimit_nofile {};\n\
         events {{ worker_connections {connections}; multi_accept on; use epoll; }}\n\
         http {{\n  access_log off;\n  sendfile off;\n  tcp_nodelay on;\n  server_tokens off;\n\
         \x20 keepalive_requests 1000000000;\n  keepalive_timeout 600s;\n\
         \x20 open_file_cache max=20000 inactive=600s;\n  open_file_cache_valid 600s;\n\
         \x20 default_type application/octet-stream;\n\
         \x20 client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n\
         \x20 fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n\
         \x20 scgi_temp_path {folder}/scgi;\n\
         \x20 server {{ listen {address} backlog={backlog}; root {root}; }}\n}}\n",
        connections * 2,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> SocketAddr {
        "192.0.2.1:7100".parse().unwrap()
    }

    #[test]
    fn nginx_has_a_master_and_workers() {
        let config = nginx_config(address(), 2, (Path::new("/x"), Path::new("/y")), false);
        assert!(config.contains("master_process on;\nworker_processes 2;\n"));
        assert!(config.contains("listen 192.0.2.1:7100 backlog="), "{config}");
        assert!(config.contains("; root /y; }") && !config.contains("user root"));
        let config = nginx_config(address(), 1, (Path::new("/x"), Path::new("/y")), true);
        assert!(config.contains("user root;\n"));
    }

    #[test]
    fn proxy_listens_and_connects_where_it_should() {
        let config = haproxy_config(address(), "192.0.2.2:7200".parse().unwrap());
        assert!(config.contains("\n  bind 192.0.2.1:7100 backlog "), "{config}");
        assert!(config.ends_with("\n  server origin 192.0.2.2:7200\n"), "{config}");
        assert!(config.contains("\n  nbthread 1\n"));
    }

    #[test]
    fn programs_listen_where_they_should() {
        let words = redis_words(address(), Path::new("/x")).join(" ");
        assert!(words.starts_with("--bind 192.0.2.1 --port 7100 "), "{words}");
        let words = memcached_words(address(), true).join(" ");
        assert!(words.contains("-l 192.0.2.1 -p 7100") && words.ends_with("-u root"), "{words}");
        assert!(!memcached_words(address(), false).contains(&"root".to_owned()));
    }

    #[test]
    fn loads_have_64_connections_and_live_as_the_rows_say() {
        let programs = [
            (TestedProgram::NginxPersistent, None),
            (TestedProgram::NginxShort, Some(1)),
            (TestedProgram::Memcached, None),
            (TestedProgram::Lighttpd, Some(8)),
            (TestedProgram::Haproxy, None),
        ];
        for (program, transactions) in programs {
            let PreloadedLoad::Megapipe(plan) = program.load() else { panic!("{program:?}") };
            assert_eq!((plan.connections, plan.transactions_per_connection), (64, transactions));
            assert_eq!(plan.message_bytes(), 1024);
        }
        assert_eq!(TestedProgram::Redis.load(), PreloadedLoad::RedisBenchmark);
    }
}
