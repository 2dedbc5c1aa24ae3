//! Digests of response bodies. Patterns in the settings remove text that differs between responses.
//!
//! A digest is `xxh3:<16 hex digits>:<length>`. Digests of older data (CRC-32, 8 hex digits) are still supported.

use std::borrow::Cow;

use regex::bytes::Regex;
use xxhash_rust::xxh3::xxh3_64;

/// Digest of a body, normalized by [`normalize`].
pub fn digest(body: &[u8]) -> String {
    format!("xxh3:{:016x}:{}", xxh3_64(body), body.len())
}

/// Whether a stored digest is that of `body`.
pub fn is_equal(stored: &str, body: &[u8]) -> bool {
    if stored.len() == 8
        && let Ok(crc) = u32::from_str_radix(stored, 16)
    {
        return crc32fast::hash(body) == crc;
    }
    stored == digest(body)
}

/// Removes all matches of the patterns.
pub fn normalize<'a>(patterns: &[Regex], body: &'a [u8]) -> Cow<'a, [u8]> {
    patterns.iter().fold(Cow::Borrowed(body), |body, pattern| {
        match pattern.replace_all(&body, &b""[..]) {
            Cow::Borrowed(_) => body,
            Cow::Owned(replaced) => Cow::Owned(replaced),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_has_hash_and_length() {
        let one = digest(b"one");
        assert!(one.starts_with("xxh3:") && one.ends_with(":3"), "{one}");
        assert!(is_equal(&one, b"one") && !is_equal(&one, b"two") && !is_equal("", b"one"));
        assert!(is_equal(&digest(b""), b"") && !is_equal(&one, b"") && !is_equal("", b""));
    }

    #[test]
    fn crc32_of_older_data_is_compared() {
        // The check value of CRC-32.
        assert!(is_equal("cbf43926", b"123456789"));
        assert!(is_equal("CBF43926", b"123456789"));
        assert!(!is_equal("cbf43926", b"12345678"));
    }

    #[test]
    fn patterns_are_removed_before_the_digest() {
        let patterns = [
            Regex::new("<meta name=\"csrf\"[^>]*>").unwrap(),
            Regex::new("[0-9]+ ms").unwrap(),
        ];
        let normalized = |body: &str| digest(&normalize(&patterns, body.as_bytes()));
        let one = normalized("<meta name=\"csrf\" x=1><p>in 12 ms</p>");
        assert_eq!(one, normalized("<p>in 7 ms</p>"));
        assert_ne!(one, normalized("<p>in 7 s</p>"));
    }
}
