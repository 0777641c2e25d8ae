//! A server of a small tree of files in this process, and a client that sends any bytes at all.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use megapipe::{Address, Channel, Config, DriverChoice};
use megapipe_apps::http::{self, HttpArgs};
use megapipe_apps::serve::{DriverName, Running, ServeArgs, ServerTally};

/// When the files were last changed: Sunday, 9 September 2001.
pub(crate) const MODIFIED_S: u64 = 1_000_000_000;
pub(crate) const MODIFIED: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
/// Too large for the server's memory as the fixture configures it.
pub(crate) const LARGE_LEN: usize = 1_000_003;
/// How long a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The drivers that work on this machine; each other one is reported as skipped.
pub(crate) fn drivers(test: &str) -> Vec<DriverName> {
    let choices =
        [(DriverName::Uring, DriverChoice::Uring), (DriverName::Epoll, DriverChoice::Epoll)];
    let works = |&(name, choice): &(DriverName, DriverChoice)| match Channel::create(
        Config::default().driver(choice),
    ) {
        Ok(_) => Some(name),
        Err(error) => {
            println!("skipped: {test} on {name}: {error}");
            None
        }
    };
    choices.iter().filter_map(works).collect()
}

/// Whether `program` can be run; says so if not.
pub(crate) fn is_installed(test: &str, program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    let found = std::env::split_paths(&path).chain(sbin).any(|dir| dir.join(program).is_file());
    if !found {
        println!("skipped: {test}: {program} is not installed");
    }
    found
}

/// Bytes that differ from their neighbours and repeat with no power of two.
pub(crate) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// A folder of its own, removed in the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only the values must differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = format!("mp-http-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file as if long ago.
    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_S);
        fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The tree that is served: `site` below the folder, and a secret beside it.
pub(crate) fn site(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("secret.txt", b"secret");
    folder.write("site/index.html", b"<!doctype html><title>home</title>home\n");
    folder.write("site/hello.txt", b"hello, world\n");
    folder.write("site/1k.bin", &content(1024));
    folder.write("site/30k.bin", &content(30_000));
    folder.write("site/300k.bin", &content(300_000));
    folder.write("site/large.bin", &content(LARGE_LEN));
    folder.write("site/empty.txt", b"");
    folder.write("site/with space.txt", b"space");
    folder.write("site/dir/index.html", b"in dir\n");
    folder.write("site/plain/file.css", b"a{}");
    let root = folder.0.join("site");
    symlink("hello.txt", root.join("inside")).unwrap();
    symlink("../secret.txt", root.join("outside")).unwrap();
    symlink("..", root.join("parent")).unwrap();
    symlink(folder.0.join("secret.txt"), root.join("absolute")).unwrap();
    folder
}

/// A running server.
pub(crate) struct Server {
    pub(crate) folder: Folder,
    pub(crate) address: SocketAddr,
    running: Option<Running>,
}

impl Server {
    pub(crate) fn start(driver: DriverName, change: impl FnOnce(&mut HttpArgs)) -> Self {
        let folder = site("site");
        let mut serve = ServeArgs::on(["127.0.0.1:0".parse::<Address>().unwrap()]);
        serve.driver = driver;
        serve.drain = 3;
        let mut args = HttpArgs::new(serve, folder.0.join("site"));
        args.cache_file_bytes = 400_000;
        change(&mut args);
        let running = http::start(&args).unwrap();
        let Some(Address::Inet(address)) = running.addresses().first().cloned() else {
            panic!("not an internet address: {:?}", running.addresses());
        };
        Self { folder, address, running: Some(running) }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.0.join("site")
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// One request on a connection of its own.
    pub(crate) fn ask(&self, request: &[u8]) -> Response {
        let mut client = self.connect();
        client.send(request);
        client.response()
    }

    pub(crate) fn tally(&self) -> ServerTally {
        let tallies = self.running.as_ref().unwrap().tallies();
        tallies.into_iter().fold(ServerTally::default(), ServerTally::plus)
    }

    /// Waits until the server's books satisfy `enough`.
    pub(crate) fn wait_until(&self, what: &str, enough: impl Fn(ServerTally) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !enough(self.tally()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.tally());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn stop(&mut self) -> ServerTally {
        self.running.take().unwrap().stop().unwrap()
    }
}

/// A response as the client saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} appears twice: {}", self.head);
        value
    }

    pub(crate) fn closes(&self) -> bool {
        self.field("connection") == Some("close")
    }
}

/// A client connection that sends given bytes.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pending: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, pending: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send(get(path).as_bytes());
        self.response()
    }

    pub(crate) fn finish(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// The next response to a GET.
    pub(crate) fn response(&mut self) -> Response {
        self.next_response(false)
    }

    /// The next response to a HEAD.
    pub(crate) fn head_response(&mut self) -> Response {
        self.next_response(true)
    }

    fn next_response(&mut self, head_only: bool) -> Response {
        let head_len = self.fill_until(|bytes| {
            bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
        });
        let head = String::from_utf8(self.pending.drain(..head_len).collect()).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status_line = lines.next().unwrap();
        assert!(status_line.starts_with("HTTP/1.1 "), "{head}");
        let status = status_line[9..12].parse().unwrap();
        let fields: Vec<(String, String)> = lines
            .map(|line| line.split_once(": ").unwrap_or_else(|| panic!("{line:?} in {head}")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let mut response = Response { status, head: head.clone(), fields, body: Vec::new() };
        assert!(response.field("date").is_some(), "{head}");
        if !head_only && !matches!(status, 204 | 304) {
            let len = response.field("content-length").expect("a length").parse().unwrap();
            self.fill_until(|bytes| (bytes.len() >= len).then_some(len));
            response.body = self.pending.drain(..len).collect();
        }
        response
    }

    fn fill_until(&mut self, enough: impl Fn(&[u8]) -> Option<usize>) -> usize {
        loop {
            if let Some(len) = enough(&self.pending) {
                return len;
            }
            let mut buffer = [0; 65_536];
            let len = read_some(&mut self.stream, &mut buffer).unwrap();
            assert!(len > 0, "closed after {:?}", String::from_utf8_lossy(&self.pending));
            self.pending.extend(&buffer[..len]);
        }
    }

    /// Everything that comes until the server closes; a reset is a failure.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.pending);
        self.stream.read_to_end(&mut rest).unwrap();
        rest
    }

    /// Waits for the end of the connection, clean or not; true if it was a reset.
    pub(crate) fn wait_for_end(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        loop {
            match read_some(&mut self.stream, &mut buffer) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return true,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A read that is not interrupted: what is left of a ring that this thread had can do that.
pub(crate) fn read_some(stream: &mut TcpStream, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

pub(crate) fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// A GET with more fields, each with its line end.
pub(crate) fn get_with(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

/// The repository's folder for what tests install or build.
pub(crate) fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target")
}
