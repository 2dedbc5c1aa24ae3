//! Tokens of the API, each with a name, its DSPs, and its permissions.
//!
//! ```text
//! # NAME     TOKEN                    DSPS     PERMISSIONS
//! partner    nKq3mB0xT5r8vYw1z4A7     17,42    write
//! privacy    w9Zc2Lx6Hd4Jf8Ps1Qv0     *        delete
//! operator   e7Rb5Tn2Ya9Km4Uc6Gx3     *        nodes
//! ```

use std::{collections::BTreeSet, sync::Arc};

use proto::units::DspId;
use runtime::token;

/// A file of tokens.
pub type File = token::File<Permissions>;

/// The client of a token.
pub(super) type Client = token::Client<Permissions>;

/// Permissions of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permissions {
    /// DSPs whose cookies the client may add or delete; `None` for all.
    dsps: Option<BTreeSet<DspId>>,
    pub(super) names: BTreeSet<&'static str>,
}

/// Permission to add matches.
pub(super) const WRITE: &str = "write";

/// Permission to delete, and to read receipts.
pub(super) const DELETE: &str = "delete";

/// Permission to forget nodes, for which receipts of all clients then no longer wait.
pub(super) const NODES: &str = "nodes";

/// The client of a port without tokens, which is on loopback.
pub(super) fn local() -> Arc<Client> {
    Arc::new(Client {
        name: String::new(),
        permissions: Permissions {
            dsps: None,
            names: [WRITE, DELETE, NODES].into(),
        },
    })
}

impl Permissions {
    /// Whether they cover this DSP, or all DSPs if `dsp_id` is 0.
    pub(super) fn may_use(&self, dsp_id: DspId) -> bool {
        self.dsps.as_ref().is_none_or(|dsps| dsps.contains(&dsp_id))
    }
}

impl token::Permissions for Permissions {
    const FILES: &'static str = "api_token";
    const LINE: Option<&'static str> = Some("NAME TOKEN DSPS PERMISSIONS");

    fn parse(words: &[&str]) -> Result<Self, String> {
        let dsp = |text: &str| match text.parse() {
            Ok(dsp_id @ DspId(1..)) => Ok(dsp_id),
            _ => Err("expected DSP ids separated by commas, or *".to_owned()),
        };
        let name = |text: &str| match text {
            WRITE => Ok(WRITE),
            DELETE => Ok(DELETE),
            NODES => Ok(NODES),
            _ => Err(
                "unknown permission; expected write, delete or nodes, separated by commas"
                    .to_owned(),
            ),
        };
        Ok(Self {
            dsps: match words[0] {
                "*" => None,
                list => Some(list.split(',').map(dsp).collect::<Result<_, _>>()?),
            },
            names: words[1].split(',').map(name).collect::<Result<_, _>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use runtime::token::Permissions as _;

    use super::*;

    #[test]
    fn token_has_only_the_listed_dsps_and_permissions() {
        let one = Permissions::parse(&["1,2", "write"]).unwrap();
        assert_eq!(
            [0, 1, 2, 3].map(|dsp| one.may_use(DspId(dsp))),
            [false, true, true, false]
        );
        assert!(one.names.contains(WRITE) && !one.names.contains(DELETE));
        let two = Permissions::parse(&["*", "write,delete"]).unwrap();
        assert!(two.may_use(DspId(0)) && two.may_use(DspId(3)) && two.names.contains(DELETE));
        for invalid in [["0", "write"], ["x", "write"], ["*", "admin"]] {
            assert!(Permissions::parse(&invalid).is_err(), "{invalid:?}");
        }
    }
}
