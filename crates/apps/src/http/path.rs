//! Request paths: from the bytes of a request target to a name below the root directory.
//!
//! Read first: RFC 3986 §2.1, §3.3, §5.2.4; RFC 9110 §4.2.
//!
//! The result always begins with `/`, has no empty, `.` or `..` segment and no NUL; it ends in `/`
//! when the target named a directory. Because `%2F` is refused, what a slash separates does not
//! depend on who decodes. That a name cannot leave the root by symbolic links is the business of
//! `files.rs`; this module sees to it that it cannot by its letters.
//!
//! Pure: bytes in, bytes out; no file is looked at.
//!
//! Invariants
//! - A normalised path that needs no encoding normalises to itself.
//! - The result is never longer than the input.

/// Why a path names nothing.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum PathError {
    /// A `%` without two hexadecimal digits, a NUL, or no slash at the start.
    Malformed,
    /// More `..` than segments before them.
    AboveRoot,
    /// An encoded slash: no file name has one.
    EncodedSlash,
}

/// Decodes and normalises `raw` (a target's path, without its query) into `out`, replacing what is
/// there. Repeated slashes count as one.
pub(crate) fn normalize(raw: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    out.clear();
    let Some(rest) = raw.strip_prefix(b"/") else { return Err(PathError::Malformed) };
    out.push(b'/');
    for segment in rest.split(|&byte| byte == b'/') {
        let start = out.len();
        decode(segment, out)?;
        match &out[start..] {
            b"" => {}
            b"." => out.truncate(start),
            b".." => {
                out.truncate(start);
                leave(out)?;
            }
            _ => out.push(b'/'),
        }
    }
    // Every segment left a slash behind it; the last keeps it only if the target names a directory.
    let last = rest.rsplit(|&byte| byte == b'/').next().unwrap_or(rest);
    if out.len() > 1 && !names_directory(last) {
        out.pop();
    }
    Ok(())
}

/// The path for a system call relative to the root directory: never empty, never absolute.
pub(crate) fn below_root(normalized: &[u8]) -> &[u8] {
    match normalized.strip_prefix(b"/").unwrap_or(normalized) {
        b"" => b".",
        relative => relative,
    }
}

/// Whether a cache may know a file by this path. A path with one of these bytes can differ from the
/// bytes of the target that names it, and the target with the same bytes names something else.
pub(crate) fn is_plain(normalized: &[u8]) -> bool {
    !normalized.iter().any(|byte| matches!(byte, b'%' | b'?' | b'#'))
}

/// Appends `path` with every byte encoded that a `Location` must not hold as it is.
pub(crate) fn encode(path: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in path {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte);
            }
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@' => {
                out.push(byte);
            }
            _ => out.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]),
        }
    }
}

fn names_directory(last_segment: &[u8]) -> bool {
    let is_dot = |text: &[u8]| text.is_empty() || text == b"." || text.eq_ignore_ascii_case(b"%2e");
    // "", ".", "..", and the same with any dot encoded.
    is_dot(last_segment)
        || (1..last_segment.len()).any(|at| {
            let (first, second) = last_segment.split_at(at);
            is_dot(first) && is_dot(second)
        })
}

/// Drops the last segment of `out`, which ends in a slash.
fn leave(out: &mut Vec<u8>) -> Result<(), PathError> {
    let inner = &out[..out.len() - 1];
    let parent = inner.iter().rposition(|&byte| byte == b'/').ok_or(PathError::AboveRoot)?;
    out.truncate(parent + 1);
    Ok(())
}

fn decode(segment: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    let mut bytes = segment.iter();
    while let Some(&byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let decoded = hex(bytes.next())? << 4 | hex(bytes.next())?;
                if decoded == b'/' {
                    return Err(PathError::EncodedSlash);
                }
                decoded
            }
            byte => byte,
        };
        if byte == 0 {
            return Err(PathError::Malformed);
        }
        out.push(byte);
    }
    Ok(())
}

fn hex(digit: Option<&u8>) -> Result<u8, PathError> {
    match digit {
        Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
        Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
        Some(digit @ b'A'..=b'F') => Ok(digit - b'A' + 10),
        _ => Err(PathError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn normal(raw: &str) -> Result<String, PathError> {
        let mut out = b"left from before".to_vec();
        normalize(raw.as_bytes(), &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn paths_are_normalised() {
        for (raw, expected) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("//a//b//", "/a/b/"),
            ("/./a/./b", "/a/b"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/a/b/../", "/a/"),
            ("/a/../b", "/b"),
            ("/a/%2e%2e/b", "/b"),
            ("/a/%2E./b", "/b"),
            ("/a/b/.%2e", "/a/"),
            ("/a/%2e", "/a/"),
            ("/..a/b..", "/..a/b.."),
            ("/...", "/..."),
            ("/a%20b%25", "/a b%"),
            ("/%c3%a9", "/é"),
            ("/a\\..\\b", "/a\\..\\b"),
        ] {
            assert_eq!(normal(raw).as_deref(), Ok(expected), "{raw}");
        }
    }

    #[test]
    fn paths_that_name_nothing_are_refused() {
        for (raw, error) in [
            ("", PathError::Malformed),
            ("a", PathError::Malformed),
            ("*", PathError::Malformed),
            ("/%", PathError::Malformed),
            ("/%2", PathError::Malformed),
            ("/%zz", PathError::Malformed),
            ("/%+1", PathError::Malformed),
            ("/a%00.html", PathError::Malformed),
            ("/..", PathError::AboveRoot),
            ("/../a", PathError::AboveRoot),
            ("/a/../../b", PathError::AboveRoot),
            ("/%2e%2e/a", PathError::AboveRoot),
            ("/..%2fetc", PathError::EncodedSlash),
            ("/a%2Fb", PathError::EncodedSlash),
        ] {
            assert_eq!(normal(raw), Err(error), "{raw}");
        }
    }

    #[test]
    fn the_name_for_system_calls_is_relative() {
        assert_eq!(below_root(b"/"), b".");
        assert_eq!(below_root(b"/a/b"), b"a/b");
        assert_eq!(below_root(b"/a/"), b"a/");
    }

    #[test]
    fn a_location_is_plain_ascii() {
        let mut out = Vec::new();
        encode("/a b/\u{e9}%?#\r\n;\"<>/".as_bytes(), &mut out);
        assert_eq!(out, b"/a%20b/%C3%A9%25%3F%23%0D%0A%3B%22%3C%3E/");
    }

    fn hostile_path() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"/".to_vec()),
            Just(b".".to_vec()),
            Just(b"..".to_vec()),
            Just(b"%2e".to_vec()),
            Just(b"%2E%2e".to_vec()),
            Just(b"%2f".to_vec()),
            Just(b"%00".to_vec()),
            Just(b"%25".to_vec()),
            Just(b"a".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(piece, 0..24).prop_map(|pieces| {
            let mut path = b"/".to_vec();
            path.extend(pieces.concat());
            path
        })
    }

    proptest! {
        #[test]
        fn nothing_climbs_out(raw in hostile_path()) {
            let mut out = Vec::new();
            if normalize(&raw, &mut out).is_err() {
                return Ok(());
            }
            prop_assert_eq!(out[0], b'/');
            prop_assert!(!out.contains(&0));
            prop_assert!(out.len() <= raw.len());
            let inner = &out[1..];
            let inner = inner.strip_suffix(b"/").unwrap_or(inner);
            if !inner.is_empty() {
                for segment in inner.split(|&byte| byte == b'/') {
                    prop_assert!(!segment.is_empty() && segment != b"." && segment != b"..");
                }
            }
            prop_assert!(!below_root(&out).starts_with(b"/"));
        }

        #[test]
        fn normal_paths_stay(raw in hostile_path()) {
            let mut once = Vec::new();
            if normalize(&raw, &mut once).is_ok() && is_plain(&once) {
                let mut twice = Vec::new();
                prop_assert_eq!(normalize(&once, &mut twice), Ok(()));
                prop_assert_eq!(once, twice);
            }
        }

        #[test]
        fn an_encoded_path_comes_back(raw in hostile_path()) {
            let mut path = Vec::new();
            if normalize(&raw, &mut path).is_ok() {
                let (mut encoded, mut again) = (Vec::new(), Vec::new());
                encode(&path, &mut encoded);
                prop_assert_eq!(normalize(&encoded, &mut again), Ok(()));
                prop_assert_eq!(path, again);
            }
        }
    }
}
