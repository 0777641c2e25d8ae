//! The table of `megapipe ss`.

use megapipe_apps::terminal::width;
use megapipe_service::observe::ServiceSocket;

use super::words::{ends, state_name, tcp_words, timer_words, users};
use super::{SocketColumns, SocketKinds};
use crate::observed::{ObservedService, SocketOwner};

/// Columns before that of the processes.
const COLUMN_COUNT: usize = 6;
const HEADERS: [&str; COLUMN_COUNT] =
    ["Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port"];
const PROCESS: &str = "Process";

type Row = [String; COLUMN_COUNT];

/// The lines of a listing.
pub(super) fn text(
    observed: &ObservedService,
    sockets: &[(u16, &ServiceSocket)],
    kinds: SocketKinds,
    columns: SocketColumns,
) -> String {
    // With one protocol its name says nothing.
    let first = usize::from(kinds.tcp != kinds.udp);
    let rows: Vec<Row> = sockets.iter().map(|(_, socket)| row(socket)).collect();
    let mut widths = HEADERS.map(width);
    for row in &rows {
        for (most, cell) in widths.iter_mut().zip(row) {
            *most = width(cell).max(*most);
        }
    }
    let owners = observed.owners();
    let mut lines = Vec::new();
    if !columns.no_header {
        let process = if columns.processes { PROCESS } else { "" };
        lines.push(line(&HEADERS.map(ToOwned::to_owned)[first..], &widths[first..], process));
    }
    for ((shard, socket), row) in sockets.iter().zip(&rows) {
        let more = details(socket, *shard, columns, &owners(*shard, socket));
        lines.push(line(&row[first..], &widths[first..], &more));
        if let Some(info) = socket.info.as_deref().filter(|_| columns.info) {
            let words = tcp_words(info);
            match lines.last_mut().filter(|_| columns.oneline) {
                Some(last) => *last = format!("{last} {words}"),
                None => lines.push(format!("\t {words}")),
            }
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn row(socket: &ServiceSocket) -> Row {
    let netid = if socket.is_datagram { "udp" } else { "tcp" };
    let (local, peer) = ends(socket);
    let (receive, send) = (socket.receive_queue.to_string(), socket.send_queue.to_string());
    [netid.to_owned(), state_name(socket.state).to_owned(), receive, send, local, peer]
}

/// What comes after the addresses.
fn details(
    socket: &ServiceSocket,
    shard: u16,
    columns: SocketColumns,
    owners: &[SocketOwner],
) -> String {
    let mut words = Vec::new();
    if columns.processes {
        words.push(users(owners));
    }
    if columns.options {
        words.extend(socket.timer.as_ref().map(timer_words));
    }
    if columns.extended {
        words.extend(socket.uid.map(|uid| format!("uid:{uid}")));
        words.push(format!("shard:{shard}"));
        words.push(format!("sk:{:x}.{:x}", socket.index, socket.generation));
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

/// One line of cells, each padded to its column.
fn line(cells: &[String], widths: &[usize], more: &str) -> String {
    let mut line = String::new();
    for (cell, most) in cells.iter().zip(widths) {
        line.push_str(cell);
        line.extend(std::iter::repeat_n(' ', most.saturating_sub(width(cell)) + 1));
    }
    line + more
}

#[cfg(test)]
mod tests {
    use megapipe::{ConnInfo, TcpState};
    use megapipe_service::observe::{
        ServiceAcceptor, ServiceListener, ServiceSession, SocketState,
    };

    use super::*;

    /// A listener of two programs, a connection and an endpoint.
    fn observed() -> ObservedService {
        let session = |key, pid, program: &str| ServiceSession {
            key,
            pid,
            program: program.to_owned(),
            ..ServiceSession::default()
        };
        let acceptor = |session| ServiceAcceptor { session, ..ServiceAcceptor::default() };
        let listener = ServiceListener {
            index: 4,
            acceptors: vec![acceptor(3), acceptor(5)],
            ..ServiceListener::default()
        };
        let listening = ServiceSocket {
            state: SocketState::Listen,
            index: 4,
            local: "10.0.0.2:80".parse().ok(),
            send_queue: 1_024,
            ..ServiceSocket::default()
        };
        let connection = ServiceSocket {
            state: SocketState::Connection(TcpState::Established),
            local: "10.0.0.2:80".parse().ok(),
            peer: "10.0.0.1:54321".parse().ok(),
            send_queue: 17,
            session: 3,
            uid: Some(1_000),
            index: 255,
            generation: 1,
            info: Some(Box::new(ConnInfo::default())),
            ..ServiceSocket::default()
        };
        let endpoint = ServiceSocket {
            is_datagram: true,
            local: "[2001:db8::1]:53".parse().ok(),
            ..ServiceSocket::default()
        };
        ObservedService {
            sessions: vec![session(3, 1, "a"), session(5, 3, "b")],
            listeners: vec![listener],
            sockets: vec![(0, listening), (0, connection), (0, endpoint)],
            ..ObservedService::default()
        }
    }

    fn shown(kinds: SocketKinds, columns: SocketColumns) -> String {
        let observed = observed();
        let sockets: Vec<_> = observed.sockets.iter().map(|(shard, it)| (*shard, it)).collect();
        text(&observed, &sockets, kinds, columns)
    }

    #[test]
    fn table_is_aligned_as_that_of_ss() {
        let columns = SocketColumns { processes: true, ..SocketColumns::default() };
        assert_eq!(
            shown(SocketKinds::default(), columns),
            "\
Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process
tcp   LISTEN 0      1024   10.0.0.2:80        0.0.0.0:*         users:((\"a\",pid=1),(\"b\",pid=3))
tcp   ESTAB  0      17     10.0.0.2:80        10.0.0.1:54321    users:((\"a\",pid=1))
udp   UNCONN 0      0      [2001:db8::1]:53   [::]:*
"
        );
    }

    #[test]
    fn columns_follow_the_options() {
        let kinds = SocketKinds { tcp: true, ..SocketKinds::default() };
        let columns = SocketColumns { info: true, no_header: true, ..SocketColumns::default() };
        let lines = shown(kinds, columns);
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines[0], "LISTEN 0      1024   10.0.0.2:80        0.0.0.0:*");
        assert!(lines[2].starts_with("\t rto:0 "), "{lines:?}");
        let columns = SocketColumns { oneline: true, extended: true, ..columns };
        let lines = shown(kinds, columns);
        let connection = lines.lines().nth(1).expect("a connection");
        assert!(connection.contains("uid:1000 shard:0 sk:ff.1 rto:0"), "{connection}");
    }
}
