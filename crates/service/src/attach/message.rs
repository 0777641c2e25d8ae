//! Messages of the handshake: HELLO, WELCOME, READY and REFUSED, as bytes.
//!
//! ```text
//!  every message | magic (8) | kind (2) |
//!  HELLO         | oldest version (2) | newest (2) | record bytes (2) | sizes (6 × 4) | name |
//!  WELCOME       | version (2) | record bytes (2) | sizes (6 × 4) | limits (4 × 4) | lanes (2) |
//!                | description |
//!  READY         | version (2) |
//!  REFUSED       | code (2) | oldest version (2) | newest (2) | sentence |
//!  OPEN          | nothing; one end of a pair of sockets comes with it, over a token |
//! ```
//!
//! Integers are native-endian: both ends are on one machine. A text is its length (2) and UTF-8.
//!
//! Version 2 has the number of lanes in WELCOME; in version 1 there is one. Sizes are of each lane.
//! Version 3 has messages within a session (`descriptors/message.rs`). Later versions have more
//! kinds of these, and of records: the constants below say what came when.
//!
//! Versions: a HELLO begins the same in every version. One of a newer client may be longer than
//! those of ours; what follows is ignored, since we choose a version that we know. REFUSED is the
//! same in every version, so each client can print it.
//!
//! Invariants
//! - A reader accepts exactly what the writer makes: no byte is missing, and none is left over.
//! - Lengths are checked before memory is allocated; a message has at most [`MESSAGE_BYTES_MAX`].
//! - No text has control characters: it can be printed to a terminal.

use crate::descriptors::DescriptorPassing;
use crate::limits::{CONNECTIONS_OF_SESSION_MAX, MESSAGE_BYTES_MAX};
use crate::remote::SessionFeatures;
use crate::session_sizes::{SessionSizes, SizeOutOfRange};

/// The first bytes of every message.
const MAGIC: [u8; 8] = *b"megapipe";
/// The versions that this code speaks, oldest and newest.
pub const VERSIONS: (u16, u16) = (1, 11);
/// The first version with several lanes.
const LANES_SINCE: u16 = 2;
/// The first version with messages within a session.
const DESCRIPTORS_SINCE: u16 = 3;
/// The first version with sockets for connections and listeners among them.
const SOCKETS_SINCE: u16 = 4;
/// The first version with connections that are reset when their session ends.
const RESETS_SINCE: u16 = 5;
/// The first version with tokens.
const TOKENS_SINCE: u16 = 6;
/// The first version with flags in the record that begins to connect.
const CONNECT_FLAGS_SINCE: u16 = 7;
/// The first version with the local address of a new connection, and the bytes of a broken one.
const EVENT_DETAILS_SINCE: u16 = 8;
/// The first version with endpoints for datagrams that tokens own.
const SHARED_ENDPOINTS_SINCE: u16 = 9;
/// The first version with endpoints for datagrams that exclude those of other programs.
const EXCLUSIVE_ENDPOINTS_SINCE: u16 = 10;
/// The first version with connections that are being opened, and listeners, that tokens own.
const SHARED_LISTENERS_SINCE: u16 = 11;
/// Bytes of a record of the rings.
pub const RECORD_BYTES: u16 = size_of::<megapipe_shm::record::Record>() as u16;
/// Longest name of a program in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Longest sentence of a refusal in bytes.
const SENTENCE_BYTES_MAX: usize = 512;

const HELLO: u16 = 1;
const WELCOME: u16 = 2;
const READY: u16 = 3;
const REFUSED: u16 = 4;
/// Of a token. 5 and 6 are those of queries.
const OPEN: u16 = 7;

/// Why bytes are no message of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageFault {
    /// The magic is missing.
    #[error("it is no message of megapipe")]
    Magic,
    /// Another kind of message is due.
    #[error("a message of kind {kind} is not due")]
    Kind {
        /// The kind of the message.
        kind: u16,
    },
    /// The message ends early, or has bytes behind its end.
    #[error("its length is wrong")]
    Length,
    /// A value that no correct writer writes.
    #[error("{0} is invalid")]
    Value(&'static str),
    /// A size of the session is out of range.
    #[error(transparent)]
    Size(#[from] SizeOutOfRange),
}

/// The first message: what a client speaks and wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachHello {
    /// Oldest and newest version that the client speaks.
    pub versions: (u16, u16),
    /// Bytes of a record as the client has it.
    pub record_bytes: u16,
    /// Wanted sizes; the daemon may agree to less.
    pub sizes: SessionSizes,
    /// Name of the program, for logs.
    pub name: String,
}

/// What a client has, by its version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientFeatures {
    /// A session of several lanes.
    pub has_lanes: bool,
    /// It reads where a new connection begins, and that bytes of a broken one are left
    /// ([`SessionLimits::knows_event_details`]).
    ///
    /// [`SessionLimits::knows_event_details`]: crate::SessionLimits::knows_event_details
    pub knows_event_details: bool,
    /// It shares connections that are being opened ([`SessionLimits::shares_connecting`]).
    ///
    /// [`SessionLimits::shares_connecting`]: crate::SessionLimits::shares_connecting
    pub shares_connecting: bool,
}

/// Limits of a session, as its client is informed of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgreedLimits {
    /// Connections.
    pub connections: u32,
    /// Connections that are being established.
    pub connecting: u32,
    /// Listeners.
    pub listeners: u32,
    /// Endpoints for datagrams.
    pub endpoints: u32,
}

/// The answer to a HELLO. The region and the client's end of each lane's bell come with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The version of the session.
    pub version: u16,
    /// Bytes of a record.
    pub record_bytes: u16,
    /// Agreed sizes of a lane.
    pub sizes: SessionSizes,
    /// What the session may have at once.
    pub limits: AgreedLimits,
    /// Lanes, at least 1.
    pub lanes: u16,
    /// Description of the server: capabilities, addresses, shard.
    pub description: Vec<u8>,
}

/// Why a client was refused, in classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum RefusalCode {
    /// No version is common.
    Version = 1,
    /// Records have different sizes.
    RecordBytes = 2,
    /// The HELLO is invalid.
    Hello = 3,
    /// Handshakes in progress have reached their limit: a later attempt may succeed.
    Busy = 4,
    /// Sessions have reached their limit.
    Sessions = 5,
    /// The policy does not allow it.
    Policy = 6,
    /// The daemon lacks memory or descriptors.
    Resources = 7,
    /// A code of a newer daemon.
    Other = 0xffff,
}

impl RefusalCode {
    const fn of(code: u16) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::RecordBytes,
            3 => Self::Hello,
            4 => Self::Busy,
            5 => Self::Sessions,
            6 => Self::Policy,
            7 => Self::Resources,
            _ => Self::Other,
        }
    }
}

/// The other answer to a HELLO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The class.
    pub code: RefusalCode,
    /// Oldest and newest version that the daemon speaks.
    pub versions: (u16, u16),
    /// A sentence that names the rule and the value.
    pub sentence: String,
}

/// What a daemon answers to a HELLO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloAnswer {
    /// The session can begin.
    Welcome(Welcome),
    /// It does not.
    Refused(Refused),
}

/// Whether a text can be printed and is within its limit.
fn is_plain(text: &str, max: usize) -> bool {
    text.len() <= max && !text.chars().any(char::is_control)
}

/// As much of a text as has room, without control characters.
fn plain(text: &str, max: usize) -> String {
    let text: String = text.chars().filter(|it| !it.is_control()).collect();
    text[..text.floor_char_boundary(max)].to_owned()
}

struct MessageWriter(Vec<u8>);

impl MessageWriter {
    fn new(kind: u16) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(kind.to_ne_bytes());
        Self(bytes)
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32s(mut self, values: &[u32]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_ne_bytes()));
        self
    }

    /// At most 65,535 bytes.
    fn bytes(self, bytes: &[u8]) -> Self {
        let mut this = self.u16(bytes.len() as u16);
        this.0.extend(bytes);
        this
    }
}

struct MessageReader<'bytes>(&'bytes [u8]);

impl<'bytes> MessageReader<'bytes> {
    /// Checks the magic, and returns the kind.
    fn new(bytes: &'bytes [u8]) -> Result<(u16, Self), MessageFault> {
        let body = bytes.strip_prefix(&MAGIC).ok_or(MessageFault::Magic)?;
        let mut reader = Self(body);
        let kind = reader.u16()?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageFault::Length);
        }
        Ok((kind, reader))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageFault> {
        let (value, rest) = self.0.split_first_chunk().ok_or(MessageFault::Length)?;
        self.0 = rest;
        Ok(*value)
    }

    fn u16(&mut self) -> Result<u16, MessageFault> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, MessageFault> {
        self.array().map(u32::from_ne_bytes)
    }

    fn versions(&mut self) -> Result<(u16, u16), MessageFault> {
        let (oldest, newest) = (self.u16()?, self.u16()?);
        if oldest == 0 || oldest > newest {
            return Err(MessageFault::Value("the range of versions"));
        }
        Ok((oldest, newest))
    }

    fn bytes(&mut self) -> Result<&'bytes [u8], MessageFault> {
        let len = usize::from(self.u16()?);
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(MessageFault::Length)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self, what: &'static str, max: usize) -> Result<String, MessageFault> {
        let text = std::str::from_utf8(self.bytes()?).ok().filter(|text| is_plain(text, max));
        text.map(ToOwned::to_owned).ok_or(MessageFault::Value(what))
    }

    fn sizes(&mut self) -> Result<SessionSizes, MessageFault> {
        let sizes = SessionSizes {
            ops: self.u32()?,
            events: self.u32()?,
            receive_bytes: self.u32()?,
            receive_buffers: self.u32()?,
            small_sends: self.u32()?,
            large_sends: self.u32()?,
        };
        sizes.check()?;
        Ok(sizes)
    }

    const fn end(self) -> Result<(), MessageFault> {
        if self.0.is_empty() { Ok(()) } else { Err(MessageFault::Length) }
    }
}

const fn values_of(sizes: &SessionSizes) -> [u32; 6] {
    let SessionSizes { ops, events, receive_bytes, receive_buffers, small_sends, large_sends } =
        *sizes;
    [ops, events, receive_bytes, receive_buffers, small_sends, large_sends]
}

impl AttachHello {
    /// A HELLO of this code's versions.
    #[must_use]
    pub fn new(name: &str, sizes: SessionSizes) -> Self {
        let name = plain(name, NAME_BYTES_MAX);
        Self { versions: VERSIONS, record_bytes: RECORD_BYTES, sizes, name }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { versions, record_bytes, sizes, name } = self;
        let head = MessageWriter::new(HELLO).u16(versions.0).u16(versions.1).u16(*record_bytes);
        head.u32s(&values_of(sizes)).bytes(name.as_bytes()).0
    }

    /// Reads a HELLO of any version.
    ///
    /// # Errors
    /// [`MessageFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageFault> {
        let (kind, mut from) = MessageReader::new(bytes)?;
        if kind != HELLO {
            return Err(MessageFault::Kind { kind });
        }
        let (versions, record_bytes) = (from.versions()?, from.u16()?);
        if versions.0 > VERSIONS.1 {
            // None of its versions is known: what follows may be anything, and is not needed.
            let (name, sizes) = (String::new(), SessionSizes::LEAST);
            return Ok(Self { versions, record_bytes, sizes, name });
        }
        let sizes = from.sizes()?;
        let name = from.text("the program's name", NAME_BYTES_MAX)?;
        if versions.1 <= VERSIONS.1 {
            from.end()?;
        }
        Ok(Self { versions, record_bytes, sizes, name })
    }

    /// What a client of this version has.
    pub(super) const fn features(version: u16) -> ClientFeatures {
        ClientFeatures {
            has_lanes: version >= LANES_SINCE,
            knows_event_details: version >= EVENT_DETAILS_SINCE,
            shares_connecting: version >= SHARED_LISTENERS_SINCE,
        }
    }

    /// The newest version that both ends speak.
    ///
    /// # Errors
    /// A refusal that names both ranges of versions, or both sizes of records.
    pub fn negotiate(&self) -> Result<u16, Refused> {
        let ((oldest, newest), (ours_oldest, ours_newest)) = (self.versions, VERSIONS);
        if newest < ours_oldest || oldest > ours_newest {
            let sentence = format!(
                "the program speaks versions {oldest} to {newest} of the protocol, this daemon \
                 {ours_oldest} to {ours_newest}"
            );
            return Err(Refused::new(RefusalCode::Version, &sentence));
        }
        if self.record_bytes != RECORD_BYTES {
            let theirs = self.record_bytes;
            let sentence =
                format!("the program's records have {theirs} bytes, this daemon's {RECORD_BYTES}");
            return Err(Refused::new(RefusalCode::RecordBytes, &sentence));
        }
        Ok(newest.min(ours_newest))
    }
}

impl Welcome {
    /// Whether descriptors are passed in a session of this version.
    pub(super) const fn takes_descriptors(version: u16) -> bool {
        version >= DESCRIPTORS_SINCE
    }

    /// What a session of this version can do.
    pub(super) const fn features(version: u16) -> SessionFeatures {
        SessionFeatures {
            passing: Self::passing(version),
            resets: version >= RESETS_SINCE,
            connect_flags: version >= CONNECT_FLAGS_SINCE,
            exclusive_endpoints: version >= EXCLUSIVE_ENDPOINTS_SINCE,
        }
    }

    /// Which descriptors a session of this version may pass.
    const fn passing(version: u16) -> DescriptorPassing {
        match version {
            SHARED_LISTENERS_SINCE.. => DescriptorPassing::Listeners,
            SHARED_ENDPOINTS_SINCE.. => DescriptorPassing::Endpoints,
            TOKENS_SINCE.. => DescriptorPassing::Tokens,
            SOCKETS_SINCE.. => DescriptorPassing::Sockets,
            DESCRIPTORS_SINCE.. => DescriptorPassing::Reservations,
            _ => DescriptorPassing::Nothing,
        }
    }

    /// As bytes. The description has at most 4 KiB.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { version, record_bytes, sizes, limits, lanes, description } = self;
        let AgreedLimits { connections, connecting, listeners, endpoints } = *limits;
        let head = MessageWriter::new(WELCOME).u16(*version).u16(*record_bytes);
        let limits = [connections, connecting, listeners, endpoints];
        let head = head.u32s(&values_of(sizes)).u32s(&limits);
        let head = if *version >= LANES_SINCE { head.u16(*lanes) } else { head };
        head.bytes(description).0
    }

    fn decode(mut from: MessageReader<'_>) -> Result<Self, MessageFault> {
        let (version, record_bytes) = (from.u16()?, from.u16()?);
        let sizes = from.sizes()?;
        let limits = AgreedLimits {
            connections: from.u32()?,
            connecting: from.u32()?,
            listeners: from.u32()?,
            endpoints: from.u32()?,
        };
        let lanes = if version >= LANES_SINCE { from.u16()? } else { 1 };
        sizes.check_lanes(lanes)?;
        let description = from.bytes()?.to_vec();
        from.end()?;
        Ok(Self { version, record_bytes, sizes, limits, lanes, description })
    }

    /// Checks the answer to a HELLO: no more than was asked for.
    ///
    /// # Errors
    /// [`MessageFault::Value`] names what no correct daemon answers.
    pub fn check(&self, hello: &AttachHello) -> Result<(), MessageFault> {
        let (oldest, newest) = hello.versions;
        if !(oldest..=newest).contains(&self.version) {
            return Err(MessageFault::Value("the version"));
        }
        if self.record_bytes != hello.record_bytes {
            return Err(MessageFault::Value("the size of records"));
        }
        let sizes = values_of(&self.sizes).into_iter().zip(values_of(&hello.sizes));
        let is_same = self.sizes.receive_bytes == hello.sizes.receive_bytes;
        if !is_same || sizes.into_iter().any(|(agreed, wanted)| agreed > wanted) {
            return Err(MessageFault::Value("a size"));
        }
        if self.limits.connections > CONNECTIONS_OF_SESSION_MAX {
            return Err(MessageFault::Value("the number of connections"));
        }
        Ok(())
    }
}

impl Refused {
    /// A refusal. Control characters of the sentence are left out.
    #[must_use]
    pub fn new(code: RefusalCode, sentence: &str) -> Self {
        Self { code, versions: VERSIONS, sentence: plain(sentence, SENTENCE_BYTES_MAX) }
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { code, versions, sentence } = self;
        let head = MessageWriter::new(REFUSED).u16(*code as u16).u16(versions.0).u16(versions.1);
        head.bytes(sentence.as_bytes()).0
    }

    fn decode(mut from: MessageReader<'_>) -> Result<Self, MessageFault> {
        let (code, versions) = (RefusalCode::of(from.u16()?), from.versions()?);
        let sentence = from.text("the sentence", SENTENCE_BYTES_MAX)?;
        from.end()?;
        Ok(Self { code, versions, sentence })
    }
}

impl HelloAnswer {
    /// Reads the answer to a HELLO.
    ///
    /// # Errors
    /// [`MessageFault`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageFault> {
        match MessageReader::new(bytes)? {
            (WELCOME, body) => Welcome::decode(body).map(Self::Welcome),
            (REFUSED, body) => Refused::decode(body).map(Self::Refused),
            (kind, _) => Err(MessageFault::Kind { kind }),
        }
    }
}

/// The READY of a client that has mapped its region, as bytes.
#[must_use]
pub fn encode_ready(version: u16) -> Vec<u8> {
    MessageWriter::new(READY).u16(version).0
}

/// OPEN as bytes: with one end of a pair of sockets, over which a handshake follows.
#[must_use]
pub(super) fn encode_open() -> Vec<u8> {
    MessageWriter::new(OPEN).0
}

/// Whether a message over a token is an OPEN.
pub(super) fn is_open(bytes: &[u8]) -> bool {
    MessageReader::new(bytes).is_ok_and(|(kind, from)| kind == OPEN && from.end().is_ok())
}

/// Checks a READY for a session of `version`.
///
/// # Errors
/// [`MessageFault`].
pub fn decode_ready(bytes: &[u8], version: u16) -> Result<(), MessageFault> {
    let (kind, mut from) = MessageReader::new(bytes)?;
    if kind != READY {
        return Err(MessageFault::Kind { kind });
    }
    if from.u16()? != version {
        return Err(MessageFault::Value("the version"));
    }
    from.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LANES_MAX;

    fn hello() -> AttachHello {
        AttachHello::new("program", SessionSizes::LEAST)
    }

    fn welcome() -> Welcome {
        let limits = AgreedLimits { connections: 7, connecting: 6, listeners: 5, endpoints: 4 };
        let (version, record_bytes, sizes) = (1, RECORD_BYTES, SessionSizes::LEAST);
        Welcome { version, record_bytes, sizes, limits, lanes: 1, description: vec![1, 2, 3] }
    }

    fn refused() -> Refused {
        Refused::new(RefusalCode::Sessions, "no shard is free (limit 2)")
    }

    /// Every message is read by this: whether it was accepted.
    fn is_read(bytes: &[u8]) -> bool {
        AttachHello::decode(bytes).is_ok()
            || HelloAnswer::decode(bytes).is_ok()
            || decode_ready(bytes, 1).is_ok()
    }

    fn messages() -> [Vec<u8>; 4] {
        [hello().encode(), welcome().encode(), refused().encode(), encode_ready(1)]
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        assert_eq!(AttachHello::decode(&hello().encode()), Ok(hello()));
        let answer = HelloAnswer::decode(&welcome().encode());
        assert_eq!(answer, Ok(HelloAnswer::Welcome(welcome())));
        let answer = HelloAnswer::decode(&refused().encode());
        assert_eq!(answer, Ok(HelloAnswer::Refused(refused())));
        assert_eq!(decode_ready(&encode_ready(1), 1), Ok(()));
        assert_eq!(welcome().check(&hello()), Ok(()));
        assert_eq!(hello().negotiate(), Ok(VERSIONS.1));
    }

    #[test]
    fn tokens_own_what_the_version_has() {
        for (version, passing) in [
            (5, DescriptorPassing::Sockets),
            (6, DescriptorPassing::Tokens),
            (9, DescriptorPassing::Endpoints),
            (10, DescriptorPassing::Endpoints),
            (11, DescriptorPassing::Listeners),
        ] {
            assert_eq!(Welcome::features(version).passing, passing, "{version}");
        }
    }

    #[test]
    fn lanes_are_in_a_welcome_of_version_2() {
        let two = Welcome { version: 2, lanes: 3, ..welcome() };
        assert_eq!(HelloAnswer::decode(&two.encode()), Ok(HelloAnswer::Welcome(two.clone())));
        assert_eq!(two.check(&hello()), Ok(()));
        let one = Welcome { version: 1, ..two.clone() };
        assert_eq!(HelloAnswer::decode(&one.encode()), Ok(HelloAnswer::Welcome(welcome())));
        for lanes in [0, LANES_MAX + 1, u16::MAX] {
            let fault = HelloAnswer::decode(&Welcome { lanes, ..two.clone() }.encode());
            let Err(MessageFault::Size(fault)) = fault else { panic!("{fault:?}") };
            assert_eq!((fault.name, fault.max), ("lanes", LANES_MAX.into()));
        }
    }

    #[test]
    fn cut_and_extended_messages_are_faults() {
        for message in messages() {
            for len in 0..message.len() {
                assert!(!is_read(&message[..len]), "{len} of {message:?}");
            }
            let mut longer = message;
            longer.push(0);
            assert!(!is_read(&longer), "{longer:?}");
        }
    }

    #[test]
    fn wrong_magic_and_kind_are_faults() {
        for mut message in messages() {
            for place in 0..MAGIC.len() {
                message[place] ^= 1;
                assert!(!is_read(&message), "{message:?}");
                message[place] ^= 1;
            }
            message[8..10].copy_from_slice(&9_u16.to_ne_bytes());
            assert!(!is_read(&message), "{message:?}");
        }
        let fault = HelloAnswer::decode(&hello().encode()).expect_err("a HELLO is no answer");
        assert_eq!(fault, MessageFault::Kind { kind: HELLO });
        let too_long = [&hello().encode()[..], &[0; MESSAGE_BYTES_MAX]].concat();
        assert_eq!(AttachHello::decode(&too_long), Err(MessageFault::Length));
    }

    #[test]
    fn other_versions_are_refused_with_both_named() {
        let (oldest, newest) = VERSIONS;
        let older = AttachHello { versions: (oldest, newest + 3), ..hello() };
        assert_eq!(older.negotiate(), Ok(newest), "a newer client that speaks ours");
        // What a newer version adds is ignored.
        let longer = [&older.encode()[..], b"more"].concat();
        assert_eq!(AttachHello::decode(&longer), Ok(older));

        let future = AttachHello { versions: (newest + 1, newest + 3), ..hello() };
        let mut bytes = future.encode();
        bytes.truncate(16);
        let refused = AttachHello::decode(&bytes).expect("its head is known").negotiate();
        let refused = refused.expect_err("no version is common");
        assert_eq!(refused.code, RefusalCode::Version);
        for version in [oldest, newest, newest + 1, newest + 3] {
            assert!(refused.sentence.contains(&version.to_string()), "{}", refused.sentence);
        }
        let records =
            AttachHello { record_bytes: 65, ..hello() }.negotiate().expect_err("other records");
        assert_eq!(records.code, RefusalCode::RecordBytes);
        let none = AttachHello { versions: (3, 2), ..hello() };
        assert!(AttachHello::decode(&none.encode()).is_err());
    }

    /// The handshake of a client of version 1, as it was sent by the first that was released.
    #[test]
    fn recorded_hello_of_version_1_is_accepted() {
        let recorded = include_bytes!("../../testdata/hello_v1.bin");
        let hello = AttachHello::decode(recorded).expect("each daemon accepts it");
        assert_eq!((hello.versions, hello.record_bytes), ((1, 1), 64));
        assert_eq!(hello.name, "serve");
        assert_eq!(hello.negotiate(), Ok(1));
    }

    #[test]
    fn texts_with_control_characters_are_faults() {
        let name = "\u{1b}[31mred".to_owned();
        let hello = AttachHello { name, ..hello() };
        assert_eq!(
            AttachHello::decode(&hello.encode()),
            Err(MessageFault::Value("the program's name"))
        );
        assert_eq!(AttachHello::new("\u{1b}[31mred", SessionSizes::LEAST).name, "[31mred");
        let long = AttachHello::new(&"x".repeat(1_000), SessionSizes::LEAST);
        assert_eq!(AttachHello::decode(&long.encode()), Ok(long));
        let sentence = "a\nb".to_owned();
        let refused = Refused { sentence, ..refused() };
        assert!(HelloAnswer::decode(&refused.encode()).is_err());
    }

    #[test]
    fn welcome_that_gives_more_than_was_asked_is_a_fault() {
        let check = |welcome: Welcome| welcome.check(&hello());
        let (good, sizes) = (welcome(), SessionSizes::LEAST);
        for (welcome, what) in [
            (Welcome { version: VERSIONS.1 + 1, ..good.clone() }, "the version"),
            (Welcome { version: 0, ..good.clone() }, "the version"),
            (Welcome { record_bytes: 128, ..good.clone() }, "the size of records"),
            (
                Welcome { sizes: SessionSizes { receive_buffers: 2, ..sizes }, ..good.clone() },
                "a size",
            ),
            (
                Welcome { sizes: SessionSizes { receive_bytes: 32, ..sizes }, ..good.clone() },
                "a size",
            ),
            (
                Welcome {
                    limits: AgreedLimits { connections: u32::MAX, ..good.limits },
                    ..good.clone()
                },
                "the number of connections",
            ),
        ] {
            assert_eq!(check(welcome), Err(MessageFault::Value(what)));
        }
        let sizes = SessionSizes { receive_buffers: u32::MAX, ..sizes };
        let too_large = Welcome { sizes, ..good }.encode();
        assert!(matches!(HelloAnswer::decode(&too_large), Err(MessageFault::Size(_))));
    }
}
