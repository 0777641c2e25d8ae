//! Reads `tests/data/kv_transcripts.txt` and `kv_resp.txt`, whose heads say what they mean. Used
//! without a network by the tests beside this file, and over a network by those in
//! `tests/tests/kv_server`.

/// A connection's commands, in order.
pub(crate) struct Conversation {
    pub(crate) name: String,
    pub(crate) exchanges: Vec<Exchange>,
}

/// One command and its answer, in the file's notation.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) sent: String,
    pub(crate) ours: String,
    /// Of the server that this was recorded from.
    pub(crate) theirs: String,
    /// Whether the server closes then.
    pub(crate) closed: bool,
}

/// Conversations with memcached.
pub(crate) fn conversations() -> Vec<Conversation> {
    parse(include_str!("../../../../../../tests/data/kv_transcripts.txt"))
}

/// Conversations with Redis.
pub(crate) fn resp_conversations() -> Vec<Conversation> {
    parse(include_str!("../../../../../../tests/data/kv_resp.txt"))
}

/// The bytes of a command of [`resp_conversations`].
pub(crate) fn resp_bytes_of(text: &str) -> Vec<u8> {
    if let Some(raw) = text.strip_prefix("raw:") {
        return bytes_of(raw);
    }
    let words: Vec<_> = text.split(' ').collect();
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = if word == "\"\"" { Vec::new() } else { bytes_of(word) };
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(&word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn parse(text: &str) -> Vec<Conversation> {
    let (_, text) = text.split_once("\n\n").expect("a head and conversations");
    let mut conversations = Vec::new();
    for block in text.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let mut lines = block.trim_start_matches('\n').lines();
        let name = lines.next().and_then(|line| line.strip_prefix("# ")).expect("a name");
        let mut exchanges = Vec::new();
        for line in lines {
            let (mark, rest) = line.split_once(' ').expect("a mark and a text");
            let rest = rest.to_owned();
            if mark == ">" {
                exchanges.push(Exchange { sent: rest, ..Exchange::default() });
                continue;
            }
            let exchange: &mut Exchange = exchanges.last_mut().expect("a command before");
            match mark {
                "<" => (exchange.ours, exchange.theirs) = (rest.clone(), rest),
                "<ours" => exchange.ours = rest,
                "<memcached" | "<redis" => exchange.theirs = rest,
                "!" => exchange.closed = true,
                "%" => {}
                _ => panic!("{name}: what is {line}?"),
            }
        }
        conversations.push(Conversation { name: name.to_owned(), exchanges });
    }
    assert!(conversations.len() > 10, "the file has been read to its end");
    conversations
}

/// The bytes that the notation stands for.
pub(crate) fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some((count, tail)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('*'))
            && let Ok(count) = count.parse::<usize>()
        {
            bytes.extend(std::iter::repeat_n(tail.as_bytes()[0], count));
            rest = &tail[2..];
        } else if first == '\\' {
            let (byte, len) = match &rest[1..2] {
                "r" => (b'\r', 2),
                "n" => (b'\n', 2),
                "t" => (b'\t', 2),
                "x" => (u8::from_str_radix(&rest[2..4], 16).expect("two digits"), 4),
                _ => (b'\\', 2),
            };
            bytes.push(byte);
            rest = &rest[len..];
        } else {
            bytes.push(first as u8);
            rest = &rest[1..];
        }
    }
    bytes
}

/// Whether `got` is what `expected` says; keeps the last number that `{cas}` stands for.
pub(crate) fn matches_pattern(expected: &str, mut got: &[u8], cas: &mut String) -> bool {
    let mut rest = expected;
    loop {
        let mark = rest.find("{cas}").into_iter().chain(rest.find("{~")).min();
        let (literal, pattern) = rest.split_at(mark.unwrap_or(rest.len()));
        let Some(after) = got.strip_prefix(&bytes_of(literal)[..]) else {
            return false;
        };
        let Some((pattern, tail)) = pattern.split_once('}') else {
            return after.is_empty();
        };
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (number, after) = after.split_at(digits);
        let number = String::from_utf8_lossy(number).into_owned();
        let about = pattern.strip_prefix("{~").map(|text| text.parse::<u64>().expect("a number"));
        match (number.parse::<u64>(), about) {
            (Ok(_), None) => *cas = number,
            (Ok(number), Some(about)) if number.abs_diff(about) <= 2 => {}
            _ => return false,
        }
        (rest, got) = (tail, after);
    }
}
