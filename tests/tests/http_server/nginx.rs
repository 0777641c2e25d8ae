//! The same requests to nginx: where it answers otherwise, the reason is written here.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use megapipe_tests::ReservedPort;

use super::fixture::{
    Client, Folder, MODIFIED, PATIENCE, Response, Server, drivers, get, get_with, is_installed,
    site,
};

/// One nginx, without daemon and workers, ended with the test.
struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Nginx {
    fn start() -> Self {
        let folder = site("nginx");
        let reserved = ReservedPort::new();
        let address = reserved.address();
        let top = folder.0.display();
        let configuration = format!(
            "daemon off; master_process off; pid {top}/pid; error_log {top}/error;
            events {{ worker_connections 64; }}
            http {{
                include /etc/nginx/mime.types; default_type application/octet-stream;
                charset utf-8; charset_types text/html text/plain text/css;
                access_log off; absolute_redirect off; disable_symlinks on from={top}/site;
                client_body_temp_path {top}/body; proxy_temp_path {top}/proxy;
                fastcgi_temp_path {top}/fastcgi; uwsgi_temp_path {top}/uwsgi;
                scgi_temp_path {top}/scgi;
                server {{ listen {address}; root {top}/site; }}
            }}"
        );
        let file = folder.0.join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let child = Command::new("nginx")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["-e", &format!("{top}/error"), "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nginx does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, address, _folder: folder }
    }

    fn ask(&self, request: &[u8], head: bool) -> Response {
        let mut client = Client::new(TcpStream::connect(self.address).unwrap());
        client.send(request);
        if head { client.head_response() } else { client.response() }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is compared: the status and the fields that a client acts on.
fn essence(response: &Response) -> Vec<(&'static str, String)> {
    let text = |name| response.field(name).unwrap_or("-").to_owned();
    let mut essence = vec![("status", response.status.to_string())];
    if matches!(response.status, 200 | 206) {
        let names = ["content-type", "content-length", "last-modified", "accept-ranges"];
        essence.extend(names.map(|name| (name, text(name))));
        let boundary =
            response.field("content-type").is_some_and(|value| value.contains("boundary"));
        if boundary {
            // The boundary is free, and with it the length.
            essence.retain(|(name, _)| !matches!(*name, "content-type" | "content-length"));
            essence.push(("content-type", "multipart/byteranges".into()));
        }
    }
    let names = ["content-range", "location"];
    essence.extend(names.map(|name| (name, text(name))));
    essence.push(("closes", response.closes().to_string()));
    essence
}

/// A request, what differs (`field: ours, nginx's`), and why.
type Case = (String, &'static [&'static str], &'static str);

const CLOSES: &[&str] = &["closes: false, true"];
const IN_STEP: &str = "the request was read whole, so the connection is in step and stays";

fn cases() -> Vec<Case> {
    let same = |request: String| (request, &[][..], "");
    vec![
        same(get("/hello.txt")),
        same(get("/")),
        same(get("/dir/")),
        same(get("/dir")),
        same(get("/dir?a=b")),
        same(get("/1k.bin")),
        same(get("/300k.bin")),
        same(get("/plain/file.css")),
        same(get("/nothing")),
        same(get("/plain/")),
        same(get("/outside")),
        (get("/../secret.txt"), CLOSES, IN_STEP),
        (get("/%2e%2e/secret.txt"), CLOSES, IN_STEP),
        (get("/a%00"), CLOSES, IN_STEP),
        same(get("http://localhost/hello.txt")),
        same(get("/hello.txt").replacen("GET", "HEAD", 1)),
        same(get("/hello.txt").replacen("GET", "POST", 1)),
        same(get("/hello.txt").replacen("HTTP/1.1", "HTTP/1.0", 1)),
        same(get("/hello.txt").replacen("HTTP/1.1", "HTTP/2.0", 1)),
        same(get("/hello.txt").replacen("Host: localhost\r\n", "", 1)),
        same(get_with("/hello.txt", "Host: other\r\n")),
        same(get_with("/hello.txt", "Connection: close\r\n")),
        same(get_with("/1k.bin", "Range: bytes=0-9\r\n")),
        same(get_with("/1k.bin", "Range: bytes=-9\r\n")),
        same(get_with("/1k.bin", "Range: bytes=1000-\r\n")),
        same(get_with("/1k.bin", "Range: bytes=0-1,9-12\r\n")),
        same(get_with("/1k.bin", "Range: bytes=9999-\r\n")),
        same(get_with("/1k.bin", "If-Modified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n")),
        same(get_with("/1k.bin", &format!("If-Modified-Since: {MODIFIED}\r\n"))),
        same(get_with("/1k.bin", "If-Unmodified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n")),
        same(get_with("/1k.bin", "If-None-Match: *\r\n")),
        same(get_with("/1k.bin", "If-None-Match: \"x\"\r\n")),
        same(get_with("/1k.bin", "If-Match: \"x\"\r\n")),
        same(get_with("/1k.bin", "If-Range: \"x\"\r\nRange: bytes=0-9\r\n")),
        same(get_with("/hello.txt", "Content-Length: 3\r\n") + "abc"),
        same(get_with("/hello.txt", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n"),
        same(get_with("/hello.txt", "Content-Length: 3\r\nContent-Length: 4\r\n") + "abc"),
        same(get_with("/hello.txt", "Transfer-Encoding: gzip\r\n")),
        same(get_with("/hello.txt", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")),
        same("nonsense\r\n\r\n".into()),
    ]
}

/// Where we differ for more than the connection's end.
fn differing_cases() -> Vec<Case> {
    vec![
        (
            get("/").replacen("GET", "get", 1),
            &["status: 501, 400", "closes: false, true"],
            "methods are case-sensitive (RFC 9110 §9.1): this is one that is not known",
        ),
        (
            get_with("/1k.bin", "Range: bytes=5-4\r\n"),
            &[
                "status: 200, 416",
                "content-type: application/octet-stream, -",
                "content-length: 1024, -",
                "last-modified: Sun, 09 Sep 2001 01:46:40 GMT, -",
                "accept-ranges: bytes, -",
                "content-range: -, bytes */1024",
            ],
            "an invalid Range is ignored (RFC 9110 §14.2 allows both)",
        ),
        (
            get_with("/1k.bin", "Range: bytes=0-9\r\n").replacen("GET", "HEAD", 1),
            &[
                "status: 200, 206",
                "content-length: 1024, 10",
                "accept-ranges: bytes, -",
                "content-range: -, bytes 0-9/1024",
            ],
            "ranges are defined for GET only (RFC 9110 §14.2)",
        ),
        (
            get("/dir%2findex.html"),
            &["status: 404, 200"],
            "no file name has a slash; an encoded one is not decoded into a separator",
        ),
    ]
}

#[test]
fn with_nginx() {
    if !is_installed("with_nginx", "nginx") {
        return;
    }
    let nginx = Nginx::start();
    for driver in drivers("with_nginx").into_iter().take(1) {
        let server = Server::start(driver, |_| {});
        let mut unexpected = Vec::new();
        for (request, expected, reason) in cases().into_iter().chain(differing_cases()) {
            let head = request.starts_with("HEAD");
            let mut client = server.connect();
            client.send(request.as_bytes());
            let ours = if head { client.head_response() } else { client.response() };
            let theirs = nginx.ask(request.as_bytes(), head);
            let differences: Vec<String> = essence(&ours)
                .into_iter()
                .filter_map(|(name, our)| {
                    let their = essence(&theirs).into_iter().find(|(other, _)| *other == name);
                    let their = their.map_or_else(|| "-".to_owned(), |(_, value)| value);
                    (our != their).then(|| format!("{name}: {our}, {their}"))
                })
                .collect();
            assert_eq!(expected.is_empty(), reason.is_empty(), "a difference has a reason");
            if differences != expected {
                unexpected.push((request, differences));
            }
        }
        assert!(unexpected.is_empty(), "{unexpected:#?}");
    }
}
