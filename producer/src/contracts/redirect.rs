//! URLs of DSPs with macros, compiled when the contracts are loaded, and rendered in one pass: redirects, and the URLs of
//! syncs that a [plan](crate::plan) starts.
//!
//! Only the path, query and fragment contain macros, so the host of a URL is always that of the contract. All values
//! are percent-encoded, so no request can add a parameter or a header.

use super::privacy::Signals;

/// Maximum length of a template.
const TEMPLATE_BYTES_MAX: usize = 2_048;

/// Maximum length of a rendered URL; many servers reject longer URLs.
pub const URL_BYTES_MAX: usize = 8_192;

/// The values of all macros.
#[derive(Clone, Copy, Default)]
pub struct Values<'a> {
    /// The user id.
    pub user_id: &'a str,
    /// The buyer uid.
    pub buyer_uid: &'a str,
    /// The URL that a partner must request with its id, already percent-encoded.
    pub return_url: &'a str,
    /// The privacy signals.
    pub signals: Signals<'a>,
}

/// Selects a value.
type Value = for<'a> fn(&Values<'a>) -> &'a str;

/// A macro by its name.
type Macro = (&'static str, Value);

const RETURN: Macro = ("RETURN", |values| values.return_url);

const GDPR: Macro = ("GDPR", |values| values.signals.gdpr);
const GDPR_CONSENT: Macro = ("GDPR_CONSENT", |values| values.signals.gdpr_consent);
const GPP: Macro = ("GPP", |values| values.signals.gpp);
const GPP_SID: Macro = ("GPP_SID", |values| values.signals.gpp_sid);
const US_PRIVACY: Macro = ("US_PRIVACY", |values| values.signals.us_privacy);

/// The macros of a redirect.
pub const REDIRECT_MACROS: &[Macro] = &[
    ("UID", |values| values.user_id),
    ("DSP_UID", |values| values.buyer_uid),
    GDPR,
    GDPR_CONSENT,
    GPP,
    GPP_SID,
    US_PRIVACY,
];

/// The macros of a sync that a plan starts.
pub const SYNC_MACROS: &[Macro] = &[RETURN, GDPR, GDPR_CONSENT, US_PRIVACY, GPP, GPP_SID];

/// The compiled URL.
#[derive(Debug, Clone)]
pub struct Template {
    host: String,
    /// Texts, each followed by a macro.
    parts: Vec<(String, Macro)>,
    end: String,
}

impl Template {
    /// Compiles an absolute URL with these macros.
    ///
    /// # Errors
    /// A description of the error.
    pub fn parse(url: &str, macros: &[Macro]) -> Result<Self, String> {
        if url.len() > TEMPLATE_BYTES_MAX {
            return Err(format!("is longer than {TEMPLATE_BYTES_MAX} bytes"));
        }
        let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`|".contains(&byte);
        if !url.bytes().all(is_allowed) {
            return Err("contains a character that a URL must percent-encode".to_owned());
        }
        let rest = url
            .strip_prefix("https://")
            .ok_or("must begin with https://")?;
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let host = host(authority)?;
        let (mut parts, mut end) = (Vec::new(), url);
        while let Some((text, rest)) = end.split_once('{') {
            let (name, rest) = rest.split_once('}').ok_or("contains a { without a }")?;
            let found = macros.iter().find(|(known, _)| *known == name);
            let found = found.ok_or_else(|| {
                let known: Vec<_> = macros
                    .iter()
                    .map(|(known, _)| format!("{{{known}}}"))
                    .collect();
                format!("unknown macro {{{name}}}: use {}", known.join(", "))
            })?;
            parts.push((text.to_owned(), *found));
            end = rest;
        }
        let is_closing = |text: &str| text.contains('}');
        if is_closing(end) || parts.iter().any(|(text, _): &(String, _)| is_closing(text)) {
            return Err("contains a } without a {".to_owned());
        }
        Ok(Self {
            host,
            parts,
            end: end.to_owned(),
        })
    }

    /// The host, without its port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether the URL contains `{RETURN}`.
    pub(super) fn has_return(&self) -> bool {
        self.parts.iter().any(|(_, (name, _))| *name == RETURN.0)
    }

    /// Appends the URL to `output`; a missing parameter is empty, and a repeated one has the value that the privacy check reads.
    /// Returns false if the URL is too long, or if a value consists of dots only and could thus change the path.
    pub fn render(&self, values: &Values<'_>, output: &mut Vec<u8>) -> bool {
        let length_max = output.len() + URL_BYTES_MAX;
        for (text, (name, value)) in &self.parts {
            output.extend_from_slice(text.as_bytes());
            let start = output.len();
            match value(values) {
                encoded if *name == RETURN.0 => output.extend_from_slice(encoded.as_bytes()),
                value => encode(value, length_max, output),
            }
            let value = &output[start..];
            let is_dots = !value.is_empty() && value.iter().all(|&byte| byte == b'.');
            if is_dots || output.len() > length_max {
                return false;
            }
        }
        output.extend_from_slice(self.end.as_bytes());
        output.len() <= length_max
    }
}

/// Whether a byte is one of the unreserved characters of RFC 3986.
const UNRESERVED: [bool; 256] = {
    let mut unreserved = [false; 256];
    let mut byte: u8 = 0;
    while byte < 128 {
        unreserved[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
        byte += 1;
    }
    unreserved
};

/// Percent-encodes all but the unreserved characters of RFC 3986. Ends early if the output exceeds `length_max`.
pub fn encode(value: &str, length_max: usize, output: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = value.as_bytes();
    while output.len() <= length_max {
        let is_reserved = |byte: &u8| !UNRESERVED[usize::from(*byte)];
        let run = rest.iter().position(is_reserved).unwrap_or(rest.len());
        output.extend_from_slice(&rest[..run.min(length_max + 1 - output.len())]);
        let Some((byte, after)) = rest[run..].split_first() else {
            return;
        };
        let digit = |nibble: u8| DIGITS[usize::from(nibble)];
        output.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
        rest = after;
    }
}

/// The host of an authority, in lower case.
///
/// # Errors
/// A description of the error.
pub(super) fn host(authority: &str) -> Result<String, String> {
    if authority.contains(['{', '}']) {
        return Err("contains a macro in its host or port".to_owned());
    }
    if authority.contains('@') {
        return Err("contains a user name".to_owned());
    }
    let (host, port) = authority.split_once(':').unwrap_or((authority, "443"));
    if !port
        .parse::<u16>()
        .is_ok_and(|it| it > 0 && it.to_string() == port)
    {
        return Err(format!("invalid port `{port}`"));
    }
    let host = host.to_ascii_lowercase();
    check_host(&host)?;
    Ok(host)
}

/// Checks that a host is a name in lower case, with at least two labels, and not an address.
///
/// # Errors
/// A description of the error.
pub fn check_host(host: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(is_allowed);
    let last = host.rsplit('.').next().unwrap_or_default();
    // Browsers read a host as an IPv4 address if its last label is a number, also a hexadecimal one.
    let is_address = last.starts_with(|first: char| first.is_ascii_digit());
    if is_address || host.starts_with('[') {
        return Err(format!("`{host}` is an IP address: use a host name"));
    }
    if !host.contains('.') || host.len() > 253 || !host.split('.').all(is_label) {
        return Err(format!(
            "invalid host `{host}`: use a full name in lower case"
        ));
    }
    if last == "localhost" {
        return Err(format!("`{host}` is the browser's machine; use another"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::query::{Query, Scratch};

    fn values<'a>(signals: Signals<'a>) -> Values<'a> {
        Values {
            user_id: "u/1",
            buyer_uid: "a b&c=ü~",
            return_url: "",
            signals,
        }
    }

    fn parse(url: &str) -> Result<Template, String> {
        Template::parse(url, REDIRECT_MACROS)
    }

    fn rendered(url: &str, query: &str) -> Option<String> {
        let mut output = b"before ".to_vec();
        let mut scratch = Scratch::default();
        let signals = Query::parse(query, &mut scratch).signals;
        let template = parse(url).unwrap();
        let is_short = template.render(&values(signals), &mut output);
        let text = String::from_utf8(output).unwrap();
        is_short.then(|| text.strip_prefix("before ").unwrap().to_owned())
    }

    #[test]
    fn values_are_percent_encoded_once() {
        let url = "https://Sync.example/{UID}/done?x={DSP_UID}&g={GDPR}&c={GDPR_CONSENT}&p={GPP}&s={GPP_SID}&u={US_PRIVACY}#{UID}";
        let query = "d=17&gdpr=1&gdpr_consent=CO%2Bx%zz%41.~&b=x&gpp=DBA~%0d%0AX:+y&gpp=2&xgpp_sid=9&us%5fprivacy=1YNN";
        let expected = "https://Sync.example/u%2F1/done?x=a%20b%26c%3D%C3%BC~&g=1&c=CO%2Bx%25zzA.~\
                        &p=DBA~%0D%0AX%3A%2By&s=&u=1YNN#u%2F1";
        assert_eq!(rendered(url, query).unwrap(), expected);
        let url = "https://a.example:8443";
        assert_eq!(rendered(url, query).unwrap(), url);
    }

    #[test]
    fn value_of_dots_is_not_a_segment_of_the_path() {
        for dots in ["gpp=.", "gpp=..", "gpp=%2e.", "gpp=%2E&b=x"] {
            assert_eq!(rendered("https://a.example/{GPP}/x", dots), None, "{dots}");
        }
        let url = "https://a.example/{GPP}/x";
        assert_eq!(rendered(url, "gpp=..a").unwrap(), "https://a.example/..a/x");
    }

    #[test]
    fn value_of_a_repeated_parameter_is_that_of_the_privacy_gate() {
        let url = "https://a.example/?g={GDPR}&s={GPP_SID}";
        let query = "gdpr=&gpp_sid=2&gdpr=1&gdpr=0&gpp_sid=6";
        assert_eq!(rendered(url, query).unwrap(), "https://a.example/?g=1&s=2");
    }

    #[test]
    fn url_is_never_longer_than_its_limit() {
        let url = "https://a.example/?a={GPP}&b={GDPR_CONSENT}";
        let query = |length| format!("gpp={}", "x".repeat(length));
        let fits = URL_BYTES_MAX - "https://a.example/?a=&b=".len();
        assert_eq!(rendered(url, &query(fits)).unwrap().len(), URL_BYTES_MAX);
        assert_eq!(rendered(url, &query(fits + 1)), None);
        for character in ["\0", "x"] {
            let long = character.repeat(20_000);
            let long = Signals {
                gdpr_consent: &long,
                gpp: &long,
                ..Signals::default()
            };
            let template = parse(url).unwrap();
            let mut output = Vec::new();
            assert!(!template.render(&values(long), &mut output));
            assert!(output.len() < URL_BYTES_MAX + 10, "{}", output.len());
        }
    }

    #[test]
    fn host_is_a_name_that_the_contract_contains() {
        for (url, error) in [
            ("http://a.example/", "must begin with https://"),
            ("//a.example/", "must begin with https://"),
            ("{GPP}://a.example/", "must begin with https://"),
            ("https://{UID}/", "macro in its host"),
            ("https://{UID}.example/", "macro in its host"),
            ("https://a.example{UID}", "macro in its host"),
            ("https://a.example:{UID}/", "macro in its host"),
            ("https://user@a.example/", "user name"),
            ("https://user:secret@a.example/", "user name"),
            ("https://a.example:0/", "invalid port"),
            ("https://a.example:65536/", "invalid port"),
            ("https://a.example:/", "invalid port"),
            ("https://192.0.2.1/", "IP address"),
            ("https://3221225985/", "IP address"),
            ("https://a.0xc0/", "IP address"),
            ("https://[2001:db8::1]/", "invalid port"),
            ("https://localhost/", "invalid host"),
            ("https://sync.localhost/", "browser's machine"),
            ("https://LOCALHOST:8080/", "invalid host"),
            ("https:///done", "invalid host"),
            ("https://a..example/", "invalid host"),
            ("https://a.example./", "invalid host"),
            ("https://a_b.example/", "invalid host"),
            ("https://a.example%2Fevil.example/", "invalid host"),
            ("https://a.example\\@evil.example/", "percent-encode"),
            ("https://ä.example/", "percent-encode"),
            ("https://a.example/ ", "percent-encode"),
            ("https://a.example/\r\nX: y", "percent-encode"),
            (
                "https://a.example/{UUID}",
                "unknown macro {UUID}: use {UID}",
            ),
            ("https://a.example/{{UID}}", "unknown macro"),
            ("https://a.example/{UID", "without a }"),
            ("https://a.example/UID}", "without a {"),
        ] {
            let found = parse(url).unwrap_err();
            assert!(found.contains(error), "{url}: {found}");
        }
        let long = format!("https://a.example/{}", "x".repeat(TEMPLATE_BYTES_MAX));
        assert!(parse(&long).is_err());
        let host = parse("https://Sync.Example:8443/{UID}");
        assert_eq!(host.unwrap().host(), "sync.example");
    }
}
