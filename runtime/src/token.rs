//! Bearer tokens, one per line of a file that is reloaded when it changes.
//!
//! A server accepts every token of its file; a client sends the first token of its file. To rotate a token without rejections,
//! add the new one to the server's file, replace the clients' files, and remove the old one from the server's file.

use std::{fmt, marker::PhantomData, sync::Arc};

use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use subtle::ConstantTimeEq as _;

use super::reload::{NamedFile, Source};

/// Minimum length of a token, so that it cannot be guessed.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Maximum length of a token, which is sent in the headers of each call.
pub const TOKEN_BYTES_MAX: usize = 512;

/// Maximum number of tokens in a file.
pub const TOKENS_MAX: usize = 64;

/// Maximum bytes of a client's name.
const NAME_BYTES_MAX: usize = 64;

/// Permissions that a line of a token file grants.
pub trait Permissions: fmt::Debug + Send + Sync + Sized + 'static {
    /// Name of the files in metrics and the log.
    const FILES: &'static str;

    /// The words of a line, beginning with `NAME TOKEN`; `None` for files that have only a token per line.
    const LINE: Option<&'static str>;

    /// Parses the words after the token. The caller has checked their number against [`LINE`](Self::LINE).
    ///
    /// # Errors
    /// A message about these words.
    fn parse(words: &[&str]) -> Result<Self, String>;
}

impl Permissions for () {
    const FILES: &'static str = "token";
    const LINE: Option<&'static str> = None;

    fn parse(_: &[&str]) -> Result<Self, String> {
        Ok(())
    }
}

/// The client of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client<P = ()> {
    /// Its name; empty if the file has no names.
    pub name: String,
    /// Its permissions.
    pub permissions: P,
}

/// A file of tokens.
#[derive(Debug)]
pub struct File<P = ()> {
    file: NamedFile,
    permissions: PhantomData<fn() -> P>,
}

/// The tokens of a file, at least one. `Debug` does not print them.
pub struct Tokens<P = ()>(Vec<(String, Arc<Client<P>>)>);

impl<P> fmt::Debug for Tokens<P> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} tokens", self.0.len())
    }
}

impl<P> File<P> {
    /// A file of tokens.
    pub fn new(file: NamedFile) -> Self {
        Self {
            file,
            permissions: PhantomData,
        }
    }
}

impl<P: Permissions> Source for File<P> {
    type Value = Tokens<P>;
    const NAME: &'static str = P::FILES;

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.file]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Tokens<P>, Vec<String>> {
        Tokens::parse(&contents[0]).map_err(|error| vec![self.file.error(error)])
    }
}

/// Why authentication of a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The request has no token.
    #[error("missing token; send the header `authorization: Bearer TOKEN`")]
    Missing,
    /// The file does not contain the token.
    #[error("invalid token")]
    Invalid,
}

impl<P: Permissions> Tokens<P> {
    /// Parses one token per line. Skips empty lines and comments (`#`).
    ///
    /// # Errors
    /// A message without any part of a token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(contents).map_err(|_| "is not UTF-8".to_owned())?;
        let mut tokens: Vec<(String, Arc<Client<P>>)> = Vec::new();
        for (number, line) in (1..).zip(text.lines().map(str::trim)) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parsed = read_line::<P>(line).and_then(|(token, client)| {
                let is_same = |(other, it): &(String, Arc<Client<P>>)| {
                    *other == token || (P::LINE.is_some() && it.name == client.name)
                };
                if tokens.iter().any(is_same) {
                    return Err("duplicate name or token".to_owned());
                }
                Ok((token, Arc::new(client)))
            });
            tokens.push(parsed.map_err(|error| format!("line {number}: {error}"))?);
        }
        match tokens.len() {
            0 => Err("contains no token".to_owned()),
            1..=TOKENS_MAX => Ok(Self(tokens)),
            _ => Err(format!("contains more than {TOKENS_MAX} tokens")),
        }
    }

    /// Returns the client of a request. Comparing tokens of equal length takes constant time.
    ///
    /// # Errors
    /// If the request has no token of the file.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Arc<Client<P>>, TokenError> {
        let header = headers.get(AUTHORIZATION);
        self.authenticate_header(header.map(HeaderValue::as_bytes))
    }

    /// Like [`authenticate`](Self::authenticate), with the value of the header `Authorization`.
    ///
    /// # Errors
    /// If it has no token of the file.
    pub fn authenticate_header(&self, value: Option<&[u8]>) -> Result<Arc<Client<P>>, TokenError> {
        let candidate = value.and_then(bearer).ok_or(TokenError::Missing)?;
        let mut found = None;
        for (token, client) in &self.0 {
            if bool::from(token.as_bytes().ct_eq(candidate)) {
                found = Some(client);
            }
        }
        found.cloned().ok_or(TokenError::Invalid)
    }

    /// All tokens.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(token, _)| token.as_str())
    }

    /// The token that a client sends.
    pub fn first(&self) -> &str {
        &self.0[0].0
    }
}

/// Parses a line into its token and client.
fn read_line<P: Permissions>(line: &str) -> Result<(String, Client<P>), String> {
    let words = match P::LINE {
        Some(format) => {
            let words: Vec<_> = line.split_whitespace().collect();
            if words.len() != format.split(' ').count() {
                return Err(format!("expected {format}"));
            }
            words
        }
        None => vec!["", line],
    };
    let (name, token) = (words[0], words[1]);
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_name) {
        return Err(format!(
            "invalid name: use up to {NAME_BYTES_MAX} letters, digits, dashes, dots and underscores"
        ));
    }
    check(token)?;
    let (name, permissions) = (name.to_owned(), P::parse(&words[2..])?);
    Ok((token.to_owned(), Client { name, permissions }))
}

/// Checks the length and characters of a token.
fn check(token: &str) -> Result<(), String> {
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
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one-token-of-16b";
    const TWO: &str = "another token-of";

    fn parse(contents: &[u8]) -> Result<Tokens, String> {
        Tokens::parse(contents)
    }

    fn accepts(tokens: &Tokens, token: &str) -> bool {
        let value = format!("Bearer {token}").parse().unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        tokens.authenticate(&headers).is_ok()
    }

    #[test]
    fn only_tokens_of_the_file_are_accepted() {
        let second = TWO.replace(' ', "-");
        let file = format!("# rotated yearly\r\n\n  {ONE}\r\n{second}\n");
        let tokens = parse(file.as_bytes()).unwrap();
        assert!(accepts(&tokens, ONE) && accepts(&tokens, &second));
        assert_eq!(tokens.first(), ONE);
        for other in ["", "# rotated yearly", &ONE[1..], "one-token-of-16B"] {
            assert!(!accepts(&tokens, other), "{other}");
        }
        assert!(!accepts(&tokens, &format!("{ONE}x")));
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn invalid_token_is_an_error_that_does_not_contain_it() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        let many: String = (0..=TOKENS_MAX).map(|it| format!("{ONE}{it}\n")).collect();
        for (file, what) in [
            ("", "no token"),
            ("# only a comment\n", "no token"),
            ("short", "line 1"),
            (TWO, "without spaces"),
            (long.as_str(), "line 1"),
            (many.as_str(), "more than"),
            (&format!("{ONE}\n{ONE}"), "line 2: duplicate"),
        ] {
            let error = parse(file.as_bytes()).unwrap_err();
            assert!(error.contains(what), "{error}");
            assert!(!error.contains("short") && !error.contains("another"));
        }
        assert!(parse(&[0xff; 20]).is_err());
    }

    /// Permissions of one word.
    #[derive(Debug, PartialEq)]
    struct Word(String);

    impl Permissions for Word {
        const FILES: &'static str = "test";
        const LINE: Option<&'static str> = Some("NAME TOKEN WORD");

        fn parse(words: &[&str]) -> Result<Self, String> {
            match words[0] {
                "no" => Err("invalid word".to_owned()),
                word => Ok(Self(word.to_owned())),
            }
        }
    }

    #[test]
    fn token_has_the_name_and_permissions_of_its_line() {
        let file = format!("# comment\n\n a {ONE}  x \n");
        let tokens = Tokens::<Word>::parse(file.as_bytes()).unwrap();
        let value = format!("bearer {ONE}").parse().unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        let client = tokens.authenticate(&headers).unwrap();
        assert_eq!((&*client.name, &*client.permissions.0), ("a", "x"));
    }

    #[test]
    fn errors_name_the_line_and_no_token() {
        let two = "two-token-of-16b";
        for (file, expected) in [
            (String::new(), "no token"),
            (ONE.to_owned(), "line 1: expected NAME TOKEN WORD"),
            (format!("a {ONE}"), "line 1: expected NAME TOKEN WORD"),
            (format!("a {ONE} x y"), "line 1: expected NAME TOKEN WORD"),
            (format!("a {ONE} no"), "line 1: invalid word"),
            (format!("ä {ONE} x"), "invalid name"),
            ("a short x".to_owned(), "line 1: a token must have"),
            (format!("a {ONE} x\nb {ONE} x"), "line 2: duplicate"),
            (format!("a {ONE} x\na {two} x"), "line 2: duplicate"),
        ] {
            let error = Tokens::<Word>::parse(file.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(ONE) && !error.contains("short"));
        }
    }
}
