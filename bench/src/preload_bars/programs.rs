//! The unmodified programs: command lines, configurations and loads. Pure but for the files that a
//! configuration needs.

use crate::{
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
    /// The client, against nginx.
    Wrk,
}

/// The load of a program.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PreloadedLoad {
    /// redis-benchmark, preloaded where the program is: ours does not speak RESP.
    RedisBenchmark,
    Megapipe(LoadPlan),
    /// What is measured is the load.
    Wrk,
}

const FILES: ServedFileSet = ServedFileSet::OneKibibyte;

impl TestedProgram {
    /// Debian's programs that it takes.
    const fn executables(self) -> &'static [&'static str] {
        match self {
            Self::Redis => &["redis-server", "redis-benchmark", "redis-cli"],
            Self::NginxPersistent | Self::NginxShort => &["nginx"],
            Self::Memcached => &["memcached"],
            Self::Lighttpd => &["lighttpd"],
            Self::Wrk => &["nginx", "wrk"],
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
            Self::NginxPersistent => plan(Workload::Http(FILES), None),
            Self::NginxShort => plan(Workload::Http(FILES), Some(1)),
            Self::Memcached => plan(Workload::Kv, None),
            Self::Lighttpd => plan(Workload::Http(FILES), Some(8)),
            Self::Wrk => PreloadedLoad::Wrk,
        }
    }

    /// The program and its arguments, to serve at an address; `workers` of a program with
    /// processes. Writes its configuration and what it serves.
    pub(super) fn command_line(
        self,
        address: SocketAddr,
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
                fs::write(&path, lighttpd_config(address, scratch))?;
                owned(["-D", "-f", &path.to_string_lossy()])
            }
            Self::NginxPersistent | Self::NginxShort | Self::Wrk => {
                FILES.prepare(scratch)?;
                let path = scratch.join("preloaded-nginx.conf");
                fs::write(&path, nginx_config(address, workers, scratch, is_root))?;
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

/// As Debian's file, but without modules, and with connections that live as long as the load's.
fn lighttpd_config(address: SocketAddr, scratch: &Path) -> String {
    let root = FILES.directory(scratch);
    let (root, connections) = (root.display(), limits::COMPARED_CONNECTIONS_MAX);
    format!(
        "server.document-root = \"{root}\"\nserver.bind = \"{}\"\nserver.port = {}\n\
         server.max-connections = {connections}\nserver.max-fds = {}\n\
         server.max-keep-alive-requests = 1000000000\nserver.max-keep-alive-idle = 600\n",
        address.ip(),
        address.port(),
        connections * 2,
    )
}

/// A master and its workers, tuned for static files as its documentation does.
fn nginx_config(address: SocketAddr, workers: usize, scratch: &Path, is_root: bool) -> String {
    let folder = scratch.to_string_lossy();
    let user = if is_root { "user root;\n" } else { "" };
    let connections = limits::COMPARED_CONNECTIONS_MAX;
    let backlog = limits::LISTEN_BACKLOG;
    let root = FILES.directory(scratch);
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
        let config = nginx_config(address(), 2, Path::new("/x"), false);
        assert!(config.contains("master_process on;\nworker_processes 2;\n"));
        assert!(config.contains("listen 192.0.2.1:7100 backlog="), "{config}");
        assert!(!config.contains("user root"));
        assert!(nginx_config(address(), 1, Path::new("/x"), true).contains("user root;\n"));
    }

    #[test]
    fn lighttpd_serves_the_files_at_its_address() {
        let config = lighttpd_config(address(), Path::new("/x"));
        assert!(config.contains("server.bind = \"192.0.2.1\"\nserver.port = 7100\n"), "{config}");
        assert!(config.starts_with("server.document-root = \"/x/http-1k\"\n"), "{config}");
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
        ];
        for (program, transactions) in programs {
            let PreloadedLoad::Megapipe(plan) = program.load() else { panic!("{program:?}") };
            assert_eq!((plan.connections, plan.transactions_per_connection), (64, transactions));
            assert_eq!(plan.message_bytes(), 1024);
        }
        assert_eq!(TestedProgram::Redis.load(), PreloadedLoad::RedisBenchmark);
    }
}
