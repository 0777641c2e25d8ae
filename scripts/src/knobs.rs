//! Shell commands of a script, as knobs: what `sysctl` and its relatives set.
//!
//! In: the text between backticks. Out: knobs, and the commands that are none and so are not run.
//! No part of a script is ever passed to a shell.
//!
//! Names are Linux's (`net.ipv4.tcp_ecn`). FreeBSD's are translated where both systems have the
//! thing; those for what Linux has no sysctl for get a name that begins with `stack.`, which our
//! stack knows and Linux does not. Names that begin with `device.` are features of the device.

#[cfg(test)]
mod tests;

/// A named value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// Linux's name, or one of this project (`stack.`, `device.`).
    pub name: String,
    /// As written.
    pub value: String,
}

/// What a command comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnobCommand {
    pub(crate) knobs: Vec<Knob>,
    /// Commands that are not followed, by their first words.
    pub(crate) notes: Vec<String>,
}

/// What the script `defaults.sh` of Linux's own tests sets.
const LINUX_DEFAULTS: &[(&str, &str)] = &[
    ("net.ipv4.tcp_rmem", "4096 540000 15728640"),
    ("net.ipv4.tcp_wmem", "4096 262144 4194304"),
    ("net.ipv4.tcp_timestamps", "1"),
    ("net.ipv4.tcp_syn_retries", "5"),
    ("net.ipv4.tcp_synack_retries", "5"),
    ("net.ipv4.tcp_frto", "2"),
    ("net.ipv4.tcp_sack", "1"),
    ("net.ipv4.tcp_dsack", "1"),
    ("net.ipv4.tcp_fack", "0"),
    ("net.ipv4.tcp_reordering", "3"),
    ("net.ipv4.tcp_congestion_control", "cubic"),
    ("net.ipv4.tcp_slow_start_after_idle", "0"),
    ("net.ipv4.tcp_early_retrans", "4"),
    ("net.ipv4.tcp_recovery", "1"),
    ("net.ipv4.tcp_tso_win_divisor", "3"),
    ("net.ipv4.tcp_ecn", "0"),
    ("net.ipv4.tcp_pacing_ss_ratio", "200"),
    ("net.ipv4.tcp_pacing_ca_ratio", "120"),
    ("net.ipv4.tcp_notsent_lowat", "4294967295"),
    ("net.ipv4.tcp_fastopen", "3"),
    ("net.ipv4.tcp_fastopen_key", "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4"),
    ("net.ipv4.tcp_syncookies", "1"),
];

/// FreeBSD's name, and ours for the same value.
const FREEBSD_NAMES: &[(&str, &str)] = &[
    ("net.inet.tcp.sack.enable", "net.ipv4.tcp_sack"),
    ("net.inet.tcp.ecn.enable", "net.ipv4.tcp_ecn"),
    ("net.inet.tcp.syncookies", "net.ipv4.tcp_syncookies"),
    ("net.inet.tcp.keepcnt", "net.ipv4.tcp_keepalive_probes"),
    ("net.inet.tcp.path_mtu_discovery", "stack.path_mtu_discovery"),
    ("net.inet.tcp.initcwnd_segments", "stack.initial_window_segments"),
    ("net.inet.tcp.delayed_ack", "stack.delayed_ack"),
    ("net.inet.tcp.delacktime", "stack.delayed_ack_ms"),
    ("net.inet.tcp.msl", "stack.msl_ms"),
    ("net.inet.tcp.rexmit_min", "stack.rto_min_ms"),
    ("net.inet.tcp.rexmit_initial", "stack.rto_initial_ms"),
    ("net.inet.tcp.recvspace", "stack.receive_buffer_bytes"),
    ("net.inet.tcp.recvbuf_max", "stack.receive_buffer_max_bytes"),
    ("net.inet.tcp.sendspace", "stack.send_buffer_bytes"),
    ("net.inet.tcp.sendbuf_max", "stack.send_buffer_max_bytes"),
    ("kern.ipc.maxsockbuf", "stack.socket_buffer_max_bytes"),
];

/// FreeBSD's name in milliseconds, and ours in seconds.
const FREEBSD_TIMES: &[(&str, &str)] = &[
    ("net.inet.tcp.keepidle", "net.ipv4.tcp_keepalive_time"),
    ("net.inet.tcp.keepintvl", "net.ipv4.tcp_keepalive_intvl"),
];

/// Takes a shell command apart.
pub(crate) fn command(text: &str) -> KnobCommand {
    let mut command = KnobCommand::default();
    for words in statements(text) {
        statement(&words, &mut command);
    }
    command
}

/// Translates a setting by its Linux or FreeBSD name. Also for `MEGAPIPE_KNOBS`.
pub(crate) fn knob(name: &str, value: &str) -> Vec<Knob> {
    let dotted = name.trim_start_matches("/proc/sys/").replace('/', ".");
    let one = |name: &str, value: &str| {
        vec![Knob { name: name.to_owned(), value: value.trim().to_owned() }]
    };
    if let Some((_, ours)) = FREEBSD_NAMES.iter().find(|(theirs, _)| *theirs == dotted) {
        return one(ours, value);
    }
    if let Some((_, ours)) = FREEBSD_TIMES.iter().find(|(theirs, _)| *theirs == dotted) {
        let seconds = value.trim().parse::<u64>().unwrap_or(0).div_ceil(1000);
        return one(ours, &seconds.to_string());
    }
    match dotted.as_str() {
        // One switch of FreeBSD's for the two options of RFC 7323; 2 and 3 switch one of them.
        "net.inet.tcp.rfc1323" => {
            let scaling = if matches!(value.trim(), "1" | "2") { "1" } else { "0" };
            let timestamps = if matches!(value.trim(), "1" | "3") { "1" } else { "0" };
            let mut both = one("net.ipv4.tcp_window_scaling", scaling);
            both.extend(one("net.ipv4.tcp_timestamps", timestamps));
            both
        }
        "net.inet.tcp.cc.algorithm" => {
            let algorithm = if value.trim() == "newreno" { "reno" } else { value };
            one("net.ipv4.tcp_congestion_control", algorithm)
        }
        _ => one(&dotted, value),
    }
}

/// Knobs of a list `name=value,name=value`. A name without a dot is Linux's of IPv4 TCP where that
/// begins with `tcp_` or `ip_`, else the stack's own.
pub(crate) fn from_text(text: &str) -> Vec<Knob> {
    let pairs = text.split(',').filter_map(|pair| pair.trim().split_once('='));
    pairs
        .flat_map(|(name, value)| match name {
            name if name.contains('.') => knob(name, value),
            name if name.starts_with("tcp_") || name.starts_with("ip_") => {
                knob(&format!("net.ipv4.{name}"), value)
            }
            name => knob(&format!("stack.{name}"), value),
        })
        .collect()
}

/// The commands of a shell text, each as words: quotes resolved, comments and redirections left in.
fn statements(text: &str) -> Vec<Vec<String>> {
    let mut statements = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut characters = text.chars().peekable();
    let end_word = |word: &mut Option<String>, statements: &mut Vec<Vec<String>>| {
        if let (Some(word), Some(statement)) = (word.take(), statements.last_mut()) {
            statement.push(word);
        }
    };
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), character) => word.get_or_insert_default().push(character),
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '\\') => match characters.next() {
                Some('\n') | None => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
            },
            (None, '#') if word.is_none() => {
                while characters.next_if(|&next| next != '\n').is_some() {}
            }
            (None, '&') if word.as_ref().is_some_and(|word| word.ends_with('>')) => {
                word.get_or_insert_default().push('&');
            }
            (None, '\n' | ';' | '&' | '|') => {
                end_word(&mut word, &mut statements);
                statements.push(Vec::new());
            }
            (None, character) if character.is_whitespace() => end_word(&mut word, &mut statements),
            (None, character) => word.get_or_insert_default().push(character),
        }
    }
    end_word(&mut word, &mut statements);
    statements.retain(|words| !words.is_empty());
    statements
}

/// A value with each `$((…))` in it worked out: products of numbers, as scripts have them.
fn calculated(value: &str) -> String {
    let Some((before, rest)) = value.split_once("$((") else { return value.to_owned() };
    let Some((inside, after)) = rest.split_once("))") else { return value.to_owned() };
    let mut factors = inside.split('*').map(|factor| factor.trim().parse::<u64>().ok());
    let product = factors.try_fold(1_u64, |product, factor| product.checked_mul(factor?));
    match product {
        Some(product) => format!("{before}{product}{}", calculated(after)),
        None => value.to_owned(),
    }
}

/// Attributes of a route for its connections (ip-route(8)); scripts have one.
const ROUTE_KNOBS: &[(&str, &str)] = &[
    ("initcwnd", "stack.initial_window_segments"),
    ("advmss", "stack.mss"),
    ("rto_min", "stack.rto_min_ms"),
    ("congctl", "net.ipv4.tcp_congestion_control"),
];

fn route(arguments: &[String]) -> Vec<Knob> {
    let pairs = arguments.windows(2);
    pairs
        .filter_map(|pair| {
            let (_, name) = ROUTE_KNOBS.iter().find(|(theirs, _)| *theirs == pair[0])?;
            Some(Knob {
                name: (*name).to_owned(),
                value: pair[1].trim_end_matches("ms").to_owned(),
            })
        })
        .collect()
}

fn statement(words: &[String], command: &mut KnobCommand) {
    let Some((program, arguments)) = words.split_first() else { return };
    let before = command.knobs.len();
    match program.rsplit('/').next().unwrap_or(program) {
        "sysctl" | "set_sysctls.py" => {
            let settings = arguments.iter().filter_map(|word| word.split_once('='));
            let knobs = settings.flat_map(|(name, value)| knob(name, &calculated(value)));
            command.knobs.extend(knobs);
        }
        "defaults.sh" => {
            let defaults = LINUX_DEFAULTS.iter();
            command.knobs.extend(defaults.flat_map(|(name, value)| knob(name, value)));
        }
        "echo" => {
            if let [value @ .., arrow, path] = arguments
                && arrow == ">"
                && path.starts_with("/proc/sys/")
            {
                command.knobs.extend(knob(path, &value.join(" ")));
            }
        }
        "ip" => {
            let mtu = arguments.windows(2).find(|pair| pair[0] == "mtu");
            match (arguments.first().map(String::as_str), mtu) {
                (Some("link"), Some([_, mtu])) => command.knobs.extend(knob("device.mtu", mtu)),
                (Some("route" | "ro" | "r"), _) => command.knobs.extend(route(arguments)),
                _ => {}
            }
        }
        "ethtool" => {
            if let [switch, _, features @ ..] = arguments
                && matches!(switch.as_str(), "-K" | "--offload" | "--features")
            {
                for pair in features.chunks_exact(2) {
                    command.knobs.extend(knob(&format!("device.{}", pair[0]), &pair[1]));
                }
            }
        }
        _ => {}
    }
    if command.knobs.len() == before {
        let first: Vec<&str> = words.iter().take(4).map(String::as_str).collect();
        command.notes.push(first.join(" "));
    }
}
