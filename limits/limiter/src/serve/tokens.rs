//! Access tokens: a file with a name, a token and the accessible limits per line.
//!
//! ```text
//! # name    token                     limits
//! billing   nKq3mB0xT5r8vYw1z4A7      dsp-17,partner
//! scripts   w9Zc2Lx6Hd4Jf8Ps1Qv0      *
//! ```

use std::{collections::BTreeSet, sync::Arc};

use runtime::{
    reload::{NamedFile, Source},
    token,
};
use subtle::ConstantTimeEq as _;

use super::problem::{FORBIDDEN, Problem};

/// Maximum bytes of a token's name.
const NAME_BYTES_MAX: usize = 64;

/// A token file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// The tokens of a file, at least one.
pub struct Tokens(Vec<(String, Arc<TokenIdentity>)>);

/// Name and permissions of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIdentity {
    /// Name of the token.
    pub name: String,
    /// Accessible limits; `None` for all.
    pub limits: Option<BTreeSet<String>>,
}

impl TokenIdentity {
    /// The identity of clients if no token is required.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: String::new(),
            limits: None,
        }
    }

    /// Checks access to a limit.
    ///
    /// # Errors
    /// When the token does not grant it.
    pub fn authorize(&self, limit: &str) -> Result<(), Problem> {
        let limits = self.limits.as_ref();
        if limits.is_none_or(|limits| limits.contains(limit)) {
            return Ok(());
        }
        let detail = format!("the token does not grant access to limit {limit:?}");
        Err(Problem::new(FORBIDDEN, detail))
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
    /// Parses a token file.
    ///
    /// # Errors
    /// When a line is invalid. The message contains no part of a token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        token::read(contents, |line, before: &[(String, Arc<TokenIdentity>)]| {
            let (token, identity) = read_line(line)?;
            let mut before = before.iter();
            if before.any(|(it, other)| *it == token || other.name == identity.name) {
                return Err("duplicate name or token".to_owned());
            }
            Ok((token, Arc::new(identity)))
        })
        .map(Self)
    }

    /// Returns the identity of a token. The time does not depend on its content.
    #[must_use]
    pub fn identity(&self, candidate: &[u8]) -> Option<Arc<TokenIdentity>> {
        let mut found = None;
        for (token, identity) in &self.0 {
            if bool::from(token.as_bytes().ct_eq(candidate)) {
                found = Some(identity);
            }
        }
        found.cloned()
    }
}

fn read_line(line: &str) -> Result<(String, TokenIdentity), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, token, limits] = words[..] else {
        return Err("expected NAME TOKEN LIMITS".to_owned());
    };
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_name) {
        return Err(format!(
            "invalid name: use up to {NAME_BYTES_MAX} letters, digits, dashes, dots and underscores"
        ));
    }
    token::check(token)?;
    let limits = (limits != "*").then(|| {
        let names = limits.split(',').filter(|it| !it.is_empty());
        names.map(ToOwned::to_owned).collect()
    });
    let name = name.to_owned();
    Ok((token.to_owned(), TokenIdentity { name, limits }))
}

#[cfg(test)]
mod tests {
    use runtime::token::TOKENS_MAX;

    use super::*;

    const ONE: &str = "one-token-of-16b";
    const TWO: &str = "two-token-of-16b";

    #[test]
    fn token_grants_access_to_its_limits_only() {
        let file = format!("# name token limits\n\n a {ONE} x,y \nb {TWO} *\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        let identity = tokens.identity(ONE.as_bytes()).unwrap();
        assert!(["x", "y"].iter().all(|it| identity.authorize(it).is_ok()));
        assert!(identity.authorize("z").is_err());
        let identity = tokens.identity(TWO.as_bytes()).unwrap();
        assert!(identity.authorize("z").is_ok() && identity.name == "b");
        for invalid in ["", &ONE[1..], "one-token-of-16B", "*"] {
            assert_eq!(tokens.identity(invalid.as_bytes()), None, "{invalid}");
        }
    }

    #[test]
    fn errors_do_not_contain_tokens() {
        let twice = format!("a {ONE} *\nb {ONE} *");
        let same = format!("a {ONE} *\na {TWO} *");
        let more = format!("a {ONE} * extra");
        let many: String = (0..=TOKENS_MAX)
            .map(|it| format!("n{it} {ONE}{it} *\n"))
            .collect();
        for (file, expected) in [
            ("", "no token"),
            (ONE, "line 1"),
            ("a short *", "line 1"),
            (&*twice, "line 2"),
            (&*same, "line 2"),
            (&*more, "line 1"),
            (&*format!("ä {ONE} *"), "invalid name"),
            (&*many, "more than"),
        ] {
            let error = Tokens::parse(file.as_bytes()).err().unwrap();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(ONE) && !error.contains("short"));
        }
        assert!(Tokens::parse(&[0xff]).is_err());
    }
}
