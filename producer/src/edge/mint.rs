//! User ids for browsers that have none (`--uid mint`).
//!
//! A browser may discard the cookie, so its match is not recorded yet: it gets a new user id with a redirect to the same
//! request, and a parameter that marks the second request. Only one that returns with the cookie is recorded. The marker
//! ends the chain of redirects.

use std::str::FromStr;

use super::{
    head::{HEAD_BYTES_MAX, Head},
    request::{self, Rejection},
    response::Answer,
};

/// The parameter that marks the second request.
const MARKER: &str = "cookiesync_bounce";

/// The characters of a user id, which has 128 random bits.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const USER_ID_BYTES: usize = 22;

/// How much longer the second request is: by the marker, and by a Cookie header.
const ADDED_BYTES: usize = "&=1".len() + MARKER.len() + "cookie: uid=\r\n".len() + USER_ID_BYTES;

/// What a sync request without the HTTP cookie `uid` gets (`--uid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UidMode {
    /// An error.
    #[default]
    Require,
    /// A new user id.
    Mint {
        /// The cookie has the attribute `Partitioned`.
        partitioned: bool,
    },
}

impl FromStr for UidMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "require" => Ok(Self::Require),
            "mint" => Ok(Self::Mint { partitioned: false }),
            "mint-partitioned" => Ok(Self::Mint { partitioned: true }),
            _ => Err(format!(
                "unknown mode {text:?}: use require, mint or mint-partitioned"
            )),
        }
    }
}

impl UidMode {
    /// Whether browsers without a user id get one.
    pub(super) fn mints(self) -> bool {
        self != Self::Require
    }

    /// Begins a redirect to the same request, which sets a new user id. The cookie is kept for 400 days, the maximum that
    /// browsers accept.
    ///
    /// # Errors
    /// If the browser was redirected before, or cannot be redirected.
    pub(super) fn begin_redirect(
        self,
        head: &Head<'_>,
        output: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        if request::parameter(head.query, MARKER).is_some() {
            return Err(Rejection::UserNotKept);
        }
        let mut random = [0; 16];
        if head.length + ADDED_BYTES > HEAD_BYTES_MAX || getrandom::fill(&mut random).is_err() {
            return Err(Rejection::UserMissing);
        }
        Answer::Redirect.begin(output);
        let mut line = |parts: &[&str]| {
            for part in parts {
                output.extend_from_slice(part.as_bytes());
            }
        };
        line(&[
            "location: ",
            head.path,
            "?",
            head.query,
            "&",
            MARKER,
            "=1\r\n",
        ]);
        line(&["set-cookie: uid="]);
        let random = u128::from_ne_bytes(random);
        let digits = (0..USER_ID_BYTES).map(|it| ALPHABET[((random >> (6 * it)) % 64) as usize]);
        output.extend(digits);
        let partitioned = match self {
            Self::Mint { partitioned: true } => "; Partitioned\r\n",
            _ => "\r\n",
        };
        for part in [
            "; Max-Age=34560000; Path=/; Secure; HttpOnly; SameSite=None",
            partitioned,
        ] {
            output.extend_from_slice(part.as_bytes());
        }
        Ok(())
    }
}
