//! Tokens of the API, each with a name, its DSPs, and its rights.
//!
//! ```text
//! # NAME     TOKEN                    DSPS     RIGHTS
//! partner    nKq3mB0xT5r8vYw1z4A7     17,42    write
//! privacy    w9Zc2Lx6Hd4Jf8Ps1Qv0     *        delete
//! ```

use std::{collections::BTreeSet, sync::Arc};

use runtime::token;

/// A file of tokens.
pub type File = token::File<Grant>;

/// The client of a token.
pub(super) type Client = token::Client<Grant>;

/// A permission of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The DSPs it may write or delete; `None` for all.
    dsps: Option<BTreeSet<u32>>,
    rights: BTreeSet<&'static str>,
}

/// The right to add matches.
pub(super) const WRITE: &str = "write";

/// The right to delete, and to read receipts.
pub(super) const DELETE: &str = "delete";

/// The client of a port without tokens, which is on loopback.
pub(super) fn local() -> Arc<Client> {
    Arc::new(Client {
        name: String::new(),
        permissions: Grant {
            dsps: None,
            rights: [WRITE, DELETE].into(),
        },
    })
}

impl Grant {
    pub(super) fn has(&self, right: &str) -> bool {
        self.rights.contains(right)
    }

    /// Whether it may write or delete cookies of this DSP; of all DSPs if that is 0.
    pub(super) fn may_use(&self, dsp_id: u32) -> bool {
        self.dsps.as_ref().is_none_or(|dsps| dsps.contains(&dsp_id))
    }
}

impl token::Permissions for Grant {
    const FILES: &'static str = "api_token";
    const LINE: Option<&'static str> = Some("NAME TOKEN DSPS RIGHTS");

    fn parse(words: &[&str]) -> Result<Self, String> {
        let dsp = |text: &str| match text.parse() {
            Ok(dsp_id) if dsp_id > 0 => Ok(dsp_id),
            _ => Err("expected DSP ids separated by commas, or *".to_owned()),
        };
        let right = |text: &str| match text {
            WRITE => Ok(WRITE),
            DELETE => Ok(DELETE),
            _ => Err("unknown right; expected write, delete or write,delete".to_owned()),
        };
        Ok(Self {
            dsps: match words[0] {
                "*" => None,
                list => Some(list.split(',').map(dsp).collect::<Result<_, _>>()?),
            },
            rights: words[1].split(',').map(right).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use runtime::token::Permissions as _;

    use super::*;

    #[test]
    fn token_grants_its_dsps_and_rights_only() {
        let one = Grant::parse(&["1,2", "write"]).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|dsp| one.may_use(dsp)),
            [false, true, true, false]
        );
        assert!(one.has(WRITE) && !one.has(DELETE));
        let two = Grant::parse(&["*", "write,delete"]).unwrap();
        assert!(two.may_use(0) && two.may_use(3) && two.has(DELETE));
        for invalid in [["0", "write"], ["x", "write"], ["*", "admin"]] {
            assert!(Grant::parse(&invalid).is_err(), "{invalid:?}");
        }
    }
}
