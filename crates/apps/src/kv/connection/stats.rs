//! `stats` in both protocols: the names that memcached's clients and tools look for.
//!
//! Read first: memcached's `protocol.txt`, "Statistics".
//!
//! There is one kind of memory here, so items and slabs speak of one class, number 1.

use super::responses::{header_of, push_fault};
use super::{KvContext, ResponseBuffer};
use crate::kv::VERSION;
use crate::kv::limits::{ITEM_BYTES_MAX, UNIT_BYTES};
use crate::kv::protocol::binary::{RequestFrame, ResponseHeader};
use crate::kv::protocol::{CommandFault, words};
use crate::kv::store::StoreCounters;

/// The fields of `stats` that describe the server, not the store.
pub trait ServerView {
    /// The state now.
    fn snapshot(&self) -> ServerSnapshot;
    /// Sets to nought what `stats reset` does.
    fn reset(&self);
}

/// The server's own numbers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ServerSnapshot {
    /// Process number.
    pub pid: u32,
    /// Seconds since the start.
    pub uptime_s: u32,
    /// User time of the process in microseconds.
    pub user_us: u64,
    /// System time of the process in microseconds.
    pub system_us: u64,
    /// Most connections at once.
    pub connections_max: u64,
    /// Connections now.
    pub connections: u64,
    /// Connections ever.
    pub connections_total: u64,
    /// Connections closed because they did nothing for too long.
    pub idle_kicks: u64,
    /// Bytes received.
    pub bytes_read: u64,
    /// Bytes sent.
    pub bytes_written: u64,
    /// Channels, each on a thread of its own.
    pub channels: u64,
    /// Where the server listens.
    pub address: String,
    /// Seconds after which a connection that does nothing is closed; 0 is never.
    pub idle_timeout_s: u64,
}

/// Answers a `stats` line; `arguments` is what follows the word.
pub(super) fn answer_text(
    arguments: &[u8],
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let kind = words(arguments).next().unwrap_or_default();
    match kind {
        b"reset" => {
            reset(context);
            return out.extend_from_slice(b"RESET\r\n");
        }
        b"cachedump" => return push_fault(CommandFault::DumpDisabled, out),
        _ => {}
    }
    let Some(list) = list(kind, context) else {
        return push_fault(CommandFault::UnknownCommand, out);
    };
    for (name, value) in &list.lines {
        for part in ["STAT ", name, " ", value, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
    }
    out.extend_from_slice(b"END\r\n");
}

/// Answers a stat request: one response per name, then an empty one. Returns whether there is
/// such a list.
pub(super) fn answer_binary(
    frame: &RequestFrame<'_>,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) -> bool {
    let list = if frame.key == b"reset" {
        reset(context);
        Some(List::default())
    } else {
        list(frame.key, context)
    };
    let Some(list) = list else {
        return false;
    };
    for (name, value) in list.lines.iter().chain([&(String::new(), String::new())]) {
        let header = ResponseHeader {
            key_len: name.len() as u16,
            value_len: value.len() as u32,
            ..header_of(frame)
        };
        out.extend_from_slice(&header.to_bytes());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value.as_bytes());
    }
    true
}

fn reset(context: &KvContext<'_>) {
    context.store.reset_counters();
    context.server.reset();
}

/// Names and values.
#[derive(Default)]
struct List {
    lines: Vec<(String, String)>,
}

impl List {
    fn push(&mut self, name: &str, value: impl ToString) {
        self.lines.push((name.to_owned(), value.to_string()));
    }
}

fn list(kind: &[u8], context: &KvContext<'_>) -> Option<List> {
    let mut list = List::default();
    let counters = context.store.counters();
    match kind {
        b"" => {
            list_server(&context.server.snapshot(), context.now, &mut list);
            list_commands(&counters, context, &mut list);
        }
        b"settings" => list_settings(&context.server.snapshot(), context, &mut list),
        b"items" => list_items(&counters, &mut list),
        b"slabs" => list_slabs(&counters, &mut list),
        b"sizes" => list.push("sizes_status", "disabled"),
        _ => return None,
    }
    Some(list)
}

fn list_server(server: &ServerSnapshot, now: u32, list: &mut List) {
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    list.push("pid", server.pid);
    list.push("uptime", server.uptime_s);
    list.push("time", now);
    list.push("version", VERSION);
    list.push("pointer_size", usize::BITS);
    list.push("rusage_user", seconds(server.user_us));
    list.push("rusage_system", seconds(server.system_us));
    list.push("max_connections", server.connections_max);
    list.push("curr_connections", server.connections);
    list.push("total_connections", server.connections_total);
    list.push("connection_structures", server.connections);
}

fn list_commands(counters: &StoreCounters, context: &KvContext<'_>, list: &mut List) {
    list.push("cmd_get", counters.get_hits + counters.get_misses);
    list.push("cmd_set", counters.cmd_set);
    list.push("cmd_flush", context.store.flush_count());
    list.push("cmd_touch", counters.cmd_touch);
    for (name, value) in [
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("get_expired", counters.get_expired),
        ("get_flushed", counters.get_flushed),
        ("delete_misses", counters.delete_misses),
        ("delete_hits", counters.delete_hits),
        ("incr_misses", counters.incr_misses),
        ("incr_hits", counters.incr_hits),
        ("decr_misses", counters.decr_misses),
        ("decr_hits", counters.decr_hits),
        ("cas_misses", counters.cas_misses),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
        ("touch_misses", counters.touch_misses),
        ("store_too_large", counters.too_large),
        ("store_no_memory", counters.out_of_memory),
        ("auth_cmds", 0),
        ("auth_errors", 0),
    ] {
        list.push(name, value);
    }
    let server = context.server.snapshot();
    list.push("idle_kicks", server.idle_kicks);
    list.push("bytes_read", server.bytes_read);
    list.push("bytes_written", server.bytes_written);
    list.push("limit_maxbytes", context.store.memory_bytes());
    list.push("threads", server.channels);
    list.push("hash_bytes", counters.table_bytes);
    list.push("hash_is_expanding", 0);
    list.push("bytes", counters.item_bytes);
    list.push("curr_items", counters.items);
    list.push("total_items", counters.total_items);
    list.push("evictions", counters.evictions);
    list.push("reclaimed", counters.reclaimed);
    list.push("log_carried", counters.carried);
    list.push("log_bytes_used", counters.used_bytes);
    list.push("log_bytes_dead", counters.dead_bytes);
    list.push("log_bytes_reserved", counters.reserved_bytes);
}

fn list_settings(server: &ServerSnapshot, context: &KvContext<'_>, list: &mut List) {
    list.push("maxbytes", context.store.memory_bytes());
    list.push("maxconns", server.connections_max);
    let (address, port) = server.address.rsplit_once(':').unwrap_or((&server.address, "0"));
    list.push("tcpport", port);
    list.push("udpport", 0);
    list.push("inter", address);
    list.push("evictions", "on");
    list.push("shutdown_command", "no");
    list.push("chunk_size", UNIT_BYTES);
    list.push("num_threads", server.channels);
    list.push("store_shards", context.store.shard_count());
    list.push("detail_enabled", "no");
    list.push("cas_enabled", "yes");
    list.push("binding_protocol", "auto-negotiate");
    list.push("auth_enabled_sasl", "no");
    list.push("auth_enabled_ascii", "no");
    list.push("item_size_max", ITEM_BYTES_MAX);
    list.push("flush_enabled", "yes");
    list.push("dump_enabled", "no");
    list.push("hash_algorithm", "siphash13");
    list.push("idle_timeout", server.idle_timeout_s);
}

fn list_items(counters: &StoreCounters, list: &mut List) {
    if counters.items == 0 {
        return;
    }
    for (name, value) in [
        ("items:1:number", counters.items),
        ("items:1:mem_requested", counters.item_bytes),
        ("items:1:evicted", counters.evictions),
        ("items:1:outofmemory", counters.out_of_memory),
        ("items:1:reclaimed", counters.reclaimed),
        ("items:1:moves_to_warm", counters.carried),
    ] {
        list.push(name, value);
    }
}

/// A chunk is one unit of the logs.
fn list_slabs(counters: &StoreCounters, list: &mut List) {
    let unit = UNIT_BYTES as u64;
    for (name, value) in [
        ("1:chunk_size", unit),
        ("1:total_chunks", counters.log_bytes / unit),
        ("1:used_chunks", counters.used_bytes / unit),
        ("1:free_chunks", (counters.log_bytes - counters.used_bytes) / unit),
        ("1:get_hits", counters.get_hits),
        ("1:cmd_set", counters.cmd_set),
        ("1:delete_hits", counters.delete_hits),
        ("1:incr_hits", counters.incr_hits),
        ("1:decr_hits", counters.decr_hits),
        ("1:cas_hits", counters.cas_hits),
        ("1:cas_badval", counters.cas_badval),
        ("1:touch_hits", counters.touch_hits),
        ("active_slabs", 1),
        ("total_malloced", counters.log_bytes),
    ] {
        list.push(name, value);
    }
}
