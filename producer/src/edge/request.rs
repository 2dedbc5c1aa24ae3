//! Parses the query and the user id of a sync request into a cookie, or a rejection with a reason.
//!
//! Does no I/O and allocates nothing.

use httparse::Header;
use proto::{
    ids::{self, InvalidId},
    limits::{BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    units::DspId,
    wire::CookieRef,
};

use super::query::{Query, Undecodable, Value};
use crate::contracts::{
    answer::Answer,
    privacy::{Country, Signals},
    rejection::Rejection,
};

/// A match as a query states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedMatch<'a> {
    /// The DSP id.
    pub dsp_id: DspId,
    /// The buyer uid.
    pub buyer_uid: Value<'a>,
    /// Replaces the answer of the contract, if set.
    pub format: Option<Answer>,
}

impl<'a> StatedMatch<'a> {
    /// Parses `d`, and requires `b`.
    ///
    /// # Errors
    /// The first [`Rejection`] found.
    pub fn parse(query: &Query<'a>) -> Result<Self, Rejection> {
        let dsp_id = query.dsp_id;
        let dsp_id = dsp_id.value(Rejection::DspMissing, Rejection::DspRepeated)?;
        let buyer_uid = query.buyer_uid;
        let buyer_uid = buyer_uid.value(Rejection::BuyerMissing, Rejection::BuyerRepeated)?;
        Ok(Self {
            dsp_id: parse_dsp_id(dsp_id.text)?,
            buyer_uid,
            format: None,
        })
    }

    /// The buyer uid, and the cookie of this match with the user id, as sent. If `mints`, the user id may be missing. There is
    /// then no cookie, because an empty user id would mean all users.
    ///
    /// # Errors
    /// The first [`Rejection`] found, the buyer uid's before the user id's.
    pub fn cookie<'s>(
        self,
        user_id: Option<&'s [u8]>,
        mints: bool,
    ) -> Result<(&'a str, Option<CookieRef<'s>>), Rejection>
    where
        'a: 's,
    {
        let buyer_uid = parse_buyer_uid(self.buyer_uid)?;
        let user_id = match parse_user_id(user_id) {
            Err(Rejection::UserMissing | Rejection::UserEmpty) if mints => None,
            user_id => Some(user_id?),
        };
        let cookie = |user_id| CookieRef {
            user_id,
            dsp_id: self.dsp_id,
            buyer_uid,
            age_micros: 0,
        };
        Ok((buyer_uid, user_id.map(cookie)))
    }
}

/// The DSP of a query that was rejected for another reason; `None` if it is invalid or repeated.
pub fn dsp_id(query: &Query<'_>) -> Option<DspId> {
    let value = query.dsp_id.value((), ()).ok()?;
    parse_dsp_id(value.text).ok()
}

pub(super) fn parse_dsp_id(digits: &str) -> Result<DspId, Rejection> {
    let mut dsp_id: u32 = 0;
    for digit in digits.bytes() {
        if !digit.is_ascii_digit() {
            return Err(Rejection::DspInvalid);
        }
        dsp_id = dsp_id
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u32::from(digit - b'0')))
            .ok_or(Rejection::DspInvalid)?;
    }
    // An empty value yields 0, which is invalid.
    match DspId(dsp_id) {
        dsp_id if dsp_id.is_valid() => Ok(dsp_id),
        _ => Err(Rejection::DspInvalid),
    }
}

fn parse_buyer_uid(value: Value<'_>) -> Result<&str, Rejection> {
    match value.undecodable {
        None => {}
        Some(Undecodable::Escape) => return Err(Rejection::BuyerEncoding),
        Some(Undecodable::NotUtf8) => return Err(Rejection::BuyerNotUtf8),
    }
    match ids::check_buyer_uid(value.text, BUYER_UID_BYTES_MAX) {
        Ok(()) => Ok(value.text),
        Err(InvalidId::Empty) => Err(Rejection::BuyerEmpty),
        Err(InvalidId::TooLong) => Err(Rejection::BuyerTooLong),
        Err(InvalidId::Character) => Err(Rejection::BuyerControl),
    }
}

pub(super) fn parse_user_id(user_id: Option<&[u8]>) -> Result<&str, Rejection> {
    let user_id = user_id.ok_or(Rejection::UserMissing)?;
    ids::check_user_cookie(user_id, USER_ID_BYTES_MAX).map_err(|illegal| match illegal {
        InvalidId::Empty => Rejection::UserEmpty,
        InvalidId::TooLong => Rejection::UserTooLong,
        InvalidId::Character => Rejection::UserInvalid,
    })
}

/// Adds the privacy signals in headers.
pub fn with_signals<'a>(
    mut signals: Signals<'a>,
    headers: &[Header<'_>],
    country_header: Option<&str>,
) -> Signals<'a> {
    for Header { name, value } in headers {
        if name.eq_ignore_ascii_case("sec-gpc") {
            signals.gpc |= *value == b"1";
        } else if name.eq_ignore_ascii_case(country_header.unwrap_or_default()) {
            // A proxy may add its header behind that of the client.
            if !signals.country.is_some_and(Country::has_gdpr) {
                signals.country = Country::from_header(value);
            }
        }
    }
    signals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{browser_cookies::BrowserCookies, query::Scratch};

    #[track_caller]
    fn check(query: &str, cookies: &[&str], expected: Result<(&str, u32, &str), Rejection>) {
        let mut scratch = Scratch::default();
        let headers = cookies.iter().map(|header| header.as_bytes());
        let user_id = BrowserCookies::default().user_id(headers);
        let stated = StatedMatch::parse(&Query::parse(query, &mut scratch));
        let found = stated.and_then(|stated| stated.cookie(user_id, false));
        let parsed = found.map(|(buyer_uid, cookie)| {
            let cookie = cookie.unwrap();
            assert_eq!(cookie.buyer_uid, buyer_uid);
            (cookie.user_id, cookie.dsp_id.0, buyer_uid)
        });
        assert_eq!(parsed, expected, "{query} {cookies:?}");
    }

    #[track_caller]
    fn check_buyer(encoded: &str, expected: Result<&str, Rejection>) {
        let query = format!("d=7&b={encoded}");
        check(&query, &["uid=u"], expected.map(|buyer| ("u", 7, buyer)));
    }

    #[track_caller]
    fn check_dsp(encoded: &str, expected: Option<u32>) {
        let expected = expected.ok_or(Rejection::DspInvalid);
        let query = format!("d={encoded}&b=x");
        check(&query, &["uid=u"], expected.map(|dsp| ("u", dsp, "x")));
    }

    #[track_caller]
    fn check_user(cookies: &[&str], expected: Result<&str, Rejection>) {
        check("d=7&b=x", cookies, expected.map(|user| (user, 7, "x")));
    }

    #[test]
    fn parameters_are_found_in_any_order_among_others() {
        check("d=17&b=abc", &["uid=u1"], Ok(("u1", 17, "abc")));
        check("b=abc&d=17", &["uid=u1"], Ok(("u1", 17, "abc")));
        check(
            "x=1&b=abc&&db=9&d=17&bd",
            &["uid=u1"],
            Ok(("u1", 17, "abc")),
        );
        check("", &["uid=u1"], Err(Rejection::DspMissing));
        check("d=17", &["uid=u1"], Err(Rejection::BuyerMissing));
        check("b=abc&d", &["uid=u1"], Err(Rejection::DspMissing));
        check("d=1&d=1&b=x", &["uid=u1"], Err(Rejection::DspRepeated));
        check("d=1&b=x&b=x", &["uid=u1"], Err(Rejection::BuyerRepeated));
    }

    #[test]
    fn buyer_uid_is_percent_decoded_exactly() {
        check_buyer("a%26b%3dc%2Fd%2be%25f", Ok("a&b=c/d+e%f"));
        check_buyer("a+b=c==/--.~!*", Ok("a+b=c==/--.~!*"));
        check_buyer("%C3%BC%E2%82%AC", Ok("ü€"));
        check_buyer("ü", Ok("ü"));
        check_buyer("%2525", Ok("%25"));
        check_buyer("%20", Ok(" "));
        check_buyer(&"x".repeat(256), Ok(&"x".repeat(256)));
        check_buyer(&"%41".repeat(256), Ok(&"A".repeat(256)));
    }

    #[test]
    fn invalid_buyer_uid_is_rejected_with_its_reason() {
        check_buyer("", Err(Rejection::BuyerEmpty));
        check_buyer(&"x".repeat(257), Err(Rejection::BuyerTooLong));
        check_buyer(&"%41".repeat(257), Err(Rejection::BuyerTooLong));
        check_buyer("%", Err(Rejection::BuyerEncoding));
        check_buyer("%4", Err(Rejection::BuyerEncoding));
        check_buyer("%zz", Err(Rejection::BuyerEncoding));
        check_buyer("%%41", Err(Rejection::BuyerEncoding));
        check_buyer("%ff", Err(Rejection::BuyerNotUtf8));
        check_buyer("%C3", Err(Rejection::BuyerNotUtf8));
        check_buyer("%00", Err(Rejection::BuyerControl));
        check_buyer("a%0Ab", Err(Rejection::BuyerControl));
        check_buyer("%7f", Err(Rejection::BuyerControl));
        check_buyer("%C2%85", Err(Rejection::BuyerControl));
    }

    #[test]
    fn dsp_id_must_be_a_decimal_in_range() {
        check_dsp("1", Some(1));
        check_dsp("4294967295", Some(u32::MAX));
        check_dsp("0017", Some(17));
        check_dsp("%31%37", Some(17));
        for invalid in [
            "",
            "0",
            "4294967296",
            "-1",
            "+1",
            "1.0",
            "1e3",
            "0x1",
            "a",
            "%",
            "1%20",
            "٣",
        ] {
            check_dsp(invalid, None);
        }
        check_dsp(&"1".repeat(1000), None);
        check_dsp(&"%31".repeat(1000), None);
    }

    #[test]
    fn user_id_is_found_among_cookies_and_headers() {
        check_user(&["uid=u-1"], Ok("u-1"));
        check_user(&["a=b; uid=u-1;c=d"], Ok("u-1"));
        check_user(&["a=b;uid=u-1"], Ok("u-1"));
        check_user(
            &["a=uid=no; xuid=no; uidx=no; uid =no", "uid=yes"],
            Ok("yes"),
        );
        check_user(&["uid=a=b\"!~"], Ok("a=b\"!~"));
        check_user(&["uid=first; uid=second"], Ok("first"));
        check_user(&[&format!("uid={}", "u".repeat(64))], Ok(&"u".repeat(64)));
    }

    #[test]
    fn invalid_user_id_is_rejected_with_its_reason() {
        check_user(&[], Err(Rejection::UserMissing));
        check_user(&["uid"], Err(Rejection::UserMissing));
        check_user(&["UID=u"], Err(Rejection::UserMissing));
        check_user(&["uid="], Err(Rejection::UserEmpty));
        check_user(&["uid=a b"], Err(Rejection::UserInvalid));
        check_user(&["uid=a,b"], Err(Rejection::UserInvalid));
        check_user(&["uid=ü"], Err(Rejection::UserInvalid));
        check_user(&["uid=a\tb"], Err(Rejection::UserInvalid));
        let long = format!("uid={}", "u".repeat(65));
        check_user(&[&long], Err(Rejection::UserTooLong));
    }

    #[test]
    fn labels_are_distinct_and_reasons_are_one_line() {
        let labels: std::collections::HashSet<_> = Rejection::ALL
            .iter()
            .map(|rejection| rejection.label())
            .collect();
        assert_eq!(labels.len(), Rejection::ALL.len());
        for rejection in Rejection::ALL {
            let reason = rejection.reason();
            assert_eq!(reason.find('\n'), Some(reason.len() - 1), "{reason:?}");
        }
    }
}
