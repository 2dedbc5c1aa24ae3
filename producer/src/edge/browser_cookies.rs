//! The HTTP cookies of browsers: the user id and the opt-out. No other module knows their names and attributes.

use std::time::Duration;

use proto::{ids, limits::USER_ID_BYTES_MAX};

/// The longest time for which browsers keep a cookie.
pub const AGE_MAX: Duration = Duration::from_secs(400 * 24 * 3600);

/// The name and value of the cookie that the opt-out page sets.
const OPT_OUT: &str = "cookiesync_optout=1";

/// The name of the cookie with the [hints](crate::plan::hints), and an equals sign.
const HINTS: &str = "sy=";

/// The lifetime of hints.
const HINTS_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Maximum bytes of a name, and of a value.
const TEXT_BYTES_MAX: usize = 128;

/// Names, values and attributes of the cookies.
#[derive(Debug, Clone)]
pub struct BrowserCookies {
    /// The name of the cookie with the user id, and an equals sign.
    uid: String,
    /// The lifetime of a new user id.
    age: Duration,
    /// The host that also gets its subdomains' cookies; `None` if each host has its own.
    domain: Option<String>,
    /// Name and value of each cookie by which another page opts out.
    opt_outs: Vec<String>,
}

impl Default for BrowserCookies {
    fn default() -> Self {
        Self::new("uid", AGE_MAX, None, Vec::new()).expect("a valid name")
    }
}

impl BrowserCookies {
    /// Cookies with these settings, whose values are valid on their own.
    ///
    /// # Errors
    /// A constraint between the settings that is violated.
    pub fn new(
        uid: &str,
        age: Duration,
        domain: Option<String>,
        opt_outs: Vec<String>,
    ) -> Result<Self, String> {
        // Browsers compare prefixes case-insensitively.
        let prefix = uid.get(.."__Host-".len()).unwrap_or_default();
        if domain.is_some() && prefix.eq_ignore_ascii_case("__Host-") {
            return Err(format!(
                "--uid-cookie-domain: browsers reject it for the cookie {uid}: use a name without the prefix __Host-"
            ));
        }
        let uid = format!("{uid}=");
        let same = opt_outs.iter().find(|it| it.starts_with(&uid));
        if uid == HINTS {
            return Err(
                "--uid-cookie: sy is the cookie of sync plans: use a different name".into(),
            );
        }
        let own = OPT_OUT.starts_with(&uid).then_some(OPT_OUT);
        if let Some(same) = same.map(|it| &**it).or(own) {
            return Err(format!(
                "--uid-cookie: {same} is the opt-out cookie: use a different name"
            ));
        }
        Ok(Self {
            uid,
            age,
            domain,
            opt_outs,
        })
    }

    /// The value of the cookie with the user id, if there is one.
    pub fn user_id<'a>(&self, mut headers: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
        headers.find_map(|header| self.values(header).next())
    }

    /// The valid values of the cookie with the user id: a browser can have one with and one without partition.
    pub(super) fn user_ids<'a>(
        &self,
        headers: impl Iterator<Item = &'a [u8]>,
    ) -> impl Iterator<Item = &'a str> {
        let values = headers.flat_map(|header| self.values(header));
        values.filter_map(|value| ids::check_user_cookie(value, USER_ID_BYTES_MAX).ok())
    }

    fn values<'a>(&self, header: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let name = self.uid.as_bytes();
        pairs(header).filter_map(move |pair| {
            // Excludes most cookies without a call.
            let may_match = pair.first() == name.first();
            may_match.then(|| pair.strip_prefix(name)).flatten()
        })
    }

    /// The hints of a browser, if there are any.
    pub(super) fn hints<'a>(mut headers: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
        headers.find_map(|header| pairs(header).find_map(|it| it.strip_prefix(HINTS.as_bytes())))
    }

    /// Whether a request carries an opt-out cookie.
    pub(super) fn opted_out<'a>(&self, headers: impl Iterator<Item = &'a [u8]>) -> bool {
        let is_opt_out = |pair: &[u8]| pair == OPT_OUT.as_bytes() || self.is_of_other_page(pair);
        headers.flat_map(pairs).any(is_opt_out)
    }

    /// Whether a request carries the opt-out cookie of another page, which this one cannot remove.
    pub(super) fn opted_out_elsewhere<'a>(&self, headers: impl Iterator<Item = &'a [u8]>) -> bool {
        headers.flat_map(pairs).any(|it| self.is_of_other_page(it))
    }

    /// Whether there are opt-out cookies of other pages (`--opt-out-cookie`).
    pub(super) fn has_other_opt_outs(&self) -> bool {
        !self.opt_outs.is_empty()
    }

    fn is_of_other_page(&self, pair: &[u8]) -> bool {
        self.opt_outs.iter().any(|it| it.as_bytes() == pair)
    }

    /// The header that sets a user id.
    pub(super) fn set_user_id(&self, user_id: &str, is_partitioned: bool) -> String {
        let (cookie, domain) = (format!("{}{user_id}", self.uid), self.domain.as_deref());
        set_cookie(&cookie, self.age, domain, is_partitioned)
    }

    /// The header that sets hints.
    pub(super) fn set_hints(&self, hints: &str, is_partitioned: bool) -> String {
        let domain = self.domain.as_deref();
        set_cookie(
            &format!("{HINTS}{hints}"),
            HINTS_AGE,
            domain,
            is_partitioned,
        )
    }

    /// The headers that remove hints, with and without partition.
    pub(super) fn remove_hints(&self) -> String {
        let domain = self.domain.as_deref();
        let removed = |is_partitioned| set_cookie(HINTS, Duration::ZERO, domain, is_partitioned);
        removed(false) + &removed(true)
    }

    /// The headers that set the opt-out cookie. In a frame, browsers may keep only a partitioned cookie.
    pub(super) fn opt_out(&self, is_in_frame: bool) -> String {
        let domain = self.domain.as_deref();
        let mut lines = set_cookie(OPT_OUT, AGE_MAX, domain, false);
        if is_in_frame {
            lines += &set_cookie(OPT_OUT, AGE_MAX, domain, true);
        }
        lines
    }

    /// The headers that remove the opt-out cookie, including one from before the domain was set.
    pub(super) fn opt_in(&self, is_in_frame: bool) -> String {
        let domains = [None, self.domain.as_deref()];
        let mut lines = String::new();
        for is_partitioned in [false, true] {
            for domain in domains.iter().skip(usize::from(domains[0] == domains[1])) {
                if is_in_frame || !is_partitioned {
                    lines += &set_cookie(OPT_OUT, Duration::ZERO, *domain, is_partitioned);
                }
            }
        }
        lines
    }
}

/// The cookies of a header.
fn pairs(header: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pairs = header.split(|&byte| byte == b';');
    pairs.map(<[u8]>::trim_ascii)
}

fn set_cookie(cookie: &str, age: Duration, domain: Option<&str>, is_partitioned: bool) -> String {
    let (before, domain) = domain.map_or(("", ""), |domain| ("; Domain=", domain));
    format!(
        "set-cookie: {cookie}; Max-Age={}; Path=/; Secure; HttpOnly; SameSite=None{before}{domain}{}\r\n",
        age.as_secs(),
        if is_partitioned { "; Partitioned" } else { "" },
    )
}

/// Parses the name of a cookie: a token of HTTP.
///
/// # Errors
/// A description of the error.
pub fn name(text: &str) -> Result<String, String> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if (1..=TEXT_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_token) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "invalid cookie name {text:?}: use 1 to {TEXT_BYTES_MAX} letters, digits, hyphens or underscores"
    ))
}

/// Parses the name and value of a cookie.
///
/// # Errors
/// A description of the error.
pub fn cookie(text: &str) -> Result<String, String> {
    let (cookie, value) = text.split_once('=').unwrap_or((text, ""));
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b",;\\".contains(&byte);
    if (1..=TEXT_BYTES_MAX).contains(&value.len()) && value.bytes().all(is_allowed) {
        return name(cookie).map(|_| text.to_owned());
    }
    Err(format!(
        "invalid cookie {text:?}: write NAME=VALUE, with 1 to {TEXT_BYTES_MAX} printable ASCII characters without spaces, commas and semicolons"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookies(
        uid: &str,
        domain: Option<&str>,
        opt_outs: &[&str],
    ) -> Result<BrowserCookies, String> {
        let opt_outs = opt_outs.iter().map(ToString::to_string).collect();
        let age = Duration::from_secs(60);
        BrowserCookies::new(uid, age, domain.map(ToOwned::to_owned), opt_outs)
    }

    #[test]
    fn opt_out_cookie_is_found_among_others_only_with_its_value() {
        let cookies = cookies("uid", None, &["optout=yes", "o=1=2"]).unwrap();
        for (header, opted_out, elsewhere) in [
            ("cookiesync_optout=1", true, false),
            ("uid=u; cookiesync_optout=1;x=y", true, false),
            ("cookiesync_optout=0", false, false),
            ("xcookiesync_optout=1", false, false),
            ("uid=u", false, false),
            ("a=b;optout=yes", true, true),
            ("optout=no; optout=", false, false),
            ("o=1=2", true, true),
            ("o=1", false, false),
        ] {
            let header = || [header.as_bytes()].into_iter();
            let found = (
                cookies.opted_out(header()),
                cookies.opted_out_elsewhere(header()),
            );
            assert_eq!(found, (opted_out, elsewhere), "{:?}", header().next());
        }
    }

    #[test]
    fn user_id_has_the_configured_name() {
        let cookies = cookies("__Secure-ex", None, &[]).unwrap();
        let of = |header: &'static str| cookies.user_id([header.as_bytes()].into_iter());
        assert_eq!(of("uid=a; __Secure-ex=b"), Some(&b"b"[..]));
        assert_eq!(of("uid=a; __secure-ex=b; __Secure-exx=c"), None);
        let all = [&b"__Secure-ex=b; __Secure-ex=a b"[..], b"x=y;__Secure-ex=c"];
        assert!(cookies.user_ids(all.into_iter()).eq(["b", "c"]));
    }

    #[test]
    fn headers_have_the_configured_attributes() {
        const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=None";
        let with = cookies("ex", Some("a.example"), &[]).unwrap();
        assert_eq!(
            with.set_user_id("u", true),
            format!(
                "set-cookie: ex=u; Max-Age=60; {ATTRIBUTES}; Domain=a.example; Partitioned\r\n"
            )
        );
        let line = |age: u32, more: &str| {
            format!("set-cookie: cookiesync_optout=1; Max-Age={age}; {ATTRIBUTES}{more}\r\n")
        };
        let set = |more| line(34_560_000, more);
        assert_eq!(with.opt_out(false), set("; Domain=a.example"));
        let removed = [
            "",
            "; Domain=a.example",
            "; Partitioned",
            "; Domain=a.example; Partitioned",
        ];
        let removed = removed.map(|more| line(0, more));
        assert_eq!(with.opt_in(true), removed.concat());
        assert_eq!(with.opt_in(false), removed[..2].concat());
        let without = BrowserCookies::default();
        assert_eq!(without.opt_out(true), set("") + &set("; Partitioned"));
        assert_eq!(
            without.opt_in(true),
            line(0, "") + &line(0, "; Partitioned")
        );
    }

    #[test]
    fn invalid_settings_are_errors() {
        for (name, is_valid) in [
            ("uid", true),
            ("__Host-a.b_c", true),
            ("", false),
            ("a b", false),
            ("a=b", false),
            ("a;b", false),
            ("ä", false),
        ] {
            assert_eq!(super::name(name).is_ok(), is_valid, "{name}");
        }
        for (cookie, is_valid) in [
            ("optout=1", true),
            ("o=a=b", true),
            ("optout", false),
            ("optout=", false),
            ("=1", false),
            ("o=a b", false),
            ("o=a;b", false),
        ] {
            assert_eq!(super::cookie(cookie).is_ok(), is_valid, "{cookie}");
        }
        for (uid, domain, opt_outs, error) in [
            ("__Host-uid", None, &[][..], None),
            ("__Secure-uid", Some("a.example"), &[], None),
            (
                "__Host-uid",
                Some("a.example"),
                &[],
                Some("--uid-cookie-domain"),
            ),
            (
                "__host-uid",
                Some("a.example"),
                &[],
                Some("--uid-cookie-domain"),
            ),
            (
                "cookiesync_optout",
                None,
                &[],
                Some("--uid-cookie: cookiesync_optout=1"),
            ),
            (
                "optout",
                None,
                &["optout=1"],
                Some("--uid-cookie: optout=1"),
            ),
        ] {
            let found = cookies(uid, domain, opt_outs).err();
            let matches = match (&found, error) {
                (Some(found), Some(error)) => found.starts_with(error),
                (found, error) => found.is_none() && error.is_none(),
            };
            assert!(matches, "{uid}: {found:?}");
        }
    }
}
