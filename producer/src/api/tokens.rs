//! Tokens of the API: each with a name, the DSPs it may write, and its rights.
//!
//! ```text
//! # NAME     TOKEN                    DSPS     RIGHTS
//! partner    nKq3mB0xT5r8vYw1z4A7     17,42    write
//! privacy    w9Zc2Lx6Hd4Jf8Ps1Qv0     *        delete
//! ```

use std::{collections::BTreeSet, fmt, sync::Arc};

use runtime::{
    reload::{NamedFile, Source},
    token,
};
use subtle::ConstantTimeEq as _;

/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// A file of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// The tokens of a file; at least one. Prints without them.
pub struct Tokens(Vec<(String, Arc<Client>)>);

/// What a token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To add matches.
    Write,
    /// To delete, and to read receipts.
    Delete,
}

/// Who a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub name: String,
    /// The DSPs it may write or delete; `None` for all.
    dsps: Option<BTreeSet<u32>>,
    rights: BTreeSet<Right>,
}

impl Client {
    /// A client on this machine, of a port without tokens.
    pub(super) fn local() -> Arc<Self> {
        Arc::new(Self {
            name: String::new(),
            dsps: None,
            rights: [Right::Write, Right::Delete].into(),
        })
    }

    pub(super) fn has(&self, right: Right) -> bool {
        self.rights.contains(&right)
    }

    /// Whether it may write or delete cookies of this DSP; of all DSPs if that is 0.
    pub(super) fn may_use(&self, dsp_id: u32) -> bool {
        self.dsps.as_ref().is_none_or(|dsps| dsps.contains(&dsp_id))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Write => "write",
            Self::Delete => "delete",
        })
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} tokens", self.0.len())
    }
}

impl Source for File {
    type Value = Tokens;
    const NAME: &'static str = "api_token";

    fn files(&self) -> Vec<&NamedFile> {
        vec![&self.0]
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Tokens, Vec<String>> {
        Tokens::parse(&contents[0]).map_err(|wrong| vec![self.0.error(wrong)])
    }
}

impl Tokens {
    /// Reads one token per line.
    ///
    /// # Errors
    /// The line and what is wrong with it, without any token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        token::read(contents, |line, before: &[(String, Arc<Client>)]| {
            let (token, client) = read_line(line)?;
            let mut before = before.iter();
            if before.any(|(other, it)| *other == token || it.name == client.name) {
                return Err("duplicate name or token".to_owned());
            }
            Ok((token, Arc::new(client)))
        })
        .map(Self)
    }

    /// The client of a token. Takes the same time for every candidate of a length.
    pub(super) fn client(&self, candidate: &[u8]) -> Option<Arc<Client>> {
        let mut found = None;
        for (token, client) in &self.0 {
            if bool::from(token.as_bytes().ct_eq(candidate)) {
                found = Some(client);
            }
        }
        found.cloned()
    }
}

fn read_line(line: &str) -> Result<(String, Client), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, token, dsps, rights] = words[..] else {
        return Err("expected NAME TOKEN DSPS RIGHTS".to_owned());
    };
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_name) {
        return Err(format!(
            "a name has up to {NAME_BYTES_MAX} letters, digits, dashes, dots and underscores"
        ));
    }
    token::check(token)?;
    let dsp = |text: &str| match text.parse() {
        Ok(dsp_id) if dsp_id > 0 => Ok(dsp_id),
        _ => Err("expected DSP ids separated by commas, or *".to_owned()),
    };
    let right = |text: &str| match text {
        "write" => Ok(Right::Write),
        "delete" => Ok(Right::Delete),
        _ => Err("unknown right; expected write, delete or write,delete".to_owned()),
    };
    let client = Client {
        name: name.to_owned(),
        dsps: match dsps {
            "*" => None,
            list => Some(list.split(',').map(dsp).collect::<Result<_, _>>()?),
        },
        rights: rights.split(',').map(right).collect::<Result<_, _>>()?,
    };
    Ok((token.to_owned(), client))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "one-token-of-16b";
    const TWO: &str = "two-token-of-16b";

    #[test]
    fn token_grants_its_dsps_and_rights_only() {
        let file = format!("# comment\n\n a {ONE} 1,2 write\nb {TWO} * write,delete\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        let one = tokens.client(ONE.as_bytes()).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|dsp| one.may_use(dsp)),
            [false, true, true, false]
        );
        assert!(one.has(Right::Write) && !one.has(Right::Delete));
        let two = tokens.client(TWO.as_bytes()).unwrap();
        assert!(two.may_use(0) && two.may_use(3) && two.has(Right::Delete));
        for wrong in ["", &ONE[1..], "one-token-of-16B"] {
            assert!(tokens.client(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn error_names_the_line_and_no_token() {
        for (file, expected) in [
            (String::new(), "no token"),
            (format!("a {ONE} *"), "line 1"),
            (format!("a {ONE} 0 write"), "line 1"),
            (format!("a {ONE} x write"), "line 1"),
            (format!("a {ONE} * admin"), "unknown right"),
            (
                format!("a {ONE} * write\nb {ONE} * write"),
                "line 2: duplicate",
            ),
            (
                format!("a {ONE} * write\na {TWO} * write"),
                "line 2: duplicate",
            ),
            ("a short * write".to_owned(), "line 1"),
        ] {
            let error = Tokens::parse(file.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(ONE) && !error.contains("short"));
        }
    }
}
