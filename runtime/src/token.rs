//! Bearer tokens, one per line of a file that is reloaded when it changes.
//!
//! A server accepts every token of its file; a client sends the first of its own. To rotate a token without rejections, add the
//! new one to the server's file, then replace the clients' files, then remove the old one from the server's file.

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};
use subtle::{Choice, ConstantTimeEq};

use super::reload::{NamedFile, Source};

/// Minimum length of a token, so that it cannot be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Maximum length of a token, which is sent in the headers of each call.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Maximum number of tokens in a file.
pub const TOKENS_MAX: usize = 64;

/// A file of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// The tokens of a file, at least one. `Debug` does not print them.
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
        Tokens::parse(&contents[0]).map_err(|error| vec![self.0.error(error)])
    }
}

impl Tokens {
    /// Parses one token per line, like [`read`].
    ///
    /// # Errors
    /// A message without any part of a token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        read(contents, |line, _| {
            check(line)?;
            Ok(line.to_owned())
        })
        .map(Self)
    }

    /// Whether `candidate` is one of the tokens. Compares in constant time per length.
    #[must_use]
    pub fn contains(&self, candidate: &[u8]) -> bool {
        let matches = |token: &String| token.as_bytes().ct_eq(candidate);
        let any = self.0.iter().map(matches);
        any.fold(Choice::from(0), |found, matches| found | matches)
            .into()
    }

    /// The token that a client sends.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.0[0]
    }
}

/// Parses a token file with `read_line`, which receives each line and the previous results. Skips empty lines and comments (`#`).
///
/// # Errors
/// Errors of `read_line` with the line number; or if the file has no tokens, or too many.
pub fn read<T>(
    contents: &[u8],
    mut read_line: impl FnMut(&str, &[T]) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let text = std::str::from_utf8(contents).map_err(|_| "is not UTF-8".to_owned())?;
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let token = read_line(line, &tokens).map_err(|error| format!("line {number}: {error}"))?;
        tokens.push(token);
    }
    match tokens.len() {
        0 => Err("contains no token".to_owned()),
        1..=TOKENS_MAX => Ok(tokens),
        _ => Err(format!("contains more than {TOKENS_MAX} tokens")),
    }
}

/// Checks the length and characters of a token.
///
/// # Errors
/// A message without any part of the token.
pub fn check(token: &str) -> Result<(), String> {
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Err(format!(
            "a token must have {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes"
        ));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("a token must be printable ASCII without spaces".to_owned());
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
    fn only_tokens_of_the_file_are_accepted() {
        let second = TWO.replace(' ', "-");
        let file = format!("# rotated yearly\r\n\n  {ONE}\r\n{second}\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        assert!(tokens.contains(ONE.as_bytes()) && tokens.contains(second.as_bytes()));
        assert_eq!(tokens.first(), ONE);
        for other in ["", "# rotated yearly", &ONE[1..], "one-token-of-16B"] {
            assert!(!tokens.contains(other.as_bytes()), "{other}");
        }
        assert!(!tokens.contains(format!("{ONE}x").as_bytes()));
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn invalid_token_is_an_error_that_does_not_contain_it() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        let many = format!("{ONE}\n").repeat(TOKENS_MAX + 1);
        for (file, what) in [
            ("", "no token"),
            ("# only a comment\n", "no token"),
            ("short", "line 1"),
            (TWO, "without spaces"),
            (long.as_str(), "line 1"),
            (many.as_str(), "more than"),
        ] {
            let error = Tokens::parse(file.as_bytes()).unwrap_err();
            assert!(error.contains(what), "{error}");
            assert!(!error.contains("short") && !error.contains("another"));
        }
        assert!(Tokens::parse(&[0xff; 20]).is_err());
    }
}
