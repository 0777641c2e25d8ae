//! The settings of a machine that limit a server, and the consequence of each.
//!
//! Pure: the text of files comes in through a function.

use megapipe_apps::terminal::{COLUMNS, wrap};
use serde::Serialize;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    name: String,
    /// The value as the machine shows it; null if it has no such setting.
    value: Option<String>,
    /// The consequence.
    meaning: String,
}

/// The consequence of a value for a server.
type Meaning = fn(&str) -> String;

/// The fewest descriptors that a large server needs.
const DESCRIPTORS_ENOUGH: u64 = 65_536;
/// The shortest accept queue that bursts of connections fit into.
const SOMAXCONN_ENOUGH: u64 = 1_024;

/// All settings. `read` returns a file's text, `interfaces` are the network interfaces' names.
pub(super) fn all(read: &dyn Fn(&str) -> Option<String>, interfaces: &[String]) -> Vec<Setting> {
    let sysctl = |name: &str| read(&format!("/proc/sys/{}", name.replace('.', "/")));
    let mut settings = vec![
        setting("processors online", read("/sys/devices/system/cpu/online"), |online| {
            format!("more channels than one for each do not help (now {online})")
        }),
        setting("processors allowed", status(read, "Cpus_allowed_list"), |allowed| {
            format!("this process may use {allowed}")
        }),
        setting("RLIMIT_NOFILE", limit(read, "Max open files"), descriptors),
        setting("RLIMIT_MEMLOCK", limit(read, "Max locked memory"), |_| {
            "io_uring counts its rings against it on kernels before 5.12 only".to_owned()
        }),
    ];
    let known: [(&str, Meaning); 6] = [
        ("kernel.io_uring_disabled", io_uring_disabled),
        ("net.core.somaxconn", somaxconn),
        ("net.ipv4.tcp_migrate_req", tcp_migrate_req),
        ("net.ipv4.ip_local_port_range", port_range),
        ("net.ipv4.tcp_tw_reuse", tcp_tw_reuse),
        ("net.ipv4.tcp_syncookies", tcp_syncookies),
    ];
    for (name, meaning) in known {
        settings.push(setting(name, sysctl(name), meaning));
    }
    for interface in interfaces {
        let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        settings.push(setting(&format!("RPS of {interface}"), read(&path), rps));
    }
    settings
}

/// The settings as lines: names and values aligned, each consequence below.
pub(super) fn lines(settings: &[Setting]) -> Vec<String> {
    let name = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let lines = |setting: &Setting| {
        let head = format!("{:<name$}  ", setting.name);
        let mut lines = wrap(&head, setting.shown(), COLUMNS);
        lines.extend(wrap("  ", &setting.meaning, COLUMNS));
        lines
    };
    settings.iter().flat_map(lines).collect()
}

impl Setting {
    fn shown(&self) -> &str {
        self.value.as_deref().unwrap_or("-")
    }
}

fn setting(name: &str, value: Option<String>, meaning: impl Fn(&str) -> String) -> Setting {
    let meaning = match &value {
        Some(value) => meaning(value),
        None => "not on this machine, or not readable".to_owned(),
    };
    Setting { name: name.to_owned(), value, meaning }
}

/// A field of `/proc/self/status`.
fn status(read: &dyn Fn(&str) -> Option<String>, field: &str) -> Option<String> {
    let text = read("/proc/self/status")?;
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// A line of `/proc/self/limits`: soft and hard limit.
fn limit(read: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let text = read("/proc/self/limits")?;
    let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    Some(format!("{} of {}", words.next()?, words.next()?))
}

fn descriptors(limit: &str) -> String {
    let hard = limit.rsplit(' ').next().and_then(|hard| hard.parse::<u64>().ok());
    match hard {
        Some(hard) if hard < DESCRIPTORS_ENOUGH => {
            format!("at most {hard} connections, lwsockets too; servers raise the soft limit")
        }
        _ => "servers raise the soft limit to the hard one; lwsockets count as well".to_owned(),
    }
}

fn io_uring_disabled(value: &str) -> String {
    match value {
        "0" => "io_uring is allowed for every user",
        "1" => "io_uring only with CAP_SYS_ADMIN or for the group kernel.io_uring_group",
        _ => "io_uring is forbidden: channels use epoll",
    }
    .to_owned()
}

fn somaxconn(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(max) if max < SOMAXCONN_ENOUGH => {
            "short: bursts of connections beyond it are dropped; 4096 is usual".to_owned()
        }
        _ => "the longest accept queue; --backlog is capped by it".to_owned(),
    }
}

fn tcp_migrate_req(value: &str) -> String {
    match value {
        "1" => "the kernel moves waiting connections to a sibling when a listener closes",
        _ => "channels drain a listener themselves before it closes",
    }
    .to_owned()
}

fn port_range(value: &str) -> String {
    let mut ends = value.split_whitespace().map(str::parse::<u64>);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) if last >= first => {
            let ports = last - first + 1;
            format!("{ports} connections from one address to one server, those in TIME-WAIT too")
        }
        _ => "the local ports of outgoing connections".to_owned(),
    }
}

fn tcp_tw_reuse(value: &str) -> String {
    match value {
        "0" => "ports in TIME-WAIT stay in use for a minute",
        "1" => "ports in TIME-WAIT are reused after a second",
        _ => "ports in TIME-WAIT are reused after a second, over loopback only",
    }
    .to_owned()
}

fn tcp_syncookies(value: &str) -> String {
    match value {
        "0" => "a full queue of half-open connections drops new ones",
        "1" => "a full queue of half-open connections is answered with cookies",
        _ => "every connection is answered with a cookie",
    }
    .to_owned()
}

fn rps(value: &str) -> String {
    let off = value.chars().all(|digit| matches!(digit, '0' | ','));
    match off {
        true => "packets are processed on the processor that gets the interrupt",
        false => "packets are distributed over these processors (mask)",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(path: &str) -> Option<String> {
        let text = match path {
            "/sys/devices/system/cpu/online" => "0-7",
            "/proc/self/status" => "Name:\tmegapipe\nCpus_allowed_list:\t2-3\n",
            "/proc/self/limits" => {
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            1024                 4096                 files\n\
                 Max locked memory         8388608              8388608              bytes"
            }
            "/proc/sys/kernel/io_uring_disabled" => "2",
            "/proc/sys/net/core/somaxconn" => "128",
            "/proc/sys/net/ipv4/ip_local_port_range" => "32768\t60999",
            "/sys/class/net/lo/queues/rx-0/rps_cpus" => "00,00000003",
            _ => return None,
        };
        Some(text.to_owned())
    }

    fn found(name: &str) -> Setting {
        let settings = all(&machine, &["lo".to_owned()]);
        settings.into_iter().find(|setting| setting.name == name).expect(name)
    }

    #[test]
    fn settings_are_read_and_judged() {
        for (name, value, meaning) in [
            ("processors online", "0-7", "more channels than one for each"),
            ("processors allowed", "2-3", "may use 2-3"),
            ("RLIMIT_NOFILE", "1024 of 4096", "at most 4096 connections"),
            ("kernel.io_uring_disabled", "2", "forbidden"),
            ("net.core.somaxconn", "128", "short"),
            ("net.ipv4.ip_local_port_range", "32768\t60999", "28232 connections"),
            ("RPS of lo", "00,00000003", "distributed"),
        ] {
            let setting = found(name);
            assert_eq!(setting.value.as_deref(), Some(value));
            assert!(setting.meaning.contains(meaning), "{name}: {}", setting.meaning);
        }
    }

    #[test]
    fn missing_setting_is_reported() {
        let setting = found("net.ipv4.tcp_migrate_req");
        assert_eq!((setting.value, setting.meaning.contains("not on this machine")), (None, true));
    }

    #[test]
    fn lines_are_aligned() {
        let lines = lines(&all(&machine, &["lo".to_owned()]));
        let value = |name: &str| lines.iter().find(|line| line.starts_with(name)).expect(name);
        let column = value("RLIMIT_NOFILE").find("1024").expect("its value");
        assert_eq!(value("net.core.somaxconn").find("128"), Some(column));
        assert_eq!(value("net.ipv4.tcp_migrate_req").find('-'), Some(column));
        assert!(lines.iter().all(|line| line.len() <= COLUMNS), "{lines:#?}");
    }

    #[test]
    fn sufficient_limits_are_not_called_low() {
        assert!(descriptors("1024 of unlimited").starts_with("servers raise"));
        assert!(descriptors("1024 of 1048576").starts_with("servers raise"));
        assert!(rps("0,00000000").contains("interrupt"));
        assert!(port_range("nonsense").contains("local ports"));
    }
}
