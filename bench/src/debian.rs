//! Programs as Debian packages them: their command lines and configurations. Pure but for the files
//! that a configuration needs.

use crate::{files::ServedFileSet, layout::BenchLayout, limits, process, stack_link::StackLink};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// A server of Debian's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DebianProgram {
    Nginx,
    Memcached,
    Lighttpd,
}

/// What is behind its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DebianPlace {
    /// The kernel's TCP.
    Kernel,
    /// Our own stack in its process, by `megapipe run`.
    Local(StackLink),
    /// The stack of a daemon, by `megapipe run`.
    Service(StackLink),
}

impl DebianProgram {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Memcached => "memcached",
            Self::Lighttpd => "lighttpd",
        }
    }

    /// Where it is installed; its name, if it is not.
    pub(crate) fn path(self) -> PathBuf {
        process::find_program(self.name()).unwrap_or_else(|| PathBuf::from(self.name()))
    }

    /// Why it cannot be measured here, if so.
    pub(crate) fn missing(self) -> Option<String> {
        let name = self.name();
        let install = || format!("{name} is not installed (apt-get install {name})");
        process::find_program(name).is_none().then(install)
    }

    /// Its arguments, to serve files, or a key-value store without; `None`: it does not do that.
    pub(crate) fn words(
        self,
        files: Option<ServedFileSet>,
        address: SocketAddr,
        layout: &BenchLayout,
        scratch: &Path,
    ) -> io::Result<Option<Vec<String>>> {
        let folder = scratch.to_string_lossy();
        Ok(match (self, files) {
            (Self::Nginx, Some(files)) => {
                let config = nginx_config(files, address, layout, scratch)?;
                let config = config.to_string_lossy();
                Some(["-e", "stderr", "-p", &folder, "-c", &config].map(str::to_owned).to_vec())
            }
            (Self::Lighttpd, Some(files)) => {
                let path = scratch.join("lighttpd.conf");
                fs::write(&path, lighttpd_config(files, address, scratch))?;
                Some(["-D", "-f", &path.to_string_lossy()].map(str::to_owned).to_vec())
            }
            (Self::Memcached, None) => Some(memcached_args(address, layout)),
            _ => None,
        })
    }
}

/// As Debian's file, but without modules, and with connections that live as long as the load's.
pub(crate) fn lighttpd_config(files: ServedFileSet, address: SocketAddr, scratch: &Path) -> String {
    let root = files.directory(scratch);
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

/// memcached with as many worker threads as the server has cores, and a table large enough from
/// the start, as in the paper [MP 5.2].
fn memcached_args(address: SocketAddr, layout: &BenchLayout) -> Vec<String> {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let threads = layout.server.cpus.as_slice().len().to_string();
    let connections = limits::COMPARED_CONNECTIONS_MAX.to_string();
    let backlog = limits::LISTEN_BACKLOG.to_string();
    let mut args = vec!["-l", &ip, "-p", &port, "-U", "0", "-t", &threads, "-m", "1024"];
    args.extend(["-c", &connections, "-b", &backlog, "-o", "hashpower=20"]);
    if rustix::process::geteuid().is_root() {
        args.extend(["-u", "root"]);
    }
    args.into_iter().map(str::to_owned).collect()
}

/// nginx as its own documentation tunes it for static files: descriptors and metadata cached, no
/// log, connections kept for ever; one worker per server core, pinned by its place.
///
/// Small files are read and sent in one piece with their header: sendfile would send two segments
/// with two calls, or three with `tcp_nopush`, and takes 1.2 to 1.4 times the CPU time for 1 KiB.
fn nginx_config(
    files: ServedFileSet,
    address: SocketAddr,
    layout: &BenchLayout,
    scratch: &Path,
) -> io::Result<PathBuf> {
    let directory = scratch.to_string_lossy();
    let root = files.directory(scratch);
    let workers = layout.server.cpus.as_slice().len();
    // One process is enough for one worker; several need the master.
    let master = if workers == 1 { "off" } else { "on" };
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let connections = limits::COMPARED_CONNECTIONS_MAX;
    let sending = match files {
        ServedFileSet::OneKibibyte | ServedFileSet::Sized(_) => "sendfile off;",
        ServedFileSet::SpecWeb | ServedFileSet::Yahoo | ServedFileSet::YahooHalf => {
            "sendfile on; tcp_nopush on;"
        }
    };
    let config = format!(
        "daemon off;\nmaster_process {master};\nworker_processes {workers};\n{user}\n\
         error_log stderr crit;\npid {directory}/nginx.pid;\nworker_rlimit_nofile {};\n\
         events {{ worker_connections {connections}; multi_accept on; use epoll; }}\n\
         http {{\n  access_log off;\n  {sending}\n  tcp_nodelay on;\n  server_tokens off;\n\
         \x20 keepalive_requests 1000000000;\n  keepalive_timeout 600s;\n\
         \x20 open_file_cache max=20000 inactive=600s;\n  open_file_cache_valid 600s;\n\
         \x20 default_type application/octet-stream;\n\
         \x20 client_body_temp_path {directory}/body;\n  proxy_temp_path {directory}/proxy;\n\
         \x20 fastcgi_temp_path {directory}/fastcgi;\n  uwsgi_temp_path {directory}/uwsgi;\n\
         \x20 scgi_temp_path {directory}/scgi;\n\
         \x20 server {{ listen {address} backlog={}{}; root {}; }}\n}}\n",
        connections * 2,
        limits::LISTEN_BACKLOG,
        if workers > 1 { " reuseport" } else { "" },
        root.display(),
    );
    let path = scratch.join("nginx.conf");
    fs::write(&path, config)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lighttpd_serves_the_files_at_its_address() {
        let address = "192.0.2.1:7100".parse().unwrap();
        let config = lighttpd_config(ServedFileSet::OneKibibyte, address, Path::new("/x"));
        assert!(config.contains("server.bind = \"192.0.2.1\"\nserver.port = 7100\n"), "{config}");
        assert!(config.starts_with("server.document-root = \"/x/http-1k\"\n"), "{config}");
    }
}
