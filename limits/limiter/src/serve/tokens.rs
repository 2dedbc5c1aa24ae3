//! Access tokens. Each line of their file contains a name, a token, and the limits that the token may use.
//!
//! ```text
//! # name    token                     limits
//! billing   nKq3mB0xT5r8vYw1z4A7      dsp-17,partner
//! scripts   w9Zc2Lx6Hd4Jf8Ps1Qv0      *
//! ```

use std::collections::BTreeSet;

use runtime::token;

use super::problem::{FORBIDDEN, Problem};

/// A token file.
pub type File = token::File<Permissions>;

/// The client of a token; the default is the client of a port without tokens.
pub type Client = token::Client<Permissions>;

/// Permissions of a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Accessible limits; `None` for all.
    limits: Option<BTreeSet<String>>,
}

impl Permissions {
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

impl token::Permissions for Permissions {
    const FILES: &'static str = "token";
    const LINE: Option<&'static str> = Some("NAME TOKEN LIMITS");

    fn parse(words: &[&str]) -> Result<Self, String> {
        let limits = (words[0] != "*").then(|| {
            let names = words[0].split(',').filter(|it| !it.is_empty());
            names.map(ToOwned::to_owned).collect()
        });
        Ok(Self { limits })
    }
}

#[cfg(test)]
mod tests {
    use runtime::token::Permissions as _;

    use super::*;

    #[test]
    fn token_grants_access_to_its_limits_only() {
        let two = Permissions::parse(&["x,y"]).unwrap();
        assert!(["x", "y"].iter().all(|it| two.authorize(it).is_ok()));
        assert!(two.authorize("z").is_err());
        assert!(Permissions::parse(&["*"]).unwrap().authorize("z").is_ok());
    }
}
