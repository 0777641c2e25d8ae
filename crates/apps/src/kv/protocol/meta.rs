//! The meta commands: two letters, a key, flags of one letter each with or without a token.
//!
//! Read first: memcached's `protocol.txt`, "Meta Commands" to "Meta No-Op".
//!
//! ```text
//! mg <key> <flags>*\r\n        ms <key> <datalen> <flags>*\r\n<data>\r\n
//! md <key> <flags>*\r\n        ma <key> <flags>*\r\n        me <key> [b]\r\n        mn\r\n
//! ```
//!
//! Flags are checked once, here. Those that a response repeats or answers are walked a second time
//! when the response is written, in the client's order: [`MetaCommand::flags`].
//!
//! Invariants
//! - A command that came out of [`parse`] has a key of 1 to 250 bytes and flags that are known,
//!   at most one of each, whose tokens are well formed.

use super::store_verb::StoreVerb;
use super::{CommandFault, parse_flags, parse_i64, parse_u64, parse_value_len, words};
use crate::kv::limits::{KEY_BYTES_MAX, META_WORDS_MAX, OPAQUE_BYTES_MAX};

/// Which meta command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MetaVerb {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
    /// `me`
    Debug,
    /// `mn`
    Noop,
}

/// A meta command's line.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaCommand<'a> {
    /// Which.
    pub verb: MetaVerb,
    /// The key as it was sent; responses repeat it so.
    pub key_text: &'a [u8],
    /// Whether the text is base64, and known to be well formed.
    base64: bool,
    /// The flags as they were sent.
    flags: &'a [u8],
    /// What they say.
    pub options: MetaOptions,
    /// Bytes of the data block without its CR LF (`ms`).
    pub value_len: usize,
    /// Why the command must be refused after its data block has passed (`ms`).
    pub refused: Option<CommandFault>,
}

/// What the flags of a meta command say. Expiry times are as sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetaOptions {
    /// `v`: the value is wanted.
    pub value: bool,
    /// `q`: no nominal response is wanted.
    pub quiet: bool,
    /// `u`: the item's age and its place in the eviction order stay.
    pub no_bump: bool,
    /// `I`: mark as stale.
    pub invalidate: bool,
    /// `N`: create on a miss, with this expiry time.
    pub vivify: Option<i64>,
    /// `T`: new expiry time.
    pub touch: Option<i64>,
    /// `R`: who finds less time left than this shall refresh the item.
    pub recache: Option<i64>,
    /// `C`: the cas unique that the item must have.
    pub cas: Option<u64>,
    /// `F`: client flags.
    pub client_flags: u32,
    /// `M`: a letter.
    pub mode: Option<u8>,
    /// `J`: the value of an item created by `ma`.
    pub initial: u64,
    /// `D`: what `ma` adds or takes away.
    pub delta: Option<u64>,
}

impl<'a> MetaCommand<'a> {
    /// The item's key; `scratch` is where a base64 key is decoded.
    #[must_use]
    pub fn key<'k>(&self, scratch: &'k mut KeyScratch) -> &'k [u8]
    where
        'a: 'k,
    {
        match self.base64.then(|| decode_base64(self.key_text, scratch)).flatten() {
            Some(len) => &scratch[..len],
            None => self.key_text,
        }
    }

    /// Whether the key was sent as base64.
    #[must_use]
    pub const fn is_base64(&self) -> bool {
        self.base64
    }

    /// The flags in the order they were sent, each with its token behind it.
    pub fn flags(&self) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        words(self.flags)
    }

    /// The flags as they stand in the line.
    #[must_use]
    pub const fn flag_text(&self) -> &'a [u8] {
        self.flags
    }

    /// What `ms` shall do; decided by [`parse`].
    #[must_use]
    pub fn store_verb(&self) -> StoreVerb {
        store_verb(self.options.mode).unwrap_or(StoreVerb::Set)
    }

    /// Whether `ma` takes away.
    #[must_use]
    pub fn down(&self) -> bool {
        arithmetic_down(self.options.mode).unwrap_or(false)
    }
}

/// Parses what follows `name`, two letters of which the first is an m.
///
/// # Errors
/// The line cannot be carried out, and its data block, if one follows, is not recognised as one.
pub fn parse<'a>(name: &[u8], arguments: &'a [u8]) -> Result<MetaCommand<'a>, CommandFault> {
    let verb = match name {
        b"mg" => MetaVerb::Get,
        b"ms" => MetaVerb::Set,
        b"md" => MetaVerb::Delete,
        b"ma" => MetaVerb::Arithmetic,
        b"me" => MetaVerb::Debug,
        b"mn" => MetaVerb::Noop,
        _ => return Err(CommandFault::UnknownCommand),
    };
    let mut command = MetaCommand {
        verb,
        key_text: &[],
        base64: false,
        flags: &[],
        options: MetaOptions::default(),
        value_len: 0,
        refused: None,
    };
    if verb == MetaVerb::Noop {
        return Ok(command);
    }
    let missing =
        if verb == MetaVerb::Debug { CommandFault::BadLine } else { CommandFault::UnknownCommand };
    let (key, rest) = split_word(arguments).ok_or(missing)?;
    if key.len() > KEY_BYTES_MAX {
        return Err(CommandFault::BadLine);
    }
    command.key_text = key;
    command.flags = rest;
    let mut words_before_flags = 2;
    if verb == MetaVerb::Set {
        let (len, rest) = split_word(rest).ok_or(CommandFault::BadLine)?;
        command.value_len = parse_value_len(len).ok_or(CommandFault::BadLine)?;
        command.flags = rest;
        words_before_flags = 3;
    }
    if words(command.flags).count() + words_before_flags > META_WORDS_MAX {
        let set = verb == MetaVerb::Set;
        return Err(if set { CommandFault::TooManySetFlags } else { CommandFault::TooManyFlags });
    }
    match (verb, parse_flags_of(&mut command)) {
        (_, Ok(())) => Ok(command),
        // me looks for one flag and overlooks all others.
        (MetaVerb::Debug, Err(CommandFault::BadBase64Key)) => Err(CommandFault::BadLine),
        (MetaVerb::Debug, Err(_)) => Ok(command),
        (MetaVerb::Delete | MetaVerb::Arithmetic, Err(fault)) => Err(match fault {
            CommandFault::InvalidArithmeticMode => fault,
            _ => CommandFault::InvalidOrDuplicateFlag,
        }),
        (_, Err(fault)) => refuse(command, fault),
    }
}

/// The first word of `text` and what follows it.
fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = text.iter().position(|&byte| byte != b' ')?;
    let text = &text[start..];
    let len = memchr::memchr(b' ', text).unwrap_or(text.len());
    Some(text.split_at(len))
}

/// A set is refused after its data block, so that the block is not taken for commands.
fn refuse(
    mut command: MetaCommand<'_>,
    fault: CommandFault,
) -> Result<MetaCommand<'_>, CommandFault> {
    if command.verb != MetaVerb::Set {
        return Err(fault);
    }
    command.refused = Some(fault);
    Ok(command)
}

/// Reads the flags into the options. Of several faults the last is reported, as in memcached,
/// except that an unknown or repeated flag ends the search.
fn parse_flags_of(command: &mut MetaCommand<'_>) -> Result<(), CommandFault> {
    let mut seen = 0u128;
    let mut result = Ok(());
    for flag in words(command.flags) {
        let (letter, token) = (flag[0], &flag[1..]);
        let bit = 1u128.checked_shl(u32::from(letter)).unwrap_or(0);
        if bit == 0 || seen & bit != 0 {
            return Err(CommandFault::DuplicateFlag);
        }
        seen |= bit;
        match parse_flag(command, letter, token) {
            Ok(()) => {}
            Err(CommandFault::InvalidFlag) => return Err(CommandFault::InvalidFlag),
            Err(fault) => result = Err(fault),
        }
    }
    result?;
    match command.verb {
        MetaVerb::Set => store_verb(command.options.mode).map(drop),
        MetaVerb::Arithmetic => arithmetic_down(command.options.mode).map(drop),
        _ => Ok(()),
    }
}

fn parse_flag(command: &mut MetaCommand<'_>, letter: u8, token: &[u8]) -> Result<(), CommandFault> {
    let options = &mut command.options;
    match letter {
        b'b' => {
            decode_base64(command.key_text, &mut key_scratch())
                .ok_or(CommandFault::BadBase64Key)?;
            command.base64 = true;
        }
        b'v' => options.value = true,
        b'q' => options.quiet = true,
        b'u' => options.no_bump = true,
        b'I' => options.invalidate = true,
        b'N' => options.vivify = Some(parse_i64(token).ok_or(CommandFault::BadToken)?),
        b'T' => options.touch = Some(parse_i64(token).ok_or(CommandFault::BadToken)?),
        b'R' => options.recache = Some(parse_i64(token).ok_or(CommandFault::BadToken)?),
        b'C' => options.cas = Some(parse_u64(token).ok_or(CommandFault::BadToken)?),
        b'F' => options.client_flags = parse_flags(token).ok_or(CommandFault::BadLine)?,
        b'J' => options.initial = parse_u64(token).ok_or(CommandFault::InvalidInitial)?,
        b'D' => options.delta = Some(parse_u64(token).ok_or(CommandFault::InvalidDeltaToken)?),
        b'M' => match token {
            [mode] => options.mode = Some(*mode),
            _ => return Err(CommandFault::ModeLength),
        },
        b'O' if token.len() >= OPAQUE_BYTES_MAX => return Err(CommandFault::OpaqueTooLong),
        // Answered when the response is written, or hints for a proxy.
        b'O' | b'k' | b's' | b't' | b'c' | b'f' | b'h' | b'l' | b'P' | b'L' => {}
        _ => return Err(CommandFault::InvalidFlag),
    }
    Ok(())
}

fn store_verb(mode: Option<u8>) -> Result<StoreVerb, CommandFault> {
    match mode {
        None | Some(b'S') => Ok(StoreVerb::Set),
        Some(b'E') => Ok(StoreVerb::Add),
        Some(b'A') => Ok(StoreVerb::Append),
        Some(b'P') => Ok(StoreVerb::Prepend),
        Some(b'R') => Ok(StoreVerb::Replace),
        Some(_) => Err(CommandFault::InvalidSetMode),
    }
}

fn arithmetic_down(mode: Option<u8>) -> Result<bool, CommandFault> {
    match mode {
        None | Some(b'I' | b'+') => Ok(false),
        Some(b'D' | b'-') => Ok(true),
        Some(_) => Err(CommandFault::InvalidArithmeticMode),
    }
}

/// Room for one key.
pub type KeyScratch = [u8; KEY_BYTES_MAX];

/// Room for one key, empty.
#[must_use]
pub const fn key_scratch() -> KeyScratch {
    [0; KEY_BYTES_MAX]
}

/// RFC 4648 §4 with padding, nothing left over, at least one byte. Returns how many there are.
fn decode_base64(text: &[u8], decoded: &mut KeyScratch) -> Option<usize> {
    if text.is_empty() || !text.len().is_multiple_of(4) {
        return None;
    }
    let mut len = 0;
    let last = text.len() / 4 - 1;
    for (index, quad) in text.chunks_exact(4).enumerate() {
        let padding = quad.iter().rev().take_while(|&&byte| byte == b'=').count();
        if padding > 2 || (padding > 0 && index != last) {
            return None;
        }
        let mut bits = 0u32;
        for &byte in &quad[..4 - padding] {
            bits = bits << 6 | sextet(byte)?;
        }
        bits <<= 6 * padding;
        for shift in [16, 8, 0].into_iter().take(3 - padding) {
            *decoded.get_mut(len)? = (bits >> shift) as u8;
            len += 1;
        }
    }
    Some(len)
}

const fn sextet(byte: u8) -> Option<u32> {
    let value = match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value as u32)
}

#[cfg(test)]
mod tests;
