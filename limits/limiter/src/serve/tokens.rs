//! Who may ask for which limits: tokens in a file, each with a name and what it opens.
//!
//! ```text
//! # name    token                     limits
//! billing   nKq3mB0xT5r8vYw1z4A7      dsp-17,partner
//! scripts   w9Zc2Lx6Hd4Jf8Ps1Qv0      *
//! ```

use std::{collections::BTreeSet, fmt, sync::Arc};

use runtime::{
    reload::{NamedFile, Source},
    token,
};
use subtle::ConstantTimeEq as _;

/// Most bytes of a token's name.
const NAME_BYTES_MAX: usize = 64;

/// A file of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File(pub NamedFile);

/// The tokens of a file; at least one. Prints without them.
pub struct Tokens(Vec<(String, Arc<Holder>)>);

/// Who bears a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The token's name.
    pub name: String,
    /// The limits that it opens; `None` for all.
    pub limits: Option<BTreeSet<String>>,
}

impl Holder {
    /// Who asks where no token is needed.
    #[must_use]
    pub fn anybody() -> Self {
        Self {
            name: String::new(),
            limits: None,
        }
    }

    /// Whether it opens this limit.
    #[must_use]
    pub fn may_use(&self, limit: &str) -> bool {
        self.limits
            .as_ref()
            .is_none_or(|limits| limits.contains(limit))
    }
}

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
    /// Reads one token a line, with its name and what it opens.
    ///
    /// # Errors
    /// In words that hold nothing of a token.
    pub fn parse(contents: &[u8]) -> Result<Self, String> {
        token::read(contents, |line, before: &[(String, Arc<Holder>)]| {
            let (token, holder) = read_line(line)?;
            let mut before = before.iter();
            if before.any(|(it, other)| *it == token || other.name == holder.name) {
                return Err("its name or its token is there twice".to_owned());
            }
            Ok((token, Arc::new(holder)))
        })
        .map(Self)
    }

    /// Who bears this token. Takes the same time for each token of its length.
    #[must_use]
    pub fn holder(&self, candidate: &[u8]) -> Option<Arc<Holder>> {
        let mut found = None;
        for (token, holder) in &self.0 {
            if bool::from(token.as_bytes().ct_eq(candidate)) {
                found = Some(holder);
            }
        }
        found.cloned()
    }
}

fn read_line(line: &str) -> Result<(String, Holder), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, token, limits] = words[..] else {
        return Err("write a name, a token and its limits".to_owned());
    };
    let is_name = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    if name.len() > NAME_BYTES_MAX || !name.chars().all(is_name) {
        return Err(format!(
            "a name has up to {NAME_BYTES_MAX} letters, digits, dashes, dots and underscores"
        ));
    }
    token::check(token)?;
    Ok((
        token.to_owned(),
        Holder {
            name: name.to_owned(),
            limits: (limits != "*").then(|| {
                let names = limits.split(',').filter(|it| !it.is_empty());
                names.map(ToOwned::to_owned).collect()
            }),
        },
    ))
}

#[cfg(test)]
mod tests {
    use runtime::token::TOKENS_MAX;

    use super::*;

    const ONE: &str = "one-token-of-16b";
    const TWO: &str = "two-token-of-16b";

    #[test]
    fn token_opens_its_limits_and_nothing_else() {
        let file = format!("# name token limits\n\n a {ONE} x,y \nb {TWO} *\n");
        let tokens = Tokens::parse(file.as_bytes()).unwrap();
        let holder = tokens.holder(ONE.as_bytes()).unwrap();
        assert!(holder.may_use("x") && holder.may_use("y") && !holder.may_use("z"));
        let holder = tokens.holder(TWO.as_bytes()).unwrap();
        assert!(holder.may_use("z") && holder.name == "b");
        for wrong in ["", &ONE[1..], "one-token-of-16B", "*"] {
            assert_eq!(tokens.holder(wrong.as_bytes()), None, "{wrong}");
        }
        assert!(!format!("{tokens:?}").contains(ONE));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_without_its_tokens() {
        let twice = format!("a {ONE} *\nb {ONE} *");
        let same = format!("a {ONE} *\na {TWO} *");
        let more = format!("a {ONE} * administer");
        let many: String = (0..=TOKENS_MAX)
            .map(|it| format!("n{it} {ONE}{it} *\n"))
            .collect();
        for (file, what) in [
            ("", "no token"),
            (ONE, "line 1"),
            ("a short *", "line 1"),
            (&*twice, "line 2"),
            (&*same, "line 2"),
            (&*more, "line 1"),
            (&*format!("ä {ONE} *"), "a name"),
            (&*many, "more than"),
        ] {
            let said = Tokens::parse(file.as_bytes()).unwrap_err();
            assert!(said.contains(what), "{said}");
            assert!(!said.contains(ONE) && !said.contains("short"));
        }
        assert!(Tokens::parse(&[0xff]).is_err());
    }
}
