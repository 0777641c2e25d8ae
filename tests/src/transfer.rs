//! Transfers with half-closes: what both ends know, and the end that uses the kernel's sockets.
//!
//! The client opens with a [`Header`]. Then, by [`Mode`], both ends send the same number of bytes,
//! which follow from the header's seed, and each checks what it gets:
//!
//! ```text
//! Echo    client: bytes, FIN        server: the same bytes back as they come, then FIN
//! Give    server: bytes, FIN        client: once it has seen that FIN, other bytes, then FIN
//! ```
//!
//! The end that runs on a channel is `src/bin/interop.rs`.
//!
//! Invariant: nothing here is trusted; bytes that differ or are missing are an error.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

/// Bytes of a header.
pub const HEADER_LEN: usize = 17;
/// Most bytes that a header may ask for.
pub const LEN_MAX: u64 = 1 << 30;
/// Bytes that are sent and read at once.
pub const CHUNK_LEN: usize = 16 << 10;

/// Who sends first, and who closes first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The client does both; what comes back is what it sent.
    Echo,
    /// The server does both; the client sends when the server's side is closed.
    Give,
}

/// What the client says first.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Who sends what.
    pub mode: Mode,
    /// Bytes in each direction.
    pub len: u64,
    /// What the bytes follow from.
    pub seed: u64,
}

impl Header {
    /// As it is sent.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = match self.mode {
            Mode::Echo => b'E',
            Mode::Give => b'G',
        };
        bytes[1..9].copy_from_slice(&self.len.to_le_bytes());
        bytes[9..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// As it was received; `None`: it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let [mode, rest @ ..] = bytes;
        let mode = match mode {
            b'E' => Mode::Echo,
            b'G' => Mode::Give,
            _ => return None,
        };
        let (len, seed) = rest.split_first_chunk()?;
        let len = u64::from_le_bytes(*len);
        let seed = u64::from_le_bytes(*seed.first_chunk()?);
        (len <= LEN_MAX).then_some(Self { mode, len, seed })
    }

    /// The bytes that the client sends after the header.
    #[must_use]
    pub const fn from_client(self) -> Pattern {
        match self.mode {
            Mode::Echo => Pattern::new(self.seed, self.len),
            Mode::Give => Pattern::new(!self.seed, self.len),
        }
    }

    /// The bytes that the server sends.
    #[must_use]
    pub const fn from_server(self) -> Pattern {
        Pattern::new(self.seed, self.len)
    }
}

/// Bytes that follow from a seed, some of which were made already.
#[derive(Copy, Clone, Debug)]
pub struct Pattern {
    seed: u64,
    made: u64,
    len: u64,
}

impl Pattern {
    const fn new(seed: u64, len: u64) -> Self {
        Self { seed, made: 0, len }
    }

    /// How many are still to come.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.len - self.made
    }

    /// The next bytes, at most `max`; none at the end.
    #[must_use]
    pub fn take(&mut self, max: usize) -> Vec<u8> {
        let len = usize::try_from(self.left()).map_or(max, |left| left.min(max));
        let bytes = (self.made..self.made + len as u64).map(|at| self.byte(at)).collect();
        self.made += len as u64;
        bytes
    }

    /// Whether these are the next bytes. What was wrong stays wrong.
    #[must_use]
    pub fn matches(&mut self, bytes: &[u8]) -> bool {
        let is_room = bytes.len() as u64 <= self.left();
        let are_same = (self.made..).zip(bytes).all(|(at, byte)| self.byte(at) == *byte);
        self.made = self.len.min(self.made + bytes.len() as u64);
        is_room && are_same
    }

    /// A byte that differs from its neighbours and from those of other seeds.
    const fn byte(&self, at: u64) -> u8 {
        let mixed = (self.seed ^ at >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> (8 * (at & 7))) as u8 ^ at as u8
    }
}

/// The client's side of one transfer, on a socket of the kernel. Blocks.
///
/// # Errors
/// What the socket says; `InvalidData` or `UnexpectedEof` when the bytes are not those agreed on.
pub fn ask(stream: &mut TcpStream, header: Header) -> io::Result<()> {
    stream.write_all(&header.to_bytes())?;
    match header.mode {
        Mode::Echo => {
            let mut sender = stream.try_clone()?;
            let sending = std::thread::spawn(move || {
                send(&mut sender, header.from_client())?;
                sender.shutdown(Shutdown::Write)
            });
            let checked = check(stream, header.from_server());
            sending.join().map_err(|_| io::Error::other("the sender panicked"))??;
            checked
        }
        Mode::Give => {
            check(stream, header.from_server())?;
            send(stream, header.from_client())?;
            stream.shutdown(Shutdown::Write)
        }
    }
}

/// The server's side of one transfer, on a socket of the kernel. Blocks.
///
/// # Errors
/// As [`ask`]; `InvalidData` also for a header that is none.
pub fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; HEADER_LEN];
    stream.read_exact(&mut bytes)?;
    let header = Header::from_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    match header.mode {
        Mode::Echo => echo(stream, header.from_client())?,
        Mode::Give => {
            send(stream, header.from_server())?;
            stream.shutdown(Shutdown::Write)?;
            return check(stream, header.from_client());
        }
    }
    stream.shutdown(Shutdown::Write)
}

fn send(stream: &mut TcpStream, mut pattern: Pattern) -> io::Result<()> {
    while pattern.left() > 0 {
        stream.write_all(&pattern.take(CHUNK_LEN))?;
    }
    Ok(())
}

/// Reads up to the end of the stream, which has to be the pattern and no more.
fn check(stream: &mut TcpStream, mut pattern: Pattern) -> io::Result<()> {
    let mut buffer = [0; CHUNK_LEN];
    loop {
        match stream.read(&mut buffer)? {
            0 if pattern.left() == 0 => return Ok(()),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len if pattern.matches(&buffer[..len]) => {}
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn echo(stream: &mut TcpStream, mut pattern: Pattern) -> io::Result<()> {
    let mut buffer = [0; CHUNK_LEN];
    loop {
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            let is_whole = pattern.left() == 0;
            return if is_whole { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if !pattern.matches(&buffer[..len]) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.write_all(&buffer[..len])?;
    }
}

/// Lengths from 0 to `2^bits_max`, small ones as often as large ones, from a seed.
pub fn lens(seed: u64, bits_max: u32) -> impl Iterator<Item = u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(move || {
        let bits = random.u32(..=bits_max);
        random.u64(..1 << bits)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn a_header_comes_back() {
        for mode in [Mode::Echo, Mode::Give] {
            let header = Header { mode, len: LEN_MAX, seed: u64::MAX - 1 };
            assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        }
        assert_eq!(Header::from_bytes(&[0; HEADER_LEN]), None);
        let too_long = Header { mode: Mode::Echo, len: LEN_MAX + 1, seed: 0 };
        assert_eq!(Header::from_bytes(&too_long.to_bytes()), None);
    }

    #[test]
    fn a_changed_lost_or_moved_byte_is_noticed() {
        let pattern = Header { mode: Mode::Echo, len: 1_000, seed: 7 }.from_server();
        let bytes = { pattern }.take(2_000);
        assert_eq!(bytes.len(), 1_000);
        let parts = &mut { pattern };
        assert!(parts.matches(&bytes[..100]) && parts.matches(&bytes[100..]));
        assert_eq!(parts.left(), 0);
        let mut changed = bytes.clone();
        changed[500] ^= 1;
        assert!(!{ pattern }.matches(&changed));
        assert!(!{ pattern }.matches(&bytes[1..]));
        assert!(!{ pattern }.matches(&[&bytes[..], b"x"].concat()));
    }

    #[test]
    fn both_ends_agree_over_loopback() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = thread::spawn(move || {
            for _ in 0..4 {
                answer(&mut listener.accept().unwrap().0).unwrap();
            }
        });
        for (mode, len) in
            [(Mode::Echo, 0), (Mode::Give, 0), (Mode::Echo, 300_000), (Mode::Give, 300_000)]
        {
            let mut stream = TcpStream::connect(address).unwrap();
            ask(&mut stream, Header { mode, len, seed: 3 }).unwrap();
        }
        serving.join().unwrap();
    }

    #[test]
    fn lengths_are_of_every_size() {
        let lens: Vec<u64> = lens(1, 17).take(1_000).collect();
        assert!(lens.iter().all(|len| *len < 1 << 17));
        assert!(lens.contains(&0) && lens.iter().any(|len| *len > 1 << 16), "{lens:?}");
        let short = lens.iter().filter(|len| **len < 512).count();
        assert!((400..700).contains(&short), "{short}");
    }
}
