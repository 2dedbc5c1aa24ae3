//! Parses the query and Cookie headers of a sync request into a cookie, or a rejection with a reason. Reasons name the
//! parameters of `/sync`, even for `/setuid`.
//!
//! Does no I/O and allocates nothing: values are decoded into a [`Scratch`] of the caller.

use proto::{
    ids::{self, InvalidId},
    limits::{BUYER_UID_BYTES_MAX, USER_ID_BYTES_MAX},
    wire::CookieRef,
};

use super::answer::Answer;

/// The name of the HTTP cookie with the user id.
const USER_COOKIE: &[u8] = b"uid";

/// Buffer for a percent-decoded buyer uid.
pub type Scratch = [u8; BUYER_UID_BYTES_MAX];

/// An empty buffer.
pub const SCRATCH: Scratch = [0; BUYER_UID_BYTES_MAX];

/// Maximum number of digits, including leading zeros; 4294967295 has ten.
const DSP_ID_DIGITS_MAX: usize = 32;

macro_rules! rejections {
    ($($(#[doc = $doc:literal])+ $name:ident, $label:literal, $reason:literal;)+) => {
        /// Why a request is rejected.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rejection {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Rejection {
            /// All rejections, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// Value of the metric label.
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)+ }
            }

            /// One-line reason for the client, which names the parameter.
            pub fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)+ }
            }
        }
    };
}

rejections! {
    /// `d` is missing.
    DspMissing, "d_missing", "parameter d (the DSP id) is missing\n";
    /// `d` occurs more than once.
    DspRepeated, "d_repeated", "parameter d (the DSP id) is given more than once\n";
    /// `d` is not a decimal integer from 1 to 4294967295.
    DspInvalid, "d_invalid", "parameter d (the DSP id) is not a decimal integer from 1 to 4294967295\n";
    /// No contract lists the DSP, and `unknown_dsps` is `refuse`, or no contract has the `bidder` of `/setuid` as its name.
    /// Checked by the edge, like all rejections by a contract.
    DspUnknown, "unknown_dsp", "parameter d (the DSP id) or bidder (its name) does not name a known DSP\n";
    /// The contract of the DSP blocks it.
    DspBlocked, "dsp_blocked", "parameter d (the DSP id) names a blocked DSP\n";
    /// `b` is missing.
    BuyerMissing, "b_missing", "parameter b (the buyer uid) is missing\n";
    /// `b` occurs more than once.
    BuyerRepeated, "b_repeated", "parameter b (the buyer uid) is given more than once\n";
    /// `b` is empty.
    BuyerEmpty, "b_empty", "parameter b (the buyer uid) is empty\n";
    /// `b` is too long after percent-decoding.
    BuyerTooLong, "b_too_long", "parameter b (the buyer uid) is too long\n";
    /// `b` has a percent sign without two hexadecimal digits.
    BuyerEncoding, "b_encoding", "parameter b (the buyer uid) has a % that is not followed by two hexadecimal digits\n";
    /// `b` is not UTF-8 after percent-decoding.
    BuyerNotUtf8, "b_not_utf8", "parameter b (the buyer uid) is not UTF-8\n";
    /// `b` contains a control character.
    BuyerControl, "b_control", "parameter b (the buyer uid) contains a control character\n";
    /// `b` is a macro that was not replaced.
    BuyerMacro, "uid_macro", "parameter b (the buyer uid) is a macro that was not replaced\n";
    /// `b` stands for a missing id.
    BuyerSentinel, "uid_sentinel", "parameter b (the buyer uid) stands for a missing id\n";
    /// `b` is longer than the contract of the DSP permits.
    BuyerTooLongForDsp, "uid_too_long_for_dsp", "parameter b (the buyer uid) is longer than the contract of this DSP permits\n";
    /// `b` does not match the pattern in the contract of the DSP.
    BuyerPattern, "uid_pattern", "parameter b (the buyer uid) does not match the pattern in the contract of this DSP\n";
    /// The browser has opted out. Checked by the edge.
    OptedOut, "opted_out", "this browser has opted out\n";
    /// The privacy signals do not permit the match. Checked by the edge.
    Privacy, "privacy", "the privacy signals of this request do not permit the match\n";
    /// The HTTP cookie `uid` is missing.
    UserMissing, "uid_missing", "cookie uid (the user id) is missing\n";
    /// The HTTP cookie `uid` is empty.
    UserEmpty, "uid_empty", "cookie uid (the user id) is empty\n";
    /// The HTTP cookie `uid` is too long.
    UserTooLong, "uid_too_long", "cookie uid (the user id) is too long\n";
    /// The HTTP cookie `uid` contains a space, a comma or a character that is not printable ASCII.
    UserInvalid, "uid_invalid", "cookie uid (the user id) contains a space, a comma or a character that is not printable ASCII\n";
    /// The browser has no user id; the response sets one, and redirects to the same request.
    UserMinted, "uid_minted", "cookie uid (the user id) is new: follow the redirect, and send the cookie\n";
    /// The browser did not return the user id that it got.
    UserNotKept, "uid_not_kept", "cookie uid (the user id) is missing after the redirect that set it: the browser does not keep it\n";
    /// `f` of a request to `/setuid` is unknown.
    FormatInvalid, "f_invalid", "parameter f (the format of the response) is neither b nor i\n";
    /// A request to `/setuid` has invalid privacy signals, or lacks the consent string that it needs.
    SignalsInvalid, "privacy_invalid", "parameter gdpr, gdpr_consent, gpp or gpp_sid is invalid, or GDPR applies and there is no consent string\n";
}

/// A match as a query states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedMatch<'a> {
    /// The DSP id.
    pub dsp_id: u32,
    /// The buyer uid, percent-encoded.
    pub buyer_uid: &'a str,
    /// Replaces the answer of the contract, if set.
    pub format: Option<Answer>,
}

impl<'a> StatedMatch<'a> {
    /// Parses `d` and finds `b`, in any order among other parameters.
    ///
    /// # Errors
    /// The first [`Rejection`] found.
    pub fn parse(query: &'a str) -> Result<Self, Rejection> {
        let (dsp_id, buyer_uid) = query_parameters(query)?;
        Ok(Self {
            dsp_id: parse_dsp_id(dsp_id)?,
            buyer_uid,
            format: None,
        })
    }

    /// The buyer uid, and the cookie of this match with the user id from the Cookie headers. If `mints`, the user id may be
    /// missing. There is then no cookie, because an empty user id would mean all users.
    ///
    /// # Errors
    /// The first [`Rejection`] found, the buyer uid's before the user id's.
    pub fn decode<'s>(
        self,
        cookie_headers: impl Iterator<Item = &'s [u8]>,
        mints: bool,
        scratch: &'s mut Scratch,
    ) -> Result<(&'s str, Option<CookieRef<'s>>), Rejection>
    where
        'a: 's,
    {
        let buyer_uid = parse_buyer_uid(self.buyer_uid, scratch)?;
        let user_id = match parse_user_id(cookie_headers) {
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
pub fn dsp_id(query: &str) -> Option<u32> {
    let mut values = query
        .split('&')
        .filter_map(|parameter| parameter.strip_prefix("d="));
    let encoded = values.next()?;
    match values.next() {
        None => parse_dsp_id(encoded).ok(),
        Some(_) => None,
    }
}

/// The first value of a parameter of a query, as sent.
pub(super) fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let mut parameters = query.split('&');
    parameters.find_map(|parameter| parameter.strip_prefix(name)?.strip_prefix('='))
}

fn query_parameters(query: &str) -> Result<(&str, &str), Rejection> {
    let (mut dsp_id, mut buyer_uid) = (None, None);
    let mut rest = query;
    loop {
        let end = memchr::memchr(b'&', rest.as_bytes());
        let parameter = &rest[..end.unwrap_or(rest.len())];
        let slot = match parameter.as_bytes() {
            [b'd', b'=', ..] => Some((&mut dsp_id, Rejection::DspRepeated)),
            [b'b', b'=', ..] => Some((&mut buyer_uid, Rejection::BuyerRepeated)),
            _ => None,
        };
        if let Some((slot, repeated)) = slot
            && slot.replace(&parameter["d=".len()..]).is_some()
        {
            return Err(repeated);
        }
        match end {
            Some(end) => rest = &rest[end + 1..],
            None => break,
        }
    }
    let dsp_id = dsp_id.ok_or(Rejection::DspMissing)?;
    let buyer_uid = buyer_uid.ok_or(Rejection::BuyerMissing)?;
    Ok((dsp_id, buyer_uid))
}

fn parse_dsp_id(encoded: &str) -> Result<u32, Rejection> {
    let mut scratch = [0; DSP_ID_DIGITS_MAX];
    let digits = match percent_decode(encoded, &mut scratch) {
        Decoded::Unchanged => encoded.as_bytes(),
        Decoded::Bytes(bytes) => bytes,
        Decoded::Malformed | Decoded::TooLong => return Err(Rejection::DspInvalid),
    };
    let mut dsp_id: u32 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return Err(Rejection::DspInvalid);
        }
        dsp_id = dsp_id
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u32::from(digit - b'0')))
            .ok_or(Rejection::DspInvalid)?;
    }
    // An empty value yields 0, which is invalid.
    if !ids::is_dsp_id(dsp_id) {
        return Err(Rejection::DspInvalid);
    }
    Ok(dsp_id)
}

fn parse_buyer_uid<'a>(encoded: &'a str, scratch: &'a mut [u8]) -> Result<&'a str, Rejection> {
    let buyer_uid = match percent_decode(encoded, scratch) {
        Decoded::Unchanged => encoded,
        Decoded::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| Rejection::BuyerNotUtf8)?,
        Decoded::Malformed => return Err(Rejection::BuyerEncoding),
        Decoded::TooLong => return Err(Rejection::BuyerTooLong),
    };
    match ids::check_buyer_uid(buyer_uid, BUYER_UID_BYTES_MAX) {
        Ok(()) => Ok(buyer_uid),
        Err(InvalidId::Empty) => Err(Rejection::BuyerEmpty),
        Err(InvalidId::TooLong) => Err(Rejection::BuyerTooLong),
        Err(InvalidId::Character) => Err(Rejection::BuyerControl),
    }
}

/// The value of the HTTP cookie with the user id, if there is one.
pub(super) fn user_id<'a>(mut headers: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    headers.find_map(|header| {
        header.split(|&byte| byte == b';').find_map(|pair| {
            let pair = pair.trim_ascii();
            pair.strip_prefix(USER_COOKIE)?.strip_prefix(b"=")
        })
    })
}

fn parse_user_id<'a>(headers: impl Iterator<Item = &'a [u8]>) -> Result<&'a str, Rejection> {
    let user_id = user_id(headers).ok_or(Rejection::UserMissing)?;
    ids::check_user_cookie(user_id, USER_ID_BYTES_MAX).map_err(|illegal| match illegal {
        InvalidId::Empty => Rejection::UserEmpty,
        InvalidId::TooLong => Rejection::UserTooLong,
        InvalidId::Character => Rejection::UserInvalid,
    })
}

enum Decoded<'a> {
    /// Contains no percent sign.
    Unchanged,
    /// The decoded bytes.
    Bytes(&'a [u8]),
    /// A percent sign is not followed by two hexadecimal digits.
    Malformed,
    /// The decoded value does not fit the scratch buffer.
    TooLong,
}

/// Decodes into `scratch`. A plus sign is not decoded.
///
/// Stricter than [the URL standard](https://url.spec.whatwg.org/#percent-decode), which keeps malformed escapes: an id with
/// one would match no user.
fn percent_decode<'a>(encoded: &str, scratch: &'a mut [u8]) -> Decoded<'a> {
    if memchr::memchr(b'%', encoded.as_bytes()).is_none() {
        return Decoded::Unchanged;
    }
    let mut length = 0;
    let mut bytes = encoded.bytes();
    while let Some(byte) = bytes.next() {
        let decoded = if byte == b'%' {
            let high = bytes.next().and_then(hex_digit);
            let low = bytes.next().and_then(hex_digit);
            match high.zip(low) {
                Some((high, low)) => high << 4 | low,
                None => return Decoded::Malformed,
            }
        } else {
            byte
        };
        let Some(target) = scratch.get_mut(length) else {
            return Decoded::TooLong;
        };
        *target = decoded;
        length += 1;
    }
    Decoded::Bytes(&scratch[..length])
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The bytes of a percent-encoded text. Malformed escapes are kept.
pub(super) fn percent_decoded(encoded: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = encoded;
    std::iter::from_fn(move || {
        let escaped = match rest {
            [b'%', high, low, ..] => hex_digit(*high).zip(hex_digit(*low)),
            _ => None,
        };
        let first = *rest.first()?;
        let (byte, length) = escaped.map_or((first, 1), |(high, low)| (high << 4 | low, 3));
        rest = &rest[length..];
        Some(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(query: &str, cookies: &[&str], expected: Result<(&str, u32, &str), Rejection>) {
        let mut scratch = SCRATCH;
        let headers = cookies.iter().map(|header| header.as_bytes());
        let stated = StatedMatch::parse(query);
        let decoded = stated.and_then(|stated| stated.decode(headers, false, &mut scratch));
        let parsed = decoded.map(|(buyer_uid, cookie)| {
            let cookie = cookie.unwrap();
            assert_eq!(cookie.buyer_uid, buyer_uid);
            (cookie.user_id, cookie.dsp_id, buyer_uid)
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
