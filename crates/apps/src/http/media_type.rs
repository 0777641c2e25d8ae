//! Content types by file name extension.
//!
//! Read first: RFC 9110 §8.3; the IANA media type registry. Text goes out as UTF-8.
//!
//! Pure: a name in, a type out.
//!
//! Invariant: `TYPES` is sorted by extension and holds lower-case letters only.

/// What a file of unknown kind is.
pub(crate) const UNKNOWN: &str = "application/octet-stream";

const EXTENSION_BYTES_MAX: usize = 12;

/// The media type of a file by the extension of the last segment of `path`.
pub(crate) fn of_path(path: &[u8]) -> &'static str {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    match name.iter().rposition(|&byte| byte == b'.') {
        Some(dot) => of_extension(&name[dot + 1..]),
        None => UNKNOWN,
    }
}

fn of_extension(extension: &[u8]) -> &'static str {
    let mut lower = [0; EXTENSION_BYTES_MAX];
    let Some(lower) = lower.get_mut(..extension.len()) else { return UNKNOWN };
    lower.copy_from_slice(extension);
    lower.make_ascii_lowercase();
    match TYPES.binary_search_by(|(known, _)| known.as_bytes().cmp(lower)) {
        Ok(index) => TYPES[index].1,
        Err(_) => UNKNOWN,
    }
}

const TYPES: &[(&str, &str)] = &[
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("apng", "image/apng"),
    ("atom", "application/atom+xml"),
    ("avif", "image/avif"),
    ("bin", "application/octet-stream"),
    ("bmp", "image/bmp"),
    ("bz2", "application/x-bzip2"),
    ("c", "text/plain; charset=utf-8"),
    ("cbor", "application/cbor"),
    ("cjs", "text/javascript; charset=utf-8"),
    ("conf", "text/plain; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("deb", "application/vnd.debian.binary-package"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("eot", "application/vnd.ms-fontobject"),
    ("epub", "application/epub+zip"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("h", "text/plain; charset=utf-8"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("ics", "text/calendar; charset=utf-8"),
    ("jar", "application/java-archive"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("log", "text/plain; charset=utf-8"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    ("m4v", "video/mp4"),
    ("map", "application/json"),
    ("markdown", "text/markdown; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mkv", "video/matroska"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("ppt", "application/vnd.ms-powerpoint"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("ps", "application/postscript"),
    ("py", "text/plain; charset=utf-8"),
    ("rar", "application/vnd.rar"),
    ("rs", "text/plain; charset=utf-8"),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("sh", "text/plain; charset=utf-8"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ts", "video/mp2t"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("vcf", "text/vcard; charset=utf-8"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/vnd.wave"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("xz", "application/x-xz"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_lower_case() {
        for pair in TYPES.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} before {}", pair[0].0, pair[1].0);
        }
        for (extension, _) in TYPES {
            assert_eq!(*extension, extension.to_ascii_lowercase());
            assert!(extension.len() <= EXTENSION_BYTES_MAX);
        }
    }

    #[test]
    fn every_text_type_names_its_charset() {
        for (extension, media_type) in TYPES {
            assert_eq!(
                media_type.starts_with("text/"),
                media_type.ends_with("; charset=utf-8"),
                "{extension}"
            );
        }
    }

    #[test]
    fn extensions_are_found_whatever_their_case() {
        assert_eq!(of_path(b"/index.html"), "text/html; charset=utf-8");
        assert_eq!(of_path(b"/A.B/PHOTO.JPG"), "image/jpeg");
        assert_eq!(of_path(b"/x.tar.gz"), "application/gzip");
        assert_eq!(of_path(b"/dir.html/README"), UNKNOWN);
        assert_eq!(of_path(b"/.html"), "text/html; charset=utf-8");
        assert_eq!(of_path(b"/odd."), UNKNOWN);
        assert_eq!(of_path(b"/x.averyverylongextension"), UNKNOWN);
        assert_eq!(of_path(b""), UNKNOWN);
    }
}
