//! What the commands of RESP do, and how they are answered.
//!
//! Read first: [`super`], [`crate::kv::protocol::resp`], [`crate::kv::store`].
//!
//! A command that depends on the value before it (`INCR`, `APPEND`, `SET ... GET`) reads, computes,
//! and stores under the condition that nothing changed (cas); otherwise it retries. A retry means
//! that another command made progress, so the server as a whole makes progress (lock-free).

use crate::kv::VERSION;
use crate::kv::connection::{ConnectionState, KvConnection, KvContext, ResponseBuffer};
use crate::kv::limits::KEY_BYTES_MAX;
use crate::kv::protocol::resp::{
    self, COMMANDS, Condition, Epoch, Malformed, RespCommand, RespFault, RespVerb, SetOptions,
    Unit, ValueLifetime,
};
use crate::kv::protocol::text::StoreVerb;
use crate::kv::store::{Digits, Removal, Reservation, StoreOutcome, StoredItem, Write, item_fits};

/// Most of an unknown command's name that is said back.
const NAME_BYTES_MAX: usize = 128;

/// Where a value to be stored lies.
pub(super) enum ArgumentSource<'a> {
    Here(&'a [u8]),
    /// It came in pieces.
    Arrived(Reservation),
}

impl ArgumentSource<'_> {
    fn put(&self, key: &[u8], write: &Write, context: &KvContext<'_>) -> StoreOutcome {
        match self {
            Self::Here(value) => context.store.store(key, write, value, context.now),
            Self::Arrived(reservation) => context.store.try_commit(reservation, write, context.now),
        }
    }

    /// It was not stored, and is not going to be.
    fn discard(self, context: &KvContext<'_>) {
        if let Self::Arrived(reservation) = self {
            context.store.abandon(reservation);
        }
    }
}

impl KvConnection {
    /// Carries out a command that is here as a whole, as a line; commands of many keys too. It
    /// takes as many arguments as there are.
    pub(super) fn execute_line(
        &mut self,
        command: &RespCommand,
        arguments: &[&[u8]],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        let count = arguments.len() as u32;
        if !command.verb.is_of_many() {
            return self.execute(command, arguments, context, out);
        }
        self.commands.accepted += 1;
        let (mut keys, mut fault) = (0, None);
        match command.verb {
            RespVerb::MSet => {
                for pair in arguments[1..].chunks_exact(2) {
                    let done = set_plainly(pair[0], pair[1], context);
                    fault = fault.or_else(|| done.err());
                }
            }
            verb => {
                if verb == RespVerb::MGet {
                    array(count - 1, out);
                }
                for key in &arguments[1..] {
                    of_many(verb, key, &mut keys, context, out);
                }
            }
        }
        answer_many(command.verb, keys, fault, out);
    }

    /// Carries out a command that is here as a whole.
    pub(super) fn execute(
        &mut self,
        command: &RespCommand,
        arguments: &[&[u8]],
        context: &KvContext<'_>,
        out: &mut impl ResponseBuffer,
    ) {
        let done = match command.verb {
            RespVerb::Quit => {
                self.state = ConnectionState::Ended;
                ok(out);
                Ok(())
            }
            verb if is_of_keys(verb) => of_key(command, arguments, context, out),
            _ => of_server(command, arguments, context, out),
        };
        match done {
            Ok(()) => self.commands.accepted += 1,
            Err(fault) => {
                self.commands.refused += 1;
                error(fault, out);
            }
        }
    }
}

/// Its first argument is a key.
const fn is_of_keys(verb: RespVerb) -> bool {
    !matches!(
        verb,
        RespVerb::Flush
            | RespVerb::DbSize
            | RespVerb::Ping
            | RespVerb::Echo
            | RespVerb::Select
            | RespVerb::Hello
            | RespVerb::Auth
            | RespVerb::Client
            | RespVerb::Command
            | RespVerb::Config
            | RespVerb::Info
            | RespVerb::Time
            | RespVerb::Quit
    )
}

fn of_key(
    command: &RespCommand,
    arguments: &[&[u8]],
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) -> Result<(), RespFault> {
    let (store, now) = (context.store, context.now);
    let key = arguments[1];
    match command.verb {
        RespVerb::Get => value_or_nil(key, None, context, out),
        RespVerb::GetEx => {
            let touch = resp::getex_options(&arguments[2..], now)?;
            value_or_nil(key, touch, context, out);
        }
        RespVerb::GetDel => get_and_delete(key, context, out),
        RespVerb::StrLen => {
            let len = store.get(key, None, now, |item| item.value.len());
            integer(len.unwrap_or(0) as i64, out);
        }
        RespVerb::GetRange => {
            let start = resp::integer(arguments[2]).ok_or(RespFault::NotAnInteger)?;
            let end = resp::integer(arguments[3]).ok_or(RespFault::NotAnInteger)?;
            let found = store.get(key, None, now, |item| {
                bulk(&item.value[resp::range(item.value.len(), start, end)], out);
            });
            found.unwrap_or_else(|| bulk(b"", out));
        }
        RespVerb::Step { down } => add(key, if down { -1 } else { 1 }, context, out)?,
        RespVerb::StepBy { down } => {
            let by = resp::integer(arguments[2]).ok_or(RespFault::NotAnInteger)?;
            let by = if down { by.checked_neg().ok_or(RespFault::DecrementOverflow)? } else { by };
            add(key, by, context, out)?;
        }
        RespVerb::Expire(unit, epoch) => {
            let time = resp::integer(arguments[2]).ok_or(RespFault::NotAnInteger)?;
            let second = resp::unix_second(time, (unit, epoch), now);
            let second = second.ok_or(RespFault::InvalidExpire(command.name))?;
            integer(i64::from(store.touch(key, second, now).is_some()), out);
        }
        RespVerb::TimeLeft(unit, epoch) => time_left(key, (unit, epoch), context, out),
        RespVerb::Persist => {
            let expires = store.peek(key, now, |item| item.expires).unwrap_or(0);
            let done = expires != 0 && store.touch(key, 0, now).is_some();
            integer(i64::from(done), out);
        }
        RespVerb::Type => {
            let found = store.peek(key, now, |_| ()).is_some();
            out.extend_from_slice(if found { b"+string\r\n" } else { b"+none\r\n" });
        }
        _ => {
            let value_at = command.verb.value_index().unwrap_or(2);
            let mut options = options_before_value(command, arguments, now)?;
            let value = arguments[value_at];
            check_size(key, value.len())?;
            if command.verb == RespVerb::Set {
                options = resp::set_options(&arguments[3..], now)?;
            }
            store_value(command.verb, key, ArgumentSource::Here(value), options, context, out);
        }
    }
    Ok(())
}

/// One key of many, except for `MSET`.
pub(super) fn of_many(
    verb: RespVerb,
    key: &[u8],
    count: &mut u64,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let (store, now) = (context.store, context.now);
    let counts = match verb {
        RespVerb::MGet => {
            value_or_nil(key, None, context, out);
            false
        }
        RespVerb::Del => store.delete(key, None, now) == Removal::Done,
        RespVerb::Touch => store.get(key, None, now, |_| ()).is_some(),
        _ => store.peek(key, now, |_| ()).is_some(),
    };
    *count += u64::from(counts);
}

/// The end of a command of many keys.
pub(super) fn answer_many(
    verb: RespVerb,
    count: u64,
    fault: Option<RespFault>,
    out: &mut impl ResponseBuffer,
) {
    match (verb, fault) {
        (_, Some(fault)) => error(fault, out),
        (RespVerb::MGet, None) => {}
        (RespVerb::MSet, None) => ok(out),
        _ => integer(count as i64, out),
    }
}

/// The options of the verbs that have them in front of the value; those of `SET` come behind it.
pub(super) fn options_before_value(
    command: &RespCommand,
    arguments: &[&[u8]],
    now: u32,
) -> Result<SetOptions, RespFault> {
    let mut options = SetOptions::default();
    match command.verb {
        RespVerb::SetNx => options.condition = Condition::Absent,
        RespVerb::GetSet => options.get = true,
        RespVerb::SetEx(unit) => {
            let time = (unit, Epoch::Now);
            let until = resp::end_of_life(arguments[2], time, now, command.name)?;
            options.life = ValueLifetime::Until(until);
        }
        _ => {}
    }
    Ok(options)
}

/// A value could be stored, as far as one can tell without what follows it.
pub(super) fn check_value(
    command: &RespCommand,
    arguments: &[&[u8]],
    value: &[u8],
    now: u32,
) -> Result<(), RespFault> {
    options_before_value(command, arguments, now)?;
    check_size(arguments[1], value.len())
}

fn check_size(key: &[u8], value_len: usize) -> Result<(), RespFault> {
    if key.len() > KEY_BYTES_MAX {
        Err(RespFault::KeyTooLong)
    } else if !item_fits(key.len(), value_len, 0) {
        Err(RespFault::TooLarge)
    } else {
        Ok(())
    }
}

/// Memory for a value that comes in pieces. Without it, the value before stays, as with Redis.
pub(super) fn reserve(
    key: &[u8],
    value_len: usize,
    context: &KvContext<'_>,
) -> Result<Reservation, RespFault> {
    check_size(key, value_len)?;
    let write = Write { verb: StoreVerb::Add, ..Write::PLAIN };
    let reserved = context.store.reserve(key, &write, value_len, context.now);
    reserved.map_err(|outcome| store_fault(outcome).unwrap_or(RespFault::OutOfMemory))
}

/// `MSET`'s part for one key.
pub(super) fn set_plainly(
    key: &[u8],
    value: &[u8],
    context: &KvContext<'_>,
) -> Result<(), RespFault> {
    check_size(key, value.len())?;
    let outcome = context.store.store(key, &Write::PLAIN, value, context.now);
    store_fault(outcome).map_or(Ok(()), Err)
}

/// Stores a value and answers, whatever the verb.
pub(super) fn store_value(
    verb: RespVerb,
    key: &[u8],
    source: ArgumentSource<'_>,
    options: SetOptions,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    match verb {
        RespVerb::Append => append(key, source, context, out),
        RespVerb::SetNx => {
            let write = Write { verb: StoreVerb::Add, ..Write::PLAIN };
            let outcome = source.put(key, &write, context);
            match outcome {
                StoreOutcome::Stored(_) => return integer(1, out),
                outcome => match store_fault(outcome) {
                    Some(fault) => error(fault, out),
                    None => integer(0, out),
                },
            }
            source.discard(context);
        }
        _ if options.get || options.life == ValueLifetime::Kept => {
            set_after_look(key, source, options, context, out);
        }
        _ => set(key, source, options, context, out),
    }
}

/// `SET` that need not know what was before.
fn set(
    key: &[u8],
    source: ArgumentSource<'_>,
    options: SetOptions,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let verb = match options.condition {
        Condition::Any => StoreVerb::Set,
        Condition::Absent => StoreVerb::Add,
        Condition::Present => StoreVerb::Replace,
    };
    let expires = if let ValueLifetime::Until(second) = options.life { second } else { 0 };
    match source.put(key, &Write { verb, expires, ..Write::PLAIN }, context) {
        StoreOutcome::Stored(_) => return ok(out),
        outcome => match store_fault(outcome) {
            Some(fault) => error(fault, out),
            None => nil(out),
        },
    }
    source.discard(context);
}

/// `SET` that answers with the value before, or keeps its end of life.
fn set_after_look(
    key: &[u8],
    source: ArgumentSource<'_>,
    options: SetOptions,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    loop {
        let look = |item: &StoredItem<'_>| {
            (item.cas, item.expires, options.get.then(|| item.value.to_vec()))
        };
        let before = context.store.get(key, None, context.now, look);
        let stored = match (options.condition, &before) {
            (Condition::Absent, Some(_)) | (Condition::Present, None) => Ok(false),
            _ => {
                let (cas, kept) = before.as_ref().map_or((None, 0), |it| (Some(it.0), it.1));
                let expires = match options.life {
                    ValueLifetime::Endless => 0,
                    ValueLifetime::Kept => kept,
                    ValueLifetime::Until(second) => second,
                };
                let verb = if cas.is_some() { StoreVerb::Set } else { StoreVerb::Add };
                match source.put(key, &Write { verb, cas, expires, ..Write::PLAIN }, context) {
                    StoreOutcome::Stored(_) => Ok(true),
                    outcome => match store_fault(outcome) {
                        Some(fault) => Err(fault),
                        // Another thread changed the item first.
                        None => continue,
                    },
                }
            }
        };
        match (stored, options.get, before) {
            (Err(fault), ..) => error(fault, out),
            (Ok(_), true, Some((_, _, Some(value)))) => bulk(&value, out),
            (Ok(true), false, _) => ok(out),
            _ => nil(out),
        }
        if stored != Ok(true) {
            source.discard(context);
        }
        return;
    }
}

fn append(
    key: &[u8],
    source: ArgumentSource<'_>,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let piece_len = match &source {
        ArgumentSource::Here(value) => value.len(),
        ArgumentSource::Arrived(reservation) => context.store.reserved_len(reservation),
    };
    loop {
        let look = |item: &StoredItem<'_>| (item.cas, item.value.len());
        let before = context.store.peek(key, context.now, look);
        let (verb, cas, old_len) = match before {
            Some((cas, len)) => (StoreVerb::Append, Some(cas), len),
            None => (StoreVerb::Add, None, 0),
        };
        match source.put(key, &Write { verb, cas, ..Write::PLAIN }, context) {
            StoreOutcome::Stored(_) => return integer((old_len + piece_len) as i64, out),
            outcome => {
                if let Some(fault) = store_fault(outcome) {
                    error(fault, out);
                    return source.discard(context);
                }
            }
        }
    }
}

fn get_and_delete(key: &[u8], context: &KvContext<'_>, out: &mut impl ResponseBuffer) {
    loop {
        let look = |item: &StoredItem<'_>| (item.cas, item.value.to_vec());
        let Some((cas, value)) = context.store.get(key, None, context.now, look) else {
            return nil(out);
        };
        if context.store.delete(key, Some(cas), context.now) == Removal::Done {
            return bulk(&value, out);
        }
    }
}

fn add(
    key: &[u8],
    by: i64,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) -> Result<(), RespFault> {
    if key.len() > KEY_BYTES_MAX {
        return Err(RespFault::KeyTooLong);
    }
    loop {
        let look = |item: &StoredItem<'_>| {
            let number = resp::integer(item.value);
            (Some(item.cas), number, item.expires, item.flags)
        };
        let before = context.store.peek(key, context.now, look);
        let (cas, number, expires, flags) = before.unwrap_or((None, Some(0), 0, 0));
        let sum =
            number.ok_or(RespFault::NotAnInteger)?.checked_add(by).ok_or(RespFault::Overflow)?;
        let verb = if cas.is_some() { StoreVerb::Set } else { StoreVerb::Add };
        let write = Write { verb, cas, expires, flags, ..Write::PLAIN };
        let outcome = context.store.store(key, &write, Signed::new(sum).bytes(), context.now);
        if let StoreOutcome::Stored(_) = outcome {
            integer(sum, out);
            return Ok(());
        }
        if let Some(fault) = store_fault(outcome) {
            return Err(fault);
        }
    }
}

fn time_left(
    key: &[u8],
    (unit, epoch): (Unit, Epoch),
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let expires = context.store.peek(key, context.now, |item| item.expires);
    let seconds = match (expires, epoch) {
        (None, _) => return integer(-2, out),
        (Some(0), _) => return integer(-1, out),
        (Some(second), Epoch::Unix) => second,
        (Some(second), Epoch::Now) => second.saturating_sub(context.now),
    };
    let per_second = if unit == Unit::Milliseconds { 1_000 } else { 1 };
    integer(i64::from(seconds) * per_second, out);
}

fn of_server(
    command: &RespCommand,
    arguments: &[&[u8]],
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) -> Result<(), RespFault> {
    match command.verb {
        RespVerb::Flush => {
            let words: [&[u8]; 2] = [b"async", b"sync"];
            let is_word = |word: &[u8]| words.iter().any(|it| it.eq_ignore_ascii_case(word));
            if arguments.get(1).is_some_and(|word| !is_word(word)) {
                return Err(RespFault::Syntax);
            }
            context.store.flush(context.now, context.now);
            ok(out);
        }
        RespVerb::DbSize => integer(context.store.counters().items as i64, out),
        RespVerb::Ping => match arguments.get(1) {
            Some(message) => bulk(message, out),
            None => out.extend_from_slice(b"+PONG\r\n"),
        },
        RespVerb::Echo => bulk(arguments[1], out),
        RespVerb::Select => match resp::integer(arguments[1]) {
            Some(0) => ok(out),
            Some(_) => return Err(RespFault::DbIndex),
            None => return Err(RespFault::NotAnInteger),
        },
        RespVerb::Hello => return hello(&arguments[1..], out),
        RespVerb::Auth => return Err(RespFault::NoPassword),
        RespVerb::Client => return client(arguments[1], out),
        RespVerb::Command => match arguments.get(1) {
            Some(word) if word.eq_ignore_ascii_case(b"count") => {
                integer(COMMANDS.len() as i64, out);
            }
            None => array(0, out),
            Some(word) if word.eq_ignore_ascii_case(b"docs") => array(0, out),
            Some(_) => return Err(RespFault::Subcommand("COMMAND")),
        },
        RespVerb::Config => return config(arguments, context, out),
        RespVerb::Info => bulk(info(context).as_bytes(), out),
        _ => {
            array(2, out);
            bulk(&Digits::new(u64::from(context.now)), out);
            bulk(b"0", out);
        }
    }
    Ok(())
}

fn hello(arguments: &[&[u8]], out: &mut impl ResponseBuffer) -> Result<(), RespFault> {
    match arguments.first().map(|version| resp::integer(version)) {
        None | Some(Some(2)) => {}
        Some(Some(_)) => return Err(RespFault::NoProtocol),
        Some(None) => return Err(RespFault::NotAVersion),
    }
    if arguments.iter().any(|word| word.eq_ignore_ascii_case(b"auth")) {
        return Err(RespFault::NoPassword);
    }
    array(14, out);
    for (name, value) in [
        ("server", Some("megapipe")),
        ("version", Some(VERSION)),
        ("proto", None),
        ("id", None),
        ("mode", Some("standalone")),
        ("role", Some("master")),
    ] {
        bulk(name.as_bytes(), out);
        match value {
            Some(value) => bulk(value.as_bytes(), out),
            None => integer(if name == "proto" { 2 } else { 0 }, out),
        }
    }
    bulk(b"modules", out);
    array(0, out);
    Ok(())
}

fn client(word: &[u8], out: &mut impl ResponseBuffer) -> Result<(), RespFault> {
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    if ["setname", "setinfo", "no-evict", "no-touch"].into_iter().any(is) {
        ok(out);
    } else if is("getname") {
        nil(out);
    } else if is("id") {
        integer(0, out);
    } else {
        return Err(RespFault::Subcommand("CLIENT"));
    }
    Ok(())
}

fn config(
    arguments: &[&[u8]],
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) -> Result<(), RespFault> {
    if arguments[1].eq_ignore_ascii_case(b"resetstat") && arguments.len() == 2 {
        context.store.reset_counters();
        context.server.reset();
        ok(out);
        return Ok(());
    }
    if !arguments[1].eq_ignore_ascii_case(b"get") || arguments.len() < 3 {
        return Err(RespFault::Subcommand("CONFIG"));
    }
    let maxmemory = context.store.memory_bytes().to_string();
    let settings = [
        ("save", ""),
        ("appendonly", "no"),
        ("databases", "1"),
        ("maxmemory", maxmemory.as_str()),
        ("maxmemory-policy", "allkeys-lru"),
    ];
    let asked = |name: &str| {
        arguments[2..].iter().any(|it| *it == b"*" || it.eq_ignore_ascii_case(name.as_bytes()))
    };
    let count = settings.iter().filter(|(name, _)| asked(name)).count();
    array(2 * count as u32, out);
    for (name, value) in settings.iter().filter(|(name, _)| asked(name)) {
        bulk(name.as_bytes(), out);
        bulk(value.as_bytes(), out);
    }
    Ok(())
}

/// All sections, whichever were asked for.
fn info(context: &KvContext<'_>) -> String {
    let (server, counters) = (context.server.snapshot(), context.store.counters());
    let seconds = |us: u64| us as f64 / 1e6;
    let port = server.address.rsplit_once(':').map_or("0", |(_, port)| port);
    format!(
        "# Server\r\nredis_mode:standalone\r\nmegapipe_version:{VERSION}\r\nprocess_id:{}\r\n\
         tcp_port:{port}\r\nuptime_in_seconds:{}\r\n\r\n\
         # Clients\r\nconnected_clients:{}\r\nmaxclients:{}\r\n\r\n\
         # Memory\r\nused_memory:{}\r\nmaxmemory:{}\r\nmaxmemory_policy:allkeys-lru\r\n\r\n\
         # Stats\r\ntotal_connections_received:{}\r\ntotal_net_input_bytes:{}\r\n\
         total_net_output_bytes:{}\r\nevicted_keys:{}\r\nkeyspace_hits:{}\r\n\
         keyspace_misses:{}\r\n\r\n\
         # Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n\
         # CPU\r\nused_cpu_sys:{:.6}\r\nused_cpu_user:{:.6}\r\n\r\n\
         # Keyspace\r\ndb0:keys={},expires=0,avg_ttl=0\r\n",
        server.pid,
        server.uptime_s,
        server.connections,
        server.connections_max,
        counters.used_bytes + counters.table_bytes,
        context.store.memory_bytes(),
        server.connections_total,
        server.bytes_read,
        server.bytes_written,
        counters.evictions,
        counters.get_hits,
        counters.get_misses,
        seconds(server.system_us),
        seconds(server.user_us),
        counters.items,
    )
}

/// Returns the error for a failed store; `None` if it succeeded or a condition did not hold.
pub(super) const fn store_fault(outcome: StoreOutcome) -> Option<RespFault> {
    match outcome {
        StoreOutcome::TooLarge => Some(RespFault::TooLarge),
        StoreOutcome::OutOfMemory => Some(RespFault::OutOfMemory),
        StoreOutcome::Stored(_)
        | StoreOutcome::NotStored
        | StoreOutcome::Exists
        | StoreOutcome::NotFound => None,
    }
}

fn value_or_nil(
    key: &[u8],
    touch: Option<u32>,
    context: &KvContext<'_>,
    out: &mut impl ResponseBuffer,
) {
    let found = context.store.get(key, touch, context.now, |item| bulk(item.value, out));
    if found.is_none() {
        nil(out);
    }
}

/// A number with its sign.
struct Signed {
    bytes: [u8; 21],
    start: usize,
}

impl Signed {
    fn new(number: i64) -> Self {
        let digits = Digits::new(number.unsigned_abs());
        let mut bytes = [b'-'; 21];
        let start = bytes.len() - digits.len();
        bytes[start..].copy_from_slice(&digits);
        Self { bytes, start: start - usize::from(number < 0) }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

fn ok(out: &mut impl ResponseBuffer) {
    out.extend_from_slice(b"+OK\r\n");
}

pub(super) fn nil(out: &mut impl ResponseBuffer) {
    out.extend_from_slice(b"$-1\r\n");
}

fn header(first: u8, number: i64, out: &mut impl ResponseBuffer) {
    let number = Signed::new(number);
    let mut line = [first; 24];
    let end = 1 + number.bytes().len();
    line[1..end].copy_from_slice(number.bytes());
    line[end..end + 2].copy_from_slice(b"\r\n");
    out.extend_from_slice(&line[..end + 2]);
}

fn integer(number: i64, out: &mut impl ResponseBuffer) {
    header(b':', number, out);
}

/// So many answers follow.
pub(super) fn array(count: u32, out: &mut impl ResponseBuffer) {
    header(b'*', i64::from(count), out);
}

fn bulk(bytes: &[u8], out: &mut impl ResponseBuffer) {
    header(b'$', bytes.len() as i64, out);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn error(fault: RespFault, out: &mut impl ResponseBuffer) {
    out.extend_from_slice(format!("-{fault}\r\n").as_bytes());
}

pub(super) fn malformed_error(why: Malformed, out: &mut impl ResponseBuffer) {
    out.extend_from_slice(format!("-ERR {why}\r\n").as_bytes());
}

/// An answer is one line, whatever the name has in it.
pub(super) fn unknown_command_error(name: &[u8], out: &mut impl ResponseBuffer) {
    let why = resp::other_type(name).map_or_else(String::new, |kind| {
        format!(": this server stores strings only, {kind} are not supported")
    });
    let name = name[..name.len().min(NAME_BYTES_MAX)].escape_ascii();
    out.extend_from_slice(format!("-ERR unknown command '{name}'{why}\r\n").as_bytes());
}
