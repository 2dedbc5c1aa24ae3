//! User ids for browsers that have none (`--uid mint`).
//!
//! A browser may discard a new HTTP cookie. The first request therefore records nothing: its response sets a user id,
//! and redirects to the same request with a marker parameter. If the second request contains this cookie, the match is
//! recorded. The marker prevents a further redirect.

use runtime::http1::head::Head;

use super::{
    browser_cookies::BrowserCookies,
    query::{MARKER, Query},
};
use crate::contracts::{answer::Answer, rejection::Rejection};

/// The characters of a user id, which has 128 random bits.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const USER_ID_BYTES: usize = 22;

/// Maximum size of the response, except the query and the headers that follow.
const REDIRECT_BYTES_MAX: usize = 512;

/// The response to a browser without a user id (`--uid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum UidMode {
    /// An error response.
    #[default]
    Require,
    /// A new user id.
    Mint,
    /// A new user id, in a cookie with the attribute `Partitioned`.
    MintPartitioned,
}

impl UidMode {
    /// Whether browsers without a user id get one.
    pub(super) fn mints(self) -> bool {
        self != Self::Require
    }

    /// Whether cookies have the attribute `Partitioned`.
    pub(super) fn is_partitioned(self) -> bool {
        self == Self::MintPartitioned
    }

    /// The header that sets a new user id; `None` if the system provides no random bits.
    pub(super) fn new_cookie(self, cookies: &BrowserCookies) -> Option<String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let random = u128::from_ne_bytes(random);
        let digits = (0..USER_ID_BYTES).map(|it| ALPHABET[((random >> (6 * it)) % 64) as usize]);
        let user_id: String = digits.map(char::from).collect();
        Some(cookies.set_user_id(&user_id, self.is_partitioned()))
    }

    /// Begins a redirect to the same request, which sets a new user id.
    ///
    /// # Errors
    /// If the browser was redirected before, or the system provides no random bits.
    pub(super) fn begin_redirect(
        self,
        head: &Head<'_>,
        query: &Query<'_>,
        cookies: &BrowserCookies,
        output: &mut Vec<u8>,
    ) -> Result<(), Rejection> {
        if query.is_redirected {
            return Err(Rejection::UserNotKept);
        }
        let cookie = self.new_cookie(cookies).ok_or(Rejection::UserMissing)?;
        // A query without a path also works if a proxy has removed a prefix of the path.
        let lines = format!("location: ?{}&{MARKER}=1\r\n{cookie}", head.query);
        // Without this, the longest response could double the buffer beyond its maximum.
        output.reserve_exact(lines.len() + REDIRECT_BYTES_MAX);
        Answer::Redirect.begin(output);
        output.extend_from_slice(lines.as_bytes());
        Ok(())
    }
}
