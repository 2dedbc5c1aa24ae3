//! Tokens that open the streams: one a line of a file, which may be replaced at any time.
//!
//! A server takes every token of its file, a client sends the first of its own. So a token is replaced without a
//! moment of refusals: the server's file gets the new one beside the old, then the clients' files change, then the
//! old one leaves the server's file.

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};
use subtle::{Choice, ConstantTimeEq};

use super::reload::{NamedFile, Source};

/// Shortest token: fewer bytes can be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Longest token: it is part of the head of each call.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Most tokens of one file.
pub const TOKENS_MAX: usize = 64;

/// A file of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// The tokens of a file; at least one. Prints without them.
pub struct Tokens(Vec<String>);

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} tokens", self.0.len())
    }
}

impl Source for File {
    type Value = Tokens;
    const NAME: &'static str = "token";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Tokens, Vec<String>> {
        Tokens::parse(&contents[0]).map_err(|wrong| vec![self.0.error(wrong)])
    }
}

impl Tokens {
    /// Reads one token a line, as [`read`] does.
    ///
    /// # Errors
    /// In words that hold nothing of a token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        read(contents, |line, _| {
            check(line)?;
            Ok(line.to_owned())
        })
        .map(Self)
    }

    /// Whether `candidate` is one of them. Takes the same time for each token of its length.
    #[must_use]
    pub fn contain(&self, candidate: &[u8]) -> bool {
        let is = |token: &String| token.as_bytes().ct_eq(candidate);
        let any = self.0.iter().map(is);
        any.fold(Choice::from(0), |found, is| found | is).into()
    }

    /// The one that a client sends.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.0[0]
    }
}

/// Reads a file of tokens with `read_line`, which gets each line and what was read of those before; empty lines and those that begin
/// with `#` are skipped.
///
/// # Errors
/// Those of `read_line`, with the line's number; and when there are none, or too many.
pub fn read<T>(
    contents: &[u8],
    mut read_line: impl FnMut(&str, &[T]) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let text = std::str::from_utf8(contents).map_err(|_| "is not text".to_owned())?;
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = read_line(line, &tokens).map_err(|wrong| format!("line {number}: {wrong}"))?;
        tokens.push(token);
    }
    match tokens.len() {
        0 => Err("has no token inside".to_owned()),
        1..=TOKENS_MAX => Ok(tokens),
        _ => Err(format!("has more than {TOKENS_MAX} tokens")),
    }
}

/// Checks that this can be a token.
///
/// # Errors
/// In words that hold nothing of it.
pub fn check(token: &str) -> Result<(), String> {
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!(
            "a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes"
        ));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a token is printable ASCII without spaces".to_owned());
    }
    Ok(())
}

/// The token of `Authorization: Bearer …`; the scheme is case-insensitive.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let header = headers.get(AUTHORIZATION)?;
    let (scheme, token) = header.as_bytes().split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one-token-of-16b";
    const TWO: &str = "another token-of";

    #[test]
    fn every_token_of_the_file_is_taken_and_nothing_else() {
        let second = TWO.replace(' ', "-");
        let file = format!("# rotated yearly\r\n\n  {ONE}\r\n{second}\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        assert!(tokens.contain(ONE.as_bytes()) && tokens.contain(second.as_bytes()));
        assert_eq!(tokens.first(), ONE);
        for wrong in ["", "# rotated yearly", &ONE[1..], "one-token-of-16B"] {
            assert!(!tokens.contain(wrong.as_bytes()), "{wrong}");
        }
        assert!(!tokens.contain(format!("{ONE}x").as_bytes()));
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn what_is_no_token_is_a_error_that_does_not_repeat_it() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        let many = format!("{ONE}\n").repeat(TOKENS_MAX + 1);
        for (file, what) in [
            ("", "no token"),
            ("# only a remark\n", "no token"),
            ("short", "line 1"),
            (TWO, "without spaces"),
            (long.as_str(), "line 1"),
            (many.as_str(), "more than"),
        ] {
            let said = Tokens::parse(file.as_bytes()).unwrap_err();
            assert!(said.contains(what), "{said}");
            assert!(!said.contains("short") && !said.contains("another"));
        }
        assert!(Tokens::parse(&[0xff; 20]).is_err());
    }
}
