//! The text of `megapipe explain`: aligned, and within the columns of a terminal.

use std::collections::BTreeMap;

use megapipe_apps::terminal::{COLUMNS, width, wrap};

use super::link_servers::LinkServerExplained;
use super::managers::{ManagedAcceptorExplained, ManagedExplained, ManagerExplained};
use super::report::{
    AcceptorExplained, ConnectionExplained, DaemonExplained, Explanation, HandOverExplained,
    ListenerExplained, PickExplained, QuotaExplained, SessionExplained, ShardExplained,
    UseExplained, UserExplained,
};

/// Columns of the names in front.
const HEAD: usize = 12;

/// A name padded to its columns.
fn head(name: &str) -> String {
    format!("{name:<HEAD$}")
}

/// A time in the unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 1e-3 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

fn used(UseExplained { now, limit }: UseExplained) -> String {
    // A session that has the shard to itself has no limit of its own.
    if limit == u32::MAX { now.to_string() } else { format!("{now} of {limit}") }
}

/// A number with what it counts.
fn plural(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// Rows with aligned columns; numbers are to the right.
fn table(lines: &mut Vec<String>, headers: &[&str], rows: &[Vec<String>]) {
    let header: Vec<String> = headers.iter().map(|it| (*it).to_owned()).collect();
    let widths: Vec<usize> = (0..headers.len())
        .map(|column| {
            let cells = rows.iter().map(|row| width(&row[column]));
            cells.chain([width(headers[column])]).max().unwrap_or(0)
        })
        .collect();
    for row in std::iter::once(&header).chain(rows) {
        let mut line = " ".repeat(HEAD);
        for (column, (cell, most)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(most - width(cell));
            let is_last = column + 1 == headers.len();
            line += &if is_last { cell.clone() } else { format!("{gap}{cell}  ") };
        }
        lines.push(line.trim_end().to_owned());
    }
}

/// All lines of an explanation.
pub(super) fn text(explanation: &Explanation) -> String {
    let mut lines = Vec::new();
    daemon_lines(&mut lines, &explanation.service.display().to_string(), &explanation.daemon);
    explanation.shards.iter().for_each(|shard| shard_lines(&mut lines, shard));
    explanation.link_servers.iter().for_each(|it| link_server_lines(&mut lines, it));
    explanation.listeners.iter().for_each(|it| listener_lines(&mut lines, it));
    explanation.managers.iter().for_each(|it| manager_lines(&mut lines, it));
    session_lines(&mut lines, &explanation.sessions);
    explanation.users.iter().for_each(|user| user_lines(&mut lines, user));
    explanation.connections.iter().for_each(|it| connection_lines(&mut lines, it));
    if !explanation.states.is_empty() {
        let states = explanation.states.iter().map(|(state, count)| format!("{count} {state}"));
        lines.push(String::new());
        lines.extend(wrap(&head("sockets"), &states.collect::<Vec<_>>().join(", "), COLUMNS));
    }
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn daemon_lines(lines: &mut Vec<String>, path: &str, daemon: &DaemonExplained) {
    let DaemonExplained { version, pid, uid, running_s, .. } = daemon;
    let sessions = plural(daemon.sessions.into(), "session");
    let (running, since) = (time(*running_s), daemon.sessions_since_start);
    let text = format!(
        "at {path}: megapiped {version}, process {pid} of user {uid}, running for {running}; \
         {sessions}, {since} since its start; layout {}",
        daemon.layout
    );
    lines.extend(wrap(&head("service"), &text, COLUMNS));
    if daemon.stray_token_messages > 0 {
        let stray = plural(daemon.stray_token_messages, "stray message");
        lines.extend(wrap(&head(""), &format!("{stray} over tokens, ignored"), COLUMNS));
    }
    if !daemon.sees_all {
        let text = "what belongs to other users, or to none, is not shown";
        lines.extend(wrap(&head(""), text, COLUMNS));
    }
}

fn shard_lines(lines: &mut Vec<String>, shard: &ShardExplained) {
    lines.push(String::new());
    let mut add = |name: &str, text: &str| lines.extend(wrap(&head(name), text, COLUMNS));
    let link = &shard.link;
    let addresses: Vec<String> = link.addresses.iter().map(ToString::to_string).collect();
    let core = core_name(shard.core);
    let (driver, mtu, addresses) = (&link.driver, link.mtu, addresses.join(", "));
    let name = format!("shard {}", shard.shard);
    add(&name, &format!("{core}; {driver} of {mtu} bytes MTU, {addresses}"));
    let by = |has: bool| if has { "by the link" } else { "by the stack" };
    let shares = if link.shares_host_address { "the host's too" } else { "its own" };
    let (checksums, cuts) = (by(link.tx_checksum), by(link.tso));
    add("", &format!("checksums {checksums}; segments cut {cuts}; addresses {shares}"));
    link.notes.iter().for_each(|note| add("", note));
    add(
        "",
        &format!(
            "{} connections, {} handshakes, {} in TIME-WAIT; {} private buffers in use",
            used(shard.connections),
            shard.handshakes,
            shard.time_waits,
            used(shard.private_buffers)
        ),
    );
    add(
        "",
        &format!(
            "{}, {} polled; {} ended and still sending",
            plural(shard.sessions.into(), "session"),
            shard.active_sessions,
            shard.ended_sessions
        ),
    );
    let (its, own) = (shard.cpu_sessions_s, shard.cpu_unattributed_s);
    let percent = if its + own > 0.0 { own / (its + own) * 100.0 } else { 0.0 };
    let (its, own) = (time(its), time(own));
    add("", &format!("CPU time {its} of sessions, {own} of none ({percent:.0} %)"));
    let drops: Vec<String> =
        shard.drops.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    let drops = if drops.is_empty() { "none".to_owned() } else { drops.join(", ") };
    let (frames_in, frames_out) = (shard.frames_in, shard.frames_out);
    add("", &format!("frames {frames_in} in, {frames_out} out; dropped: {drops}"));
}

/// The core of a server's thread.
fn core_name(core: Option<u32>) -> String {
    core.map_or_else(|| "not pinned".to_owned(), |core| format!("on core {core}"))
}

fn link_server_lines(lines: &mut Vec<String>, server: &LinkServerExplained) {
    lines.push(String::new());
    let LinkServerExplained { queues, cpu_s, frames_in, frames_out, .. } = server;
    let (core, queues) = (core_name(server.core), plural((*queues).into(), "queue"));
    let name = head(&format!("link {}", server.link_server));
    lines.extend(wrap(&name, &format!("{core}; {queues} of the link"), COLUMNS));
    let text = format!("CPU time {}; frames {frames_in} in, {frames_out} out", time(*cpu_s));
    lines.extend(wrap(&head(""), &text, COLUMNS));
}

fn listener_lines(lines: &mut Vec<String>, listener: &ListenerExplained) {
    lines.push(String::new());
    let local = listener.local.map_or_else(|| "?".to_owned(), |local| local.to_string());
    let ListenerExplained { shard, waiting, backlog, handshakes, offers, .. } = listener;
    let shared = match listener.shared_by_uid {
        Some(uid) => format!("shared by programs of user {uid}"),
        None => "exclusive".to_owned(),
    };
    let text = format!(
        "{local} on shard {shard}: {waiting} of {backlog} wait, {handshakes} handshakes; {shared}"
    );
    lines.extend(wrap(&head("listener"), &text, COLUMNS));
    lines.extend(wrap(&head(""), offers, COLUMNS));
    if let Some(hand_over) = &listener.hand_over {
        hand_over_lines(lines, hand_over);
    }
    let rows: Vec<Vec<String>> = listener.acceptors.iter().map(acceptor_row).collect();
    if !rows.is_empty() {
        table(lines, &ACCEPTOR_HEADERS, &rows);
    }
    let count = listener.acceptor_count as usize;
    if count > rows.len() {
        lines.push(head("") + &format!("and {} more acceptors", count - rows.len()));
    }
}

const ACCEPTOR_HEADERS: [&str; 9] =
    ["session", "pid", "uid", "home", "credit", "offers", "conns", "service", "acceptor"];

fn acceptor_row(acceptor: &AcceptorExplained) -> Vec<String> {
    let AcceptorExplained { session, pid, uid, credit, offered, connections, .. } = acceptor;
    // Of an acceptor of another manager's it is what that manager offers.
    let known = acceptor.service_time_us.or(acceptor.offered_service_time_us);
    let service = match (acceptor.is_dropped, known) {
        (true, _) => "dropped".to_owned(),
        (false, None) => "-".to_owned(),
        (false, Some(us)) => time(us * 1e-6),
    };
    let home = acceptor.home.map_or_else(|| "-".to_owned(), |home| format!("CM{home}"));
    let mut cells = vec![session.to_string(), pid.to_string(), uid.to_string(), home];
    let counts = [credit, offered, connections];
    cells.extend(counts.map(ToString::to_string));
    cells.extend([service, acceptor.program.clone()]);
    cells
}

fn hand_over_lines(lines: &mut Vec<String>, hand_over: &HandOverExplained) {
    let mut add = |text: &str| lines.extend(wrap(&head(""), text, COLUMNS));
    let HandOverExplained { scheme, waiting, waits, refused, dropped_acceptors, .. } = hand_over;
    let claim_time = time(hand_over.claim_time_us * 1e-6);
    add(&format!(
        "{scheme}, claim time {claim_time}; {waiting} wait, {waits} had to; {refused} refused; \
         acceptors dropped {dropped_acceptors} times"
    ));
    let HandOverExplained { offers, final_offers, claims, late_claims, .. } = hand_over;
    let HandOverExplained { take_backs, orphans, withdrawals, .. } = hand_over;
    add(&format!(
        "{offers} offers ({final_offers} without a claim), {claims} claims, {late_claims} late; \
         taken back: {take_backs} unclaimed, {orphans} of the dead, {withdrawals} reset by the peer"
    ));
    if let (Some(p50), Some(p99)) = (hand_over.claim_p50_us, hand_over.claim_p99_us) {
        let (p50, p99) = (time(p50 * 1e-6), time(p99 * 1e-6));
        add(&format!("from an offer to its confirmed claim: {p50} median, {p99} p99"));
    }
    let HandOverExplained { assigned, assigned_elsewhere, .. } = hand_over;
    let HandOverExplained { offers_sent, offers_received, .. } = hand_over;
    if assigned_elsewhere + offers_sent + offers_received > 0 {
        add(&format!(
            "connection manager: {assigned} connections to its own acceptors, \
             {assigned_elsewhere} to those of others; {offers_sent} offers sent, \
             {offers_received} received"
        ));
    }
    if !hand_over.picks.is_empty() {
        add(&format!("last picks: {}", picks(&hand_over.picks).join("; ")));
    }
}

/// Picks, newest first; those that follow one another and are the same together.
fn picks(picks: &[PickExplained]) -> Vec<String> {
    let what = |pick: &PickExplained| {
        let service = pick.service_time_us.map(|us| format!(" of {}", time(us * 1e-6)));
        let only = if pick.is_final { ", the only one" } else { "" };
        format!("by {}{}{only}", pick.reason, service.unwrap_or_default())
    };
    let is_same = |one: &PickExplained, other: &PickExplained| {
        one.session == other.session && what(one) == what(other)
    };
    let groups = picks.chunk_by(is_same).map(|group| {
        let times = match group.len() {
            1 => String::new(),
            count => format!(" {count} times"),
        };
        let (session, ago) = (group[0].session, time(group[0].s_ago));
        format!("session {session}{times} {}, {ago} ago", what(&group[0]))
    });
    groups.collect()
}

fn session_lines(lines: &mut Vec<String>, sessions: &[SessionExplained]) {
    for (place, session) in sessions.iter().enumerate() {
        lines.push(String::new());
        let mut add = |name: &str, text: &str| lines.extend(wrap(&head(name), text, COLUMNS));
        let SessionExplained { pid, uid, shard, program, .. } = session;
        let who = match pid {
            0 => format!("a process of user {uid} that has ended"),
            pid => format!("process {pid} ({program}) of user {uid}"),
        };
        let attached = session.attached_s_ago.map(|ago| format!(", attached {} ago", time(ago)));
        let attached = attached.unwrap_or_default();
        add(&format!("session {}", session.session), &format!("{who} on shard {shard}{attached}"));
        add("", &history(session));
        add(
            "",
            &format!(
                "connections {}, {} connecting, {} closed and not over",
                used(session.connections),
                used(session.connecting),
                session.closed_connections
            ),
        );
        add(
            "",
            &format!(
                "listeners {}; UDP sockets {}; accepts {} in advance; weight {}",
                used(session.listeners),
                used(session.endpoints),
                session.credit,
                session.weight
            ),
        );
        add(
            "",
            &format!(
                "CPU time {}; {} operations, {} events, {} parked (at most {})",
                time(session.cpu_s),
                session.operations,
                session.events,
                session.parked_events,
                session.parked_events_max
            ),
        );
        let SessionExplained { refused, foreign_names, datagrams_dropped, .. } = session;
        add(
            "",
            &format!(
                "refused {refused} at a limit, {foreign_names} foreign names; datagrams dropped \
                 {datagrams_dropped}"
            ),
        );
        // They are those of all lanes of a channel.
        let is_first = !sessions[..place].iter().any(|other| other.session == session.session);
        if is_first && !session.quotas.is_empty() {
            add("", &format!("quotas on all shards: {}", quotas(&session.quotas)));
        }
    }
}

fn manager_lines(lines: &mut Vec<String>, manager: &ManagerExplained) {
    let place = match manager.shard {
        Some(shard) => format!("in shard {shard}"),
        None => "on a server of its own".to_owned(),
    };
    let count = plural(manager.listeners.len() as u64, "shared listener");
    lines.push(String::new());
    let name = head(&format!("manager {}", manager.manager));
    lines.extend(wrap(&name, &format!("{place}; {count}"), COLUMNS));
    for listener in &manager.listeners {
        managed_lines(lines, listener);
    }
}

fn managed_lines(lines: &mut Vec<String>, listener: &ManagedExplained) {
    let mut add = |text: &str| lines.extend(wrap(&head(""), text, COLUMNS));
    let local = listener.local.map_or_else(|| "-".to_owned(), |local| local.to_string());
    let ManagedExplained { scheme, waiting, assigned, assigned_elsewhere, .. } = listener;
    let ManagedExplained { waits, refused, dropped_acceptors, acceptor_count, .. } = listener;
    add(&format!(
        "{local}: {scheme}; {waiting} wait; assigned {assigned} here, {assigned_elsewhere} \
         elsewhere; {waits} had to wait, {refused} refused; {dropped_acceptors} acceptors dropped \
         of {acceptor_count} known now"
    ));
    let offers = listener.offers.iter().map(|offer| {
        let service = time(offer.service_time_us / 1e6);
        format!("manager {} {service}, {} ago", offer.manager, time(offer.offer_s_ago))
    });
    let offers: Vec<_> = offers.collect();
    let (sent, received) = (listener.offers_sent, listener.offers_received);
    let last = if offers.is_empty() { String::new() } else { format!(": {}", offers.join("; ")) };
    add(&format!("offers sent {sent}, received {received}{last}"));
    let headers = ["session", "pid", "credit", "conns", "service", "assigned", "share", "back", ""];
    let row = |it: &ManagedAcceptorExplained| {
        let service = it.service_time_us.map_or_else(|| "-".to_owned(), |us| time(us / 1e6));
        let state = if it.is_enlisted { "" } else { " (dropped)" };
        vec![
            it.session.to_string(),
            it.pid.to_string(),
            it.credit.to_string(),
            it.connections.to_string(),
            service,
            it.assigned.to_string(),
            format!("{:.0} %", it.share * 100.0),
            it.take_backs.to_string(),
            format!("{}{state}", it.program),
        ]
    };
    let rows: Vec<_> = listener.acceptors.iter().map(row).collect();
    if !rows.is_empty() {
        table(lines, &headers, &rows);
    }
}

/// Quotas with their names.
fn quotas(all: &BTreeMap<String, QuotaExplained>) -> String {
    let quota = |(name, quota): (&String, &QuotaExplained)| {
        let QuotaExplained { now, limit, reached } = *quota;
        let times = match reached {
            0 => String::new(),
            _ => format!(" (reached {})", plural(reached, "time")),
        };
        format!("{name} {}{times}", used(UseExplained { now, limit }))
    };
    all.iter().map(quota).collect::<Vec<_>>().join("; ")
}

fn user_lines(lines: &mut Vec<String>, user: &UserExplained) {
    lines.push(String::new());
    let text = format!("quotas of all its channels: {}", quotas(&user.quotas));
    lines.extend(wrap(&head(&format!("user {}", user.uid)), &text, COLUMNS));
}

/// How a session began, and whether it goes on.
fn history(session: &SessionExplained) -> String {
    if session.has_ended {
        return "it has ended; its connections send what was handed over".to_owned();
    }
    let polled = match session.is_active {
        true => "active: its ring is read at each poll",
        false => "idle: its doorbell wakes the shard",
    };
    match (session.older_than_daemon_s, session.attached_after_start_s) {
        (Some(older), Some(after)) => format!(
            "the process is {} older than the daemon, and attached {} after its start: again, \
             if it had an earlier one, whose connections have ended (ServiceGone) and whose \
             listeners listen here; {polled}",
            time(older),
            time(after)
        ),
        _ => polled.to_owned(),
    }
}

fn connection_lines(lines: &mut Vec<String>, connection: &ConnectionExplained) {
    lines.push(String::new());
    let end = |end: Option<std::net::SocketAddr>| {
        end.map_or_else(|| "*".to_owned(), |end| end.to_string())
    };
    let ConnectionExplained { state, shard, recv_q, send_q, .. } = connection;
    let (local, peer) = (end(connection.local), end(connection.peer));
    let owners: Vec<String> = connection
        .owners
        .iter()
        .map(|it| format!("process {} ({}), session {}", it.pid, it.program, it.session))
        .collect();
    let owner = if owners.is_empty() { "no process".to_owned() } else { owners.join("; ") };
    let text = format!("{local} to {peer}: {state} on shard {shard}, of {owner}");
    lines.extend(wrap(&head("connection"), &text, COLUMNS));
    let text = format!("{recv_q} bytes to read, {send_q} bytes not acknowledged");
    lines.extend(wrap(&head(""), &text, COLUMNS));
    if let Some(words) = &connection.words {
        lines.extend(wrap(&head(""), words, COLUMNS));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use megapipe_service::observe::{ServiceAcceptor, ServiceHandOver, ServicePick};

    use super::super::report::tests::{observed, started};
    use super::super::target::ExplainTarget;
    use super::*;

    fn shown(target: ExplainTarget) -> String {
        text(&Explanation::of(&observed(), target, &started))
    }

    /// The same without the ends of lines, which are where there is room.
    fn words(target: ExplainTarget) -> String {
        shown(target).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn text_fits_the_terminal_and_has_what_the_report_has() {
        let all = shown(ExplainTarget::Daemon);
        for line in all.lines() {
            assert!(width(line) <= COLUMNS, "{line}");
        }
        let all = words(ExplainTarget::Daemon);
        for part in [
            "megapiped 0.1.0, process 9 of user 0, running for 100.0 s",
            "2 sessions, 5 since its start; layout TS2LS2CM2",
            "3 stray messages over tokens, ignored",
            "shard 1 not pinned; tap of 1500 bytes MTU, 10.0.0.2",
            "CPU time 3.0 s of sessions, 1.0 s of none (25 %)",
            "dropped: 2 no_connection",
            "no checksum offload: the device has none",
            "link 0 on core 2; 1 queue of the link CPU time 2.5 s; frames 70 in, 60 out",
            "manager 1 on a server of its own; 1 shared listener",
            "10.0.0.2:80: tournament:2; 0 wait; assigned 20 here, 7 elsewhere",
            "offers sent 0, received 0: manager 0 900 µs, 4.0 ms ago",
            "3 12 8 2 1.5 ms 30 75 % 1 serve",
            "user 1000 quotas of all its channels: channels 2 of 256 (reached 3 times)",
        ] {
            assert!(all.contains(part), "{part}: {all}");
        }
    }

    #[test]
    fn acceptors_are_an_aligned_table() {
        let port = shown(ExplainTarget::Port(80));
        let expected = "\
listener    10.0.0.2:80 on shard 0: 0 of 1024 wait, 0 handshakes; exclusive
            not offered: single acceptor, which gets each connection when it is
            established
            session  pid   uid  home  credit  offers  conns  service  acceptor
                  3   12  1000     -      64       0      1        -  serve
";
        assert!(port.contains(expected), "{port}");
        assert!(port.contains("sockets     1 ESTAB, 1 LISTEN, 1 SYN-RECV"), "{port}");
    }

    #[test]
    fn hand_over_has_its_counters_and_last_picks() {
        let mut shared = observed();
        let listener = &mut shared.listeners[0];
        let slow = Some(Duration::from_millis(20));
        listener.acceptors[0].service_time = slow;
        let dropped =
            ServiceAcceptor { session: 5, is_dropped: true, home: Some(1), ..Default::default() };
        listener.acceptors.push(dropped);
        let pick = ServicePick { session: 3, service_time: slow, ..ServicePick::default() };
        listener.hand_over = Some(ServiceHandOver {
            scheme: "tournament:2".to_owned(),
            claim_time: Duration::from_millis(5),
            assigned: 30,
            assigned_elsewhere: 10,
            offers_sent: 7,
            offers_received: 9,
            offers: 40,
            claims: 38,
            claim_p50: Some(Duration::from_micros(4)),
            claim_p99: Some(Duration::from_millis(1)),
            take_backs: 2,
            picks: vec![pick.clone(), pick.clone(), ServicePick { session: 5, ..pick }],
            ..ServiceHandOver::default()
        });
        let text = text(&Explanation::of(&shared, ExplainTarget::Port(80), &started));
        for line in text.lines() {
            assert!(width(line) <= COLUMNS, "{line}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "offered by service time",
            "tournament:2, claim time 5.0 ms; 0 wait",
            "40 offers (0 without a claim), 38 claims, 0 late; taken back: 2 unclaimed",
            "from an offer to its confirmed claim: 4 µs median, 1.0 ms p99",
            "last picks: session 3 2 times by service time of 20 ms, 0 µs ago; session 5 by",
            "3 12 1000 - 64 0 1 20 ms serve",
            "5 34 1000 CM1 0 0 1 dropped load",
            "connection manager: 30 connections to its own acceptors, 10 to those of others; 7 \
             offers sent, 9 received",
        ] {
            assert!(words.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn channel_that_attached_again_is_explained() {
        let process = words(ExplainTarget::Process(12));
        let expected = "the process is 10.0 s older than the daemon, and attached 10.0 s after";
        assert!(process.contains(expected), "{process}");
        assert!(!words(ExplainTarget::Process(34)).contains("older"));
    }

    #[test]
    fn connection_has_its_owner_and_none_if_it_has_none() {
        let end = "10.0.0.1:54321".parse().expect("an end");
        let shown = words(ExplainTarget::End(end));
        let open = "10.0.0.2:80 to 10.0.0.1:54321: ESTAB on shard 0, of process 12 (serve)";
        assert!(shown.contains(open), "{shown}");
        assert!(shown.contains("SYN-RECV on shard 0, of no process"), "{shown}");
    }

    #[test]
    fn times_have_a_unit_that_suits_them() {
        for (seconds, text) in [
            (0.0, "0 µs"),
            (0.000_5, "500 µs"),
            (0.002_04, "2.0 ms"),
            (0.25, "250 ms"),
            (3.0, "3.0 s"),
            (600.0, "10 min"),
            (10_000.0, "3 h"),
            (1e6, "12 days"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
